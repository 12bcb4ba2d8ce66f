"""Step sizes of the references: numbers, or functions of the step t = 1, 2, ... or of the round."""


def at(rate, t):
    return rate(t) if callable(rate) else rate


def total(rate, r, K):
    """Return the sum over the K steps of round r = 1, 2, ..., which is K times a number."""
    return sum(rate((r - 1) * K + k) for k in range(1, K + 1)) if callable(rate) else K * rate
