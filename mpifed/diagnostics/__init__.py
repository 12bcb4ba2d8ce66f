"""Estimates, along a run, of the constants in the assumptions of theorems."""
