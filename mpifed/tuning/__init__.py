"""A search for the best settings of methods, at the same cost for each."""

from mpifed.base.extras import expect_extra

expect_extra("tune", "hyperparameter searches")
