"""The settings of a simulation as one validated record, and the rules of their combination."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo

from mpifed.algorithms import ALGORITHMS
from mpifed.base.errors import ConfigError, short_repr
from mpifed.base.plugins import plugin
from mpifed.base.settings import Strict, explain_record, file_name, first, title
from mpifed.core.algorithm import Algorithm, stored_fields, undeclared
from mpifed.core.autodiff import Evaluation
from mpifed.core.compression import Message
from mpifed.core.metrics import MetricSetting
from mpifed.core.noise import OracleOptions
from mpifed.core.participation import Participation
from mpifed.core.problem import Minimisation, Problem, is_analytic
from mpifed.core.sets import Zero
from mpifed.core.validation import check_method
from mpifed.parallel.options import ParallelOptions
from mpifed.simulation.federated_clock import Clock
from mpifed.simulation.regularization import Regularize
from mpifed.simulation.stationarity import Measures

__all__ = ["ExecutionOptions", "SimulationSettings"]


def _weights(text: str) -> str:
    """The absolute path of a file of weights, which a resumed run finds from any folder."""
    if "\0" in text or Path(text).suffix != ".safetensors":
        raise ValueError(
            "expected a .safetensors file (`mpifed export` writes one, and "
            f"safetensors.torch.save_file(module.state_dict(), FILE)), got {short_repr(text)}"
        )
    return str(Path(text).absolute())


def _group(value):
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= 1
    if not whole and value not in ("auto", "all"):
        raise ValueError(f'expected "auto", "all" or a whole number from 1, got {short_repr(value)}')
    return value


class ExecutionOptions(ParallelOptions):
    """How rounds are computed and evaluated."""

    dtype: Literal["float32", "float64"] = Field(
        "float32", description="floating-point type of the state and the gradients"
    )
    autocast: Literal["none", "bfloat16"] = Field(
        "none",
        description="dtype of torch.autocast in losses, which changes the results; state, gradients and "
        "messages stay float32",
    )
    compile: Literal["none", "default", "reduce-overhead"] = Field(
        "none",
        description="mode of torch.compile for the gradients of a group, which changes the last digits; "
        "reduce-overhead captures CUDA graphs on a GPU",
    )
    group: Annotated[Literal["auto", "all"] | Annotated[int, Field(ge=1)], BeforeValidator(_group)] = Field(
        "auto",
        description="number of clients that a rank steps at a time; 1 loops over clients, a larger number "
        "vectorises them, which changes the last digits; auto: vectorised for small models with many clients",
    )
    matrices: Literal["coordinator", "replicated"] = Field(
        "coordinator", description="where adaptive matrices are computed: on rank 0, or on every rank"
    )
    eval_every: int | None = Field(
        None,
        ge=1,
        description="rounds between evaluations, in addition to the first and the last round; default: 10, "
        "or more if scoring the held-out samples would take more than a tenth of the run",
    )
    evaluate_on: tuple[Literal["train", "clients"], ...] = Field(
        (),
        description="further samples for metrics, in addition to the test and validation splits; train: "
        "all training samples; clients: those of each client, with quantiles and the worst client",
    )
    data_dir: Annotated[str, AfterValidator(file_name)] | None = Field(
        None, description="folder of the data files; default: $MPIFED_DATA, or ../shared/data"
    )

    @property
    def evaluation(self) -> Evaluation:
        """The options of the evaluation of losses."""
        return Evaluation(self.compile, self.autocast)

    @model_validator(mode="after")
    def _in_one_precision(self):
        if self.autocast != "none" and self.dtype != "float32":
            raise ValueError(f"autocast = {self.autocast!r} needs dtype = 'float32', got {self.dtype!r}")
        return self

    @model_validator(mode="after")
    def _compiles_alike(self):
        if self.reduction == "exact" and self.compile != "none" and self.group != 1:
            raise ValueError(
                "code compiled for another number of clients gives other bits: expected group = 1 with "
                f"compile = {self.compile!r} and reduction = 'exact', got group = {self.group!r}"
            )
        return self


class SimulationSettings(Strict, BaseModel):
    """A problem, a method and the options of their simulation.

    Raises:
        ConfigError: a setting is wrong, or two do not go together; one line per error.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    algorithm: InstanceOf[Algorithm]
    problem: InstanceOf[Problem]
    seed: int = Field(0, ge=0, description="first component of the address of every random number")
    rounds: int = Field(100, ge=1, description="communication rounds")
    output: Literal["last", "average", "uniform"] | None = Field(
        None,
        description="the returned point: the last iterate, the average, or that of a random round; "
        "default: the rule of the paper",
    )
    metrics: tuple[MetricSetting, ...] = Field(
        (),
        description='user-defined metrics, ["./file.py:name"]: functions of (scores, labels) or of (point)',
    )
    initial: Annotated[str, AfterValidator(_weights)] | None = Field(
        None,
        description="file with initial weights (.safetensors) of the network; default: random weights",
    )
    oracle: OracleOptions = OracleOptions()
    participation: Participation = Participation()
    message: Message = Message()
    run: ExecutionOptions = ExecutionOptions()
    clock: Clock | None = None
    regularize: Regularize | None = None
    measures: Measures | None = None

    def __init__(self, /, **settings):
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise ConfigError(explain_record(error.errors(), type(self), settings)) from None

    @model_validator(mode="after")
    def _fits_together(self):
        algorithm, problem = self.algorithm, self.problem
        _expect_settings(algorithm, "hyperparameters")
        _expect_settings(problem, "problem_settings")
        check_method(algorithm)
        name, its = title(algorithm), title(problem)
        clients = getattr(problem, "clients", None)
        if not isinstance(clients, int | np.integer) or isinstance(clients, bool) or clients < 1:
            raise ValueError(f"problem.clients: expected a whole number from 1, got {short_repr(clients)}")
        algorithm.expect_clients(int(clients))
        fits = {problem.family, "operator"} if problem.family == "minimax" else {problem.family}
        fits |= {"minimisation"} if isinstance(problem, Minimisation) else set()
        if algorithm.family not in fits:
            kind = f"{'an' if problem.family == 'operator' else 'a'} {problem.family}"
            raise ValueError(
                f"{name} solves {algorithm.family} problems, {its} is {kind} problem: methods for it are "
                f"{first(n for n, c in ALGORITHMS.items() if c.family in fits)}"
            )
        if problem.family == "operator" and not isinstance(problem.phi, Zero) and not algorithm.composite:
            raise ValueError(
                f"{its} has a convex part φ = {problem.phi}, which {name} would ignore: methods for it are "
                f"{first(n for n, c in ALGORITHMS.items() if c.composite)}"
            )
        return self

    @model_validator(mode="after")
    def _takes_part(self):
        algorithm, clients = self.algorithm, self.problem.clients
        self.participation.expect(clients)
        partial = self.participation.partial(clients)
        if partial and not algorithm.partial_participation:
            fields = ", ".join(stored_fields(algorithm))
            reason = (
                f"its clients carry {fields} from round to round" if fields else "it is defined for no other"
            )
            raise ValueError(
                f"{title(algorithm)} needs every client in every round, got {partial}, for {reason}: leave "
                f"it out, or take one of {first(n for n, c in ALGORITHMS.items() if c.partial_participation)}"
            )
        corrected = partial and self.participation.availability and self.participation.availability.unbiased
        if corrected and (fields := undeclared(algorithm)):
            raise ValueError(
                f"{title(algorithm)} stores {', '.join(fields)} at its clients. availability.unbiased would "
                "divide changes of these fields by the clients' probabilities and let the server's mean of "
                'them drift: declare the message\'s field that is such a change, dc = mpifed.stored("x"), '
                "or leave availability.unbiased out"
            )
        if corrected and not all(phase.new_cohort for phase in algorithm.phases[1:]):
            raise ValueError(
                f"{title(algorithm)} averages over one cohort in several phases of a round, so its step is a "
                "product of estimates, which availability.unbiased does not make unbiased: leave "
                "availability.unbiased out, or draw a new cohort for each phase (fresh_cohort, where the "
                "method has it)"
            )
        return self

    @model_validator(mode="after")
    def _regularizes(self):
        if self.regularize and self.problem.family != "minimax":
            raise ValueError(
                f"[regularize] is for minimax problems, {title(self.problem)} is of the family "
                f"{self.problem.family}"
            )
        return self

    @model_validator(mode="after")
    def _differentiates(self):
        for name, value in self.run.evaluation._asdict().items():
            if value != "none" and is_analytic(self.problem):
                raise ValueError(
                    f"run.{name} = {value!r} is for functions that are differentiated, and those of "
                    f"{title(self.problem)} are written by hand: expected run.{name} = 'none'"
                )
        return self

    @model_validator(mode="after")
    def _measures(self):
        asked = self.measures.of if self.measures else ()
        for fault in _faults_of_measures(self) if asked else ():
            raise ValueError(f"measures.of = {list(asked)}: {fault}")
        return self

    @property
    def output_rule(self) -> str:
        """The output rule: as set, or the method's own."""
        return self.output or self.algorithm.output


def _faults_of_measures(settings: SimulationSettings) -> Iterator[str]:
    """Why measures cannot be taken of a problem or a method."""
    measures, method, problem = settings.measures, settings.algorithm, settings.problem
    if problem.family != "minimax":
        yield f"expected a minimax problem, {title(problem)} has the family {problem.family!r}"
    if measures.ell is None and "moreau" in measures.of:
        yield "moreau needs the smoothness of f, measures.ell"
    if "tail" in measures.of and not settings.oracle.batch_size and settings.oracle.noise is None:
        yield "tail is of the gradient noise: expected oracle.batch_size or oracle.noise"
    smooths = method.family == "minimax" and "z" in method.shared.fields and getattr(method, "p", 0) > 0
    if "potential" in measures.of and not smooths:
        yield f"potential needs a method with a smoothing point z and a weight p > 0, got {title(method)}"


def _expect_settings(part, decorator: str) -> None:
    """Raises:
    ValueError: the object is no record of settings, or one of them was never given a value.
    """
    kind = type(part)
    plugin(kind)  # it is known from here on by its source as it is now
    if not dataclasses.is_dataclass(part):
        raise ValueError(f"{kind.__name__} must be a dataclass: its fields are its settings")
    fields = {field.name for field in dataclasses.fields(part)}
    for name, default in ((name, value) for one in kind.__mro__ for name, value in vars(one).items()):
        if isinstance(default, FieldInfo) and name not in fields:
            raise ValueError(
                f"{kind.__name__}.{name} is no setting yet: decorate {kind.__name__} itself, too, with "
                f"mpifed.base.settings.{decorator}"
            )
    for field in dataclasses.fields(part):
        value = getattr(part, field.name, None)
        if isinstance(value, float) and math.isnan(value):
            raise ValueError(f"{kind.__name__}.{field.name}: expected a number, got nan")
        if isinstance(value, FieldInfo):
            raise ValueError(
                f"{kind.__name__}.{field.name} has no value: decorate the class with "
                f"mpifed.base.settings.{decorator}, as the class that it derives from, and not with dataclass"
            )
