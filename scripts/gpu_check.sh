#!/usr/bin/env bash
# The GPU part of the tests and the floor benchmark with 1, 2 and 4 ranks on one GPU, as Markdown tables.
# Arguments go to the benchmark, e.g. scripts/gpu_check.sh --workloads saddle --rounds 200
# Exit code 2 without a GPU that torch can use.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! nvidia-smi -L >/dev/null 2>&1; then
  echo "gpu_check: no GPU: nvidia-smi finds none on this machine" >&2
  exit 2
fi
. scripts/environment
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES%%,*}
python - <<'PYTHON' || exit 2
import sys
from mpifed.parallel.devices import device_for
try:
    device_for("cuda", None, 0)
except ValueError as fault:
    sys.exit(f"gpu_check: {fault}")
PYTHON
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
for ranks in 1 2 4; do
  mkdir "$results/$ranks"
  echo "tests with $ranks ranks" >&2
  timeout 600 mpirun -n "$ranks" python tests/support/mpi_main.py "$ranks" "$results/$ranks" tests/parallel/test_devices.py --color=no \
    > "$results/tests-$ranks" 2>&1 || { cat "$results/tests-$ranks" >&2; exit 1; }
done
python scripts/bench/floor.py --device cuda --ranks 1 2 4 --json "$results/floor.json" "$@" >&2
python - "$results" <<'PYTHON'
import json
import sys
from pathlib import Path

import torch

results = Path(sys.argv[1])
print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}\n")
print("| ranks on the GPU | tests |\n|---:|---|")
for ranks in (1, 2, 4):
    line = [line for line in (results / f"tests-{ranks}").read_text().splitlines() if line.startswith("passed on")][-1]
    print(f"| {ranks} | {line} |")
print("\n| workload | method | ranks | transport | package ms | floor ms | ratio | in communication |\n|---|---|---:|---|---:|---:|---:|---:|")
for row in json.loads((results / "floor.json").read_text())["rows"]:
    cells = [row["workload"], row["method"], row["ranks"], row.get("transport", "skipped: " + row.get("skipped", "").split(":")[0])]
    if "ratio" in row:
        cells += [f"{row['package_ms']:.3f}", f"{row['floor_ms']:.3f}", f"{row['ratio']:.2f}", f"{row['communication_share']:.1%}"]
    print("| " + " | ".join(map(str, cells + [""] * (8 - len(cells)))) + " |")
PYTHON
