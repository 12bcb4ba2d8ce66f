"""Stochastic oracles: what a method may ask of the clients it steps, one class a problem family.

All results have the client axis, ``[C, d]``; points may be ``[C, d]`` or ``[d]`` (shared by all clients). ``batched`` maps a
problem's functions over the client axis at once; otherwise there is one client. Evaluations are counted in ``calls``: one
evaluation at one sample ξ (a minibatch is one ξ) of one client is one call; a gradient pair (x and y) is one, as is an inner
value with or without its Jacobian.

Samples are dealt out by count, ``oracle.sample()``, through all phases of a round, so that no method numbers them by hand.
A method that wants one sample again names it, ``oracle.sample(number=k)``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import torch
from torch.utils._pytree import tree_map

from mpifed.core.errors import ContractError
from mpifed.core.problem import Game, Problem
from mpifed.core.records import Blocks
from mpifed.core.sampling import Sample, Sampler

__all__ = ["ORACLES", "CompositionOracle", "MinimaxOracle", "OperatorOracle"]


class _Oracle:
    """What all oracles share.

    Attributes:
        sets: the problem's sets, ``oracle.sets.y(v)`` projects.
        blocks: names and shapes of the parameters of each block.
        client: the numbers of the clients that are stepped, ``[C]``.
        calls: evaluations by each of them so far, ``[C]``.
    """

    def __init__(self, problem: Problem, sampler: Sampler, batched: bool):
        self.problem, self.sampler, self.batched = problem, sampler, batched
        self.blocks: Blocks = problem.variables()
        self.sets = problem.sets
        self.calls = np.zeros(0, dtype=np.int64)

    @staticmethod
    def noise_width(problem: Problem) -> int:
        """Numbers of noise that a sample carries: one for each number that an evaluation returns."""
        return sum(problem.variables().sizes.values())

    def at(self, rows: slice) -> None:
        """Turn to the clients ``members[rows]`` of the sampler's current phase."""
        self._rows, self._count, self._on = rows, rows.stop - rows.start, None
        self._places = self.sampler.members[rows]
        self.client = self.sampler.clients[self._places]
        self.calls = np.zeros(self._count, dtype=np.int64)

    def sample(
        self, *, size: int | None = None, of: str = "", number: int | None = None, round: int | None = None
    ) -> Sample:
        """The next sample ξ of the clients' round, counted through its phases.

        Args:
            size: rows of the minibatch, by default the job's batch size.
            of: "g" or "f": which of a composition's functions it is for.
            number: a sample by its number 0, 1, ... instead of the next one; the same address gives the same ξ.
            round: with ``number``, the sample of another round.

        Raises:
            ContractError: the round has both counted and named samples, or a size is below 1.
        """
        if size is not None and size < 1:
            raise ContractError(f"oracle.sample(size={size}): expected at least 1 row")
        if number is None and round is not None:
            raise ContractError(f"oracle.sample(round={round}) needs a number")
        self.sampler.ask("counted" if number is None else "named")
        k = self._deal(self.sampler.numbers) if number is None else number
        return self.sampler.sample(k, self._rows, round=round, size=size, of=of)

    def _deal(self, numbers: np.ndarray):
        """The next number of the clients that are not done: one for all where they agree, else one each."""
        own = numbers[self._places]
        numbers[self._places] = own + (1 if self._on is None else self._on)
        return int(own[0]) if (own == own[0]).all() else own

    @property
    def everything(self) -> Sample:
        """All data of each client, without noise or address: evaluated client by client, for a full local gradient."""
        return Sample(None, None)

    def steps(self, tau) -> Iterator[torch.Tensor]:
        """Steps of clients that take different numbers of them: ``for on in oracle.steps(tau)``.

        Args:
            tau: each client's number of steps ``[C]``, or one for all.

        Yields:
            Which clients take the step, boolean ``[C, 1]``, for ``torch.where(on, new, old)``. Who is done neither draws
            nor counts.
        """
        tau = np.broadcast_to(np.asarray(tau, dtype=np.int64), (self._count,))
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
        self.calls += 1 if self._on is None else self._on

    def _each(self, evaluate, *points):
        """``evaluate(*points, batch)`` of one client after another on all data of each: results with the client axis."""
        rows = [
            evaluate(*(point[c] if point.dim() > 1 else point for point in points), batch)
            for c, batch in enumerate(self.sampler.each(self._rows))
        ]
        return tree_map(lambda *parts: torch.stack(parts), rows[0], *rows[1:])

    def _map(self, function, *arguments):
        """``function`` of named parameters, vectors and batches for every client: results with the client axis."""
        if self.batched:
            return torch.func.vmap(function)(*arguments)
        result = function(*tree_map(lambda tensor: tensor[0], arguments))
        return tree_map(lambda tensor: tensor.unsqueeze(0), result)


class MinimaxOracle(_Oracle):
    """∇_x f_n and ∇_y f_n; without a block y, ∇f_n."""

    def __init__(self, problem: Problem, sampler: Sampler, batched: bool):
        super().__init__(problem, sampler, batched)
        self._workspaces: dict[tuple[int, bool], _Workspace] = {}
        self._mapped = torch.func.vmap(problem.loss)
        self._split = tuple(self.blocks.sizes.values())

    def grad(self, x: torch.Tensor, *rest):
        """``grad(x, y, ξ)``: ∇_x f_n(x, y; ξ) and ∇_y f_n(x, y; ξ), ``[C, dx]`` and ``[C, dy]``.

        On a problem without y, the second is empty, and ``grad(x, ξ)`` is the gradient alone.
        """
        *others, xi = rest
        if len(others) != 1 and "y" in self.blocks:
            raise ContractError("this problem has a block y: oracle.grad(x, y, xi), got oracle.grad(x, xi)")
        self._evaluated()
        point = (x, *others)[: len(self.blocks)]
        if xi.batch is None:
            gradients = self._each(self._of_one, *point)
        elif self.problem.gradients is not None:
            gradients = self._tuple(self.problem.gradients(*point, xi.batch))
        else:
            gradients = self._differentiate(point, xi.batch, self._count, self.batched)
        if xi.noise is not None:
            gradients = [g + noise for g, noise in zip(gradients, xi.noise.split(self._split, dim=-1))]
        if not others:
            return gradients[0]
        return gradients if len(gradients) > 1 else (*gradients, gradients[0].new_empty(self._count, 0))

    def _tuple(self, gradients):
        return gradients if isinstance(gradients, tuple | list) else (gradients,)

    def _of_one(self, *arguments):
        """The gradients of one client on its batch, without the client axis."""
        *point, batch = arguments
        if self.problem.gradients is not None:
            points, batches = [one.unsqueeze(0) for one in point], tuple(column.unsqueeze(0) for column in batch)
            return tuple(g[0] for g in self._tuple(self.problem.gradients(*points, batches)))
        return tuple(g[0] for g in self._differentiate(point, [column.unsqueeze(0) for column in batch], 1, False))

    def _differentiate(self, point, batch, count: int, batched: bool):
        if (count, batched) not in self._workspaces:
            self._workspaces[count, batched] = _Workspace(self.blocks, count, batched, point[0])
        work = self._workspaces[count, batched]
        for view, value in zip(work.point, point):
            view.copy_(value)
        with torch.enable_grad():
            if batched:
                loss = self._mapped(*work.named, batch).sum()  # clients are independent: one gradient each
                gradient = _flat(torch.autograd.grad(loss, work.leaves, materialize_grads=True), count)
            else:
                work.gradient.zero_()
                self.problem.loss(*work.named, tuple(column[0] for column in batch)).backward()
                gradient = work.gradient.clone()
        return gradient.split(self._split, dim=1)


class _Workspace:
    """A flat point ``[C, dx + dy]`` whose named parameters are leaves of the autograd graph.

    For one client the leaves' gradients are views of ``gradient``, so that backward() leaves the flat gradient behind without
    a copy a parameter. Rows of several clients are strided, which that does not allow.
    """

    def __init__(self, blocks: Blocks, count: int, batched: bool, like: torch.Tensor):
        split = tuple(blocks.sizes.values())
        point, self.gradient = like.new_zeros(count, sum(split)), like.new_zeros(count, sum(split))
        self.point = point.split(split, dim=1)
        flat = self.point if batched else [part[0] for part in self.point]
        self.named = [
            {name: view.detach().requires_grad_() for name, view in blocks.unflatten(block, one).items()}
            for block, one in zip(blocks, flat)
        ]
        self.leaves = [leaf for named in self.named for leaf in named.values()]
        if not batched:
            for block, named, gradient in zip(blocks, self.named, self.gradient[0].split(split)):
                for leaf, view in zip(named.values(), blocks.unflatten(block, gradient).values()):
                    leaf.grad = view


def _flat(gradients: tuple[torch.Tensor, ...], count: int) -> torch.Tensor:
    """The gradients of all parameters, one row a client."""
    return torch.cat([gradient.reshape(count, -1) for gradient in gradients], dim=1)


class OperatorOracle(_Oracle):
    """V_n, for variational inequalities and for minimax problems seen as games."""

    def __init__(self, problem: Problem, sampler: Sampler, batched: bool):
        super().__init__(problem, sampler, batched)
        self.prox = problem.phi
        self._game = MinimaxOracle(problem.problem, sampler, batched) if isinstance(problem, Game) else None

    def at(self, rows: slice) -> None:
        super().at(rows)
        if self._game:
            self._game.at(rows)

    def operator(self, z: torch.Tensor, xi: Sample) -> torch.Tensor:
        """V_n(z; ξ), ``[C, d]``."""
        self._evaluated()
        if self._game:
            gx, gy = self._game.grad(*z.split(self.problem.split, dim=-1), xi)
            return torch.cat([gx, -gy], dim=-1)
        if xi.batch is None:
            return self._each(self._of_one, z)
        value = self.problem.operator(z, xi.batch)
        return value if xi.noise is None else value + xi.noise

    def _of_one(self, z, batch):
        return self.problem.operator(z.unsqueeze(0), tuple(column.unsqueeze(0) for column in batch))[0]


class CompositionOracle(_Oracle):
    """g_n, its Jacobian, and ∇f_n.

    Jacobians are dense, ``[C, p, d]``: the problem's own, or forward or reverse, whichever needs fewer sweeps.
    """

    def __init__(self, problem: Problem, sampler: Sampler, batched: bool):
        super().__init__(problem, sampler, batched)
        self._p, self._d = problem.inner_size, self.blocks.sizes["x"]
        if self._p > self._d:
            with warnings.catch_warnings():  # torch deprecates a part of itself on first use of forward mode
                warnings.simplefilter("ignore", DeprecationWarning)
                torch.func.jvp(torch.sin, (torch.zeros(1),), (torch.ones(1),))
        self._derive = (torch.func.jacrev if self._p <= self._d else torch.func.jacfwd)(self._inner, has_aux=True)
        self._gradient = torch.func.grad(problem.outer)

    @staticmethod
    def noise_width(problem: Problem) -> int:
        """Noise for g, for its Jacobian, and for ∇f."""
        kinds = problem.kinds()
        return 2 * kinds["u"] + kinds["jacobian"]

    def _inner(self, x: torch.Tensor, batch):
        value = self.problem.inner(self.blocks.unflatten("x", x), batch)
        return value, value

    def _noise(self, xi: Sample) -> tuple[torch.Tensor, ...]:
        return xi.noise.split((self._p, self._p * self._d, self._p), dim=-1)

    def _evaluate(self, automatic, by_hand, point: torch.Tensor, xi: Sample):
        """A function of one point and one batch for all clients; ``by_hand`` takes the client axis itself."""
        self._evaluated()
        point = point.expand(self._count, -1)
        if by_hand is None:
            return self._each(automatic, point) if xi.batch is None else self._map(automatic, point, xi.batch)
        if xi.batch is not None:
            return by_hand(point, xi.batch)
        return self._each(
            lambda one, batch: tree_map(lambda t: t[0], by_hand(one[None], tuple(column[None] for column in batch))), point
        )

    def g(self, x: torch.Tensor, zeta: Sample) -> torch.Tensor:
        """g_n(x; ζ), ``[C, p]``."""
        value = self._evaluate(lambda point, batch: self._inner(point, batch)[0], None, x, zeta)
        return value if zeta.noise is None else value + self._noise(zeta)[0]

    def g_and_jacobian(self, x: torch.Tensor, zeta: Sample) -> tuple[torch.Tensor, torch.Tensor]:
        """g_n(x; ζ), ``[C, p]``, and its Jacobian, ``[C, p, d]``, from one evaluation of one sample."""
        if self.problem.jacobian is not None:
            value, jacobian = self._evaluate(None, self.problem.jacobian, x, zeta)
        else:
            jacobian, value = self._evaluate(self._derive, None, x, zeta)
        if zeta.noise is not None:
            noise_g, noise_j, _ = self._noise(zeta)
            value, jacobian = value + noise_g, jacobian + noise_j.reshape(jacobian.shape)
        return value, jacobian

    def grad_f(self, u: torch.Tensor, xi: Sample) -> torch.Tensor:
        """∇f_n(u; ξ), ``[C, p]``."""
        value = self._evaluate(self._gradient, self.problem.outer_gradient, u, xi)
        return value if xi.noise is None else value + self._noise(xi)[2]


ORACLES = {"minimax": MinimaxOracle, "operator": OperatorOracle, "composition": CompositionOracle}
