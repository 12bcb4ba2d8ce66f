"""The wheel, its commands, and a new user-defined method with one mistake."""

from pathlib import Path

import mpifed


def test_the_wheel_is_the_package(user, place):
    file, version = user("python", "-c", "import mpifed; print(mpifed.__file__, mpifed.__version__)").rsplit(
        maxsplit=1
    )
    assert Path(file).is_relative_to(place / "venv") and version == mpifed.__version__
    assert "AdaFGDA" in user("mpifed", "list")
    assert "ok      reproducibility: 2 ranks and one rank" in user("mpifed", "selftest", ranks=2)


def test_a_new_method(user):
    assert "wrote my_step.py" in user("mpifed", "new", "method", "MyStep")
    assert "FAILS" not in user("mpifed", "check", "./my_step.py:MyStep")
    user("mpifed", "new", "job", "--method", "./my_step.py:MyStep")
    user("mpifed", "run", "job.toml", "rounds=1", "stop.seconds=2h", "run.out=a run", ranks=2)
    assert (user.folder / "a run" / "run.h5").exists() and (user.folder / "a run" / "report.html").exists()
    said = user("mpifed", "run", "job.toml", "algorithm.eta_z=1", code=2)
    assert "algorithm has no setting 'eta_z': did you mean 'eta_" in said and "Traceback" not in said
