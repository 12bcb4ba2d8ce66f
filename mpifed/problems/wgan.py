"""The regularised one-dimensional Wasserstein GAN of Shen et al. 2024, section 4.1.

Objective and optimum are known in closed form, for the distribution and for a fixed set of pairs.

Interpretation of the paper: It uses 10,000 fixed pairs (z, μ̂ + σ̂ z), divided evenly among ten clients:
``samples = 1000``. By default, batches are drawn from the distribution instead. Real data and generator share
the z of a pair, so the gradients of identical clients have no noise at the optimum; ``latent = "fresh"``
draws the generator's z independently, as in a GAN. The paper does not state the starting point.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import Field

from mpifed.base.settings import problem_settings
from mpifed.core.problem import Batch, Minimax, Named
from mpifed.core.records import Blocks
from mpifed.core.streams import BYTES_PER_DRAW, Stream

__all__ = ["WGAN"]


@problem_settings
class WGAN(Minimax):
    """min over (μ, σ), max over φ of E[D(x_real) - D(μ + σz)] - λ‖φ‖² with D(x) = φ_1 x + φ_2 x².

    x contains the generator's μ and σ; y is the discriminator's φ. The real data of client k are N(μ_k, σ̂²)
    with μ_k ~ N(μ̂, s²). Pairs of real data and z are drawn for every batch, or ``samples`` per client once.
    """

    clients: int = Field(default=10, ge=1, description="number of clients")
    lam: float = Field(
        default=0.01, gt=0, description="regularisation λ of φ; Shen et al. 2024 use .001, .005, .01"
    )
    mean: float = Field(default=0.0, description="mean μ̂ of the real data")
    std: float = Field(default=0.1, gt=0, description="standard deviation σ̂ of each client's real data")
    s: float = Field(
        default=0.0, ge=0, description="heterogeneity: standard deviation of the clients' means μ_k"
    )
    latent: Literal["paired", "fresh"] = Field(
        default="paired", description="z of the generator: the z of the real datum, or an independent z"
    )
    samples: int = Field(
        default=0,
        ge=0,
        description="number of pairs of real datum and z per client; 0 draws new pairs for every batch",
    )

    source = "Shen et al. 2024, section 4.1"
    cites = ("shen2024fessgda", "arjovsky2017wgan")
    metric_names = ("squared_distance", "grad_norm")

    def __post_init__(self):
        if self.clients * self.samples == 1:
            raise ValueError("clients * samples: expected at least 2 pairs, whose z differ, got 1")

    def footprint(self) -> int:
        means = 2 * BYTES_PER_DRAW * self.clients  # a single number needs twice as much memory
        return max(means, BYTES_PER_DRAW * self.clients * self.samples)

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        numbers = np.arange(self.clients)
        self._means = self.mean + self.s * Stream(seed, "wgan", numbers).normal()[:, 0]
        self._real_moments = float(self._means.mean()), float(np.hypot(self.std, self._means.std()))
        self._z_moments = 0.0, 1.0
        if self.samples:
            pairs = self._pairs(Stream(seed, "wgan pairs", numbers), self.samples)
            self._real, self._z = (torch.from_numpy(column[:, 0]) for column in pairs)
            self._real_moments, self._z_moments = (
                (float(column.mean()), float(column.std(correction=0))) for column in (self._real, self._z)
            )

    def variables(self) -> Blocks:
        return Blocks(x={"mu": (1,), "sigma": (1,)}, y={"phi": (2,)})

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """Return standard normal μ and φ, and the absolute value of a standard normal number as σ."""
        mu, sigma, *phi = rng.standard_normal(4)
        return {
            "x": torch.tensor([mu, abs(sigma)], dtype=torch.float64),
            "y": torch.tensor(phi, dtype=torch.float64),
        }

    def client_rows(self, clients: np.ndarray) -> tuple[Batch, np.ndarray] | None:
        """Return real data and z, each ``[n]``, or ``None`` if every batch is drawn."""
        if not self.samples:
            return None
        columns = self._real[clients].flatten(), self._z[clients].flatten()
        return columns, self.client_sizes(clients)

    def client_sizes(self, clients: np.ndarray) -> np.ndarray:
        """Return ``samples``, or 1 if every batch is drawn: all clients have equal weights."""
        return np.full_like(clients, max(1, self.samples))

    def draw(self, stream: Stream, size: int) -> tuple[np.ndarray, ...] | None:
        """Return real data and z, each ``[C, count, size]``, or ``None`` if the pairs are fixed."""
        return None if self.samples else self._pairs(stream, size)

    def full_batch(self, client: int) -> tuple[torch.Tensor, ...] | None:
        """Return two pairs, z = ±1, if every batch is drawn.

        They have the moments of the distribution that the objective, a quadratic polynomial, depends on.
        """
        if self.samples:
            return None
        z = torch.tensor([1.0, -1.0], dtype=torch.float64)
        return self._means[client] + self.std * z, z

    def _pairs(self, stream: Stream, size: int) -> tuple[np.ndarray, np.ndarray]:
        z = stream.normal(size)
        real = self._means[stream.clients][:, None, None] + self.std * z
        return real, z if self.latent == "paired" else stream.normal(size)

    def loss(self, x: Named, y: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        real, z = batch
        phi = y["phi"]
        fake = x["mu"] + x["sigma"] * z
        return phi[0] * (real - fake).mean() + phi[1] * (real**2 - fake**2).mean() - self.lam * (phi**2).sum()

    def gradients(self, x: torch.Tensor, y: torch.Tensor, batch: tuple) -> tuple[torch.Tensor, torch.Tensor]:
        real, z = batch
        fake = x[..., :1] + x[..., 1:] * z
        slope = y[..., :1] + 2 * y[..., 1:] * fake  # D'(μ + σz)
        gap = real - fake
        gx = -torch.stack([slope, slope * z], dim=-2).mean(-1)
        gy = torch.stack([gap, gap * (real + fake)], dim=-2).mean(-1)
        return gx, gy - 2 * self.lam * y

    def optimum(self, sign: int = 1) -> tuple[float, float]:
        """Return μ* and σ* with the given sign; φ* is 0.

        The generator then has the mean and the standard deviation of all real data.
        """
        (mean, std), (centre, scale) = self._real_moments, self._z_moments
        sigma = sign * std / scale
        return mean - sigma * centre, sigma

    def gaps(self, x: Named) -> tuple[float, float]:
        """Return the first two moments of all real data minus those of the generator at ``x``.

        They are moments of the fixed pairs, or expectations.
        """
        (mean, std), (m, v) = self._real_moments, self._generated(x)
        return mean - m, mean**2 + std**2 - m**2 - v**2

    def _generated(self, x: Named) -> tuple[float, float]:
        """Return the mean of μ + σz, and its standard deviation with the sign of σ."""
        (centre, scale), sigma = self._z_moments, float(x["sigma"])
        return float(x["mu"]) + sigma * centre, sigma * scale

    def best_response(self, x: Named) -> torch.Tensor:
        """Return φ*(x) = gaps / 2λ, the maximiser of f = φ·gaps - λ‖φ‖², ``[2]`` float64."""
        return torch.tensor(self.gaps(x), dtype=torch.float64) / (2 * self.lam)

    def metrics(self, x: Named, y: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Return ``squared_distance`` and ``grad_norm``.

        ``squared_distance`` is the metric of Shen et al. 2024, (μ - μ*)² + (σ - σ*)², where σ* has the sign
        of σ, because σ and -σ generate the same distribution. ``grad_norm`` is ‖∇Φ‖ for Φ(x) = max_φ f =
        ‖gaps‖²/4λ. By Danskin's theorem, ∇Φ is the gradient in x of -(φ_1* m + φ_2* (m² + v²)) with the
        generator's mean m and standard deviation v.
        """
        mu, sigma = float(x["mu"]), float(x["sigma"])
        mean, std = self.optimum(-1 if sigma < 0 else 1)
        (centre, scale), (m, v) = self._z_moments, self._generated(x)
        first, second = self.best_response(x).tolist()
        slope = first + 2 * m * second
        return {
            "squared_distance": (mu - mean) ** 2 + (sigma - std) ** 2,
            "grad_norm": float(np.hypot(slope, centre * slope + 2 * scale * v * second)),
        }
