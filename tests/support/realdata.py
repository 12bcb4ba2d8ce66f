"""Official data sets in ``$MPIFED_DATA`` or in ``shared/data`` next to the checkout."""

import os
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("MPIFED_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))


def real(name: str) -> Path:
    """The folder of the data sets; skip the test if it does not contain ``name``."""
    if not (ROOT / name).exists():
        pytest.skip(f"no {name} in $MPIFED_DATA or in shared/data next to the checkout")
    return ROOT
