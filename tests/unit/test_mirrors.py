"""Mirror maps: their properties, the problems for which they are defined, and the matrix game."""

import numpy as np
import pytest
import torch
from fields import Field
from games import Game, configuration, simulated, started
from oracles import prepared

from mpifed import Config, run
from mpifed.algorithms import FedDualAvg, FeDualEx, LocalDualExtrapolation
from mpifed.base.errors import ConfigError
from mpifed.core.sets import L1, Ball, Blockwise, Entropy, Euclidean, Indicator, Separable, Sets, Simplex
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.problems import MatrixGame

SIMPLEX = Indicator(Simplex(2.0))
TWO = Separable({"x": SIMPLEX, "y": L1(lam=0.5)}, (3, 2))


def h(u, total=2.0):
    return total * (u * u.log()).sum(-1)


def inside(*shape, total=2.0):
    lengths = np.random.default_rng(3).exponential(size=shape)
    return torch.from_numpy(total * lengths / lengths.sum(-1, keepdims=True))


def test_entropy_is_strongly_convex_in_the_1_norm():
    """h(u) - h(w) - ⟨∇h(w), u - w⟩ ≥ ‖u - w‖₁² / 2, almost with equality for close points."""
    u, w = inside(500, 4), inside(500, 4).flip(0)
    w = torch.cat([w, u * torch.from_numpy(np.random.default_rng(0).uniform(0.999, 1.001, (500, 4)))])
    w, u = 2 * w / w.sum(-1, keepdim=True), torch.cat([u, u])
    gradient = 2 * (w.log() + 1)
    divergence = h(u) - h(w) - (gradient * (u - w)).sum(-1)
    ratio = divergence / ((u - w).abs().sum(-1) ** 2 / 2)
    assert 1 <= ratio.min() < 1.5


@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_the_entropic_map_attains_the_conjugate(weight):
    """u maximises ⟨v, u⟩ - h(u), concave, over the simplex: the gradient is a multiple of (1, ..., 1)."""
    v = torch.from_numpy(np.random.default_rng(0).standard_normal((5, 3)))
    u = Entropy()(v, weight, SIMPLEX)
    torch.testing.assert_close(u.sum(-1), torch.full((5,), 2.0).double(), rtol=0, atol=1e-14)
    slope = v - 2 * (u.log() + 1)
    # Logarithms of numbers between 0.01 and 2: a few ulps of 10.
    torch.testing.assert_close(slope, slope[:, :1].expand(5, 3), rtol=0, atol=1e-14)


def test_maps_and_duals_are_inverse():
    x, y = inside(4, 3), torch.from_numpy(np.random.default_rng(1).standard_normal((4, 2)))
    point = torch.cat([x, y], -1)
    mirror = Blockwise(x="entropy")
    dual = mirror.dual(point, TWO)
    torch.testing.assert_close(mirror(dual, 0.0, TWO), point, rtol=0, atol=1e-14)
    # A constant added to the coordinates of the simplex has no effect; the weight affects only y.
    dual[:, :3] += 5.0
    expected = torch.cat([x, L1(lam=0.5)(y, 0.4)], -1)
    torch.testing.assert_close(mirror(dual, 0.4, TWO), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_duals_do_not_overflow(dtype):
    v = torch.tensor([1e30, -1e30, 0.0], dtype=dtype)
    assert Entropy()(v, 0.0, SIMPLEX).tolist() == [2.0, 0.0, 0.0]
    assert Entropy()(-v.abs(), 0.0, SIMPLEX).tolist() == [0.0, 0.0, 2.0]


@pytest.mark.parametrize("size", [1, 2, 7, 33, 1000])
def test_rows_are_mapped_independently_to_the_bit(size):
    v = torch.from_numpy(np.random.default_rng(2).standard_normal((5, size))) * 3
    whole = Entropy()(v, 0.0, SIMPLEX)
    for rows in (slice(0, 1), slice(1, 3), slice(2, 5)):
        assert torch.equal(Entropy()(v[rows], 0.0, SIMPLEX), whole[rows])
    assert torch.equal(Entropy()(v[3], 0.0, SIMPLEX), whole[3])


class Fair(Game):
    """The game with y in a simplex, starting at ``y0``."""

    y0 = (0.5, 0.5)

    def prepare(self, seed, data_dir=None):
        super().prepare(seed)
        self.sets = Sets(y=Simplex())

    def initial(self, rng):
        return super().initial(rng) | {"y": torch.tensor(self.y0)}


class Edge(Fair):
    y0 = (1.0, 0.0)


class Long(Fair):
    y0 = (0.7, 0.7)


@pytest.mark.parametrize(
    "problem, mirror, error",
    [
        (Fair(), Entropy(), "mirror = 'entropy' is for simplexes, and x has the set Space()"),
        (Game(ball=1.0), Blockwise(y="entropy"), "is for simplexes, and y has the set Ball(radius=1.0"),
        (Field(phi=L1(lam=0.1)), Entropy(), "is for simplexes, and z has φ = L1(lam=0.1)"),
        (Field(), Entropy(), "expected mirror = 'euclidean', or { name = 'blockwise'"),
        (Field(phi=Indicator(Ball(1.0))), Entropy(), "and z has the set Ball"),
        (Field(), Blockwise(y="entropy"), "needs a φ that is separable in x and y, got φ = Zero()"),
        (Edge(), Blockwise(y="entropy"), "starting point inside the simplex: expected y with positive "
         "coordinates that sum to 1, got the smallest coordinate 0 and the sum 1"),
        (Long(), Blockwise(y="entropy"), "got the smallest coordinate 0.7 and the sum 1.4"),
        (Field(phi=Indicator(Simplex())), Entropy(), "starting point inside the simplex: expected z"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("cls, step", [(LocalDualExtrapolation, {"eta": 0.1}), (FedDualAvg, {"eta_c": 0.1})])
def test_mirror_maps_without_their_sets_are_rejected(problem, mirror, error, cls, step):
    with pytest.raises(CollectiveError) as raised:
        started(configuration(cls(K=2, mirror=mirror, **step), problem, "unused"))
    assert error in str(raised.value) and f"{cls.__name__}: mirror" in str(raised.value)


@pytest.mark.parametrize("mirror, error", [
    ("entropic", "unknown mirror map 'entropic': did you mean 'entropy'?"),
    ({"name": "blockwise", "y": "entropic"}, "Input should be 'euclidean' or 'entropy'"),
    ({"name": "blockwise", "z": "entropy"}, "has no setting 'z'"),
])  # fmt: skip
def test_unknown_mirror_maps(mirror, error):
    with pytest.raises(ConfigError, match=error):
        FeDualEx(K=1, eta_c=0.1, mirror=mirror)


@pytest.mark.parametrize("mirror", ["euclidean", "entropy", {"name": "blockwise", "y": "entropy"}])
def test_mirror_maps_in_job_files(tmp_path, mirror):
    table = {
        "algorithm": {"name": "FeDualEx", "K": 2, "eta_c": 0.1, "mirror": mirror},
        "problem": {"name": "MatrixGame", "dx": 3, "dy": 2, "clients": 2},
        "rounds": 2,
        "run": {"out": str(tmp_path), "progress": False},
    }
    config = Config.from_table(table)
    again = Config.from_table(config.table())
    assert again.table() == config.table() and again.algorithm == config.algorithm
    assert run(config, SerialComm()).point["z"].shape == (5,)


def test_entropy_on_one_block_of_a_minimax_problem():
    """y stays inside its simplex; x is as with the Euclidean map until the difference in y affects it."""
    points = []
    for mirror in (Euclidean(), Blockwise(y="entropy")):
        method = FedDualAvg(K=1, eta_c=0.1, mirror=mirror)
        points.append(started(configuration(method, Fair(), "unused"), 1).point())
    plain, other = points
    torch.testing.assert_close(plain[:3], other[:3], rtol=0, atol=0)
    assert (plain[3:] - other[3:]).abs().max() > 1e-3 and other[3:].min() > 0
    torch.testing.assert_close(other[3:].sum(), torch.ones(()).double(), rtol=0, atol=1e-15)


@pytest.mark.parametrize("heterogeneity", [0.0, 0.5])
def test_the_gap_of_a_matrix_game_is_attained_by_pure_strategies(heterogeneity):
    game = prepared(MatrixGame(dx=4, dy=3, clients=5, heterogeneity=heterogeneity, start="random"), 2)
    payoffs = np.stack([game.client_data(n)[0][0].numpy() for n in range(5)])
    A = payoffs.mean(0)
    assert np.abs(A).max() <= 1 and game.largest == np.abs(payoffs).max()
    assert (np.abs(payoffs - A).max() > 0.3) == bool(heterogeneity)
    z = game.initial(None)["z"].numpy()
    x, y = z[:4], z[4:]
    assert x.sum() == pytest.approx(1, abs=1e-15) and y.sum() == pytest.approx(1, abs=1e-15) and z.min() > 0
    gap = max(x @ A[:, j] for j in range(3)) - min(A[i] @ y for i in range(4))
    named = game.variables().unflatten("z", torch.from_numpy(z))
    assert game.metrics(named, None)["gap"] == pytest.approx(gap, abs=1e-15)


def test_the_gap_is_zero_at_the_solution_of_the_linear_program():
    from scipy.optimize import linprog

    game = prepared(MatrixGame(dx=4, dy=3, clients=2), 2)
    A = game.client_data(0)[0][0].numpy()

    def strategy(A):  # the least value v of max_j (Aᵀx)_j
        m, n = A.shape
        rows = np.hstack([A.T, -np.ones((n, 1))])
        found = linprog([0.0] * m + [1.0], rows, np.zeros(n), [[1.0] * m + [0.0]], [1.0],
                        bounds=[(0, None)] * m + [(None, None)])  # fmt: skip
        return found.x[:m]

    z = np.concatenate([strategy(A), strategy(-A.T)])
    # The tolerance of the solver is 1e-9 or better.
    assert game.gap(z) == pytest.approx(0, abs=1e-8) and game.residual(z) < 1e-8
    assert game.gap(game.initial(None)["z"].numpy()) > 0.1


@pytest.mark.parametrize("mirror, constant, farthest", [
    ("entropy", "largest", 2 * np.log(30)), ("euclidean", "L", 1 - 1 / 30),
])  # fmt: skip
def test_the_gap_falls_below_its_bound(mirror, constant, farthest):
    """Without noise and client drift (K = 1), the bound in the proof of Wang & Kale's Theorem 7 is D / (ηT)
    for η = 1/(√10 L), with L in the norm of h, and D the maximum of h(u) - h(z_0) - ⟨∇h(z_0), u - z_0⟩, at
    pure strategies."""
    game = prepared(MatrixGame(dx=30, dy=30, clients=3, heterogeneity=0.3), 1)
    eta = 0.1**0.5 / getattr(game, constant)
    method = LocalDualExtrapolation(K=1, eta=eta, mirror=mirror)
    config = configuration(method, game, "unused", rounds=200, batch_size=0, noise=0)
    _, *gaps = (game.gap(simulation.output.buffer.numpy()) for simulation in simulated(config))
    assert (np.array(gaps) * eta * np.arange(1, 201) < farthest).all()
    assert 0 < gaps[-1] < gaps[0] / 4
