"""Settings of exactly their types: no text for a number, no number for yes or no, nothing infinite unasked.

Pydantic by itself reads ``"3"`` and ``true`` as integers. Its strict mode would also refuse the lists and
tables that job files are made of. So only the plain values are strict: integers, numbers, truth values and
texts. Integers stand for numbers, and NumPy's scalars for Python's.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from pydantic_core import core_schema

__all__ = ["Strict", "strict"]

#: Integers lie in 64 bits where a setting does not say otherwise: nothing here counts further.
LEAST, MOST = -(2**63), 2**63 - 1
#: What of a schema says nothing of the values of settings, or is a value itself.
_ASIDE = {"cls", "config", "default", "metadata", "ref", "serialization"}


class Strict:
    """The mark of an annotation whose plain values are strict: ``Annotated[kind, Strict]``."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source, handler):
        return strict(handler(source))


def strict(schema: Any, infinite: bool = False) -> Any:
    """A schema of pydantic with all plain values in it strict.

    Numbers are finite. A setting that is infinite by default may be infinite, too, but not NaN.
    """
    if isinstance(schema, list | tuple):
        return type(schema)(strict(one, infinite) for one in schema)
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if kind == "default":
        default = schema.get("default")
        infinite = isinstance(default, float) and math.isinf(default)
    if isinstance(kind, str) and kind in _PLAIN:
        return core_schema.no_info_before_validator_function(_as_python, _PLAIN[kind](schema, infinite))
    return {key: value if key in _ASIDE else strict(value, infinite) for key, value in schema.items()}


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
