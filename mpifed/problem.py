"""The contracts of problems.

A problem owns mathematics and data and knows nothing of algorithms, ranks or files of a run. It is a dataclass of
settings; a user writes a loss, and the package supplies gradients, flat views, sampling, devices and noise.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch

from mpifed.projections import Sets
from mpifed.records import Blocks
from mpifed.streams import Stream

__all__ = ["Problem", "Minimax", "Named"]

Named = dict[str, torch.Tensor]


class Problem:
    """What all families share. ``clients`` is the number N of clients; clients are numbered 0 .. N-1."""

    #: Which of the three problem families this is.
    family: ClassVar[str]
    #: Where the problem is printed.
    source: ClassVar[str] = ""
    clients: int
    #: Rows of held-out data that :meth:`predict` can score; 0 where the metrics need none.
    test_rows: int = 0
    #: Closed convex sets of the blocks; a block without one is the whole space.
    sets: Sets = Sets()

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Read files, make the partition, fix constants. Called once on every rank, before anything else.

        Args:
            seed: the run's seed; everything random comes from ``mpifed.streams`` with it.
            data_dir: where data files lie, ``None`` for the default places.
        """

    def variables(self) -> Blocks:
        """The blocks of variables with the names and shapes of their parameters."""
        raise TypeError(f"{type(self).__name__} must define variables()")

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

    def draw(self, stream: Stream) -> tuple[np.ndarray, ...] | None:
        """Samples of a problem that makes its own: arrays ``[C, count, ...]`` from ``stream``; ``None``: rows of data.

        ``stream.clients`` holds the clients' numbers ``[C]`` and ``stream.count`` the number of samples of each.
        """
        return None

    def predict(self, x: Named, y: Named, rows: slice) -> torch.Tensor:
        """Scores ``[n]`` or ``[n, k]`` of the held-out rows at a point; each rank is asked for a part of the rows."""
        raise TypeError(f"{type(self).__name__} sets test_rows, so it must define predict()")

    def metrics(self, x: Named, y: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Figures of a point, off the clock: exact distances, held-out scores.

        Args:
            x, y: named parameters of the blocks.
            predictions: what :meth:`predict` returned for all rows, ``None`` where ``test_rows`` is 0.
        """
        return {}


class Minimax(Problem):
    """min_x max_y (1/N) Σ_n f_n(x, y).

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
