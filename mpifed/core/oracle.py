"""Stochastic oracles: what an algorithm may ask of the clients it steps, one class a problem family.

All results have the client axis, ``[C, d]``; points may be ``[C, d]`` or ``[d]`` (shared by all clients). ``batched`` maps a
problem's functions over the client axis at once; otherwise there is one client. Evaluations are counted in ``calls``: one
evaluation at one sample ξ (a minibatch is one ξ) of one client is one call; a gradient pair (x and y) is one, as is an inner
value with or without its Jacobian.
"""

from __future__ import annotations

import warnings

import torch

from mpifed.core.problem import Game, Problem
from mpifed.core.records import Blocks
from mpifed.core.sampling import Sample, Sampler

__all__ = ["ORACLES", "MinimaxOracle", "OperatorOracle", "CompositionOracle"]


class _Oracle:
    """What all oracles share.

    Attributes:
        sets: the problem's sets, ``oracle.sets.y(v)`` projects.
        blocks: names and shapes of the parameters of each block.
        calls: evaluations so far.
    """

    def __init__(self, problem: Problem, sampler: Sampler, batched: bool):
        self.problem, self.sampler, self.batched = problem, sampler, batched
        self.blocks: Blocks = problem.variables()
        self.sets = problem.sets
        self.calls = 0

    @staticmethod
    def noise_width(problem: Problem) -> int:
        """Numbers of noise that a sample carries: one for each number that an evaluation returns."""
        return sum(problem.variables().sizes.values())

    def at(self, rows: slice, counted: int | None = None) -> None:
        """Turn to the clients ``members[rows]`` of the sampler's current round; ``counted`` of them are no padding."""
        self._rows, self._count = rows, rows.stop - rows.start
        self._counted = self._count if counted is None else counted

    def sample(self, k: int, round: int | None = None) -> Sample:
        """The k-th sample ξ (k = 0, 1, ...) of the round, or of another round: the same address gives the same ξ."""
        return self.sampler.sample(k, self._rows, round)

    def normal(self, k: int, size: int) -> torch.Tensor:
        """Standard normal vector number ``k`` of the round, ``[C, size]``, for smoothing."""
        return self.sampler.normal(k, self._rows, size)

    def _map(self, function, *arguments):
        """``function`` of named parameters, vectors and batches for every client: results with the client axis."""
        if self.batched:
            return torch.func.vmap(function)(*arguments)
        result = function(*torch.utils._pytree.tree_map(lambda tensor: tensor[0], arguments))
        return torch.utils._pytree.tree_map(lambda tensor: tensor.unsqueeze(0), result)


class MinimaxOracle(_Oracle):
    """∇_x f_n and ∇_y f_n."""

    def __init__(self, problem: Problem, sampler: Sampler, batched: bool):
        super().__init__(problem, sampler, batched)
        self._workspaces: dict[int, _Workspace] = {}
        self._loss = torch.func.vmap(problem.loss) if batched else problem.loss
        self._split = (self.blocks.sizes["x"], self.blocks.sizes["y"])

    def grad(self, x: torch.Tensor, y: torch.Tensor, xi: Sample) -> tuple[torch.Tensor, torch.Tensor]:
        """∇_x f_n(x, y; ξ) and ∇_y f_n(x, y; ξ), ``[C, dx]`` and ``[C, dy]``."""
        self.calls += self._counted
        if self.problem.gradients is not None:
            gx, gy = self.problem.gradients(x, y, xi.batch)
        else:
            gx, gy = self._differentiate(x, y, xi.batch)
        if xi.noise is not None:
            noise_x, noise_y = xi.noise.split(self._split, dim=-1)
            gx, gy = gx + noise_x, gy + noise_y
        return gx, gy

    def _differentiate(self, x, y, batch):
        if self._count not in self._workspaces:
            self._workspaces[self._count] = _Workspace(self.blocks, self._count, self.batched, x)
        work = self._workspaces[self._count]
        work.x.copy_(x)
        work.y.copy_(y)
        with torch.enable_grad():
            if self.batched:
                loss = self._loss(*work.named, batch).sum()  # clients are independent: one gradient each
                gradient = _flat(torch.autograd.grad(loss, work.leaves, materialize_grads=True), self._count)
            else:
                work.gradient.zero_()
                self._loss(*work.named, tuple(column[0] for column in batch)).backward()
                gradient = work.gradient.clone()
        return gradient.split(self._split, dim=1)


class _Workspace:
    """A flat point ``[C, dx + dy]`` whose named parameters are leaves of the autograd graph.

    For one client the leaves' gradients are views of ``gradient``, so that backward() leaves the flat gradient behind without
    a copy a parameter. Rows of several clients are strided, which that does not allow.
    """

    def __init__(self, blocks: Blocks, count: int, batched: bool, like: torch.Tensor):
        split = (blocks.sizes["x"], blocks.sizes["y"])
        point, self.gradient = like.new_zeros(count, sum(split)), like.new_zeros(count, sum(split))
        self.x, self.y = point.split(split, dim=1)
        flat = (self.x, self.y) if batched else (self.x[0], self.y[0])
        self.named = [
            {name: view.detach().requires_grad_() for name, view in blocks.unflatten(block, one).items()}
            for block, one in zip("xy", flat)
        ]
        self.leaves = [leaf for named in self.named for leaf in named.values()]
        if not batched:
            for block, named, gradient in zip("xy", self.named, self.gradient[0].split(split)):
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

    def at(self, rows: slice, counted: int | None = None) -> None:
        super().at(rows, counted)
        if self._game:
            self._game.at(rows, counted)

    def operator(self, z: torch.Tensor, xi: Sample) -> torch.Tensor:
        """V_n(z; ξ), ``[C, d]``."""
        self.calls += self._counted
        if self._game:
            x, y = z.split(self.problem.split, dim=-1)
            gx, gy = self._game.grad(x, y, xi)
            return torch.cat([gx, -gy], dim=-1)
        value = self.problem.operator(z, xi.batch)
        return value if xi.noise is None else value + xi.noise


class CompositionOracle(_Oracle):
    """g_n, its Jacobian, and ∇f_n. Jacobians are dense, ``[C, p, d]``, forward or reverse, whichever needs fewer sweeps."""

    def __init__(self, problem: Problem, sampler: Sampler, batched: bool):
        super().__init__(problem, sampler, batched)
        self._p, self._d = problem.inner_size, self.blocks.sizes["x"]
        if self._p > self._d:
            with warnings.catch_warnings():  # torch deprecates a part of itself on first use of forward mode
                warnings.simplefilter("ignore", DeprecationWarning)
                torch.func.jvp(torch.sin, (torch.zeros(1),), (torch.ones(1),))
        self._jacobian = (torch.func.jacrev if self._p <= self._d else torch.func.jacfwd)(
            self._inner, has_aux=True
        )
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

    def _expanded(self, point: torch.Tensor) -> torch.Tensor:
        return point.expand(self._count, -1)

    def g(self, x: torch.Tensor, zeta: Sample) -> torch.Tensor:
        """g_n(x; ζ), ``[C, p]``."""
        self.calls += self._counted
        value = self._map(lambda point, batch: self._inner(point, batch)[0], self._expanded(x), zeta.batch)
        return value if zeta.noise is None else value + self._noise(zeta)[0]

    def g_and_jacobian(self, x: torch.Tensor, zeta: Sample) -> tuple[torch.Tensor, torch.Tensor]:
        """g_n(x; ζ), ``[C, p]``, and its Jacobian, ``[C, p, d]``, from one evaluation of one sample."""
        self.calls += self._counted
        jacobian, value = self._map(self._jacobian, self._expanded(x), zeta.batch)
        if zeta.noise is not None:
            noise_g, noise_j, _ = self._noise(zeta)
            value, jacobian = value + noise_g, jacobian + noise_j.reshape(jacobian.shape)
        return value, jacobian

    def grad_f(self, u: torch.Tensor, xi: Sample) -> torch.Tensor:
        """∇f_n(u; ξ), ``[C, p]``."""
        self.calls += self._counted
        value = self._map(self._gradient, self._expanded(u), xi.batch)
        return value if xi.noise is None else value + self._noise(xi)[2]


ORACLES = {"minimax": MinimaxOracle, "operator": OperatorOracle, "composition": CompositionOracle}
