"""The job file that ``mpifed new job`` writes: every setting of its method and problem, with its effect."""

from __future__ import annotations

import dataclasses
import textwrap

from mpifed.base.settings import as_table, default_of
from mpifed.cli.catalogue import example
from mpifed.cli.schema import rows_of, toml
from mpifed.config.job import Config
from mpifed.config.plugins import find
from mpifed.config.tables import loads

__all__ = ["job_text"]

#: What a setting without a default begins with, where the problem's class does not say.
_BEGIN = {"dataset": "digits", "model": "mlp", "clients": 8}
#: Family → a method and a problem of it that needs no files.
_SUITS = {
    "minimax": ("FGDA", "DeepAUC"),
    "minimisation": ("FedAvg", "Classification"),
    "operator": ("LESGD", "AffineGame"),
    "composition": ("MFCGD", "LinearMAML"),
}
#: The other settings that people change first.
_COMMON = """\
# [oracle]
# batch_size = 32             # rows of a client's data in one sample; 0 takes all
# noise = {{ name = "gaussian", scale = 0.1 }}

# [participation]
# cohort = 4                  # clients drawn for a round; all when left out

# [stop]
# seconds = "2h"              # wall-time budget

[run]
out = "runs/{name}"
# overwrite = true            # start over and replace what lies in out
# device = "cpu"              # a GPU where there is one when left out
# dtype = "float64"
# eval_every = 10             # rounds between evaluations
# checkpoint_every = 50       # rounds between checkpoints
"""


def job_text(method: str | None, problem: str | None, name: str) -> str:
    """The text of a job file, whose results go to ``runs/NAME``.

    Raises:
        ConfigError: there is no such method or problem, or they do not go together.
    """
    method = method or _SUITS[find(problem, "problem").family if problem else "minimax"][0]
    problem = problem or _SUITS[find(method, "algorithm").family][1]
    text = "\n".join(
        [
            "# Behind # stand defaults and examples. `mpifed info run` explains the settings of a section.",
            "# On the command line: mpifed run JOB rounds=50 run.out=runs/other",
            "rounds = 100                  # communication rounds",
            "seed = 0",
            "",
            *_part("algorithm", method),
            *_part("problem", problem),
            _COMMON.format(name=name),
        ]
    )
    Config.from_table(loads(text))
    return text


def _part(section: str, name: str) -> list[str]:
    """A section with the settings of a class: those without a default filled in, the others behind #."""
    cls = find(name, section)
    own = getattr(cls, "example", {})
    begin = {
        field.name: _BEGIN[field.name] for field in _fields(cls) if field.name in _BEGIN.keys() - own.keys()
    }
    made = example(cls, begin if section == "problem" else {})
    rows = {row.name: row for row in rows_of(cls)}
    lines = [f"[{section}]", f'name = "{name}"']
    for field in _fields(cls):
        needed = default_of(field) is dataclasses.MISSING or (section == "problem" and field.name in begin)
        value = as_table(getattr(made, field.name)) if needed else default_of(field)
        shown = toml(value if needed else as_table(value))
        setting = f"{field.name} = {shown}" if needed else f"# {field.name} = {shown}"
        effect = rows[field.name].effect
        if shown == "unset":
            setting = f"# {field.name} = ..."
        lines += _commented(setting, effect)
    return [*lines, ""]


def _fields(cls) -> list[dataclasses.Field]:
    return [field for field in dataclasses.fields(cls) if field.init]


def _commented(setting: str, effect: str) -> list[str]:
    """A setting and what it does behind it, or above it where both are long."""
    line = f"{setting:<29} # {effect}" if effect else setting
    if len(line) <= 110:
        return [line]
    return [*textwrap.wrap(effect, 106, initial_indent="# ", subsequent_indent="# "), setting]
