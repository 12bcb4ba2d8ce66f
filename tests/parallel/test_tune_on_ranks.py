"""A search on one rank and several: identical files, and the failure of one rank ends all."""

from pathlib import Path

import pytest

from mpifed.config.tuning import tuning
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.tuning import tuner

JOB = """
rounds = 3
[problem]
name = "Saddle"
clients = 2
d = 3
[oracle]
noise = { name = "gaussian", scale = 0.1 }
[run]
out = "OUT"
[tune]
runs = 3
seeds = 2
[[tune.methods]]
name = "LocalSGDA"
q = 2
eta_y = 0.05
[[tune.methods]]
name = "FGDA"
q = 2
"""


def job(folder: str, comm):
    """Read the search on every rank from a separate file, with a common output folder."""
    path = Path(folder, f"job-{comm.rank}.toml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(JOB.replace("OUT", f"{folder}/out"))
    return tuning(path)


@pytest.mark.mpi
def test_a_search_finds_the_same_on_any_number_of_ranks(out, comm):
    found = tuner.tune(job(f"{out}/all", comm), comm)
    comm.barrier()
    if comm.rank == 0:
        assert found == tuner.tune(job(f"{out}/one", comm), SerialComm())
        for name in ("best.toml", "tried.csv"):
            one, every = (Path(out, folder, "out", name).read_text() for folder in ("one", "all"))
            assert one.replace(f"{out}/one", f"{out}/all") == every
    comm.barrier()


@pytest.mark.mpi
@pytest.mark.parametrize(
    "fault, ends", [(CollectiveError("no data"), CollectiveError), (KeyboardInterrupt(), tuner.Interrupted)]
)
def test_a_failure_of_one_rank_ends_all(out, comm, monkeypatch, fault, ends):
    """The last rank fails in its second run, while the others are within theirs."""
    carried, count = tuner.run_trial, 0

    def failing(*arguments):
        nonlocal count
        count += 1
        if comm.rank == comm.size - 1 and count == 2:
            raise fault
        return carried(*arguments)

    monkeypatch.setattr(tuner, "run_trial", failing)
    with pytest.raises(ends):
        tuner.tune(job(out, comm), comm)
    comm.barrier()
    if comm.rank == 0:
        assert "Unfinished: 2 of 2" in Path(out, "out/best.toml").read_text()
    comm.barrier()
    monkeypatch.undo()
    tuner.tune(job(out, comm), comm)
    if comm.rank == 0:
        assert "Unfinished" not in Path(out, "out/best.toml").read_text()
