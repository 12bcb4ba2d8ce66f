#!/usr/bin/env bash
# Runs the GPU tests and the floor benchmark on one and several GPUs of this node and prints Markdown tables. Arguments are passed
# to scripts/bench/gpus.py, e.g. scripts/gpu_check.sh --json gpus.json -- --workloads saddle --rounds 200
# Exit code 2 without a GPU that torch can use.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! nvidia-smi -L >/dev/null 2>&1; then
  echo "gpu_check: no GPU: nvidia-smi does not list any" >&2
  exit 2
fi
# Test the MPI and torch of the active environment if it is complete, as on a cluster, otherwise the pinned versions.
if python -c 'import mpi4py.MPI, torch, h5py, pytest, pytest_mpi; assert torch.cuda.is_available()' 2>/dev/null; then
  export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
  echo "gpu_check: using the active environment, $(command -v python)" >&2
else
  . scripts/environment
  echo "gpu_check: using the environment of scripts/environment" >&2
fi
exec python scripts/bench/gpus.py "$@"
