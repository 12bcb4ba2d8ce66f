"""Settings: records of options, choices by name, and their JSON schemas.

A record of options is a :class:`Section` with pydantic fields. A method, a problem or a member of a choice is
a pydantic dataclass. :func:`choice` turns a dictionary ``{name: frozen dataclass}`` into an annotation. The
setting then accepts a name, ``matrix = "adam"``, a table with a name, ``{ name = "adam", rho = 0.01 }``,
or an instance. Lists of settings, the settings page and ``mpifed schema`` are derived from
:func:`json_schema`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import inspect
import json
import math
import os
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema
from typing_extensions import TypeAliasType, dataclass_transform

from mpifed.base.errors import ConfigError, join_lines, short_repr, truncate, user_frames
from mpifed.base.paths import expand_home, expect_output_folder

__all__ = [
    "Affects", "Digits", "Files", "FolderPath", "Length", "Needs", "Options", "OutputFolder", "Results",
    "Section", "Selection", "Speed", "Strict", "UserPath", "affecting", "as_table", "build", "choice",
    "config_errors", "default_of", "explain", "flatten", "hyperparameters", "is_number", "join_names",
    "json_schema", "options_in", "places_of", "problem_settings", "sections_of", "settings_of", "suggest",
    "title", "type_hints",
]  # fmt: skip

#: pydantic's types of the error that a required setting is missing.
_MISSING = {"missing", "missing_argument"}
#: pydantic's types of the error that there is no setting of this name.
_UNKNOWN = {"extra_forbidden", "unexpected_keyword_argument"}
#: Maximum number of options that a message lists, and of similar options that it lists if there are more.
MAX_OPTIONS, MAX_CLOSE = 30, 5
#: Maximum number of places of a setting that a message lists, and of settings that begin with a given name.
MAX_PLACES = 3
#: Minimum length of such a beginning.
MIN_PREFIX = 3
#: Settings of other packages → names of settings here, or words in the descriptions of settings.
SYNONYMS = {
    **dict.fromkeys(("lr", "learning_rate", "stepsize", "step_size"), "step size"),
    **dict.fromkeys(("local_steps", "local_epochs"), "local steps"),
    **dict.fromkeys(("epochs", "iterations", "max_steps"), "rounds"),
    **dict.fromkeys(("num_clients", "n_clients"), "clients"),
    **dict.fromkeys(("output_dir", "logdir", "folder"), "out"),
}
#: Range of integer settings that declare no bounds: 64 bits, as in TOML.
MIN_INTEGER, MAX_INTEGER = -(2**63), 2**63 - 1
#: Keys of a core schema whose values contain no schemas.
_NO_SCHEMA = {"cls", "config", "default", "metadata", "ref", "serialization"}


#: Setting → what it needs to have an effect, and whether a record of settings has it.
Needs = Mapping[str, tuple[str, Callable[[Any], Any]]]


class Strict:
    """Strict validation of plain values, as an annotation ``Annotated[cls, Strict]`` or as a base class.

    Texts are not converted to numbers, nor numbers to booleans. Numbers must be finite unless the default is
    infinite. Integers are accepted for floats, and NumPy scalars for Python's. (pydantic's strict mode also
    refuses the lists and tables that job files consist of.)
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source, handler):
        return _strict(handler(source))


def _strict(schema: Any, infinite: bool = False) -> Any:
    """Make plain values of a pydantic core schema strict; ``infinite`` admits infinite floats, not NaN."""
    if isinstance(schema, list | tuple):
        return type(schema)(_strict(inner, infinite) for inner in schema)
    if not isinstance(schema, dict):
        return schema
    schema_type = schema.get("type")
    if schema_type == "default":
        default = schema.get("default")
        infinite = isinstance(default, float) and math.isinf(default)
    if schema_type not in ("int", "float", "bool", "str"):
        return {
            key: inner if key in _NO_SCHEMA else _strict(inner, infinite) for key, inner in schema.items()
        }
    has_lower, has_upper = {"ge", "gt"} & schema.keys(), {"le", "lt"} & schema.keys()
    strict = schema | {"strict": True}
    if schema_type == "int":
        strict |= ({} if has_lower else {"ge": MIN_INTEGER}) | ({} if has_upper else {"le": MAX_INTEGER})
    elif schema_type == "float":
        strict["allow_inf_nan"] = infinite or schema.get("allow_inf_nan", False)
        if infinite and not has_lower | has_upper:
            strict["ge"] = -math.inf  # any bound refuses NaN
    return core_schema.no_info_before_validator_function(_as_python, strict)


@dataclasses.dataclass(frozen=True)
class Affects:
    """Annotation of a setting of a job.

    Attributes:
        what: what the setting changes: the computed values; only their last ``digits``; how many rounds are
            computed (``length``); which values are evaluated and stored (``selection``); ``speed``; or only
            ``files``, the display and the supervision of the process.
    """

    what: str


_T = TypeVar("_T")
Results = Annotated[_T, Affects("results")]
Digits = Annotated[_T, Affects("digits")]
Length = Annotated[_T, Affects("length")]
Selection = Annotated[_T, Affects("selection")]
Speed = Annotated[_T, Affects("speed")]
Files = Annotated[_T, Affects("files")]


def affecting(model: type[BaseModel], *effects: str) -> list[str]:
    """Return the settings of a record that are declared to affect one of ``effects``: :class:`Affects`."""
    return [
        name
        for name, field in model.model_fields.items()
        if any(isinstance(part, Affects) and part.what in effects for part in field.metadata)
    ]


def is_number(value) -> bool:
    """Return whether a value of a setting is a number; booleans are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _as_python(value):
    return value.item() if isinstance(value, np.generic) else value


def expect_effects(record: Any) -> Any:
    """Return a record of settings after a check that each has an effect with the other settings.

    The class of a record declares in ``needs`` what its settings need. Defaults are always accepted.

    Args:
        record: a section, a method, a problem or a member of a choice.

    Raises:
        ValueError: a setting has no effect.
    """
    fields = settings_of(type(record))
    for name, (condition, holds) in getattr(type(record), "needs", {}).items():
        value = getattr(record, name)
        if name in fields and value != default_of(fields[name]) and not holds(record):
            got = short_repr(as_table(value))
            raise ValueError(
                f"{name} has no effect without {condition}, got {name} = {got}: leave {name} out, or set "
                f"{condition}"
            )
    return record


class Section(Strict, BaseModel):
    """Base class of records of options, such as a job file's section. Frozen; unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: What settings need to have an effect, see :func:`expect_effects`.
    needs: ClassVar[Needs] = {}

    _settings_have_effects = model_validator(mode="after")(expect_effects)


def _validated(cls: Any, **options: Any) -> Any:
    """Make a class a pydantic dataclass that validates strictly and raises a :class:`ConfigError`."""
    cls._settings_have_effects = model_validator(mode="after")(expect_effects)
    cls.__get_pydantic_core_schema__ = vars(Strict)["__get_pydantic_core_schema__"]
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, validate_default=True)
    decorated: Any = dataclass(cls, config=config, **options)
    validate = decorated.__init__

    @functools.wraps(validate)
    def __init__(self, *values, **settings):
        with config_errors(type(self).__name__, {"": decorated}):
            validate(self, *values, **settings)

    decorated.__init__ = __init__
    return decorated


@dataclass_transform(frozen_default=True, field_specifiers=(Field,))
def hyperparameters(cls):
    """Make a class a method or another frozen record of settings."""
    return _validated(cls, frozen=True)


@dataclass_transform(kw_only_default=True, field_specifiers=(Field,))
def problem_settings(cls):
    """Make a class a problem, which is not frozen. Settings are keyword arguments."""
    return _validated(cls, kw_only=True)


def title(instance) -> str:
    """Return the displayed name of a method or a problem, that of its class."""
    return type(instance).__name__


def type_hints(cls: type) -> dict[str, Any]:
    """Return the annotations of a class; none if one of a user-defined class cannot be evaluated."""
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except NameError:
        return {}


def as_table(value):
    """Convert the value of a setting to JSON-able values; an object becomes a table with its name."""
    if callable(table := getattr(value, "table", None)):  # a user-defined object
        return as_table(table())
    if dataclasses.is_dataclass(value):
        settings = {name: as_table(getattr(value, name)) for name in settings_of(type(value))}
        return {"name": getattr(value, "choice_name", None) or title(value), **settings}
    if isinstance(value, dict | BaseModel):
        return {key: as_table(part) for key, part in dict(value).items()}
    return [as_table(part) for part in value] if isinstance(value, list | tuple) else value


def suggest(name: str, options: Iterable[str]) -> str:
    """Return the end of an error message: the options that begin with ``name``, or else the option most
    similar to it, and the list of options.

    A long list is shortened to the most similar options.
    """
    options = sorted(options)
    lower = {option.lower(): option for option in options}
    # Truncated, because comparing a text of a megabyte takes minutes; no option is as long as the limit.
    short = truncate(name).lower()
    begun = [option for option in lower if len(short) >= MIN_PREFIX and option.startswith(short)]
    begun = begun if len(begun) <= MAX_PLACES else []
    close = begun + [option for option in lower if _abbreviates(short, option)]
    close = [*dict.fromkeys(close + difflib.get_close_matches(short, lower, n=MAX_CLOSE))]
    if not options:
        return "(it has no settings)"
    if len(options) > MAX_OPTIONS:
        if not close:
            return "see `mpifed list`"
        options = [*(lower[option] for option in close), "..., see `mpifed list`"]
    names = ", ".join(options)
    likely = " or ".join(repr(lower[option]) for option in begun or close[:1])
    return f"did you mean {likely}? (options: {names})" if likely else f"expected one of {names}"


def _abbreviates(short: str, name: str) -> bool:
    """Whether the words of ``short`` begin those of ``name``, as in val_auc and validation_auc."""
    parts, words = short.split("_"), name.split("_")
    return len(parts) == len(words) > 1 and all(map(str.startswith, words, parts))


def places_of(key: str, known: Mapping[str, Any], section: str = "") -> list[str]:
    """Return the settings called ``key`` as typed on the command line, those of ``section`` first.

    A common name in other packages (:data:`SYNONYMS`) is replaced by the name here.

    Args:
        known: section → its class of settings; "" for the settings outside sections.
    """
    word, direct, nested = SYNONYMS.get(key, key), [], []
    for place in sorted(known, key=lambda name: name != section):
        prefix = f"{place}." if place else ""
        for name, field in settings_of(known[place]).items():
            if name not in known and (name == word or (" " in word and word in (field.description or ""))):
                direct.append(prefix + name)
            if section in ("", place):
                nested += [
                    f'{prefix}{name}={{ name = "{option}", {word} = ... }}'
                    for options in options_in(field.annotation)
                    for option, cls in options.classes.items()
                    if word in settings_of(cls)
                ]
    return nested + direct if section else direct + nested


def settings_of(cls: Any) -> dict[str, FieldInfo]:
    """Return the fields of a class of settings by name, without fixed ones (``init=False``).

    A user's dataclass may lack the fields of pydantic, or have those of its base class only.
    """
    if not dataclasses.is_dataclass(cls):
        return getattr(cls, "model_fields", {})
    complete = vars(cls).get("__pydantic_fields__", {})
    return {
        field.name: complete.get(field.name) or _as_pydantic(field)
        for field in dataclasses.fields(cls)
        if field.init
    }


def _as_pydantic(field: dataclasses.Field) -> FieldInfo:
    default: Any = field.default if isinstance(field.default, FieldInfo) else field
    return FieldInfo.from_annotated_attribute(field.type, default)  # type: ignore[arg-type]


def options_in(annotation: Any) -> Iterable[Options]:
    """Yield the choices by name in an annotation."""
    yield from (part for part in getattr(annotation, "__metadata__", ()) if isinstance(part, Options))
    inner = (annotation.__value__,) if isinstance(annotation, TypeAliasType) else typing.get_args(annotation)
    for part in inner:
        yield from options_in(part)


def _unknown(path: Sequence, what: str, known: Mapping[str, Any]) -> str:
    """Return the message that there is no setting at ``path``, with similar settings and those of this name
    elsewhere. The arguments ``what`` and ``known`` are those of :func:`explain`."""
    *above, key = map(str, path)
    section = above[0] if above else what if what in known else ""
    cls = known[section] if section in known else known[""]
    is_section = isinstance(cls, type) and issubclass(cls, BaseModel)
    owner = (f"[{section}]" if section else "a job file") if is_section else what
    places = [
        f"{place!r}{', outside the sections' if section and '.' not in place else ''}"
        for place in places_of(key, known, section)[:MAX_PLACES]
    ]
    hint = f"did you mean {' or '.join(places)}?" if places else suggest(key, settings_of(cls))
    return f"{owner} has no setting {short_repr(key)}: {hint}"


def join_names(names: Iterable[str]) -> str:
    """Join names by commas for a message. A long list is shortened to its first names."""
    names = list(names)
    if len(names) > MAX_OPTIONS:
        names = [*names[: MAX_OPTIONS // 3], "... (see `mpifed list`)"]
    return ", ".join(names)


def build(cls: type, settings: dict[str, Any], what: str, known: Mapping[str, Any] = MappingProxyType({})):
    """Create an instance of the dataclass ``cls`` from a table of a job file.

    Args:
        what: description of the table in messages.
        known: section → class, where unknown settings are searched.

    Raises:
        ConfigError: a key is unknown or missing, or a value is wrong; one line per error.
    """
    if not dataclasses.is_dataclass(cls):
        raise ConfigError(
            f"{cls.__name__} must be a dataclass whose fields are its settings: decorate it with @dataclass, "
            "or with @mpifed.hyperparameters (@mpifed.problem_settings), which validates the settings"
        )
    known, names = known or {"": cls}, settings_of(cls)
    # The dataclasses of users ignore unknown names.
    if unknown := [{"type": "extra_forbidden", "loc": (key,)} for key in settings if key not in names]:
        raise ConfigError(explain(unknown, what, known))
    with config_errors(what, known):
        return _validator(cls).validate_python(settings)


@functools.cache
def _validator(cls: type) -> TypeAdapter:
    """Return the strict validator of a class. Cached, because creating one takes milliseconds."""
    return TypeAdapter(Annotated[cls, Strict])  # type: ignore[arg-type]


def sections_of(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Return the fields of a model that hold a record of options, as name → record."""
    return {
        name: annotation
        for name, field in model.model_fields.items()
        for annotation in (field.annotation, *typing.get_args(field.annotation))
        if isinstance(annotation, type) and issubclass(annotation, BaseModel)
    }


def _as_text(value: Any) -> Any:
    return expand_home(value) if isinstance(value, str | os.PathLike) else value


def _folder(text: str) -> str:
    if not text.strip():
        raise ValueError(f"expected the name of a folder, got {short_repr(text)}: is a shell variable unset?")
    if "\0" in text:
        raise ValueError(f"expected the name of a folder without NUL characters, got {short_repr(text)}")
    return text


#: Annotation of a setting that is a path: a text or a ``pathlib.Path``. Its value is a text.
UserPath = Annotated[str, BeforeValidator(_as_text)]
#: Annotation of a setting that is the path of a folder.
FolderPath = Annotated[UserPath, AfterValidator(_folder)]
#: Annotation of a setting that is the path of a folder to write to.
OutputFolder = Annotated[FolderPath, AfterValidator(expect_output_folder)]


@contextlib.contextmanager
def config_errors(what: str, known: Mapping[str, Any]) -> Iterator[None]:
    """A context in which an error of validation becomes a :class:`ConfigError` with the text of
    :func:`explain`."""
    try:
        yield
    except ValidationError as error:
        raise ConfigError(explain(error.errors(), what, known)) from None


def explain(errors: list, what: str, known: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Return one line per validation error: the setting, the expected and the given value.

    Unknown settings come first. An error raised by user code is followed by the lines of that code.

    Args:
        errors: errors as pydantic lists them.
        what: prefix of the names of the settings, such as "problem"; may be empty.
        known: section → its class of settings, where unknown settings are searched; the settings are those of
            ``what``, or else of "".
    """

    def counts_invalid_items(error) -> bool:
        inside = (other["loc"][: len(error["loc"])] == error["loc"] for other in errors if other is not error)
        return error["type"] == "too_short" and any(inside)

    unknown = [error["loc"] for error in errors if known and error["type"] in _UNKNOWN]
    rest = [error for error in errors if not (known and error["type"] in _UNKNOWN)]
    lines = [
        join_lines(unknown, lambda path: _unknown(path, what, known)),
        join_lines(
            [error for error in rest if not counts_invalid_items(error)],
            lambda error: _sentence(error, what, known),
        ),
    ]
    cls: Any = known.get(what, known.get(""))
    is_builtin = dataclasses.is_dataclass(cls) and cls.__module__.startswith("mpifed.")
    if is_builtin and any(error["type"] in _MISSING for error in errors):
        lines.append(f"`mpifed info {getattr(cls, 'choice_name', cls.__name__)}` explains it")
    return "\n".join(filter(None, lines))


def _sentence(error, what: str, known: Mapping[str, Any]) -> str:
    path = [truncate(str(part)) for part in error["loc"] if not str(part).startswith(("function-", "tuple["))]
    where = ".".join([what, *path] if what else path)
    message = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    # pydantic's names of types, in the words of TOML
    message = message.replace("valid tuple", "list").replace("Tuple", "List")
    message = message.replace(" after validation, not 0", "")
    message = message.partition("valid dictionary")[0] + "table" if "valid dictionary" in message else message
    if error["type"] in _MISSING:
        return f"{where} is missing: it has no default"
    if error["type"] == "unexpected_positional_argument":
        names, value = settings_of(known[""]), short_repr(error["input"])
        return f"{what} has {len(names)} settings ({', '.join(names)}), got another value, {value}"
    if error["type"] not in {"value_error", "assertion_error"}:
        return f"{where}: {message}, got {short_repr(error['input'])}{_hint(error)}"
    raised = error.get("ctx", {}).get("error")
    frames = user_frames(raised) if isinstance(raised, Exception) else ""
    return "\n".join(filter(None, [f"{where}: {message}" if where else message, frames]))


def _finite(value: str | float) -> float | None:
    """Return a number, or the number in a text, as a float; ``None`` if it is not finite or no number."""
    try:
        number = float(value)
    except (OverflowError, ValueError):  # an integer beyond all floats, or a text without a number
        return None
    return number if math.isfinite(number) else None


def _hint(error) -> str:
    """Return ": write 3" for a number that was given as text, or for an integer given as a float, and
    ': write ["x"]' for a list that was given as text; else ""."""
    value, error_type = error["input"], error["type"]
    if error_type == "tuple_type" and isinstance(value, str):
        parts = [part.strip() for part in value.strip("[]").split(",")]
        parts = [part if _finite(part) is not None else json.dumps(part) for part in parts]
        return f": write [{', '.join(parts)}]"
    if error_type not in ("int_type", "float_type") or not isinstance(value, str | float):
        return ""
    number = _finite(value)
    if number is None:
        return ""
    if number.is_integer() and abs(number) < 2**53:
        return f": write {int(number)}"
    return f": write {number!r}" if error_type == "float_type" else ""


def flatten(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a table of tables: ``{"a": {"b": 1}}`` becomes ``{"a.b": 1}``."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


@dataclasses.dataclass(frozen=True, eq=False)
class Options:
    """Pydantic annotation of a setting that is chosen by name: validates the value and describes its schema.

    Attributes:
        noun: the word for a value in messages, such as "model".
        classes: name → class of settings.
        user: subclass of ``base.plugins.UserObject`` if user-defined objects are also accepted.
        names: accepted names without settings; they remain texts.
        number: class to which a plain number >= 0 is passed; ``None`` if numbers are not accepted.
        title: description of the values in lists of settings; ``noun`` if empty.
    """

    noun: str
    classes: Mapping[str, Any]
    user: Any = None
    names: Collection[str] = ()
    number: type | None = None
    title: str = ""

    def __call__(self, value):
        if self.user is not None and (custom := self.user.from_value(value, self.noun)) is not None:
            return custom
        if isinstance(value, tuple(self.classes.values())):
            return value
        value = _as_python(value)
        if self.number and is_number(value):
            number = _finite(value)
            if number is None or number < 0:
                raise ValueError(f"expected a finite number >= 0 or a {self.noun}, got {short_repr(value)}")
            return self.number(number)
        settings = dict(value) if isinstance(value, dict) else {"name": value}
        name = settings.pop("name", None)
        if isinstance(name, str) and name in self.classes:
            return build(self.classes[name], settings, f"{self.noun} {name!r}")
        if isinstance(name, str) and name in self.names:
            if settings:
                raise ValueError(f"{self.noun} {name!r} has no settings, got {short_repr(settings)}")
            return name
        message = f"unknown {self.noun} {short_repr(name)}"
        if name is None or not isinstance(value, str | dict):
            numbers = "a number, " if self.number else ""
            message = (
                f"expected {numbers}the name of a {self.noun} or a table with a name, got {short_repr(value)}"
            )
        if self.number and isinstance(value, str) and (number := _finite(value)) is not None:
            raise ValueError(f"expected a number or a {self.noun}, got {short_repr(value)}: write {number:g}")
        name = name if isinstance(name, str) else ""
        options = self._tables_with_path(name) or suggest(name, [*self.names, *self.classes])
        user = f'; user-defined: "./file.py:Name", {self.user.expected}' if self.user else ""
        raise ValueError(f"{message}: {options}{user}")

    def _tables_with_path(self, name: str) -> str:
        """Return the end of an error message, the tables for a file or folder; "" if ``name`` is no path."""
        tables = [
            f'{{ name = "{option}", {setting} = {short_repr(name)} }}'
            for option, cls in self.classes.items()
            for setting in ("file", "path")
            if setting in settings_of(cls) and {*"./"} & {*name}
        ]
        return f"for a file or folder write {' or '.join(tables)}" if tables else ""

    def __get_pydantic_core_schema__(self, source, handler):
        serializer = core_schema.plain_serializer_function_ser_schema(as_table)
        return core_schema.no_info_plain_validator_function(self, serialization=serializer)

    def __get_pydantic_json_schema__(self, schema, handler) -> dict[str, Any]:
        tables = [_named_table(name, cls, handler) for name, cls in self.classes.items()]
        options = [{"enum": [*self.names, *self.classes]}, *tables, *(USER_DEFINED if self.user else ())]
        number = [{"type": "number", "minimum": 0}] if self.number else []
        return {"title": self.title or self.noun, "anyOf": [*number, *options]}


def choice(noun: str, classes: Mapping[str, Any], *details: Any, **options: Any) -> Any:
    """Return the annotation of a setting that takes one of ``classes`` by name, by table or as an instance.

    The arguments are those of :class:`Options`.
    """
    for name, cls in classes.items():
        cls.choice_name = name
    annotation = Annotated[Any, Options(noun, classes, *details, **options)]
    return TypeAliasType(noun.title().replace(" ", ""), annotation)


#: JSON schemas of the name of a user-defined object, and of a table with one.
USER_DEFINED: tuple[dict[str, Any], ...] = (
    {"type": "string", "pattern": ":"},
    {"type": "object", "properties": {"name": {"type": "string", "pattern": ":"}}, "required": ["name"]},
)


def _named_table(name: str, cls: Any, handler) -> dict[str, Any]:
    """Return the JSON schema of a table that names a class of settings.

    Args:
        handler: pydantic's function from a core schema to a JSON schema.
    """
    table = handler.resolve_ref_schema(handler(_validator(cls).core_schema))
    properties = {key: value for key, value in table["properties"].items() if key in settings_of(cls)}
    return {
        "type": "object",
        "title": name,
        "description": (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " "),
        "properties": {"name": {"enum": [name]}, **properties},
        "required": ["name"],
        "additionalProperties": False,
    }


class _Generator(GenerateJsonSchema):
    """pydantic's generator, without generated titles and without errors for types that have no schema."""

    def field_title_should_be_set(self, schema) -> bool:
        return False

    def handle_invalid_for_json_schema(self, schema, error_info):
        return {}

    def encode_default(self, dft: Any) -> Any:
        return as_table(dft)


def json_schema(cls: Any) -> dict[str, Any]:
    """Return the JSON schema of a section of a job file or of a class of settings."""
    return _validator(cls).json_schema(schema_generator=_Generator)


def default_of(field: dataclasses.Field | FieldInfo):
    """Return the default of a field of a dataclass or of a pydantic model; MISSING if it is required."""
    info = field.default if isinstance(field, dataclasses.Field) else field
    if isinstance(info, FieldInfo):
        return dataclasses.MISSING if info.is_required() else info.get_default(call_default_factory=True)
    factory: Any = field.default_factory
    return info if factory is dataclasses.MISSING else factory()
