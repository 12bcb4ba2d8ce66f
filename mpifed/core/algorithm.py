"""The contract of a method: its state, and the functions of a client and of the server in each phase.

A method is a frozen dataclass of hyperparameters. All its state is stored in records, which the simulator
allocates, reduces, broadcasts and checkpoints without knowing the method:

===========  ================================================  =========================  ====================
record       contents                                          written by                 communicated
===========  ================================================  =========================  ====================
``shared``   read by all clients: x, y, global momentum, A     the server, on every rank  nothing (replicated)
``client``   kept by a client between rounds                   that client                nothing
``message``  averaged over the cohort                          each client, every phase   one fused Allreduce
===========  ================================================  =========================  ====================

A phase is a client function, an average and a server function. A method with one phase per round defines

* ``client_round(now, shared, client, message, oracle)``: read ``shared``, update ``client``, fill
  ``message``, which is 0 on entry. Fields of ``client`` and ``message`` and all results of the oracle have a
  leading axis over the clients that are stepped together, ``[C, d]``; fields of ``shared`` are ``[d]``. Never
  write to ``shared`` here, not even in place through a view (``x = shared.x; x -= ...``).
* ``server_round(now, shared, mean)``: update ``shared`` from the averaged message. By default, the
  averages replace the fields of ``shared`` of the same names, where a block of the problem is projected onto
  its set.

A method with several phases lists them in ``phases`` and may repeat them. Communication volume is measured,
not declared: a field of ``shared`` counts as downloaded when a client function reads it after the server has
written it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from mpifed.base.errors import ContractError
from mpifed.core.epochs import Epochs
from mpifed.core.records import Adaptive, Blocks, NotSent, Record, Stored, WithinRound
from mpifed.core.schedules import Step
from mpifed.core.sets import Sets
from mpifed.core.streams import Stream

__all__ = [
    "Algorithm", "Now", "Phase", "communicated_fields", "constant_matrices", "counts_epochs", "local_steps",
    "stored_fields", "undeclared_stored_fields", "updated_matrices",
]  # fmt: skip


@dataclass(frozen=True)
class Phase:
    """One round trip: a client function, one fused Allreduce of ``message``, a server function.

    Attributes:
        client: client function, called as ``client(now, shared, client, message, oracle)``.
        message: the record that the client function fills.
        server: server function, called as ``server(now, shared, mean)``. If it is ``None``, the averages
            replace the fields of ``shared`` of the same names, and blocks are projected.
        new_cohort: whether a new cohort is sampled before this phase.
        when: called as ``when(now)``; the phase takes place only in rounds for which it returns ``True``. It
            must return the same value on all ranks, such as one from ``now.stream``. The first phase takes
            place in every round.
    """

    client: Callable
    message: Record
    server: Callable | None = None
    new_cohort: bool = False
    when: Callable[[Now], bool] | None = None

    @property
    def name(self) -> str:
        """Name of the client function without ``client_``."""
        return getattr(self.client, "__name__", type(self.client).__name__).removeprefix("client_")


@dataclass(frozen=True)
class Now:
    """The current round, as passed to the functions of a method.

    Attributes:
        round: number of the round, from 1; 0 for the start phases. Rounds without participating clients
            are not counted.
        steps: number of local steps per round, the largest of all clients.
        clients: N, the number of all clients.
        cohort: the number of clients that participate.
        cohort_weight: the cohort's share of the total weight: cohort / clients for uniform weights.
        unbiased: whether averages are unbiased estimates of the averages over all clients
            (``availability.unbiased``).
        sets: the problem's sets; ``now.sets.y(v)`` projects.
        blocks: names and shapes of the parameters of each block.
        prox: proximal map of φ in a variational inequality, as ``oracle.prox``; otherwise ``None``.
        address: seed of the run, and number of the round including rounds without participating clients.
        steps_before: number of local steps of all rounds before. Default: (round - 1) * steps.
        previous_steps: number of local steps of the round before. Default: steps.

    The last two differ from their defaults if a run was resumed with another number of local steps.
    """

    round: int
    steps: int
    clients: int
    cohort: int
    cohort_weight: float
    unbiased: bool
    sets: Sets
    blocks: Blocks
    prox: Any
    address: tuple[int, int]
    steps_before: int | None = None
    previous_steps: int | None = None

    def step(self, k: int) -> Step:
        """Return t, the number from 1 of step ``k`` = 1, 2, ... of this round among all steps.

        Every round adds :attr:`steps` to t, so that t is the same for all clients. k = 0 is the last step of
        the round before.

        Raises:
            ContractError: ``k`` exceeds the number of local steps, which ``Algorithm.steps`` names.
        """
        if k > self.steps:
            raise ContractError(
                f"now.step({k}), but the number of local steps per round is {self.steps}: set the class "
                'attribute `steps` to the name of the hyperparameter with this number, e.g. steps = "K"'
            )
        before = (self.round - 1) * self.steps if self.steps_before is None else self.steps_before
        return Step(before + k, self.round if k > 0 else self.round - 1)

    def total(self, rate: Callable[[int], float], steps: int | None = None) -> float:
        """Return the sum of a step size over the local steps of this round, which is K η for a constant η.

        Args:
            steps: number of steps of a client; default: all.
        """
        last = self.steps if steps is None else steps
        return math.fsum(rate(self.step(k)) for k in range(1, last + 1))  # bitwise K η: rounded once

    def stream(self, purpose: str, clients=(0,), count: int = 1) -> Stream:
        """Return random numbers of this round, the same in every call and on every rank.

        Args:
            purpose: name that distinguishes the streams of a method.
            clients: client numbers ``[C]`` with different numbers each, such as ``oracle.client``; by default
                one row of numbers for all clients.
            count: number of samples per client.
        """
        seed, round = self.address
        return Stream(seed, f"method/{purpose}", clients, round, count)


class Algorithm:
    """Base class of methods, which are frozen dataclasses of hyperparameters."""

    #: Problem family: "minimax" (with or without y), "minimisation" (without y), "operator", "composition" or
    #: "bilevel".
    family: ClassVar[str] = "minimax"
    #: Sources of the method, and their keys in the bibliography.
    source: ClassVar[str] = ""
    cites: ClassVar[tuple[str, ...]] = ()
    #: Settings of the example job, in addition to the defaults of examples.
    example: ClassVar[dict] = {}
    #: Cost per round in the paper: vectors up, vectors down, phases, evaluations per local step.
    paper_cost: ClassVar[str] = ""
    #: Gradient evaluations per local step, for `mpifed info`.
    calls_per_step: ClassVar[int] = 1
    #: False if the method is defined for full participation only.
    partial_participation: ClassVar[bool] = True
    #: For methods that use ``oracle.full_batch``: the setting that selects minibatches instead, or
    #: "setting = value".
    minibatch_alternative: ClassVar[str] = ""
    #: For methods that use ``oracle.rows``: the setting that is required if the problem generates samples.
    rows_alternative: ClassVar[str] = ""
    #: Why ``availability.unbiased`` does not make the method's step unbiased, and what to set; empty if it
    #: does.
    bias: ClassVar[str] = ""
    #: Whether the method handles the convex part φ of a composite variational inequality.
    composite: ClassVar[bool] = False
    #: False if the method does not project, so that problems with sets are refused.
    constrained: ClassVar[bool] = True
    #: Where y is projected onto its set: "clients" if the server averages points that clients have projected,
    #: "server" if it averages steps, points outside of the set or dual points, and then projects.
    projects: ClassVar[str] = "clients"
    #: Whether the method is defined for mixtures of the clients' losses only (:attr:`Minimax.mixture`).
    mixture: ClassVar[bool] = False
    #: The output rule of the paper: "last" or "average".
    output: ClassVar[str] = "last"
    #: Block → field of ``shared`` with the average over clients and steps that the paper returns. Empty: the
    #: output rule "average" is the average of the points after each round.
    averages: ClassVar[dict[str, str]] = {}
    #: Name of the hyperparameter with the number of local steps per round, an integer or
    #: :class:`~mpifed.core.epochs.Epochs`.
    steps: ClassVar[str] = ""

    shared: ClassVar[Record]
    message: ClassVar[Record]
    client: ClassVar[Record] = Record()
    #: Rule of the adaptive matrices, a hyperparameter of methods with adaptive fields.
    matrix: Any
    #: Phases that run once before the first round, as round 0.
    start: ClassVar[tuple[Phase, ...]] = ()
    client_round: ClassVar[Callable]
    server_round: ClassVar[Callable | None] = None

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        reserved = {*dir(Algorithm), *inspect.get_annotations(Algorithm)} - {"matrix"}
        for base in (base for base in cls.__mro__ if base not in (Algorithm, object)):
            for name, annotation in inspect.get_annotations(base).items():
                if name in reserved and "ClassVar" not in str(annotation):
                    raise ContractError(
                        f"{cls.__name__}: a hyperparameter cannot be called {name!r}, which is an attribute "
                        "of Algorithm; annotate other attributes with ClassVar, or do not annotate them"
                    )

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of a round, in order."""
        return (Phase(self.client_round, self.message, self.server_round),)

    def expect_clients(self, clients: int) -> None:
        """Raise a ``ValueError`` if the hyperparameters do not fit this number of clients."""

    def initialize(self, shared) -> None:
        """Initialise fields of ``shared`` that start neither at 0 nor at the problem's starting point."""


def counts_epochs(method: Algorithm) -> bool:
    """Return whether the number of local steps of a method is given in epochs."""
    return bool(method.steps) and isinstance(getattr(method, method.steps), Epochs)


def local_steps(method: Algorithm, per_epoch: int = 1) -> int:
    """Return the number of local steps per round of a method, the largest of all clients.

    Args:
        per_epoch: the largest number of steps per epoch, for a method that counts epochs.
    """
    steps = getattr(method, method.steps) if method.steps else 1
    return steps.epochs * per_epoch if isinstance(steps, Epochs) else steps


def updated_matrices(method: Algorithm, phases: tuple[Phase, ...]) -> list[tuple[str, ...]]:
    """Return the adaptive matrices, fields of ``shared``, that are updated after each of ``phases``.

    A matrix is updated after the first phase whose message contains its estimator.
    """
    adaptive = method.shared.fields_of_type(Adaptive)
    if not adaptive or not method.matrix.adapts:
        return [()] * len(phases)
    phase_of = {
        name: next((number for number, phase in enumerate(phases) if field.of in phase.message.fields), None)
        for name, field in adaptive.items()
    }
    return [tuple(name for name in adaptive if phase_of[name] == number) for number in range(len(phases))]


def constant_matrices(method: Algorithm) -> list[str]:
    """Return the fields of ``shared`` with matrices that are the same in every round and known in advance."""
    adaptive = method.shared.fields_of_type(Adaptive)
    return [] if adaptive and method.matrix.adapts else [*adaptive]


def communicated_fields(record: Record) -> list[str]:
    """Return the fields of a record that are communicated between clients and server."""
    return [name for name in record.fields if name not in record.fields_of_type(NotSent)]


def stored_fields(method: Algorithm) -> list[str]:
    """Return the fields of ``client`` that persist between rounds."""
    return [name for name, field in method.client.fields.items() if not isinstance(field, WithinRound)]


def undeclared_stored_fields(method: Algorithm) -> list[str]:
    """Return the fields that clients store between rounds but whose changes no message declares.

    These are fields such as control variates, not blocks or scalars. The result is empty if a message
    declares changes with :class:`~mpifed.core.records.Stored`.
    """
    if any(phase.message.fields_of_type(Stored) for phase in method.phases):
        return []
    fields = method.client.fields
    return [name for name in stored_fields(method) if fields[name] not in (name, "scalar")]
