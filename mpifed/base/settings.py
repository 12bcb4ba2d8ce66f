"""Settings: records of options, choices by name, and their JSON schemas.

A record of options is a :class:`Section` with pydantic fields. A method, a problem or a member of a choice is
a pydantic dataclass. :func:`choice` turns a dictionary ``{name: frozen dataclass}`` into an annotation. The
setting then accepts a name, ``matrix = "adam"``, a table with a name, ``{ name = "adam", rho = 0.01 }``,
or an instance. Lists of settings, the settings page and ``mpifed schema`` are derived from
:func:`json_schema`.
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
    "default_of",
    "explain",
    "explain_record",
    "file_name",
    "first",
    "flatten",
    "hyperparameters",
    "json_schema",
    "preset_of",
    "problem_settings",
    "sections_of",
    "suggest",
    "title",
]

#: pydantic's types of the error that a required setting is missing.
_MISSING = {"missing", "missing_argument"}
#: Maximum number of options that a message lists in full, and number that it lists otherwise.
MANY, SHOWN = 30, 5
#: Range of integers without bounds of their own: 64 bits.
LEAST, MOST = -(2**63), 2**63 - 1
#: Keys of a core schema whose values contain no schemas.
_NO_SCHEMA = {"cls", "config", "default", "metadata", "ref", "serialization"}


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
        return type(schema)(_strict(part, infinite) for part in schema)
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if kind == "default":
        default = schema.get("default")
        infinite = isinstance(default, float) and math.isinf(default)
    if kind not in ("int", "float", "bool", "str"):
        return {key: part if key in _NO_SCHEMA else _strict(part, infinite) for key, part in schema.items()}
    below, above = {"ge", "gt"} & schema.keys(), {"le", "lt"} & schema.keys()
    strict = schema | {"strict": True}
    if kind == "int":
        strict |= ({} if below else {"ge": LEAST}) | ({} if above else {"le": MOST})
    elif kind == "float":
        strict["allow_inf_nan"] = infinite or schema.get("allow_inf_nan", False)
        if infinite and not below | above:
            strict["ge"] = -math.inf  # any bound refuses NaN
    return core_schema.no_info_before_validator_function(_as_python, strict)


def _as_python(value):
    return value.item() if isinstance(value, np.generic) else value


class Section(Strict, BaseModel):
    """Base class of records of options, such as a job file's section. Frozen; unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _with_config_errors(decorate: Callable[[type], type]) -> Callable[[type], type]:
    """Extend a decorator: its classes are strict and raise a :class:`ConfigError`, one line per error."""

    def decorator(cls: type) -> type:
        cls.__get_pydantic_core_schema__ = vars(Strict)["__get_pydantic_core_schema__"]  # type: ignore[attr-defined]
        made: Any = decorate(cls)
        validate = made.__init__

        @functools.wraps(validate)
        def __init__(self, *values, **settings):
            try:
                validate(self, *values, **settings)
            except ValidationError as error:
                text = explain(error.errors(), type(self).__name__, _names(made))
                raise ConfigError(text) from None

        made.__init__ = __init__
        return made

    return decorator


if TYPE_CHECKING:  # a type checker knows pydantic's dataclasses
    from pydantic.dataclasses import dataclass as hyperparameters
    from pydantic.dataclasses import dataclass as problem_settings
else:
    _CONFIG = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    #: Decorator of a method or of another frozen record of settings.
    hyperparameters = _with_config_errors(_dataclass(frozen=True, config=_CONFIG))

    #: Decorator of a problem. Settings are keyword arguments, and the problem may set further attributes.
    problem_settings = _with_config_errors(_dataclass(kw_only=True, config=_CONFIG))


class Preset:
    """A class of settings under another name, with some settings fixed.

    Calling a preset creates an instance of ``cls``. Its fields are the settings that are not fixed. All other
    attributes are those of the class.
    """

    #: All presets, in the order of their creation.
    made: ClassVar[list[Preset]] = []

    def __init__(self, name: str, cls: Any, doc: str, **fixed: Any):
        self.cls, self.fixed = cls, fixed
        self.__name__ = self.__qualname__ = name
        self.__doc__, self.__module__ = doc, cls.__module__
        Preset.made.append(self)

    def __call__(self, **settings):
        return build(self, settings, self.__name__)

    def __getattr__(self, name: str):
        if name == "cls":  # not set yet while the preset is copied
            raise AttributeError(name)
        return getattr(self.cls, name)

    def __repr__(self) -> str:
        return self.__name__

    @property
    def __dataclass_fields__(self) -> dict[str, dataclasses.Field]:
        fields = self.cls.__dataclass_fields__
        return {name: field for name, field in fields.items() if name not in self.fixed}

    @property
    def __signature__(self) -> inspect.Signature:
        signature = inspect.signature(self.cls)
        free = [one for name, one in signature.parameters.items() if name not in self.fixed]
        return signature.replace(parameters=[one.replace(kind=one.KEYWORD_ONLY) for one in free])

    def matches(self, instance: Any) -> bool:
        """Return whether the preset can create this instance."""
        if type(instance) is not self.cls:
            return False
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # they were shown when the instance was created
                made = dataclasses.replace(instance, **self.fixed)
        except ValueError:  # the fixed settings do not fit the others
            return False
        return all(getattr(made, name) == getattr(instance, name) for name in self.fixed)


def preset_of(instance) -> Preset | None:
    """Return the first preset that can create this instance; ``None`` if there is none."""
    return next((preset for preset in Preset.made if preset.matches(instance)), None)


def title(instance) -> str:
    """Return the name by which a method or a problem is shown: that of its preset or of its class."""
    return (preset_of(instance) or type(instance)).__name__


def as_table(value):
    """Convert the value of a setting to JSON-able values; an object becomes a table with its name."""
    if callable(table := getattr(value, "table", None)):  # a user-defined object
        return as_table(table())
    if dataclasses.is_dataclass(value):
        settings = {name: as_table(getattr(value, name)) for name in _names(preset_of(value) or value)}
        return {"name": getattr(value, "choice_name", None) or title(value), **settings}
    if isinstance(value, dict | BaseModel):
        return {key: as_table(part) for key, part in dict(value).items()}
    return [as_table(part) for part in value] if isinstance(value, list | tuple) else value


def _names(cls) -> list[str]:
    return [field.name for field in dataclasses.fields(cls) if field.init]


def suggest(name: str, options: Iterable[str]) -> str:
    """Return the end of an error message: the closest option, and the options; of many only the closest."""
    options = sorted(options)
    lower = {option.lower(): option for option in options}
    # Truncated, because comparing a text of a megabyte takes minutes; no option is as long as the limit.
    close = difflib.get_close_matches(truncate(name).lower(), lower, n=SHOWN)
    hint = f"did you mean {lower[close[0]]!r}? " if close else ""
    if len(options) > MANY:
        return f"{hint}(options: {', '.join([*(lower[one] for one in close), '...'])}, see `mpifed list`)"
    return f"{hint}(options: {', '.join(options)})" if options else "(it has no settings)"


def first(names: Iterable[str]) -> str:
    """Return names as a list for a message; of many the first."""
    names = list(names)
    return ", ".join(names if len(names) <= MANY else [*names[: MANY // 3], "... (see `mpifed list`)"])


def build(cls: type | Preset, settings: dict[str, Any], what: str):
    """Create an instance of the dataclass or preset ``cls`` from a table of a job file.

    Args:
        what: description of the table in messages.

    Raises:
        ConfigError: a key is unknown or missing, or a value is wrong; one line per error.
    """
    if not dataclasses.is_dataclass(cls):
        raise ConfigError(f"{cls.__name__} must be a dataclass whose fields are its settings")
    known = _names(cls)
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
        errors = error.errors()
        lacks = any(one["type"] in _MISSING for one in errors) and kind.__module__.startswith("mpifed.")
        hint = f"\n`mpifed info {getattr(kind, 'choice_name', cls.__name__)}` explains it" if lacks else ""
        raise ConfigError(explain(errors, what) + hint) from None


@functools.cache
def _validator(kind: type) -> TypeAdapter:
    """Return the strict validator of a class. Cached, because creating one takes milliseconds."""
    return TypeAdapter(Annotated[kind, Strict])  # type: ignore[arg-type]


def sections_of(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Return the fields of a model that hold a record of options, as name → record."""
    return {
        name: one
        for name, field in model.model_fields.items()
        for one in (field.annotation, *typing.get_args(field.annotation))
        if isinstance(one, type) and issubclass(one, BaseModel)
    }


def explain_record(errors: list, model: type[BaseModel], settings: Mapping[str, Any]) -> str:
    """Return the validation errors of a record of sections, one line each, with suggestions.

    Args:
        errors: errors as pydantic lists them.
        settings: the values that were validated.
    """
    sections = sections_of(model)
    known: dict[str, Iterable[str]] = {name: section.model_fields for name, section in sections.items()}
    known |= {name: vars(part) for name, part in settings.items() if dataclasses.is_dataclass(part)}
    unknown = [error["loc"] for error in errors if error["type"] == "extra_forbidden"]
    rest = [error for error in errors if error["type"] != "extra_forbidden"]

    def sentence(place: tuple) -> str:
        *path, key = map(str, place)
        name = short_repr(key)
        elsewhere = [f"{section}.{key}" for section, names in known.items() if key in names]
        if elsewhere and not path:
            return f"a job file has no setting {name} outside its sections: did you mean {elsewhere[0]!r}?"
        here = sections[path[0]].model_fields if path and path[0] in sections else model.model_fields
        where = f"[{path[0]}]" if path else "a job file"
        return f"{where} has no setting {name}: {suggest(key, here)}"

    return "\n".join(filter(None, [join_lines(unknown, sentence), explain(rest, "")]))


def file_name(text: str) -> str:
    """Validate the name of a file or folder."""
    if not text.strip():
        raise ValueError(f"expected the name of a folder, got {short_repr(text)}: is a shell variable unset?")
    if "\0" in text:
        raise ValueError(f"the name of a folder has no NUL character, got {short_repr(text)}")
    return text


def explain(errors: list, what: str, known: Iterable[str] = ()) -> str:
    """Return validation errors, one line each: where, what was expected, and what was found.

    An error that user code has raised is followed by its traceback in that code.

    Args:
        errors: errors as pydantic lists them.
        what: description of the validated object, which precedes the names of its parts; may be empty.
        known: the available settings, from which unknown ones are suggested.
    """
    return join_lines(errors, lambda error: _sentence(error, what, known))


def _sentence(error, what: str, known: Iterable[str]) -> str:
    path = [truncate(str(part)) for part in error["loc"] if not str(part).startswith(("function-", "tuple["))]
    where = ".".join([what, *path] if what else path)
    message = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if error["type"] in _MISSING:
        return f"{where} is missing: it has no default"
    if error["type"] == "unexpected_keyword_argument":
        return f"{what} has no setting {short_repr(error['loc'][-1])}: {suggest(path[-1], known)}"
    if error["type"] == "unexpected_positional_argument":
        return f"{what} got one value too many, {short_repr(error['input'])}: {suggest('', known)}"
    if error["type"] not in {"value_error", "assertion_error"}:
        return f"{where}: {message}, got {short_repr(error['input'])}{_hint(error)}"
    raised = error.get("ctx", {}).get("error")
    frames = user_frames(raised) if isinstance(raised, Exception) else ""
    return "\n".join(filter(None, [f"{where}: {message}" if where else message, frames]))


def _hint(error) -> str:
    """Return the spelling of a number that was written as a text, or of an integer written as a float."""
    value, kind = error["input"], error["type"]
    if kind not in ("int_type", "float_type") or not isinstance(value, str | float):
        return ""
    try:
        number = float(value)
    except ValueError:
        return ""
    if number.is_integer() and abs(number) < 2**53:
        return f": write {int(number)}"
    return f": write {number!r}" if kind == "float_type" and math.isfinite(number) else ""


def flatten(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten a table of tables: ``{"a": {"b": 1}}`` becomes ``{"a.b": 1}``."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


@dataclasses.dataclass(frozen=True, eq=False)
class Options:
    """The values of a setting that is chosen by name: pydantic annotation that validates and describes them.

    Attributes:
        kind: description of a value in messages.
        classes: name → class of settings, or preset.
        user: type of the user-defined objects that are also accepted (see ``base.plugins``), as
            ``"./file.py:Name"`` or as an object.
        names: accepted names without settings; they remain texts.
        number: class to which a plain number >= 0 is passed; ``None`` if numbers are not accepted.
        title: description of the values in lists of settings; ``kind`` if empty.
    """

    kind: str
    classes: Mapping[str, Any]
    user: Any = None
    names: Collection[str] = ()
    number: type | None = None
    title: str = ""

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
            wrong = f"expected the name of a {self.kind} or a table with a name, got {short_repr(value)}"
        near = suggest(name if isinstance(name, str) else "", [*self.names, *self.classes])
        user = f'; user-defined: "./file.py:Name", {self.user.kind}' if self.user else ""
        raise ValueError(f"{wrong}: {near}{user}")

    def __get_pydantic_core_schema__(self, source, handler):
        serializer = core_schema.plain_serializer_function_ser_schema(as_table)
        return core_schema.no_info_plain_validator_function(self, serialization=serializer)

    def __get_pydantic_json_schema__(self, schema, handler) -> dict[str, Any]:
        tables = [_named_table(name, cls, handler) for name, cls in self.classes.items()]
        options = [{"enum": [*self.names, *self.classes]}, *tables, *(USER_DEFINED if self.user else ())]
        number = [{"type": "number", "minimum": 0}] if self.number else []
        return {"title": self.title or self.kind, "anyOf": [*number, *options]}


def choice(kind: str, classes: Mapping[str, Any], *details: Any, **options: Any) -> Any:
    """Return the annotation of a setting that takes one of ``classes`` by name, by table or as an instance.

    The arguments are those of :class:`Options`.
    """
    for name, cls in classes.items():
        cls.choice_name = name
    annotation = Annotated[Any, Options(kind, classes, *details, **options)]
    return TypeAliasType(kind.title().replace(" ", ""), annotation)


#: JSON schemas of the name of a user-defined object, and of a table with one.
USER_DEFINED: tuple[dict[str, Any], ...] = (
    {"type": "string", "pattern": ":"},
    {"type": "object", "properties": {"name": {"type": "string", "pattern": ":"}}, "required": ["name"]},
)


def _named_table(name: str, cls: Any, handler) -> dict[str, Any]:
    """Return the JSON schema of a table that names a class of settings or a preset.

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
    """pydantic's generator, without generated titles and without errors for types that have no schema."""

    def field_title_should_be_set(self, schema) -> bool:
        return False

    def handle_invalid_for_json_schema(self, schema, error_info):
        return {}

    def encode_default(self, dft: Any) -> Any:
        return as_table(dft)


def json_schema(cls: Any) -> dict[str, Any]:
    """Return the JSON schema of a section of a job file or of a class of settings."""
    return _validator(getattr(cls, "cls", cls)).json_schema(schema_generator=_Generator)


def _finite(value: float, kind: str) -> float:
    try:
        number = float(value)
    except OverflowError:  # an integer beyond all floats
        number = math.inf
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"expected a finite number >= 0 or a {kind}, got {short_repr(value)}")
    return number


def default_of(field: dataclasses.Field | FieldInfo):
    """Return the default of a field of a dataclass or of a pydantic model; MISSING if it is required."""
    info = field.default if isinstance(field, dataclasses.Field) else field
    if isinstance(info, FieldInfo):
        return dataclasses.MISSING if info.is_required() else info.get_default(call_default_factory=True)
    factory: Any = field.default_factory
    return info if factory is dataclasses.MISSING else factory()
