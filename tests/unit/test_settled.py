"""The reduction that a job leaves open: by the device, and stored as what it has become."""

import pytest
import torch
from click.testing import CliRunner
from games import Game, configuration

from mpifed import resume, run
from mpifed.algorithms import LocalSGDA
from mpifed.cli.main import cli
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.problems import Saddle
from mpifed.simulation import setup
from mpifed.storage.results import load

SWEEP = """
rounds = 2
[algorithm]
name = "FGDA"
q = 2
[problem]
name = "Saddle"
clients = 2
[run]
progress = false
[sweep]
seed = [0, 1]
"""
METHOD, PROBLEM = LocalSGDA(q=2, eta_x=0.1, eta_y=0.1), Saddle(clients=3)


@pytest.mark.parametrize("device, made", [("cpu", "exact"), ("cuda", "fused")])
@pytest.mark.parametrize("asked", [None, "exact", "fused"])
def test_the_device_decides_what_is_left_open(monkeypatch, device, made, asked):
    monkeypatch.setattr(setup, "choose_device", lambda *_: torch.device(device))
    config = configuration(METHOD, PROBLEM, "runs/none", reduction=asked)
    settled = setup.settled(config, SerialComm())
    assert settled.run.reduction == (asked or made) and settled.table()["run"]["reduction"] == (asked or made)
    assert setup.settled(settled, SerialComm()) == settled


@pytest.mark.parametrize("group, made", [(1, "exact"), (2, "fused"), ("auto", "fused")])
def test_groups_that_are_compiled_have_no_bits_to_promise(group, made):
    config = configuration(METHOD, Game(), "runs/none", compile="default", group=group)
    assert setup.settled(config, SerialComm()).run.reduction == made


def test_a_run_stores_it_and_goes_on_with_it(tmp_path, monkeypatch):
    short = configuration(METHOD, PROBLEM, tmp_path / "run", rounds=4, checkpoint_every=2, overwrite=False)
    whole = run(configuration(METHOD, PROBLEM, tmp_path / "whole", rounds=8, reduction="exact"))
    run(short)
    assert load(tmp_path / "run").config["run"]["reduction"] == "exact"
    assert torch.equal(resume(tmp_path / "run", ["rounds=8"]).point["x"], whole.point["x"])
    with pytest.raises(CollectiveError, match="run.reduction"):
        run(configuration(METHOD, PROBLEM, tmp_path / "run", rounds=8, reduction="fused", overwrite=False))


def test_a_sweep_knows_what_it_has_done(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(SWEEP)
    for before in (0, 2):
        done = CliRunner().invoke(cli, ["sweep", "job.toml"])
        assert f"2 runs done, {before} of them before" in done.output, done.output


def test_a_device_that_is_not_there(tmp_path):
    with pytest.raises(CollectiveError, match="asks for a GPU, but this process sees none"):
        run(configuration(METHOD, PROBLEM, tmp_path / "run", device="cuda"))
    assert not (tmp_path / "run").exists()
