"""Searches for the best settings of methods, with comparable budgets."""

from mpifed.base.errors import expect_extra

expect_extra("tune", "hyperparameter searches")
