"""What sections of a job file have in common."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

from mpifed.core.strict import Strict
from mpifed.core.units import GRADIENT_RATE, RATE, TIME, plain

__all__ = ["IN_SECONDS", "BytesPerSecond", "GradientsPerSecond", "Seconds", "Section"]

#: Before a number: a text with a unit becomes one.
IN_SECONDS, IN_BYTES_A_SECOND, IN_GRADIENTS_A_SECOND = (
    BeforeValidator(partial(plain, kind=kind)) for kind in (TIME, RATE, GRADIENT_RATE)
)
Seconds = Annotated[float, IN_SECONDS]
BytesPerSecond = Annotated[float, IN_BYTES_A_SECOND]
GradientsPerSecond = Annotated[float, IN_GRADIENTS_A_SECOND]


class Section(Strict, BaseModel):
    """A section of a job file: its fields are its settings, and no others."""

    model_config = ConfigDict(extra="forbid", frozen=True)
