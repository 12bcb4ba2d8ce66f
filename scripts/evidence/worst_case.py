"""Prints the table of docs/theory.md about the worst cases of the bounds of Wang & Kale n.d.

It searches for operators that come close to the bounds, with two clients and few steps.

    python scripts/evidence/worst_case.py                                    # the table of the page
    python scripts/evidence/worst_case.py --evaluations 20000 --starts 8     # a longer search

For LSGD (Theorem 6), LESGD (Theorems 1 and 2) and LIPPAX (Theorem 3), random search maximises err_D / bound
over monotone affine operators V(z) = A z + b in dimensions 2 to 4. The choice L = 1, z_0 = 0 and D = 1 is no
restriction, because units can be chosen freely. For LSGD, A is symmetric, so V is co-coercive. The noise of
each call is ±σu, so E err_D is an exact mean over all outcomes. With noise, the search includes u and uses a
tenth of the evaluations. G of Theorem 3 is the largest ‖V‖ at a point z of the run.
"""

from __future__ import annotations

import argparse
import itertools
from typing import NamedTuple

import numpy as np

from mpifed.problems.restricted_gap import maximize_on_ball
from mpifed.theory import prescribe

CLIENTS = 2
METHODS = {"wang-kale-1": "LESGD", "wang-kale-2": "LESGD", "wang-kale-3": "LIPPAX", "wang-kale-6": "LSGD"}
#: Number of inner steps of LIPPAX.
H = 40


class Case(NamedTuple):
    """A theorem with numbers of local steps K and rounds R, and noise ``sigma`` in units of L D."""

    theorem: str
    K: int
    R: int
    sigma: float = 0.0


#: All cases: up to four rounds without noise, one round with noise, whose outcomes are enumerated.
CASES = [
    Case(theorem, K, R, sigma)
    for theorem in METHODS
    for K in (1, 2)
    for R, sigma in ((1, 0.0), (2, 0.0), (4, 0.0), (1, 0.3), (1, 3.0))
    if not (sigma and theorem == "wang-kale-3")
]


class Game(NamedTuple):
    """V(z) = A z + b, and the direction u of the noise."""

    A: np.ndarray
    b: np.ndarray
    u: np.ndarray


def game(numbers: np.ndarray, d: int, symmetric: bool) -> Game | None:
    """Return the operator with L = 1 that is encoded in 2d² + 2d + 1 numbers; ``None`` for A = 0."""
    B, W = numbers[: 2 * d * d].reshape(2, d, d)
    A = B @ B.T * np.exp(numbers[-1])  # the weight of the symmetric part
    if not symmetric:
        A = A + W - W.T
    modulus, u = np.linalg.norm(A, 2), numbers[-d - 1 : -1]
    if not modulus or not u.any():
        return None
    return Game(A / modulus, numbers[2 * d * d : 2 * d * d + d], u / np.linalg.norm(u))


def error(one: Game, point: np.ndarray) -> float:
    """Return err_D of a point: the exact maximum of ⟨A z + b, point - z⟩ over ‖z‖ ≤ 1."""
    return float(one.b @ point) + maximize_on_ball(-(one.A + one.A.T), one.A.T @ point - one.b, 1.0)[0]


class Walk:
    """All outcomes of a run at once; points have the shape ``[outcomes, clients, d]``.

    Attributes:
        signs: signs of the noise, ``[outcomes, calls, clients]``, in the order of the calls.
        largest: largest ‖V‖ recorded by :meth:`record`.
    """

    def __init__(self, one: Game, sigma: float, calls: int):
        self.one, self.sigma, self.largest, self._call = one, sigma, 0.0, 0
        calls = calls if sigma else 0
        signs = [*itertools.product((-1.0, 1.0), repeat=calls * CLIENTS)]
        self.signs = np.array(signs).reshape(len(signs), calls, CLIENTS)
        self.z = np.zeros((len(self.signs), CLIENTS, len(one.b)))

    def V(self, z: np.ndarray) -> np.ndarray:
        exact = z @ self.one.A.T + self.one.b
        if not self.sigma:
            return exact
        self._call += 1
        return exact + self.sigma * self.signs[:, self._call - 1, :, None] * self.one.u

    def record(self) -> None:
        """Update ``largest`` with ‖V‖ at the points z."""
        exact = self.z @ self.one.A.T + self.one.b
        self.largest = max(self.largest, np.linalg.norm(exact, axis=-1).max())


def mean(z: np.ndarray) -> np.ndarray:
    return np.broadcast_to(z.mean(axis=1, keepdims=True), z.shape)


def run(case: Case, one: Game, steps: dict[str, float]) -> tuple[np.ndarray, float]:
    """Return the output point of each outcome, ``[outcomes, d]``, and the largest ‖V‖ at a point z."""
    eta, T = steps["eta"], case.K * case.R
    walk = Walk(one, case.sigma, T * (1 if case.theorem == "wang-kale-6" else 2))
    total = 0.0
    for t in range(1, T + 1):
        z, sync = walk.z, t % case.K == 0
        walk.record()
        if case.theorem == "wang-kale-6":  # LSGD
            walk.z = x = z - eta * walk.V(z)
            walk.z = x = mean(x) if sync else x
        elif case.theorem == "wang-kale-3":  # LIPPAX
            x = z
            for _ in range(H):
                x = x - steps["gamma"] * (walk.V(x) + (x - z) / eta)
            walk.z = z - eta * walk.V(x)
        else:  # LESGD
            x = z - eta * walk.V(z)
            x = mean(x) if sync else x
            walk.z = z - eta * walk.V(x)
        walk.z = mean(walk.z) if sync else walk.z
        total = total + x.mean(axis=1) / T
    return total, walk.largest


def ratio(case: Case, one: Game) -> float:
    """Return E err_D / bound."""
    constants = dict(L=1.0, sigma=case.sigma, K=case.K, R=case.R, M=CLIENTS, D=1.0)
    bounded = case.theorem == "wang-kale-3"
    extra = {"G": 0.0, "H": H} if bounded else {}
    steps = prescribe(case.theorem, **constants, **extra).steps  # which do not depend on G
    points, largest = run(case, one, steps)
    bound = prescribe(case.theorem, **constants, **(extra | {"G": largest} if bounded else {})).bound
    return float(np.mean([error(one, point) for point in points])) / bound


def worst(case: Case, d: int, evaluations: int, seed: int = 0) -> tuple[float, Game]:
    """Return the largest ratio that a random search finds, and its operator."""
    rng, symmetric = np.random.default_rng((seed, d)), case.theorem == "wang-kale-6"
    numbers, width = rng.standard_normal(2 * d * d + 2 * d + 1), 0.5
    value = -np.inf
    for _ in range(evaluations):
        tried = numbers + width * rng.standard_normal(len(numbers)) * (rng.random(len(numbers)) < 0.5)
        one = game(tried, d, symmetric)
        found = -np.inf if one is None else ratio(case, one)
        better = found > value
        if better:
            numbers, value = tried, found
        width = min(max(width * (1.3 if better else 0.985), 1e-4), 2.0)  # shrinks unless one in 18 is better
    best = game(numbers, d, symmetric)
    assert best is not None
    return value, best


def row(theorem: str, evaluations: int, starts: int) -> list[str]:
    """Return the row of a theorem: its number, its method, and the largest ratios of its cases by column."""
    columns: dict[str, list[str]] = {"K = 1": [], "K = 2": [], "σ = 0.3": [], "σ = 3.0": []}
    for case in (one for one in CASES if one.theorem == theorem):
        number = evaluations // (10 if case.sigma else 1)
        value = max(worst(case, d, number, seed)[0] for d in (2, 3, 4) for seed in range(starts))
        verdict = "" if value <= 1 else " EXCEEDS THE BOUND"
        columns[f"σ = {case.sigma}" if case.sigma else f"K = {case.K}"].append(f"{value:.2f}{verdict}")
    cells = [theorem.rpartition("-")[2], f"`{METHODS[theorem]}`"]
    return [*cells, *map(", ".join, columns.values())]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--evaluations", type=int, default=300, help="operators per start (default 300)")
    parser.add_argument("--starts", type=int, default=3, help="starts per dimension (default 3)")
    parser.add_argument("--only", choices=METHODS, help="only this theorem")
    arguments = parser.parse_args()
    runs = "K = 1: R = 1, 2, 4 | K = 2: R = 1, 2, 4 | R = 1, σ = 0.3 (K = 1, 2) | R = 1, σ = 3 (K = 1, 2)"
    print(f"| theorem | method | {runs} |")
    print("|---|---|---|---|---|---|")
    for theorem in [arguments.only] if arguments.only else METHODS:
        cells = row(theorem, arguments.evaluations, arguments.starts)
        print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
