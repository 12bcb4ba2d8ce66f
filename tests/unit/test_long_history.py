"""A long history lies in files beside the checkpoints, which name what they need of it."""

import contextlib
import os
import shutil

import numpy as np
import pytest

import mpifed
from mpifed import resume, run
from mpifed.config.job import Config
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.running import keeping
from mpifed.running.keeping import Keeper
from mpifed.simulation.simulation import Simulation
from mpifed.storage import checkpoint, folder, history
from mpifed.storage.folder import Folder
from mpifed.storage.format import COSTS
from mpifed.storage.ownership import HISTORY_MAGIC, is_leftover, is_own
from mpifed.storage.recorder import Recorder

COMM = SerialComm()
ROUNDS = 9
FILES = {f"history-{table}.bin" for table in ("costs", "metrics", "iterates_x", "iterates_y")}


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
    """The run whose history is short enough for its checkpoints, and its folder."""
    out = tmp_path_factory.mktemp("whole") / "run"
    return run(job(out), COMM), out


@pytest.fixture
def long(monkeypatch):
    """From here on, every row is one too many for a checkpoint."""
    monkeypatch.setattr(history, "CARRIED", 0)
    monkeypatch.setattr(folder, "PATIENCE", 0.0)


@pytest.fixture
def out(tmp_path, long):
    run(job(tmp_path / "run"), COMM)
    return tmp_path / "run"


def same(one, other) -> None:
    """Two results agree in all that no clock has measured."""
    for block in "xy":
        assert one.point[block].equal(other.point[block])
        np.testing.assert_array_equal(one.iterates[block], other.iterates[block])
    assert one.history == other.history
    for name in set(COSTS) - {"seconds", "compute_seconds", "communication_seconds"}:
        np.testing.assert_array_equal(one.costs[name], other.costs[name])


def names(place) -> set[str]:
    return {path.name for path in place.glob("history-*")}


def test_checkpoints_hold_the_same_history_either_way(whole, out):
    assert names(out) == FILES and not names(whole[1])
    same(mpifed.load(out), whole[0])
    _, header, arrays, complaints = checkpoint.newest(out)
    _, _, expected, _ = checkpoint.newest(whole[1])
    assert not complaints and {*arrays} == {*expected}
    assert {name: one["rows"] for name, one in header["history"].items()} == {
        "costs": 10, "metrics": 4, "iterates_x": 9, "iterates_y": 9
    }  # fmt: skip
    for name in ("metrics", "iterates_x", "iterates_y"):
        np.testing.assert_array_equal(arrays[name], expected[name])


def written() -> int:
    """Bytes that this process has written."""
    with open("/proc/self/io") as file:
        return int(file.read().split("wchar:")[1].split()[0])


@pytest.mark.parametrize("recorded", [1000, 50_000])
def test_a_checkpoint_writes_as_much_after_many_rounds_as_after_few(tmp_path, recorded):
    """But for the one at which a history of this length is taken up."""
    config = job(tmp_path, rounds=10**6, record=())
    place, simulation = Folder(tmp_path), Simulation(config, COMM)
    place.open(create=False)
    simulation.start()
    recorder = Recorder(simulation, COMM)
    keeper = Keeper(config.run, place, simulation, recorder, COMM)
    costs = np.arange(recorded + 1.0)[:, None].repeat(len(COSTS), 1)
    recorder.restore({"metrics": ["round", "error"]}, {"costs": costs, "metrics": costs[::10, :2].T})
    simulation.round = recorded
    amounts = []
    for _ in range(5):
        simulation.step()
        recorder.note_round()
        before = written()
        keeper.save()
        amounts.append(written() - before)
    place.close()
    # What a checkpoint carries at most, the same in the results file, and 100 KB for what is no history.
    assert max(amounts[1:]) < 2 * history.CARRIED + 100_000, amounts
    assert len(checkpoint.newest(tmp_path)[2]["costs"]) == recorded + 6


def test_a_results_file_is_little_behind_and_seldom_written(tmp_path, long, monkeypatch):
    monkeypatch.setattr(keeping, "CARRIED", 0)
    shown, behind, write, lay = [0], [], Recorder.write, history.History.write

    def noted(self, *arguments):
        shown.append(self.size)
        write(self, *arguments)

    def laid(self, place):
        behind.append(self.recorder.size - 33 / 32 * shown[-1])
        return lay(self, place)

    monkeypatch.setattr(Recorder, "write", noted)
    monkeypatch.setattr(history.History, "write", laid)
    run(job(tmp_path, rounds=200, record=(), checkpoint_every=1, keep=1), COMM)
    assert len(behind) == 200 and len(shown) < 110
    # Before a checkpoint, by no more than a round: its costs and, with its number, three metrics.
    assert max(behind[1:]) < 8 * (len(COSTS) + 4), behind
    (tmp_path / "run.h5").unlink()
    monkeypatch.undo()
    monkeypatch.setattr(history, "CARRIED", 0)
    run(job(tmp_path, rounds=201, record=(), checkpoint_every=1), COMM)
    assert mpifed.load(tmp_path).costs["round"].tolist() == list(range(202))


def dies(*_):
    raise KeyboardInterrupt


#: What writes the history, what writes the checkpoint, and what reads the history.
MOMENTS = ((history.History, "_add"), (checkpoint, "write"), (history, "_fill"))


@pytest.mark.parametrize("owner, name", MOMENTS, ids=[name for _, name in MOMENTS])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_run_that_dies_about_its_history_ends_in_the_same_bits(
    whole, tmp_path, long, at, monkeypatch, owner, name, call
):
    """In the first process before any checkpoint names the files, in the second one when some do."""
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
            with pytest.raises(KeyboardInterrupt) if first or name != "_fill" else contextlib.nullcontext():
                run(settings, COMM)
        same(run(settings, COMM), whole[0])
        same(mpifed.load(settings.run.out), whole[0])
        assert not list((tmp_path / place).glob("*.tmp.*"))


def test_a_flipped_bit_is_found_wherever_it_is(out, whole, capsys):
    """What is behind the rows that an earlier checkpoint names does not concern that one."""
    (out / "run.h5").unlink()
    for name in sorted(FILES, reverse=True):
        sound = (out / name).read_bytes()
        for place in [*range(len(HISTORY_MAGIC)), *range(len(HISTORY_MAGIC), len(sound), 11)]:
            (out / name).write_bytes(
                sound[:place] + bytes([sound[place] ^ 1 << place % 8]) + sound[place + 1 :]
            )
            _, header, _, complaints = checkpoint.newest(out)
            assert complaints[0] == (
                f"checkpoint-{ROUNDS:08d}.h5 cannot be used ({name}, where its history begins, does not "
                "match its digest); falling back to the one before it"
            )
            assert not header or header["round"] < ROUNDS
        assert header["round"] == ROUNDS - 1, "the last rows are not of it"
        (out / name).write_bytes(sound)
    (out / name).write_bytes(sound[:-1])
    same(run(job(out), COMM), whole[0])
    assert "from round 8" in capsys.readouterr().err


def test_a_file_that_is_gone_or_cut_off_is_told(out):
    (out / "run.h5").unlink()
    content = (out / "history-metrics.bin").read_bytes()
    for change, says in (
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.mkdir(), "is missing"),
        (lambda path: (path.rmdir(), path.write_bytes(content[:30])), "is cut off"),
        (lambda path: path.write_bytes(b""), "is cut off"),
    ):
        change(out / "history-metrics.bin")
        for start in (lambda: run(job(out), COMM), lambda: resume(out, [], COMM)):
            with pytest.raises(CollectiveError, match="none of the checkpoints in") as refused:
                start()
            assert str(refused.value).count(f"(history-metrics.bin, where its history begins, {says})") == 3


def test_what_a_header_names_is_held_against_the_schema(out):
    _, header, arrays, _ = checkpoint.newest(out)
    one = {"rows": 3, "digest": ""}
    for named in ([], {"costs": 3}, {"more": one}, {"shared": one}, {"costs": {"rows": ""}}):
        checkpoint.write(
            out, 9, header | {"round": 99, "history": named}, arrays, np.zeros((4, 1)), COMM, Rows
        )
        _, found, _, complaints = checkpoint.newest(out)
        assert found["round"] == ROUNDS and "it holds something else" in complaints[0], complaints


class Rows:
    """Where the four clients are."""

    clients, edges = 4, np.array([0, 4])


def test_a_block_recorded_later_is_unknown_before(whole, tmp_path, long):
    run(job(tmp_path, 4, record=["x"]), COMM)
    result = resume(tmp_path, ["rounds=6", 'record=["x", "y"]'], COMM)
    assert np.isnan(result.iterates["y"][:4]).all() and (tmp_path / "history-iterates_y.bin").exists()
    result = resume(tmp_path, [f"rounds={ROUNDS}"], COMM)
    assert np.isnan(result.iterates["y"][:4]).all()
    np.testing.assert_array_equal(result.iterates["y"][4:], whole[0].iterates["y"][4:])
    np.testing.assert_array_equal(result.iterates["x"], whole[0].iterates["x"])


def test_a_rescued_run_has_its_whole_history(whole, tmp_path, long, at):
    at(5, lambda: shutil.rmtree(tmp_path / "a" / "run"))
    with pytest.raises(CollectiveError, match="they lie in .*run-rescued-"):
        run(job(tmp_path / "a" / "run"), COMM)
    (place,) = (tmp_path / "a").iterdir()
    assert {path.name for path in place.iterdir()} == FILES | {f"checkpoint-{ROUNDS:08d}.h5", "run.h5"}
    (place / "run.h5").unlink()
    same(resume(place, [], COMM), whole[0])


def test_the_folder_comes_back_and_older_checkpoints_hold(whole, tmp_path, long, at):
    place, away = tmp_path / "a" / "run", tmp_path / "a" / "away"
    at(3, lambda: place.rename(away))
    at(7, lambda: away.rename(place))
    same(run(job(place), COMM), whole[0])
    assert os.listdir(tmp_path / "a") == ["run"]
    for path in reversed(Folder(place).checkpoints()):
        assert checkpoint.newest(place)[0] == path and not checkpoint.newest(place)[3]
        path.unlink()


@pytest.mark.parametrize("loss", ["removed", "replaced", "cut off"])
def test_files_that_somebody_has_touched_are_written_anew(whole, tmp_path, long, at, loss):
    path = tmp_path / "history-costs.bin"
    at(5, {
        "removed": path.unlink,
        "replaced": lambda: (path.unlink(), path.write_bytes(HISTORY_MAGIC + bytes(9999))),
        "cut off": lambda: os.truncate(path, 100),
    }[loss])  # fmt: skip
    same(run(job(tmp_path), COMM), whole[0])
    assert not checkpoint.newest(tmp_path)[3] and checkpoint.newest(tmp_path)[1]["round"] == ROUNDS


def test_a_disk_that_is_full_leaves_what_earlier_checkpoints_name(whole, tmp_path, long, monkeypatch, capsys):
    """Some bytes of the new rows are on it already."""
    out, fsync, left = tmp_path / "a" / "run", os.fsync, [2]

    def full(descriptor):
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(out / "history-costs.bin"):
            left[0] -= 1
            if left[0] == 0:
                assert not checkpoint.newest(out)[3]
                raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    same(run(job(out), COMM), whole[0])
    said = capsys.readouterr().err
    assert said.count("No space left on device); they lie in") == 1 and os.listdir(out.parent) == ["run"]
    assert not checkpoint.newest(out)[3]


def test_a_run_that_starts_over_removes_its_own_files_alone(tmp_path, long):
    mine = {"history-costs.bin": "mine", "history-notes.bin": "mine", "history-costs.bin.tmp.7": "mine"}
    for name, text in mine.items():
        (tmp_path / name).write_text(text)
    run(job(tmp_path), COMM)
    assert (tmp_path / "history-costs.bin.kept1").read_text() == "mine"
    left = tmp_path / "history-metrics.bin.tmp.7"
    left.write_bytes(HISTORY_MAGIC[:5])
    assert is_leftover(left) and all(is_own(tmp_path / name) for name in FILES)
    run(job(tmp_path, overwrite=True, checkpoint_every=0), COMM)
    assert {path.name: path.read_text() for path in tmp_path.glob("history-*")} == {
        "history-costs.bin.kept1": "mine", "history-notes.bin": "mine", "history-costs.bin.tmp.7": "mine"
    }  # fmt: skip
