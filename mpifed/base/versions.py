"""The version of the package, and those of the libraries that determine its results."""

from __future__ import annotations

import contextlib
import functools

__all__ = ["__version__", "versions"]

__version__ = "0.3.0"


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of Python, this package and its libraries by name."""
    import platform  # not loaded by commands that only print a version
    from importlib.metadata import PackageNotFoundError, version

    numbers = {"python": platform.python_version(), "mpifed": __version__}
    for name in ("torch", "numpy", "h5py", "mpi4py"):
        with contextlib.suppress(PackageNotFoundError):  # mpi4py is optional for a single process
            numbers[name] = version(name)
    return numbers
