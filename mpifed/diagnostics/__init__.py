"""Estimates, along a run, of the constants in the assumptions of theorems."""

from mpifed.base.errors import expect_extra

expect_extra("plots", "estimates of constants and their figure")
