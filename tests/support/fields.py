"""A small operator and a small composition with noise, and their stochastic values for the references.

As in ``games``, the references get analytic values on the package's samples of the same addresses.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import drawn
import torch

from mpifed import Blocks
from mpifed.core.problem import Composition, Operator
from mpifed.core.sets import Zero
from mpifed.core.streams import generator

D, P, DX = 4, 2, 3


@dataclass
class Field(Operator):
    """V_k(z; rows) = M_k z + mean over the rows a of [a + tanh(a·z) a / 2]: monotone-like, not affine,
    heterogeneous."""

    clients: int = 3
    phi: object = field(default_factory=Zero)

    def prepare(self, seed, data_dir=None):
        self.rows, self.M = [], []
        for client in range(self.clients):
            rng = generator(seed, "field", client)
            S, A = rng.standard_normal((2, D, D)) / 2
            self.M.append(torch.from_numpy(S @ S.T + A - A.T))
            self.rows.append(torch.from_numpy(rng.standard_normal((5 + client, D))))

    def variables(self):
        return Blocks(z={"z": (D,)})

    def initial(self, rng):
        return {"z": torch.from_numpy(rng.standard_normal(D))}

    def client_data(self, k):
        return self.rows[k], self.M[k].expand(len(self.rows[k]), D, D)

    def operator(self, z, batch):
        rows, M = batch[0], batch[1][:, 0]
        z = z.expand(len(rows), D)
        inner = (rows @ z.unsqueeze(-1)).tanh() / 2
        return (M @ z.unsqueeze(-1)).squeeze(-1) + (rows + inner * rows).mean(1)

    def metrics(self, z, predictions):
        return {"norm": float(z["z"].norm())}


def reference_operator(problem: Field, seed: int, K: int, calls: int, batch_size: int, noise):
    """Return ``operator(k, z, (t, j))``: call j of step t has sample ((t-1) mod K) · calls + j of its
    round."""

    def operator(k, z, key):
        t, j = key
        r, index, count = (t - 1) // K + 1, ((t - 1) % K) * calls + j, K * calls
        rows = problem.rows[k]
        if batch_size:
            rows = rows[drawn.rows(seed, k, r, count, len(rows), batch_size)[index]]
        value = problem.M[k] @ z + sum(a + torch.tanh(a @ z) * a / 2 for a in rows) / len(rows)
        if noise is not None:
            value = value + torch.from_numpy(drawn.noise(noise, seed, k, r, count, D)[index])
        return value

    return operator


@dataclass
class Chain(Composition):
    """g_k(x; rows) = mean of tanh(B x + c) with one (B, c) per row, f_k(u; rows) = mean of ½‖u - c‖² + Σ
    cos(u) / 2."""

    clients: int = 3
    inner_size = P

    def prepare(self, seed, data_dir=None):
        self.rows = []
        for client in range(self.clients):
            rng = generator(seed, "chain", client)
            self.rows.append(
                (
                    torch.from_numpy(rng.standard_normal((5 + client, self.inner_size, DX))),
                    torch.from_numpy(rng.standard_normal((5 + client, self.inner_size))),
                )
            )

    def variables(self):
        return Blocks(x={"a": (DX - 1,), "b": (1,)})

    def initial(self, rng):
        return {"x": torch.from_numpy(rng.standard_normal(DX))}

    def client_data(self, k):
        return self.rows[k]

    def inner(self, x, batch):
        B, c = batch
        return torch.tanh(B @ torch.cat([x["a"], x["b"]]) + c).mean(0)

    def outer(self, u, batch):
        return 0.5 * ((u - batch[1]) ** 2).sum(1).mean() + torch.cos(u).sum() / 2

    def metrics(self, x, predictions):
        return {"norm": float(torch.cat([x["a"], x["b"]]).norm())}


@dataclass
class Square(Chain):
    """The chain with as many inner values as variables."""

    inner_size = DX


def chain_at(problem: Chain, seed: int, batch_size: int, noise, count: int = 64):
    """Return ``inner``, ``jacobian`` and ``outer_grad`` for the references, on sample j < ``count`` of
    round r."""
    p = problem.inner_size

    def sample(k, key):
        (r, j), (B, c) = key, problem.rows[k]
        if batch_size:
            chosen = drawn.rows(seed, k, r, count, len(B), batch_size)[j]
            B, c = B[chosen], c[chosen]
        extra = torch.zeros(2 * p + p * DX, dtype=torch.float64)
        if noise is not None:
            extra = torch.from_numpy(drawn.noise(noise, seed, k, r, count, len(extra))[j])
        return B, c, extra

    def inner(k, x, key):
        B, c, extra = sample(k, key)
        return torch.tanh(B @ x + c).mean(0) + extra[:p]

    def jacobian(k, x, key):
        B, c, extra = sample(k, key)
        slopes = 1 - torch.tanh(B @ x + c) ** 2
        return (slopes[:, :, None] * B).mean(0) + extra[p : p + p * DX].reshape(p, DX)

    def outer_grad(k, u, key):
        _, c, extra = sample(k, key)
        return u - c.mean(0) - torch.sin(u) / 2 + extra[p + p * DX :]

    return inner, jacobian, outer_grad


def reference_chain(problem: Chain, seed: int, q: int, batch_size: int, noise):
    """Return ``inner``, ``jacobian`` and ``outer_grad`` for MFCGD: ζ has sample 2j of its round, ξ sample
    2j + 1."""
    inner, jacobian, outer_grad = chain_at(problem, seed, batch_size, noise, 2 * q + 2)

    def at(key, second):
        r, j = (0, key[1]) if key[0] == "init" else ((key[1] - 1) // q + 1, (key[1] - 1) % q)
        return r, 2 * j + second

    return (
        lambda k, x, key: inner(k, x, at(key, 0)),
        lambda k, x, key: jacobian(k, x, at(key, 0)),
        lambda k, u, key: outer_grad(k, u, at(key, 1)),
    )
