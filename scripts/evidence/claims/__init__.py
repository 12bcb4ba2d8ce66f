"""Tests of the papers' claims by runs.

``entries`` reads the claims (jobs/papers/claims.toml), ``execution`` executes missing runs, ``panels`` reads
the results, ``values`` computes one value per run, ``interval`` compares the values over seeds, ``formulas``
evaluates formulas of theorems, ``verdicts`` derives the verdicts, and ``figures`` and ``page`` write the page
of experiments.
"""
