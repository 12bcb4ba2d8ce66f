"""What problems with labelled samples share: the splits of their data, one of which the metrics are of."""

from __future__ import annotations

import copy

import numpy as np
from pydantic import Field

from mpifed.core.settings import problem_settings
from mpifed.data.splits import Split

__all__ = ["HeldOut"]


@problem_settings
class HeldOut:
    """A part of a problem: :meth:`predict` scores ``_held``, the samples of one split.

    A subclass sets ``_splits`` and ``_rows``, the numbers of the training samples of every client, and then
    calls :meth:`_test_on`.

    Attributes:
        split: what the metrics are of: "test", another split, or the number of a client.
    """

    validation: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of the training samples held out to validate on, before they are divided among "
        "clients; for data sets without a validation split of their own",
    )

    split = "test"

    def tested_on(self, split: str | int):
        """The problem whose metrics are of another split, as :meth:`Problem.tested_on` has it."""
        if split != "train" and not isinstance(split, int) and split not in self._splits:
            return None
        other = copy.copy(self)
        other._test_on(split)
        return other

    def _test_on(self, split: str | int) -> None:
        train = self._splits["train"]
        if split == "train":  # those that clients have
            self._held = train.of(np.sort(np.concatenate(self._rows)))
        else:
            self._held: Split = train.of(self._rows[split]) if isinstance(split, int) else self._splits[split]
        self.split, self.test_rows = split, len(self._held)

    def test_labels(self) -> np.ndarray:
        return self._held.labels
