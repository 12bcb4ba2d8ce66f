"""Random streams by address."""

from fractions import Fraction
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mpifed.core.device import DeviceStream
from mpifed.core.streams import Stream, generator, permutations, philox

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


#: The key of ``Stream(7, "known answers")``: the first and the second 4 bytes, little-endian, of the BLAKE2b
#: digest of 8 bytes of "7/known answers", by coreutils' ``b2sum --length=64``.
KEY = (0x83084137, 0xB113C223)


def philox_words(lane: int, index: int, round: int, client: int) -> list[int]:
    """Return four words by Python's integers, as in the generator's paper: each round multiplies two words,
    and keys grow by the golden ratio and by the root of 3 minus 1."""
    counter, k0, k1 = [lane, index, round, client], *KEY
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * counter[0], 2**32)
        high1, low1 = divmod(0xCD9E8D57 * counter[2], 2**32)
        counter = [high1 ^ counter[1] ^ k0, low1, high0 ^ counter[3] ^ k1, low0]
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return counter


def known_words(client: int, index: int, first_lane: int, lanes: int) -> list[int]:
    """Return the words of a sample of round 3 in order."""
    return [
        word
        for lane in range(first_lane, first_lane + lanes)
        for word in philox_words(lane, index, 3, client)
    ]


def known_uniform(words: list[int]) -> list[float]:
    """Return the centres of the 2^52 intervals of pairs of words, the first of which is more significant."""
    bits = [(high * 2**32 + low) // 2**12 for high, low in zip(words[::2], words[1::2], strict=True)]
    return [float((bit + Fraction(1, 2)) / 2**52) for bit in bits]


STREAMS = {"numpy": lambda stream: stream, "device": lambda stream: DeviceStream(stream, torch.device("cpu"))}


@pytest.fixture(params=STREAMS)
def stream(request):
    """Samples 5 and 6 of clients 2 and 9 in round 3."""
    return STREAMS[request.param](Stream(7, "known answers", [2, 9], 3, count=2, first=5))


def of_samples(function) -> np.ndarray:
    """Return ``function(client, index)`` for the samples of :func:`stream`."""
    return np.array([[function(client, index) for index in (5, 6)] for client in (2, 9)])


def test_known_answers_of_words_and_integers(stream):
    """The second call draws from the lanes after those of the first, although it did not need all words."""
    np.testing.assert_array_equal(stream.words(6), of_samples(lambda *at: known_words(*at, 0, 2)[:6]))
    expected = of_samples(lambda *at: [word * 10 // 2**32 for word in known_words(*at, 2, 1)])
    np.testing.assert_array_equal(stream.integers(10, 4), expected)
    expected[1] = of_samples(lambda *at: [word * 999 // 2**32 for word in known_words(*at, 3, 1)])[1]
    expected[0] = of_samples(lambda *at: [word * 7 // 2**32 for word in known_words(*at, 3, 1)])[0]
    np.testing.assert_array_equal(stream.integers([7, 999], 4), expected)


def test_known_answers_of_uniform_numbers(stream):
    numbers = stream.uniform(2, 2)
    np.testing.assert_array_equal(numbers, of_samples(lambda *at: known_uniform(known_words(*at, 0, 2)))
                                  .reshape(2, 2, 2, 2))  # fmt: skip
    assert (
        float(numbers[0, 0, 0, 0]) == 0.9120372229890775 and float(numbers[1, 1, 1, 1]) == 0.2751373544311141
    )


def test_known_answers_of_normal_numbers(stream):
    """The inverse of the normal distribution function by the standard library; 1e-12: some hundred ε."""
    inverse = NormalDist().inv_cdf
    expected = of_samples(lambda *at: [inverse(u) for u in known_uniform(known_words(*at, 0, 4))])
    numbers = stream.normal(8)
    np.testing.assert_allclose(numbers, expected, rtol=1e-12)
    assert float(numbers[0, 0, 0]) == pytest.approx(1.3534072767919785, rel=1e-14)


def test_known_answers_of_permutations(stream):
    """The positions of the uniform numbers in increasing order."""

    def order(*at):
        numbers = known_uniform(known_words(*at, 0, 3))
        return sorted(range(6), key=numbers.__getitem__)

    permutations = stream.permutation(6)
    np.testing.assert_array_equal(permutations, of_samples(order))
    assert permutations[0, 0].tolist() == [5, 4, 1, 2, 0, 3]


def test_permutations_of_different_sizes():
    """Those of a stream per address."""
    addresses = [(3, 1, 0, 6), (0, 1, 2, 1), (7, 4, 5, 5)]
    found = permutations(7, "sample", *np.array(addresses).T)
    expected = [Stream(7, "sample", [c], r, first=i).permutation(n)[0, 0] for c, r, i, n in addresses]
    assert found.tolist() == np.concatenate(expected).tolist()


def test_known_answers_of_the_generator():
    """NumPy's Philox with the BLAKE2b digest of 16 bytes of "7/known answers/2/3" as its key."""
    assert generator(7, "known answers", 2, 3).integers(0, 2**32, 3).tolist() == [
        4278469137,
        868761446,
        3020499276,
    ]


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
