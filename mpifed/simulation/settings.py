"""The settings of a simulation as one validated record, including the rules for combinations."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    InstanceOf,
    TypeAdapter,
    model_validator,
)
from pydantic.dataclasses import is_pydantic_dataclass
from pydantic.fields import FieldInfo
from typing_extensions import TypeAliasType

from mpifed.base.errors import short_repr
from mpifed.base.plugins import plugin_of
from mpifed.base.settings import (
    Length,
    Results,
    Selection,
    Strict,
    UserPath,
    config_errors,
    join_names,
    sections_of,
    title,
    type_hints,
)
from mpifed.core.algorithm import Algorithm, stored_fields, undeclared_stored_fields
from mpifed.core.compression import Message
from mpifed.core.noise import OracleOptions
from mpifed.core.participation import Participation
from mpifed.core.problem import Minimisation, Problem, is_analytic
from mpifed.core.records import Compressed
from mpifed.core.sets import Zero
from mpifed.core.user_metrics import MetricSetting
from mpifed.core.validation import check_method
from mpifed.simulation.options import (
    Clock,
    ExecutionOptions,
    Personalize,
    Regularize,
    StationarityOptions,
    is_positive_integer,
)

__all__ = ["SimulationSettings"]


def _weights(text: str) -> str:
    """Return the absolute path of a file of weights, so that resumed runs find it from any folder."""
    if "\0" in text or Path(text).suffix != ".safetensors":
        raise ValueError(
            "expected a .safetensors file, written by `mpifed export` or "
            f"safetensors.torch.save_file(module.state_dict(), FILE), got {short_repr(text)}"
        )
    return str(Path(text).absolute())


def _validates(hint) -> bool:
    """Whether an annotation carries validators, as those of schedules and choices do."""
    return isinstance(hint, TypeAliasType) or typing.get_origin(hint) is Annotated


def _with_schedules(method: Algorithm) -> Algorithm:
    """Return a method whose numbers for annotated settings, such as ``eta: Rate``, are schedules.

    Built-in methods convert them when they are constructed; user-defined dataclasses do not.
    """
    cls = type(method)
    if not dataclasses.is_dataclass(method) or is_pydantic_dataclass(cls):
        return method
    hints = type_hints(cls)
    numbers = {
        name: value
        for name, value in vars(method).items()
        if isinstance(value, int | float) and _validates(hints.get(name))
    }
    converted = {name: TypeAdapter(hints[name]).validate_python(value) for name, value in numbers.items()}
    changed = {name: value for name, value in converted.items() if not isinstance(value, int | float)}
    return dataclasses.replace(method, **changed) if changed else method


def _methods(suits: Callable[[type[Algorithm]], bool]) -> str:
    """Return the names of the built-in methods that suit, for a message; only then all are imported."""
    from mpifed.algorithms import ALGORITHMS

    return join_names(name for name, cls in ALGORITHMS.items() if suits(cls))


class SimulationSettings(Strict, BaseModel):
    """A problem, a method and the options of their simulation.

    Raises:
        ConfigError: settings are invalid or inconsistent; one line per error.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    algorithm: Results[Annotated[InstanceOf[Algorithm], AfterValidator(_with_schedules)]]
    problem: Results[InstanceOf[Problem]]
    seed: Results[int] = Field(0, ge=0, description="seed of all random numbers of the run")
    rounds: Length[int] = Field(100, ge=1, description="communication rounds")
    output: Results[Literal["last", "average", "uniform"] | None] = Field(
        None,
        description="the returned point: the last iterate, the average, or that of a random round; "
        "default: the rule of the method, which `mpifed info METHOD` shows",
    )
    metrics: Selection[tuple[MetricSetting, ...]] = Field(
        (),
        description='further metrics by name, and user-defined functions "./file.py:name" of (scores, '
        "labels) or of (point)",
    )
    initial: Results[Annotated[UserPath, AfterValidator(_weights)] | None] = Field(
        None, description="file with initial weights (.safetensors) of the network; default: random weights"
    )
    oracle: Results[OracleOptions] = OracleOptions()
    participation: Results[Participation] = Participation()
    message: Results[Message] = Message()
    run: ExecutionOptions = ExecutionOptions()
    clock: Results[Clock | None] = None
    regularize: Results[Regularize | None] = None
    measures: Results[StationarityOptions | None] = None
    personalize: Results[Personalize | None] = None

    def __init__(self, /, **settings):
        parts = {name: type(part) for name, part in settings.items() if dataclasses.is_dataclass(part)}
        with config_errors("", {"": type(self), **sections_of(type(self)), **parts}):
            super().__init__(**settings)

    @model_validator(mode="after")
    def _method_fits_problem(self):
        algorithm, problem = self.algorithm, self.problem
        _expect_settings(algorithm, "hyperparameters")
        _expect_settings(problem, "problem_settings")
        check_method(algorithm)
        method, name = title(algorithm), title(problem)
        clients = getattr(problem, "clients", None)
        if not is_positive_integer(clients):
            raise ValueError(f"problem.clients: expected an integer >= 1, got {short_repr(clients)}")
        algorithm.expect_clients(int(clients))
        families = {problem.family, "operator"} if problem.family == "minimax" else {problem.family}
        families |= {"minimisation"} if isinstance(problem, Minimisation) else set()
        if algorithm.family not in families:
            article = "an" if problem.family == "operator" else "a"
            raise ValueError(
                f"{method} solves {algorithm.family} problems, but {name} is {article} {problem.family} "
                f"problem: expected one of {_methods(lambda cls: cls.family in families)}"
            )
        if algorithm.mixture and not getattr(problem, "mixture", False):
            raise ValueError(
                f"{method} is defined for mixtures of the clients' losses, with one weight in y per client, "
                f"but {name} does not declare mixture = True: expected one of ClientMixture, QuadraticMixture"
            )
        if problem.separate_coordinates and algorithm.projects != "server":
            raise ValueError(
                f"{method} averages points that clients have projected, but the clients of {name} see "
                "different coordinates of y, so that it would solve another problem. For a method that "
                f"projects at the server, expected one of {_methods(lambda cls: cls.projects == 'server')}"
            )
        if problem.family == "operator" and not isinstance(problem.phi, Zero) and not algorithm.composite:
            raise ValueError(
                f"{name} has a convex part φ = {problem.phi}, which {method} would ignore: expected one of "
                f"{_methods(lambda cls: cls.composite)}"
            )
        return self

    @model_validator(mode="after")
    def _messages_compressed_once(self):
        records = (self.algorithm.shared, *(phase.message for phase in self.algorithm.phases))
        if self.message.compression and any(record.fields_of_type(Compressed) for record in records):
            raise ValueError(
                f"{title(self.algorithm)} compresses its own messages: leave message.compression out, and "
                "set the compressions of the algorithm"
            )
        return self

    @model_validator(mode="after")
    def _participation_fits(self):
        algorithm, clients = self.algorithm, self.problem.clients
        self.participation.expect_clients(clients)
        partial = self.participation.partial_setting(clients)
        if partial and not algorithm.partial_participation:
            fields = ", ".join(stored_fields(algorithm))
            reason = f", because clients store {fields} between rounds" if fields else ""
            raise ValueError(
                f"{title(algorithm)} is defined for full participation only{reason}, got {partial}: leave it "
                f"out, or use one of {_methods(lambda cls: cls.partial_participation)}"
            )
        if not (partial and self.participation.availability and self.participation.availability.unbiased):
            return self
        if fields := undeclared_stored_fields(algorithm):
            raise ValueError(
                f"clients of {title(algorithm)} store {', '.join(fields)}, and availability.unbiased would "
                "divide the changes of these fields by the clients' probabilities, so that the server's mean "
                'would drift: declare the changes in the message, such as dc = mpifed.stored("x"), or leave '
                "availability.unbiased out"
            )
        if algorithm.bias:
            raise ValueError(
                f"the step of {title(algorithm)} is not unbiased with availability.unbiased, because "
                f"{algorithm.bias}, or leave availability.unbiased out"
            )
        if not all(phase.new_cohort for phase in algorithm.phases[1:]):
            raise ValueError(
                f"{title(algorithm)} averages over one cohort in several phases of a round, so its step is a "
                "product of dependent estimates, which availability.unbiased does not make unbiased: leave "
                "availability.unbiased out, or sample a new cohort for each phase (fresh_cohort, if the "
                "method has it)"
            )
        return self

    @model_validator(mode="after")
    def _options_fit_problem(self):
        problem, name = self.problem, title(self.problem)
        for section in ("regularize", "personalize"):
            if getattr(self, section) and problem.family != "minimax":
                raise ValueError(
                    f"[{section}] is for minimax problems, but {name} has the family {problem.family!r}"
                )
        for option, value in self.run.evaluation._asdict().items():
            if value != "none" and is_analytic(problem):
                raise ValueError(
                    f"run.{option} = {value!r} is for losses differentiated by autograd, but {name} has "
                    f"analytic gradients: expected run.{option} = 'none'"
                )
        if problem.family == "bilevel" and self.run.compile != "none":
            raise ValueError(
                f"run.compile = {self.run.compile!r} does not support second derivatives, which bilevel "
                "methods use: expected 'none'"
            )
        drops = np.any(self.participation.dropout or 0.0)
        if self.clock and self.clock.timeout is not None and not (self.clock.dropout or drops):
            raise ValueError(
                "clock.timeout has no effect without clients that drop out: leave clock.timeout out, or set "
                "clock.dropout or participation.dropout"
            )
        if self.measures and (error := self._measures_error()):
            raise ValueError(f"measures.of = {list(self.measures.of)}: {error}")
        return self

    def _measures_error(self) -> str:
        """Return why the stationarity measures are not defined for the problem or the method, or ""."""
        measures, method, problem = self.measures, self.algorithm, self.problem
        if problem.family != "minimax":
            return f"expected a minimax problem, but {title(problem)} has the family {problem.family!r}"
        if measures.ell is None and "moreau" in measures.of:
            return "moreau needs the smoothness of f: set measures.ell"
        if "tail" in measures.of and not self.oracle.batch_size and self.oracle.noise is None:
            return "tail needs gradient noise: set oracle.batch_size or oracle.noise"
        smooths = method.family == "minimax" and "z" in method.shared.fields and getattr(method, "p", 0) > 0
        if "potential" in measures.of and not smooths:
            return (
                f"potential needs a method with a smoothing point z and a weight p > 0, got {title(method)}"
            )
        return ""

    @property
    def output_rule(self) -> str:
        """The output rule: as set, or the method's default."""
        return self.output or self.algorithm.output


def _expect_settings(part, decorator: str) -> None:
    """Raise a ValueError if a method or problem is not a record of settings, or a setting has no value."""
    cls = type(part)
    plugin_of(cls)  # from here on, the class is identified by its current source
    if not dataclasses.is_dataclass(part):
        raise ValueError(f"{cls.__name__} must be a dataclass: its fields are its settings")
    fields = [field.name for field in dataclasses.fields(part)]
    for name, default in ((name, value) for base in cls.__mro__ for name, value in vars(base).items()):
        if isinstance(default, FieldInfo) and name not in fields:
            raise ValueError(
                f"{cls.__name__} declares the field `{name}` but is not decorated: add "
                f"@mpifed.base.settings.{decorator}"
            )
    for name in fields:
        value = getattr(part, name, None)
        if isinstance(value, float) and math.isnan(value):
            raise ValueError(f"{cls.__name__}.{name}: expected a number, got nan")
        if isinstance(value, FieldInfo):
            raise ValueError(
                f"{cls.__name__}.{name} has no value: decorate the class with "
                f"mpifed.base.settings.{decorator}, as its base class, and not with dataclass"
            )
