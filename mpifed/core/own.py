"""A user's own thing in a setting that is a choice: ``"./file.py:Name"`` or ``{ name = "./file.py:Name",
width = 64 }`` in place of a name of the package's, and in Python an object that is made already.

What may stand there is said by a subclass of :class:`Own`, which ``core.settings.choice`` is given::

    class Module(Own):
        kind = "an nn.Module class, or a function that returns one"

    Model = choice("model", MODELS, Module)

The setting then holds a ``Module``. Like a user's method or problem it is known by its name, which is
absolute, and the SHA-256 digest of its file: both are stored with the run, and no run goes on with another.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any, ClassVar

from mpifed.core.errors import ConfigError, cut, shown
from mpifed.core.later import make_up
from mpifed.core.loading import attribute_of, digest_of, guarded, module_of, place_of
from mpifed.core.settings import near_miss

__all__ = ["Own", "is_instance"]

#: How the name of an object that no file makes again ends.
_INSTANCE = re.compile(r" \(an instance, [0-9a-f]{12}\)$")


def is_instance(name: str) -> bool:
    """Whether a stored name is that of an object that was given in Python, which no name makes again."""
    return bool(_INSTANCE.search(name))


class Own:
    """What a user's setting names or gives.

    Attributes:
        name: ``/folder/file.py:Name`` or ``package.module:Name``; of an object its class, and a part of the
            digest.
        digest: SHA-256 (hexadecimal) of the source; of an object of that and of what it holds. "" without a
            file.
        settings: the keyword arguments of a class or a function.
        given: the class or function, or the object.
    """

    #: What is expected, in words.
    kind: ClassVar[str]

    def __init__(self, name: str, digest: str, settings: dict[str, Any], given: Any):
        self.name, self.digest, self.settings, self.given = name, digest, settings, given

    @classmethod
    def fits(cls, value: Any) -> bool:
        """Whether a value that a file has under a name is of the kind."""
        return callable(value)

    @classmethod
    def fingerprint(cls, value: Any) -> str | None:
        """A text that tells an object given in Python from all others; ``None`` where it is not of the
        kind."""
        return None

    @classmethod
    def of(cls, value: Any, what: str) -> Own | None:
        """What a setting's value stands for; ``None`` where it is neither a user's name, nor a table with
        one, nor an object of the kind.

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
    def _named(cls, name: str, settings: dict[str, Any], what: str) -> Own:
        if is_instance(name):
            raise ConfigError(
                f"{cut(name)} was given as an object, which no name makes again: continue with its Config, "
                "mpifed.run(Config(...)), or name a class or function, ./file.py:Name"
            )
        make_up()
        place, _, attribute = name.rpartition(":") if ":" in name else (name, ":", "")
        module = module_of(place, name)
        given = attribute_of(module, place, attribute, cls.fits)
        if not cls.fits(given):
            raise ConfigError(f"{cut(name)}: expected {cls.kind}, got {shown(given)}")
        cls._expect(given, settings, f"{what} {attribute}")
        return cls(f"{place_of(module)}:{attribute}", digest_of(module.__name__), settings, given)

    @classmethod
    def _expect(cls, given: Any, settings: dict[str, Any], what: str) -> None:
        """Raises:
        ConfigError: what a file has under a name does not take these settings.
        """
        _expect_arguments(given, settings, what)

    @classmethod
    def _of_instance(cls, value: Any) -> Own | None:
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
        """Whether it was given as an object, and not as what makes one."""
        return is_instance(self.name)

    def make(self, **more: Any) -> Any:
        """What the class or function makes of the settings, and of ``more``.

        Raises:
            ConfigError: it has raised an error; shows the user's lines.
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
    except (TypeError, ValueError):  # of what is not written in Python
        return
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    names = [one.name for one in named]
    wrong = [key for key in settings if key not in names]
    if wrong and not any(one.kind is one.VAR_KEYWORD for one in parameters):
        raise ConfigError(f"{what} has no setting {shown(wrong[0])}: {near_miss(wrong[0], names)}")
    missing = [one.name for one in named if one.default is one.empty and one.name not in settings]
    if missing:
        raise ConfigError(f"{what}: {missing[0]} is missing: it has no default")
