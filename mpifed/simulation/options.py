"""Sections of a job that belong to the simulation, and its part of the section ``[run]``."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from mpifed.base.errors import short_repr
from mpifed.base.settings import (
    Digits,
    Files,
    FolderPath,
    Needs,
    Results,
    Section,
    Selection,
    Speed,
)
from mpifed.base.units import BytesPerSecond, GradientsPerSecond, Seconds
from mpifed.core.autodiff import Evaluation
from mpifed.parallel.options import ParallelOptions

__all__ = [
    "Clock", "ExecutionOptions", "Personalize", "Regularize", "StationarityOptions", "is_positive_integer",
]  # fmt: skip


def is_positive_integer(value) -> bool:
    """Return whether a value is an integer, of Python or NumPy, from 1 on."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= 1


def _group(value):
    if not is_positive_integer(value) and value not in ("auto", "all"):
        raise ValueError(f'expected "auto", "all" or an integer >= 1, got {short_repr(value)}')
    return value


_Group = Annotated[Literal["auto", "all"] | Annotated[int, Field(ge=1)], BeforeValidator(_group)]


class ExecutionOptions(ParallelOptions):
    """How rounds are computed and evaluated."""

    dtype: Results[Literal["float32", "float64"]] = Field(
        "float32", description="floating-point type of the state and the gradients"
    )
    autocast: Results[Literal["none", "bfloat16"]] = Field(
        "none",
        description="dtype of torch.autocast in losses, which changes the results; state, gradients and "
        "messages stay float32",
    )
    matmul_precision: Results[Literal["highest", "high"]] = Field(
        "highest",
        description="precision of matrix products and convolutions of float32; highest: float32; high: TF32 "
        "(10 bits) on GPUs",
    )
    compile: Results[Literal["none", "default", "reduce-overhead"]] = Field(
        "none",
        description="mode of torch.compile for the gradients of a group, which changes the last digits; "
        "reduce-overhead captures CUDA graphs on a GPU",
    )
    group: Digits[_Group] = Field(
        "auto",
        description="number of clients that a rank steps at a time; 1 loops over clients, a larger number "
        "vectorises them, which changes the last digits; auto: vectorised for small models with many "
        "clients, on GPUs for all but large models",
    )
    client_store: Speed[Literal["device", "memory", "disk"] | None] = Field(
        None,
        description="where the state of clients is stored between rounds; device: on the device of the rank "
        "that hosts the client; memory: in host memory, where every rank of the node can step the client; "
        "disk: the same in a temporary file, in $TMPDIR; default: device on GPUs, and on CPUs if all clients "
        "participate, otherwise memory; the next one if it would take more than half of the memory",
    )
    matrices: Speed[Literal["coordinator", "replicated"]] = Field(
        "coordinator", description="where adaptive matrices are computed: on rank 0, or on every rank"
    )
    eval_every: Selection[int | None] = Field(
        None,
        ge=1,
        description="rounds between evaluations, in addition to the first and the last round; default: 10, "
        "fewer in runs of fewer than 200 rounds, so that curves have 20 points, more if scoring many samples "
        "or a large network would take more than a tenth of the run",
    )
    evaluate_on: Selection[tuple[Literal["train", "clients"], ...]] = Field(
        (),
        description="further samples for metrics, in addition to the test and validation splits; train: "
        "all training samples; clients: those of each client, with quantiles and the worst client",
    )
    data_dir: Files[FolderPath | None] = Field(
        None, description="folder of the data files; default: $MPIFED_DATA, or ../shared/data"
    )

    @property
    def evaluation(self) -> Evaluation:
        """The options of the evaluation of losses."""
        return Evaluation(self.compile, self.autocast)

    @model_validator(mode="after")
    def _autocast_needs_float32(self):
        if self.autocast != "none" and self.dtype != "float32":
            raise ValueError(f"autocast = {self.autocast!r} needs dtype = 'float32', got {self.dtype!r}")
        return self

    @model_validator(mode="after")
    def _exact_needs_full_precision(self):
        if self.is_reproducible and self.matmul_precision != "highest":
            raise ValueError(
                f"reduction = 'exact' needs matmul_precision = 'highest', got {self.matmul_precision!r}"
            )
        return self

    @model_validator(mode="after")
    def _exact_needs_a_loop_if_compiled(self):
        if self.is_reproducible and self.compile != "none" and self.group != 1:
            raise ValueError(
                "results of compiled code depend on the number of vectorised clients: expected group = 1 "
                f"with compile = {self.compile!r} and reduction = 'exact', got group = {self.group!r}"
            )
        return self


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
