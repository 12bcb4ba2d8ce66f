#!/usr/bin/env bash
# Checks the GPUs of this node and prints a Markdown report; the arguments are those of scripts/bench/gpus.py, e.g.
# scripts/gpu_check.sh --minutes 5 --output gpus.md. It runs as root, in a Slurm job and without a network. The active Python is
# used if its torch can use a GPU, as on a cluster; pytest, hypothesis, mpi4py and an MPI library are needed for a part of the report.
# Otherwise, on a node with GPUs, the environment of scripts/environment. --rehearse runs on a simulated GPU.
# Exit code 2 without a GPU that torch can use, 1 if anything failed.
set -euo pipefail
cd "$(dirname "$0")/.."
rehearse=$(printf '%s\n' "$@" | grep -cx -- --rehearse || true)
ready='import torch; raise SystemExit(not (torch.version.hip or torch.cuda.is_available()))'
[ "$rehearse" = 0 ] || ready='import torch, pydantic'
for python in python python3; do
  if "$python" -c "$ready" 2>/dev/null; then
    echo "gpu_check: using $(command -v "$python")" >&2
    exec "$python" scripts/bench/gpus.py "$@"
  fi
done
if [ "$rehearse" = 0 ] && ! nvidia-smi -L >/dev/null 2>&1; then
  echo "gpu_check: no GPU: the active Python has no torch that can use one, and nvidia-smi does not list any" >&2
  exit 2
fi
. scripts/environment >&2
echo "gpu_check: using the environment of scripts/environment" >&2
exec python scripts/bench/gpus.py "$@"
