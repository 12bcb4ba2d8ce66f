"""User-defined objects: source files as modules, classes and functions by name, and digests of their sources.

A setting that is a choice also accepts ``"./file.py:Name"`` or ``{ name = "./file.py:Name", width = 64 }`` in
place of a name of the package, and in Python an object. A subclass of :class:`UserObject`, which
``base.settings.choice`` is given, states which objects are accepted::

    class Module(UserObject):
        kind = "an nn.Module class, or a function that returns one"

    Model = choice("model", MODELS, Module)

The setting then holds a ``Module``. Like a user's method or problem it is identified by its absolute name and
the SHA-256 digest of its file: both are stored with the run, and a run cannot be resumed with another.

A file is executed once for each state of it, as a module of its own that no other file of the same name can
displace. It finds its neighbours in its folder: before all other modules while it is loaded, after them
later.
"""

from __future__ import annotations

import ast
import contextlib
import contextvars
import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import inspect
import json
import operator
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

from mpifed.base.errors import ConfigError, short_repr, truncate, user_frames
from mpifed.base.settings import suggest

__all__ = [
    "UserObject",
    "Plugin",
    "attribute_of",
    "digest_of",
    "digest_on_disk",
    "expect_allowed",
    "guarded",
    "is_instance",
    "load_file",
    "module_of",
    "place_of",
    "plugin",
    "refused_code",
    "sources",
]

#: Name of a module loaded from a file → digest of the source that was run.
_loaded: dict[str, str] = {}
#: The remedy in errors where no code may be loaded; "" where it may.
_refused: contextvars.ContextVar[str] = contextvars.ContextVar("refused code", default="")
#: Folders of such files, from which modules can be imported.
_folders: set[Path] = set()


@contextlib.contextmanager
def refused_code(remedy: str) -> Iterator[None]:
    """A context in which loading user code raises a :class:`ConfigError` that ends in ``remedy``."""
    token = _refused.set(remedy)
    try:
        yield
    finally:
        _refused.reset(token)


def expect_allowed(name: str) -> None:
    """Raises:
    ConfigError: no code may be loaded here, and ``name`` needs some.
    """
    if remedy := _refused.get():
        raise ConfigError(f"{truncate(name)} is code, which would be executed: {remedy}")


def module_of(place: str, name: str) -> ModuleType:
    """The module of a file ``./file.py`` or of ``package.module``, in which ``name`` is to be found.

    Raises:
        ConfigError: there is none, or it cannot be run or must not be; shows where.
    """
    expect_allowed(name)
    return load_file(place) if place.endswith(".py") else _import(place, name)


def attribute_of(module: ModuleType, place: str, attribute: str, fits: Callable[[Any], bool]) -> Any:
    """An attribute of a module by its name, which may be dotted.

    Args:
        fits: whether a value is of the expected type; the module's own ones are listed as options.

    Raises:
        ConfigError: the module has no such attribute.
    """
    try:
        return operator.attrgetter(attribute)(module)
    except AttributeError:
        own = {
            key: one for key, one in vars(module).items() if getattr(one, "__module__", "") == module.__name__
        }
        options = [key for key, one in own.items() if fits(one)]
        hint = suggest(attribute, options) if options else "(it defines nothing of the expected type)"
        lack = (
            f"has no {short_repr(attribute)}" if attribute else f"is a file, expected {truncate(place)}:Name"
        )
        raise ConfigError(f"{truncate(place)} {lack}: {hint}") from None


def place_of(module: ModuleType) -> str:
    """The identifier of a module: the file that it was loaded from, or its name."""
    file = getattr(module, "__file__", None)
    if file and (module.__name__ == "__main__" or module.__name__ in _loaded):
        return str(Path(file).resolve())
    return module.__name__


def load_file(path: str) -> ModuleType:
    """The module of a file; the file is executed again if it has changed since it was last loaded.

    Raises:
        ConfigError: there is no such file, or it cannot be run; shows where.
    """
    try:
        file = Path(path).resolve()
        found = file.is_file()
    except (OSError, ValueError):  # a name that is too long, or has characters that no name has
        found = False
    if not found:
        raise ConfigError(f"there is no file {truncate(path)} (looked in {Path.cwd()})")
    main = sys.modules["__main__"]
    script = getattr(main, "__file__", None)
    if script and Path(script).resolve() == file:
        return main  # the script that is running: not once more
    source = file.read_bytes()
    name = f"mpifed_plugin_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"
    if _loaded.get(name) != _digest(source):
        guarded(f"{path} cannot be loaded", lambda: _run(file, source, name))
    return sys.modules[name]


def _run(file: Path, source: bytes, name: str) -> None:
    tree = ast.parse(source, str(file))
    _expect_own_neighbours(tree, file)
    spec: Any = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    before, sys.modules[name] = sys.modules.get(name), module  # dataclasses look their module up
    try:
        with _first_on_path(file.parent):
            exec(compile(tree, str(file), "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        sys.modules.pop(name)
        if before is not None:
            sys.modules[name] = before
        raise
    _loaded[name] = _digest(source)


@contextlib.contextmanager
def _first_on_path(folder: Path) -> Iterator[None]:
    """Let a folder's modules be found before all others; afterwards still, but after all others."""
    _folders.add(folder)
    importlib.invalidate_caches()
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


def _expect_own_neighbours(tree: ast.Module, file: Path) -> None:
    """Raises:
    ConfigError: the source imports a neighbour, and another plugin's neighbour has taken that name.
    """
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {one.name.partition(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add((node.module or "").partition(".")[0])
    for name in sorted(names):
        places = (file.parent / f"{name}.py", file.parent / name / "__init__.py")
        own = next((place for place in places if place.is_file()), None)
        taken = getattr(sys.modules.get(name), "__file__", None)
        if own and taken and Path(taken) != own and _folders & set(Path(taken).parents[:2]):
            raise ConfigError(
                f"{file} imports {name!r}, which in this process is {taken} and not {own}: "
                "rename one of the two"
            )


def _import(module: str, name: str) -> ModuleType:
    """The module that ``name`` is to be found in.

    Raises:
        ConfigError: there is none, or it cannot be run; shows where.
    """

    if not all(part.isidentifier() for part in module.split(".")):
        raise ConfigError(f"expected ./file.py:Class or package.module:Class, got {short_repr(name)}")

    def load() -> ModuleType:
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name and f"{module}.".startswith(f"{error.name}."):
                words = truncate(str(error))
                raise ConfigError(
                    f"cannot import {short_repr(module)} for {short_repr(name)}: {words}"
                ) from None
            raise

    return guarded(f"{truncate(module)} cannot be loaded", load)


def guarded(what: str, work: Callable):
    """Call ``work``, which runs user code, and report errors with the user's lines.

    Raises:
        ConfigError: ``what``, the error's message and the user's frames.
    """
    try:
        return work()
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        words = error.msg if isinstance(error, SyntaxError) else error
        told = f"{what}: {type(error).__name__}: {words}\n{user_frames(error)}"
        raise ConfigError(told.rstrip()) from error


def digest_of(module: str) -> str:
    """SHA-256 (hexadecimal) of a module's source as it was run; "" where it has no file."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return _loaded.get(module) or (_digest_of_file(Path(file)) if file else "")


def digest_on_disk(place: str) -> str:
    """SHA-256 (hexadecimal) of a file or of an importable module's file, as it is now; "" without one."""
    if place.endswith(".py"):
        return _digest_of_file(Path(place))
    try:
        spec = importlib.util.find_spec(place)
    except (ImportError, ValueError):
        return ""
    return _digest_of_file(Path(spec.origin)) if spec and spec.origin else ""


def _digest_of_file(file: Path) -> str:
    try:
        return _digest(file.read_bytes())
    except OSError:
        return ""


def _digest(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()


#: How the name of an object that no file makes again ends.
_INSTANCE = re.compile(r" \(an instance, [0-9a-f]{12}\)$")


def is_instance(name: str) -> bool:
    """Whether a stored name is that of an object that was given in Python, which no name makes again."""
    return bool(_INSTANCE.search(name))


class UserObject:
    """A user-defined value of a setting.

    Attributes:
        name: ``/folder/file.py:Name`` or ``package.module:Name``; of an object its class, and a part of the
            digest.
        digest: SHA-256 (hexadecimal) of the source; for an object, of the source and its contents. "" without
            a file.
        settings: the keyword arguments of a class or a function.
        given: the class or function, or the object.
    """

    #: The expected type, in words.
    kind: ClassVar[str]

    def __init__(self, name: str, digest: str, settings: dict[str, Any], given: Any):
        self.name, self.digest, self.settings, self.given = name, digest, settings, given

    @classmethod
    def fits(cls, value: Any) -> bool:
        """Whether a value in a file is of the expected type."""
        return callable(value)

    @classmethod
    def fingerprint(cls, value: Any) -> str | None:
        """A text that identifies an object given in Python; ``None`` if it is not of the expected type."""
        return None

    @classmethod
    def of(cls, value: Any, what: str) -> UserObject | None:
        """The user-defined value of a setting; ``None`` if the value is neither the name of a user's object,
        nor a table with one, nor an object of the expected type.

        Args:
            what: the setting in words, "model".

        Raises:
            ConfigError: there is no such file, or nothing of the kind in it by that name; it does not take
                these settings.
        """
        if isinstance(value, cls):
            return value
        settings = dict(value) if isinstance(value, dict) else {}
        name = settings.pop("name", None) if isinstance(value, dict) else value
        if not isinstance(name, str):
            return cls._of_instance(value)
        if ":" not in name and not name.endswith(".py"):
            return None
        return cls._named(name, settings, what)

    @classmethod
    def _named(cls, name: str, settings: dict[str, Any], what: str) -> UserObject:
        if is_instance(name):
            raise ConfigError(
                f"{truncate(name)} was passed as an object, which cannot be made again by name: continue "
                "with mpifed.run and its Config, or name a class or function, ./file.py:Name"
            )
        place, _, attribute = name.rpartition(":") if ":" in name else (name, ":", "")
        module = module_of(place, name)
        given = attribute_of(module, place, attribute, cls.fits)
        if not cls.fits(given):
            raise ConfigError(f"{truncate(name)}: expected {cls.kind}, got {short_repr(given)}")
        cls._expect(given, settings, f"{what} {attribute}")
        return cls(f"{place_of(module)}:{attribute}", digest_of(module.__name__), settings, given)

    @classmethod
    def _expect(cls, given: Any, settings: dict[str, Any], what: str) -> None:
        """Raises:
        ConfigError: the class or function does not take these settings.
        """
        _expect_arguments(given, settings, what)

    @classmethod
    def _of_instance(cls, value: Any) -> UserObject | None:
        held = cls.fingerprint(value)
        if held is None:
            return None
        kind = type(value)
        source = digest_of(kind.__module__)
        digest = hashlib.sha256(f"{source}\n{held}".encode()).hexdigest()
        place = place_of(sys.modules[kind.__module__])
        return cls(f"{place}:{kind.__qualname__} (an instance, {digest[:12]})", digest, {}, value)

    @property
    def is_instance(self) -> bool:
        """Whether an object was given instead of a class or function."""
        return is_instance(self.name)

    def make(self, **more: Any) -> Any:
        """The result of the class or function for the settings and ``more``.

        Raises:
            ConfigError: it has raised an error; the message has the user's lines.
        """
        return guarded(f"{self} cannot be made", lambda: self.given(**self.settings, **more))

    def table(self) -> dict[str, Any]:
        """As a job file has it."""
        return {"name": self.name, **self.settings}

    def __str__(self) -> str:
        place, _, attribute = self.name.rpartition(":")
        return f"{Path(place).name}:{attribute}"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and (self.table(), self.digest) == (other.table(), other.digest)

    __hash__ = None  # type: ignore[assignment]


class Plugin(NamedTuple):
    """A user-defined class: ``module:Class`` or ``/folder/file.py:Class``; its file's SHA-256, "" without a
    file."""

    name: str
    digest: str


@functools.cache
def plugin(cls: type) -> Plugin | None:
    """The name and the digest of a user-defined class; ``None`` for a method or a problem of the package."""
    if cls.__module__.startswith(("mpifed.algorithms.", "mpifed.problems.")):
        return None
    module = sys.modules.get(cls.__module__)
    place = place_of(module) if module else cls.__module__
    return Plugin(f"{place}:{cls.__qualname__}", digest_of(cls.__module__))


def sources(section: str, instance) -> dict[str, Plugin]:
    """The user-defined parts of a method or a problem: its class under ``section``, choices among its
    settings under ``section.setting``.
    """
    fields = {
        field.name: getattr(instance, field.name) for field in dataclasses.fields(instance) if field.init
    }
    own = {
        f"{section}.{key}": Plugin(one.name, one.digest)
        for key, one in fields.items()
        if isinstance(one, UserObject)
    }
    cls: Any = type(instance)
    kind = plugin(cls)
    return ({section: kind} if kind else {}) | own


def _expect_arguments(function, settings: dict[str, Any], what: str) -> None:
    """Raises:
    ConfigError: the function does not take these settings, or a file of results cannot hold them.
    """
    try:
        json.dumps(settings)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{what}: expected settings that a job file can hold, {error}") from None
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # not written in Python
        return
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    names = [one.name for one in named]
    wrong = [key for key in settings if key not in names]
    if wrong and not any(one.kind is one.VAR_KEYWORD for one in parameters):
        raise ConfigError(f"{what} has no setting {short_repr(wrong[0])}: {suggest(wrong[0], names)}")
    missing = [one.name for one in named if one.default is one.empty and one.name not in settings]
    if missing:
        raise ConfigError(f"{what}: {missing[0]} is missing: it has no default")
