"""Stochastic oracles: the functions and derivatives of the clients that a method steps, one class per family.

All results have the client axis, ``[C, d]``; points may be ``[C, d]`` or ``[d]``, shared by all clients. With
``batched``, a problem's functions are vectorised over the clients; otherwise there is one client. Gradients
on samples, whose shapes repeat, are compiled; full-batch gradients are not.

``oracle.sample()`` counts samples through all phases of a round, so no method numbers them itself. A method
that needs the same sample again addresses it, ``oracle.sample(number=k)``.

``calls`` counts evaluations. One evaluation of one client at one sample ξ, a minibatch, is one call. A
gradient pair (x and y) is one call, and so is an inner value with or without its Jacobian.
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
        sets: the problem's sets, ``oracle.sets.y(v)`` projects.
        blocks: names and shapes of the parameters of each block.
        client: the numbers of the clients that are stepped together, ``[C]``.
    """

    def __init__(self, problem: Problem, sampler: Sampler, batched: bool, evaluation: Evaluation = PLAIN):
        self.problem, self.sampler, self.batched, self.evaluation = problem, sampler, batched, evaluation
        self.blocks: Blocks = problem.variables()
        self.sets = problem.sets
        self._together, self._apart, self._count = 0, None, 0

    @staticmethod
    def noise_width(problem: Problem) -> int:
        """Size of a sample's noise: the number of elements that an evaluation returns."""
        return sum(problem.variables().sizes.values())

    def at(self, rows: slice) -> None:
        """Select the clients ``members[rows]`` of the sampler's current phase."""
        self._rows, self._count, self._on = rows, rows.stop - rows.start, None
        self._places = self.sampler.members[rows]
        self.client = self.sampler.clients[self._places]
        self._place = int(self._places[0]) if self._count == 1 else None
        self._together, self._apart = 0, None

    @property
    def calls(self) -> np.ndarray | int:
        """Evaluations by each client since :meth:`at`, ``[C]``; one number if it is the same for all."""
        return self._together if self._apart is None else self._together + self._apart

    def sample(
        self, *, size: int | None = None, of: str = "", number: int | None = None, round: int | None = None
    ) -> Sample:
        """The next sample ξ of the clients' round, counted through its phases.

        Args:
            size: rows of the minibatch, by default the job's batch size.
            of: "g" or "f", the function of a composition that it is for.
            number: a sample by its number 0, 1, ... instead of the next one; the same address gives the same
                ξ.
            round: with ``number``, the sample of another round.

        Raises:
            ContractError: the round has both counted and addressed samples, or the size or address is
                invalid.
        """
        if number is None and round is None and size is None and not of:  # most often, as fast as can be
            self.sampler.select_by("counted")
            return self.sampler.sample(
                self._deal(self.sampler.numbers), self._rows, round=None, size=None, of=""
            )
        if size is not None and not (_is_whole(size) and size >= 1):
            raise ContractError(f"oracle.sample(size={size}): expected at least 1 row, a whole number")
        if of not in ("", "g", "f"):
            raise ContractError(f"oracle.sample(of={of!r}): expected 'g' or 'f'")
        if number is None and round is None:
            self.sampler.select_by("counted")
            k = self._deal(self.sampler.numbers)
        else:
            k = _address(number, round)
            self.sampler.select_by("named")
        return self.sampler.sample(k, self._rows, round=round, size=size, of=of)

    def _deal(self, numbers: np.ndarray):
        """The next sample number of the active clients: one number if it is the same for all, else
        ``[C]``."""
        if self._place is not None and self._on is None:  # one client, as fast as can be
            k = numbers.item(self._place)
            numbers[self._place] = k + 1
            return k
        own = numbers[self._places]
        numbers[self._places] = own + (1 if self._on is None else self._on)
        return int(own[0]) if (own == own[0]).all() else own

    @property
    def full_batch(self) -> Sample:
        """All data of each client, without noise or address: for the exact local gradient, client by
        client."""
        return Sample()

    def steps(self, tau) -> Iterator[torch.Tensor]:
        """Steps of clients that take different numbers of them: ``for on in oracle.steps(tau)``.

        Args:
            tau: each client's number of steps ``[C]``, or one for all.

        Yields:
            Which clients take the step, boolean ``[C, 1]``, for ``torch.where(on, new, old)``. Clients that
            have finished draw no samples and are not counted.

        Raises:
            ContractError: ``tau`` is not a non-negative integer, or not one integer per client.
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
            for k in range(int(tau.max(initial=0))):
                self._on = tau > k
                yield torch.from_numpy(self._on)[:, None].to(self.sampler.device)
        finally:
            self._on = None

    def normal(self, size: int) -> torch.Tensor:
        """The next standard normal vector of the clients' round, ``[C, size]``, for smoothing."""
        return self.sampler.normal(self._deal(self.sampler.normals), self._rows, size)

    def _evaluated(self) -> None:
        if self._on is None:
            self._together += 1
        else:
            self._apart = self._on + (0 if self._apart is None else self._apart)

    def _each(self, evaluate, *points):
        """``evaluate(*points, batch)`` on all data of each client in turn: results with the client axis."""
        rows = [
            evaluate(*(point[c] if point.dim() > 1 else point for point in points), batch)
            for c, batch in enumerate(self.sampler.each(self._rows))
        ]
        return tree_map(lambda *parts: torch.stack(parts), rows[0], *rows[1:])

    def _differentiable(self, function):
        """A function of the problem, with dropout by the samples' addresses, in the precision of the job."""
        if self.sampler.drops:
            function = with_dropout_words(function, key(self.sampler.seed, "dropout"))
        return self.evaluation.mixed(function, self.sampler.device)

    def _over_clients(self, by_hand):
        """An analytic function of the problem for all clients; ``None`` without one."""
        return over_clients(by_hand) if self.batched and by_hand is not None else by_hand

    def _mapped(self, function):
        """``function`` of one client's tensors as one of all that are stepped: with the client axis."""
        if self.batched and self.evaluation.compile == "none":
            return mapped(function)
        if self.batched:
            return self.evaluation.compiled(torch.func.vmap(function), None)  # it lays out as it likes
        alone = self.evaluation.compiled(function, False)

        def with_axis(*arguments):
            result = alone(*tree_map(lambda tensor: tensor[0], arguments))
            return tree_map(lambda tensor: tensor.unsqueeze(0), result)

        return with_axis


def _is_whole(value) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _address(number, round) -> int:
    """The number of an addressed sample."""
    if number is None:
        raise ContractError(f"oracle.sample(round={round}) needs a number")
    for name, value in (("number", number), ("round", round)):
        if value is not None and not (_is_whole(value) and value >= 0):
            raise ContractError(f"oracle.sample({name}={value}): expected a whole number from 0")
    return int(number)


class Pull(NamedTuple):
    """A term weight · (v - centre) of the gradient of a block, 0 for x, 1 for y. The term of y has the
    opposite sign, as y ascends.

    ``centre`` is ``[d]`` and may change in place.
    """

    block: int
    weight: float
    centre: torch.Tensor


class MinimaxOracle(Oracle):
    """∇_x f_n and ∇_y f_n; without a block y, ∇f_n."""

    problem: Minimax | Minimisation

    def __init__(self, problem: Minimax | Minimisation, sampler: Sampler, batched: bool, evaluation=PLAIN):
        super().__init__(problem, sampler, batched, evaluation)
        self._loss = self._differentiable(problem.loss)
        self._gradients = Gradients(self._loss, self.blocks)
        self._by_hand = self._over_clients(problem.gradients)
        self._split = tuple(self.blocks.sizes.values())
        by_blocks = torch.func.grad(self._loss_at, tuple(range(len(self.blocks))))
        self._compiled = None if evaluation.compile == "none" else self._mapped(by_blocks)
        self._pulls: Sequence[Pull] = ()

    def pull(self, pulls: Sequence[Pull]) -> None:
        """Add terms to all gradients from here on."""
        self._pulls = pulls

    def grad(self, x: torch.Tensor, *rest):
        """``grad(x, y, ξ)``: ∇_x f_n(x, y; ξ) and ∇_y f_n(x, y; ξ), ``[C, dx]`` and ``[C, dy]``.

        On a problem without y, the second is empty, and ``grad(x, ξ)`` is the gradient alone.
        """
        xi = rest[-1] if rest else None
        if not isinstance(xi, Sample) or not (len(rest) == 2 or len(rest) == len(self.blocks)):
            blocks, got = ", ".join(self.blocks), ", ".join(type(one).__name__ for one in (x, *rest))
            raise ContractError(
                f"oracle.grad({blocks}, xi) on a problem with the blocks {blocks}, got grad({got})"
            )
        others = rest[:-1]
        self._evaluated()
        point = (x, *others)[: len(self.blocks)]
        if xi.whole:
            gradients = self._each(self._of_one, *point)
        elif self._by_hand is not None:
            gradients = self._tuple(self._by_hand(*self._alike(point), xi.batch))
        elif self._compiled is not None:
            gradients = self._compiled(*(block.expand(self._count, -1) for block in point), xi.evaluated)
        else:
            gradients = self._differentiate(point, xi)
        if xi.noise is not None:
            gradients = [g + noise for g, noise in zip(gradients, xi.noise.split(self._split, dim=-1))]
        for block, weight, centre in self._pulls:
            term = weight * (point[block] - centre)
            own = gradients[block] - term if block else gradients[block] + term
            gradients = [*gradients[:block], own, *gradients[block + 1 :]]
        if not others:
            return gradients[0]
        return gradients if len(gradients) > 1 else (*gradients, gradients[0].new_empty(self._count, 0))

    def _loss_at(self, *point_and_batch):
        """The loss of one client at flat blocks."""
        *point, batch = point_and_batch
        return self._loss(*map(self.blocks.unflatten, self.blocks, point), batch)

    def _alike(self, point):
        """The blocks of a point, all with the client axis if one has it, for analytic functions."""
        if point[0].dim() == point[-1].dim():  # there are two at most
            return point
        return tuple(block.expand(self._count, -1) for block in point)

    def _tuple(self, gradients):
        return gradients if isinstance(gradients, tuple | list) else (gradients,)

    def _of_one(self, *arguments):
        """The gradients of one client on its batch, without the client axis."""
        *point, batch = arguments
        if self.problem.gradients is not None:
            points, batches = (
                [one.unsqueeze(0) for one in point],
                tuple(column.unsqueeze(0) for column in batch),
            )
            return tuple(g[0] for g in self._tuple(self.problem.gradients(*points, batches)))
        return tuple(g[0] for g in self._blocks_of(self._gradients.alone(point, batch)))

    def _differentiate(self, point, xi: Sample):
        if self.batched:
            return self._blocks_of(self._gradients.together(point, xi.evaluated, self._count))
        return self._blocks_of(self._gradients.alone(point, xi.evaluated_alone))

    def _blocks_of(self, gradient: torch.Tensor):
        """The parts of a gradient ``[C, d]``, one per block."""
        if len(self._split) == 1:
            return (gradient,)
        return torch.split_with_sizes(gradient, self._split, 1)  # a fourth of the time of Tensor.split


class OperatorOracle(Oracle):
    """V_n, for variational inequalities and for minimax problems seen as games."""

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
        """Add terms to the gradients of the minimax problem that the operator is made of."""
        assert self._game is not None
        self._game.pull(pulls)

    def operator(self, z: torch.Tensor, xi: Sample) -> torch.Tensor:
        """V_n(z; ξ), ``[C, d]``."""
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
    """g_n, its Jacobian, and ∇f_n.

    Jacobians are dense, ``[C, p, d]``: the problem's own, or forward or reverse, whichever needs fewer
    sweeps.
    """

    problem: Composition

    def __init__(self, problem: Composition, sampler: Sampler, batched: bool, evaluation=PLAIN):
        super().__init__(problem, sampler, batched, evaluation)
        self._p, self._d = problem.inner_size, self.blocks.sizes["x"]
        if self._p > self._d:
            with warnings.catch_warnings():  # torch deprecates a part of itself on first use of forward mode
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
        """Noise for g, for its Jacobian, and for ∇f."""
        kinds = problem.kinds()
        return 2 * kinds["u"] + kinds["jacobian"]

    def _value(self, x: torch.Tensor, batch) -> torch.Tensor:
        return self._inner(self.blocks.unflatten("x", x), batch)

    def _value_twice(self, x: torch.Tensor, batch) -> tuple[torch.Tensor, torch.Tensor]:
        value = self._value(x, batch)
        return value, value

    def _noise(self, noise: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return noise.split((self._p, self._p * self._d, self._p), dim=-1)

    def _evaluate(self, automatic, by_hand, point: torch.Tensor, xi: Sample):
        """A function of one point and one batch for all clients: ``automatic`` of one client and of all,
        ``by_hand`` takes the client axis itself.
        """
        self._evaluated()
        point = point.expand(self._count, -1)
        if by_hand is None:
            one, mapped = automatic
            return self._each(one, point) if xi.whole else mapped(point, xi.evaluated)
        if not xi.whole:
            return by_hand(point, xi.batch)
        return self._each(
            lambda one, batch: tree_map(
                lambda t: t[0], by_hand(one[None], tuple(column[None] for column in batch))
            ),
            point,
        )

    def g(self, x: torch.Tensor, zeta: Sample) -> torch.Tensor:
        """g_n(x; ζ), ``[C, p]``."""
        value = self._evaluate(self._g, None, x, zeta)
        return value if zeta.noise is None else value + self._noise(zeta.noise)[0]

    def g_and_jacobian(self, x: torch.Tensor, zeta: Sample) -> tuple[torch.Tensor, torch.Tensor]:
        """g_n(x; ζ), ``[C, p]``, and its Jacobian, ``[C, p, d]``, from one evaluation of one sample."""
        if self._jacobian is not None:
            value, jacobian = self._evaluate(None, self._jacobian, x, zeta)
        else:
            jacobian, value = self._evaluate(self._derive, None, x, zeta)
        if zeta.noise is not None:
            noise_g, noise_j, _ = self._noise(zeta.noise)
            value, jacobian = value + noise_g, jacobian + noise_j.reshape(jacobian.shape)
        return value, jacobian

    def grad_f(self, u: torch.Tensor, xi: Sample) -> torch.Tensor:
        """∇f_n(u; ξ), ``[C, p]``."""
        value = self._evaluate(self._gradient, self._outer_gradient, u, xi)
        return value if xi.noise is None else value + self._noise(xi.noise)[2]


ORACLES = {"minimax": MinimaxOracle, "operator": OperatorOracle, "composition": CompositionOracle}
#: Problem family → one evaluation of all derivatives of a client's step.
EVALUATIONS: dict[str, Callable[..., Any]] = {
    "minimax": lambda oracle, *point_and_xi: oracle.grad(*point_and_xi),
    "operator": lambda oracle, z, xi: oracle.operator(z, xi),
    "composition": lambda oracle, x, xi: oracle.grad_f(oracle.g_and_jacobian(x, xi)[0], xi),
}
