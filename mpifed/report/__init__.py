"""Comparison of stored runs in figures, tables and an HTML page. Nothing is executed again."""

from mpifed.base.extras import expect_extra

expect_extra("plots", "reports and figures")
