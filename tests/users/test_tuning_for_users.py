"""Two methods tuned at equal cost and compared on new seeds, and one mistake."""

JOB = """
rounds = 3
problem = { name = "Saddle", clients = 2, d = 3 }
[run]
out = "runs/fair"
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
gamma = { low = 1e-3, high = 0.1 }
"""


def test_tune_sweep_and_report(user):
    (user.folder / "fair.toml").write_text(JOB)
    said = user("mpifed", "run", "fair.toml", code=2)
    assert "start it with `mpifed tune`" in said and "Traceback" not in said
    assert "0.001 to 0.1" in user("mpifed", "tune", "fair.toml", "--list")
    assert "runs/fair/best.toml" in user("mpifed", "tune", "fair.toml", ranks=2)
    assert "4 runs are finished" in user("mpifed", "sweep", "runs/fair/best.toml")
    assert "LocalSGDA" in user("mpifed", "report", "runs/fair/best")
