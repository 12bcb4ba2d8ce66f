#!/usr/bin/env bash
# The GPU part of the tests and the floor benchmark on the GPUs of this node, one and several (scripts/bench/gpus.py), as Markdown tables.
# Arguments go there, e.g. scripts/gpu_check.sh --json gpus.json -- --workloads saddle --rounds 200
# Exit code 2 without a GPU that torch can use.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! nvidia-smi -L >/dev/null 2>&1; then
  echo "gpu_check: no GPU: nvidia-smi finds none on this machine" >&2
  exit 2
fi
# The MPI and torch at hand are tested if they are complete, as on a cluster with its own; else those of the constraints.
if python -c 'import mpi4py.MPI, torch, h5py, pytest, pytest_mpi; assert torch.cuda.is_available()' 2>/dev/null; then
  export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
  echo "gpu_check: the environment of $(command -v python)" >&2
else
  . scripts/environment
  echo "gpu_check: the environment of scripts/environment" >&2
fi
exec python scripts/bench/gpus.py "$@"
