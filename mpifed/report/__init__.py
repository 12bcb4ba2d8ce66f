"""Comparison of stored runs in figures, tables and an HTML page. Nothing is executed again."""

from mpifed.base.errors import expect_extra

expect_extra("plots", "reports and figures")
