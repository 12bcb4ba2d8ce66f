"""Sections of a job that belong to the simulation, in addition to ``[run]``."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from mpifed.base.settings import Needs, Section
from mpifed.base.units import BytesPerSecond, GradientsPerSecond, Seconds

__all__ = ["Clock", "Personalize", "Regularize", "StationarityOptions"]


class Clock(Section):
    """[clock]: speed and network of federated clients, for the simulated wall time of a run."""

    bandwidth_down: BytesPerSecond = Field(gt=0, description="bandwidth from the server to a client")
    bandwidth_up: BytesPerSecond = Field(gt=0, description="bandwidth from a client to the server")
    gradients_per_second: GradientsPerSecond = Field(
        gt=0, description="oracle calls per second of the median client"
    )
    latency: Seconds = Field(
        0.0, ge=0, description="one-way latency of a message; a phase consists of two messages"
    )
    stragglers: float = Field(
        0.0,
        ge=0,
        le=100,
        description="σ of the lognormal factor on a client's computation time, sampled once per client",
    )
    jitter: float = Field(
        0.0,
        ge=0,
        le=100,
        description="σ of the lognormal factor on a client's computation time, sampled in every phase",
    )
    dropout: float = Field(
        0.0, ge=0, lt=1, description="probability that an attempt of a client in a phase is lost and repeated"
    )
    timeout: Seconds | None = Field(
        None,
        gt=0,
        description="time after which the server repeats an attempt, and considers a silent client as "
        "dropped out; required with dropout",
    )
    server_seconds: Seconds = Field(0.0, ge=0, description="time of the server after each phase")

    @model_validator(mode="after")
    def _timeout_with_dropout(self):
        if self.dropout and self.timeout is None:
            raise ValueError("dropout needs timeout, the seconds after which a lost attempt is repeated")
        return self


class Personalize(Section):
    """[personalize]: metrics of each client after it has fine-tuned the evaluated point on its samples."""

    step_size: float = Field(
        gt=0, allow_inf_nan=False, description="step size of the descent in x and of the ascent in y"
    )
    steps: int = Field(
        10, ge=1, description="number of stochastic gradient steps of each client, at every evaluation"
    )


class Regularize(Section):
    """[regularize]: adds a‖x - x̃‖² - b‖y - y_0‖² to f; the metrics remain those of f."""

    x: float = Field(0.0, ge=0, description="weight a of ‖x - x̃‖²; x̃ starts at x_0")
    y: float = Field(0.0, ge=0, description="weight b of ‖y - y_0‖²")
    stage: int | None = Field(
        None, ge=1, description="number of rounds after which x̃ is set to the current x; default: never"
    )

    @model_validator(mode="after")
    def _has_weights(self):
        if not (self.x or self.y):
            raise ValueError("needs x or y, the weight of a term")
        if self.stage and not self.x:
            raise ValueError("stage updates the centre of x: it needs the weight x")
        return self


#: Measures with inner problems, as a condition.
_SOLVED = "'phi', 'nuclear_norm', 'moreau' or 'potential' in of"


class StationarityOptions(Section):
    """[measures]: stationarity measures on all data, recorded at every evaluation."""

    of: tuple[Literal["stationarity", "phi", "nuclear_norm", "moreau", "potential", "tail"], ...] = Field(
        min_length=1,
        description="stationarity: ‖∇_x f‖ and ℓ‖P_Y(y + ∇_y f/ℓ) - y‖; phi: ‖∇Φ‖; nuclear_norm: nuclear "
        "norm of ∇Φ; moreau: ‖∇Φ_{1/2ℓ}‖; potential: V of FESSGDA and SmoothedGDA; tail: tail index of the "
        "noise",
    )
    ell: float | None = Field(
        None, gt=0, description="smoothness constant ℓ of f, for moreau, and for stationarity if y has a set"
    )
    accuracy: float = Field(
        1e-6, ge=0, description="natural residual at which inner problems are considered solved"
    )
    evaluations: int = Field(1000, ge=1, description="maximum number of full gradients per inner problem")
    samples: int = Field(100, ge=10, description="stochastic gradients per client and evaluation, for tail")

    needs: ClassVar[Needs] = {
        "ell": (
            "'moreau' or 'stationarity' in of",
            lambda measures: {"moreau", "stationarity"} & {*measures.of},
        ),
        "accuracy": (_SOLVED, lambda measures: {*measures.of} - {"stationarity", "tail"}),
        "evaluations": (_SOLVED, lambda measures: {*measures.of} - {"stationarity", "tail"}),
        "samples": ("'tail' in of", lambda measures: "tail" in measures.of),
    }
