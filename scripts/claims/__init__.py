"""The papers' claims, judged by runs.

``entries`` reads what is claimed (jobs/papers/claims.toml), ``carrying_out`` runs what is missing, ``panels``
reads the runs, ``values`` takes one figure of each, ``interval`` compares them over seeds, ``verdicts`` says
what that means for the claim, ``figures`` and ``page`` show it.
"""
