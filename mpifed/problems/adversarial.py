"""Adversarial training by projected gradient ascent on each sample, PGD (Madry et al. 2018).

An adversary changes every sample u within ‖δ‖_∞ ≤ ε so that its loss increases: k times
δ ← clip(δ + a sign ∇_δ ℓ(x; u + δ)), where δ is clipped to [-ε, ε] and, if u is an image, u + δ to [0, 1].
k is ``steps`` in training and ``test_steps`` in evaluations. An adversary with k a < ε cannot reach the
bound, and the accuracy under its attack would say nothing about ε, so it is refused. By default a is a
quarter of ε as in the paper's experiments on CIFAR-10 (ε = 8, a = 2, of 255), and 5/4 ε / k if k < 5.
The loss is ℓ(x; u + δ) at the last δ, which is a constant in the gradient in x (Danskin's theorem, if δ is a
maximiser). Therefore it is a minimisation problem: δ is not a block, and each sample has another δ. The loss
jumps where an element of ∇_δ ℓ changes its sign, so finite differences may differ from its gradient.

The adversary computes the gradient of -log(p / (1 - p)), where p is the probability of the sample's class. It
is ∇_δ ℓ divided by 1 - p, which has the same signs. ∇_δ ℓ is rounded to 0 where p is rounded to 1, so that
confident networks would seem robust.

Reading: δ starts at 0, or at a point that is uniform in the box and is drawn once for each sample, so that
the loss is a function of x and the batch alone.

A gradient in x costs ``steps`` further gradients, which are counted.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field

from mpifed.base.settings import problem_settings
from mpifed.core.numerics import log_odds
from mpifed.core.problem import Batch, Minimisation, Named
from mpifed.core.streams import generator
from mpifed.problems.labelled_images import LabelledImages
from mpifed.problems.weight_decay import WeightDecay

__all__ = ["AdversarialTraining"]


@problem_settings
class AdversarialTraining(WeightDecay, LabelledImages, Minimisation):
    """min over the network's parameters x of the mean over the samples u of the maximum over ‖δ‖_∞ ≤ ε of the
    cross-entropy at u + δ.

    The maximum is approximated by steps of projected gradient ascent (PGD).
    """

    epsilon: float = Field(default=8 / 255, ge=0, description="bound ε of every element of δ")
    step: float | None = Field(
        default=None,
        gt=0,
        description="step size a of the adversary, in training and in evaluations; default: ε/4, or 5/4 ε "
        "divided by the number of steps if that is larger",
    )
    steps: int = Field(default=7, ge=1, description="steps of the adversary in training")
    test_steps: int = Field(default=20, ge=1, description="steps of the adversary in evaluations")
    random_start: bool = Field(
        default=False, description="start of δ in training: uniform in the box, drawn once per sample, or 0"
    )

    needs = {
        "step": ("epsilon > 0", lambda problem: problem.epsilon > 0),
        "random_start": ("epsilon > 0", lambda problem: problem.epsilon > 0),
    }
    source = "Madry et al. 2018"
    cites = ("madry2018pgd",)
    metric_names = ("accuracy", "attacked_accuracy", "attacked_loss")
    maximised = frozenset({"accuracy", "attacked_accuracy"})

    def __post_init__(self):
        for name, steps in (("steps", self.steps), ("test_steps", self.test_steps)):
            # The product of decimal numbers may be rounded to a number below ε.
            if self.step is not None and self.step * steps < self.epsilon * (1 - 1e-9):
                raise ValueError(
                    f"an adversary with {name} = {steps} of step = {self.step:g} moves by at most "
                    f"{self.step * steps:.3g}, less than epsilon = {self.epsilon:g}: expected {name} * step "
                    ">= epsilon, or no step, whose default is large enough"
                )

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Read, split and partition the data, see :meth:`LabelledImages.prepare`.

        Raises:
            ValueError: the data, the model and the partition do not fit together, or images are not in
                [0, 1].
        """
        super().prepare(seed, data_dir)
        self._seed, self._pixels = seed, len(self._images.shape) == 3
        for part, split in self._splits.items():
            if self._pixels and isinstance(split.samples, torch.Tensor):
                low, high = (float(bound) for bound in split.samples.aminmax())
                if low < 0 or high > 1:
                    raise ValueError(
                        f"AdversarialTraining: expected images with elements in [0, 1], found {low:g} to "
                        f"{high:g} in {self.dataset}, {part}: scale them"
                    )

    @property
    def gradients_per_call(self) -> int:
        """A gradient in x and the gradients of the adversary."""
        return self.steps + 1

    def client_rows(self, clients: np.ndarray) -> tuple[Batch, np.ndarray]:
        """Return samples ``[n, ...]``, labels ``[n]`` and, for ``random_start``, the starts of δ
        ``[n, ...]``."""
        (samples, labels), sizes = super().client_rows(clients)
        if not self.random_start:
            return (samples, labels), sizes
        starts = [
            generator(self._seed, "starts of the adversary", client).uniform(
                -self.epsilon, self.epsilon, (size, *samples.shape[1:])
            )
            for client, size in zip(clients.tolist(), sizes.tolist())
        ]
        return (samples, labels, torch.from_numpy(np.concatenate(starts))), sizes

    def loss(self, x: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        samples, labels, *start = batch
        delta = start[0] if start else torch.zeros_like(samples)
        delta = self.attack(x, samples, labels, delta, self.steps)
        return self.decayed(F.cross_entropy(self.model(x, samples + delta), labels), x)

    def attack(
        self, x: Named, samples: torch.Tensor, labels: torch.Tensor, delta: torch.Tensor, steps: int
    ) -> torch.Tensor:
        """Return δ ``[b, ...]`` after ``steps`` steps from ``delta``, as a constant."""
        step = self.epsilon * max(1 / 4, 5 / 4 / steps) if self.step is None else self.step
        fixed = {name: value.detach() for name, value in x.items()}

        def total(delta):
            return -log_odds(self.model(fixed, samples + delta), labels).sum()

        for _ in range(steps):
            delta = delta + step * torch.func.grad(total)(delta).sign()
            delta = delta.clamp(-self.epsilon, self.epsilon)
            if self._pixels:
                delta = (samples + delta).clamp(0, 1) - samples
        return delta

    @torch.no_grad()
    def predict(self, x: Named, rows: slice) -> torch.Tensor:
        """Return the network's outputs for clean and for attacked samples, ``[n, 2 classes]``."""
        like, scores = next(iter(x.values())), []
        labels = torch.from_numpy(self.test_labels()[rows]).to(like.device)
        first = 0
        for samples in self._held_out_chunks(rows, like.device, like.dtype):
            own, first = labels[first : first + len(samples)], first + len(samples)
            delta = self.attack(x, samples, own, torch.zeros_like(samples), self.test_steps)
            scores.append(torch.cat([self.model(x, samples), self.model(x, samples + delta)], dim=1))
        return torch.cat(scores)

    def metrics(self, x: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Return metrics of the test samples.

        * ``accuracy`` and ``attacked_accuracy``: accuracy on clean samples, and against the adversary with
          ``test_steps`` steps from δ = 0.
        * ``attacked_loss``: mean cross-entropy against the adversary.
        """
        clean, attacked = predictions.chunk(2, dim=1)
        labels = torch.from_numpy(self.test_labels()).to(attacked.device)
        return {
            "accuracy": self.accuracies(clean)[0],
            "attacked_accuracy": self.accuracies(attacked)[0],
            "attacked_loss": float(F.cross_entropy(attacked, labels)),
        }
