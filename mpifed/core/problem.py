"""The contracts of problems, one class per family, and the adapter that makes a game of a minimax problem.

A problem owns mathematics and data, and knows nothing of algorithms, ranks or the files of a run. It is a
dataclass of settings with a loss; the package supplies gradients, flat views, sampling, devices and noise.

============  ========================================  ===================================================
class         solves                                    defines, in addition to ``variables``
============  ========================================  ===================================================
Minimax       min over x, max over y of a loss          ``loss`` or ``gradients``
Minimisation  min over x of a loss                      ``loss`` or ``gradients``
Operator      a variational inequality in z             ``operator``
Composition   min over x of an outer of an inner map    ``inner_size``, ``inner``, ``outer``
============  ========================================  ===================================================

Data come from ``client_data``, whose rows are drawn for minibatches, or from ``draw``, which generates
samples; not from both. Functions get one argument per block: without a block y a loss is ``loss(x, batch)``.

Shapes: C clients are evaluated together, d is the size of a block, b the number of rows of a minibatch.
Losses that autograd differentiates (``loss``, ``inner``, ``outer``) see *one* client, named parameters and a
batch ``[b, ...]``. Analytic derivatives (``gradients``, ``operator``, ``jacobian``, ``outer_gradient``) see
*all* clients, batches ``[C, b, ...]`` and flat points: all blocks ``[C, d]``, or all ``[d]``, shared by all
clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import torch

from mpifed.base.errors import ContractError
from mpifed.core.records import Blocks
from mpifed.core.sets import IndicatorOf, Separable, Sets, Zero
from mpifed.core.streams import Stream, generator

__all__ = [
    "Batch",
    "Composition",
    "DataFile",
    "Game",
    "Minimax",
    "Minimisation",
    "Named",
    "Operator",
    "Problem",
    "as_family",
    "is_analytic",
    "starting_point",
    "defines",
]

#: Named parameters of a block, as functions of one client see them.
Named = dict[str, torch.Tensor]
#: A minibatch: columns of a client's data ``[b, ...]``, or of all clients' ``[C, b, ...]``.
Batch = tuple[torch.Tensor, ...]


class DataFile(NamedTuple):
    """A data file that has been read.

    Attributes:
        path: its path; ``"none: ..."`` for data derived from other files.
        digest: hexadecimal SHA-256 of its contents, preferably by :mod:`mpifed.base.data_files`. If it has
            changed when a finished run is started again, the problem reads its data again.
    """

    path: str
    digest: str

    @property
    def derived(self) -> bool:
        """Whether the data are derived from other files and have no file of their own."""
        return self.path.startswith("none: ")


class Problem:
    """Base of the problem families: a dataclass of settings.

    One setting is ``clients``, N; clients have the numbers 0 .. N-1.
    """

    #: Which of the three problem families this is.
    family: ClassVar[str]
    #: The blocks that a problem of the family may have, in their order.
    layouts: ClassVar[tuple[tuple[str, ...], ...]]
    #: Source of the problem in the literature.
    source: str = ""
    #: Keys of the sources in the bibliography.
    cites: tuple[str, ...] = ()
    clients: int
    #: Rows of held-out data that :meth:`predict` can score; 0 where the metrics need none.
    test_rows: int = 0
    #: Metrics to maximise, such as an accuracy; all others are to minimise.
    maximised: frozenset[str] = frozenset()
    #: Metrics that use no held-out sample, so that settings may be chosen by them.
    of_training: frozenset[str] = frozenset()
    #: Closed convex sets of the blocks; a block without one is the whole space.
    sets: Sets = Sets()
    #: Names and shapes of the parameters of x that are those of a network, a setting ``model`` (``Network``
    #: in ``mpifed.models.base``); known once the problem is prepared, empty where there is none.
    network: Mapping[str, tuple[int, ...]] = {}
    #: The data files that :meth:`prepare` has read, by name; all ranks must have read the same files.
    files: dict[str, DataFile] = {}

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Read files, partition the data, compute constants. Called once on every rank, before all else.

        Args:
            seed: the run's seed, for all random numbers, which come from ``mpifed.generator`` and ``Stream``.
            data_dir: folder of the data files, ``None`` for the default folders.
        """

    def footprint(self) -> int:
        """Peak memory of :meth:`prepare` in bytes; 0 if the settings do not determine it.

        A run with less memory is refused.
        """
        return 0

    def variables(self) -> Blocks:
        """The blocks of variables with the names and shapes of their parameters."""
        raise ContractError(
            f"{type(self).__name__} must define variables(), the names and shapes of its blocks"
        )

    def constants(self) -> dict[str, float]:
        """Constants of theorems that are known once the problem is prepared, by name.

        Such as ``L``, the largest Lipschitz modulus of a client's gradient or operator, ``mu``, the PL or
        strong-concavity constant of the mean in y, ``D``, the radius that an error is measured on, and
        ``sigma``, the standard deviation of a sample, 0 where there is no noise but the oracle's.
        """
        return {}

    def kinds(self) -> dict[str, int]:
        """Sizes of further kinds of record fields, in addition to the blocks."""
        return {}

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """The starting point, one flat vector ``[d]`` per block; omitted blocks start at 0."""
        return {}

    def client_data(self, client: int) -> Batch:
        """The data of one client: tensors whose first axis runs over its samples, ``[n, ...]``.

        Minibatches are drawn from it uniformly with replacement; a full batch is all of it.
        """
        return ()

    def client_size(self, client: int) -> int:
        """Number of samples of a client, for weights by sample count. Called for all clients on every
        rank."""
        return len(self.client_data(client)[0])

    def client_labels(self, client: int) -> np.ndarray | None:
        """Class labels of one client's samples, ``[n]`` int64 from 0; ``None`` where they have no classes."""
        return None

    def class_names(self) -> list[str]:
        """Names of the classes of :meth:`client_labels`, in order; by default their numbers."""
        return []

    def class_counts(self) -> tuple[np.ndarray, list[str]] | None:
        """Samples by client and class ``[N, classes]`` and the classes' names, ``None`` without classes."""
        every = [self.client_labels(client) for client in range(self.clients)]
        labels = [own for own in every if own is not None]
        if len(labels) < len(every):
            return None
        classes = max(int(own.max(initial=0)) for own in labels) + 1
        names = self.class_names() or [str(label) for label in range(classes)]
        return np.stack([np.bincount(own, minlength=len(names)) for own in labels]), names

    def draw(self, stream: Stream, size: int) -> tuple[np.ndarray, ...] | None:
        """Generated samples; ``None`` for minibatches of rows of :meth:`client_data`.

        Args:
            stream: the random stream: ``stream.normal(size, 3)`` is ``[C, count, size, 3]``.
                ``stream.clients`` holds the clients' numbers ``[C]``, ``stream.count`` the number of samples
                of each. ``stream.of`` is the sample of a composition, "g" (ζ) or "f" (ξ); otherwise "".
            size: rows of a sample, the batch size of the job; 0, for exact gradients, only where
                :meth:`full_batch` returns none.

        Returns:
            A tuple of arrays ``[C, count, size, ...]``; the function of a client gets ``[size, ...]`` of
            each.
        """
        return None

    def full_batch(self, client: int) -> Batch | None:
        """Rows on which a client's functions have their expected values, for a problem that draws samples.

        They give the exact local gradient for ``oracle.full_batch`` and ``oracle.batch_size = 0``, such as
        the mean of additive noise, or the nodes of an exact quadrature. ``None`` if there are none.
        """
        return None

    def predict(self, *point_and_rows) -> torch.Tensor:
        """``predict(*point, rows)``: scores of held-out rows at a point, ``[n]`` or ``[n, k]``.

        The point is one dictionary of named parameters per block. ``rows`` is a slice: each rank scores a
        part of the rows.
        """
        raise ContractError(f"{type(self).__name__} sets test_rows, so it must define predict()")

    def metrics(self, *point_and_predictions) -> dict[str, float]:
        """``metrics(*point, predictions)``: metrics of a point by name, such as distances and held-out
        scores.

        Their time is not counted. ``predictions`` are the results of :meth:`predict` for all rows, ``None``
        if ``test_rows`` is 0.
        """
        return {}

    def tested_on(self, split: str | int) -> Problem | None:
        """The prepared problem with another split as its held-out rows, ``None`` if there is no such split.

        Its ``test_rows``, :meth:`predict`, :meth:`metrics` and :meth:`test_labels` refer to these rows.
        Metrics that use no held-out row are computed by the problem itself.

        Args:
            split: "validation", "train" (the training samples of all clients), or the number of a client.
        """
        return None

    def test_labels(self) -> np.ndarray | None:
        """Class labels of the held-out rows, ``[n]`` int64; ``None`` where they have no classes."""
        return None

    def class_scores(self, predictions: torch.Tensor) -> torch.Tensor:
        """The class scores of held-out rows among :meth:`predict`'s results: ``[n, classes]``, or ``[n]``,
        where larger means class 1."""
        return predictions


class Minimax(Problem):
    """min_x max_y (1/N) Σ_n f_n(x, y).

    Define :meth:`loss`, which autograd differentiates, or analytic ``gradients``, or both: `mpifed check`
    compares them. Without a block y see :class:`Minimisation`. Regression that is robust to a common shift y
    of the targets::

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

    #: Analytic: ``gradients(x, y, batch) -> (gx, gy)`` with flat blocks ``[C, d]`` or ``[d]`` (shared by all
    #: clients), ``batch`` tensors ``[C, b, ...]``, and ``gx``, ``gy`` of shape ``[C, d]``; without y
    #: ``gradients(x, batch)`` returns ``gx`` alone. ``None``: differentiate ``loss``.
    gradients: ClassVar[Callable[..., Any] | None] = None
    #: For stationarity measures: ``best_response(x) -> y* [dy]`` maximises (1/N) Σ_n f_n(x, ·). ``None``:
    #: found by ascent.
    best_response: ClassVar[Callable[..., Any] | None] = None


class Minimisation(Problem):
    """min_x (1/N) Σ_n f_n(x): a loss without y, for minimisation methods and minimax methods.

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

    #: Analytic: ``gradients(x, batch) -> gx [C, d]`` with x flat, ``[C, d]`` or ``[d]`` (shared by all
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
    #: Whether V is monotone; ``None`` if unknown, which is not tested.
    monotone: ClassVar[bool | None] = None

    def operator(self, z: torch.Tensor, batch: Batch) -> torch.Tensor:
        """V_n(z; batch), ``[C, d]``, of the clients stepped together.

        ``z`` is flat, ``[C, d]`` or ``[d]`` (shared by all clients), ``batch`` is tensors ``[C, b, ...]``.
        """
        raise ContractError(f"{type(self).__name__} must define operator()")


class Composition(Problem):
    """min_x (1/N) Σ_n E f_n(E g_n(x; ζ); ξ) (Huang, eq. 1).

    Define :meth:`inner` and :meth:`outer`, which autograd differentiates, or analytic ``jacobian`` and
    ``outer_gradient``. The entropic risk of a squared error, log E exp(g) with one inner value::

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

    #: Analytic: ``jacobian(x, batch) -> (u, J)``, g_n(x; ζ) ``[C, p]`` and its Jacobian ``[C, p, d]``, with x
    #: flat, ``[C, d]`` or ``[d]`` (shared by all clients), ``batch`` tensors ``[C, b, ...]``. ``None``:
    #: differentiate :meth:`inner`, which is always needed for the value alone.
    jacobian: ClassVar[Callable[..., Any] | None] = None
    #: Analytic: ``outer_gradient(u, batch) -> [C, p]``, ∇f_n(u; ξ), with u ``[C, p]`` or ``[p]``, ``batch``
    #: as above. ``None``: differentiate :meth:`outer`.
    outer_gradient: ClassVar[Callable[..., Any] | None] = None


#: The functions above that only raise an error.
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
    """Whether a problem defines a function ``name``, such as "loss" or "gradients"."""
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
    """``problem`` for a method of ``family``: itself, or a prepared minimax problem as a game."""
    game = (problem.family, family) == ("minimax", "operator")
    return Game(cast("Minimax | Minimisation", problem)) if game else problem


def is_analytic(problem: Problem) -> bool:
    """Whether all derivatives of a problem are analytic, so that autograd differentiates nothing.

    A game has the derivatives of its minimax problem.
    """
    if isinstance(problem, Game):
        return is_analytic(problem.problem)
    if isinstance(problem, Composition):
        return problem.jacobian is not None and problem.outer_gradient is not None
    return isinstance(problem, Operator) or getattr(problem, "gradients", None) is not None


def starting_point(problem: Problem, dtype, device="cpu") -> list[torch.Tensor]:
    """The starting point of a check, one flat vector ``[d]`` per block."""
    start = problem.initial(generator(0, "initial"))
    return [
        torch.as_tensor(start.get(block, torch.zeros(size))).reshape(-1).to(device, dtype)
        for block, size in problem.variables().sizes.items()
    ]
