"""Partitions of labelled samples among clients.

A partition is a function ``partition(labels, positive, clients, seed)`` of the class labels ``[n]``, the
binary labels positive or negative ``[n]`` (bool), the number of clients and the run's seed. It returns the
clients' :class:`Parts` of ``range(n)``, each sorted. They are disjoint, non-empty and cover all n samples,
except that ``positive_ratios`` drops positives. It raises a ValueError if this is impossible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from mpifed.base.settings import choice, hyperparameters
from mpifed.core.streams import generator
from mpifed.data.samples import Labelled, Split, Texts

__all__ = [
    "IID", "Dirichlet", "ByClass", "PositiveRatios", "Quantity", "Natural", "PARTITIONS", "Partition",
    "Parts", "divide", "thin",
]  # fmt: skip

#: Maximum number of draws of a Dirichlet partition.
REDRAWS = 1000


class Parts:
    """The row numbers of every client; ``parts[client]`` are those of one client.

    Args:
        rows: row numbers, those of client 0 first, then those of client 1, ..., int64 ``[n]``.
        sizes: number of rows of each client, int64 ``[N]``.
    """

    def __init__(self, rows: np.ndarray, sizes: np.ndarray):
        self.rows, self.sizes = rows, sizes
        self._ends = np.cumsum(sizes)

    @classmethod
    def of(cls, parts: Sequence[np.ndarray]) -> Parts:
        """Return the parts with these row numbers, one array per client."""
        return cls(np.concatenate(parts), np.array([*map(len, parts)], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, client: int) -> np.ndarray:
        end = self._ends[client]
        return self.rows[end - self.sizes[client] : end]

    def starts(self, clients: np.ndarray) -> np.ndarray:
        """Return the positions in ``rows`` at which the parts of clients start, int64 ``[C]``."""
        return self._ends[clients] - self.sizes[clients]

    def positions(self, clients: np.ndarray) -> np.ndarray:
        """Return the positions in ``rows`` of all rows of clients, one client after the other, ``[n]``."""
        sizes = self.sizes[clients]
        shifts = self.starts(clients) - (np.cumsum(sizes) - sizes)
        return np.arange(sizes.sum()) + np.repeat(shifts, sizes)

    def of_clients(self, clients: np.ndarray) -> torch.Tensor:
        """Return the row numbers of clients, one client after the other, int64 ``[n]``."""
        return torch.from_numpy(self.rows[self.positions(clients)])


def _expect_enough(samples: int, clients: int) -> None:
    if samples < clients:
        raise ValueError(
            f"expected at least one sample per client, found {samples} samples for {clients} clients"
        )


def _owned(rows: np.ndarray, owners: np.ndarray, clients: int) -> Parts:
    """Return the parts of clients that own rows, each sorted.

    Args:
        rows: distinct row numbers, int64 ``[n]``.
        owners: the client of each row, int64 ``[n]``.
    """
    sizes, span = np.bincount(owners, minlength=clients), rows.max(initial=0) + 1
    keys = owners * span + rows  # one sort of numbers is faster than a sort by owner and then by row
    keys.sort()
    return Parts(keys - np.repeat(np.arange(clients) * span, sizes), sizes)


def _even(count: int, clients: int) -> np.ndarray:
    """Return the owners of ``count`` rows in an even division, ascending, ``[count]``."""
    sizes = np.full(clients, count // clients)
    sizes[: count % clients] += 1
    return np.repeat(np.arange(clients), sizes)


def _split(members: np.ndarray, clients: int, rng: np.random.Generator) -> Parts:
    """Split ``members`` at random into ``clients`` parts whose sizes differ by at most one."""
    _expect_enough(len(members), clients)
    return _owned(rng.permutation(members), _even(len(members), clients), clients)


@hyperparameters
class IID:
    """Samples are divided evenly at random."""

    def __call__(self, labels: np.ndarray, positive: np.ndarray, clients: int, seed: int) -> Parts:
        return _split(np.arange(len(labels)), clients, generator(seed, "partition"))


@hyperparameters
class Dirichlet:
    """Skewed labels: for each class, the clients' shares are drawn from a symmetric Dirichlet distribution.

    The draw is repeated while a client has no samples.
    """

    alpha: float = Field(gt=0, allow_inf_nan=False, description="concentration: the smaller, the more skewed")

    def __call__(self, labels: np.ndarray, positive: np.ndarray, clients: int, seed: int) -> Parts:
        _expect_enough(len(labels), clients)
        classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        sizes = np.array([[len(members)] for members in classes])
        for attempt in range(REDRAWS):
            rng = generator(seed, "partition", round=attempt)
            shares = rng.dirichlet(np.full(clients, self.alpha), size=len(classes))
            cuts = np.floor(np.cumsum(shares, axis=1)[:, :-1] * sizes).astype(np.int64)
            counts = np.diff(cuts, axis=1, prepend=0, append=sizes)
            if counts.sum(axis=0).min() > 0:
                rows = np.concatenate([rng.permutation(members) for members in classes])
                owners = np.concatenate([np.repeat(np.arange(clients), count) for count in counts])
                return _owned(rows, owners, clients)
        raise ValueError(
            f"dirichlet(alpha={self.alpha}) of {len(labels)} samples over {clients} clients left a client "
            f"without samples in each of {REDRAWS} draws: use a larger alpha or fewer clients"
        )


@hyperparameters
class ByClass:
    """Groups of clients with disjoint classes (Huang et al. 2024, section 6.2): group g has the g-th positive
    and the g-th negative class.

    Client k belongs to group k mod ``groups``, and a group's samples are split evenly at random among its
    clients. With fewer clients than groups, client k has the samples of all groups g with g mod clients = k.
    """

    groups: int = Field(
        default=5, ge=1, description="number of groups, each of one positive and one negative class"
    )

    def __call__(self, labels: np.ndarray, positive: np.ndarray, clients: int, seed: int) -> Parts:
        _expect_enough(len(labels), clients)
        above, below = np.unique(labels[positive]), np.unique(labels[~positive])
        if not len(above) == len(below) == self.groups:
            raise ValueError(
                f"by_class: expected groups = {self.groups} positive and as many negative classes, got "
                f"{len(above)} positive and {len(below)} negative"
            )
        rng = generator(seed, "partition")
        rows, owners = [], []
        for g in range(self.groups):
            members = np.flatnonzero(np.where(positive, labels == above[g], labels == below[g]))
            group = np.arange(g, clients, self.groups) if clients >= self.groups else np.array([g % clients])
            _expect_enough(len(members), len(group))
            rows.append(rng.permutation(members))
            owners.append(group[_even(len(members), len(group))])
        return _owned(np.concatenate(rows), np.concatenate(owners), clients)


@hyperparameters
class PositiveRatios:
    """Skewed labels: positives make up a given fraction of each client's samples (Zhang & Gao
    n.d., section 5).

    Negatives are divided evenly at random; positives are dropped at random so that every client has its
    fraction, to the nearest sample.
    """

    ratios: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field(
        min_length=1,
        description="positive ratio of each client; Zhang & Gao n.d. has 0.05, 0.05, 0.08, 0.1, 0.12, 0.15, "
        "0.2, 0.25",
    )

    def __call__(self, labels: np.ndarray, positive: np.ndarray, clients: int, seed: int) -> Parts:
        if len(self.ratios) != clients:
            raise ValueError(
                f"positive_ratios: expected one ratio per client, got {len(self.ratios)} for {clients} "
                "clients"
            )
        above = generator(seed, "partition", round=1).permutation(np.flatnonzero(positive))
        below = _split(np.flatnonzero(~positive), clients, generator(seed, "partition"))
        wanted = [round(ratio / (1 - ratio) * size) for ratio, size in zip(self.ratios, below.sizes.tolist())]
        if min(wanted) < 1 or sum(wanted) > len(above):
            raise ValueError(
                f"positive_ratios: {len(labels) - len(above)} negatives require {sum(wanted)} positives, "
                f"{min(wanted)} for one client: expected at least 1 per client and at most {len(above)} in "
                "total"
            )
        owners = [np.repeat(np.arange(clients), sizes) for sizes in (below.sizes, wanted)]
        return _owned(np.concatenate([below.rows, above[: sum(wanted)]]), np.concatenate(owners), clients)


@hyperparameters
class Quantity:
    """Skewed sizes: the clients' shares of the samples are drawn from a symmetric Dirichlet distribution,
    independently of the labels.

    Each client gets one sample in addition, so that no client is empty.
    """

    alpha: float = Field(gt=0, allow_inf_nan=False, description="concentration: the smaller, the more skewed")

    def __call__(self, labels: np.ndarray, positive: np.ndarray, clients: int, seed: int) -> Parts:
        _expect_enough(len(labels), clients)
        rest = len(labels) - clients
        rng = generator(seed, "partition")
        ends = np.floor(np.cumsum(rng.dirichlet(np.full(clients, self.alpha))) * rest).astype(np.int64)
        cuts = (ends + np.arange(1, clients + 1))[:-1]
        sizes = np.diff(cuts, prepend=0, append=len(labels))
        return _owned(rng.permutation(len(labels)), np.repeat(np.arange(clients), sizes), clients)


@hyperparameters
class Natural:
    """Samples belong to the clients that the data set names, such as hospitals or writers, sorted by name."""

    def __call__(self, labels: np.ndarray, positive: np.ndarray, clients: int, seed: int) -> Parts:
        raise ValueError(
            "the partition 'natural' requires a data set that names the clients, such as a table with the "
            'setting client = "hospital"'
        )


PARTITIONS = {
    "iid": IID,
    "dirichlet": Dirichlet,
    "by_class": ByClass,
    "positive_ratios": PositiveRatios,
    "quantity": Quantity,
    "natural": Natural,
}

#: A partition by name, table or instance.
Partition = choice("partition", PARTITIONS)


def divide(
    partition, train: Split, positive: np.ndarray, clients: int, seed: int, data: Labelled | Texts
) -> Parts:
    """Return the row numbers of every client's training samples, sorted.

    They are given by the partition, or by the data set if it assigns samples to clients.

    Args:
        positive: the binary label of each sample of ``train``, bool.

    Raises:
        ValueError: the partition does not fit the samples, is not "natural" although the data set names
            clients, or the data set names another number of clients or a client without samples.
    """
    if data.owners is None:
        parts = partition(train.labels, positive, clients, seed)
        return Parts(train.rows[parts.rows], parts.sizes)
    names = data.owner_names
    if not isinstance(partition, Natural):
        raise ValueError(
            f"the data set names the clients, which partition = {partition.choice_name!r} would ignore: set "
            'problem.partition = "natural", or remove the clients from the data set'
        )
    if clients != len(names):
        some = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        raise ValueError(
            f"the data set names {len(names)} clients ({some}), problem.clients is {clients}: set "
            f"problem.clients = {len(names)}"
        )
    parts = _owned(train.rows, data.owners[train.rows], clients)
    if len(empty := np.flatnonzero(parts.sizes == 0)):
        raise ValueError(f"the client {names[empty[0]]} of the data set has no training samples left")
    return parts


def thin(labels: np.ndarray, positive: np.ndarray, ratio: float | None, seed: int) -> np.ndarray:
    """Drop positive samples until their fraction is ``ratio``, to the nearest sample.

    They are dropped at random, the same fraction of each positive class. ``None`` keeps all samples.

    Returns:
        The sorted indices of the samples that are kept.

    Raises:
        ValueError: the data has fewer positives than ``ratio`` needs, or none would remain.
    """
    if ratio is None:
        return np.arange(len(labels))
    classes = [np.flatnonzero(positive & (labels == label)) for label in np.unique(labels[positive])]
    ends = np.cumsum([len(members) for members in classes])
    total, negative = int(positive.sum()), np.flatnonzero(~positive)
    wanted = round(ratio * len(negative) / (1 - ratio))
    if not 1 <= wanted <= total:
        raise ValueError(
            f"an imbalance of {ratio} requires {wanted} positives for {len(negative)} negatives; expected "
            f"1 to {total}, the number in the data (a ratio of {total / max(len(labels), 1):.4g})"
        )
    counts = np.diff(np.round(ends * (wanted / total)).astype(np.int64), prepend=0)  # they sum to `wanted`
    rng = generator(seed, "thin")
    kept = [rng.permutation(members)[:count] for members, count in zip(classes, counts)]
    return np.sort(np.concatenate([negative, *kept]))
