"""Additive gradient noise, an option of every problem (``[oracle] noise = { name = "gaussian", scale = 0.1 }``).

The noise belongs to the sample ξ: evaluating the same ξ at two points adds the same vector to both gradients, as in
∇f(z; ξ) = ∇f(z) + ξ, so recursive estimators see the difference of exact gradients.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from mpifed.options import choice, hyperparameters
from mpifed.streams import Stream

__all__ = ["Gaussian", "NOISES", "Noise"]


@hyperparameters
class Gaussian:
    """Independent normal noise of standard deviation ``scale`` in every coordinate."""

    scale: float = Field(gt=0, description="standard deviation of every coordinate")

    def __call__(self, stream: Stream, size: int) -> np.ndarray:
        return self.scale * stream.normal(size)


NOISES = {"gaussian": Gaussian}

#: A noise by table or instance.
Noise = choice("noise", NOISES)
