"""Few-shot classification as meta-learning (Huang n.d., eq. 2, with the tasks of Finn et al., 2017).

Interpretation of the paper: It does not specify the data. The task of a client is to classify images of a few
classes that are drawn for it. Row i of its data consists of the i-th image of each class, so a minibatch of b
rows has b images per class: one row is one shot. In eq. 2 all parameters are adapted, so the dense Jacobian
of MFCGD has d² elements. With 8 filters, ``conv4`` has d = 1,877 (a Jacobian of 14 MB in float32). With the
64 filters of Finn et al. it has d = 111,749 (50 GB), which is refused.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field

from mpifed.base.settings import choice, problem_settings
from mpifed.core.problem import Batch, Named
from mpifed.core.streams import generator
from mpifed.data import DATASETS, USER_DATASETS, Labelled, Omniglot, load_omniglot, read
from mpifed.data.user_functions import UserFunction
from mpifed.models import Conv4, Model
from mpifed.problems.maml import NetworkMAML

__all__ = ["FewShotMAML", "TaskDataset"]

#: Number of drawings per character of Omniglot, and number of features of the smallest images of other data
#: sets.
_DRAWINGS, _MIN_FEATURES = 20, 64


class _Pool(NamedTuple):
    """Images from which tasks are drawn.

    Attributes:
        images: the images of a data set.
        classes: the index in ``images`` of the images of each class.
        number: number of images per class.
    """

    images: Any
    classes: list[Any]
    number: int


#: A data set from which tasks are drawn.
TaskDataset = choice("data set", USER_DATASETS, UserFunction, names=("omniglot", *DATASETS))


@problem_settings
class FewShotMAML(NetworkMAML):
    """min over x of (1/N) Σ_n f_n(x - η ∇f_n(x)), with the mean cross-entropy f_n on client n's classes.

    With Omniglot, tasks of clients have characters of the background set, held-out tasks characters of the
    evaluation set, and images are averaged to ``size`` x ``size``. With other data sets, tasks of clients use
    training images and held-out tasks use test images of the same classes.
    """

    dataset: TaskDataset = Field(default="omniglot", description="omniglot, or another data set")
    model: Model = Field(default=Conv4(), description="network with one output per class of a task")
    clients: int = Field(default=10, ge=1, description="number of clients, each with one task")
    ways: int = Field(default=5, ge=2, description="number of classes per task")
    shots: int = Field(
        default=1, ge=1, description="number of images per class for the adaptation to a held-out task"
    )
    samples: int = Field(default=20, ge=2, description="maximum number of images per class of a task")
    size: int = Field(
        default=28, ge=1, le=105, description="height and width to which Omniglot's characters are averaged"
    )
    eta: float = Field(default=0.4, ge=0, description="step size η of the adaptation to a task")
    tests: int = Field(default=100, ge=1, description="number of held-out tasks")

    needs = {"size": ("dataset = 'omniglot'", lambda problem: problem.dataset == "omniglot")}
    source = "Huang n.d., eq. 2; tasks of Finn et al. 2017"
    cites = ("huang_nd_mfcgd", "finn2017maml")
    metric_names = ("objective", "grad_norm", "accuracy")
    maximised = frozenset({"accuracy"})

    def footprint(self) -> int:
        return self.tests * self.client_footprint()

    def client_footprint(self) -> int:
        omniglot = self.dataset == "omniglot"
        per_class = min(self.samples, _DRAWINGS) * self.size**2 if omniglot else _MIN_FEATURES
        return 4 * self.ways * per_class

    def read_once(self, data_dir: str | None = None) -> Omniglot | Labelled:
        return load_omniglot(data_dir) if self.dataset == "omniglot" else read(self.dataset, data_dir)

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Read the images and draw the held-out tasks. A client's task depends only on the seed and the
        client's number, and is drawn when it is asked for.

        Raises:
            ValueError: the data have too few classes or images, or the model does not accept the images.
        """
        data = self.read_once(data_dir)
        self.files = data.files
        train, test = self._pools(data)
        if test.number <= self.shots or self.ways > len(train.classes):
            raise ValueError(
                f"{self.dataset}: expected at least ways = {self.ways} classes, and more than shots = "
                f"{self.shots} test images per class, at most samples = {self.samples} of which are used, "
                f"got {len(train.classes)} classes and {test.number} images"
            )
        self._seed, self._train = seed, train
        self._held_out = [self._task(test, "few-shot test", number) for number in range(self.tests)]
        self.network = self.model.shapes(tuple(self._held_out[0].shape[2:]), self.ways)
        self.test_rows = self.tests

    def _pools(self, images: Omniglot | Labelled) -> list[_Pool]:
        """Return the training images and the test images."""
        if isinstance(images, Omniglot):
            sets, number = (images.background, images.evaluation), min(self.samples, _DRAWINGS)
            return [_Pool(part, [(c, slice(number)) for c in range(len(part))], number) for part in sets]
        pools = []
        for samples, labels in ((images.train, images.train_labels), (images.test, images.test_labels)):
            number = min(self.samples, int(torch.bincount(labels, minlength=images.classes).min()))
            rows = [torch.nonzero(labels == c).flatten()[:number] for c in range(images.classes)]
            pools.append(_Pool(samples, rows, number))
        return pools

    def _task(self, pool: _Pool, purpose: str, number: int) -> torch.Tensor:
        """Return the images of a task's classes, ``[n, ways, c, h, w]``."""
        chosen = generator(self._seed, purpose, number).choice(len(pool.classes), self.ways, replace=False)
        return torch.stack([self._images(pool.images[pool.classes[c]]) for c in chosen], dim=1)

    def _images(self, drawings: np.ndarray | torch.Tensor) -> torch.Tensor:
        """Return images ``[n, c, h, w]``; drawings of Omniglot, bool ``[n, 105, 105]``, are averaged."""
        if isinstance(drawings, torch.Tensor):
            return drawings
        return F.adaptive_avg_pool2d(torch.from_numpy(drawings[:, None].astype(np.float32)), self.size)

    def client_rows(self, clients: np.ndarray) -> tuple[Batch, np.ndarray]:
        """Return images ``[n, ways, c, h, w]``, one image per class in each row."""
        tasks = [self._task(self._train, "few-shot", client) for client in clients.tolist()]
        return (torch.cat(tasks),), self.client_sizes(clients)

    def client_sizes(self, clients: np.ndarray) -> np.ndarray:
        return np.full_like(clients, self._train.number)

    def task_loss(self, x: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        (images,) = batch
        scores = self.model(x, images.flatten(0, 1))
        labels = torch.arange(self.ways, device=images.device).repeat(len(images))
        return F.cross_entropy(scores, labels)

    @torch.no_grad()
    def predict(self, x: Named, rows: slice) -> torch.Tensor:
        """Return accuracies ``[n]`` on held-out tasks after one step on ``shots`` images per class."""
        like = next(iter(x.values()))
        self._held_out = [task.to(like) for task in self._held_out]  # copied to a GPU once
        return torch.stack([self._accuracy(x, task) for task in self._held_out[rows]])

    def _accuracy(self, x: Named, task: torch.Tensor) -> torch.Tensor:
        query = task[self.shots :]
        scores = self.model(self.adapted(x, (task[: self.shots],)), query.flatten(0, 1))
        correct = scores.argmax(dim=1) == torch.arange(self.ways, device=task.device).repeat(len(query))
        return torch.where(torch.isfinite(scores).all(), correct.to(scores).mean(), torch.nan)

    def metrics(self, x: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Return ``objective`` F and ``grad_norm`` ‖∇F‖ on the clients' images, and ``accuracy``.

        ``accuracy`` is measured on the other images of held-out tasks after one step, NaN if an output is not
        finite.
        """
        return {**self.exact(x), "accuracy": float(predictions.mean())}
