"""Train, validation and test splits: what a data set brings, or a share of its training samples held out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from mpifed.core.splits import VALIDATION
from mpifed.core.streams import generator
from mpifed.data.partition import natural_parts
from mpifed.data.samples import Labelled, Texts

__all__ = ["Split", "divide", "hold_out", "parts_of", "splits"]


@dataclass(frozen=True, eq=False)
class Split:
    """Samples of a data set that belong together.

    Attributes:
        samples, all_labels: those of a data set's part, by its row numbers.
        rows: the numbers of those that belong to the split, ``[n]`` ascending.
    """

    samples: Any
    all_labels: np.ndarray
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, part: slice) -> torch.Tensor:
        """Samples of a part of the split, ``[m, ...]``."""
        return self.samples[torch.from_numpy(self.rows[part])]

    @property
    def labels(self) -> np.ndarray:
        """The class labels ``[n]``."""
        return self.all_labels[self.rows]

    def of(self, rows: np.ndarray) -> Split:
        """Those of its data set's part with other numbers."""
        return replace(self, rows=rows)


def parts_of(data: Labelled) -> dict[str, tuple[Any, np.ndarray]]:
    """Samples and class labels of the splits that a data set brings."""
    names = ["train", "test", *([VALIDATION] if data.validation is not None else [])]
    return {name: (getattr(data, name), getattr(data, f"{name}_labels").numpy()) for name in names}


def splits(
    parts: Mapping[str, tuple[Any, np.ndarray]], share: float, seed: int, classes: list[int] | None = None
) -> dict[str, Split]:
    """The splits "train" and "test", and "validation" where the data set has one or ``share`` is not 0.

    Args:
        parts: samples and class labels of the data set's own splits.
        share: of the training samples, held out to validate on.
        classes: those that take part, by default all.

    Raises:
        ValueError: the data set has a validation split of its own, or the share holds out nothing or all.
    """
    found = {}
    for name, (samples, labels) in parts.items():
        used = np.ones(len(labels), dtype=bool) if classes is None else np.isin(labels, classes)
        found[name] = Split(samples, labels, np.flatnonzero(used))
    if share and VALIDATION in found:
        raise ValueError(
            f"validation = {share}: the data set has a validation split of its own, of "
            f"{len(found[VALIDATION])} samples: leave problem.validation out"
        )
    if share:
        train = found["train"]
        rest, held = hold_out(train.labels, share, seed)
        found |= {"train": train.of(train.rows[rest]), VALIDATION: train.of(train.rows[held])}
    return found


def divide(
    partition, train: Split, positive: np.ndarray, clients: int, seed: int, data: Labelled | Texts
) -> list[np.ndarray]:
    """The numbers of every client's training samples: by the partition, or by the owners that the data set
    names.

    Args:
        positive: the binary label of each sample of ``train``, bool.

    Raises:
        ValueError: the partition does not fit the samples.
    """
    if data.owners is None:
        parts = partition(train.labels, positive, clients, seed)
    else:
        parts = natural_parts(partition, data.owners[train.rows], data.owner_names, clients)
    return [train.rows[part] for part in parts]


def hold_out(
    labels: np.ndarray, share: float, seed: int, purpose: str = VALIDATION
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the samples that stay to train on, and of those held out, each ascending.

    Every class gives the share of its samples, to the nearest sample, drawn at random by the seed alone.

    Raises:
        ValueError: none would be held out, or none would stay.
    """
    classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    ends = np.cumsum([len(members) for members in classes])
    counts = np.diff(np.round(ends * share).astype(np.int64), prepend=0)  # they sum to round(share * n)
    if not 0 < counts.sum() < len(labels):
        raise ValueError(
            f"{purpose} = {share} of {len(labels)} samples holds out {counts.sum()}: expected some, and some "
            "to train on"
        )
    rng = generator(seed, purpose)
    held = np.concatenate([rng.permutation(members)[:count] for members, count in zip(classes, counts)])
    return np.setdiff1d(np.arange(len(labels)), held), np.sort(held)
