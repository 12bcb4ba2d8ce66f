"""Collects the tests of this folder only on a GPU: on a simulated one, which has to be loaded before torch
(``tests/unit/test_simulated_gpu.py`` runs them in another process), or on the GPUs named in
``MPIFED_TEST_GPUS`` (``scripts/gpu_check.sh``)."""

import os

import torch

collect_ignore_glob = [] if "MPIFED_SIMULATED_GPU" in os.environ or torch.cuda.is_available() else ["*"]
