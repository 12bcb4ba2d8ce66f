"""Mixtures of the clients' losses with the worst weights: agnostic federated learning (Mohri et al. 2019).

The problem is min over x, max over λ in the simplex of Σ_n λ_n ℓ_n(x) - ρ r(λ), where ℓ_n is the loss of
client n. The block y contains λ, and f_n(x, λ) = N λ_n ℓ_n(x) - ρ r(λ). The regulariser r is ‖λ - 1/N‖²/2 or
KL(λ ‖ uniform). λ starts uniform.

A client sees one coordinate of λ. Therefore, methods that project λ at the clients are refused.

Weights of clients other than uniform (``participation.weights``) change the problem: ℓ_n is multiplied by N
times the client's weight. The gradient of KL is large at the border of the simplex and requires small steps.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field

from mpifed.base.settings import problem_settings
from mpifed.core.problem import Batch, Minimax, Named
from mpifed.core.records import Blocks
from mpifed.core.sets import Sets, Simplex
from mpifed.core.streams import BYTES_PER_DRAW, Stream, generator
from mpifed.data import Partition
from mpifed.data.partition import Dirichlet
from mpifed.problems.constants import around
from mpifed.problems.labelled_images import CHUNK, LabelledImages
from mpifed.problems.weight_decay import WeightDecay

__all__ = ["ClientMixture", "QuadraticMixture"]

#: Maximum number of clients. Every gradient has one coordinate per client, so N clients that are vectorised
#: need N² numbers.
LARGEST = 4096
#: Smallest weight in the gradient of the KL divergence, which is infinite at the border of the simplex.
SMALLEST = 1e-12


@problem_settings
class _Mixture(Minimax):
    rho: float = Field(default=0.0, ge=0, description="weight ρ of the regulariser r(λ)")
    divergence: Literal["squares", "kl"] = Field(
        default="squares", description="regulariser r(λ): ‖λ - 1/N‖²/2, or KL(λ ‖ uniform)"
    )

    needs = {"divergence": ("rho > 0", lambda problem: problem.rho > 0)}

    source = "Mohri, Sivek & Suresh 2019"
    cites = ("mohri2019afl",)
    sets = Sets(y=Simplex())
    separate_coordinates = mixture = True

    def expect_few_clients(self) -> None:
        """Raise a ``ValueError`` if there are more than :data:`LARGEST` clients."""
        if self.clients > LARGEST:
            raise ValueError(
                f"problem.clients: expected at most {LARGEST}, because λ and its gradients have one "
                f"coordinate per client, got {self.clients}"
            )

    def regulariser(self, weights: torch.Tensor) -> torch.Tensor:
        """Return ρ r(λ), ``[...]``, for λ ``[..., N]``."""
        if self.divergence == "kl":
            return self.rho * (weights * (self.clients * weights.clamp(min=SMALLEST)).log()).sum(-1)
        return self.rho / 2 * ((weights - 1 / self.clients) ** 2).sum(-1)

    def client_losses(self, x: Named) -> torch.Tensor:
        """Return the losses ℓ_n(x) on all data of the clients, ``[N]``."""
        raise NotImplementedError

    def best_response(self, x: Named) -> torch.Tensor:
        """Return weights λ* that maximise Σ_n λ_n ℓ_n(x) - ρ r(λ), ``[N]``."""
        losses = self.client_losses(x)
        if not self.rho:
            return F.one_hot(losses.argmax(), self.clients).to(losses)
        if self.divergence == "kl":
            return torch.softmax(losses / self.rho, 0)
        return Simplex()(1 / self.clients + losses / self.rho)

    def loss_metrics(self, x: Named) -> dict[str, float]:
        """Return the metrics of the clients' losses.

        ``worst_loss`` is max_n ℓ_n, the objective for ρ = 0; ``mean_loss`` is the mean, and ``loss_spread``
        the difference between the largest and the smallest.
        """
        losses = self.client_losses(x).double()
        low, high = (float(bound) for bound in losses.aminmax())
        return {"worst_loss": high, "mean_loss": float(losses.mean()), "loss_spread": high - low}


@problem_settings
class ClientMixture(WeightDecay, LabelledImages, _Mixture):
    """min over x, max over λ in the simplex of Σ_n λ_n ℓ_n(x) - ρ r(λ), ℓ_n the cross-entropy of client n.

    The network with parameters x is trained for the worst mixture of the clients' distributions. Weights of
    clients (``participation.weights``) multiply ℓ_n by N w_n; uniform weights leave the problem as it is.
    Weight decay is a term of every ℓ_n, and hence of the mixture; metrics are without it.
    """

    partition: Partition = Field(
        default=Dirichlet(alpha=0.5), description="partition of the samples over the clients"
    )

    metric_names = ("worst_loss", "mean_loss", "loss_spread", "accuracy")
    maximised = frozenset({"accuracy"})
    of_training = frozenset({"worst_loss", "mean_loss", "loss_spread"})

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Read, split and partition the data, see :meth:`LabelledImages.prepare`.

        Raises:
            ValueError: data, model and partition do not fit together, or there are too many clients.
        """
        self.expect_few_clients()
        super().prepare(seed, data_dir)

    def variables(self) -> Blocks:
        return Blocks(x=self.network, y={"weights": (self.clients,)})

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """Return random initial parameters of the network and uniform weights."""
        weights = torch.full((self.clients,), 1 / self.clients, dtype=torch.float64)
        return {"x": self.model.start(self.network, rng), "y": weights}

    def client_rows(self, clients: np.ndarray) -> tuple[Batch, np.ndarray]:
        """Return images ``[n, c, h, w]``, labels ``[n]`` and the number of the client ``[n]``."""
        (images, labels), sizes = super().client_rows(clients)
        return (images, labels, torch.from_numpy(np.repeat(clients, sizes))), sizes

    def loss(self, x: Named, y: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        images, labels, client = batch
        weight = y["weights"][client[:1]].sum()
        loss = self.decayed(F.cross_entropy(self.model(x, images), labels), x)
        return self.clients * weight * loss - self.regulariser(y["weights"])

    @torch.no_grad()
    def client_losses(self, x: Named) -> torch.Tensor:
        like, losses = next(iter(x.values())), []
        for client in range(self.clients):
            images, labels, _ = self.client_data(client)
            parts = [
                F.cross_entropy(self.model(x, images.to(like)), labels.to(like.device), reduction="sum")
                for images, labels in zip(images.split(CHUNK), labels.split(CHUNK))
            ]
            losses.append(sum(parts) / len(labels))
        return torch.stack(losses)

    def metrics(self, x: Named, y: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Return the ``accuracy`` on the test images, and :meth:`loss_metrics` on all training data."""
        accuracy = {"accuracy": self.accuracies(predictions)[0]}
        return self.loss_metrics(x) | accuracy if self.split == "test" else accuracy


@problem_settings
class QuadraticMixture(_Mixture):
    """A mixture of losses ℓ_n(x) = vᵀA_n v/2 + g_nᵀv + c_n, where v = x - x*, with a known solution (x*, λ*).

    The first ``active`` clients have weights λ*_n > 0 with Σ λ*_n g_n = 0, and the others the weight 0.
    ℓ_n(x*) minus the derivative of the regulariser is equal for these clients, and smaller by 0.5 to 1.5 for
    the others, so that (x*, λ*) is the only saddle point. A_n is diagonal with entries from 1 to ``kappa``.
    """

    d: int = Field(default=5, ge=1, description="dimension of x")
    clients: int = Field(default=5, ge=1, description="number of clients")
    active: int = Field(
        default=3, ge=1, description="number of clients with positive weights at the solution"
    )
    kappa: float = Field(
        default=3.0, ge=1, description="largest curvature of a client's loss; the smallest is 1"
    )
    scale: float = Field(default=1.0, ge=0, description="standard deviation of the start x_0 around x*")

    single_row = True
    metric_names = ("worst_loss", "mean_loss", "loss_spread", "x_error", "y_error")

    def __post_init__(self):
        if self.active > self.clients:
            raise ValueError(f"expected active <= clients, got {self.active} > {self.clients}")
        if self.rho and self.divergence == "kl" and self.active < self.clients:
            raise ValueError(
                "divergence = 'kl' makes all weights of the solution positive: expected active = "
                f"{self.clients}, the number of clients, got {self.active}"
            )

    def footprint(self) -> int:
        return 3 * BYTES_PER_DRAW * self.clients * self.d

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        self.expect_few_clients()
        rng, stream = generator(seed, "mixture"), Stream(seed, "mixture", np.arange(self.clients))
        active = np.arange(self.clients) < self.active
        weights = rng.uniform(0.5, 1.5, self.clients) * active
        self._x, self._weights = rng.standard_normal(self.d), weights / weights.sum()
        self._A = 1 + (self.kappa - 1) * stream.uniform(self.d)[:, 0]
        self._g = around(np.zeros(self.d), 1.0, stream)
        self._g[: self.active] -= self._weights @ self._g
        levels = self._derivative(self._weights) + rng.standard_normal()
        self._c = levels - np.where(active, 0.0, rng.uniform(0.5, 1.5, self.clients))

    def _derivative(self, weights: np.ndarray) -> np.ndarray:
        """Return the gradient of ρ r(λ), up to a constant, ``[N]``."""
        if self.rho and self.divergence == "kl":
            return self.rho * np.log(weights)
        return self.rho * weights

    def variables(self) -> Blocks:
        return Blocks(x={"x": (self.d,)}, y={"weights": (self.clients,)})

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """Return x_0, normal around x*, and uniform weights."""
        start = torch.from_numpy(self._x + self.scale * rng.standard_normal(self.d))
        return {"x": start, "y": torch.full((self.clients,), 1 / self.clients, dtype=torch.float64)}

    def client_rows(self, clients: np.ndarray) -> tuple[Batch, np.ndarray]:
        """Return a row per client: the diagonal of A_n, g_n and x* ``[C, d]``, c_n and the client's number
        ``[C]``."""
        star = np.repeat(self._x[None], len(clients), axis=0)
        columns = self._A[clients], self._g[clients], star, self._c[clients], clients
        return tuple(map(torch.from_numpy, columns)), self.client_sizes(clients)

    def gradients(self, x: torch.Tensor, y: torch.Tensor, batch: tuple) -> tuple[torch.Tensor, torch.Tensor]:
        """Return N λ_n ∇ℓ_n(x) and N ℓ_n(x) e_n - ρ ∇r(λ)."""
        A, g, star, c, number = (column[:, 0] for column in batch)
        v, N = x - star, self.clients
        own = torch.arange(N, device=x.device) == number[:, None]
        loss = (v * (A * v / 2 + g)).sum(-1, keepdim=True) + c[:, None]
        weight = torch.where(own, y, 0.0).sum(-1, keepdim=True)
        if self.divergence == "kl":
            slope = self.rho * ((N * y.clamp(min=SMALLEST)).log() + (y > SMALLEST))
        else:
            slope = self.rho * (y - 1 / N)
        return N * weight * (A * v + g), torch.where(own, N * loss, 0.0) - slope

    def client_losses(self, x: Named) -> torch.Tensor:
        point = x["x"].cpu().double().numpy() - self._x
        return torch.from_numpy((point * (self._A * point / 2 + self._g)).sum(-1) + self._c)

    def solution(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the minimiser x* and the weights λ*, ``[d]`` and ``[N]`` float64."""
        return torch.from_numpy(self._x), torch.from_numpy(self._weights)

    def metrics(self, x: Named, y: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Return :meth:`loss_metrics`, and the distances ``x_error`` and ``y_error`` from x* and λ*."""
        star, weights = self.solution()
        return self.loss_metrics(x) | {
            "x_error": float(torch.dist(x["x"].cpu().double(), star)),
            "y_error": float(torch.dist(y["weights"].cpu().double(), weights)),
        }
