"""Jacobians of inner functions with fewer and with more values than variables."""

from dataclasses import dataclass

import pytest
import torch
from fields import DX, Chain, P
from oracles import oracle_of, prepared

from mpifed.core.streams import generator

TALL = DX + 2


@dataclass
class Tall(Chain):
    """The chain with as many inner values as make the Jacobian tall."""

    inner_size = TALL

    def prepare(self, seed, data_dir=None):
        rng = generator(seed, "tall")
        self.rows = [
            (
                torch.from_numpy(rng.standard_normal((4, TALL, DX))),
                torch.from_numpy(rng.standard_normal((4, TALL))),
            )
            for _ in range(self.clients)
        ]


@pytest.mark.parametrize("kind, wide", [(Chain, True), (Tall, False)])
@pytest.mark.parametrize("batched", [False, True])
def test_jacobians_in_forward_and_reverse_mode(recwarn, kind, wide, batched):
    """tanh' = 1 - tanh², row by row; and torch's notes on itself do not reach the user."""
    assert (kind.inner_size <= DX) == wide
    problem = prepared(kind(clients=1 if not batched else 2))
    oracle = oracle_of(problem, batch_size=4, batched=batched)
    x = torch.linspace(-1, 1, DX, dtype=torch.float64)
    value, jacobian = oracle.g_and_jacobian(x, zeta := oracle.sample(of="g"))
    B, c = zeta.batch
    inside = torch.tanh(B @ x + c)
    expected = ((1 - inside**2).unsqueeze(-1) * B).mean(1)
    torch.testing.assert_close(jacobian, expected, rtol=0, atol=1e-14)  # ulps of sums of four numbers
    torch.testing.assert_close(value, inside.mean(1), rtol=0, atol=1e-14)
    assert value.shape[-1] == (P if wide else TALL) and not list(recwarn)
