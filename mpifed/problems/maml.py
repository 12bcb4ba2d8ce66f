"""Model-agnostic meta-learning as a composition (Huang n.d., eq. 2), and linear regression in closed form.

Interpretation of the paper: It does not specify tasks and data. Here each client has one task, and inner and
outer batches are drawn from the same samples, as in eq. 2. For linear regression, the task of client n is
given by weights w*_n near a common centre, with a fixed set of standard normal features.
"""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field

from mpifed.base.settings import problem_settings
from mpifed.core.problem import Batch, Composition, Named
from mpifed.core.records import Blocks
from mpifed.core.streams import BYTES_PER_DRAW, Stream, generator

__all__ = ["MAML", "LinearMAML", "NetworkMAML"]


class MAML(Composition):
    """min over x of F(x) = (1/N) Σ_n f_n(x - η ∇f_n(x)), where f_n is the loss of a task.

    A subclass has the setting ``eta`` and defines :meth:`task_loss`. The inner function is g_n(x) = x - η
    ∇f_n(x), so p = d and its Jacobian has d² elements: 4 MB in float32 for d = 1000, 400 MB for d = 10,000.
    """

    source = "Huang n.d., eq. 2"
    cites = ("huang_nd_mfcgd",)
    of_training = frozenset({"objective", "grad_norm"})

    @property
    def inner_size(self) -> int:
        """The dimension p of g_n, which equals d."""
        return self.variables().sizes["x"]

    def task_loss(self, x: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return f_n on a batch of client n, a scalar. This must be a pure function."""
        raise NotImplementedError

    def adapted(self, x: Named, batch: tuple[torch.Tensor, ...]) -> Named:
        """Return the parameters after one step on a batch, x - η ∇f_n(x)."""
        slope = torch.func.grad(self.task_loss)(x, batch)
        return {name: value - self.eta * slope[name] for name, value in x.items()}

    def inner(self, x: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return torch.cat([part.flatten() for part in self.adapted(x, batch).values()])

    def outer(self, u: torch.Tensor, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return self.task_loss(self.variables().unflatten("x", u), batch)

    def value_and_gradient(self, x: Named) -> tuple[torch.Tensor, torch.Tensor]:
        """Return F(x) and ∇F(x) ``[d]`` on all data, in the dtype and on the device of ``x``."""
        slope = torch.func.grad_and_value(lambda x, batch: self.task_loss(self.adapted(x, batch), batch))
        like, value, gradient = next(iter(x.values())), 0.0, 0.0
        for client in range(self.clients):
            batch = tuple(column.to(like) for column in self.client_data(client))
            client_gradient, loss = slope(dict(x), batch)
            flat = torch.cat([part.flatten() for part in client_gradient.values()])
            value = value + loss / self.clients
            gradient = gradient + flat / self.clients
        return value, gradient

    def exact(self, x: Named) -> dict[str, float]:
        """Return ``objective`` F and ``grad_norm`` ‖∇F‖ on all data of the clients."""
        value, gradient = self.value_and_gradient(x)
        return {"objective": float(value), "grad_norm": float(gradient.norm())}


class NetworkMAML(MAML):
    """MAML for a network. A subclass has the setting ``model`` and sets ``network`` in ``prepare``."""

    def variables(self) -> Blocks:
        return Blocks(x=self.network)

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """Return random initial parameters of the network."""
        return {"x": self.model.start(self.network, rng)}


@problem_settings
class LinearMAML(MAML):
    """min over w of F(w) = (1/N) Σ_n L_n(w - η ∇L_n(w)) with least-squares losses L_n.

    L_n(w) is half the mean of (aᵀw - b)² over client n's rows (a, b), with a ~ N(0, I), b = aᵀw*_n + noise ·
    N(0, 1), w*_n ~ N(w_0, s² I) and w_0 ~ N(0, I). The inner function is g_n(w) = w - η ∇L_n(w), p = d; the
    outer function is L_n. A client's rows depend only on the seed and its number.
    """

    d: int = Field(default=10, ge=1, description="dimension of w")
    clients: int = Field(default=10, ge=1, description="number of clients, each with one task")
    samples: int = Field(default=50, ge=1, description="number of rows per client")
    eta: float = Field(default=0.1, ge=0, description="step size η of the adaptation to a task")
    s: float = Field(default=1.0, ge=0, description="heterogeneity: standard deviation of the tasks' weights")
    noise: float = Field(default=0.1, ge=0, description="standard deviation of the noise of b")

    metric_names = ("error", "objective", "grad_norm")

    def footprint(self) -> int:
        rows = BYTES_PER_DRAW * self.clients * self.samples * self.d
        return max(rows, 32 * self.clients * self.d**2)  # the Hessians for the solution

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Draw all N clients on every rank, as the solution needs: O(N · samples · d) memory."""
        numbers = np.arange(self.clients)
        centre = generator(seed, "maml").standard_normal(self.d)
        tasks = centre + self.s * Stream(seed, "maml task", numbers).normal(self.d)
        rows = Stream(seed, "maml rows", numbers, count=self.samples)
        features = rows.normal(self.d)
        targets = (features * tasks).sum(-1) + self.noise * rows.normal()
        self._features, self._targets = torch.from_numpy(features), torch.from_numpy(targets)
        self._solution = self.solution()

    def variables(self) -> Blocks:
        return Blocks(x={"w": (self.d,)})

    def client_rows(self, clients: np.ndarray) -> tuple[Batch, np.ndarray]:
        """Return features ``[n, d]`` and targets ``[n]``."""
        columns = tuple(one[clients].flatten(0, 1) for one in (self._features, self._targets))
        return columns, self.client_sizes(clients)

    def client_sizes(self, clients: np.ndarray) -> np.ndarray:
        return np.full_like(clients, self.samples)

    def task_loss(self, x: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        features, targets = batch
        return ((features @ x["w"] - targets) ** 2).mean() / 2

    def solution(self) -> torch.Tensor:
        """Return the minimiser of least norm, ``[d]`` float64.

        With L_n = ½ wᵀH_n w - c_nᵀw + const and P_n = I - ηH_n it solves Σ_n P_n H_n P_n w = Σ_n P_n² c_n.
        """
        features, targets = self._features.numpy(), self._targets.numpy()
        H = np.einsum("nmi,nmj->nij", features, features) / self.samples
        c = np.einsum("nmi,nm->ni", features, targets) / self.samples
        P = np.eye(self.d) - self.eta * H
        right = (P @ P @ c[..., None])[..., 0]
        return torch.from_numpy(np.linalg.lstsq((P @ H @ P).mean(0), right.mean(0))[0])

    def metrics(self, x: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Return ``error`` ‖w - w*‖, ``objective`` F and ``grad_norm`` ‖∇F‖, on all data."""
        w = x["w"].detach().cpu().double()
        return {"error": float(torch.dist(w, self._solution)), **self.exact({"w": w})}
