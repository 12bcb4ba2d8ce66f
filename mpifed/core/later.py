"""What torch loads at its start and a run does not use, loaded when it is used.

A half of the time of ``import torch`` goes into kernels for tensors without data (``device="meta"``), which
compilers ask for. The command line puts them off until something looks into their module or loads a part of
torch's compiler, or until a user's own code is loaded, which may ask for them unseen.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

__all__ = ["make_up", "put_off"]

MODULE = "torch._meta_registrations"
#: Parts of the compiler that expect it to be there.
WANTING = {"torch._dynamo", "torch._decomp", "torch._prims", "torch._refs", "torch.utils._content_store"}


class _Later(ModuleType):
    """A module that is executed when a name of it is asked for that no module has by itself."""

    loader: Loader

    def __getattr__(self, name: str):
        if name.startswith("__"):  # inspect asks every module for some of these
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if type(self) is _Later:
            self.__class__ = ModuleType  # type: ignore[assignment]
            self.loader.exec_module(self)
        return getattr(self, name)


class _Loader(Loader):
    """Makes the module, to be executed by ``loader``."""

    def __init__(self, loader: Loader):
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _Later(spec.name)
        module.loader = self.loader
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing yet."""


class _Loaded(Loader):
    """Of a module that has been loaded while it was looked for: by what was put off."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Done already; a second time would empty its tables."""


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in {MODULE, *WANTING}:
            return None
        if fullname in WANTING:
            make_up()
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            if fullname == MODULE:
                spec.loader = _Loader(spec.loader)
            elif fullname in sys.modules:
                spec.loader = _Loaded()
                sys.modules[fullname].__spec__ = None  # importlib would load it again by this one
        return spec


def put_off() -> None:
    """Put the loading off, in a process that has not imported torch."""
    sys.meta_path.insert(0, _Finder())


def make_up() -> None:
    """Load what was put off."""
    getattr(sys.modules.get(MODULE), "anything", None)
