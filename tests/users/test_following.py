"""Callbacks, logs and status of a run."""

SCRIPT = """
import mpifed


class Diary:
    def on_round(self, event):
        print(event.round, len(event.point["x"]), flush=True)

    def on_end(self, event):
        print(event.stopped, event.costs["oracle_calls"], flush=True)


mpifed.run(
    {
        "rounds": 3,
        "algorithm": {"name": "LocalSGDA", "q": 2, "eta_x": 0.01, "eta_y": 0.01},
        "problem": {"name": "Saddle", "clients": 4, "d": 5},
        "run": {"out": "a run", "progress": False},
    },
    callbacks=[Diary()],
)
"""


def test_callbacks_logs_and_status(user):
    (user.folder / "script.py").write_text(SCRIPT)
    said = user("python", "script.py", ranks=2)
    assert said.split("\n")[:3] == ["1 5", "2 5", "3 5"] and "all 3 rounds done" in said
    for rank in (0, 1):
        log = (user.folder / "a run" / "log" / f"rank-{rank}.txt").read_text()
        assert f"rank {rank} of 2" in log and "ended: all 3 rounds done" in log
    assert "3 of 3  finished" in user("mpifed", "status", "--follow")
