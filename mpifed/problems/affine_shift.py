"""Classification that is robust to affine shifts of the inputs (Reisizadeh et al. 2020).

An adversary replaces each flattened input a by Λa + δ, and a penalty keeps the shift near the identity. With
``FLRA`` each client has its own adversary. All other minimax methods use one adversary for all clients.

Interpretation of the paper: The loss is the cross-entropy. Λ is a full matrix over the features of an input,
or a diagonal matrix with ``diagonal``. Λ starts at I and δ at 0. They are bounded by the penalty alone. The
inner problem is strongly concave if λ_1 and λ_2 are large relative to the network's curvature. If they are
too small, the adversary can make the network misclassify every image.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field

from mpifed.base.settings import problem_settings
from mpifed.core.problem import Minimax, Named
from mpifed.core.records import Blocks
from mpifed.problems.labelled_images import CHUNK, LabelledImages
from mpifed.problems.weight_decay import WeightDecay

__all__ = ["AffineShift"]

#: Maximum number of features per input for a full matrix Λ, which then has a million entries per adversary.
LARGEST = 1024


@problem_settings
class AffineShift(WeightDecay, LabelledImages, Minimax):
    """min over w, max over (Λ, δ) of the mean loss of h(w; Λa + δ) - λ_1‖Λ - I‖² - λ_2‖δ‖².

    x contains the network's parameters w. y contains the shift: ``matrix`` is Λ ``[d, d]`` or its diagonal
    ``[d]``, and ``offset`` is δ ``[d]``, for inputs with d features.
    """

    lambda_1: float = Field(default=1.0, gt=0, description="weight λ_1 of ‖Λ - I‖² in the penalty")
    lambda_2: float = Field(default=1.0, gt=0, description="weight λ_2 of ‖δ‖² in the penalty")
    diagonal: bool = Field(
        default=False,
        description=f"restrict Λ to diagonal matrices; required for inputs with more than {LARGEST} features",
    )
    attack_steps: int = Field(
        default=5,
        ge=1,
        description="number of steps of the adversary on the test images, for the metrics attacked_accuracy "
        "and attacked_objective",
    )

    source = "Reisizadeh et al. 2020"
    cites = ("reisizadeh2020flra",)
    metric_names = (
        "accuracy",
        "shifted_accuracy",
        "attacked_accuracy",
        "objective",
        "attacked_objective",
        "penalty",
    )
    maximised = frozenset({"accuracy", "shifted_accuracy", "attacked_accuracy"})

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Read, split and partition the data, see :meth:`LabelledImages.prepare`.

        Raises:
            ValueError: the data, the model and the partition do not fit together, or a full matrix Λ would be
                too large for the inputs.
        """
        super().prepare(seed, data_dir)
        self._features, self._attacked = math.prod(self._images.shape), None
        if self._features > LARGEST and not self.diagonal:
            raise ValueError(
                f"a full matrix Λ needs inputs with at most {LARGEST} features, but {self.dataset} has "
                f"{self._features}: set problem.diagonal = true"
            )

    def variables(self) -> Blocks:
        d = self._features
        return Blocks(x=self.network, y={"matrix": (d,) if self.diagonal else (d, d), "offset": (d,)})

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """Return random initial parameters of the network, Λ = I and δ = 0."""
        d = self._features
        identity = torch.ones(d) if self.diagonal else torch.eye(d).flatten()
        return {"x": self.model.start(self.network, rng), "y": torch.cat([identity, torch.zeros(d)])}

    def loss(self, x: Named, y: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        images, labels = batch
        loss = F.cross_entropy(self.model(x, self.shifted(y, images)), labels) - self.penalty(y)
        return self.decayed(loss, x)

    def shifted(self, y: Named, images: torch.Tensor) -> torch.Tensor:
        """Return Λa + δ for images a ``[n, ...]``, in the same shape."""
        flat = images.flatten(1)
        scaled = flat * y["matrix"] if self.diagonal else flat @ y["matrix"].mT
        return (scaled + y["offset"]).view(images.shape)

    def penalty(self, y: Named) -> torch.Tensor:
        """Return λ_1‖Λ - I‖² + λ_2‖δ‖², a scalar."""
        difference = y["matrix"] - self._identity(y["matrix"])
        return self.lambda_1 * (difference**2).sum() + self.lambda_2 * (y["offset"] ** 2).sum()

    def _identity(self, like: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(like) if self.diagonal else torch.eye(len(like)).to(like)

    def attack(self, x: Named) -> Named:
        """Compute an adversarial shift for the network ``x`` on the first 1000 test images, or fewer.

        Starting from Λ = I and δ = 0, each of ``attack_steps`` steps linearises the cross-entropy at the
        current shift and maximises it minus the penalty: Λ = I + ∇_Λ / (2λ_1), δ = ∇_δ / (2λ_2). The fixed
        points of this iteration are the stationary points of the inner problem.
        """
        cached = self._attacked  # one evaluation calls this method many times
        if cached is None or cached[0] is not x or cached[1] is not self._held_out:
            self._attacked = cached = x, self._held_out, self._attack(x)
        return cached[2]

    def _attack(self, x: Named) -> Named:
        like, d = next(iter(x.values())), self._features
        images = next(self._held_out_chunks(slice(CHUNK), like.device, like.dtype))
        labels = torch.from_numpy(self.test_labels()[:CHUNK]).to(like.device)
        slope = torch.func.grad(lambda y: F.cross_entropy(self.model(x, self.shifted(y, images)), labels))
        identity = self._identity(like.new_empty((d,) if self.diagonal else (d, d)))
        y = {"matrix": identity, "offset": like.new_zeros(d)}
        for _ in range(self.attack_steps):
            ascent = slope(y)
            matrix = identity + ascent["matrix"] / (2 * self.lambda_1)
            y = {"matrix": matrix, "offset": ascent["offset"] / (2 * self.lambda_2)}
        return y

    def predict(self, x: Named, y: Named, rows: slice) -> torch.Tensor:
        """Return the network's outputs ``[n, 3 * classes]``.

        The three groups are the outputs for clean images, for images with the shift ``y``, and for images
        with the shift of :meth:`attack`.
        """
        like, attack = next(iter(x.values())), self.attack(x)
        scores = []
        for images in self._held_out_chunks(rows, like.device, like.dtype):
            inputs = images, self.shifted(y, images), self.shifted(attack, images)
            scores.append(torch.cat([self.model(x, group) for group in inputs], dim=1))
        return torch.cat(scores)

    def metrics(self, x: Named, y: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Return the metrics on the test images.

        * ``accuracy``: accuracy on clean images.
        * ``shifted_accuracy``: accuracy with the shift ``y``, which for FLRA is the average of the clients'
          shifts.
        * ``attacked_accuracy``: accuracy with the shift of :meth:`attack`.
        * ``objective`` and ``attacked_objective``: mean loss minus penalty with these two shifts.
        * ``penalty``: the penalty of ``y``; only for the test split.
        """
        labels, parts = torch.from_numpy(self.test_labels()), predictions.chunk(3, dim=1)
        accuracies = [self.accuracies(part)[0] for part in parts]
        objectives = [
            float(F.cross_entropy(part, labels.to(part.device))) - float(self.penalty(shift))
            for part, shift in zip(parts[1:], (y, self.attack(x)))
        ]
        metrics = {
            **dict(zip(("accuracy", "shifted_accuracy", "attacked_accuracy"), accuracies)),
            **dict(zip(("objective", "attacked_objective"), objectives)),
        }
        return metrics | ({"penalty": float(self.penalty(y))} if self.split == "test" else {})
