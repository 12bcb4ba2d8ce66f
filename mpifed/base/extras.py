"""Optional libraries: the extras of ``setup.cfg``, and an error that names the extra."""

from __future__ import annotations

from importlib.util import find_spec

from mpifed.base.errors import ConfigError

__all__ = ["EXTRAS", "MissingExtra", "expect_extra"]

#: Extra → the modules of its libraries.
EXTRAS = {
    "mpi": ("mpi4py",),
    "plots": ("bokeh", "jinja2", "matplotlib", "pandas"),
    "tune": ("optuna",),
    "tensorboard": ("tensorboardX",),
}


class MissingExtra(ConfigError, ImportError):
    """A library of an extra is not installed."""


def expect_extra(extra: str, purpose: str) -> None:
    """Raise an error if a library of ``extra`` is not installed. The libraries are not imported.

    Args:
        purpose: what needs the libraries, a plural: the subject of the message.

    Raises:
        MissingExtra: a library is not installed.
    """
    if missing := [name for name in EXTRAS[extra] if find_spec(name) is None]:
        raise MissingExtra(
            f"{purpose} need the extra {extra!r} (not installed: {', '.join(missing)}): "
            f"pip install 'mpifed[{extra}]'"
        )
