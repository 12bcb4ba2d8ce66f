"""Identities of CDMA, FedNest, FLRA and Local AMSGrad: labels as in ``test_method_identities``.

Runs in float64 and one process, with exact local gradients unless said otherwise.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from baselines import FIXED, Half, gradient_at, plugin
from games import DX, DY, Game, configuration, start_of, trace
from identity_games import (
    ROUNDING,
    VISIBLE,
    Affine,
    Exchanged,
    Rearranged,
    Reflected,
    Renamed,
    Started,
    Swapped,
    Turned,
    distance,
    path,
    reflection,
)
from reference.cross_device import local_amsgrad, sagda

from mpifed import Blocks, Minimisation
from mpifed.algorithms import (
    CDMAADA,
    CDMANC,
    CDMAONE,
    FLRA,
    FSGDA,
    FedNest,
    LFedNest,
    LocalAMSGrad,
    LocalSGDA,
    SmoothedGDA,
)
from mpifed.core.noise import Gaussian
from mpifed.parallel.comm import SerialComm
from mpifed.parallel.placement import Cohort
from mpifed.simulation.setup import default_dtype

STEPS = dict(K=3, eta_x=0.05, eta_y=0.04)
ROLES = dict(K=3, eta_x=0.04, eta_y=0.05)
NEST = dict(T=1, tau=3, alpha=0.05, beta=0.04)
NOISE = Gaussian(scale=0.3)
SAMPLED = dict(batch_size=2, noise=NOISE)
LOCAL = LocalSGDA(q=3, eta_x=0.05, eta_y=0.04)
#: One of each kind.
METHODS = {
    "CDMANC": CDMANC(**STEPS),
    "CDMAONE": CDMAONE(**STEPS),
    "CDMAONE large": CDMAONE(**STEPS, large_batch=4),
    "CDMAADA": CDMAADA(**STEPS, alpha=0.9),
    "CDMAADA large": CDMAADA(**STEPS, alpha=0.9, large_batch=4),
    "FedNest": FedNest(**NEST | {"T": 2}),
    "LFedNest": LFedNest(**NEST | {"T": 2}),
    "FLRA": FLRA(tau=3, eta_1=0.05, eta_2=0.04),
    "LocalAMSGrad": LocalAMSGrad(**STEPS),
}
methods = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


def gda(rounds, **settings):
    """Exact parallel gradient descent ascent."""
    return lambda problem, out: path(
        LocalSGDA(q=1, eta_x=0.05, eta_y=0.04), problem, out, rounds=rounds, **settings
    )


@pytest.mark.parametrize("cohort", [None, 2])
def test_a8_cdma_one_is_sagda_with_fresh_variates(tmp_path, cohort):
    """Without noise; a minibatch at the point and one at the start are not the variate's."""
    game, rounds, clients = Game(clients=5), 4, 5
    with default_dtype(torch.float64):
        game.prepare(1)
    cohorts = [[Cohort.draw(1, r, clients, cohort or clients).tolist()] for r in range(1, rounds + 1)]

    def gap(batch_size):
        loop = sagda(
            gradient_at(game, 1, batch_size, None), *start_of(game, 1), cohorts, [1.0] * clients, **STEPS
        )
        settings = dict(rounds=rounds, batch_size=batch_size, cohort=cohort)
        ours = path(CDMAONE(**STEPS), Game(clients=clients), tmp_path, **settings)
        return distance(ours, np.array([torch.cat(point).numpy() for point in loop]))

    assert gap(0) < ROUNDING
    assert gap(2) > VISIBLE


def test_a9_a_single_step_of_cdma_one_is_exact(tmp_path):
    """Whatever the minibatch and its noise: they cancel."""
    exact = gda(4)(Game(), tmp_path)
    single = STEPS | {"K": 1}
    assert distance(path(CDMAONE(**single), Game(), tmp_path, rounds=4, **SAMPLED), exact) < ROUNDING
    for other in (CDMANC(**single), CDMAONE(**single, large_batch=2), CDMAONE(**STEPS)):
        assert distance(path(other, Game(), tmp_path, rounds=4, **SAMPLED), exact) > VISIBLE


@pytest.mark.parametrize("alpha, b", [(0.3, 0.0), (0.9, 1.0), (5.0, 0.5)])
def test_a10_cdma_ada_with_all_clients_is_cdma_one(tmp_path, alpha, b):
    """Any α_t, equal constant steps, any minibatch: its recursive estimate is the exact gradient."""
    settings = dict(rounds=4, **SAMPLED)
    right = path(CDMAONE(**STEPS), Game(), tmp_path, **settings)
    ada = dict(alpha=alpha, b=b)
    assert distance(path(CDMAADA(**STEPS, **ada, a=0.0), Game(), tmp_path, **settings), right) < ROUNDING
    assert distance(path(CDMAADA(**STEPS, **ada, a=0.3), Game(), tmp_path, **settings), right) > VISIBLE


@pytest.mark.parametrize("options", [{}, {"fresh_cohort": True}, {"large_batch": 3}], ids=str)
def test_cdma_ada_without_memory_is_cdma_one(tmp_path, options):
    """α_t = 1, with any cohort and any minibatch."""
    settings = dict(rounds=5, cohort=2, **SAMPLED)
    one, full, less = (
        path(method, Game(clients=5), tmp_path, **settings)
        for method in (
            CDMAONE(**STEPS, **options),
            CDMAADA(**STEPS, **options, alpha=1.0, a=0.0),
            CDMAADA(**STEPS, **options, alpha=0.3, a=0.0, b=0.0),
        )
    )
    assert distance(one, full) < ROUNDING
    assert distance(one, less) > VISIBLE


@pytest.mark.parametrize("cohort", [None, 2])
def test_cdma_nc_is_local_sgda(tmp_path, cohort):
    settings = dict(cohort=cohort, **SAMPLED)
    right = path(LOCAL, Game(clients=4), tmp_path, **settings)
    assert distance(path(CDMANC(**STEPS), Game(clients=4), tmp_path, **settings), right) < ROUNDING
    assert distance(path(CDMAONE(**STEPS), Game(clients=4), tmp_path, **settings), right) > VISIBLE


def test_a28_a29_single_calls_of_single_steps_are_alternating_descent_ascent(tmp_path):
    """y first: on the game with the roles exchanged, the method that steps first in its x."""
    nest = dict(T=1, tau=1, alpha=0.05, beta=0.04)
    first = SmoothedGDA(eta_x=0.04, eta_y=0.05, alternating=True)
    right = np.roll(path(first, Swapped(), tmp_path), DX, axis=1)
    for method in (FedNest(**nest), LFedNest(**nest)):
        assert distance(path(method, Game(), tmp_path), right) < ROUNDING
    assert distance(gda(3)(Game(), tmp_path), right) > VISIBLE


@dataclass
class Identical(Game):
    """The game of clients that are all like the first."""

    def prepare(self, seed, data_dir=None):
        super().prepare(seed)
        self.h, self.C, self.rows = ([part[0]] * self.clients for part in (self.h, self.C, self.rows))


def test_a30_identical_clients_need_no_correction(tmp_path):
    """With exact gradients; a minibatch's gathered gradient is not that of the steps."""

    def gap(problem, **settings):
        left, right = (
            path(method(**NEST | {"T": 2}), problem, tmp_path, **settings) for method in (FedNest, LFedNest)
        )
        return distance(left, right)

    assert gap(Identical()) < ROUNDING
    assert gap(Game()) > VISIBLE
    assert gap(Identical(), **SAMPLED) > VISIBLE


@dataclass
class AtSaddle(Affine):
    """The affine game, of clients that differ, started at its saddle point."""

    common: bool = False

    def initial(self, rng):
        H, C, G = (part.double() for part in (self.H, self.C, self.G))
        s = float(np.mean(self.s))
        a, b = torch.stack([rows.mean(0) for rows in self.rows]).mean(0).split((DX, DY))
        z = torch.linalg.solve(
            s * torch.cat([torch.cat([H, C], 1), torch.cat([C.T, -G], 1)]), -torch.cat([a, b])
        )
        return {"x": z[:DX], "y": z[DX:]}


@pytest.mark.parametrize(
    "method",
    [CDMAONE(**STEPS), CDMAADA(**STEPS), FedNest(**NEST), FedNest(**NEST | {"T": 2}, tau_outer=5)],
    ids=str,
)
def test_a31_the_saddle_point_is_left_alone(tmp_path, method):
    """With all clients. Without a correction clients leave it, and with a cohort the average is not 0."""

    def moved(one, **settings):
        found = path(one, AtSaddle(), tmp_path, rounds=4, **settings)
        game = AtSaddle()
        game.prepare(1)
        start = torch.cat([*game.initial(None).values()]).numpy()
        return np.abs(found - start).max()

    assert moved(method) < ROUNDING
    for other in (LOCAL, CDMANC(**STEPS), LFedNest(**NEST), FedNest(**NEST, inner="sgd")):
        assert moved(other) > VISIBLE
    assert moved(method, cohort=2) > VISIBLE


@dataclass
class Stacked(Game):
    """The game with one y for each client, all of them in one block."""

    def variables(self):
        return Blocks(x=super().variables()["x"], y={"y": (self.clients, DY)})

    def initial(self, rng):
        point = super().initial(rng)
        return {"x": point["x"], "y": point["y"].repeat(self.clients)}

    def client_data(self, k):
        data = super().client_data(k)
        own = torch.zeros(len(data[0]), self.clients, dtype=torch.float64)
        own[:, k] = 1
        return *data, own

    def loss(self, x, y, batch):
        *batch, own = batch
        return super().loss(x, {"y": own[0] @ y["y"]}, batch)

    def metrics(self, x, y, predictions):
        return {}


@pytest.mark.parametrize("batch_size", [0, 2])
@pytest.mark.parametrize("cohort", [None, 2])
def test_d10_flra_is_fsgda_on_all_adversaries_as_one(tmp_path, cohort, batch_size):
    """The server undoes the average of steps of which each client takes its own block's alone."""
    clients, settings = 4, dict(rounds=4, cohort=cohort, batch_size=batch_size)
    ours = path(FLRA(tau=3, eta_1=0.05, eta_2=0.04), Game(clients=clients), tmp_path, **settings)

    def stacked(eta_yg):
        method = FSGDA(K=3, eta_xl=0.05, eta_yl=0.04, eta_yg=eta_yg)
        found = path(method, Stacked(clients=clients), tmp_path, **settings)
        return np.hstack([found[:, :DX], found[:, DX:].reshape(-1, clients, DY).mean(1)])

    assert distance(ours, stacked(float(cohort or clients))) < ROUNDING
    assert distance(ours, stacked(1.0)) > VISIBLE


@pytest.mark.parametrize("cohort", [None, 2])
def test_flra_without_ascent_is_fedavg(tmp_path, cohort):
    """On the game at the y at which it is a minimisation."""
    settings, clients = dict(rounds=3, batch_size=2, cohort=cohort, noise=0), 4
    start = [*start_of(Game(), 1)[0].tolist(), *FIXED.tolist()]
    fedavg, _ = trace(
        configuration(plugin("fedavg", K=3, eta=0.05), Half(clients=clients), tmp_path, **settings),
        SerialComm(),
    )
    for eta_2, near in ((0.0, True), (0.1, False)):
        flra = FLRA(tau=3, eta_1=0.05, eta_2=eta_2)
        ours, _ = trace(
            configuration(flra, Started(clients=clients, start=start), tmp_path, **settings), SerialComm()
        )
        gap = distance(ours[:, :DX], fedavg)
        assert gap < ROUNDING if near else gap > VISIBLE


@pytest.mark.parametrize("name", ["CDMANC", "CDMAONE", "CDMAADA", "LocalAMSGrad"])
def test_d1_exchanging_the_roles_of_x_and_y(tmp_path, name):
    cls = type(METHODS[name])
    left = path(cls(**STEPS), Game(), tmp_path, **SAMPLED)
    for settings, near in ((ROLES, True), (STEPS, False)):
        right = path(cls(**settings), Swapped(), tmp_path, batch_size=2, noise=Exchanged(scale=0.3))
        gap = distance(left, np.roll(right, DX, axis=1))
        assert gap < ROUNDING if near else gap > VISIBLE


@pytest.mark.parametrize("cls", [FedNest, LFedNest], ids=str)
def test_d1n_fednest_steps_first_in_y(tmp_path, cls):
    """Not the same with the roles exchanged, minibatches or not."""
    left = path(cls(**NEST), Game(), tmp_path)
    right = path(cls(**NEST | {"alpha": 0.04, "beta": 0.05}), Swapped(), tmp_path)
    assert distance(left, np.roll(right, DX, axis=1)) > VISIBLE


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("CDMAONE", "CDMAADA")])
def test_d2_d3_duplicated_and_permuted_clients(tmp_path, name):
    """The rearranged game draws its samples, so large batches stand for full gradients."""

    def rearranged(order, **settings):
        game, noise = Rearranged(order=order), Renamed(scale=0.3, order=order)
        return path(METHODS[name], game, tmp_path, noise=noise, **settings)

    left = rearranged((0, 1, 2))
    assert distance(left, rearranged((0, 1, 2, 0, 1, 2))) < ROUNDING
    assert distance(left, rearranged((0, 1, 2, 0))) > VISIBLE
    left = rearranged((0, 1, 2), weights="samples")
    assert distance(left, rearranged((2, 0, 1), weights="samples")) < ROUNDING


@methods
def test_d5_orthogonal_change_of_variables(tmp_path, method):
    """Local AMSGrad alone looks at single coordinates."""
    left = path(method, Game(), tmp_path, **SAMPLED)
    right = path(method, Reflected(), tmp_path, batch_size=2, noise=Turned(scale=0.3))
    back = np.concatenate([right[:, :DX] @ reflection(DX), right[:, DX:] @ reflection(DY)], axis=1)
    gap = distance(left, back)
    assert gap > VISIBLE if isinstance(method, LocalAMSGrad) else gap < ROUNDING


@pytest.mark.parametrize("K", [1, 2, 6])
@pytest.mark.parametrize("cls", [CDMANC, CDMAONE], ids=["NC", "ONE"])
def test_d6_one_client_does_not_see_the_period(tmp_path, cls, K):
    """It is gradient descent ascent. Of several, the first step of CDMA-NC is that of the mean field, and the
    first two of CDMA-ONE, whose clients have all gone the same way."""
    method, exact = cls(K=K, eta_x=0.05, eta_y=0.04), {CDMANC: 1, CDMAONE: 2}[cls]
    for clients in (1, 3):
        game = Game(clients=clients)
        gap = distance(path(method, game, tmp_path, rounds=12 // K), gda(12)(game, tmp_path)[K - 1 :: K])
        assert gap < ROUNDING if clients == 1 or K <= exact else gap > VISIBLE


@methods
@pytest.mark.parametrize("group, weights", [(1, "uniform"), ("all", "samples")])
def test_d8_a_cohort_of_everybody_is_full_participation(tmp_path, method, group, weights):
    settings = dict(group=group, weights=weights, **SAMPLED)
    paths = [path(method, Game(clients=4), tmp_path, cohort=cohort, **settings) for cohort in (None, 4)]
    assert np.array_equal(*paths)


def test_a_fresh_cohort_is_another_one(tmp_path):
    """With all clients it is the same one, bit for bit."""
    for cls, settings in ((CDMAONE, STEPS), (CDMAADA, STEPS), (FedNest, NEST), (LFedNest, NEST)):
        for cohort in (None, 2):
            one, other = (
                path(cls(**settings, fresh_cohort=fresh), Game(clients=5), tmp_path, cohort=cohort, **SAMPLED)
                for fresh in (False, True)
            )
            assert np.array_equal(one, other) if cohort is None else distance(one, other) > VISIBLE


def test_a_large_floor_of_local_amsgrad_is_local_sgda(tmp_path):
    """Without first moments: v never exceeds ε."""
    scaled = STEPS | dict(eta_x=0.05 * 1e3, eta_y=0.04 * 1e3, beta_1=0.0)
    right = path(LOCAL, Game(), tmp_path, **SAMPLED)
    assert distance(path(LocalAMSGrad(**scaled, epsilon=1e6), Game(), tmp_path, **SAMPLED), right) < ROUNDING
    low = dict(scaled, eta_x=0.05, eta_y=0.04)
    assert distance(path(LocalAMSGrad(**low, epsilon=0.5), Game(), tmp_path, **SAMPLED), right) > VISIBLE


@dataclass
class Apart(Minimisation):
    """½(x - b_k)², whose solution is the average of b."""

    clients: int = 3
    b = (0.0, 0.0, 9.0)

    def variables(self):
        return Blocks(x={"x": (1,)})

    def client_data(self, client):
        return (torch.tensor([self.b[client]], dtype=torch.float64),)

    def gradients(self, x, batch):
        return x - batch[0][:, :1]


def test_second_moments_of_their_own_lead_clients_elsewhere(tmp_path):
    """Local AMSGrad finds the solution, 3. A naive local Adam counts clients with large gradients less."""
    settings = dict(K=5, eta_x=0.1, eta_y=0.0, beta_1=0.9, beta_2=0.99, epsilon=0.01)
    config = configuration(LocalAMSGrad(**settings), Apart(), tmp_path, rounds=200, batch_size=0, noise=0)
    ours, _ = trace(config, SerialComm())
    empty, start = torch.zeros(0).double(), torch.zeros(1).double()

    def gradient(k, x, y, key):
        return x - Apart.b[k], empty

    loops = [
        local_amsgrad(
            gradient, start, empty, [[[0, 1, 2]]] * 200, [1.0] * 3, **settings, synchronised=together
        )[-1][0].item()
        for together in (True, False)
    ]
    # v̂ is at most the average of the largest squares, 27: a round takes a tenth of the distance, 200 rounds
    # all but 1e-8 of it.
    assert ours[-1, 0] == pytest.approx(3.0, abs=1e-6) and loops[0] == pytest.approx(ours[-1, 0], abs=1e-10)
    assert abs(loops[1] - 3.0) > 0.5
