"""``mpifed new``: a template of a method, a problem or a job, which runs without changes."""

from __future__ import annotations

import dataclasses
import keyword
import re
import textwrap
from pathlib import Path

import click

from mpifed.base.errors import ConfigError
from mpifed.cli.options import HomePath
from mpifed.cli.output import echo

__all__ = ["job_text", "new"]

_TEMPLATES = Path(__file__).parent / "starting"
#: Values of settings of a problem, unless its class has an ``example``.
_VALUES = {"dataset": "digits", "model": "mlp", "clients": 8}
#: Family → a method, and a problem that needs no files.
_PAIRS = {
    "minimax": ("FGDA", "DeepAUC"),
    "minimisation": ("FedAvg", "Classification"),
    "operator": ("LESGD", "AffineGame"),
    "composition": ("MFCGD", "LinearMAML"),
    "bilevel": ("SimFBO", "QuadraticBilevel"),
}
_HEAD = """\
# Lines that begin with # are defaults and examples. `mpifed info run` explains the settings of a section.
# On the command line: mpifed run JOB rounds=50 run.out=runs/other
rounds = 100                  # communication rounds
seed = 0

"""
#: Other settings that are often changed.
_TAIL = """\
# [oracle]
# batch_size = 32             # rows of a client's data per sample; 0 for all rows
# noise = {{ name = "gaussian", scale = 0.1 }}

# [participation]
# cohort = 4                  # clients sampled per round; default: all clients

# [stop]
# metric = "accuracy"         # a metric of the problem
# patience = 10               # stop after 10 evaluations without an improvement
# seconds = "2h"              # wall-time budget

[run]
out = "runs/{name}"
# overwrite = true            # start again and replace the results in out
# device = "cpu"              # default: a GPU if there is one
# dtype = "float64"
# eval_every = 10             # rounds between evaluations
# checkpoint_every = 50       # rounds between checkpoints
"""


@click.group()
def new():
    """Write a template of a method, a problem or a job, which runs without changes."""


@new.command()
@click.argument("name", default="MyMethod")
def method(name):
    """Write a user-defined method with comments on its contract.

    NAME is the name of the class. The method LocalExtra is written to local_extra.py.
    """
    _from_template("method", "MyMethod", name)


@new.command()
@click.argument("name", default="MyProblem")
def problem(name):
    """Write a user-defined problem with comments on its contract.

    NAME is the name of the class. The problem RobustFit is written to robust_fit.py.
    """
    _from_template("problem", "MyProblem", name)


@new.command()
@click.argument("name", type=HomePath(), default="job")
@click.option("--method", help="A name or ./file.py:Class.  [default: a method that solves the problem]")
@click.option("--problem", help="A name or ./file.py:Class.  [default: a problem that the method solves]")
def job(name, method, problem):
    """Write a job file, NAME.toml, with all settings of its method and problem and common other settings.

    Lines that begin with # are defaults or examples.
    """
    path = Path(name if name.endswith(".toml") else f"{name}.toml")
    _write(path, job_text(method, problem, path.stem))
    echo(f"next: mpifed run {path}, or on four ranks: mpirun -n 4 mpifed run {path}")


def _from_template(noun: str, placeholder: str, name: str) -> None:
    """Write a template with ``name`` as its class, and print the next commands."""
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ConfigError(f"expected the name of a class, e.g. {placeholder}, got {name!r}")
    path = Path(re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower() + ".py")
    text = (_TEMPLATES / f"{noun}.py").read_text(encoding="utf-8")
    _write(path, text.replace(placeholder, name).replace("FILE", path.name))
    echo(f"test it:        mpifed check ./{path}:{name}")
    echo(f"write its job:  mpifed new job --{noun} ./{path}:{name}")


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(
            f"{path} exists and is not replaced: choose another name, or move it away"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
    echo(f"wrote {path}")


def job_text(method: str | None, problem: str | None, name: str) -> str:
    """Return the text of a job file whose results are written to ``runs/NAME``.

    Raises:
        ConfigError: there is no such method or problem, or the method does not solve the problem.
    """
    from mpifed.config.job import Config
    from mpifed.config.plugins import find_class
    from mpifed.config.tables import loads

    method = method or _PAIRS[find_class(problem, "problem").family if problem else "minimax"][0]
    problem = problem or _PAIRS[find_class(method, "algorithm").family][1]
    parts = _section_text("algorithm", method), _section_text("problem", problem)
    text = "".join([_HEAD, *parts, _TAIL.format(name=name)])
    Config.from_table(loads(text))
    return text


def _section_text(section: str, name: str) -> str:
    """Return a section with all settings of a class; settings with a default are comments."""
    from mpifed.base.settings import as_table, default_of
    from mpifed.cli.catalogue import example_settings
    from mpifed.cli.schema import rows_of, toml
    from mpifed.config.plugins import find_class

    cls = find_class(name, section)
    fields = [field for field in dataclasses.fields(cls) if field.init]
    names = {field.name for field in fields} - getattr(cls, "example", {}).keys()
    shown = {name: value for name, value in _VALUES.items() if section == "problem" and name in names}
    values = example_settings(cls, shown)
    effects = {row.name: row.effect for row in rows_of(cls)}
    lines = [f"[{section}]", f'name = "{name}"']
    for field in fields:
        required = field.name in values
        value = toml(as_table(values[field.name] if required else default_of(field)))
        setting = f"{'' if required else '# '}{field.name} = {'...' if value == 'unset' else value}"
        lines += _commented(setting, effects[field.name])
    return "\n".join([*lines, "", ""])


def _commented(setting: str, effect: str) -> list[str]:
    """Return a setting with its effect as a comment: on the same line, or above if the line is too long."""
    line = f"{setting:<29} # {effect}" if effect else setting
    if len(line) <= 110:
        return [line]
    return [*textwrap.wrap(effect, 106, initial_indent="# ", subsequent_indent="# "), setting]
