"""The WGAN on fixed and on drawn pairs, compared with plain sums over all pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracles import oracle_of, prepared

from mpifed.base.settings import build
from mpifed.core.streams import Stream
from mpifed.problems import WGAN

SAMPLES = pytest.mark.parametrize("samples", [7, 0], ids=["fixed", "drawn"])
LATENTS = pytest.mark.parametrize("latent", ["paired", "fresh"])


def problem(**settings) -> WGAN:
    """Three different clients with few pairs, whose moments are far from those of the distribution."""
    return prepared(WGAN(**dict(clients=3, samples=7, lam=0.3, mean=0.4, std=0.6, s=0.8) | settings))


def pairs(of: WGAN) -> list[tuple[float, float]]:
    """All clients' pairs (real, z); of drawn pairs, two per client that have their moments."""
    columns = [(of.client_data if of.samples else of.full_batch)(k) for k in range(of.clients)]
    return [(float(real), float(z)) for both in columns for real, z in zip(*both, strict=True)]


def plain_gaps(of: WGAN, mu: float, sigma: float) -> tuple[float, float]:
    """Means over the pairs of real - (μ + σz) and of the difference of the squares."""
    held, first, second = pairs(of), 0.0, 0.0
    for real, z in held:
        first += (real - (mu + sigma * z)) / len(held)
        second += (real**2 - (mu + sigma * z) ** 2) / len(held)
    return first, second


def plain_phi(of: WGAN, mu: float, sigma: float) -> float:
    """max_φ of the mean over the pairs: the parabola φ·gaps - λ‖φ‖² at its top."""
    first, second = plain_gaps(of, mu, sigma)
    return (first**2 + second**2) / (4 * of.lam)


def at(mu: float, sigma: float) -> dict[str, torch.Tensor]:
    mean, deviation = torch.tensor([[mu], [sigma]], dtype=torch.float64)
    return {"mu": mean, "sigma": deviation}


@LATENTS
def test_pairs_depend_only_on_the_client_number(latent):
    of, more = problem(latent=latent), problem(latent=latent, clients=9)
    for k in range(3):
        stream = Stream(0, "wgan pairs", [k])
        z, other = stream.normal(7)[0, 0], stream.normal(7)[0, 0]
        mean = 0.4 + 0.8 * float(Stream(0, "wgan", [k]).normal()[0, 0])
        drawn = problem(latent=latent, samples=0).draw(Stream(0, "wgan pairs", [k]), 7)
        for found in (of.client_data(k), more.client_data(k), [column[0, 0] for column in drawn]):
            np.testing.assert_array_equal(found[0], mean + 0.6 * z)
            np.testing.assert_array_equal(found[1], z if latent == "paired" else other)
        assert of.client_size(k) == 7
    assert WGAN().client_data(0) == () and WGAN().client_size(0) == 1  # generated samples
    assert not torch.equal(of.client_data(0)[1], of.client_data(1)[1])


def test_batches_are_rows_of_the_clients_pairs():
    of = problem()
    held = [set(zip(*(column.tolist() for column in of.client_data(k)))) for k in range(3)]
    real, z = oracle_of(of, batch_size=40, batched=True).sample(number=0).batch
    drawn = [set(zip(real[k].tolist(), z[k].tolist())) for k in range(3)]
    # Each of seven rows is missing from forty draws with probability 0.002, by a fixed seed from none here.
    assert drawn == held


@SAMPLES
@LATENTS
def test_closed_forms_are_those_of_the_pairs(latent, samples):
    of, h = problem(latent=latent, samples=samples), 1e-5
    mu, sigma = 0.7, -1.1
    x = at(mu, sigma)
    # Sums of 21 numbers of about one, in another order and from other moments.
    assert of.gaps(x) == pytest.approx(plain_gaps(of, mu, sigma), abs=1e-13)
    slopes = [
        (plain_phi(of, mu + a, sigma + b) - plain_phi(of, mu - a, sigma - b)) / (2 * h)
        for a, b in ((h, 0.0), (0.0, h))
    ]
    # A quartic of values of about 10: truncation h² = 1e-10, rounding 1e-15 / h.
    assert of.metrics(x, {}, None)["grad_norm"] == pytest.approx(np.hypot(*slopes), abs=1e-7)
    oracle = oracle_of(of, batched=True)  # on all pairs
    point = torch.cat([x["mu"], x["sigma"]]), of.best_response(x)
    gx, gy = (gradient.mean(0) for gradient in oracle.grad(*point, oracle.full_batch))
    torch.testing.assert_close(gx, torch.tensor(slopes, dtype=torch.float64), rtol=0, atol=1e-7)
    torch.testing.assert_close(gy, torch.zeros(2).double(), rtol=0, atol=1e-13)


@SAMPLES
@LATENTS
@pytest.mark.parametrize("sign", [1, -1])
def test_the_optimum_of_the_pairs_has_their_moments(latent, sign, samples):
    of = problem(latent=latent, samples=samples)
    best = of.optimum(sign)
    assert np.sign(best[1]) == sign
    assert plain_gaps(of, *best) == pytest.approx((0, 0), abs=1e-13)
    # Squares, and a gradient over 2λ, of some ulps of numbers of about one.
    zero = {"squared_distance": 0, "grad_norm": 0}
    assert of.metrics(at(*best), {}, None) == pytest.approx(zero, abs=1e-12)
    moved = of.metrics(at(best[0] + 3, best[1] + 4 * sign), {}, None)
    assert moved["squared_distance"] == pytest.approx(25, abs=1e-12)


@LATENTS
@pytest.mark.parametrize("batch_size", [0, 5])
def test_the_full_batch_of_drawn_pairs_has_the_expected_gradient(latent, batch_size):
    """E over real ~ N(m_k, s²) and z ~ N(0, 1): from moments; for full_batch and batch_size = 0."""
    of = problem(samples=0, latent=latent)
    oracle = oracle_of(of, batch_size=batch_size, batched=True)
    x = torch.tensor([0.7, -1.1], dtype=torch.float64)
    y = torch.tensor([0.3, 0.5], dtype=torch.float64)
    (mu, sigma), (a, b), exact = x.tolist(), y.tolist(), dict(rtol=1e-14, atol=1e-14)  # sums of two
    means = 0.4 + 0.8 * Stream(0, "wgan", np.arange(3)).normal()[:, 0]
    for xi in (oracle.full_batch, oracle.sample()):
        gx, gy = oracle.grad(x, y, xi)
        if batch_size and xi.batch is not None:  # generated samples
            assert xi.batch[0].shape == (3, 5)
            continue
        for k, mean in enumerate(means):
            wanted = [-(a + 2 * b * mu), -2 * b * sigma]
            torch.testing.assert_close(gx[k], torch.tensor(wanted, dtype=torch.float64), **exact)
            second = mean**2 + 0.6**2 - mu**2 - sigma**2
            wanted = [mean - mu - 0.6 * a, second - 0.6 * b]
            torch.testing.assert_close(gy[k], torch.tensor(wanted, dtype=torch.float64), **exact)


def test_optimum_of_identical_clients():
    """Real data are μ̂ + σ̂ z, so the fixed set changes nothing, even if its moments differ."""
    assert problem(s=0.0).optimum() == pytest.approx((0.4, 0.6), abs=1e-15)


def test_one_pair_is_refused():
    with pytest.raises(ValueError, match="expected at least 2 pairs"):
        build(WGAN, {"clients": 1, "samples": 1}, "problem")
