"""Where the real data sets lie, if they do: ``$MPIFED_DATA`` or ``shared/data`` beside the checkout."""

import os
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("MPIFED_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))


def real(name: str) -> Path:
    """The folder of the data sets; the test is skipped where it has no ``name``."""
    if not (ROOT / name).exists():
        pytest.skip(f"no {name} in $MPIFED_DATA or in shared/data beside the checkout")
    return ROOT
