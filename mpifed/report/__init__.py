"""Finished runs side by side: curves, tables, a page. Never the simulator."""

from mpifed.base.extras import expect_extra

expect_extra("plots", "reports and figures")
