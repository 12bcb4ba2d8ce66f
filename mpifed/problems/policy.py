"""Policy evaluation: the mean squared projected Bellman error as a saddle problem (Du et al. 2017)."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import Field

from mpifed.base.settings import problem_settings
from mpifed.core.problem import Batch, Minimax, Named
from mpifed.core.records import Blocks
from mpifed.core.streams import BYTES_PER_DRAW, Stream, generator

__all__ = ["MSPBE"]

#: Smallest eigenvalue of a regular matrix, as a fraction of the largest one of the mean of the C_n.
REGULAR = 1e-10


@problem_settings
class MSPBE(Minimax):
    """f_n(θ, w) = wᵀ(b_n - A_n θ) - wᵀC_n w/2 + (ρ/2)‖θ‖²: linear values V(s) = φ(s)ᵀθ.

    A_n, b_n and C_n are the means of φ(φ - γφ')ᵀ, rφ and φφᵀ over the transitions (φ, r, φ') of client n,
    which come from one trajectory of a Markov chain. x consists of θ, y of w. Features φ(s) are normal with
    norm 1. With heterogeneity h, the probabilities of a client's chain are multiplied by factors e^{hN}, its
    policy, and its rewards differ by hN, where N is standard normal.
    """

    d: int = Field(default=5, ge=1, description="number of features")
    clients: int = Field(default=10, ge=1, description="number of clients")
    states: int = Field(default=30, ge=2, description="number of states")
    samples: int = Field(default=100, ge=1, description="number of transitions per client")
    gamma: float = Field(default=0.95, ge=0, lt=1, description="discount factor γ")
    rho: float = Field(default=0.1, ge=0, description="weight ρ of the regulariser of θ")
    heterogeneity: float = Field(default=0.3, ge=0, description="heterogeneity h of policies and rewards")
    sampling: Literal["iid", "markov"] = Field(
        default="iid",
        description="a minibatch: independent transitions, or consecutive ones from a random position",
    )

    source = "Du et al. 2017"
    cites = ("du2017policy",)
    metric_names = ("mspbe", "theta_error", "w_error")

    def footprint(self) -> int:
        per_client = self.states**2 + self.samples * (2 * self.d + 2)
        return BYTES_PER_DRAW * self.clients * per_client

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Simulate the clients' trajectories.

        Raises:
            ValueError: the mean of the C_n is singular, so that w* is not unique, or θ* is not unique.
        """
        rng, stream = generator(seed, "policy"), Stream(seed, "policy", np.arange(self.clients))
        features = rng.standard_normal((self.states, self.d))
        features /= np.linalg.norm(features, axis=1, keepdims=True)
        logits, rewards = rng.standard_normal((self.states, self.states)), rng.standard_normal(self.states)
        chances = np.exp(logits + self.heterogeneity * stream.normal(self.states, self.states)[:, 0])
        chances = chances.cumsum(axis=2) / chances.sum(axis=2, keepdims=True)
        states = self._trajectories(chances, stream.uniform(self.samples + 1)[:, 0])
        rewards = rewards + self.heterogeneity * stream.normal(self.states)[:, 0]
        now, after = states[:, :-1], states[:, 1:]
        self._columns = (features[now], np.take_along_axis(rewards, now, axis=1), features[after])
        self._set_means()

    def _trajectories(self, chances: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """Return the states of each client's chain, ``[N, samples + 1]``.

        Args:
            chances: cumulated transition probabilities ``[N, states, states]``.
            uniform: random numbers ``[N, samples + 1]``; the first gives the initial state.
        """
        clients, states = np.arange(self.clients), np.empty(uniform.shape, dtype=np.int64)
        states[:, 0] = uniform[:, 0] * self.states
        for t in range(1, uniform.shape[1]):
            row = chances[clients, states[:, t - 1]]
            states[:, t] = np.minimum((row < uniform[:, t, None]).sum(axis=1), self.states - 1)
        return states

    def _set_means(self) -> None:
        """Compute A_n, b_n and C_n, and the solution (θ*, w*) of the mean."""
        phi, r, after = self._columns
        n = self.samples
        self._A = np.einsum("kni,knj->kij", phi, phi - self.gamma * after) / n
        self._b, self._C = np.einsum("kni,kn->ki", phi, r) / n, np.einsum("kni,knj->kij", phi, phi) / n
        A, b, C = (one.mean(axis=0) for one in (self._A, self._b, self._C))
        values = np.linalg.eigvalsh(C)
        if values[0] < REGULAR * values[-1]:
            raise ValueError(
                f"the mean of the C_n is singular with {self.clients} clients of {n} transitions and "
                f"d = {self.d} features: expected fewer features, or more samples or states"
            )
        whitened = np.linalg.solve(C, A)
        H = A.T @ whitened + self.rho * np.eye(self.d)
        if np.linalg.eigvalsh(H)[0] < REGULAR * values[-1]:
            raise ValueError("the mean of the A_n is singular: expected rho > 0, or more samples")
        self._theta = np.linalg.solve(H, whitened.T @ b)
        self._w = np.linalg.solve(C, b - A @ self._theta)
        self._mean = A, b, C

    def variables(self) -> Blocks:
        return Blocks(x={"theta": (self.d,)}, y={"w": (self.d,)})

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """Return a normal θ; w starts at 0."""
        return {"x": torch.from_numpy(rng.standard_normal(self.d))}

    def client_rows(self, clients: np.ndarray) -> tuple[Batch, np.ndarray] | None:
        """Return φ ``[n, d]``, r ``[n]`` and φ' ``[n, d]``; ``None`` for ``sampling = "markov"``."""
        if self.sampling == "markov":
            return None
        columns = (torch.from_numpy(column[clients]).flatten(0, 1) for column in self._columns)
        return tuple(columns), self.client_sizes(clients)

    def client_sizes(self, clients: np.ndarray) -> np.ndarray:
        return np.full_like(clients, self.samples)

    def draw(self, stream: Stream, size: int) -> tuple[np.ndarray, ...] | None:
        """For ``sampling = "markov"``, return consecutive transitions; the first follows the last one."""
        if self.sampling == "iid":
            return None
        first = stream.integers(self.samples, 1)
        rows = (first + np.arange(size)) % self.samples
        clients = stream.clients[:, None, None]
        return tuple(column[clients, rows] for column in self._columns)

    def full_batch(self, client: int) -> tuple[torch.Tensor, ...] | None:
        """Return all transitions for ``sampling = "markov"``."""
        if self.sampling == "iid":
            return None
        return tuple(torch.from_numpy(column[client]) for column in self._columns)

    def loss(self, x: Named, y: Named, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        phi, r, after = batch
        theta, score = x["theta"], phi @ y["w"]
        error = r - (phi - self.gamma * after) @ theta
        return (score * error - score * score / 2).mean() + self.rho / 2 * (theta * theta).sum()

    def constants(self) -> dict[str, float]:
        """Return ``L``, the largest norm of a client's ((ρ, -Aᵀ), (-A, -C)), and ``mu`` of the mean C."""
        regular = self.rho * np.eye(self.d)
        hessians = (np.block([[regular, -A.T], [-A, -C]]) for A, C in zip(self._A, self._C))
        return {
            "L": max(float(np.linalg.norm(H, 2)) for H in hessians),
            "mu": float(np.linalg.eigvalsh(self._mean[2])[0]),
        }

    def solution(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return θ* = (AᵀC⁻¹A + ρI)⁻¹AᵀC⁻¹b and w* = C⁻¹(b - Aθ*) of the means, each ``[d]`` float64."""
        return torch.from_numpy(self._theta), torch.from_numpy(self._w)

    def best_response(self, x: Named) -> torch.Tensor:
        """Return w*(θ) = C⁻¹(b - Aθ) of the means, ``[d]`` float64."""
        A, b, C = self._mean
        return torch.from_numpy(np.linalg.solve(C, b - A @ x["theta"].cpu().double().numpy()))

    def metrics(self, x: Named, y: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        """Return ``mspbe`` = ‖b - Aθ‖²_{C⁻¹}/2 + (ρ/2)‖θ‖², and the distances from θ* and w*."""
        A, b, C = self._mean
        theta, w = (one.cpu().double().numpy() for one in (x["theta"], y["w"]))
        error = b - A @ theta
        value = error @ np.linalg.solve(C, error) / 2 + self.rho / 2 * theta @ theta
        return {
            "mspbe": float(value),
            "theta_error": float(np.linalg.norm(theta - self._theta)),
            "w_error": float(np.linalg.norm(w - self._w)),
        }
