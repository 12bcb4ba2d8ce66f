"""``scripts/bench/checkpoints.py`` saves with the recorder, the folder and the checkpoints of a run."""

import importlib
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts/bench"


@pytest.mark.parametrize("recorded", [0, 100])
def test_checkpoints(monkeypatch, tmp_path, recorded):
    monkeypatch.syspath_prepend(SCRIPTS)
    row = importlib.import_module("checkpoints").measure(recorded, tmp_path / "run")
    assert row["recorded"] == recorded and 0 < row["median_bytes"] <= row["end_bytes"]
