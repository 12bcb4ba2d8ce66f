#!/usr/bin/env python3
"""Prints the table of docs/theory.md that compares the bounds of minimax theorems with measured values.

For each theorem with constants: the value of the bounded quantity at the starting point and with the step
sizes of the theorem, the bound, and the number of rounds from which the bound is below the starting value, so
that it is no longer vacuous. The problems are QuadraticNCPL and TwoSidedPL with equal clients, whose
constants are known.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np

from mpifed.config.job import Config
from mpifed.parallel.comm import SerialComm
from mpifed.problems.quadratic import QuadraticNCPL, TwoSidedPL
from mpifed.simulation.simulation import Simulation
from mpifed.theory import Prescription, prescribe

CLIENTS, STEPS, ROUNDS, KAPPA, SCALE = 8, 4, 200, 4.0, 0.1
#: Largest number of rounds for which a bound is evaluated.
MOST = 1e30


def path(method: dict, problem: dict) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return (x, y) at the start and after every round."""
    noise = {"noise": {"name": "gaussian", "scale": SCALE}}
    table = {"rounds": ROUNDS, "algorithm": method, "problem": problem, "oracle": noise}
    run = {"dtype": "float64", "group": "all", "out": "unused"}
    simulation = Simulation.from_settings(Config.from_table(table | {"run": run}), SerialComm())
    simulation.start()
    points = []
    for number in range(ROUNDS + 1):
        if number:
            simulation.step()
        points.append(tuple(simulation.rounds.block(block).numpy().copy() for block in "xy"))
    return points


def first(bound: Callable[[float], Prescription], start: float) -> float:
    """Return the number of rounds, up to a factor of 1.1, from which the bound is below the start's value."""
    T = 1.0
    while T < MOST and not bound(T).bound <= start:
        T *= 1.1
    return T if T < MOST else math.inf


def row(name: str, bound: Callable[[float], Prescription], start: float, found: float) -> str:
    """Return a row of the table."""
    value, T = bound(ROUNDS).bound, first(bound, start)
    rounds = "never" if math.isinf(T) else number(T, 1)
    return f"| `{name}` | {' | '.join(map(number, (start, found, value, value / found)))} | {rounds} |"


def number(value: float, digits: int = 2) -> str:
    """Format a number with ``digits`` significant digits, e.g. 640 and 2.2e4."""
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa}e{int(exponent)}" if abs(value) >= 1000 else f"{float(f'{value:.{digits}g}'):g}"


def quadratic() -> list[str]:
    """Return the rows of the theorems for nonconvex problems that are PL in y."""
    table = {"name": "QuadraticNCPL", "clients": CLIENTS, "kappa": KAPPA}
    problem = QuadraticNCPL(clients=CLIENTS, kappa=KAPPA)
    problem.prepare(0)
    H, g = problem._mean
    dx, kappa = problem.dx, problem.kappa

    def gradient(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        gx, gy = np.split(H @ np.concatenate([x, y]) + g, [dx])
        return gx, gy

    def value(x: np.ndarray, y: np.ndarray) -> float:
        z = np.concatenate([x, y])
        return float(z @ H @ z / 2 + g @ z)

    x, y = path({"name": "FGDA", "q": 1, "gamma": 0.0, "lam": 0.0}, table)[0]
    floor, top = problem.phi(problem.solution()[0].numpy()), problem.phi(x)
    gap, inner, sigma, ell = (
        top - floor,
        top - value(x, y),
        SCALE * (dx + problem.dy) ** 0.5,
        problem.ell_clients,
    )
    common = dict(L=ell, mu=problem.mu, sigma=sigma, gap=gap, inner=inner)

    def slope(points) -> float:
        return float(np.mean([np.linalg.norm(problem.grad_phi(x)) for x, _ in points]))

    def fgda(T: float) -> Prescription:
        return prescribe("huang-2024-2", **common, delta_x=0.0, delta_y=0.0, K=CLIENTS, q=STEPS, T=STEPS * T)

    def normalised(T: float) -> Prescription:
        return prescribe("zhang-gao-58", **common, s=2, N=CLIENTS, p=STEPS, T=T)

    rows = []
    for name, bound, method in (
        ("huang-2024-2", fgda, {"name": "FGDA", "q": STEPS, "sync_estimator": "mean_after"}),
        ("zhang-gao-58", normalised, {"name": "FedNSGDAM", "p": STEPS}),
    ):
        points = path(method | bound(ROUNDS).steps, table)
        rows.append(row(name, bound, slope(points[:1]), slope(points[:-1])))

    curved = H[:dx, :dx] + H[:dx, dx:] @ problem._pinv_S @ H[dx:, :dx]
    gx, slope_top = gradient(x, y)[0], problem.grad_phi(x)
    low = value(x, y) - gx @ np.linalg.solve(H[:dx, :dx] + 2 * ell * np.eye(dx), gx) / 2
    proximal = top - slope_top @ np.linalg.solve(curved + 2 * ell * np.eye(dx), slope_top) / 2
    Delta = value(x, y) - 2 * low + 2 * proximal - floor

    def smoothed(T: float) -> Prescription:
        return prescribe(
            "shen-3.1", l=ell, mu=problem.mu, sigma=sigma, sigma_G=0.0, K=STEPS, T=T, M=CLIENTS, m=CLIENTS,
            Delta=Delta,
        )  # fmt: skip

    def stationarity(points) -> float:
        pairs = [gradient(*point) for point in points]
        return float(np.mean([gx @ gx + kappa * gy @ gy for gx, gy in pairs]))

    points = path({"name": "FESSGDA", "K": STEPS} | smoothed(ROUNDS).steps, table)
    return [*rows, row("shen-3.1", smoothed, stationarity(points[:1]), stationarity(points[:-1]))]


def two_sided() -> str:
    """Return the row of Theorem 3.5 of Shen et al. Since μ_x < μ_y, x and y change places."""
    problem = TwoSidedPL(clients=CLIENTS, shift=0.0)
    table = {"name": "TwoSidedPL", "clients": CLIENTS, "shift": 0.0}

    def potential(x: np.ndarray, y: np.ndarray) -> float:
        """2Ψ + f with -f in place of f, Ψ(y) = max_x -f(x, y)."""
        f = x**2 + 3 * np.sin(x) ** 2 * np.sin(y) ** 2 - 4 * y**2 - 10 * np.sin(y) ** 2
        return float(np.sum(2 * (4 * y**2 + 10 * np.sin(y) ** 2) + f))

    start = potential(*path({"name": "FGDA", "q": 1, "gamma": 0.0, "lam": 0.0}, table)[0])

    def bound(T: float) -> Prescription:
        return prescribe(
            "shen-3.5", l=problem.ell, mu_x=problem.mu_x, mu_y=problem.mu_y, sigma=SCALE * 2**0.5,
            sigma_G=0.0, K=STEPS, T=T, M=CLIENTS, m=CLIENTS, W=start,
        )  # fmt: skip

    found = potential(*path({"name": "FESSGDA", "K": STEPS} | bound(ROUNDS).steps, table)[-1])
    return row("shen-3.5", bound, start, found)


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    heads = ("theorem", "at the start", "measured", "bound", "bound / measured")
    print(f"| {' | '.join(heads)} | rounds until the bound is below the start |")
    print("|---|---|---|---|---|---|")
    print("\n".join([*quadratic(), two_sided()]))


if __name__ == "__main__":
    main()
