"""A search for the best settings of methods, at the same cost for each."""
