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
. scripts/environment
exec python scripts/bench/gpus.py "$@"
