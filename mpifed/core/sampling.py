"""Samples: the k-th sample ξ of a client's round as a *value*.

A value can be evaluated at two points (STORM, SVRG), and it does not matter in which order clients ask for
theirs. The samples of a round are drawn at once for all members of the cohort on a rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from mpifed.core.errors import ContractError
from mpifed.core.finite import first_bad
from mpifed.core.problem import Problem
from mpifed.core.streams import Stream

__all__ = ["Sample", "Sampler"]


class Sample(NamedTuple):
    """One sample ξ of C clients: tensors ``[C, b, ...]`` and, with noise, one vector a client ``[C, d]`` over
    all blocks.

    ``batch`` is ``None`` for all data of each client.
    """

    batch: tuple[torch.Tensor, ...] | None
    noise: torch.Tensor | None


class Sampler:
    """Draws the samples of a rank's clients; holds their data on the device.

    Args:
        clients: global numbers of this rank's clients.
        batch_size: rows a sample; 0 takes all rows of the client (the exact local gradient).
        noise: additive noise or ``None``; ``noise_width``: numbers of noise that a sample carries.

    Raises:
        ContractError: data, or the first sample that a problem draws, have a value that is not finite.

    Attributes:
        numbers: how many samples each of the clients has been dealt in this round, ``[clients]``.
        way: how the samples of this round are asked for: "counted", "named", "" before the first.
    """

    def __init__(
        self, problem: Problem, clients, seed: int, batch_size: int, noise, noise_width: int, dtype, device
    ):
        self.problem, self.seed, self.batch_size, self.noise = problem, seed, batch_size, noise
        self.clients = np.asarray(clients, dtype=np.int64)
        self.dtype, self.device = dtype, device
        self.width = noise_width
        parts = [self._rows(int(client)) for client in clients]
        self.sizes = np.array([len(part[0]) if part else 0 for part in parts], dtype=np.int64)
        self.offsets = np.concatenate(([0], np.cumsum(self.sizes)[:-1])) if parts else self.sizes
        self.data = tuple(torch.cat(column) for column in zip(*parts))
        self._expected, self._own = 1, False
        self.begin(0)
        self.turn_to(np.arange(len(self.clients)))
        if parts:
            # A problem that cannot draw says so now.
            drawn = self._draw(0, 1, batch_size, "")
            self._own = isinstance(drawn, tuple)
            for number, array in enumerate(drawn if self._own else ()):
                if index := first_bad(array):
                    raise ContractError(
                        f"{type(problem).__name__}: draw() has {array[index].item()} in array {number} for "
                        f"client {self.clients[index[0]]}, at {list(index[2:])}: expected finite numbers"
                    )

    def _rows(self, client: int) -> tuple[torch.Tensor, ...]:
        """The data of a client on the device.

        Raises:
            ContractError: a value is not finite.
        """
        columns = tuple(self._load(tensor) for tensor in self.problem.client_data(client))
        for number, column in enumerate(columns):
            if index := first_bad(column):
                raise ContractError(
                    f"{type(self.problem).__name__}: client_data({client}) has {column[index].item()} in row "
                    f"{index[0]} of column {number}: expected finite numbers"
                )
        return columns

    def _load(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = torch.as_tensor(tensor)
        return tensor.to(self.device, self.dtype if tensor.is_floating_point() else None)

    def begin(self, r: int) -> None:
        """Begin round ``r``."""
        self.round, self.way = r, ""
        self.numbers = np.zeros(len(self.clients), dtype=np.int64)
        self.normals = np.zeros(len(self.clients), dtype=np.int64)
        self.members: Any = None

    def turn_to(self, members: np.ndarray) -> None:
        """Turn to the clients at local positions ``members``."""
        if self.members is None or not np.array_equal(members, self.members):
            self.members = members
            self._drawn: dict[tuple[int, int, str], tuple[int, Any]] = {}
            self._noise: dict[int, torch.Tensor] = {}
            self._whole: dict[tuple[int, int], tuple[torch.Tensor, ...]] = {}

    def ask(self, way: str) -> None:
        """Note how a sample is asked for.

        Raises:
            ContractError: others of this round were asked for in another way.
        """
        if self.way not in ("", way):
            raise ContractError(
                "a round counts its samples, oracle.sample(), or names them, oracle.sample(number=k), "
                "never both"
            )
        self.way = way

    def sample(self, k, rows: slice, *, round: int | None, size: int | None, of: str) -> Sample:
        """Sample ``k`` of a round for ``members[rows]``.

        Args:
            k: its number, or one number a client ``[C]``.
            round: the current one when left out; ``size``: rows, by default the batch size.
            of: "g" or "f" where a composition draws different samples for its two functions.
        """
        round = self.round if round is None else round
        size = self.batch_size if size is None else size
        of = of if self._own else ""
        last = k if isinstance(k, int) else int(k.max())
        drawn = self._drawn.get((round, size, of))
        if drawn is None or last >= drawn[0]:
            self._expected = max(self._expected, last + 1) if drawn is None else max(2 * drawn[0], last + 1)
            indices = self._draw(round, self._expected, size, of)
            drawn = self._drawn[round, size, of] = (self._expected, indices)
        where = k if isinstance(k, int) else torch.from_numpy(k)
        chosen = rows if isinstance(k, int) else torch.arange(rows.start, rows.stop)
        if size or isinstance(drawn[1], tuple):
            batch = self._gather(drawn[1], chosen, where)
        else:
            batch = self._everything(rows)
        return Sample(batch, None if self.noise is None else self._noise_of(round, drawn[0])[chosen, where])

    def normal(self, k, rows: slice, size: int) -> torch.Tensor:
        """Standard normal vector number ``k`` of the round, ``[C, size]``, independent of all samples.

        ``k`` is one number, or one a client ``[C]``.
        """
        clients = self.clients[self.members[rows]]
        if isinstance(k, int):
            drawn = Stream(self.seed, "normal", clients, self.round, 1, k).normal(size)[:, 0]
        else:
            drawn = Stream(self.seed, "normal", clients, self.round, int(k.max()) + 1).normal(size)
            drawn = drawn[np.arange(len(k)), k]
        return self._load(torch.from_numpy(drawn))

    def each(self, rows: slice) -> Iterator[tuple[torch.Tensor, ...]]:
        """All data of one client of ``members[rows]`` after another.

        Raises:
            ContractError: the problem makes its own samples.
        """
        if self._own:
            raise ContractError(
                f"{type(self.problem).__name__} makes its own samples, "
                "so there is no oracle.everything of a client"
            )
        for member in self.members[rows]:
            block = slice(self.offsets[member], self.offsets[member] + self.sizes[member])
            yield tuple(column[block] for column in self.data)

    def _draw(self, round: int, count: int, size: int, of: str):
        """The raw samples ``0..count-1`` of a round.

        They are the problem's own arrays, numbers of rows, or ``None`` for all rows.
        """
        clients = self.clients[self.members]
        stream = Stream(self.seed, "sample", clients, round, count)
        stream.of = of
        drawn = self.problem.draw(stream, size)
        if drawn is not None:
            return tuple(self._load(torch.from_numpy(np.ascontiguousarray(array))) for array in drawn)
        if not size:
            return None
        local = stream.integers(self.sizes[self.members], size)
        return torch.from_numpy(local + self.offsets[self.members][:, None, None]).to(self.device)

    def _noise_of(self, round: int, count: int) -> torch.Tensor:
        """The noise of a round's samples, at least ``count`` of them, ``[C, count, width]``."""
        if round not in self._noise or self._noise[round].shape[1] < count:
            stream = Stream(self.seed, "noise", self.clients[self.members], round, count)
            self._noise[round] = self._load(torch.from_numpy(self.noise(stream, self.width)))
        return self._noise[round]

    def _gather(self, indices, rows, k) -> tuple[torch.Tensor, ...]:
        if isinstance(indices, tuple):
            return tuple(array[rows, k] for array in indices)
        chosen = indices[rows, k]
        return tuple(column[chosen] for column in self.data)

    def _everything(self, rows: slice) -> tuple[torch.Tensor, ...]:
        """All rows of clients of one size: the same in every step of a phase."""
        if (rows.start, rows.stop) not in self._whole:
            self._whole[rows.start, rows.stop] = tuple(
                torch.stack(columns) if len(columns) > 1 else columns[0].unsqueeze(0)
                for columns in zip(*self.each(rows))
            )
        return self._whole[rows.start, rows.stop]
