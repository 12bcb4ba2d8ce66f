"""User-defined networks on several ranks are bitwise identical to one, and differing networks are refused."""

import networks
import pytest
import torch
from networks import Net

import mpifed
from mpifed.parallel.comm import CollectiveError, SerialComm

pytestmark = pytest.mark.mpi


def table(model, out, **run) -> dict:
    return {
        "rounds": 3,
        "algorithm": {"name": "LocalSGDA", "q": 2, "eta_x": 0.1, "eta_y": 0.1},
        "problem": {"name": "DeepAUC", "dataset": "digits", "clients": 5, "model": model},
        "oracle": {"batch_size": 4},
        "run": {"out": str(out), "progress": False, "reduction": "exact", "eval_every": 3, **run},
    }


@pytest.mark.parametrize(
    "name, group", [("dropping", 1), ("dropping", 2), ("dropping", "all"), ("Attention", "auto")]
)
def test_bitwise_identical_to_one_process(comm, out, tmp_path, name, group):
    """Dropout depends on client, round and step only."""
    model = {"name": f"{networks.__file__}:{name}", "p": 0.5}
    together = mpifed.run(table(model, out, group=group), comm).point
    alone = mpifed.run(table(model, tmp_path / "alone", group=group), SerialComm()).point
    assert all(torch.equal(together[block], alone[block]) for block in "xy")


def test_an_object_that_differs_between_ranks_is_refused(comm, out):
    torch.manual_seed(comm.rank)
    settings = table("linear", out)
    settings["problem"] = {**settings["problem"], "model": Net()}
    if comm.size == 1:
        assert mpifed.run(settings, comm).point["x"].shape == (64 * 6 + 6 + 6 + 1 + 2,)
        return
    words = "problem.model differs between ranks: rank 0 .*seed the random numbers of objects"
    with pytest.raises(CollectiveError, match=words):
        mpifed.run(settings, comm)
