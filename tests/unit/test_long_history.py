"""The history lies in a file beside the checkpoints; what of it is damaged is lost, and the run is not."""

import contextlib
import os
import shutil

import numpy as np
import pytest

import mpifed
from mpifed import resume, run
from mpifed.config.job import Config
from mpifed.parallel.comm import SerialComm
from mpifed.running import checkpointing
from mpifed.running.checkpointing import CheckpointManager
from mpifed.running.recorder import Recorder
from mpifed.simulation.simulation import Simulation
from mpifed.storage import checkpoint, folder, history
from mpifed.storage.folder import Folder
from mpifed.storage.format import COSTS
from mpifed.storage.ownership import HISTORY_MAGIC

COMM = SerialComm()
ROUNDS = 9


def job(out, rounds=ROUNDS, record=("x", "y"), **settings) -> Config:
    base = {"progress": False, "dtype": "float64", "checkpoint_every": 2, "eval_every": 3, "out": str(out)}
    return Config.from_table(
        {
            "rounds": rounds,
            "record": list(record),
            "algorithm": {"name": "AdaFGDA", "q": 2},
            "problem": {"name": "Saddle", "clients": 4, "d": 3},
            "oracle": {"batch_size": 0, "noise": {"name": "gaussian", "scale": 0.1}},
            "run": base | settings,
        }
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run and its folder."""
    out = tmp_path_factory.mktemp("whole") / "run"
    return run(job(out), COMM), out


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(folder, "PATIENCE", 0.0)


@pytest.fixture
def out(whole, tmp_path):
    """A copy of the run without its results file."""
    copy = shutil.copytree(whole[1], tmp_path / "run")
    (copy / "run.h5").unlink()
    return copy


def same(one, other) -> None:
    """Two results agree in all that no clock has measured."""
    for block in "xy":
        assert one.point[block].equal(other.point[block])
        np.testing.assert_array_equal(one.iterates[block], other.iterates[block])
    assert one.history == other.history
    for name in set(COSTS) - {"seconds", "compute_seconds", "communication_seconds"}:
        np.testing.assert_array_equal(one.costs[name], other.costs[name])


def test_a_run_that_goes_on_has_its_whole_history(whole, out):
    same(resume(out, [], COMM), whole[0])
    same(mpifed.load(out), whole[0])
    rows = (out / "history.bin").stat().st_size - len(HISTORY_MAGIC)
    assert rows == (ROUNDS + 1) * (4 + 8 * (len(COSTS) + len(whole[0].history) + 3 + 3))


def written() -> int:
    """Bytes that this process has written."""
    with open("/proc/self/io") as file:
        return int(file.read().split("wchar:")[1].split()[0])


@pytest.mark.parametrize("recorded", [1000, 50_000])
def test_a_checkpoint_writes_as_much_after_many_rounds_as_after_few(tmp_path, recorded):
    """But for the one at which a history of this length is taken up."""
    config = job(tmp_path, rounds=10**6, record=())
    place, simulation = Folder(tmp_path), Simulation.from_settings(config, COMM)
    place.open(create=False)
    simulation.start()
    recorder = Recorder(simulation, COMM)
    checkpoints = CheckpointManager(config.run, place, simulation, recorder, COMM)
    costs = np.arange(recorded + 1.0)[:, None].repeat(len(COSTS), 1)
    recorder.restore({"metrics": ["round", "error"]}, {"costs": costs, "metrics": costs[::10, :2].T})
    simulation.round = recorded
    amounts = []
    for _ in range(5):
        simulation.step()
        recorder.note_round()
        before = written()
        checkpoints.save()
        amounts.append(written() - before)
    place.close()
    # The results file while the history is short, and 100 KB for what is no history.
    assert max(amounts[1:]) < checkpointing.LONG + 100_000, amounts
    header = checkpoint.newest(tmp_path)[1]
    tables, lost = history.read(tmp_path, header)
    assert len(tables["costs"]) == recorded + 6 and not lost


def test_a_results_file_is_little_behind_and_seldom_written(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpointing, "LONG", 0)
    shown, behind, write = [0], [], Recorder.write
    write_history = CheckpointManager._write_history

    def noted(self, *arguments):
        shown.append(self.size)
        write(self, *arguments)

    def measured(self):
        behind.append(self.recorder.size - 33 / 32 * shown[-1])
        return write_history(self)

    monkeypatch.setattr(Recorder, "write", noted)
    monkeypatch.setattr(CheckpointManager, "_write_history", measured)
    run(job(tmp_path, rounds=200, record=(), checkpoint_every=1, keep=1), COMM)
    assert len(behind) == 200 and len(shown) < 110
    # Before a checkpoint, by no more than a round: its costs and, with its number, three metrics.
    assert max(behind[1:]) < 8 * (len(COSTS) + 4), behind
    (tmp_path / "run.h5").unlink()
    monkeypatch.undo()
    run(job(tmp_path, rounds=201, record=(), checkpoint_every=1), COMM)
    assert mpifed.load(tmp_path).costs["round"].tolist() == list(range(202))


def dies(*_):
    raise KeyboardInterrupt


#: What writes the history, what writes the checkpoint, and what reads the history; and which call of it.
MOMENTS = [
    *[(history, "_checked", call) for call in (1, 2, 3)],
    *[(checkpoint, "write", call) for call in (1, 2, 3)],
    (history, "read", 1),
]


@pytest.mark.parametrize("owner, name, call", MOMENTS, ids=[f"{name}-{call}" for _, name, call in MOMENTS])
def test_a_run_that_dies_about_its_history_ends_in_the_same_bits(
    whole, tmp_path, at, monkeypatch, owner, name, call
):
    """In the first process before there is a checkpoint, in the second one when there are some."""
    plain = getattr(owner, name)
    for place, first in (("one", False), ("two", True)):
        settings = job(tmp_path / place)
        if first:
            at(5, dies)
            with pytest.raises(KeyboardInterrupt):
                run(settings, COMM)
        calls = iter([*[plain] * (call - 1), dies, *[plain] * 99])
        with monkeypatch.context() as patches:
            patches.setattr(owner, name, lambda *arguments: next(calls)(*arguments))
            with pytest.raises(KeyboardInterrupt) if first or name != "read" else contextlib.nullcontext():
                run(settings, COMM)
        same(run(settings, COMM), whole[0])
        same(mpifed.load(settings.run.out), whole[0])
        assert not list((tmp_path / place).glob("*.tmp.*"))


def damages(content: bytes):
    """The history with each of 45 bits flipped, and cut off at 14 places; and the rounds that are touched."""
    row, random = (len(content) - len(HISTORY_MAGIC)) // (ROUNDS + 1), np.random.default_rng(0)
    for place in [*range(5), *random.integers(len(content), size=40).tolist()]:
        flipped = content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :]
        yield flipped, [] if place < len(HISTORY_MAGIC) else [(place - len(HISTORY_MAGIC)) // row]
    for kept in [0, 5, len(content) - 1, *random.integers(len(content), size=11).tolist()]:
        yield content[:kept], list(range(max(0, kept - len(HISTORY_MAGIC)) // row, ROUNDS + 1))


def test_whatever_is_damaged_the_run_goes_on_and_says_what_is_lost(whole, out, tmp_path, capsys):
    """To more rounds, so that nothing of the end is taken for granted."""
    more = run(job(tmp_path / "more", ROUNDS + 3), COMM)
    for number, (content, lost) in enumerate(damages((out / "history.bin").read_bytes())):
        place = shutil.copytree(out, tmp_path / str(number))
        (place / "history.bin").write_bytes(content)
        capsys.readouterr()
        result = resume(place, [f"rounds={ROUNDS + 3}"], COMM)
        said = capsys.readouterr().err
        assert "from round 9" in said and ("are lost" in said) == bool(lost), said
        assert not lost or f"iterates of rounds {history.ranges(lost)} are lost" in said, said
        for found in (result, mpifed.load(place)):
            kept = [r for r in range(ROUNDS + 4) if r not in lost or r == ROUNDS]  # its costs are carried
            assert found.costs["round"].tolist() == kept
            evaluated = [k for k, r in enumerate(more.history["round"]) if r not in lost]
            for name, values in more.history.items():
                assert found.history[name] == [values[k] for k in evaluated], name
            np.testing.assert_array_equal(found.costs["oracle_calls"], more.costs["oracle_calls"][kept])
            for block in "xy":
                assert found.point[block].equal(more.point[block])
                expected = more.iterates[block].copy()
                expected[[r - 1 for r in lost if r]] = np.nan
                np.testing.assert_array_equal(found.iterates[block], expected)
        assert resume(place, [f"rounds={ROUNDS + 4}"], COMM).costs["round"].tolist() == [*kept, ROUNDS + 4]
        assert "is damaged" not in capsys.readouterr().err, "it is told once"
        shutil.rmtree(place)


@pytest.mark.parametrize("what", ["gone", "a folder", "a pipe", "another file"])
def test_a_history_that_is_not_there(whole, out, what, capsys):
    path = out / "history.bin"
    path.unlink()
    if what == "a folder":
        path.mkdir()
    if what == "a pipe":
        os.mkfifo(path)
    if what == "another file":
        path.write_bytes(b"mine" * 1000)
    result = resume(out, [f"rounds={ROUNDS + 1}"], COMM)
    assert "iterates of rounds 0 to 9 are lost" in capsys.readouterr().err
    assert result.costs["round"].tolist() == [ROUNDS, ROUNDS + 1]
    assert not checkpoint.newest(out)[3] and path.is_file()
    assert (out / "history.bin.kept1").exists() == (what in ("a folder", "a pipe"))


def test_rounds_in_words():
    assert history.ranges([3]) == "3" and history.ranges([0, 1, 2, 5, 7, 8]) == "0 to 2, 5, 7 to 8"


def test_a_block_recorded_later_is_unknown_before(whole, tmp_path):
    run(job(tmp_path, 4, record=["x"]), COMM)
    result = resume(tmp_path, ["rounds=6", 'record=["x", "y"]'], COMM)
    assert np.isnan(result.iterates["y"][:4]).all()
    result = resume(tmp_path, [f"rounds={ROUNDS}"], COMM)
    assert np.isnan(result.iterates["y"][:4]).all()
    np.testing.assert_array_equal(result.iterates["y"][4:], whole[0].iterates["y"][4:])
    np.testing.assert_array_equal(result.iterates["x"], whole[0].iterates["x"])


def test_the_folder_comes_back_and_older_checkpoints_hold(whole, tmp_path, at):
    place, away = tmp_path / "a" / "run", tmp_path / "a" / "away"
    at(3, lambda: place.rename(away))
    at(7, lambda: away.rename(place))
    same(run(job(place), COMM), whole[0])
    assert os.listdir(tmp_path / "a") == ["run"]
    for path in reversed(Folder(place).checkpoints()):
        assert checkpoint.newest(place)[0] == path and not checkpoint.newest(place)[3]
        path.unlink()


@pytest.mark.parametrize("loss", ["removed", "replaced", "cut off"])
def test_files_that_somebody_has_touched_are_written_anew(whole, tmp_path, at, loss):
    path = tmp_path / "history.bin"
    at(5, {
        "removed": path.unlink,
        "replaced": lambda: (path.unlink(), path.write_bytes(HISTORY_MAGIC + bytes(9999))),
        "cut off": lambda: os.truncate(path, 100),
    }[loss])  # fmt: skip
    same(run(job(tmp_path), COMM), whole[0])
    header = checkpoint.newest(tmp_path)[1]
    assert header["round"] == ROUNDS and history.read(tmp_path, header)[1] == []


def test_a_disk_that_is_full_leaves_what_earlier_checkpoints_name(whole, tmp_path, monkeypatch, capsys):
    """Some bytes of the new rows are on it already."""
    out, fsync, left = tmp_path / "a" / "run", os.fsync, [2]

    def full(descriptor):
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(out / "history.bin"):
            left[0] -= 1
            if left[0] == 0:
                assert history.read(out, checkpoint.newest(out)[1])[1] == []
                raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    same(run(job(out), COMM), whole[0])
    said = capsys.readouterr().err
    assert said.count("No space left on device); the newest checkpoint is") == 1 and os.listdir(
        out.parent
    ) == ["run"]
    assert history.read(out, checkpoint.newest(out)[1])[1] == []


def test_a_run_that_starts_over_removes_its_own_files_alone(tmp_path):
    mine = {"history-notes.bin": "mine", "history.bin.tmp.old": "mine"}
    for name, text in mine.items():
        (tmp_path / name).write_text(text)
    run(job(tmp_path), COMM)
    (tmp_path / "history.bin.tmp.8").write_bytes(HISTORY_MAGIC[:5])
    run(job(tmp_path, overwrite=True, checkpoint_every=0), COMM)
    assert {path.name: path.read_text() for path in tmp_path.glob("history*")} == mine
