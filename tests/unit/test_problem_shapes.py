"""Problems of unusual shapes: data of one column, an inner function with more values than variables."""

from dataclasses import dataclass

import pytest
import torch
from fields import DX, Chain, P
from oracles import oracle_of, prepared

from mpifed import Blocks
from mpifed.core.problem import Minimisation
from mpifed.core.streams import generator
from mpifed.problems import QuadraticNCPL

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


class Columns(Minimisation):
    """Least squares about rows that are all the data there is."""

    clients = 2

    def prepare(self, seed, data_dir=None):
        self.rows = [torch.ones(3 + client, 2, dtype=torch.float64) for client in range(2)]

    def variables(self):
        return Blocks(x={"w": (2,)})

    def client_data(self, client):
        return (self.rows[client],)

    def loss(self, x, batch):
        return ((x["w"] - batch[0]) ** 2).mean()


def test_data_of_one_column():
    problem = prepared(Columns())
    assert [problem.client_size(client) for client in range(2)] == [3, 4]
    oracle = oracle_of(problem, clients=[1])
    gradient = oracle.grad(torch.full((2,), 3.0, dtype=torch.float64), oracle.sample())
    assert gradient.tolist() == [[2.0, 2.0]]  # the mean over two coordinates of 2 (3 - 1)


@pytest.mark.parametrize("batched", [False, True])
def test_analytic_gradients_get_blocks_of_one_shape(batched):
    """Where clients share x and have moved in y, as in FedNest, x has the client axis too."""
    clients = 3 if batched else 1
    problem = prepared(QuadraticNCPL(clients=clients))
    oracle, (dx, dy) = oracle_of(problem, batch_size=1, batched=batched), problem.variables().sizes.values()
    x, y = torch.ones(dx).double(), torch.arange(1.0, clients * dy + 1).view(clients, dy).double()
    mixed = oracle.grad(x, y, oracle.sample(number=0))
    alike = oracle.grad(x.repeat(clients, 1), y, oracle.sample(number=0))
    assert all(map(torch.equal, mixed, alike)) and mixed[0].shape == (clients, dx)
