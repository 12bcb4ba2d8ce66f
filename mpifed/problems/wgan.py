"""The regularised one-dimensional Wasserstein GAN of Shen et al. 2024, section 4.1.

Objective and optimum are in closed form.

Readings. The paper fixes 10,000 pairs (z, μ̂ + σ̂ z) and divides them evenly, which makes all clients alike;
here every batch is drawn fresh from that law. A pair shares its z, so at the optimum the gradients of alike
clients carry no noise; ``latent = "fresh"`` draws the generator's z apart from the real data, as a GAN would.
The paper does not state the start.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import Field

from mpifed.core.problem import Minimax, Named
from mpifed.core.records import Blocks
from mpifed.core.settings import problem_settings
from mpifed.core.streams import BYTES_A_DRAW, Stream

__all__ = ["WGAN"]


@problem_settings
class WGAN(Minimax):
    """min over (μ, σ), max over φ of E[D(x_real) - D(μ + σz)] - λ‖φ‖² with D(x) = φ_1 x + φ_2 x².

    x holds the generator's μ and σ, y the discriminator's φ. The real data of client k is N(μ_k, σ̂²) with
    μ_k ~ N(μ̂, s²), the same for all clients where s = 0. Samples are drawn, not stored.
    """

    clients: int = Field(default=10, ge=1, description="number of clients")
    lam: float = Field(
        default=0.01, gt=0, description="regularisation λ of φ; Shen et al. 2024 takes .001, .005, .01"
    )
    mean: float = Field(default=0.0, description="mean μ̂ of the real data")
    std: float = Field(default=0.1, gt=0, description="standard deviation σ̂ of each client's real data")
    s: float = Field(
        default=0.0, ge=0, description="heterogeneity: standard deviation of the clients' means μ_k"
    )
    latent: Literal["paired", "fresh"] = Field(
        default="paired",
        description="z of the generator: the one behind the real datum, or an independent one",
    )

    source = "Shen et al. 2024, section 4.1"
    cites = ("shen2024fessgda", "arjovsky2017wgan")

    def footprint(self) -> int:
        return 2 * BYTES_A_DRAW * self.clients  # of a number alone, twice as many

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        stream = Stream(seed, "wgan", np.arange(self.clients))
        self._means = self.mean + self.s * stream.normal()[:, 0]

    def variables(self) -> Blocks:
        return Blocks(x={"mu": (1,), "sigma": (1,)}, y={"phi": (2,)})

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """Standard normal μ and φ, and σ the absolute value of a standard normal number."""
        mu, sigma, *phi = rng.standard_normal(4)
        return {
            "x": torch.tensor([mu, abs(sigma)], dtype=torch.float64),
            "y": torch.tensor(phi, dtype=torch.float64),
        }

    def client_size(self, client: int) -> int:
        """1: clients draw their samples, so all count alike."""
        return 1

    def draw(self, stream: Stream, size: int) -> tuple[np.ndarray, ...]:
        """Real data and latent z, each ``[C, count, size]``.

        Raises:
            ValueError: ``size`` is 0; the data are a law, of which there is no full batch.
        """
        if not size:
            raise ValueError("WGAN draws its samples: it needs [oracle] batch_size >= 1, got 0 (all data)")
        z = stream.normal(size)
        real = self._means[stream.clients][:, None, None] + self.std * z
        return real, z if self.latent == "paired" else stream.normal(size)

    def loss(self, x: Named, y: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        real, z = batch
        phi = y["phi"]
        fake = x["mu"] + x["sigma"] * z
        return phi[0] * (real - fake).mean() + phi[1] * (real**2 - fake**2).mean() - self.lam * (phi**2).sum()

    def optimum(self) -> tuple[float, float]:
        """μ* and |σ*|, those of the clients' pooled data; at an optimum φ* = 0."""
        return float(self._means.mean()), float(np.hypot(self.std, self._means.std()))

    def gaps(self, x: Named) -> tuple[float, float]:
        """Expected first and second moment of the pooled real data, less those of the generator at ``x``."""
        mu, sigma = float(x["mu"]), float(x["sigma"])
        mean, std = self.optimum()
        return mean - mu, mean**2 + std**2 - mu**2 - sigma**2

    def best_response(self, x: Named) -> torch.Tensor:
        """φ*(x) = gaps / 2λ, ``[2]`` float64, where f = φ·gaps - λ‖φ‖² is largest."""
        return torch.tensor(self.gaps(x), dtype=torch.float64) / (2 * self.lam)

    def metrics(self, x: Named, y: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """``squared_distance``: the figure of Shen et al. 2024, (μ - μ*)² + (|σ| - σ*)², as -σ generates what
        σ does.

        ``grad_norm``: ‖∇Φ‖ for Φ(x) = max_φ f = ‖gaps‖²/4λ, by Danskin's theorem -(φ_1* + 2μφ_2*, 2σφ_2*).
        """
        mu, sigma = float(x["mu"]), float(x["sigma"])
        mean, std = self.optimum()
        first, second = self.best_response(x).tolist()
        return {
            "squared_distance": (mu - mean) ** 2 + (abs(sigma) - std) ** 2,
            "grad_norm": float(np.hypot(first + 2 * mu * second, 2 * sigma * second)),
        }
