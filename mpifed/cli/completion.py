"""Shell completion of names and settings. It imports the package, which takes seconds."""

from __future__ import annotations

__all__ = ["names", "settings"]


def names(ctx, param, incomplete: str) -> list[str]:
    """Methods, problems and sections that begin with ``incomplete``."""
    from mpifed.algorithms import ALGORITHMS
    from mpifed.config.job import SECTIONS
    from mpifed.problems import PROBLEMS

    return [name for name in (*ALGORITHMS, *PROBLEMS, *SECTIONS, "tune") if name.startswith(incomplete)]


def settings(ctx, param, incomplete: str) -> list[str]:
    """``section.key=`` of all sections that begin with ``incomplete``."""
    from mpifed.config.job import SECTIONS, Config
    from mpifed.config.tuning import Tune

    keys = [*(Config.model_fields.keys() - SECTIONS), "algorithm.name", "problem.name", "problem.clients"]
    for section, record in (SECTIONS | {"tune": Tune}).items():
        keys += [f"{section}.{key}" for key in record.model_fields]
    return [f"{key}=" for key in keys if key.startswith(incomplete)]
