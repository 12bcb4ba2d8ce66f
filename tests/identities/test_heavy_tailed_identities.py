"""Identities of Fed-NSGDA-M, FedMuon-DA and FedSGDA-Clip: labels A... and D... as in the other files of this
folder.

All runs are the package against itself, in float64 and one process, with minibatches and noise; equal numbers
of local steps give the runs that are compared the same samples.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from games import DX, DY, Game, configuration, reference_gradient, start_of
from identity_games import ROUNDING, VISIBLE, Exchanged, Rearranged, Renamed, Scaled, Swapped, distance, path
from scipy.linalg import polar

from mpifed import Blocks, Minimax, hyperparameters
from mpifed.algorithms import FedMuonDA, FedNSGDAM, FedSGDAClip
from mpifed.core.noise import Gaussian
from mpifed.core.streams import generator
from mpifed.parallel.comm import SerialComm
from mpifed.simulation.simulation import Simulation

NOISE = Gaussian(scale=0.3)
SAMPLED = {"batch_size": 2, "noise": NOISE}
RATES = dict(p=3, eta_x=0.03, eta_y=0.02, gamma_x=0.1, gamma_y=0.07, beta_x=0.7, beta_y=0.4)
ROLES = dict(p=3, eta_x=0.02, eta_y=0.03, gamma_x=0.07, gamma_y=0.1, beta_x=0.4, beta_y=0.7)
FIRST = ["beta_one", "zero", "gradient"]


@dataclass
class Columns(Game):
    """The game with one-column and one-row matrices as parameters: ``joined`` makes one tensor of each
    block."""

    joined: bool = False

    def variables(self):
        return Blocks(x={"x": (DX, 1)} if self.joined else {"u": (DX - 1, 1), "v": (1,)}, y={"y": (1, DY)})

    def loss(self, x, y, batch):
        x = torch.cat([part.reshape(-1) for part in x.values()])
        return super().loss({"u": x[:-1], "v": x[-1:]}, {"y": y["y"].reshape(-1)}, batch)

    def metrics(self, x, y, predictions):
        return {}


@dataclass
class Matrices(Minimax):
    """½‖X - A_k‖² + ⟨X, B Y⟩ - ½‖Y‖² + a vector's ½‖w‖² with X 3 x 2 or its transpose, Y 2 x 2."""

    clients: int = 3
    tall: bool = True

    def prepare(self, seed, data_dir=None):
        shifts = [generator(seed, "A", client).standard_normal((1, 6)) for client in range(self.clients)]
        self.A = [torch.from_numpy(shift) for shift in shifts]
        self.B = torch.from_numpy(generator(seed, "B").standard_normal((6, 4)))

    def variables(self):
        return Blocks(x={"X": (3, 2) if self.tall else (2, 3), "w": (2,)}, y={"Y": (2, 2)})

    def initial(self, rng):
        return {"x": torch.from_numpy(rng.standard_normal(8)), "y": torch.from_numpy(rng.standard_normal(4))}

    def client_data(self, k):
        return (self.A[k],)

    def gradients(self, x, y, batch):
        x = x.expand(len(batch[0]), 8)
        gx = torch.cat([x[..., :6] - batch[0].mean(1) + y @ self.B.T, x[..., 6:]], dim=-1)
        return gx, x[..., :6] @ self.B - y


def watched(base):
    """``base`` that writes down what its steps see (momenta and directions) and where its clients end."""

    @hyperparameters
    class Watched(base):
        momenta: ClassVar[list] = []
        taken: ClassVar[list] = []
        ends: ClassVar[list] = []

        @property
        def direction(self):
            inner = super().direction

            def recording(u, shapes):
                self.momenta.append(u.clone())
                self.taken.append(inner(u, shapes))
                return self.taken[-1]

            return recording

        def client_round(self, now, shared, client, message, oracle):
            super().client_round(now, shared, client, message, oracle)
            self.ends.append(torch.cat([shared.x + message.dx, shared.y + message.dy], dim=-1))

    return Watched


def rounds_of(method, problem, out, rounds=4, **settings):
    """The simulation before the first round (its start) and after every round."""
    config = configuration(method, problem, out, **{"rounds": rounds, **settings})
    simulation = Simulation.from_settings(config, SerialComm())
    simulation.start()
    yield simulation
    for _ in range(rounds):
        simulation.step()
        yield simulation


@pytest.mark.parametrize("first_round", FIRST)
@pytest.mark.parametrize("norm_over", ["block", "tensor"])
def test_a17_a_low_threshold_makes_normalised_steps(tmp_path, norm_over, first_round):
    """min(1, τ / ‖u‖) u = τ u / ‖u‖: steps τ(η, γ). A threshold among the norms does not."""
    options = {"norm_over": norm_over, "first_round": first_round}

    def gap(tau):
        scaled = {name: tau * value if name[:2] in ("et", "ga") else value for name, value in RATES.items()}
        left = path(FedSGDAClip(**RATES, tau=tau, **options), Game(), tmp_path, **SAMPLED)
        return distance(left, path(FedNSGDAM(**scaled, **options), Game(), tmp_path, **SAMPLED))

    assert gap(1e-3) < ROUNDING
    assert gap(1.0) > VISIBLE


@pytest.mark.parametrize("first_round", ["beta_one", "zero"])
def test_a19_one_client_and_one_step_are_normalised_momentum_sgda(tmp_path, first_round):
    """u_t = β g_t + (1 - β) u_{t-1} and steps γ along u_t / ‖u_t‖: the variates cancel, the local step sizes
    too."""
    game, rounds = Game(clients=1), 5

    def run(eta_x, eta_y):
        rates = RATES | {"p": 1, "eta_x": eta_x, "eta_y": eta_y, "first_round": first_round}
        return path(FedNSGDAM(**rates), game, tmp_path, rounds=rounds, **SAMPLED)

    left = run(0.03, 0.02)
    assert distance(left, run(0.5, 0.4)) < ROUNDING
    gradient, (x, y) = reference_gradient(game, 1, 1, 2, NOISE), start_of(game, 1)
    u, v, right = 0, 0, []
    for r in range(1, rounds + 1):
        gx, gy = gradient(0, x, y, r)
        one = r == 1 and first_round == "beta_one"
        u, v = (gx, gy) if one else (0.7 * gx + 0.3 * u, 0.4 * gy + 0.6 * v)
        x, y = x - 0.1 * u / u.norm(), y + 0.07 * v / v.norm()
        right.append(torch.cat([x, y]).numpy())
    assert distance(left, np.array(right)) < ROUNDING


def test_a19_needs_one_local_step(tmp_path):
    paths = [
        path(FedNSGDAM(**RATES | {"eta_x": eta}), Game(clients=1), tmp_path, **SAMPLED) for eta in (0.03, 0.5)
    ]
    assert distance(*paths) > VISIBLE


@pytest.mark.parametrize("orthogonalize", ["svd", "newton_schulz_cubic"])
@pytest.mark.parametrize("first_round", FIRST)
def test_a20_one_column_matrices_make_fedmuon_normalise(tmp_path, first_round, orthogonalize):
    """The polar factor of a column or row is u / ‖u‖, of every tensor by itself; of the block where it is one
    tensor. The cubic iteration starts 1e-7 below 1 and squares that distance."""
    muon = FedMuonDA(**RATES, first_round=first_round, orthogonalize=orthogonalize)
    tensor, block = (
        FedNSGDAM(**RATES, first_round=first_round, norm_over=over) for over in ("tensor", "block")
    )
    for joined in (False, True):
        game = Columns(joined=joined)
        left = path(muon, game, tmp_path, **SAMPLED)
        assert distance(left, path(tensor, game, tmp_path, **SAMPLED)) < ROUNDING
        gap = distance(left, path(block, game, tmp_path, **SAMPLED))
        assert gap < ROUNDING if joined else gap > VISIBLE


@pytest.mark.parametrize("group", [1, "all"])
@pytest.mark.parametrize("tall", [True, False])
def test_fedmuon_steps_along_polar_factors(tmp_path, tall, group):
    """Matrices with two singular values, against scipy's polar decomposition. The singular values here exceed
    0.01, for which 30 cubic iterations, each times 1.5 at first, are enough; those of Jordan's iteration end
    in [0.6, 1.3]."""

    def steps(**options):
        Watched = watched(FedMuonDA)
        list(rounds_of(Watched(**RATES, **options), Matrices(tall=tall), tmp_path, group=group))
        for u, step in zip(Watched.momenta, Watched.taken):
            for row_u, row in zip(u.numpy(), step.numpy()):
                if len(row) == 8:
                    np.testing.assert_allclose(
                        row[6:], row_u[6:] / np.linalg.norm(row_u[6:]), rtol=0, atol=ROUNDING
                    )
                shape = (2, 2) if len(row) == 4 else (3, 2) if tall else (2, 3)
                size = shape[0] * shape[1]
                yield row_u[:size].reshape(shape), row[:size].reshape(shape)

    for options in ({}, {"orthogonalize": "newton_schulz_cubic", "iterations": 30}):
        for U, step in steps(**options):
            assert np.linalg.svd(U, compute_uv=False)[-1] > 1e-2
            np.testing.assert_allclose(
                step, polar(U)[0], rtol=0, atol=1e3 * ROUNDING
            )  # conditions of up to 1e3
    for U, step in steps(orthogonalize="newton_schulz"):
        values = np.linalg.svd(step, compute_uv=False)
        assert 0.6 < values.min() and values.max() < 1.3
        assert np.trace(step.T @ polar(U)[0]) == pytest.approx(
            values.sum(), rel=1e-9
        )  # the same singular vectors


@pytest.mark.parametrize("factor", [1.0, 2.5])
@pytest.mark.parametrize("base", [FedNSGDAM, FedSGDAClip])
def test_global_steps_of_eta_p_are_plain_averaging(tmp_path, base, factor):
    """γ = ηp: the server takes the mean of the clients' last points; γ = c ηp goes c times as far."""
    Watched = watched(base)
    method = Watched(**RATES | {"gamma_x": factor * 0.09, "gamma_y": factor * 0.06})
    before = None
    for simulation in rounds_of(method, Game(), tmp_path):
        point = torch.cat([simulation.shared.x, simulation.shared.y])
        if before is not None:
            mean = torch.cat(Watched.ends).mean(0)
            assert torch.allclose(point, before + factor * (mean - before), rtol=0, atol=ROUNDING)
            assert (mean - before).norm() > VISIBLE
        before = point.clone()
        Watched.ends.clear()


@pytest.mark.parametrize("method", [FedNSGDAM, FedMuonDA, FedSGDAClip])
@pytest.mark.parametrize("first_round", FIRST)
def test_control_variates_average_to_zero(tmp_path, first_round, method):
    """The mean over the clients of g - g^(n) is 0 before and after every round, while no g - g^(n) is. So the
    mean of all local momenta of a round is the global momentum that the server computes (Zhang & Gao n.d.,
    below eq. 27, with 1 / (N p))."""
    Watched = watched(method)
    for r, simulation in enumerate(rounds_of(Watched(**RATES, first_round=first_round), Game(), tmp_path)):
        shared, clients = simulation.shared, simulation.clients
        for mean, own in ((shared.gx, clients.gx), (shared.gy, clients.gy)):
            assert (mean - own.mean(0)).abs().max() < ROUNDING
            assert r == 0 and first_round != "gradient" or (mean - own).norm(dim=1).min() > VISIBLE
        for momentum, size in ((shared.u, DX), (shared.v, DY)):
            local = [u for u in Watched.momenta if u.shape[1] == size]
            assert len(local) == (9 if r else 0)
            assert not local or (torch.cat(local).mean(0) - momentum).abs().max() < ROUNDING
        Watched.momenta.clear()


@pytest.mark.parametrize("first_round", FIRST)
@pytest.mark.parametrize("cls", [FedNSGDAM, FedMuonDA, FedSGDAClip])
def test_d1_exchanging_the_roles_of_x_and_y(tmp_path, cls, first_round):
    """min max of f in (x, y) is min max of -f in (y, x), with η, γ and β exchanged."""
    left = path(cls(**RATES, first_round=first_round), Game(), tmp_path, **SAMPLED)
    settings = {"batch_size": 2, "noise": Exchanged(scale=0.3)}
    right = path(cls(**ROLES, first_round=first_round), Swapped(), tmp_path, **settings)
    assert distance(left, np.roll(right, DX, axis=1)) < ROUNDING
    same = path(cls(**RATES, first_round=first_round), Swapped(), tmp_path, **settings)
    assert distance(left, np.roll(same, DX, axis=1)) > VISIBLE


@pytest.mark.parametrize("cls", [FedNSGDAM, FedMuonDA, FedSGDAClip])
def test_d2_d3_duplicated_and_permuted_clients(tmp_path, cls):
    """Only means over the clients enter."""

    def run(*order):
        noise = Renamed(scale=0.3, order=order)
        return path(cls(**RATES), Rearranged(order=order), tmp_path, batch_size=2, noise=noise)

    left = run(0, 1, 2)
    assert distance(left, run(0, 1, 2, 0, 1, 2)) < ROUNDING
    assert distance(left, run(2, 0, 1)) < ROUNDING
    assert distance(left, run(0, 1, 2, 0)) > VISIBLE


@pytest.mark.parametrize("factor", [4.0, 3.0])
@pytest.mark.parametrize("first_round", FIRST)
def test_d4_normalised_steps_do_not_see_the_scale_of_f(tmp_path, first_round, factor):
    """Clipped ones do, where some gradients are shorter than τ."""

    def gap(method):
        left = path(method, Game(), tmp_path, **SAMPLED)
        settings = dict(batch_size=2, noise=Gaussian(scale=0.3 * factor))
        return distance(left, path(method, Scaled(factor=factor), tmp_path, **settings))

    for norm_over in ("block", "tensor"):
        assert gap(FedNSGDAM(**RATES, first_round=first_round, norm_over=norm_over)) < ROUNDING
    assert gap(FedMuonDA(**RATES, first_round=first_round)) < ROUNDING
    assert gap(FedSGDAClip(**RATES, first_round=first_round, tau=3.0)) > VISIBLE
