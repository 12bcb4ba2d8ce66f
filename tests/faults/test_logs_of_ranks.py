"""Logs of several ranks when one is killed, fails or hangs, and of a resumed run."""

import launch
from processes import all_ranks
from small_job import LIMIT, STEP, command


def logs(folder) -> list[str]:
    return [(folder / "run" / "log" / f"rank-{rank}.txt").read_text() for rank in (0, 1)]


def started(folder, *faults, settings=(), options=()) -> tuple[int, str]:
    return launch.launch(2, [*command(folder, *faults, settings=settings), *options], limit=LIMIT)


def test_the_log_of_a_killed_rank_is_kept_and_extended_by_the_resumed_run(tmp_path):
    code, _ = started(tmp_path, f"1 kill {STEP} 8", options=["-v"])
    assert code
    first, second = logs(tmp_path)
    for rank, said in enumerate((first, second)):
        assert said.startswith(f"mpifed log of rank {rank} of 2, process ")
        assert f"clients {3 * rank} to {3 * rank + 2} (3 of 6)" in said and " round 6: " in said
    assert " round 7: " not in second
    code, output = started(tmp_path)
    assert code == 0, output
    for before, after in zip((first, second), logs(tmp_path)):
        assert after.startswith(before) and after.count("mpifed log of rank") == 2
        assert "continuing " in after and "ended: all 20 rounds done" in after
    assert output.count("continuing") == 1, "other ranks are quiet"


def test_the_error_of_a_rank_is_in_its_log(tmp_path):
    code, output = started(tmp_path, f"1 raise {STEP} 5")
    assert code and output.count("RuntimeError: the dog ate my gradient") == 1
    first, second = logs(tmp_path)
    assert "critical: the run has ended on this rank with an error:\nTraceback " in second
    assert "RuntimeError: the dog ate my gradient" in second and "the dog" not in first


def test_the_message_of_the_watchdog_is_in_the_logs(tmp_path):
    process = launch.start(2, command(tmp_path, f"1 sleep {STEP} 5", settings=["run.watchdog=5"]))
    all_ranks(process, 2)
    code, output = launch.finish(process, LIMIT)
    assert code == 75, output
    first, second = logs(tmp_path)
    assert "critical: no progress for " in first and "Not arrived: rank 1 is at " in first
    assert "critical: no progress: this rank waits in " in first
    assert "critical: no progress: this rank is at " in second and "driver.py" in second
