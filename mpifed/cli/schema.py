"""Settings as described by pydantic's JSON schema: rows of tables, and the JSON schema of job files.

``mpifed schema`` prints the schema of job files as draft 4, the version that TOML editors support. No setting
is required in it, because a [sweep] may provide settings that the sections omit.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, Field, PydanticUserError, create_model

from mpifed.algorithms import ALGORITHMS
from mpifed.base.settings import Options, as_table, default_of, json_schema
from mpifed.config.job import Config
from mpifed.config.tables import to_toml
from mpifed.config.tuning import Tune
from mpifed.problems import PROBLEMS

__all__ = ["Row", "job_schema", "rows_of", "toml"]

_TYPES = {"boolean": "true, false", "integer": "whole number", "number": "number", "string": "text"}
#: Keyword of a bound → its sign, its keyword in draft 4, and whether it is exclusive.
_BOUNDS = {
    "minimum": ("≥", "minimum", False),
    "ge": ("≥", "minimum", False),
    "exclusiveMinimum": (">", "minimum", True),
    "gt": (">", "minimum", True),
    "maximum": ("≤", "maximum", False),
    "le": ("≤", "maximum", False),
    "exclusiveMaximum": ("<", "maximum", True),
    "lt": ("<", "maximum", True),
}
#: Values of a step size that a theorem prescribes.
_THEOREM = (
    {"enum": ["theorem"]},
    {"type": "object", "properties": {"name": {"enum": ["theorem"]}}, "required": ["name"]},
)


class Row(NamedTuple):
    """A setting with its values, default and effect in words."""

    name: str
    values: str
    default: str
    effect: str


def rows_of(cls, names: Sequence[str] | None = None) -> list[Row]:
    """Return the settings of a section or a class.

    Args:
        names: names of settings of a section; by default all.
    """
    if isinstance(cls, type) and issubclass(cls, BaseModel):
        fields = {name: default_of(cls.model_fields[name]) for name in names or cls.model_fields}
    else:
        fields = {field.name: default_of(field) for field in dataclasses.fields(cls) if field.init}
    try:
        schema = json_schema(cls)
    except (PydanticUserError, NameError):  # annotations of a user-defined class cannot be evaluated
        schema = {}
    rows = []
    for name, default in fields.items():
        field = schema.get("properties", {}).get(name, {})
        values = _values(field, schema.get("$defs", {}))
        rows.append(Row(name, values, _default(default), field.get("description", "")))
    return rows


def _values(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    """Describe the values that a JSON schema accepts; "" if it accepts all values."""
    options = [option for option in schema.get("anyOf", ()) if option.get("type") != "null"]
    if "$ref" in schema and "title" not in schema:
        return _values(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "title" in schema:
        words = schema["title"]
    elif options:
        words = " or ".join(filter(None, (_values(option, definitions) for option in options)))
    elif "enum" in schema or "const" in schema:
        words = ", ".join(f'"{option}"' for option in schema.get("enum", [schema.get("const")]))
    elif schema.get("type") == "array":
        items = _values(schema.get("items", {}), definitions)
        words = f"list of: {items}" if items else "list"
    elif schema.get("type") == "object":
        words = "table"
    else:
        words = _TYPES.get(schema.get("type", ""), "")
    places = [schema, *options] if "title" in schema else [schema]
    bounds = [
        f"{sign} {place[key]:.9g}"
        for place in places
        for key, (sign, _, _) in _BOUNDS.items()
        if _is_bound(place.get(key))
    ]
    return ", ".join(filter(None, [words, *bounds]))


def _is_bound(value) -> bool:
    """Return whether a bound is narrower than the range of 64-bit integers."""
    return isinstance(value, int | float) and -(2**63) < value < 2**63 - 1


def _default(default) -> str:
    return "required" if default is dataclasses.MISSING else toml(as_table(default))


def toml(value) -> str:
    """Format a value as in a job file, a constant schedule as its number."""
    if isinstance(value, dict) and value.get("name") == "constant":
        value = value["value"]
    return "unset" if value is None else to_toml(value)


def job_schema() -> dict[str, Any]:
    """Return the JSON schema of job files as JSON-able values."""
    any_table = dict[str, Any]
    job = create_model(
        "JobFile",
        __base__=Config,
        algorithm=(Annotated[Any, Options("method", ALGORITHMS, user=True)], None),
        problem=(Annotated[Any, Options("problem", PROBLEMS, user=True)], None),
        tune=(Tune, None),
        sweep=(any_table | list[any_table], Field(None, description="lists of settings")),
    )
    schema = json_schema(job)
    for table in schema["properties"]["algorithm"]["anyOf"]:  # a theorem can determine any numeric setting
        for key, value in table.get("properties", {}).items():
            if key != "name" and "number" in _values(value, schema["$defs"]).lower():
                table["properties"][key] = {"description": value["description"], "anyOf": [value, *_THEOREM]}
    return {"$schema": "http://json-schema.org/draft-04/schema#"} | _draft_4(schema)


def _draft_4(node):
    """Convert a JSON schema to draft 4, without null, which TOML lacks, and without required settings."""
    if isinstance(node, list):
        return [_draft_4(item) for item in node if item != {"type": "null"}]
    if not isinstance(node, dict):
        return node
    table = {}
    for key, value in node.items():
        if key in _BOUNDS and isinstance(value, int | float):
            _, bound, exclusive = _BOUNDS[key]
            table |= {bound: value} | ({f"exclusive{bound.title()}": True} if exclusive else {})
        elif key not in ("required", "default") or isinstance(value, dict) or _is_kept(key, value):
            table[key] = _draft_4(value)
    return table


def _is_kept(key: str, value) -> bool:
    if key == "required":
        return value == ["name"]
    return value is not None and not (isinstance(value, float) and math.isinf(value))
