"""The history file: content, growth, damage, and kills while it is written."""

import contextlib
import os
import shutil
from functools import partial

import numpy as np
import pytest
from games import started
from resumed import assert_same
from saddle_job import config

import mpifed
from mpifed import resume, run
from mpifed.base.errors import format_ranges
from mpifed.parallel.comm import SerialComm
from mpifed.running import checkpointing
from mpifed.running.checkpointing import CheckpointManager
from mpifed.running.recorder import Recorder
from mpifed.storage import checkpoint, history
from mpifed.storage.files import HISTORY_MAGIC
from mpifed.storage.folder import Folder
from mpifed.storage.results import COSTS

COMM, ROUNDS = SerialComm(), 9


def job(out, rounds=ROUNDS, record=("x", "y"), **settings):
    return config(out, rounds, record, {"eval_every": 3} | settings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The result of an uninterrupted run and its folder."""
    out = tmp_path_factory.mktemp("whole") / "run"
    return run(job(out), COMM), out


@pytest.fixture(autouse=True)
def no_timeout(monkeypatch):
    monkeypatch.setattr("mpifed.storage.folder.LOCK_TIMEOUT", 0.0)


@pytest.fixture
def out(whole, tmp_path):
    """A copy of the run without its results file."""
    copy = shutil.copytree(whole[1], tmp_path / "run")
    (copy / "run.h5").unlink()
    return copy


#: Compares two results, except measured times.
expect_equal = partial(assert_same, measured=False)


def test_resumed_run_has_the_whole_history(whole, out):
    expect_equal(resume(out, [], COMM), whole[0])
    expect_equal(mpifed.load(out), whole[0])
    size = (out / "history.bin").stat().st_size - len(HISTORY_MAGIC)
    assert size == (ROUNDS + 1) * (4 + 8 * (len(COSTS) + len(whole[0].history) + 3 + 3))


def written_bytes() -> int:
    """Number of bytes that this process has written."""
    with open("/proc/self/io") as file:
        return int(file.read().split("wchar:")[1].split()[0])


@pytest.mark.parametrize("recorded", [1000, 50_000])
def test_size_of_a_checkpoint_does_not_grow(tmp_path, recorded):
    """The first checkpoint of a process is an exception: it writes the whole history."""
    config = job(tmp_path, rounds=10**6, record=())
    place, simulation = Folder(tmp_path), started(config)
    place.open(create=False)
    recorder = Recorder(simulation, COMM)
    checkpoints = CheckpointManager(config.run, place, simulation, recorder, COMM)
    costs = np.arange(recorded + 1.0)[:, None].repeat(len(COSTS), 1)
    recorder.restore({"metrics": ["round", "error"]}, {"costs": costs, "metrics": costs[::10, :2].T}, None)
    simulation.round = recorded
    amounts = []
    for _ in range(5):
        simulation.step()
        recorder.record_round()
        before = written_bytes()
        checkpoints.save()
        amounts.append(written_bytes() - before)
    place.close()
    # The results file of a short history, and 100 KB for everything else.
    assert max(amounts[1:]) < checkpointing.LONG + 100_000, amounts
    tables, lost = history.read(tmp_path, checkpoint.newest(tmp_path)[1])
    assert len(tables["costs"]) == recorded + 6 and not lost


def test_results_of_a_long_history_are_written_rarely(tmp_path, monkeypatch):
    """The results file lacks at most 1/32 of the history and one round."""
    monkeypatch.setattr(checkpointing, "LONG", 0)
    sizes, lag, write = [0], [], Recorder.write
    write_history = CheckpointManager._write_history

    def noted(self, *arguments):
        sizes.append(self.size)
        write(self, *arguments)

    def measured(self):
        lag.append(self.recorder.size - 33 / 32 * sizes[-1])
        return write_history(self)

    with monkeypatch.context() as patches:
        patches.setattr(Recorder, "write", noted)
        patches.setattr(CheckpointManager, "_write_history", measured)
        run(job(tmp_path, rounds=200, record=(), checkpoint_every=1, keep=1), COMM)
    assert len(lag) == 200 and len(sizes) < 110
    assert max(lag[1:]) < 8 * (len(COSTS) + 4), lag  # the costs of a round, and 3 metrics with its number
    (tmp_path / "run.h5").unlink()
    run(job(tmp_path, rounds=201, record=(), checkpoint_every=1), COMM)
    assert mpifed.load(tmp_path).costs["round"].tolist() == list(range(202))


def killed(*_):
    raise KeyboardInterrupt


#: Functions that write the history, write the checkpoint and read the history, and the number of the call.
MOMENTS = [
    *[(history, "_with_checksums", call) for call in (1, 2, 3)],
    *[(checkpoint, "write", call) for call in (1, 2, 3)],
    (history, "read", 1),
]


@pytest.mark.parametrize("owner, name, call", MOMENTS, ids=[f"{name}-{call}" for _, name, call in MOMENTS])
@pytest.mark.parametrize("resumed", [False, True])
def test_killed_run_ends_with_the_same_bits(whole, tmp_path, at, monkeypatch, owner, name, call, resumed):
    plain, settings = getattr(owner, name), job(tmp_path / "run")
    if resumed:
        at(5, killed)
        with pytest.raises(KeyboardInterrupt):
            run(settings, COMM)
    calls = iter([*[plain] * (call - 1), killed, *[plain] * 99])
    with monkeypatch.context() as patches:
        patches.setattr(owner, name, lambda *arguments: next(calls)(*arguments))
        with pytest.raises(KeyboardInterrupt) if resumed or name != "read" else contextlib.nullcontext():
            run(settings, COMM)
    expect_equal(run(settings, COMM), whole[0])
    expect_equal(mpifed.load(settings.run.out), whole[0])
    assert not list((tmp_path / "run").glob("*.tmp.*"))


def damages(content: bytes):
    """Yield the history with one of 25 flipped bits, or cut at 8 places, and the damaged rounds."""
    row, random = (len(content) - len(HISTORY_MAGIC)) // (ROUNDS + 1), np.random.default_rng(0)
    for place in [*range(5), *random.integers(len(content), size=20).tolist()]:
        flipped = content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :]
        yield flipped, [] if place < len(HISTORY_MAGIC) else [(place - len(HISTORY_MAGIC)) // row]
    for kept in [0, 5, len(content) - 1, *random.integers(len(content), size=5).tolist()]:
        yield content[:kept], list(range(max(0, kept - len(HISTORY_MAGIC)) // row, ROUNDS + 1))


def test_damaged_rows_are_reported_and_affect_no_other_row(out, tmp_path, capsys):
    more = run(job(tmp_path / "more", ROUNDS + 3), COMM)
    for number, (content, lost) in enumerate(damages((out / "history.bin").read_bytes())):
        place = shutil.copytree(out, tmp_path / str(number))
        (place / "history.bin").write_bytes(content)
        capsys.readouterr()
        result = resume(place, [f"rounds={ROUNDS + 3}"], COMM)
        output = capsys.readouterr().err
        assert "from round 9" in output and ("are lost" in output) == bool(lost), output
        assert not lost or f"iterates of rounds {format_ranges(lost, ' to ')} are lost" in output, output
        for again in (result, mpifed.load(place)):
            kept = [r for r in range(ROUNDS + 4) if r not in lost or r == ROUNDS]  # totals in the checkpoint
            assert again.costs["round"].tolist() == kept
            evaluated = [k for k, r in enumerate(more.history["round"]) if r not in lost]
            for name, values in more.history.items():
                assert again.history[name] == [values[k] for k in evaluated], name
            np.testing.assert_array_equal(again.costs["oracle_calls"], more.costs["oracle_calls"][kept])
            for block in "xy":
                assert again.point[block].equal(more.point[block])
                expected = more.iterates[block].copy()
                expected[[r - 1 for r in lost if r]] = np.nan
                np.testing.assert_array_equal(again.iterates[block], expected)
        assert resume(place, [f"rounds={ROUNDS + 4}"], COMM).costs["round"].tolist() == [*kept, ROUNDS + 4]
        assert "is damaged or" not in capsys.readouterr().err, "the damage is reported once"
        shutil.rmtree(place)


def test_ranges():
    assert format_ranges([3]) == "3" and format_ranges([0, 1, 2, 5, 7, 8], " to ") == "0 to 2, 5, 7 to 8"


def test_restored_folder_has_valid_older_checkpoints(whole, tmp_path, at, capsys):
    place, away = tmp_path / "a" / "run", tmp_path / "a" / "away"
    at(3, lambda: place.rename(away))
    at(7, lambda: away.rename(place))
    expect_equal(run(job(place), COMM), whole[0])
    assert os.listdir(tmp_path / "a") == ["run"]
    assert capsys.readouterr().err.count("could not be written") == 2, "after rounds 4 and 6"
    for path in reversed(Folder(place).checkpoints()):
        assert checkpoint.newest(place)[0] == path and not checkpoint.newest(place)[3]
        path.unlink()


@pytest.mark.parametrize("change", [
    lambda path: path.unlink(),
    lambda path: (path.unlink(), path.write_bytes(HISTORY_MAGIC + bytes(9999))),
    lambda path: os.truncate(path, 100),
], ids=["removed", "replaced", "truncated"])  # fmt: skip
def test_changed_file_is_written_again(whole, tmp_path, at, change):
    at(5, lambda: change(tmp_path / "history.bin"))
    expect_equal(run(job(tmp_path), COMM), whole[0])
    header = checkpoint.newest(tmp_path)[1]
    assert header["round"] == ROUNDS and history.read(tmp_path, header)[1] == []


def test_full_disk_leaves_earlier_checkpoints_valid(whole, tmp_path, monkeypatch, capsys):
    """Some bytes of the new rows have been written."""
    out, fsync, left = tmp_path / "a" / "run", os.fsync, [2]

    def full(descriptor):
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(out / "history.bin"):
            left[0] -= 1
            if left[0] == 0:
                assert history.read(out, checkpoint.newest(out)[1])[1] == []
                raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    expect_equal(run(job(out), COMM), whole[0])
    assert capsys.readouterr().err.count("No space left on device); the newest checkpoint is") == 1
    assert os.listdir(out.parent) == ["run"]
    assert history.read(out, checkpoint.newest(out)[1])[1] == []


@pytest.mark.parametrize("damage", [
    lambda content: None, lambda content: content[: len(content) // 2],
    lambda content: content[:-1] + bytes([content[-1] ^ 1]),
], ids=["missing", "truncated", "last row"])  # fmt: skip
def test_damaged_rows_are_read_from_the_results(whole, tmp_path, capsys, damage):
    """The results file is not replaced by one with less history."""
    place = shutil.copytree(whole[1], tmp_path / "run")
    path, content = place / "history.bin", damage((whole[1] / "history.bin").read_bytes())
    path.write_bytes(content) if content is not None else path.unlink()
    expect_equal(resume(place, [f"rounds={ROUNDS + 3}"], COMM), run(job(tmp_path / "more", ROUNDS + 3), COMM))
    output = capsys.readouterr().err
    state = (
        "cannot be read (No such file or directory)" if content is None else "is damaged or of another run"
    )
    assert f"history.bin {state}: rounds " in output and "are read from run.h5" in output
    assert "are lost" not in output


@pytest.mark.parametrize("results", ["own", "none", "other"])
def test_the_history_of_another_run_is_not_taken(whole, tmp_path, capsys, results):
    """Its rows are valid and have the same sizes; results of another run fill no rows."""
    run(config(tmp_path / "other", ROUNDS, ("x", "y"), {"eval_every": 3}, seed=5), COMM)
    place = shutil.copytree(whole[1], tmp_path / "run")
    shutil.copy(tmp_path / "other" / "history.bin", place)
    if results == "other":
        shutil.copy(tmp_path / "other" / "run.h5", place)
    if results == "none":
        (place / "run.h5").unlink()
    capsys.readouterr()
    resumed = resume(place, [f"rounds={ROUNDS + 3}"], COMM)
    output = capsys.readouterr().err
    if results == "own":
        expect_equal(resumed, run(job(tmp_path / "more", ROUNDS + 3), COMM))
    else:
        assert all(r > ROUNDS for r in resumed.history["round"])
    assert ("rounds 0 to 9 are lost" in output) == (results != "own") and "of another run" in output
