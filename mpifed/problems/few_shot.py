"""Few-shot classification as meta-learning (Huang n.d., eq. 2, with the tasks of Finn et al., 2017).

Readings. The paper leaves the data open. A client's task is to tell apart a few classes drawn for it; row i
of its data is the i-th image of each of its classes, so that a minibatch of b rows is a balanced sample of b
images a class: one row is one shot. In eq. 2 the network's every parameter adapts, so that the dense Jacobian
of MFCGD holds d² numbers: with 8 filters ``conv4`` has d = 1,877 (a Jacobian of 14 MB in float32), with the
64 of Finn et al. 111,749 (50 GB), which is refused.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field

from mpifed.base.settings import choice, problem_settings
from mpifed.core.problem import Named
from mpifed.core.streams import generator
from mpifed.data import DATASETS, USER_DATASETS, load_omniglot, read
from mpifed.data.user_functions import UserFunction
from mpifed.models import Conv4, Model
from mpifed.problems.maml import NetworkMAML

__all__ = ["FewShotMAML", "TaskDataset"]

#: Drawings of each of Omniglot's characters, and numbers in the smallest sample of the other data sets.
_DRAWINGS, _LEAST = 20, 64

#: A data set that tasks are drawn from.
TaskDataset = choice("data set", USER_DATASETS, UserFunction, names=("omniglot", *DATASETS))


@problem_settings
class FewShotMAML(NetworkMAML):
    """min over x of (1/N) Σ_n f_n(x - η ∇f_n(x)), f_n the mean cross-entropy of a network on client n's few
    classes.

    Of Omniglot, clients have characters of the background part and held-out tasks those of the evaluation
    part, averaged to ``size`` x ``size``; of another data set all have the same classes, clients training and
    held-out tasks test images.
    """

    dataset: TaskDataset = Field(default="omniglot", description="omniglot, or another data set")
    model: Model = Field(default=Conv4(), description="network with one output a class of a task")
    clients: int = Field(default=10, ge=1, description="number of clients, each with one task")
    ways: int = Field(default=5, ge=2, description="classes of a task")
    shots: int = Field(default=1, ge=1, description="images a class that a held-out task is adapted to")
    samples: int = Field(default=20, ge=2, description="images a class of a task, where the data has as many")
    size: int = Field(
        default=28, ge=1, le=105, description="height and width that Omniglot's characters are averaged to"
    )
    eta: float = Field(default=0.4, ge=0, description="step size η of the adaptation to a task")
    tests: int = Field(default=100, ge=1, description="number of held-out tasks")

    source = "Huang n.d., eq. 2; tasks of Finn et al. 2017"
    cites = ("huang_nd_mfcgd", "finn2017maml")
    maximised = frozenset({"accuracy"})

    def footprint(self) -> int:
        drawn = self.dataset == "omniglot"
        image = min(self.samples, _DRAWINGS) * self.size**2 if drawn else _LEAST
        return 4 * (self.clients + self.tests) * self.ways * image

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Read the images and draw the tasks; a client's task depends only on the seed and its number.

        Raises:
            ValueError: the data has too few classes or images, or the model does not take them.
        """
        train, test = self._pools(data_dir)
        if len(test[0]) <= self.shots or self.ways > len(train):
            raise ValueError(
                f"{self.dataset} has {len(train)} classes, and {len(test[0])} images to test on of each at "
                f"most: expected ways = {self.ways} classes or more, more than shots = {self.shots} images"
            )
        self._tasks = [self._task(train, seed, "few-shot", client) for client in range(self.clients)]
        self._held_out = [self._task(test, seed, "few-shot test", number) for number in range(self.tests)]
        self._shapes = self.model.shapes(tuple(self._tasks[0].shape[2:]), self.ways)
        self.test_rows = self.tests

    def _pools(self, data_dir: str | None) -> list:
        """Classes to train and to test on, each with its images."""
        if self.dataset == "omniglot":
            drawings = load_omniglot(data_dir)
            self.files = drawings.files
            return [drawings.background[:, : self.samples], drawings.evaluation[:, : self.samples]]
        images = read(self.dataset, data_dir)
        self.files, pools = images.files, []
        for samples, labels in ((images.train, images.train_labels), (images.test, images.test_labels)):
            number = min(self.samples, int(torch.bincount(labels, minlength=images.classes).min()))
            pools.append(
                [samples[torch.nonzero(labels == c).flatten()[:number]] for c in range(images.classes)]
            )
        return pools

    def _task(self, pool, seed: int, purpose: str, number: int) -> torch.Tensor:
        """The images of a task's classes, ``[n, ways, c, h, w]``."""
        chosen = generator(seed, purpose, number).choice(len(pool), self.ways, replace=False)
        return torch.stack([self._images(pool[c]) for c in chosen], dim=1)

    def _images(self, drawings: np.ndarray | torch.Tensor) -> torch.Tensor:
        """Images ``[n, c, h, w]``; Omniglot's ink ``[n, 105, 105]``, bool, as its share of the area of each
        pixel."""
        if isinstance(drawings, torch.Tensor):
            return drawings
        return F.adaptive_avg_pool2d(torch.from_numpy(drawings[:, None].astype(np.float32)), self.size)

    def client_data(self, client: int) -> tuple[torch.Tensor, ...]:
        """Images ``[n, ways, c, h, w]``, one of each class a row."""
        return (self._tasks[client],)

    def client_size(self, client: int) -> int:
        return len(self._tasks[client])

    def task_loss(self, x: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        (images,) = batch
        scores = self.model(x, images.flatten(0, 1))
        labels = torch.arange(self.ways, device=images.device).repeat(len(images))
        return F.cross_entropy(scores, labels)

    @torch.no_grad()
    def predict(self, x: Named, rows: slice) -> torch.Tensor:
        """Accuracies ``[n]`` on held-out tasks after one step on the first ``shots`` images of each class."""
        return torch.stack(
            [self._accuracy(x, task.to(next(iter(x.values())))) for task in self._held_out[rows]]
        )

    def _accuracy(self, x: Named, task: torch.Tensor) -> torch.Tensor:
        query = task[self.shots :]
        scores = self.model(self.adapted(x, (task[: self.shots],)), query.flatten(0, 1))
        right = scores.argmax(dim=1) == torch.arange(self.ways, device=task.device).repeat(len(query))
        return torch.where(torch.isfinite(scores).all(), right.to(scores).mean(), torch.nan)

    def metrics(self, x: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """``objective`` F and ``grad_norm`` ‖∇F‖ on the clients' images; ``accuracy`` on the other images of
        held-out tasks after one step, NaN where an output is not finite."""
        return {**self.exact(x), "accuracy": float(predictions.mean())}
