"""The contracts of problems, one class a family, and the adapter that makes a game of a minimax problem.

A problem owns mathematics and data, and knows nothing of algorithms, ranks or the files of a run. It is a
dataclass of settings with a loss; gradients, flat views, sampling, devices and noise are the package's.

============  ========================================  ===================================================
class         what it solves                            what it defines, beside ``variables``
============  ========================================  ===================================================
Minimax       min over x, max over y of a loss          ``loss`` or ``gradients``
Minimisation  min over x of a loss                      ``loss`` or ``gradients``
Operator      a variational inequality in z             ``operator``
Composition   min over x of an outer of an inner map    ``inner_size``, ``inner``, ``outer``
============  ========================================  ===================================================

Data come from ``client_data``, whose rows are drawn for minibatches, or from ``draw``, which makes samples;
not from both. Functions get one argument a block: without a block y a loss is ``loss(x, batch)``.

Shapes: C clients are evaluated together, d is the size of a block, b the number of rows of a minibatch.
Functions that are differentiated (``loss``, ``inner``, ``outer``) see *one* client, named parameters and a
batch ``[b, ...]``. Functions written by hand (``gradients``, ``operator``, ``jacobian``, ``outer_gradient``)
see *all* clients, batches ``[C, b, ...]`` and flat points: all blocks ``[C, d]``, or all ``[d]``, shared by
all clients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, cast

import numpy as np
import torch

from mpifed.core.errors import ContractError
from mpifed.core.problem_base import Batch, DataFile, Named, Problem
from mpifed.core.proximal import Separable, Zero
from mpifed.core.records import Blocks
from mpifed.core.sets import IndicatorOf, Sets

__all__ = [
    "Problem",
    "Minimax",
    "Minimisation",
    "Operator",
    "Composition",
    "DataFile",
    "Game",
    "Named",
    "as_family",
    "defines",
]


class Minimax(Problem):
    """min_x max_y (1/N) Σ_n f_n(x, y).

    Define :meth:`loss`, which is differentiated, or ``gradients`` by hand, or both: `mpifed check` compares
    them. Without a block y see :class:`Minimisation`. Regression that is robust to a common shift y of the
    targets::

        @dataclass
        class Shifted(Minimax):
            clients: int = 4

            def variables(self):
                return Blocks(x={"w": (5,)}, y={"shift": (1,)})

            def client_data(self, client):
                rows = generator(0, "rows", client).standard_normal((20, 6))
                return torch.from_numpy(rows[:, :5]), torch.from_numpy(rows[:, 5])

            def loss(self, x, y, batch):
                inputs, targets = batch
                return ((inputs @ x["w"] - targets - y["shift"]) ** 2).mean() - 2 * (y["shift"] ** 2).sum()
    """

    family = "minimax"
    layouts = (("x", "y"), ("x",))

    def loss(self, x: Named, y: Named, batch: Batch) -> torch.Tensor:
        """f_n on a batch of client n: a scalar.

        ``x`` and ``y`` are named parameters, ``batch`` is tensors ``[b, ...]``. Must be a pure function of
        them (no in-place writes, no data-dependent Python branches), so that it can be mapped over clients.
        """
        raise ContractError(f"{type(self).__name__} must define loss() or gradients()")

    #: By hand: ``gradients(x, y, batch) -> (gx, gy)`` with flat blocks ``[C, d]`` or ``[d]`` (shared by all
    #: clients), ``batch`` tensors ``[C, b, ...]``, and ``gx``, ``gy`` of shape ``[C, d]``; without y
    #: ``gradients(x, batch)`` returns ``gx`` alone. ``None``: differentiate ``loss``.
    gradients: ClassVar[Callable[..., Any] | None] = None
    #: For measures: ``best_response(x) -> y* [dy]`` maximises (1/N) Σ_n f_n(x, ·). ``None``: found by ascent.
    best_response: ClassVar[Callable[..., Any] | None] = None


class Minimisation(Problem):
    """min_x (1/N) Σ_n f_n(x): a plain loss, for every minimax method that a problem without y makes sense to.

    Least squares::

        @dataclass
        class LeastSquares(Minimisation):
            clients: int = 4

            def variables(self):
                return Blocks(x={"w": (5,)})

            def client_data(self, client):
                rows = generator(0, "rows", client).standard_normal((20, 6))
                return torch.from_numpy(rows[:, :5]), torch.from_numpy(rows[:, 5])

            def loss(self, x, batch):
                inputs, targets = batch
                return ((inputs @ x["w"] - targets) ** 2).mean() / 2
    """

    family = "minimax"
    layouts = (("x",),)

    def loss(self, x: Named, batch: Batch) -> torch.Tensor:
        """f_n on a batch of client n: a scalar, a pure function of parameters and tensors ``[b, ...]``."""
        raise ContractError(f"{type(self).__name__} must define loss() or gradients()")

    #: By hand: ``gradients(x, batch) -> gx [C, d]`` with x flat, ``[C, d]`` or ``[d]`` (shared by all
    #: clients), and ``batch`` tensors ``[C, b, ...]``. ``None``: differentiate ``loss``.
    gradients: ClassVar[Callable[..., Any] | None] = None


class Operator(Problem):
    """Find z*: ⟨V(z), z* - z⟩ + φ(z*) - φ(z) ≤ 0 for all z, with V = (1/N) Σ_n V_n.

    The problem of Wang & Kale, sections 3 and 5. A rotation, whose solution is 0, with an ℓ1 norm on top::

        @dataclass
        class Rotation(Operator):
            clients: int = 4

            phi = L1(lam=0.1)
            monotone = True

            def variables(self):
                return Blocks(z={"z": (2,)})

            def client_data(self, client):
                return (torch.tensor([1.0 + client]),)  # one row: the client's speed

            def operator(self, z, batch):  # z: [C, 2] or [2]
                x, y = z.unbind(-1)
                return batch[0][:, :1] * torch.stack([y, -x], dim=-1)
    """

    family = "operator"
    layouts = (("z",),)
    #: The convex function φ of a composite problem, through its proximal map.
    phi: Callable[[torch.Tensor, float], torch.Tensor] = Zero()
    #: Whether V is monotone; ``None`` where nothing is claimed, and nothing checked.
    monotone: ClassVar[bool | None] = None

    def operator(self, z: torch.Tensor, batch: Batch) -> torch.Tensor:
        """V_n(z; batch), ``[C, d]``, of the clients stepped together.

        ``z`` is flat, ``[C, d]`` or ``[d]`` (shared by all clients), ``batch`` is tensors ``[C, b, ...]``.
        """
        raise ContractError(f"{type(self).__name__} must define operator()")


class Composition(Problem):
    """min_x (1/N) Σ_n E f_n(E g_n(x; ζ); ξ) (Huang, eq. 1).

    Define :meth:`inner` and :meth:`outer`, which are differentiated, or ``jacobian`` and ``outer_gradient``
    by hand. The entropic risk of a squared error, log E exp(g) with one inner value::

        @dataclass
        class Risk(Composition):
            clients: int = 4

            inner_size = 1

            def variables(self):
                return Blocks(x={"w": (5,)})

            def client_data(self, client):
                rows = generator(0, "rows", client).standard_normal((20, 6))
                return torch.from_numpy(rows[:, :5]), torch.from_numpy(rows[:, 5])

            def inner(self, x, batch):
                inputs, targets = batch
                return torch.exp((inputs @ x["w"] - targets) ** 2 / 9).mean().reshape(1)

            def outer(self, u, batch):
                return torch.log(u).sum()
    """

    family = "composition"
    layouts = (("x",),)
    #: Dimension p of the inner maps' values.
    inner_size: int = 1

    def kinds(self) -> dict[str, int]:
        """``u``: an inner value or outer gradient ``[p]``; ``jacobian``: ``[p, d]``, row by row."""
        return {"u": self.inner_size, "jacobian": self.inner_size * self.variables().sizes["x"]}

    def inner(self, x: Named, batch: Batch) -> torch.Tensor:
        """g_n(x; ζ), ``[p]``, for a batch ζ of client n; a pure function."""
        raise ContractError(f"{type(self).__name__} must define inner()")

    def outer(self, u: torch.Tensor, batch: Batch) -> torch.Tensor:
        """f_n(u; ξ), a scalar, for a batch ξ of client n; a pure function."""
        raise ContractError(f"{type(self).__name__} must define outer() or outer_gradient()")

    #: By hand: ``jacobian(x, batch) -> (u, J)``, g_n(x; ζ) ``[C, p]`` and its Jacobian ``[C, p, d]``, with x
    #: flat, ``[C, d]`` or ``[d]`` (shared by all clients), ``batch`` tensors ``[C, b, ...]``. ``None``:
    #: differentiate :meth:`inner`, which is needed in any case where only the value is wanted.
    jacobian: ClassVar[Callable[..., Any] | None] = None
    #: By hand: ``outer_gradient(u, batch) -> [C, p]``, ∇f_n(u; ξ), with u ``[C, p]`` or ``[p]``, ``batch`` as
    #: above. ``None``: differentiate :meth:`outer`.
    outer_gradient: ClassVar[Callable[..., Any] | None] = None


#: The functions above that only say what is missing.
_STUBS = (
    Problem.variables,
    Problem.predict,
    Minimax.loss,
    Minimisation.loss,
    Operator.operator,
    Composition.inner,
    Composition.outer,
)


def defines(problem: Problem, name: str) -> bool:
    """Whether a problem has a function ``name`` of its own, such as "loss" or "gradients"."""
    function = getattr(problem, name, None)
    return function is not None and getattr(function, "__func__", function) not in _STUBS


class Game(Operator):
    """A minimax problem as a variational inequality: z = (x, y), V = (∂_x f, -∂_y f).

    φ is the indicator of its sets. Without a block y it is z = x and V = ∇f.

    Attributes:
        split: the sizes of x and y in z, 0 for a block that the problem does not have.
    """

    def __init__(self, problem: Minimax | Minimisation):
        self.problem, self.clients = problem, problem.clients
        self.source, self.cites, self.maximised = problem.source, problem.cites, problem.maximised
        self.test_rows, self.files, self.network = problem.test_rows, problem.files, problem.network
        self.client_data, self.client_size, self.draw = problem.client_data, problem.client_size, problem.draw  # type: ignore[method-assign]
        self.test_labels, self.class_scores = problem.test_labels, problem.class_scores  # type: ignore[method-assign]
        self._blocks = problem.variables()
        self.split = tuple(self._blocks.sizes.get(block, 0) for block in "xy")
        sets = {block: IndicatorOf(getattr(problem.sets, block)) for block in self._blocks}
        self.phi = Separable(sets, tuple(self._blocks.sizes.values()))
        self.sets = Sets(z=lambda z: self.phi(z, 0.0))

    def variables(self) -> Blocks:
        """One block z; its parameters are called ``x.name`` and ``y.name``."""
        return Blocks(
            z={
                f"{block}.{name}": shape
                for block in self._blocks
                for name, shape in self._blocks[block].items()
            }
        )

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        start = self.problem.initial(rng)
        parts = [
            torch.as_tensor(start.get(block, torch.zeros(size))).reshape(-1)
            for block, size in self._blocks.sizes.items()
        ]
        return {"z": torch.cat(parts)}

    def _point(self, z: Named) -> list[Named]:
        return [*self.blocks_of(z).values()]

    def blocks_of(self, z: Named) -> dict[str, Named]:
        """The blocks of the minimax problem."""
        return {
            block: {name[2:]: value for name, value in z.items() if name[0] == block}
            for block in self._blocks
        }

    def predict(self, z: Named, rows: slice) -> torch.Tensor:
        return self.problem.predict(*self._point(z), rows)

    def metrics(self, z: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        return self.problem.metrics(*self._point(z), predictions)

    def tested_on(self, split: str | int) -> Problem | None:
        other = self.problem.tested_on(split)
        return other and Game(cast("Minimax | Minimisation", other))


def as_family(problem: Problem, family: str) -> Problem:
    """``problem`` as a method of ``family`` sees it: itself, or a prepared minimax problem as a game."""
    game = (problem.family, family) == ("minimax", "operator")
    return Game(cast("Minimax | Minimisation", problem)) if game else problem
