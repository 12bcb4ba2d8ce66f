"""Settings: records of options, choices by name, and their JSON schemas.

A record of options is a :class:`Section` with pydantic fields; a method, a problem or a member of a choice is
a pydantic dataclass. :func:`choice` makes an annotation from a dictionary ``{name: frozen dataclass}``. It
accepts a name, ``matrix = "adam"``, a table with a name, ``matrix = { name = "adam", rho = 0.01 }``, or an
instance, and refuses everything else with a suggestion. :func:`json_schema` is the description that lists of
settings, the settings page and ``mpifed schema`` are derived from.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import math
import typing
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as _dataclass
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema
from typing_extensions import TypeAliasType

from mpifed.base.errors import ConfigError, join_lines, short_repr, truncate, user_frames

__all__ = [
    "Options",
    "Preset",
    "Section",
    "Strict",
    "as_table",
    "build",
    "choice",
    "explain",
    "explain_record",
    "file_name",
    "first",
    "flatten",
    "hyperparameters",
    "json_schema",
    "suggest",
    "preset_of",
    "problem_settings",
    "sections_of",
    "title",
    "default_of",
    "show_signature",
    "signature_of",
]


#: Validated on construction, unknown names refused; what checks it is made when it is first needed.
_STRICT = ConfigDict(extra="forbid", arbitrary_types_allowed=True, defer_build=True)

#: What pydantic calls a setting that is not there.
_MISSING = {"missing", "missing_argument"}

#: Options of which a message shows all, and how many of more.
MANY, SHOWN = 30, 5

#: How people write truth values, and how job files do.
_TRUTH = dict.fromkeys(("true", "yes", "on", "1"), "true") | dict.fromkeys(
    ("false", "no", "off", "0"), "false"
)


#: Bounds of integers without bounds of their own: 64 bits.
LEAST, MOST = -(2**63), 2**63 - 1
#: Keys of a core schema that hold no schemas of values.
_ASIDE = {"cls", "config", "default", "metadata", "ref", "serialization"}


def _strict(schema: Any, infinite: bool = False) -> Any:
    """Make all plain values of a pydantic core schema strict.

    Args:
        infinite: numbers may be infinite, but not NaN.
    """
    if isinstance(schema, list | tuple):
        return type(schema)(_strict(one, infinite) for one in schema)
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if kind == "default":
        default = schema.get("default")
        infinite = isinstance(default, float) and math.isinf(default)
    if isinstance(kind, str) and kind in _PLAIN:
        return core_schema.no_info_before_validator_function(_as_python, _PLAIN[kind](schema, infinite))
    return {key: value if key in _ASIDE else _strict(value, infinite) for key, value in schema.items()}


def _integer(schema: dict, infinite: bool) -> dict:
    low = {} if {"ge", "gt"} & set(schema) else {"ge": LEAST}
    high = {} if {"le", "lt"} & set(schema) else {"le": MOST}
    return schema | low | high | {"strict": True}


def _number(schema: dict, infinite: bool) -> dict:
    if not infinite:
        return schema | {"strict": True, "allow_inf_nan": schema.get("allow_inf_nan", False)}
    bounded = {"ge", "gt", "le", "lt"} & set(schema)  # a bound refuses NaN
    return schema | {"strict": True, "allow_inf_nan": True} | ({} if bounded else {"ge": -math.inf})


def _other(schema: dict, infinite: bool) -> dict:
    return schema | {"strict": True}


_PLAIN = {"int": _integer, "float": _number, "bool": _other, "str": _other}


def _as_python(value):
    return value.item() if isinstance(value, np.generic) else value


class Strict:
    """Strict validation of plain values: marks an annotation, ``Annotated[cls, Strict]``, or is a base class.

    No text is read as a number and no number as true or false; numbers are finite unless their default is
    infinite. (pydantic's strict mode would also refuse the lists and tables that job files consist of.)
    Integers are accepted for floats, and NumPy's scalars for Python's.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source, handler):
        return _strict(handler(source))


class Section(Strict, BaseModel):
    """Base class of records of options: frozen, unknown names are refused. A section of a job file is one."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _in_sentences(decorate: Callable[[type], type]) -> Callable[[type], type]:
    """A decorator whose classes refuse wrong settings with a :class:`ConfigError`, one line each."""

    def decorator(cls: type) -> type:
        cls.__get_pydantic_core_schema__ = classmethod(_strict_and_restored)  # type: ignore[attr-defined]
        made: Any = decorate(cls)
        checked = made.__init__

        @functools.wraps(checked)
        def __init__(self, *values, **settings):
            try:
                checked(self, *values, **settings)
            except ValidationError as error:
                known = _settable(made)
                raise ConfigError(explain(error.errors(), type(self).__name__, known)) from None

        show_signature(made, __init__)
        made._init_in_sentences = __init__
        _restore(made)
        return made

    return decorator


def _strict_and_restored(cls, source, handler):
    """The schema of a class. pydantic calls this while it completes the class, after setting ``__init__``."""
    _restore(source)
    return _strict(handler(source))


def _restore(cls) -> None:
    """Restore the ``__init__`` that raises a :class:`ConfigError`; pydantic replaces it on completion."""
    if "_init_in_sentences" in vars(cls):
        cls.__init__ = cls._init_in_sentences


if TYPE_CHECKING:  # a type checker knows pydantic's dataclasses
    from pydantic.dataclasses import dataclass as hyperparameters
    from pydantic.dataclasses import dataclass as problem_settings

    from mpifed.base.plugins import UserObject
else:
    #: Decorator of every record of settings: frozen.
    hyperparameters = _in_sentences(_dataclass(frozen=True, config=_STRICT))

    #: Decorator of a problem: its settings go by name, and it may keep what it prepares.
    problem_settings = _in_sentences(_dataclass(kw_only=True, config=_STRICT))


class Preset:
    """A class of settings under another name, with some of the settings fixed.

    Calling it makes an instance of ``cls``. Its fields are those that are still free; the class answers
    whatever else is asked of it.
    """

    #: Those that there are, in the order in which they were made.
    made: ClassVar[list[Preset]] = []

    def __init__(self, name: str, cls: Any, doc: str, **fixed: Any):
        self.cls, self.fixed = cls, fixed
        self._values: dict[str, Any] | None = None  # the fixed settings as an instance has them
        self.__name__ = self.__qualname__ = name
        self.__doc__, self.__module__ = doc, cls.__module__
        self.__signature__ = signature_of(self, by_name=True)
        Preset.made.append(self)

    def __call__(self, **settings):
        return build(self, settings, self.__name__)

    def __getattr__(self, name: str):
        if name == "cls":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self.cls, name)

    def __repr__(self) -> str:
        return self.__name__

    @property
    def __dataclass_fields__(self) -> dict[str, dataclasses.Field]:
        fields = self.cls.__dataclass_fields__
        return {name: field for name, field in fields.items() if name not in self.fixed}

    def matches(self, instance: Any) -> bool:
        """Whether the preset makes this instance from some settings."""
        if type(instance) is not self.cls:
            return False
        if self._values is None:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # which were shown when the instance was made
                    like = dataclasses.replace(instance, **self.fixed)
            except ValueError:  # the fixed settings do not go with the others
                return False
            self._values = {name: getattr(like, name) for name in self.fixed}
        return all(getattr(instance, name) == value for name, value in self._values.items())


def preset_of(instance) -> Preset | None:
    """The preset that makes this instance, if there is one."""
    return next((preset for preset in Preset.made if preset.matches(instance)), None)


def title(instance) -> str:
    """What a method or a problem is called where it is shown: by its preset or its class, never by a path."""
    return (preset_of(instance) or type(instance)).__name__


def as_table(value):
    """A setting's value as JSON-able values: an object of settings is a table with its name."""
    if callable(table := getattr(value, "table", None)):  # a user-defined object
        return as_table(table())
    if dataclasses.is_dataclass(value):
        kind: Any = preset_of(value) or value
        settings = {
            one.name: as_table(getattr(value, one.name)) for one in dataclasses.fields(kind) if one.init
        }
        return {"name": getattr(value, "choice_name", None) or title(value), **settings}
    if isinstance(value, dict | BaseModel):
        return {key: as_table(one) for key, one in dict(value).items()}
    return [as_table(one) for one in value] if isinstance(value, list | tuple) else value


def _settable(cls) -> list[str]:
    return [field.name for field in dataclasses.fields(cls) if field.init]


def suggest(name: str, options: Iterable[str]) -> str:
    """The tail of an error message: a suggestion when one is near, and the options; of many the nearest."""
    options = sorted(options)
    lower = {option.lower(): option for option in options}
    # No name is as long as what is cut, which would take minutes to compare.
    close = difflib.get_close_matches(truncate(name).lower(), lower, n=SHOWN)
    hint = f"did you mean {lower[close[0]]!r}? " if close else ""
    if len(options) > MANY:
        return f"{hint}(options: {', '.join([*(lower[one] for one in close), '...'])}, see `mpifed list`)"
    return f"{hint}(options: {', '.join(options)})" if options else "(nothing can be set here)"


def first(names: Iterable[str]) -> str:
    """Some names as a message lists them, of many the first."""
    names = list(names)
    return ", ".join(names if len(names) <= MANY else [*names[: MANY // 3], "... (see `mpifed list`)"])


def build(cls: type | Preset, settings: dict[str, Any], what: str):
    """An instance of the dataclass or preset ``cls`` from a table of a job file.

    Raises:
        ConfigError: one line for each unknown key, missing key or wrong value.
    """
    if not dataclasses.is_dataclass(cls):
        raise ConfigError(f"{cls.__name__} must be a dataclass: its fields are its settings")
    known = _settable(cls)
    wrong = [key for key in settings if key not in known]
    if wrong:
        raise ConfigError(
            join_lines(wrong, lambda key: f"{what} has no setting {short_repr(key)}: {suggest(key, known)}")
        )
    fixed: dict[str, Any]
    kind, fixed = (cls.cls, cls.fixed) if isinstance(cls, Preset) else (cls, {})
    try:
        return _validator(kind).validate_python(settings | fixed)
    except ValidationError as error:
        faults = error.errors()
        lacks = any(fault["type"] in _MISSING for fault in faults) and kind.__module__.startswith("mpifed.")
        hint = f"\n`mpifed info {getattr(kind, 'choice_name', cls.__name__)}` explains it" if lacks else ""
        raise ConfigError(explain(faults, what) + hint) from None


@functools.cache
def _validator(kind: type) -> TypeAdapter:
    """The strict validator of a class: making one takes milliseconds, and a sweep has thousands of runs."""
    return TypeAdapter(Annotated[kind, Strict])  # type: ignore[arg-type]


def sections_of(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Field → record of options, of a model's fields that hold one."""
    found: dict[str, type[BaseModel]] = {}
    for name, field in model.model_fields.items():
        options = [field.annotation, *typing.get_args(field.annotation)]
        for one in options:
            if isinstance(one, type) and issubclass(one, BaseModel):
                found[name] = one
    return found


def explain_record(faults: list, model: type[BaseModel], settings: Mapping[str, Any]) -> str:
    """The errors of a record of sections, one line each, with suggestions for unknown settings.

    Args:
        settings: the values that were validated.
    """
    sections = sections_of(model)
    known: dict[str, Iterable[str]] = {name: section.model_fields for name, section in sections.items()}
    known |= {name: vars(part) for name, part in settings.items() if dataclasses.is_dataclass(part)}
    unknown = [fault["loc"] for fault in faults if fault["type"] == "extra_forbidden"]
    rest = [fault for fault in faults if fault["type"] != "extra_forbidden"]

    def sentence(place: tuple) -> str:
        *path, key = map(str, place)
        elsewhere = [f"{section}.{key}" for section, names in known.items() if key in names]
        if elsewhere and not path:
            return (
                f"a job file has no setting {short_repr(key)} outside its sections: did you mean "
                f"{elsewhere[0]!r}?"
            )
        here = sections[path[0]].model_fields if path and path[0] in sections else model.model_fields
        where = f"[{path[0]}]" if path else "a job file"
        return f"{where} has no setting {short_repr(key)}: {suggest(key, here)}"

    return "\n".join(filter(None, [join_lines(unknown, sentence), explain(rest, "")]))


def file_name(text: str) -> str:
    """Validate the name of a file or folder."""
    if not text.strip():
        raise ValueError(f"expected the name of a folder, got {short_repr(text)}: is a shell variable unset?")
    if "\0" in text:
        raise ValueError(f"the name of a folder has no NUL character, got {short_repr(text)}")
    return text


def explain(faults: list, what: str, known: Iterable[str] = ()) -> str:
    """The faults of a validation error, one line each: where, what was expected, what was got.

    An error that the user's own code has raised is followed by the lines of it that were in progress.

    Args:
        what: the words for the whole, before the names of its parts; may be empty.
        known: the settings that there are, to tell where one is unknown.
    """
    return join_lines(faults, lambda fault: _sentence(fault, what, known))


def _sentence(fault, what: str, known: Iterable[str]) -> str:
    path = [truncate(str(part)) for part in fault["loc"] if not str(part).startswith(("function-", "tuple["))]
    where = ".".join([what, *path] if what else path)
    message = fault["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if fault["type"] in _MISSING:
        return f"{where} is missing: it has no default"
    if fault["type"] == "unexpected_keyword_argument":
        return f"{what} has no setting {short_repr(fault['loc'][-1])}: {suggest(path[-1], known)}"
    if fault["type"] == "unexpected_positional_argument":
        return f"{what} got one value too many, {short_repr(fault['input'])}: {suggest('', known)}"
    if fault["type"] not in {"value_error", "assertion_error"}:
        return f"{where}: {message}, got {short_repr(fault['input'])}{_hint(fault)}"
    raised = fault.get("ctx", {}).get("error")
    frames = user_frames(raised) if isinstance(raised, Exception) else ""
    return "\n".join(filter(None, [f"{where}: {message}" if where else message, frames]))


def _hint(fault) -> str:
    """How a value that is only written wrongly would be written rightly."""
    value, wanted = fault["input"], fault["type"].removesuffix("_type")
    if wanted == "bool":
        right = _TRUTH.get(short_repr(value).strip("'").lower())
        return f": write {right}" if right else ""
    if isinstance(value, bool) or wanted not in ("int", "float"):
        return ""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return ""
    whole = number.is_integer() and abs(number) < 2**53
    right = str(int(number)) if whole else repr(number) if math.isfinite(number) and wanted == "float" else ""
    return f": write {right}" if right else ""


def flatten(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A table of tables as a flat one: ``{"a": {"b": 1}}`` becomes ``{"a.b": 1}``."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


class Options:
    """The values of a setting that is chosen by name: how they are validated, and their JSON schema.

    Attributes:
        kind: the words for a value in messages.
        classes: name → class of settings, or preset.
        user: the type of user-defined objects that the setting also takes.
        names: names without settings; they stay texts.
        number: the class that a plain number is passed to.
        title: the words for the values in lists of settings.
    """

    def __init__(
        self,
        kind: str,
        classes: Mapping[str, Any],
        user: Any = None,
        names: Collection[str] = (),
        number: type | None = None,
        title: str = "",
    ):
        self.kind, self.classes, self.user, self.names = kind, classes, user, names
        self.number, self.title = number, title or kind

    def __call__(self, value):
        if self.user is not None and (found := self.user.of(value, self.kind)) is not None:
            return found
        if isinstance(value, tuple(self.classes.values())):
            return value
        if self.number and isinstance(value, int | float) and not isinstance(value, bool):
            return self.number(_finite(value, self.kind))
        settings = dict(value) if isinstance(value, dict) else {"name": value}
        name = settings.pop("name", None)
        if isinstance(name, str) and name in self.classes:
            return build(self.classes[name], settings, f"{self.kind} {name!r}")
        if isinstance(name, str) and name in self.names:
            if settings:
                raise ValueError(f"{self.kind} {name!r} has no settings, got {short_repr(settings)}")
            return name
        wrong = f"unknown {self.kind} {short_repr(name)}"
        if not isinstance(value, str | dict):
            wrong = f"expected the name of a {self.kind} or a table with one, got {short_repr(value)}"
        near = suggest(name if isinstance(name, str) else "", [*self.names, *self.classes])
        user = f'; user-defined: "./file.py:Name", {self.user.kind}' if self.user else ""
        raise ValueError(f"{wrong}: {near}{user}")

    def __get_pydantic_core_schema__(self, source, handler):
        written = core_schema.plain_serializer_function_ser_schema(as_table)
        return core_schema.no_info_plain_validator_function(self, serialization=written)

    def __get_pydantic_json_schema__(self, schema, handler) -> dict[str, Any]:
        tables = [_named_table(name, cls, handler) for name, cls in self.classes.items()]
        options = [{"enum": [*self.names, *self.classes]}, *tables, *(USER_DEFINED if self.user else ())]
        number = [{"type": "number", "minimum": 0}] if self.number else []
        return {"title": self.title, "anyOf": [*number, *options]}


#: JSON schemas of the name of a user-defined object, and of a table with one.
USER_DEFINED: tuple[dict[str, Any], ...] = (
    {"type": "string", "pattern": ":"},
    {"type": "object", "properties": {"name": {"type": "string", "pattern": ":"}}, "required": ["name"]},
)


def _named_table(name: str, cls: Any, handler) -> dict[str, Any]:
    """The JSON schema of a table that names a class of settings, or a preset.

    Args:
        handler: pydantic's function from a core schema to a JSON schema.
    """
    kind, fixed = (cls.cls, cls.fixed) if isinstance(cls, Preset) else (cls, {})
    table = handler.resolve_ref_schema(handler(_validator(kind).core_schema))
    properties = {key: value for key, value in table["properties"].items() if key not in fixed}
    return {
        "type": "object",
        "title": name,
        "description": (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " "),
        "properties": {"name": {"enum": [name]}, **properties},
        "required": ["name"],
        "additionalProperties": False,
    }


class _Generator(GenerateJsonSchema):
    """pydantic's generator without invented titles; what has no JSON schema may be anything."""

    def field_title_should_be_set(self, schema) -> bool:
        return False

    def handle_invalid_for_json_schema(self, schema, error_info):
        return {}

    def encode_default(self, dft: Any) -> Any:
        return as_table(dft)


def json_schema(cls: Any) -> dict[str, Any]:
    """The JSON schema of a section of a job file or of a class of settings, as pydantic generates it."""
    return _validator(getattr(cls, "cls", cls)).json_schema(schema_generator=_Generator)


def _finite(value: float, kind: str) -> float:
    try:
        number = float(value)
    except OverflowError:  # an integer beyond all floats
        number = math.inf
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"expected a finite number >= 0 or a {kind}, got {short_repr(value)}")
    return number


def choice(
    kind: str,
    classes: Mapping[str, Any],
    user: type[UserObject] | None = None,
    names: Collection[str] = (),
    number: type | None = None,
    title: str = "",
) -> Any:
    """The annotation of a setting that takes one of ``classes`` by name.

    The value is an instance of one of the classes. It may be given as the name, as a table with the name and
    settings, or as the instance.

    Args:
        kind: the words for a value in messages.
        user: the type of user-defined objects that the setting also takes (see ``base.plugins``), as
            ``"./file.py:Name"`` or as an object.
        names: names without settings that the setting also takes; they stay texts.
        number: the class that a plain number from 0 is passed to.
        title: the words for the values in lists of settings, ``kind`` when empty.
    """
    for name, cls in classes.items():
        cls.choice_name = name
    options = Options(kind, classes, user, names, number, title)
    return TypeAliasType(kind.title().replace(" ", ""), Annotated[Any, options])


def default_of(field: dataclasses.Field | FieldInfo):
    """A field's default, written in dataclass or in pydantic manner; MISSING for none."""
    info = field.default if isinstance(field, dataclasses.Field) else field
    if isinstance(info, FieldInfo):
        return dataclasses.MISSING if info.is_required() else info.get_default(call_default_factory=True)
    factory: Any = field.default_factory
    return info if factory is dataclasses.MISSING else factory()


def show_signature(cls: type, init: Callable) -> None:
    """Give a dataclass, and what is to be its ``__init__``, the signature of its fields.

    When pydantic completes the class, it replaces the class's signature by that of the ``__init__``. A
    subclass without a signature would inherit it.
    """
    signature = signature_of(cls)
    itself = Parameter("self", Parameter.POSITIONAL_ONLY)
    init.__signature__ = Signature([itself, *signature.parameters.values()])  # type: ignore[attr-defined]
    cls.__signature__ = signature  # type: ignore[attr-defined]


def signature_of(cls: Any, by_name: bool = False) -> Signature:
    """The signature of a call that makes an instance of a dataclass from its settings.

    Args:
        by_name: no setting can be given by its position.
    """
    positional, named, optional = [], [], False
    for field in (field for field in dataclasses.fields(cls) if field.init):
        default = default_of(field)
        required = default is dataclasses.MISSING
        parameter = Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if required else default,
            annotation=field.type,
        )
        if by_name or field.kw_only or (required and optional):  # after a default no position can be required
            named.append(parameter)
        else:
            positional.append(parameter.replace(kind=Parameter.POSITIONAL_OR_KEYWORD))
            optional = optional or not required
    return Signature([*positional, *named])
