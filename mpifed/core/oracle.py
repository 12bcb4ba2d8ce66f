"""Stochastic oracles: evaluate functions and derivatives of the clients on samples, one class per family.

An oracle represents the C clients that are stepped together: results have the shape ``[C, d]``; points are
``[C, d]``, or ``[d]`` if they are equal for all clients. With ``batched``, a problem's functions are
vectorised over the clients; otherwise C = 1. With ``run.compile``, gradients on minibatches are compiled.
Full-batch gradients are not, because the shapes of full batches vary.

``oracle.sample()`` returns sample 0, 1, ... of a round, numbered through all phases. A method that needs a
sample again after others uses its number, ``oracle.sample(number=k)``.

``calls`` counts evaluations of a client at a sample. A pair of gradients in x and y is one call, and so is an
inner value with or without its Jacobian, or a pair of products with second derivatives.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from mpifed.base.errors import ContractError
from mpifed.base.nested import mapped
from mpifed.core.autodiff import PLAIN, Evaluation, Gradients, position_independent, vectorised
from mpifed.core.device import to_device
from mpifed.core.numerics import scaled_norm
from mpifed.core.problem import (
    Bilevel,
    Composition,
    Game,
    Minimax,
    Minimisation,
    Operator,
    Problem,
    on_stored_data,
)
from mpifed.core.records import Blocks
from mpifed.core.sample_words import with_augmentation, with_dropout_words
from mpifed.core.sampling import Sample, Sampler
from mpifed.core.streams import key

__all__ = [
    "BilevelOracle", "CompositionOracle", "EVALUATIONS", "MinimaxOracle", "ORACLES", "OperatorOracle",
    "Oracle", "ProximalTerm",
]  # fmt: skip


class Oracle:
    """Base class of the oracles.

    Args:
        batched: whether functions are vectorised over clients; ``False`` if clients are looped over.
        evaluation: compilation and precision of the losses that autograd differentiates.

    Attributes:
        sets: the problem's sets; ``oracle.sets.y(v)`` projects.
        blocks: names and shapes of the parameters of each block.
        client: numbers of the clients that are stepped together, ``[C]``.
        clip: norm to which gradients are scaled down; ``None`` without clipping.
        clip_jointly: whether the norm is that of all blocks together.
        clipped: number of clipped results per client since :meth:`select_clients`, ``[C]``, with ``clip``.
    """

    clip: float | None = None
    clip_jointly: bool = False
    clipped: torch.Tensor

    def __init__(self, problem: Problem, sampler: Sampler, batched: bool, evaluation: Evaluation = PLAIN):
        self.problem, self.sampler, self.batched, self.evaluation = problem, sampler, batched, evaluation
        self.blocks: Blocks = problem.variables()
        self.sets = problem.sets
        self._common_calls, self._calls_by_client, self._count = 0, None, 0
        self._following: Iterator[Sample] = iter(())

    @staticmethod
    def noise_width(problem: Problem) -> int:
        """Return the number of elements of a sample's noise, one per element of an evaluation's result."""
        return sum(problem.variables().sizes.values())

    def select_clients(self, rows: slice) -> None:
        """Select the clients ``members[rows]`` of the sampler's current phase."""
        self._rows, self._count, self._active = rows, rows.stop - rows.start, None
        self._positions = self.sampler.members[rows]
        self.client = self.sampler.clients[self._positions]
        self._position = int(self._positions[0]) if self._count == 1 else None
        self._common_calls, self._calls_by_client = 0, None
        self._following = iter(())
        if self.clip is not None:
            self.clipped = torch.zeros(self._count, dtype=torch.int64, device=self.sampler.device)

    @property
    def calls(self) -> np.ndarray | int:
        """Number of evaluations per client since :meth:`select_clients`: ``[C]``, or one number if equal."""
        if self._calls_by_client is None:
            return self._common_calls
        return self._common_calls + self._calls_by_client

    def sample(
        self, *, size: int | None = None, of: str = "", number: int | None = None, round: int | None = None
    ) -> Sample:
        """Return the next sample ξ of each client.

        Args:
            size: number of rows of the minibatch; default: the job's batch size.
            of: "g" or "f", the function of a composition (inner, outer) or of a bilevel problem (lower,
                upper) for which the sample is drawn.
            number: return sample 0, 1, ... of the round instead of the next sample. The same number gives the
                same sample.
            round: with ``number``, the round of the sample; default: the current round.

        Raises:
            ContractError: an argument is invalid, or the round uses samples with and without ``number``.
        """
        if number is None and round is None and size is None and not of and self._active is None:
            sample = next(self._following, None)  # the most frequent call, without any look-up
            if sample is None:
                return self._next_counted()
            self.sampler.numbers[self._position] += 1
            return sample
        self._following = iter(())
        if size is not None and not (_is_whole(size) and size >= 1):
            raise ContractError(f"oracle.sample(size={size}): expected an integer >= 1, the number of rows")
        if of not in ("", "g", "f"):
            raise ContractError(f"oracle.sample(of={of!r}): expected 'g' or 'f'")
        if number is None and round is None:
            self.sampler.expect_selection("counted")
            k = self._next_number(self.sampler.numbers)
        else:
            k = _address(number, round)
            self.sampler.expect_selection("numbered")
        return self.sampler.samples(k, self._rows, round=round, size=size, of=of)[0]

    def _next_counted(self) -> Sample:
        """Return the next sample; for a single client, keep the position among those gathered with it."""
        self.sampler.expect_selection("counted")
        k = self._next_number(self.sampler.numbers)
        sample, *following = self.sampler.samples(k, self._rows)
        if self._position is not None:
            self._following = iter(following)
        return sample

    def _next_number(self, numbers: np.ndarray):
        """Return the next sample number of the active clients, ``[C]``, or one number if all are equal."""
        if self._position is not None and self._active is None:  # fast path of one client
            k = numbers.item(self._position)
            numbers[self._position] = k + 1
            return k
        next_numbers = numbers[self._positions]
        numbers[self._positions] = next_numbers + (1 if self._active is None else self._active)
        return int(next_numbers[0]) if (next_numbers == next_numbers[0]).all() else next_numbers

    @property
    def full_batch(self) -> Sample:
        """The sample that consists of all data of each client, without noise: gives exact local gradients."""
        if self.batched and self.sampler.stacks_full_batches:
            return self.sampler.full_sample(self._rows)
        return Sample()

    @property
    def rows(self) -> np.ndarray:
        """Number of rows of each client's data, or of its full batch if samples are generated, ``[C]``."""
        return self.sampler.sizes[self._positions]

    @property
    def steps_per_epoch(self) -> np.ndarray:
        """Number of minibatches of each client's epoch, ``[C]``; 1 with full batches."""
        return self.sampler.batches_per_epoch(self._positions)

    def steps(self, tau) -> Iterator[torch.Tensor]:
        """Iterate over the local steps of clients with different numbers of steps.

        Args:
            tau: number of steps per client ``[C]``, or one number for all clients.

        Yields:
            In each step, a mask of the clients that take it, bool ``[C, 1]``, for ``torch.where(mask, new,
            old)``. Clients that have finished draw no samples, and their evaluations are not counted.

        Raises:
            ContractError: ``tau`` is not a non-negative integer, or one per client.
        """
        steps = np.asarray(tau)
        if steps.dtype.kind not in "iu" or (steps < 0).any():
            raise ContractError(f"oracle.steps(tau): expected integers >= 0, got {steps.tolist()}")
        if steps.shape not in ((), (self._count,)):
            shape = list(steps.shape)
            raise ContractError(
                f"oracle.steps(tau): expected one number or [{self._count}], one per client that is stepped, "
                f"got {shape}"
            )
        tau = np.broadcast_to(steps, (self._count,))
        try:
            takes_step = np.arange(tau.max(initial=0))[:, None] < tau
            for active, mask in zip(takes_step, to_device(takes_step[..., None], self.sampler.device)):
                self._active, self._mask = active, mask[:, 0]
                yield mask
        finally:
            self._active = None

    def normal(self, size: int) -> torch.Tensor:
        """Return the next standard normal vector of each client in the round, ``[C, size]``."""
        return self.sampler.normal(self._next_number(self.sampler.normals), self._rows, size)

    def _count_call(self) -> None:
        if self._active is None:
            self._common_calls += 1
        else:
            before = 0 if self._calls_by_client is None else self._calls_by_client
            self._calls_by_client = before + self._active

    def _clipped(self, *parts: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return gradients ``[C, ...]``, scaled down to the norm :attr:`clip`; others keep their bits."""
        if self.clip is None:
            return parts
        scaled = [scaled_norm(part.flatten(1)) for part in parts]
        if self.clip_jointly:
            scale = scaled_norm(torch.cat([norm / scale for _, norm, scale in scaled], dim=1))[2]
            rows = [part.flatten(1) * scale for part in parts]
            norms = torch.stack([torch.linalg.vector_norm(row, dim=1, keepdim=True) for row in rows])
            scaled = [(row, norms.square().sum(0).sqrt(), scale) for row in rows]
        exceeds = [norm > self.clip * scale for _, norm, scale in scaled]
        clipped = torch.cat(exceeds, dim=1).any(dim=1)
        self.clipped += clipped if self._active is None else clipped & self._mask
        factors = [
            torch.where(above, self.clip / norm, 1 / scale)
            for above, (_, norm, scale) in zip(exceeds, scaled)
        ]
        return tuple((row * f).view_as(part) for part, (row, *_), f in zip(parts, scaled, factors))

    def _by_rows(self, evaluate, point: Sequence[torch.Tensor], xi: Sample):
        """Return ``evaluate(point, xi)`` with a client axis, also for minibatches of different sizes.

        Clients with equal numbers of rows are evaluated together, and a single one with a copy of itself, so
        that no bits depend on the other clients. Clients that do not take a step of :meth:`steps` are left
        out: their results are undefined.

        Args:
            point: blocks, ``[C, d]`` or ``[d]``.
        """
        if xi.rows is None:
            return evaluate(point, xi)
        # Compiled code is specialised to the number of clients.
        is_partial = self._active is not None and self.evaluation.compile == "none"
        rows = xi.rows * self._active if is_partial else xi.rows
        sizes = np.unique(rows)
        if len(sizes) == 1 and sizes[0] == xi.batch[0].shape[1]:
            return evaluate(point, xi)
        results, position, stop, count = [], np.zeros_like(rows), 0, self._count
        try:
            for size in sizes[sizes > 0].tolist():
                clients = np.flatnonzero(rows == size)
                position[clients] = np.arange(stop, stop + len(clients))
                if len(clients) == 1:
                    clients = clients.repeat(2)
                index, self._count = to_device(clients, self.sampler.device), len(clients)
                blocks = [block if block.dim() == 1 else block.index_select(0, index) for block in point]
                results.append(evaluate(blocks, xi.of_clients(index, size)))
                stop += len(clients)
        finally:
            self._count = count
        order = to_device(position, self.sampler.device)
        return mapped(lambda *parts: torch.cat(parts).index_select(0, order), *results)

    def _stack_over_clients(self, evaluate, *points):
        """Stack the results of ``evaluate(*points, batch)`` on all data of each client."""
        rows = [
            evaluate(*(point[c] if point.dim() > 1 else point for point in points), batch)
            for c, batch in enumerate(self.sampler.client_batches(self._rows))
        ]
        return mapped(lambda *results: torch.stack(results), rows[0], *rows[1:])

    def _with_options(self, name: str):
        """Return a loss with the dropout masks and the augmentation of its sample and the job's precision."""
        function = on_stored_data(self.problem, name)
        if self.sampler.has_addresses:
            function = with_dropout_words(function, key(self.sampler.seed, "dropout"))
        if self.problem.augment is not None:
            augment = on_stored_data(self.problem, "augment")
            function = with_augmentation(function, augment, key(self.sampler.seed, "augment"))
        return self.evaluation.mixed(function, self.sampler.device)

    def _over_clients(self, name: str):
        """Return an analytic function of the problem that is safe to vectorise; ``None`` without one."""
        analytic = on_stored_data(self.problem, name)
        return position_independent(analytic) if self.batched and analytic is not None else analytic

    def _vectorised(self, function):
        """Return a function of one client as a function of C clients, compiled if the job requests it."""
        if self.batched and self.evaluation.compile == "none":
            return vectorised(function)
        if self.batched:
            return self.evaluation.compiled(torch.func.vmap(function), None)  # any layout
        single = self.evaluation.compiled(function, False)

        def with_axis(*arguments):
            result = single(*mapped(lambda tensor: tensor[0], arguments))
            return mapped(lambda tensor: tensor.unsqueeze(0), result)

        return with_axis


def _is_whole(value) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _address(number, round) -> int:
    """Validate an address and return the number of the sample."""
    if number is None:
        raise ContractError(
            f"oracle.sample(round={round}): expected the number of a sample of that round, too, as in "
            "oracle.sample(number=0, round=1)"
        )
    for name, value in (("number", number), ("round", round)):
        if value is not None and not (_is_whole(value) and value >= 0):
            raise ContractError(f"oracle.sample({name}={value}): expected an integer >= 0")
    return int(number)


class ProximalTerm(NamedTuple):
    """A regularisation term whose gradient is added to the gradients of a block v.

    The gradient is weight · (v - centre) for x, which descends, and its negative for y, which ascends.

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
        loss, blocks, names = self._with_options("loss"), self.blocks, tuple(self.blocks)
        self._gradients = Gradients(loss, blocks)
        self._analytic = self._over_clients("gradients")
        self._split = tuple(self.blocks.sizes.values())

        def loss_at(*point_and_batch):  # one client at flat blocks [d]
            *point, batch = point_and_batch
            return loss(*map(blocks.unflatten, names, point), batch)

        by_blocks = torch.func.grad(loss_at, tuple(range(len(blocks))))
        self._compiled = None if evaluation.compile == "none" else self._vectorised(by_blocks)
        self._terms: Sequence[ProximalTerm] = ()

    def _on_minibatch(self, point: Sequence[torch.Tensor], xi: Sample) -> Sequence[torch.Tensor]:
        """Evaluate the gradients at a point on a minibatch."""
        if self._analytic is not None:
            return self._as_tuple(self._analytic(*self._with_same_axes(point), xi.batch))
        if self._compiled is not None:
            return self._compiled(*(block.expand(self._count, -1) for block in point), xi.loss_input)
        if self.batched:
            return self._blocks_of(self._gradients.several(point, xi.loss_input, self._count))
        return self._blocks_of(self._gradients.single(point, xi.single_loss_input))

    def add_terms(self, terms: Sequence[ProximalTerm]) -> None:
        """Add the gradients of these terms to all following results of :meth:`grad`."""
        self._terms = terms

    def grad(self, x: torch.Tensor, *rest):
        """``grad(x, y, ξ)``: return ∇_x f_n(x, y; ξ) ``[C, dx]`` and ∇_y f_n(x, y; ξ) ``[C, dy]``.

        For a problem without y, the second is empty, and ``grad(x, ξ)`` returns ∇f_n(x; ξ).
        """
        xi, number = rest[-1] if rest else None, len(self._split)
        if not isinstance(xi, Sample) or not (len(rest) == 2 or len(rest) == number):
            blocks, got = ", ".join(self.blocks), ", ".join(type(value).__name__ for value in (x, *rest))
            raise ContractError(
                f"expected oracle.grad({blocks}, xi) for a problem with the blocks {blocks}, got "
                f"oracle.grad({got})"
            )
        self._count_call()
        point = (x, *rest[:-1])[:number]
        if xi.is_full_batch:
            gradients = self._stack_over_clients(self._evaluate_client, *point)
        else:
            gradients = self._by_rows(self._on_minibatch, point, xi)
        if xi.noise is not None:
            gradients = [g + noise for g, noise in zip(gradients, xi.noise.split(self._split, dim=-1))]
        for block, weight, centre in self._terms:
            term = weight * (point[block] - centre)
            changed = gradients[block] - term if block else gradients[block] + term
            gradients = [*gradients[:block], changed, *gradients[block + 1 :]]
        gradients = self._clipped(*gradients)
        if len(rest) == 1:
            return gradients[0]
        return gradients if number > 1 else (*gradients, gradients[0].new_empty(self._count, 0))

    def _with_same_axes(self, point):
        """Return the blocks of a point, all with the client axis if one block has it."""
        if point[0].dim() == point[-1].dim():  # at most two blocks
            return point
        return tuple(block.expand(self._count, -1) for block in point)

    def _as_tuple(self, gradients):
        return gradients if isinstance(gradients, tuple | list) else (gradients,)

    def _evaluate_client(self, *arguments):
        """``_evaluate_client(*point, batch)``: return the gradients of one client, ``[d]`` per block."""
        *point, batch = arguments
        if self.problem.gradients is not None:
            blocks = [block.unsqueeze(0) for block in point]
            batches = tuple(column.unsqueeze(0) for column in batch)
            gradients = on_stored_data(self.problem, "gradients")
            return tuple(g[0] for g in self._as_tuple(gradients(*blocks, batches)))
        return tuple(g[0] for g in self._blocks_of(self._gradients.single(point, batch)))

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
        self._operator = self._over_clients("operator")
        self._game: MinimaxOracle | None = None
        self._split: tuple[int, ...] = ()
        if isinstance(problem, Game):
            self._game = MinimaxOracle(problem.problem, sampler, batched, evaluation)
            self._split = problem.split

    def select_clients(self, rows: slice) -> None:
        super().select_clients(rows)
        if self._game:
            self._game.select_clients(rows)

    def add_terms(self, terms: Sequence[ProximalTerm]) -> None:
        """Add terms to the gradients of the game's minimax problem."""
        assert self._game is not None
        self._game.add_terms(terms)

    def operator(self, z: torch.Tensor, xi: Sample) -> torch.Tensor:
        """Return V_n(z; ξ), ``[C, d]``."""
        self._count_call()
        if self._game:
            gx, gy = self._clipped(*self._game.grad(*z.split(self._split, dim=-1), xi))
            return torch.cat([gx, -gy], dim=-1)
        if xi.is_full_batch:
            value = self._stack_over_clients(self._evaluate_client, z)
        else:
            value = self._by_rows(lambda point, xi: self._operator(*point, xi.batch), (z,), xi)
        return self._clipped(value if xi.noise is None else value + xi.noise)[0]

    def _evaluate_client(self, z, batch):
        operator = on_stored_data(self.problem, "operator")
        return operator(z.unsqueeze(0), tuple(column.unsqueeze(0) for column in batch))[0]


class CompositionOracle(Oracle):
    """Oracle of g_n, its Jacobian, and ∇f_n.

    Jacobians are dense, ``[C, p, d]``: analytic, or by forward or reverse mode, whichever is cheaper. They
    are clipped in the Frobenius norm, and ∇f in the Euclidean norm; inner values are not clipped.
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
        inner, outer, blocks = self._with_options("inner"), self._with_options("outer"), self.blocks

        def value(x, batch):
            return inner(blocks.unflatten("x", x), batch)

        def value_twice(x, batch):
            return (inner_value := value(x, batch)), inner_value

        functions = (value, jacobian(value_twice, has_aux=True), torch.func.grad(outer))
        self._g, self._derive, self._gradient = [(f, self._vectorised(f)) for f in functions]
        self._jacobian = self._over_clients("jacobian")
        self._outer_gradient = self._over_clients("outer_gradient")

    @staticmethod
    def noise_width(problem: Problem) -> int:
        """Return the size of the noise of g, its Jacobian, and ∇f."""
        sizes = problem.field_sizes()
        return 2 * sizes["u"] + sizes["jacobian"]

    def _noise(self, noise: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return noise.split((self._p, self._p * self._d, self._p), dim=-1)

    def _evaluate(self, automatic, analytic, point: torch.Tensor, xi: Sample):
        """Evaluate a function of one point and one batch for all clients.

        Args:
            automatic: a function of one client and its vectorised version; used without ``analytic``.
            analytic: an analytic function with the client axis, or ``None``.
        """
        self._count_call()
        point = point.expand(self._count, -1)
        if analytic is None:
            single, several = automatic
            if xi.is_full_batch:
                return self._stack_over_clients(single, point)
            return self._by_rows(lambda point, xi: several(*point, xi.loss_input), (point,), xi)
        if not xi.is_full_batch:
            return self._by_rows(lambda point, xi: analytic(*point, xi.batch), (point,), xi)
        return self._stack_over_clients(
            lambda x, batch: mapped(
                lambda t: t[0], analytic(x[None], tuple(column[None] for column in batch))
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
        return value, self._clipped(jacobian)[0]

    def grad_f(self, u: torch.Tensor, xi: Sample) -> torch.Tensor:
        """Return ∇f_n(u; ξ), ``[C, p]``."""
        value = self._evaluate(self._gradient, self._outer_gradient, u, xi)
        return self._clipped(value if xi.noise is None else value + self._noise(xi.noise)[2])[0]


class BilevelOracle(Oracle):
    """Oracle of ∇f_n, of ∇_y g_n, and of products of the second derivatives of g_n with a vector.

    No matrix is formed: one reverse pass through ∇_y g_n gives both products. Gradients are clipped; products
    are not.
    """

    problem: Bilevel

    def __init__(self, problem: Bilevel, sampler: Sampler, batched: bool, evaluation=PLAIN):
        super().__init__(problem, sampler, batched, evaluation)
        self._upper = Gradients(self._with_options("upper"), self.blocks)
        self._lower = Gradients(self._with_options("lower"), self.blocks)
        self._split = tuple(self.blocks.sizes.values())

    @staticmethod
    def noise_width(problem: Problem) -> int:
        """Return the size of the noise of ∇f, ∇_y g, and the products."""
        dx, dy = problem.variables().sizes.values()
        return 2 * dx + 3 * dy

    def _gradients(
        self, of: Gradients, point: tuple[torch.Tensor, ...], xi: Sample
    ) -> Sequence[torch.Tensor]:
        """Return the gradients in x and y without noise, ``[C, dx]`` and ``[C, dy]``."""
        self._count_call()
        if xi.is_full_batch:
            value = self._stack_over_clients(lambda x, y, batch: of.single((x, y), batch)[0], *point)
        elif self.batched:
            value = self._by_rows(lambda point, xi: of.several(point, xi.loss_input, self._count), point, xi)
        else:
            value = of.single(point, xi.single_loss_input)
        return [*torch.split_with_sizes(value, self._split, 1)]

    def upper_grad(self, x: torch.Tensor, y: torch.Tensor, xi: Sample) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ∇_x f_n(x, y; ξ) ``[C, dx]`` and ∇_y f_n(x, y; ξ) ``[C, dy]``."""
        gradients = self._gradients(self._upper, (x, y), xi)
        if xi.noise is not None:
            gradients = [g + noise for g, noise in zip(gradients, self._noise(xi.noise))]
        gx, gy = self._clipped(*gradients)
        return gx, gy

    def lower_grad(self, x: torch.Tensor, y: torch.Tensor, zeta: Sample) -> torch.Tensor:
        """Return ∇_y g_n(x, y; ζ), ``[C, dy]``."""
        value = self._gradients(self._lower, (x, y), zeta)[1]
        return self._clipped(value if zeta.noise is None else value + self._noise(zeta.noise)[2])[0]

    def lower_products(
        self, x: torch.Tensor, y: torch.Tensor, v: torch.Tensor, zeta: Sample
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ∇²_xy g_n(x, y; ζ) v ``[C, dx]`` and ∇²_yy g_n(x, y; ζ) v ``[C, dy]``, for v ``[C, dy]`` or
        ``[dy]``."""
        self._count_call()
        if zeta.is_full_batch:
            value = self._stack_over_clients(self._products_of_client, x, y, v)
        elif self.batched:
            value = self._by_rows(self._products_of_clients, (x, y, v), zeta)
        else:
            value = self._lower.products((x, y), v, zeta.single_loss_input)
        products = [*torch.split_with_sizes(value, self._split, 1)]
        if zeta.noise is not None:
            products = [p + noise for p, noise in zip(products, self._noise(zeta.noise)[3:])]
        return products[0], products[1]

    def _products_of_client(self, x, y, v, batch):
        return self._lower.products((x, y), v, batch)[0]

    def _products_of_clients(self, point, zeta):
        x, y, v = point
        return self._lower.products((x, y), v, zeta.loss_input, self._count)

    def _noise(self, noise: torch.Tensor) -> tuple[torch.Tensor, ...]:
        dx, dy = self._split
        return noise.split((dx, dy, dy, dx, dy), dim=-1)


ORACLES = {
    "minimax": MinimaxOracle,
    "operator": OperatorOracle,
    "composition": CompositionOracle,
    "bilevel": BilevelOracle,
}
#: Problem family → evaluation of all derivatives of a client's step.
EVALUATIONS: dict[str, Callable[..., Any]] = {
    "minimax": lambda oracle, *point_and_xi: oracle.grad(*point_and_xi),
    "operator": lambda oracle, z, xi: oracle.operator(z, xi),
    "composition": lambda oracle, x, xi: oracle.grad_f(oracle.g_and_jacobian(x, xi)[0], xi),
    "bilevel": lambda oracle, x, y, xi: (
        *oracle.upper_grad(x, y, xi), *oracle.lower_products(x, y, oracle.lower_grad(x, y, xi), xi)
    ),
}  # fmt: skip
