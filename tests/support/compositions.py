"""Compositions for identities between methods, and runs of them in one process."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from fields import DX, Chain
from games import configuration, trace

from mpifed import Blocks, Minimisation
from mpifed.core.problem import Composition
from mpifed.core.streams import generator
from mpifed.parallel.comm import SerialComm


def path(method, problem, *, noise=None, rounds=4, **settings):
    """The averaged iterate of every round, ``[rounds, d]``."""
    config = configuration(method, problem, "unused", rounds=rounds, noise=noise, **settings)
    return trace(config, SerialComm())[0]


@dataclass
class Plain(Composition):
    """g = identity, f_k(x) = log cosh sums over the client's rows: a composition that is a plain finite
    sum."""

    clients: int = 3
    inner_size = DX

    def prepare(self, seed, data_dir=None):
        self.rows = torch.from_numpy(generator(seed, "plain").standard_normal((self.clients, 5, DX)))

    def variables(self):
        return Blocks(x={"x": (DX,)})

    def initial(self, rng):
        return {"x": torch.from_numpy(rng.standard_normal(DX))}

    def client_data(self, k):
        return (self.rows[k],)

    def inner(self, x, batch):
        return x["x"]

    def outer(self, u, batch):
        return torch.log(torch.cosh(batch[0] @ u - 1)).mean()


@dataclass
class PlainMinimisation(Minimisation):
    """The same sum as a plain minimisation."""

    plain: Plain
    clients: int = 3

    def prepare(self, seed, data_dir=None):
        self.plain.prepare(seed)
        self.initial, self.client_data = self.plain.initial, self.plain.client_data

    def variables(self):
        return Blocks(x={"x": (DX,)})

    def loss(self, x, batch):
        return self.plain.outer(x["x"], batch)


@dataclass
class Rearranged(Chain):
    """Client k is client ``order[k]`` of the chain."""

    order: tuple[int, ...] = (0, 1, 2)

    def __post_init__(self):
        self.clients = len(self.order)

    def prepare(self, seed, data_dir=None):
        chain = Chain()
        chain.prepare(seed)
        self.rows = [chain.rows[k] for k in self.order]
