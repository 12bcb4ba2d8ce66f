"""Random streams by address."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpifed.core.streams import Stream, generator, philox

FULL = 0xFFFFFFFF


@pytest.mark.parametrize("counter, key, expected", [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((FULL,) * 4, (FULL, FULL), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
     (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
])  # fmt: skip
def test_philox_known_answers(counter, key, expected):
    """The test vectors that the generator's authors publish for 10 rounds of Philox4x32."""
    assert tuple(int(word) for word in philox(counter, key)) == expected


@given(
    st.integers(0, 2**40),
    st.lists(st.integers(0, 2**31), min_size=1, max_size=5, unique=True),
    st.integers(0, 2**31),
    st.integers(1, 6),
    st.integers(1, 9),
)
def test_access_is_random(seed, clients, r, count, number):
    """A client's sample does not depend on which other clients are drawn, nor on how many samples."""
    whole = Stream(seed, "sample", clients, r, count).words(number)
    for position, client in enumerate(clients):
        alone = Stream(seed, "sample", [client], r, count + 3).words(number)
        np.testing.assert_array_equal(whole[position], alone[0, :count])


def test_addresses_differ():
    base = Stream(0, "sample", [1], 2, 3).words(8).ravel()
    for other in (
        Stream(1, "sample", [1], 2, 3),
        Stream(0, "noise", [1], 2, 3),
        Stream(0, "sample", [2], 2, 3),
        Stream(0, "sample", [1], 3, 3),
    ):
        assert not np.intersect1d(base, other.words(8)).size


def test_successive_calls_take_fresh_lanes():
    stream = Stream(0, "sample")
    assert not np.intersect1d(stream.words(8), stream.words(8)).size


@given(st.integers(1, 50))
def test_integers_stay_in_range(high):
    values = Stream(3, "sample", [0, 1], 0, 4).integers([high, 2 * high], 25)
    assert values.min() >= 0 and values[0].max() < high and values[1].max() < 2 * high


def test_distributions():
    """Moments of 200,000 draws: standard errors are 0.0007 (uniform mean), 0.0022 (normal mean), 0.0032
    (variance)."""
    uniform = Stream(0, "u", range(10), 0, 20).uniform(1000)
    assert uniform.min() > 0 and uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.003 and abs(uniform.var() - 1 / 12) < 0.001
    normal = Stream(0, "n", range(10), 0, 20).normal(1000)
    assert abs(normal.mean()) < 0.01 and abs(normal.var() - 1) < 0.015
    counts = np.bincount(Stream(0, "i", [0], 0, 1).integers(8, 80_000).ravel(), minlength=8)
    assert (abs(counts - 10_000) < 500).all()  # five standard deviations


@given(st.integers(1, 40))
def test_permutation(n):
    assert sorted(Stream(0, "p", round=n).permutation(n)[0, 0]) == list(range(n))


def test_generator_is_addressed():
    draw = generator(0, "partition", 1, 2).random(4)
    np.testing.assert_array_equal(draw, generator(0, "partition", 1, 2).random(4))
    assert not np.intersect1d(draw, generator(0, "partition", 2, 1).random(4)).size
