"""The wheel, its command, and a run."""

from pathlib import Path

import mpifed

JOB = """
rounds = 2
[algorithm]
name = "FGDA"
q = 2
gamma = 0.01
lam = 0.01
[problem]
name = "Saddle"
clients = 2
[run]
progress = false
"""


def test_the_wheel_is_the_package(user, place):
    file, version = user("python", "-c", "import mpifed; print(mpifed.__file__, mpifed.__version__)").rsplit(
        maxsplit=1
    )
    assert Path(file).is_relative_to(place / "venv") and version == mpifed.__version__


def test_its_command_lists_and_runs(user):
    assert "AdaFGDA" in user("mpifed", "list")
    (user.folder / "job.toml").write_text(JOB)
    user("mpifed", "run", "job.toml", "run.out=a run", ranks=2)
    assert "ok      reproducibility: 2 ranks and one rank" in user("mpifed", "selftest", ranks=2)
    assert (user.folder / "a run" / "run.h5").exists() and list((user.folder / "a run").glob("*.html"))
