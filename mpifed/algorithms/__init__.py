"""The methods, one family per file.

A method is a public class with a ``source`` that is derived from
:class:`~mpifed.core.algorithm.Algorithm`. Every method of a file in this folder is in :data:`ALGORITHMS` and
can be imported from this package.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from mpifed.core.algorithm import Algorithm

#: Lists of methods in messages begin with those of these files.
_FIRST = ["fgda", "heavy_tailed", "variational", "dual_extrapolation", "composition", "smoothed"]
_OTHERS = [file.name for file in iter_modules(__path__) if file.name not in _FIRST]
_FILES = [import_module(f"{__name__}.{name}") for name in _FIRST + _OTHERS]

#: Every method by name, in the order of the files and of the classes in a file.
ALGORITHMS: dict[str, type[Algorithm]] = {
    name: value
    for file in _FILES
    for name, value in vars(file).items()
    if isinstance(value, type)
    and issubclass(value, Algorithm)
    and value.__module__ == file.__name__
    and value.source
    and not name.startswith("_")
}
globals().update(ALGORITHMS)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


__all__ = ["ALGORITHMS", *ALGORITHMS]
