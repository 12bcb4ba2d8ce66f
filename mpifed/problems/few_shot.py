"""Few-shot classification as meta-learning (003, eq. 2, with the tasks of Finn et al., 2017).

Readings. 003 leaves the data open. A client's task is to tell apart a few classes drawn for it; row i of its data is the
i-th image of each of its classes, so that a minibatch of b rows is a balanced sample of b images a class: one row is one
shot. In eq. 2 the network's every parameter adapts, so that the dense Jacobian of MFCGD holds d² numbers: with 8 filters
``conv4`` has d = 1,877 (14 MB in float32, 2 clients a core), with the 64 of Finn et al. 112,005 (47 GB), which is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import AfterValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from mpifed.data import DATASETS, load_omniglot
from mpifed.models import Conv4, Model
from mpifed.options import near_miss
from mpifed.problem import Named
from mpifed.problems.maml import MAML
from mpifed.records import Blocks
from mpifed.streams import generator

__all__ = ["FewShotMAML"]

#: Height and width of Omniglot's characters for learning.
SIZE = 28


def _known(name: str) -> str:
    options = {"omniglot", *DATASETS}
    if name not in options:
        raise ValueError(f"unknown data set {name!r}: {near_miss(name, options)}")
    return name


@dataclass(config=ConfigDict(extra="forbid", arbitrary_types_allowed=True), kw_only=True)
class FewShotMAML(MAML):
    """min over x of (1/N) Σ_n f_n(x - η ∇f_n(x)), f_n the mean cross-entropy of a network on client n's few classes.

    Of Omniglot, clients have characters of the background part and held-out tasks those of the evaluation part, averaged
    to 28 x 28; of another data set all have the same classes, clients training and held-out tasks test images.
    """

    dataset: Annotated[str, AfterValidator(_known)] = Field(default="omniglot", description="omniglot, or another data set")
    model: Model = Field(default=Conv4(), description="network with one output a class of a task")
    clients: int = Field(default=10, ge=1, description="number of clients, each with a task of its own")
    ways: int = Field(default=5, ge=2, description="classes of a task")
    shots: int = Field(default=1, ge=1, description="images a class that a held-out task is adapted to")
    samples: int = Field(default=20, ge=2, description="images a class of a task, where the data has as many")
    eta: float = Field(default=0.4, ge=0, description="step size η of the adaptation to a task")
    tests: int = Field(default=100, ge=1, description="number of held-out tasks")

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Read the images and draw the tasks; a client's depends on the seed and its number alone.

        Raises:
            ValueError: the data has too few classes or images, or the model does not take them.
        """
        train, test = self._pools(data_dir)
        if len(train[0]) < 1 or len(test[0]) <= self.shots or self.ways > min(len(train), len(test)):
            raise ValueError(
                f"expected {self.ways} classes with more than shots = {self.shots} images each, got {len(train)} and "
                f"{len(test)} classes with {len(train[0])} and {len(test[0])} images to train and to test on"
            )
        self._tasks = [self._draw_task(train, seed, "few-shot", client) for client in range(self.clients)]
        self._held_out = [self._draw_task(test, seed, "few-shot test", number) for number in range(self.tests)]
        self._shapes, self.test_rows = self.model.shapes(tuple(self._tasks[0].shape[2:]), self.ways), self.tests
