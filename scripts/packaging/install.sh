#!/bin/sh
# The steps of Dockerfile and mpifed.def after the packages of the system: installs mpifed from the current folder for the python
# on PATH, with the pinned versions, and tests it. TORCH_INDEX is the package index of another build of PyTorch.
set -eu
[ -z "${TORCH_INDEX:-}" ] || python -m pip install --disable-pip-version-check -c constraints.txt --index-url "$TORCH_INDEX" torch
python -m pip install --disable-pip-version-check -c constraints.txt '.[mpi,plots,tune]'
cd "$(mktemp -d)"
mpifed selftest
