"""``mpifed check`` under mpirun: results on all ranks and in one process."""

from pathlib import Path

import numpy as np
import pytest

from mpifed.base.errors import ConfigError
from mpifed.cli.check import check_class

pytestmark = pytest.mark.mpi

PLUGIN = Path(__file__).parents[1] / "plugins" / "fedavg.py"


def same_on_all_ranks(comm, value: bool) -> bool:
    """Return ``value``, which must be the same on all ranks."""
    count = np.array([int(value)], dtype=np.int64)
    comm.allreduce_(count)
    assert count[0] in (0, comm.size)
    return value


def test_a_valid_method_passes_on_all_ranks(comm, capsys):
    if comm.size > 2:
        pytest.skip("two ranks suffice, since a check takes seconds")
    assert same_on_all_ranks(comm, check_class(f"{PLUGIN}:FedAvg", [], comm))
    lines = capsys.readouterr().out.splitlines()
    assert bool(lines) == (comm.rank == 0)
    verdict = f"holds        {comm.size} ranks and one rank give bitwise identical results"
    assert (verdict in lines) == (comm.rank == 0 and comm.size > 1), lines


def test_a_method_that_depends_on_its_process_fails_on_ranks(comm, out, capsys):
    """In one process the process number is constant, so the check passes."""
    plugin = Path(out, "by_process.py")
    if comm.rank == 0:
        source = PLUGIN.read_text()
        assert "message.dx = x" in source
        plugin.write_text(
            "import os\n" + source.replace("message.dx = x", "message.dx = x + 1e-6 * os.getpid()")
        )
    comm.barrier()
    assert same_on_all_ranks(comm, check_class(f"{plugin}:FedAvg", [], comm)) == (comm.size == 1)
    if comm.rank == 0 and comm.size > 1:
        (failure,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAILS")]
        assert f"{comm.size} ranks and one rank give bitwise identical results: the results differ" in failure


def test_a_failure_in_one_process_is_not_repeated_on_ranks(comm, out, capsys):
    plugin = Path(out, "broken.py")
    if comm.rank == 0:
        plugin.write_text(PLUGIN.read_text().replace("message.dx = x", "message.dx = x / 0"))
    comm.barrier()
    assert not same_on_all_ranks(comm, check_class(f"{plugin}:FedAvg", [], comm))
    lines = capsys.readouterr().out.splitlines()
    statement = f"{comm.size} ranks and one rank give bitwise identical results"
    said = f"not checked  {statement}: a check in one process failed"
    assert (said in lines) == (comm.rank == 0 and comm.size > 1), lines


def test_a_class_without_settings_is_refused_on_all_ranks(comm, out):
    plugin = Path(out, "plain.py")
    if comm.rank == 0:
        plugin.write_text("from mpifed import Minimax\n\nclass Plain(Minimax):\n    clients = 3\n")
    comm.barrier()
    with pytest.raises(ConfigError, match="Plain must be a dataclass whose fields are its settings"):
        check_class(f"{plugin}:Plain", [], comm)
