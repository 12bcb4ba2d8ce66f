"""Distributionally robust federated learning as a composition (Huang n.d., eq. 3).

Interpretation of the paper: It applies an increasing function f to each client's expected loss, but does not
specify f and the data. Here f is the exponential that corresponds to the Kullback-Leibler divergence. With
the loss L_n of client n, ::

    max over p on the simplex of Σ_n p_n L_n(x) - λ KL(p ‖ uniform) = λ log((1/N) Σ_n exp(L_n(x) / λ))

has the same minimisers as (1/N) Σ_n λ exp(L_n(x) / λ), which has the required form. Weight decay is a term of
every L_n, and hence of the maximum over p.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from pydantic import Field

from mpifed.base.settings import problem_settings
from mpifed.core.problem import Composition, Named
from mpifed.data import Partition
from mpifed.data.partition import Dirichlet
from mpifed.problems.labelled_images import LabelledImages
from mpifed.problems.weight_decay import WeightDecay

__all__ = ["DistributionallyRobust"]


@problem_settings
class DistributionallyRobust(WeightDecay, LabelledImages, Composition):
    """min over x of F(x) = (1/N) Σ_n f(L_n(x)), f(u) = λ exp(u/λ), L_n the mean cross-entropy of client n,
    with weight decay.

    The inner function g_n = L_n is a scalar, estimated by the mean over a batch; f is the same for all
    clients and has no samples. As λ grows, ∇F = (1/N) Σ_n exp(L_n/λ) ∇L_n tends to the gradient of the mean
    loss. If λ is much smaller than the losses, exp(L_n/λ) overflows, in float32 for L_n > 88 λ.
    """

    partition: Partition = Field(
        default=Dirichlet(alpha=0.5), description="partition of the samples over the clients"
    )
    lam: float = Field(
        default=1.0, gt=0, description="weight λ of KL; a small λ gives clients with large losses more weight"
    )

    source = "Huang n.d., eq. 3"
    cites = ("huang_nd_mfcgd",)
    metric_names = ("objective", "grad_norm", "robust_loss", "mean_loss", "worst_loss", "accuracy")
    maximised = frozenset({"accuracy"})
    of_training = frozenset({"objective", "grad_norm", "robust_loss", "mean_loss", "worst_loss"})

    def inner(self, x: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        images, labels = batch
        return self.decayed(F.cross_entropy(self.model(x, images), labels), x).reshape(1)

    def outer(self, u: torch.Tensor, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return self.lam * torch.exp(u[0] / self.lam)

    def client_losses(self, x: Named) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the losses L_n on all data of the clients ``[N]`` and their gradients ``[N, d]``."""
        like = next(iter(x.values()))
        slope = torch.func.grad_and_value(lambda x, batch: self.inner(x, batch)[0])
        losses, gradients = [], []
        for client in range(self.clients):
            images, labels = self.client_data(client)
            gradient, loss = slope(dict(x), (images.to(like), labels.to(like.device)))
            losses.append(loss)
            gradients.append(torch.cat([part.flatten() for part in gradient.values()]))
        return torch.stack(losses), torch.stack(gradients)

    def value_and_gradient(self, x: Named) -> tuple[torch.Tensor, torch.Tensor]:
        """Return F(x) and ∇F(x) ``[d]`` on all data: (1/N) Σ_n exp(L_n/λ) (λ, ∇L_n)."""
        return self._composed(*self.client_losses(x))

    def _composed(self, losses: torch.Tensor, gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights = torch.exp(losses / self.lam)
        return self.lam * weights.mean(), weights @ gradients / self.clients

    def metrics(self, x: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Return the metrics.

        On all training data: ``objective`` F, ``grad_norm`` ‖∇F‖, ``robust_loss`` λ log(F/λ), and the
        clients' ``mean_loss`` and ``worst_loss``, which are bounds of the robust loss. On the test images:
        ``accuracy``.
        """
        accuracy = {"accuracy": self.accuracies(predictions)[0]}
        return self._training_metrics(x) | accuracy if self.split == "test" else accuracy

    def _training_metrics(self, x: Named) -> dict[str, float]:
        losses, gradients = self.client_losses(x)
        objective, gradient = self._composed(losses, gradients)
        return {
            "objective": float(objective),
            "grad_norm": float(gradient.norm()),
            "robust_loss": self.lam * float(torch.logsumexp(losses / self.lam, 0) - math.log(self.clients)),
            "mean_loss": float(losses.mean()),
            "worst_loss": float(losses.max()),
        }
