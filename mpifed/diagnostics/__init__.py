"""Estimates, along a run, of the constants in the assumptions of theorems."""

from mpifed.base.extras import expect_extra

expect_extra("plots", "estimates of constants and their figure")
