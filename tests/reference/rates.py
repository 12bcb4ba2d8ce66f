"""Step sizes and numbers of steps of the references.

A step size is a number, or a function of the step t = 1, 2, ... or of the round. K is the number of local steps of all
clients, or ``{client: steps}``; the steps of a round r have t = (r - 1) max K + 1, ...
"""


def steps_of(K, k):
    return K[k] if isinstance(K, dict) else K


def most(K):
    return max(K.values()) if isinstance(K, dict) else K


def at(rate, t):
    return rate(t) if callable(rate) else rate


def total(rate, r, K, k=0):
    """Return the sum over the K steps of client k in round r = 1, 2, ..., which is K times a number."""
    steps = steps_of(K, k)
    return sum(rate((r - 1) * most(K) + j) for j in range(1, steps + 1)) if callable(rate) else steps * rate
