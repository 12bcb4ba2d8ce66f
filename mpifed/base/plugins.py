"""User-defined objects: loading classes and functions from source files, and digests of these files.

A setting that is chosen by name (``base.settings.choice``) also accepts ``"./file.py:Name"`` or
``{ name = "./file.py:Name", width = 64 }`` instead of a built-in name, and in Python an object. A subclass of
:class:`UserObject` defines which objects it accepts::

    class Module(UserObject):
        expected = "an nn.Module class, or a function that returns one"

    Model = choice("model", MODELS, Module)

The value of the setting is then a ``Module``. Like a user-defined method or problem, it is identified by its
absolute name and the SHA-256 digest of its file. Both are stored with the run, and a run cannot be resumed
with another source.

A file is executed again only if its source has changed. The name of its module contains a digest of its path,
so that files of the same name do not replace each other. While a file is loaded, its folder is first on
``sys.path``; afterwards it is last, so that the user's modules do not shadow others.
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
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

from mpifed.base.data_files import digest, expect_regular
from mpifed.base.errors import ConfigError, short_repr, truncate, user_frames
from mpifed.base.paths import expand_home
from mpifed.base.settings import suggest

__all__ = [
    "Plugin", "UserObject", "call_user_code", "data_folder", "digest_of", "digest_on_disk",
    "expect_code_allowed", "expect_fitting", "folder_of_users", "is_instance", "is_user_defined",
    "load_object", "origin_of", "plugin_of", "plugins_of", "refused_code", "short_names",
]  # fmt: skip

#: Name of a module loaded from a file → digest of the source that was executed.
_loaded: dict[str, str] = {}
#: Folders of the files that were loaded.
_folders: set[Path] = set()
#: Maximum size of a source file in bytes.
MAX_SOURCE = 2**26
#: "" if user code may be loaded, otherwise the end of the error message.
_remedy: contextvars.ContextVar[str] = contextvars.ContextVar("remedy", default="")


@contextlib.contextmanager
def refused_code(remedy: str) -> Iterator[None]:
    """A context in which loading user code raises a :class:`ConfigError` that ends in ``remedy``."""
    token = _remedy.set(remedy)
    try:
        yield
    finally:
        _remedy.reset(token)


def expect_code_allowed(name: str) -> None:
    """Raise a :class:`ConfigError` if user code must not be loaded; ``name`` is the name that requires it."""
    if remedy := _remedy.get():
        raise ConfigError(f"{truncate(name)} is user-defined code, which would be executed: {remedy}")


def is_user_defined(name: str) -> bool:
    """Return whether a name refers to a file or to a module, such as ``./file.py:Name``."""
    return ":" in name or name.endswith(".py")


def load_object(name: str, fits: Callable[[Any], bool], expected: str) -> tuple[ModuleType, str, Any]:
    """Load the object ``./file.py:Name`` or ``package.module:Name``; ``Name`` may be dotted.

    Args:
        fits: whether a value is of the expected type. The module's own values of this type are suggested if
            it has no attribute of this name.
        expected: description of the type in messages.

    Returns:
        The module, the name of the attribute, and the object.

    Raises:
        ConfigError: the module cannot be loaded or has no such attribute, the object is of another type, or
            loading code is refused.
    """
    expect_code_allowed(name)
    place, _, attribute = name.rpartition(":") if ":" in name else (name, ":", "")
    module = load_file(place) if place.endswith(".py") else _import(place, name)
    try:
        value = operator.attrgetter(attribute)(module)
    except AttributeError:
        options = [
            key
            for key, value in vars(module).items()
            if getattr(value, "__module__", "") == module.__name__ and fits(value)
        ]
        hint = suggest(attribute, options) if options else "(it defines nothing of the expected type)"
        place = truncate(place)
        lack = f"has no {short_repr(attribute)}" if attribute else f"names no object, expected {place}:Name"
        raise ConfigError(f"{place} {lack}: {hint}") from None
    expect_fitting(name, value, fits, expected)
    return module, attribute, value


def expect_fitting(name: str, value: Any, fits: Callable[[Any], bool], expected: str) -> None:
    """Raise a :class:`ConfigError` unless the loaded value is of the expected type."""
    if not fits(value):
        raise ConfigError(f"{truncate(name)}: expected {expected}, got {short_repr(value)}")


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Return names for figures, tables and folders: ``./mine.py:Mine`` becomes ``Mine``.

    If objects of several files have the same name, as much of the path is appended as distinguishes them:
    ``Mine-mine``, ``Mine-a.mine``; a digest if the paths differ in nothing else than their form.
    """
    places = {name: name.rpartition(":")[::2] for name in names}
    short = {}
    for name, (place, end) in places.items():
        others = {_parts(there) for there, other in places.values() if other == end and there != place}
        parts = _parts(place)
        tails = (parts[-count:] for count in range(1, len(parts)))
        unique = (tail for tail in tails if all(other[-len(tail) :] != tail for other in others))
        tail = next(unique, parts)
        if parts in others:
            tail = (hashlib.blake2b(place.encode(), digest_size=4).hexdigest(),)
        short[name] = f"{end}-{'.'.join(tail)}" if others and place else end
    return short


def _parts(place: str) -> tuple[str, ...]:
    """Return the parts of the path of a file, without its suffix, or of the name of a module."""
    return tuple(filter(None, re.split(r"[/.]", place.removesuffix(".py"))))


def origin_of(module: ModuleType) -> str:
    """Return the identifier of a module: the path of the file that it was loaded from, or its name."""
    file = getattr(module, "__file__", None)
    if file and (module.__name__ == "__main__" or module.__name__ in _loaded):
        return str(Path(file).resolve())
    return module.__name__


def load_file(path: str) -> ModuleType:
    """Load a file as a module. The file is executed again if its source has changed since.

    Raises:
        ConfigError: the file does not exist or raises an error.
    """
    try:
        file = Path(expand_home(path)).resolve()
        exists = file.is_file()
    except (OSError, ValueError):  # the name is too long or contains characters that no name may contain
        exists = False
    if not exists:
        raise ConfigError(f"there is no file {truncate(path)} (working directory: {Path.cwd()})")
    main = sys.modules["__main__"]
    script = getattr(main, "__file__", None)
    if script and Path(script).resolve() == file:
        return main  # the running script, which must not be executed twice
    source = file.read_bytes()
    name = f"mpifed_plugin_{file.stem}_{digest([str(file).encode()])[:12]}"
    if _loaded.get(name) != digest([source]):
        call_user_code(f"{path} cannot be loaded", lambda: _execute(file, source, name))
    return sys.modules[name]


def _execute(file: Path, source: bytes, name: str) -> None:
    tree = ast.parse(source, str(file))
    _expect_no_name_clash(tree, file)
    spec: Any = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    before, sys.modules[name] = sys.modules.get(name), module  # dataclasses look up their module
    try:
        with _first_on_path(file.parent):
            exec(compile(tree, str(file), "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        sys.modules.pop(name)
        if before is not None:
            sys.modules[name] = before
        raise
    _loaded[name] = digest([source])


@contextlib.contextmanager
def _first_on_path(folder: Path) -> Iterator[None]:
    """A context in which a folder is the first on ``sys.path``; afterwards it is the last."""
    _folders.add(folder)
    importlib.invalidate_caches()
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


def _expect_no_name_clash(tree: ast.Module, file: Path) -> None:
    """Raise a :class:`ConfigError` if the source imports a module of its folder, but a module of the same
    name from the folder of another user's file is already imported."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add((node.module or "").partition(".")[0])
    for name in sorted(names):
        places = (file.parent / f"{name}.py", file.parent / name / "__init__.py")
        local = next((place for place in places if place.is_file()), None)
        imported = getattr(sys.modules.get(name), "__file__", None)
        if local and imported and Path(imported) != local and _folders & set(Path(imported).parents[:2]):
            raise ConfigError(
                f"{file} imports {name!r}: expected {local}, but {imported} of the same name is already "
                "imported: rename one of the two"
            )


def _import(module: str, name: str) -> ModuleType:
    """Import a module for the object ``name``."""
    if not all(part.isidentifier() for part in module.split(".")):
        raise ConfigError(f"expected ./file.py:Class or package.module:Class, got {short_repr(name)}")

    def load() -> ModuleType:
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name and f"{module}.".startswith(f"{error.name}."):
                what = f"cannot import {short_repr(module)} for {short_repr(name)}"
                raise ConfigError(f"{what}: {truncate(str(error))}") from None
            raise

    return call_user_code(f"{truncate(module)} cannot be loaded", load)


def call_user_code(what: str, function: Callable):
    """Call a function that runs user code, and report its errors with the lines of that code.

    Args:
        what: beginning of the message, such as "./file.py cannot be loaded".

    Raises:
        ConfigError: ``what``, the error's message and the frames of user code.
    """
    try:
        return function()
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        message = error.msg if isinstance(error, SyntaxError) else error
        text = f"{what}: {type(error).__name__}: {message}\n{user_frames(error)}"
        raise ConfigError(text.rstrip()) from error


def digest_of(module: str) -> str:
    """Return the SHA-256 (hexadecimal) of a module's source as it was executed; "" if it has no file."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return _loaded.get(module) or (_digest_of_file(file) if file else "")


def digest_on_disk(place: str) -> str:
    """Return the SHA-256 (hexadecimal) of a file, or of a module's file, as it is now; "" without a file."""
    if place.endswith(".py"):
        return _digest_of_file(place)
    try:
        spec = importlib.util.find_spec(place)
    except (ImportError, ValueError):
        return ""
    return _digest_of_file(spec.origin) if spec and spec.origin else ""


def _digest_of_file(file: str) -> str:
    try:
        expect_regular(Path(file), MAX_SOURCE)
        return digest([Path(file).read_bytes()])
    except (OSError, ValueError):
        return ""


#: End of the stored name of an object that was passed in Python.
_INSTANCE = re.compile(r" \(an instance, [0-9a-f]{12}\)$")


def is_instance(name: str) -> bool:
    """Return whether a stored name is that of an object passed in Python, which cannot be created by name."""
    return bool(_INSTANCE.search(name))


class UserObject:
    """A user-defined value of a setting.

    Attributes:
        name: ``/folder/file.py:Name`` or ``package.module:Name``; for an object, its class and a part of the
            digest.
        digest: SHA-256 (hexadecimal) of the source file, "" without a file; for an object, of the source and
            the :meth:`fingerprint`.
        settings: keyword arguments of a class or a function.
        given: the class, function or object itself.
    """

    #: Description of the expected type in messages.
    expected: ClassVar[str]

    def __init__(self, name: str, digest: str, settings: dict[str, Any], given: Any):
        self.name, self.digest, self.settings, self.given = name, digest, settings, given

    @classmethod
    def fits(cls, value: Any) -> bool:
        """Return whether an attribute of a user's module is of the expected type."""
        return callable(value)

    @classmethod
    def fingerprint(cls, value: Any) -> str | None:
        """Return a text that identifies an object passed in Python; ``None`` if it is of another type."""
        return None

    @classmethod
    def from_value(cls, value: Any, what: str) -> UserObject | None:
        """Return the user-defined object that the value of a setting refers to.

        Args:
            what: description of the setting, "model".

        Returns:
            ``None`` if the value is neither the name of a user-defined object, nor a table with such a name,
            nor an object of the expected type.

        Raises:
            ConfigError: the object cannot be loaded, is of another type, or does not accept these settings.
        """
        if isinstance(value, cls):
            return value
        settings = dict(value) if isinstance(value, dict) else {}
        name = settings.pop("name", None) if isinstance(value, dict) else value
        if isinstance(value, functools.partial) and (part := cls.from_value(value.func, what)):
            if value.args or part.is_instance:
                raise ConfigError(f"{what}: expected functools.partial of a class or function with keywords")
            cls._expect(part.given, settings := part.settings | value.keywords, f"{what} {part}")
            return cls(part.name, part.digest, settings, part.given)
        if not isinstance(name, str):
            return cls._from_instance(value)
        if not is_user_defined(name):
            return None
        if is_instance(name):
            raise ConfigError(
                f"{truncate(name)} was passed as an object, which cannot be created by name: continue with "
                "mpifed.run and its Config, or name a class or function, ./file.py:Name"
            )
        module, attribute, given = load_object(name, cls.fits, cls.expected)
        cls._expect(given, settings, f"{what} {attribute}")
        return cls(f"{origin_of(module)}:{attribute}", digest_of(module.__name__), settings, given)

    @classmethod
    def _expect(cls, given: Any, settings: dict[str, Any], what: str) -> None:
        """Raise a :class:`ConfigError` if the class or function does not accept these settings, or if a job
        file cannot contain them."""
        try:
            json.dumps(settings)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{what}: expected settings that a job file can contain, {error}") from None
        try:
            parameters = inspect.signature(given).parameters.values()
        except (TypeError, ValueError):  # not written in Python
            return
        keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        named = {parameter.name: parameter for parameter in parameters if parameter.kind in keyword}
        wrong = [key for key in settings if key not in named]
        if wrong and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            raise ConfigError(f"{what} has no setting {short_repr(wrong[0])}: {suggest(wrong[0], named)}")
        for name, parameter in named.items():
            if parameter.default is parameter.empty and name not in settings:
                raise ConfigError(f"{what}: {name} is missing: it has no default")

    @classmethod
    def _from_instance(cls, value: Any) -> UserObject | None:
        fingerprint = cls.fingerprint(value)
        if fingerprint is None:
            return None
        place, source = _place_of(type(value))
        identity = digest([f"{source}\n{fingerprint}".encode()])
        name = f"{place}:{type(value).__qualname__} (an instance, {identity[:12]})"
        return cls(name, identity, {}, value)

    @classmethod
    def _from_function(cls, function: Any) -> UserObject:
        """Return a function that was passed in Python, which has a name in its module."""
        place, source = _place_of(function)
        return cls(f"{place}:{function.__qualname__}", source, {}, function)

    @property
    def is_instance(self) -> bool:
        """Whether an object was passed instead of a class or function."""
        return is_instance(self.name)

    def make(self, **more: Any) -> Any:
        """Call the class or function with the settings and ``more``.

        Raises:
            ConfigError: it has raised an error; the message contains the lines of user code.
        """
        return call_user_code(f"{self} cannot be created", lambda: self.given(**self.settings, **more))

    def table(self) -> dict[str, Any]:
        """Return the value as a table of a job file."""
        return {"name": self.name, **self.settings}

    def __str__(self) -> str:
        place, _, attribute = self.name.rpartition(":")
        return f"{Path(place).name}:{attribute}"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and (self.table(), self.digest) == (other.table(), other.digest)

    __hash__ = None  # type: ignore[assignment]


class Plugin(NamedTuple):
    """Identity of a user-defined object: its name, and the SHA-256 of its file, "" without a file."""

    name: str
    digest: str


@functools.cache
def plugin_of(cls: type) -> Plugin | None:
    """Return the identity of a user-defined class; ``None`` for a method or a problem of the package."""
    if cls.__module__.startswith(("mpifed.algorithms.", "mpifed.problems.")):
        return None
    place, source = _place_of(cls)
    return Plugin(f"{place}:{cls.__qualname__}", source)


def data_folder(cls: Any, data_dir: str | None) -> str | None:
    """Return the data folder for ``prepare`` of a class of problems.

    It is ``run.data_dir``, or else ``$MPIFED_DATA`` if ``prepare`` is user-defined. The readers of the
    package search that folder and others if they get ``None``.
    """
    return data_dir if cls.prepare.__module__.startswith("mpifed.") else folder_of_users(data_dir)


def folder_of_users(data_dir: str | None) -> str | None:
    """Return the data folder for user-defined code: ``data_dir``, or else ``$MPIFED_DATA`` if it is set."""
    default = os.environ.get("MPIFED_DATA", "")
    return expand_home(default) if default and data_dir is None else data_dir


def _place_of(defined: Any) -> tuple[str, str]:
    """Return the module or the file of a class or function, and the SHA-256 of its source, "" without a file.

    A module that was loaded by ``runpy`` or ``importlib`` need not be in ``sys.modules``; its file is then
    that of the code.
    """
    name = defined.__module__
    if name in sys.modules:
        return origin_of(sys.modules[name]), digest_of(name)
    functions = (part for part in (defined, *vars(defined).values()) if inspect.isfunction(part))
    file = next((part.__code__.co_filename for part in functions), "")
    return (str(Path(file).resolve()), _digest_of_file(file)) if Path(file).is_file() else (name, "")


def plugins_of(section: str, instance) -> dict[str, Plugin]:
    """Return the user-defined parts of a method or a problem: its class under ``section``, the values of its
    settings under ``section.setting``, and those of a list under ``section.setting.0``, ..."""
    cls: Any = type(instance)
    plugins = {section: plugin} if (plugin := plugin_of(cls)) else {}
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name, None)
        several = {f".{k}": part for k, part in enumerate(value)} if isinstance(value, tuple) else {"": value}
        for place, part in several.items():
            if isinstance(part, UserObject):
                plugins[f"{section}.{field.name}{place}"] = Plugin(part.name, part.digest)
    return plugins
