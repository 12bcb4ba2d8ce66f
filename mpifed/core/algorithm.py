"""The contract of an algorithm: four records, then what a client and the server do in a phase.

An algorithm is a frozen record of hyperparameters; all state lives in records that the simulator allocates, reduces,
broadcasts and checkpoints without knowing whose they are:

=============  =====================================================  ==========================  =====================
record         what it holds                                          who writes it               what travels
=============  =====================================================  ==========================  =====================
shared         what every client reads: x, y, global momentum, A, B   the server step, everywhere nothing (replicated)
coordinator    what rank 0 alone owns: moments behind A and B         ``coordinate``              its result, by Bcast
client         what a client keeps between rounds                     that client                 nothing
message        what is averaged over the cohort                       each client, every phase    one fused Allreduce
=============  =====================================================  ==========================  =====================

A phase named ``p`` runs ``client_p`` for every member of the cohort, averages ``message``, runs ``coordinate`` where the
phase asks for it, then ``server_p``. Methods with one phase name it ``round``:

* ``client_round(r, shared, client, message, oracle)``: read ``shared``, update ``client`` in place, fill ``message``
  (zeros on entry). Fields of ``client`` and ``message`` and all that the oracle returns have a leading axis over the
  clients stepped together, ``[C, d]``; fields of ``shared`` are ``[d]``. Never modify ``shared`` here, not even
  in place through a view (``x = shared.x; x -= ...``).
* ``coordinate(r, shared, coordinator, mean)`` → ``{field: value}`` for the fields of ``shared`` listed in ``coordinated``.
* ``server_round(r, shared, mean, sets)``: update ``shared`` from the averaged message. ``sets.y(v)`` projects.

Rounds count from 1; the phases in ``start`` run once before, as round 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mpifed.core.records import Record

__all__ = ["Algorithm", "Phase"]


@dataclass(frozen=True)
class Phase:
    """A client function, one fused Allreduce of ``message``, a server function: one round trip.

    ``down`` lists the fields of ``shared`` that a federated client would have to be sent for it, ``up`` those of ``message``
    that it would send (``None``: all of them; running sums that only an output average needs do not count);
    ``coordinate`` says whether rank 0 refreshes the coordinated fields between the Allreduce and the server function.
    """

    name: str
    message: Record
    down: tuple[str, ...] | None = None
    up: tuple[str, ...] | None = None
    coordinate: bool = False


class Algorithm:
    """Base of every method. Subclasses are frozen dataclasses of hyperparameters."""

    #: Problem family that the method solves: "minimax", "operator" or "composition".
    family: ClassVar[str] = "minimax"
    #: Where the method is printed.
    source: ClassVar[str] = ""
    #: Settings for an example, where the usual guesses do not fit together.
    example: ClassVar[dict] = {}
    #: What the papers count a round: vectors up, vectors down, phases, evaluations a local step.
    paper_cost: ClassVar[str] = ""
    #: Gradient evaluations in a local step, for `mpifed info`.
    calls_per_step: ClassVar[int] = 1
    #: False where the method is defined for full participation only.
    partial_participation: ClassVar[bool] = True

    #: Whether the method handles the convex part φ of a composite variational inequality.
    composite: ClassVar[bool] = False
    #: The output rule of the paper: "last" or "average".
    output: ClassVar[str] = "last"
    #: Block → field of ``shared`` with the average over clients and steps that the paper returns; by default the output
    #: rule "average" means the average of the rounds' points.
    averages: ClassVar[dict[str, str]] = {}

    shared: ClassVar[Record]
    message: ClassVar[Record]
    client: ClassVar[Record] = Record()
    coordinator: ClassVar[Record] = Record()
    #: The fields of ``shared`` that ``coordinate`` returns.
    coordinated: ClassVar[tuple[str, ...]] = ()
    #: Phases run once, as round 0, before the first round.
    start: ClassVar[tuple[Phase, ...]] = ()

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        for name, kind in vars(cls).get("__annotations__", {}).items():
            if hasattr(Algorithm, name) and "ClassVar" not in str(kind):
                raise TypeError(
                    f"{cls.__name__}: a hyperparameter cannot be called {name!r}, which the contract of algorithms uses"
                )

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of a round, in order."""
        return (Phase("round", self.message, coordinate=bool(self.coordinated)),)

    @property
    def local_steps(self) -> int:
        """Steps that a client takes between two synchronisations."""
        return 1

    def initialize(self, shared) -> None:
        """Set fields of ``shared`` that start neither at 0 nor at the problem's starting point."""

    def coordinate(self, r: int, shared, coordinator, mean) -> dict:
        """Rank 0's part of round ``r``: new values of the ``coordinated`` fields, none of them to keep all."""
        return {}
