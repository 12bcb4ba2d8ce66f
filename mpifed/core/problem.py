"""The contracts of problems, one class a family, and the adapter that makes a game of a minimax problem.

A problem owns mathematics and data and knows nothing of algorithms, ranks or files of a run. It is a dataclass of
settings; a user writes a loss, and the package supplies gradients, flat views, sampling, devices and noise.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
import torch

from mpifed.core.proximal import Zero
from mpifed.core.records import Blocks
from mpifed.core.sets import Sets
from mpifed.core.streams import Stream

__all__ = ["Problem", "Minimax", "Operator", "Composition", "DataFile", "Game", "Named", "as_family"]

Named = dict[str, torch.Tensor]


class DataFile(NamedTuple):
    """A data file that has been read: where it lay, and a digest (hexadecimal SHA-256) of what it held."""

    path: str
    digest: str


class Problem:
    """What all families share. ``clients`` is the number N of clients; clients are numbered 0 .. N-1."""

    #: Which of the three problem families this is.
    family: ClassVar[str]
    #: Where the problem is printed.
    source: ClassVar[str] = ""
    clients: int
    #: Rows of held-out data that :meth:`predict` can score; 0 where the metrics need none.
    test_rows: int = 0
    #: The metrics of which more is better, such as an accuracy; of all others less is.
    maximised: ClassVar[frozenset[str]] = frozenset()
    #: Closed convex sets of the blocks; a block without one is the whole space.
    sets: Sets = Sets()
    #: The data files that :meth:`prepare` has read, by name; a run goes on only if all ranks have read the same.
    files: dict[str, DataFile] = {}

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Read files, make the partition, fix constants. Called once on every rank, before anything else.

        Args:
            seed: the run's seed; everything random comes from ``mpifed.core.streams`` with it.
            data_dir: where data files lie, ``None`` for the default places.
        """

    def variables(self) -> Blocks:
        """The blocks of variables with the names and shapes of their parameters."""
        raise TypeError(f"{type(self).__name__} must define variables()")

    def kinds(self) -> dict[str, int]:
        """Sizes of further kinds of record fields, beside the blocks."""
        return {}

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """The starting point, one flat vector a block; blocks left out start at 0."""
        return {}

    def client_data(self, client: int) -> tuple[torch.Tensor, ...]:
        """The data of one client: tensors whose first axis runs over its samples, ``[n, ...]``.

        Minibatches are drawn from it uniformly with replacement; a full batch is all of it.
        """
        return ()

    def client_size(self, client: int) -> int:
        """Number of samples of a client, for weights by sample count. Asked for all clients on every rank."""
        return len(self.client_data(client)[0])

    def client_labels(self, client: int) -> np.ndarray | None:
        """Class labels ``[n]``, int64 from 0, of one client's samples; ``None`` where samples have no classes."""
        return None

    def class_names(self) -> list[str]:
        """What the classes of :meth:`client_labels` are called, in order; by default their numbers."""
        return []

    def class_counts(self) -> tuple[np.ndarray, list[str]] | None:
        """Samples by client and class ``[N, classes]`` and the classes' names; ``None`` where samples have no classes."""
        labels = [self.client_labels(client) for client in range(self.clients)]
        if any(own is None for own in labels):
            return None
        classes = max(int(own.max(initial=0)) for own in labels) + 1
        names = self.class_names() or [str(label) for label in range(classes)]
        return np.stack([np.bincount(own, minlength=len(names)) for own in labels]), names

    def draw(self, stream: Stream, size: int) -> tuple[np.ndarray, ...] | None:
        """Samples of a problem that makes its own: arrays ``[C, count, size, ...]`` from ``stream``; ``None``: rows of data.

        ``size`` is the batch size of the oracle. ``stream.clients`` holds the clients' numbers ``[C]`` and ``stream.count`` the number of samples of each.
        """
        return None

    def predict(self, *point_and_rows) -> torch.Tensor:
        """``predict(*point, rows)``: scores ``[n]`` or ``[n, k]`` of the held-out rows ``rows`` (a slice) at a point.

        The point is one dictionary of named parameters a block; each rank is asked for a part of the rows.
        """
        raise TypeError(f"{type(self).__name__} sets test_rows, so it must define predict()")

    def metrics(self, *point_and_predictions) -> dict[str, float]:
        """``metrics(*point, predictions)``: figures of a point, off the clock: exact distances, held-out scores.

        ``predictions`` is what :meth:`predict` returned for all rows, ``None`` where ``test_rows`` is 0.
        """
        return {}


class Minimax(Problem):
    """min_x max_y (1/N) Σ_n f_n(x, y). Without a block y: federated minimisation.

    Define either :meth:`loss`, which automatic differentiation takes care of, or :meth:`gradients` by hand.
    """

    family = "minimax"

    def loss(self, x: Named, y: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """f_n on a batch of client n: a scalar. ``x`` and ``y`` are named parameters, ``batch`` tensors ``[b, ...]``.

        Must be a pure function of its arguments (no in-place writes to them, no data-dependent Python branches), so that
        it can be mapped over clients.
        """
        raise TypeError(f"{type(self).__name__} must define loss() or gradients()")

    #: By hand: ``gradients(x, y, batch) -> (gx, gy)`` with flat blocks ``[C, d]`` or ``[d]`` (shared by all clients),
    #: ``batch`` tensors ``[C, b, ...]``, and ``gx``, ``gy`` of shape ``[C, d]``. ``None``: differentiate ``loss``.
    gradients = None


class Operator(Problem):
    """Find z*: ⟨V(z), z* - z⟩ + φ(z*) - φ(z) ≤ 0 for all z, with V = (1/N) Σ_n V_n monotone (002, sections 2 and 5)."""

    family = "operator"
    #: The convex function φ of a composite problem, through its proximal map.
    phi = Zero()

    def operator(self, z: torch.Tensor, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """V_n(z; batch) for the clients stepped together: ``z`` flat ``[C, d]`` or ``[d]``, ``batch`` tensors
        ``[C, b, ...]``, result ``[C, d]``."""
        raise TypeError(f"{type(self).__name__} must define operator()")


class Composition(Problem):
    """min_x (1/N) Σ_n E f_n(E g_n(x; ζ); ξ) (003, eq. 1)."""

    family = "composition"
    #: Dimension p of the inner maps' values.
    inner_size: int = 1

    def kinds(self) -> dict[str, int]:
        """``u``: an inner value or outer gradient ``[p]``; ``jacobian``: ``[p, d]``, row by row."""
        return {"u": self.inner_size, "jacobian": self.inner_size * self.variables().sizes["x"]}

    def inner(self, x: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """g_n(x; ζ), ``[p]``, for a batch ζ of client n; a pure function."""
        raise TypeError(f"{type(self).__name__} must define inner()")

    #: By hand: ``jacobian(x, batch) -> (u, J)`` with ``x`` flat ``[C, d]``, ``batch`` tensors ``[C, b, ...]``, ``u``
    #: ``[C, p]`` and ``J`` ``[C, p, d]``. ``None``: differentiate ``inner``.
    jacobian = None
    #: By hand: ``outer_gradient(u, batch)`` with ``u`` ``[C, p]``: ∇f_n, ``[C, p]``. ``None``: differentiate ``outer``.
    outer_gradient = None

    def outer(self, u: torch.Tensor, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """f_n(u; ξ), a scalar, for a batch ξ of client n; a pure function."""
        raise TypeError(f"{type(self).__name__} must define outer()")


class _IndicatorOf:
    """The indicator of the set that a projection projects onto, through its proximal map."""

    def __init__(self, project):
        self._project = project

    def __call__(self, v: torch.Tensor, weight: float) -> torch.Tensor:
        return self._project(v)


class Game(Operator):
    """A minimax problem as a variational inequality: z = (x, y), V = (∂_x f, -∂_y f), φ the indicator of its sets."""

    def __init__(self, problem: Minimax):
        self.problem, self.clients = problem, problem.clients
        self.source, self.test_rows, self.files = problem.source, problem.test_rows, problem.files
        self.client_data, self.client_size, self.draw = problem.client_data, problem.client_size, problem.draw
        self._blocks = problem.variables()
        self.split = (self._blocks.sizes["x"], self._blocks.sizes.get("y", 0))
        self.sets = Sets(z=self._project)
        self.phi = _IndicatorOf(self._project)

    def _project(self, z: torch.Tensor) -> torch.Tensor:
        x, y = z.split(self.split, dim=-1)
        return torch.cat([self.problem.sets.x(x), self.problem.sets.y(y)], dim=-1)

    def variables(self) -> Blocks:
        """One block z; its parameters are called ``x.name`` and ``y.name``."""
        return Blocks(
            z={f"{block}.{name}": shape for block in "xy" for name, shape in self._blocks[block].items()}
        )

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        start = self.problem.initial(rng)
        parts = [
            torch.as_tensor(start.get(block, torch.zeros(size))).reshape(-1)
            for block, size in zip("xy", self.split)
        ]
        return {"z": torch.cat(parts)}

    def _point(self, z: Named) -> list[Named]:
        return [{name[2:]: value for name, value in z.items() if name[0] == block} for block in "xy"]

    def predict(self, z: Named, rows: slice) -> torch.Tensor:
        return self.problem.predict(*self._point(z), rows)

    def metrics(self, z: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        return self.problem.metrics(*self._point(z), predictions)


def as_family(problem: Problem, family: str) -> Problem:
    """``problem`` as a method of ``family`` sees it: itself, or a prepared minimax problem as a game."""
    return Game(problem) if (problem.family, family) == ("minimax", "operator") else problem
