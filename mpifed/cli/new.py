"""``mpifed new``: a template of a method, a problem or a job, which runs unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import click

from mpifed.base.errors import ConfigError
from mpifed.cli.output import echo

__all__ = ["new"]

_FOLDER = Path(__file__).parent / "starting"


@click.group()
def new():
    """Write a template of a method, a problem or a job, which runs unchanged."""


@new.command()
@click.argument("name", default="MyMethod")
def method(name):
    """Write a user-defined method, NAME, with the contract in short comments.

    NAME is a class, LocalExtra, which is written to local_extra.py.
    """
    _from_template("method", "MyMethod", name)


@new.command()
@click.argument("name", default="MyProblem")
def problem(name):
    """Write a user-defined problem, NAME, with the contract in short comments.

    NAME is a class, RobustFit, which is written to robust_fit.py.
    """
    _from_template("problem", "MyProblem", name)


@new.command()
@click.argument("name", default="job")
@click.option("--method", help="Its method: a name or ./file.py:Class; else one that suits the problem.")
@click.option("--problem", help="Its problem; else one that suits the method.")
def job(name, method, problem):
    """Write a job file, NAME.toml, with every setting of its method and problem, and the common others.

    Lines behind # are defaults or examples.
    """
    from mpifed.cli.job_template import job_text

    path = Path(name if name.endswith(".toml") else f"{name}.toml")
    _expect_free(path)
    _write(path, job_text(method, problem, path.stem))
    echo(f"it runs as it stands: mpifed run {path}, or on four ranks: mpirun -n 4 mpifed run {path}")


def _from_template(kind: str, placeholder: str, name: str) -> None:
    """Write a template with ``name`` for its class, and print the next commands."""
    if not name.isidentifier():
        raise ConfigError(f"expected the name of a class, e.g. {placeholder}, got {name!r}")
    path = Path(re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower() + ".py")
    _expect_free(path)
    text = (_FOLDER / f"{kind}.py").read_text(encoding="utf-8")
    _write(path, text.replace(placeholder, name).replace("FILE", path.name))
    echo(f"it holds as it stands: mpifed check ./{path}:{name}")
    echo(f"a job with it:         mpifed new job --{kind} ./{path}:{name}")


def _expect_free(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise ConfigError(f"{path} exists and is left as it is: choose another name, or move it away")


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
    echo(f"wrote {path}")
