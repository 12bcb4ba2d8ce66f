"""Estimates of the constants that theorems assume, along a run."""
