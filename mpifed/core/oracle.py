"""Stochastic oracles: the functions and derivatives of the clients that a method steps, one class per family.

Results have the client axis, ``[C, d]``; points are ``[C, d]``, or ``[d]`` if all clients share them. With
``batched``, a problem's functions are vectorised over the clients; otherwise there is one client. Gradients
on samples, which have constant shapes, are compiled; full-batch gradients are not.

``oracle.sample()`` numbers the samples through all phases of a round. A method that needs the same sample
again uses its number, ``oracle.sample(number=k)``.

``calls`` counts evaluations of a client at a sample ξ, a minibatch. A pair of gradients in x and y is one
call, and so is an inner value with or without its Jacobian.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_map

from mpifed.base.errors import ContractError
from mpifed.core.autodiff import PLAIN, Evaluation, Gradients, mapped, over_clients
from mpifed.core.device import to_device
from mpifed.core.problem import Composition, Game, Minimax, Minimisation, Operator, Problem
from mpifed.core.records import Blocks
from mpifed.core.sampling import Sample, Sampler, with_dropout_words
from mpifed.core.streams import key

__all__ = ["CompositionOracle", "MinimaxOracle", "EVALUATIONS", "ORACLES", "OperatorOracle", "Oracle", "Pull"]


class Oracle:
    """Base of the oracles.

    Args:
        evaluation: compilation and precision of the losses that autograd differentiates.

    Attributes:
        sets: the problem's sets; ``oracle.sets.y(v)`` projects.
        blocks: names and shapes of the parameters of each block.
        client: numbers of the clients that are stepped together, ``[C]``.
    """

    def __init__(self, problem: Problem, sampler: Sampler, batched: bool, evaluation: Evaluation = PLAIN):
        self.problem, self.sampler, self.batched, self.evaluation = problem, sampler, batched, evaluation
        self.blocks: Blocks = problem.variables()
        self.sets = problem.sets
        self._together, self._apart, self._count = 0, None, 0
        self._following: Iterator[Sample] = iter(())

    @staticmethod
    def noise_width(problem: Problem) -> int:
        """Return the size of a sample's noise: the number of elements that an evaluation returns."""
        return sum(problem.variables().sizes.values())

    def at(self, rows: slice) -> None:
        """Select the clients ``members[rows]`` of the sampler's current phase."""
        self._rows, self._count, self._on = rows, rows.stop - rows.start, None
        self._places = self.sampler.members[rows]
        self.client = self.sampler.clients[self._places]
        self._place = int(self._places[0]) if self._count == 1 else None
        self._together, self._apart = 0, None
        self._following = iter(())

    @property
    def calls(self) -> np.ndarray | int:
        """Number of evaluations per client since :meth:`at`, ``[C]``, or one number if all are equal."""
        return self._together if self._apart is None else self._together + self._apart

    def sample(
        self, *, size: int | None = None, of: str = "", number: int | None = None, round: int | None = None
    ) -> Sample:
        """Return the next sample ξ of the clients' round, numbered through its phases.

        Args:
            size: rows of the minibatch, by default the job's batch size.
            of: "g" or "f", the function of a composition for which the sample is drawn.
            number: number 0, 1, ... of the sample, instead of the next; equal addresses give equal samples.
            round: with ``number``, the sample of another round.

        Raises:
            ContractError: the round has counted and addressed samples, or size or address are invalid.
        """
        if number is None and round is None and size is None and not of and self._on is None:
            following = next(self._following, None)  # the most frequent call, without any look-up
            if following is None:
                return self._first_of_many()
            self.sampler.numbers[self._place] += 1
            return following
        self._following = iter(())
        if size is not None and not (_is_whole(size) and size >= 1):
            raise ContractError(f"oracle.sample(size={size}): expected at least 1 row, a whole number")
        if of not in ("", "g", "f"):
            raise ContractError(f"oracle.sample(of={of!r}): expected 'g' or 'f'")
        if number is None and round is None:
            self.sampler.select_by("counted")
            k = self._next_number(self.sampler.numbers)
        else:
            k = _address(number, round)
            self.sampler.select_by("named")
        return self.sampler.samples(k, self._rows, round=round, size=size, of=of)[0]

    def _first_of_many(self) -> Sample:
        """Return the next counted sample; keep those of a single client that were gathered with it."""
        self.sampler.select_by("counted")
        k = self._next_number(self.sampler.numbers)
        first, *following = self.sampler.samples(k, self._rows)
        if self._place is not None:
            self._following = iter(following)
        return first

    def _next_number(self, numbers: np.ndarray):
        """Return the next sample number of the active clients, ``[C]``, or one number if all are equal."""
        if self._place is not None and self._on is None:  # fast path of one client
            k = numbers.item(self._place)
            numbers[self._place] = k + 1
            return k
        own = numbers[self._places]
        numbers[self._places] = own + (1 if self._on is None else self._on)
        return int(own[0]) if (own == own[0]).all() else own

    @property
    def full_batch(self) -> Sample:
        """All data of each client without noise, for the exact local gradient; clients are looped over."""
        return Sample()

    def steps(self, tau) -> Iterator[torch.Tensor]:
        """Iterate over local steps of clients with different numbers of steps: ``for on in
        oracle.steps(tau)``.

        Args:
            tau: number of steps per client ``[C]``, or one number for all clients.

        Yields:
            Whether each client takes the step, bool ``[C, 1]``, for ``torch.where(on, new, old)``. Clients
            that have finished draw no samples, and their evaluations are not counted.

        Raises:
            ContractError: ``tau`` is not a non-negative integer, or one per client.
        """
        steps = np.asarray(tau)
        if steps.dtype.kind not in "iu" or (steps < 0).any():
            raise ContractError(f"oracle.steps(tau): expected whole numbers from 0, got {steps.tolist()}")
        if steps.shape not in ((), (self._count,)):
            shape = list(steps.shape)
            raise ContractError(
                f"oracle.steps(tau): expected one number or [{self._count}], one per client that is stepped, "
                f"got {shape}"
            )
        tau = np.broadcast_to(steps, (self._count,))
        try:
            takes_step = np.arange(tau.max(initial=0))[:, None] < tau
            for clients, on in zip(takes_step, to_device(takes_step[..., None], self.sampler.device)):
                self._on = clients
                yield on
        finally:
            self._on = None

    def normal(self, size: int) -> torch.Tensor:
        """Return the next standard normal vector of the clients' round, ``[C, size]``, for smoothing."""
        return self.sampler.normal(self._next_number(self.sampler.normals), self._rows, size)

    def _evaluated(self) -> None:
        if self._on is None:
            self._together += 1
        else:
            self._apart = self._on + (0 if self._apart is None else self._apart)

    def _each(self, evaluate, *points):
        """Stack the results of ``evaluate(*points, batch)`` on all data of each client."""
        rows = [
            evaluate(*(point[c] if point.dim() > 1 else point for point in points), batch)
            for c, batch in enumerate(self.sampler.each(self._rows))
        ]
        return tree_map(lambda *parts: torch.stack(parts), rows[0], *rows[1:])

    def _differentiable(self, function):
        """Return a function of the problem with dropout by address, in the precision of the job."""
        if self.sampler.drops:
            function = with_dropout_words(function, key(self.sampler.seed, "dropout"))
        return self.evaluation.mixed(function, self.sampler.device)

    def _over_clients(self, analytic):
        """Return an analytic function of the problem for all clients, ``None`` without such a function."""
        return over_clients(analytic) if self.batched and analytic is not None else analytic

    def _mapped(self, function):
        """Return ``function`` of one client's tensors as a function of all clients, with the client axis."""
        if self.batched and self.evaluation.compile == "none":
            return mapped(function)
        if self.batched:
            return self.evaluation.compiled(torch.func.vmap(function), None)  # any layout
        alone = self.evaluation.compiled(function, False)

        def with_axis(*arguments):
            result = alone(*tree_map(lambda tensor: tensor[0], arguments))
            return tree_map(lambda tensor: tensor.unsqueeze(0), result)

        return with_axis


def _is_whole(value) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _address(number, round) -> int:
    """Validate an address and return the number of the sample."""
    if number is None:
        raise ContractError(f"oracle.sample(round={round}) needs a number")
    for name, value in (("number", number), ("round", round)):
        if value is not None and not (_is_whole(value) and value >= 0):
            raise ContractError(f"oracle.sample({name}={value}): expected a whole number from 0")
    return int(number)


class Pull(NamedTuple):
    """A term weight · (v - centre) of the gradient of a block v; for y, which ascends, its negative.

    Attributes:
        block: 0 for x, 1 for y.
        weight: weight of the term.
        centre: ``[d]``; may be changed in place.
    """

    block: int
    weight: float
    centre: torch.Tensor


class MinimaxOracle(Oracle):
    """Oracle of ∇_x f_n and ∇_y f_n, or of ∇f_n without a block y."""

    problem: Minimax | Minimisation

    def __init__(self, problem: Minimax | Minimisation, sampler: Sampler, batched: bool, evaluation=PLAIN):
        super().__init__(problem, sampler, batched, evaluation)
        self._loss = self._differentiable(problem.loss)
        self._gradients = Gradients(self._loss, self.blocks)
        self._analytic = self._over_clients(problem.gradients)
        self._split = tuple(self.blocks.sizes.values())
        by_blocks = torch.func.grad(self._loss_at, tuple(range(len(self.blocks))))
        self._compiled = None if evaluation.compile == "none" else self._mapped(by_blocks)
        self._on_sample = self._choose()
        self._pulls: Sequence[Pull] = ()

    def _choose(self) -> Callable[[Sequence[torch.Tensor], Sample], Sequence[torch.Tensor]]:
        """Choose the function that evaluates the gradients at a point on a sample."""
        analytic, compiled = self._analytic, self._compiled
        if analytic is not None:
            return lambda point, xi: self._tuple(analytic(*self._same_axes(point), xi.batch))
        if compiled is not None:
            return lambda point, xi: compiled(*(b.expand(self._count, -1) for b in point), xi.evaluated)
        if self.batched:
            return lambda point, xi: self._blocks_of(
                self._gradients.together(point, xi.evaluated, self._count)
            )
        return lambda point, xi: self._blocks_of(self._gradients.alone(point, xi.evaluated_alone))

    def pull(self, pulls: Sequence[Pull]) -> None:
        """Add terms to all following gradients."""
        self._pulls = pulls

    def grad(self, x: torch.Tensor, *rest):
        """``grad(x, y, ξ)``: return ∇_x f_n(x, y; ξ) ``[C, dx]`` and ∇_y f_n(x, y; ξ) ``[C, dy]``.

        For a problem without y, the second is empty, and ``grad(x, ξ)`` returns ∇f_n(x; ξ).
        """
        xi, number = rest[-1] if rest else None, len(self._split)
        if not isinstance(xi, Sample) or not (len(rest) == 2 or len(rest) == number):
            blocks, got = ", ".join(self.blocks), ", ".join(type(one).__name__ for one in (x, *rest))
            raise ContractError(
                f"oracle.grad({blocks}, xi) on a problem with the blocks {blocks}, got grad({got})"
            )
        self._evaluated()
        point = (x, *rest[:-1])[:number]
        gradients = self._each(self._of_one, *point) if xi.whole else self._on_sample(point, xi)
        if xi.noise is not None:
            gradients = [g + noise for g, noise in zip(gradients, xi.noise.split(self._split, dim=-1))]
        for block, weight, centre in self._pulls:
            term = weight * (point[block] - centre)
            own = gradients[block] - term if block else gradients[block] + term
            gradients = [*gradients[:block], own, *gradients[block + 1 :]]
        if len(rest) == 1:
            return gradients[0]
        return gradients if number > 1 else (*gradients, gradients[0].new_empty(self._count, 0))

    def _loss_at(self, *point_and_batch):
        """Return the loss of one client at flat blocks."""
        *point, batch = point_and_batch
        return self._loss(*map(self.blocks.unflatten, self.blocks, point), batch)

    def _same_axes(self, point):
        """Return the blocks of a point, all with the client axis if one block has it."""
        if point[0].dim() == point[-1].dim():  # at most two blocks
            return point
        return tuple(block.expand(self._count, -1) for block in point)

    def _tuple(self, gradients):
        return gradients if isinstance(gradients, tuple | list) else (gradients,)

    def _of_one(self, *arguments):
        """Return the gradients of one client on its batch, without the client axis."""
        *point, batch = arguments
        if self.problem.gradients is not None:
            points, batches = (
                [one.unsqueeze(0) for one in point],
                tuple(column.unsqueeze(0) for column in batch),
            )
            return tuple(g[0] for g in self._tuple(self.problem.gradients(*points, batches)))
        return tuple(g[0] for g in self._blocks_of(self._gradients.alone(point, batch)))

    def _blocks_of(self, gradient: torch.Tensor):
        """Split a gradient ``[C, d]`` into blocks."""
        if len(self._split) == 1:
            return (gradient,)
        return torch.split_with_sizes(gradient, self._split, 1)  # four times as fast as Tensor.split


class OperatorOracle(Oracle):
    """Oracle of V_n, for variational inequalities and for minimax problems as games."""

    problem: Operator

    def __init__(self, problem: Operator, sampler: Sampler, batched: bool, evaluation=PLAIN):
        super().__init__(problem, sampler, batched, evaluation)
        self.prox = problem.phi
        self._operator = self._over_clients(problem.operator)
        self._game: MinimaxOracle | None = None
        self._split: tuple[int, ...] = ()
        if isinstance(problem, Game):
            self._game = MinimaxOracle(problem.problem, sampler, batched, evaluation)
            self._split = problem.split

    def at(self, rows: slice) -> None:
        super().at(rows)
        if self._game:
            self._game.at(rows)

    def pull(self, pulls: Sequence[Pull]) -> None:
        """Add terms to the gradients of the game's minimax problem."""
        assert self._game is not None
        self._game.pull(pulls)

    def operator(self, z: torch.Tensor, xi: Sample) -> torch.Tensor:
        """Return V_n(z; ξ), ``[C, d]``."""
        self._evaluated()
        if self._game:
            gx, gy = self._game.grad(*z.split(self._split, dim=-1), xi)
            return torch.cat([gx, -gy], dim=-1)
        if xi.whole:
            return self._each(self._of_one, z)
        value = self._operator(z, xi.batch)
        return value if xi.noise is None else value + xi.noise

    def _of_one(self, z, batch):
        return self.problem.operator(z.unsqueeze(0), tuple(column.unsqueeze(0) for column in batch))[0]


class CompositionOracle(Oracle):
    """Oracle of g_n, its Jacobian, and ∇f_n.

    Jacobians are dense, ``[C, p, d]``: analytic, or by forward or reverse mode, whichever is cheaper.
    """

    problem: Composition

    def __init__(self, problem: Composition, sampler: Sampler, batched: bool, evaluation=PLAIN):
        super().__init__(problem, sampler, batched, evaluation)
        self._p, self._d = problem.inner_size, self.blocks.sizes["x"]
        if self._p > self._d:
            with warnings.catch_warnings():  # the first use of forward mode raises one in torch
                warnings.simplefilter("ignore", DeprecationWarning)
                torch.func.jvp(torch.sin, (torch.zeros(1),), (torch.ones(1),))
        jacobian = torch.func.jacrev if self._p <= self._d else torch.func.jacfwd
        self._inner, outer = self._differentiable(problem.inner), self._differentiable(problem.outer)
        functions = (self._value, jacobian(self._value_twice, has_aux=True), torch.func.grad(outer))
        self._g, self._derive, self._gradient = [(one, self._mapped(one)) for one in functions]
        self._jacobian = self._over_clients(problem.jacobian)
        self._outer_gradient = self._over_clients(problem.outer_gradient)

    @staticmethod
    def noise_width(problem: Problem) -> int:
        """Return the size of the noise of g, its Jacobian, and ∇f."""
        kinds = problem.kinds()
        return 2 * kinds["u"] + kinds["jacobian"]

    def _value(self, x: torch.Tensor, batch) -> torch.Tensor:
        return self._inner(self.blocks.unflatten("x", x), batch)

    def _value_twice(self, x: torch.Tensor, batch) -> tuple[torch.Tensor, torch.Tensor]:
        value = self._value(x, batch)
        return value, value

    def _noise(self, noise: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return noise.split((self._p, self._p * self._d, self._p), dim=-1)

    def _evaluate(self, automatic, analytic, point: torch.Tensor, xi: Sample):
        """Evaluate a function of one point and one batch for all clients.

        Args:
            automatic: the function of one client, and its vectorised version.
            analytic: an analytic function with the client axis, or ``None``.
        """
        self._evaluated()
        point = point.expand(self._count, -1)
        if analytic is None:
            one, mapped = automatic
            return self._each(one, point) if xi.whole else mapped(point, xi.evaluated)
        if not xi.whole:
            return analytic(point, xi.batch)
        return self._each(
            lambda one, batch: tree_map(
                lambda t: t[0], analytic(one[None], tuple(column[None] for column in batch))
            ),
            point,
        )

    def g(self, x: torch.Tensor, zeta: Sample) -> torch.Tensor:
        """Return g_n(x; ζ), ``[C, p]``."""
        value = self._evaluate(self._g, None, x, zeta)
        return value if zeta.noise is None else value + self._noise(zeta.noise)[0]

    def g_and_jacobian(self, x: torch.Tensor, zeta: Sample) -> tuple[torch.Tensor, torch.Tensor]:
        """Return g_n(x; ζ), ``[C, p]``, and its Jacobian, ``[C, p, d]``, at one sample."""
        if self._jacobian is not None:
            value, jacobian = self._evaluate(None, self._jacobian, x, zeta)
        else:
            jacobian, value = self._evaluate(self._derive, None, x, zeta)
        if zeta.noise is not None:
            noise_g, noise_j, _ = self._noise(zeta.noise)
            value, jacobian = value + noise_g, jacobian + noise_j.reshape(jacobian.shape)
        return value, jacobian

    def grad_f(self, u: torch.Tensor, xi: Sample) -> torch.Tensor:
        """Return ∇f_n(u; ξ), ``[C, p]``."""
        value = self._evaluate(self._gradient, self._outer_gradient, u, xi)
        return value if xi.noise is None else value + self._noise(xi.noise)[2]


ORACLES = {"minimax": MinimaxOracle, "operator": OperatorOracle, "composition": CompositionOracle}
#: Problem family → evaluation of all derivatives of a client's step.
EVALUATIONS: dict[str, Callable[..., Any]] = {
    "minimax": lambda oracle, *point_and_xi: oracle.grad(*point_and_xi),
    "operator": lambda oracle, z, xi: oracle.operator(z, xi),
    "composition": lambda oracle, x, xi: oracle.grad_f(oracle.g_and_jacobian(x, xi)[0], xi),
}
