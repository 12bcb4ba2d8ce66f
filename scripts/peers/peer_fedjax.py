#!/usr/bin/env python3
"""Methods of FedJAX and of mpifed; ``agreement.py`` runs this program and describes its output."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch
from common import BATCH, ROUNDS, Path, report, run_mpifed
from values import compare, simulate

from mpifed import algorithms, problems

jax.config.update("jax_enable_x64", True)
jax.tree_map = jax.tree_util.tree_map  # which newer versions of jax lack
import fedjax  # noqa: E402

PACKAGE = "fedjax"
ETA, K = 0.3, 3
SHAPES = ((5, 6), (5,), (3, 5), (3,))  # of the network
STEPS = fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_steps=K)
ALL = fedjax.PaddedBatchHParams(batch_size=64)


class Client(fedjax.ClientDataset):
    """The rows of a client, with given minibatches ``[steps, b]``."""

    def __init__(self, minibatches: torch.Tensor, **columns):
        super().__init__({name: np.asarray(column) for name, column in columns.items()})
        self.minibatches = minibatches.numpy()

    def shuffle_repeat_batch(self, hparams=None, **kwargs):
        return [
            {name: column[rows] for name, column in self.raw_examples.items()} for rows in self.minibatches
        ]


def parts(point: torch.Tensor) -> list[jnp.ndarray]:
    """Return the network's parameters at a point."""
    sizes = [int(np.prod(shape)) for shape in SHAPES]
    split = point.split(sizes)
    return [jnp.asarray(part.numpy().reshape(shape)) for part, shape in zip(split, SHAPES, strict=True)]


def flat(params) -> torch.Tensor:
    return torch.cat([torch.from_numpy(np.array(part)).flatten() for part in params])


def cross_entropy(outputs, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(outputs), labels[:, None], axis=1)[:, 0]


def losses(params, batch, rng):
    W, b, V, c = params
    return cross_entropy(jnp.tanh(batch["x"] @ W.T + b) @ V.T + c, batch["y"])


GRADIENT = fedjax.grad(losses)


def run_fedjax(path: Path, method, pairs: bool = False) -> list[torch.Tensor]:
    """Run the rounds of a path and return the point after each.

    Args:
        pairs: the path has every minibatch twice, because it is evaluated at two points.
    """
    state, found = method.init(parts(path.start)), []
    for batches in path.minibatches:
        clients = []
        for one, rows in batches.items():
            x, y = path.data[one]
            clients.append((one, Client(rows[::2] if pairs else rows, x=x, y=y), jax.random.PRNGKey(0)))
        state, _ = method.apply(state, clients)
        found.append(flat(state.params))
    return found


def averaging() -> None:
    sgd = fedjax.optimizers.sgd
    for eta_g in (1.0, 0.7):
        method = fedjax.algorithms.fed_avg.federated_averaging(GRADIENT, sgd(ETA), sgd(eta_g), STEPS)
        path = run_mpifed(algorithms.FedAvg(K=K, eta=ETA, eta_g=eta_g), cohort=3, weights="samples")
        report(f"FedAvg, eta_g = {eta_g:g}", PACKAGE, path, run_fedjax(path, method))


def mime() -> None:
    """Mime and MimeLite; the optimisers of FedJAX are those of optax."""
    functions = {"MimeLite": fedjax.algorithms.mime_lite.mime_lite, "Mime": fedjax.algorithms.mime.mime}
    beta, eta_g = 0.9, 0.8
    momentum = {"name": "momentum", "beta": beta, "mix": "sum"}
    for name, function in functions.items():
        path = of_mpifed(name, ETA, eta_g, momentum)
        method = function(losses, fedjax.optimizers.sgd(ETA, momentum=beta), STEPS, ALL, eta_g)
        report(f"{name}, momentum, mix = sum", PACKAGE, path, run_fedjax(path, method, pairs=name == "Mime"))

    eta, beta_1, beta_2, epsilon = 0.02, 0.9, 0.99, 0.1
    settings = {"beta_2": beta_2, "epsilon": epsilon}
    optimizers = {
        "rmsprop": (fedjax.optimizers.rmsprop(eta, decay=beta_2, eps=epsilon), 0.0),
        "adam": (fedjax.optimizers.adam(eta, b1=beta_1, b2=beta_2, eps=epsilon), beta_1),
    }
    reasons = {
        "rmsprop": "A step uses v after its own gradient, and ε is added under the root.",
        "adam": "A step uses v after its own gradient, and both moments are divided by 1 - β^t.",
    }
    for name, (optimizer, b1) in optimizers.items():
        base = {"name": name} | settings | ({"beta_1": beta_1} if name == "adam" else {})
        path = of_mpifed("Mime", eta, eta_g, base)
        methods = [
            functions["Mime"](losses, one, STEPS, ALL, eta_g)
            for one in (optimizer, fixed(eta, b1, beta_2, epsilon))
        ]
        report(
            f"Mime, {name}", PACKAGE, path, run_fedjax(path, methods[0], pairs=True),
            f"{reasons[name]} With the optimiser of the paper:", run_fedjax(path, methods[1], pairs=True),
        )  # fmt: skip


def of_mpifed(name: str, eta: float, eta_g: float, base: dict) -> Path:
    method = getattr(algorithms, name)(K=K, eta=eta, eta_g=eta_g, base=base)
    return run_mpifed(method, cohort=3, weights="samples")


def fixed(eta: float, beta_1: float, beta_2: float, epsilon: float) -> fedjax.Optimizer:
    """Return Adam without bias correction, whose steps use v before their gradient; RMSprop for β_1 = 0."""

    def init(params):
        return [jnp.zeros_like(part) for part in params], [jnp.zeros_like(part) for part in params]

    def apply(gradients, state, params):
        m, v = state
        new = [(1 - beta_1) * g + beta_1 * one for g, one in zip(gradients, m, strict=True)]
        steps = [eta * one / (jnp.sqrt(two) + epsilon) for one, two in zip(new, v, strict=True)]
        squares = [(1 - beta_2) * g**2 + beta_2 * two for g, two in zip(gradients, v, strict=True)]
        return (new, squares), [part - step for part, step in zip(params, steps, strict=True)]

    return fedjax.Optimizer(init, apply)


def agnostic() -> None:
    """AgnosticFedAvg with one step on all data, in which every client is a domain, is AFL of all clients with
    exponentiated gradients."""
    clients, gamma_x, gamma_y = 4, 0.5, 0.05
    problem = problems.ClientMixture(dataset="digits", model="linear", clients=clients)
    method = algorithms.AFL(gamma_x=gamma_x, gamma_y=gamma_y, mirror="entropy")
    simulation, points = simulate(problem, method, ROUNDS)
    cohort, sizes = [], []
    for client in range(clients):
        samples, labels = simulation.problem.client_data(client)[:2]
        sizes.append(len(labels))
        columns = {"x": samples.double().flatten(1), "y": labels, "domain_id": np.full(len(labels), client)}
        data = Client(torch.arange(len(labels))[None], **columns)
        cohort.append((client, data, jax.random.PRNGKey(client)))

    def losses(params, batch, rng):
        return cross_entropy(batch["x"] @ params[0].T + params[1], batch["y"])

    method = fedjax.algorithms.agnostic_fed_avg.agnostic_federated_averaging(
        losses, fedjax.optimizers.sgd(gamma_x), fedjax.optimizers.sgd(1.0), STEPS, ALL,
        init_domain_weights=[1 / clients] * clients, domain_learning_rate=gamma_y,
        domain_algorithm="eg", init_domain_window=[float(n) for n in sizes],
    )  # fmt: skip
    state = method.init([jnp.asarray(points[0][:640].reshape(10, 64)), jnp.asarray(points[0][640:650])])
    found = []
    for _ in range(ROUNDS):
        state, _ = method.apply(state, cohort)
        found.append(flat([*state.params, state.domain_weights]))
    what = f"linear model, digits, {clients} clients, all data"
    compare("AFL, mirror = entropy", PACKAGE, what, points[1:], found)


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    averaging()
    mime()
    agnostic()
