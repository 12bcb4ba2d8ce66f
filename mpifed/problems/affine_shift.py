"""Classification that is robust to affine shifts of the inputs (Reisizadeh et al. 2020).

A client's inputs a, flattened, become Λa + δ: an adversary's choice, which a penalty keeps near the identity.
With ``FLRA`` every client has its own adversary; other minimax methods have one for all clients.

Readings. The loss is the cross-entropy. Λ is a full matrix over all numbers of an input, or with ``diagonal``
one factor each; it starts at I, δ at 0. The penalty alone bounds them. The inner problem is strongly concave
where λ_1 and λ_2 are large for the network; small ones let the adversary win every image.
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

__all__ = ["AffineShift"]

#: Numbers of an input up to which Λ may be a full matrix, of a million numbers for every client.
LARGEST = 1024


@problem_settings
class AffineShift(LabelledImages, Minimax):
    """min over w, max over (Λ, δ) of the mean loss of h(w; Λa + δ) - λ_1‖Λ - I‖² - λ_2‖δ‖².

    x holds the network's parameters w, y the shift: ``matrix`` Λ ``[d, d]``, or its diagonal ``[d]``, and
    ``offset`` δ ``[d]`` for inputs of d numbers.
    """

    lambda_1: float = Field(default=1.0, gt=0, description="weight λ_1 of the squared norm of Λ - I")
    lambda_2: float = Field(default=1.0, gt=0, description="weight λ_2 of the squared norm of δ")
    diagonal: bool = Field(default=False, description="Λ is diagonal, for inputs of many numbers")
    attack_steps: int = Field(
        default=5, ge=1, description="steps of the adversary that the test images are given (see metrics)"
    )

    source = "Reisizadeh et al. 2020"
    cites = ("reisizadeh2020flra",)
    maximised = frozenset({"accuracy", "shifted_accuracy", "attacked_accuracy"})

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Read and part the data, as for every classification problem.

        Raises:
            ValueError: as there, or a full Λ is too large for these inputs.
        """
        super().prepare(seed, data_dir)
        self._numbers, self._attacked = math.prod(self._images.shape), None
        if self._numbers > LARGEST and not self.diagonal:
            raise ValueError(
                f"a full matrix Λ is for inputs of at most {LARGEST} numbers, those of {self.dataset} have "
                f"{self._numbers}: set problem.diagonal = true"
            )

    def variables(self) -> Blocks:
        d = self._numbers
        return Blocks(x=self._shapes, y={"matrix": (d,) if self.diagonal else (d, d), "offset": (d,)})

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """The network's random start, Λ = I and δ = 0."""
        d = self._numbers
        identity = torch.ones(d) if self.diagonal else torch.eye(d).flatten()
        return {"x": self.model.start(self._shapes, rng), "y": torch.cat([identity, torch.zeros(d)])}

    def loss(self, x: Named, y: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        images, labels = batch
        return F.cross_entropy(self.model(x, self.shifted(y, images)), labels) - self.penalty(y)

    def shifted(self, y: Named, images: torch.Tensor) -> torch.Tensor:
        """Λa + δ for images a, ``[n, ...]``."""
        flat = images.flatten(1)
        turned = flat * y["matrix"] if self.diagonal else flat @ y["matrix"].mT
        return (turned + y["offset"]).view(images.shape)

    def penalty(self, y: Named) -> torch.Tensor:
        """λ_1‖Λ - I‖² + λ_2‖δ‖², a scalar."""
        away = y["matrix"] - self._identity(y["matrix"])
        return self.lambda_1 * (away**2).sum() + self.lambda_2 * (y["offset"] ** 2).sum()

    def _identity(self, like: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(like) if self.diagonal else torch.eye(len(like)).to(like)

    def attack(self, x: Named) -> Named:
        """A shift against w, for the first test images, at most 1000.

        From Λ = I and δ = 0, ``attack_steps`` times the maximiser of the loss linearised at the shift before:
        Λ = I + ∇_Λ / (2λ_1), δ = ∇_δ / (2λ_2), with the gradients of the cross-entropy. It stays where it is
        at a stationary point of the inner problem.
        """
        known = self._attacked  # an evaluation needs it many times
        if known is None or known[0] is not x or known[1] is not self._held:
            self._attacked = known = x, self._held, self._attack(x)
        return known[2]

    def _attack(self, x: Named) -> Named:
        like, d = next(iter(x.values())), self._numbers
        images = self._held[:CHUNK].to(like)
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
        """The network's outputs for clean images, for those under the point's shift, for those under
        :meth:`attack`: ``[n, 3 classes]``."""
        like, attack = next(iter(x.values())), self.attack(x)
        scores = []
        for chunk in self._held[rows].split(CHUNK):
            images = chunk.to(like)
            seen = images, self.shifted(y, images), self.shifted(attack, images)
            scores.append(torch.cat([self.model(x, one) for one in seen], dim=1))
        return torch.cat(scores)

    def metrics(self, x: Named, y: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Of the test images.

        ``accuracy``: the share that is classified rightly; ``shifted_accuracy``: the same under the shift of
        the point, which for FLRA is the average of the clients' shifts; ``attacked_accuracy``: under
        :meth:`attack`. ``objective`` and ``attacked_objective``: the mean loss under these shifts, less their
        penalties. ``penalty``: that of the point's shift.
        """
        labels, parts = torch.from_numpy(self.test_labels()), predictions.chunk(3, dim=1)
        shares = [self.accuracies(part)[0] for part in parts]
        values = [
            float(F.cross_entropy(part, labels.to(part.device))) - float(self.penalty(shift))
            for part, shift in zip(parts[1:], (y, self.attack(x)))
        ]
        values_of = {
            **dict(zip(("accuracy", "shifted_accuracy", "attacked_accuracy"), shares)),
            **dict(zip(("objective", "attacked_objective"), values)),
        }
        return values_of | ({"penalty": float(self.penalty(y))} if self.split == "test" else {})
