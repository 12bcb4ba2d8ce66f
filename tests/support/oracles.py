"""Prepared problems, points of them, and their oracles without a simulation."""

from __future__ import annotations

import numpy as np
import torch

from mpifed.core.oracle import ORACLES
from mpifed.core.sampling import Sampler


def prepared(problem, seed=0):
    """Return the problem with its data."""
    problem.prepare(seed)
    return problem


def random_point(problem, scale=0.3) -> list[torch.Tensor]:
    """Return one flat tensor per block, near the start of the problem."""
    rng = np.random.default_rng(0)
    start = problem.initial(rng)
    return [
        torch.from_numpy(scale * rng.standard_normal(size)) + start.get(block, 0)
        for block, size in problem.variables().sizes.items()
    ]


def oracle_of(problem, batch_size=0, batched=False, clients=None, **sampling):
    """Return a float64 oracle of ``clients`` (default: all) in round 1, with settings of its sampler."""
    clients = list(range(problem.clients)) if clients is None else clients
    sampler = Sampler(
        problem,
        clients,
        0,
        batch_size=batch_size,
        noise=None,
        noise_width=0,
        dtype=torch.float64,
        device="cpu",
        **sampling,
    )
    sampler.begin_round(1)
    sampler.select_members(np.arange(len(clients)))
    oracle = ORACLES[problem.family](problem, sampler, batched)
    oracle.select_clients(slice(0, len(clients)))
    return oracle
