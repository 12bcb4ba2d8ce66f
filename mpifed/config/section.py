"""What sections of a job file have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from mpifed.core.strict import Strict

__all__ = ["Section"]


class Section(Strict, BaseModel):
    """A section of a job file: its fields are its settings, and no others."""

    model_config = ConfigDict(extra="forbid", frozen=True)
