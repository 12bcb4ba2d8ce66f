"""A new user-defined method: `mpifed new`, `mpifed check`, `mpifed run`, and one mistake."""


def test_a_new_method(user):
    assert "wrote my_step.py" in user("mpifed", "new", "method", "MyStep")
    assert "FAILS" not in user("mpifed", "check", "./my_step.py:MyStep")
    user("mpifed", "new", "job", "--method", "./my_step.py:MyStep")
    user("mpifed", "run", "job.toml", "rounds=1", "stop.seconds=2h", "--no-report", ranks=2)
    assert (user.folder / "runs/job/run.h5").exists()
    said = user("mpifed", "run", "job.toml", "algorithm.eta_z=1", code=2)
    assert "algorithm has no setting 'eta_z': did you mean 'eta_" in said and "Traceback" not in said
