"""Collects the tests of this folder only on a simulated GPU, which has to be loaded before torch:
``tests/unit/test_simulated_gpu.py`` runs them in another process."""

import os

collect_ignore_glob = [] if "MPIFED_SIMULATED_GPU" in os.environ else ["*"]
