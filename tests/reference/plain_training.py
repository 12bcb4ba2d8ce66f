"""FedProx, FedNova, FedDyn, FedExP, Mime and MimeLite as plain loops over rounds, clients and steps.

``grad(k, x, (r, j))`` returns the gradient of client k on sample j = 0, 1, ... of round r = 1, 2, ..., or on all its
data for j ``None``; ``(r, j, "large")`` is a minibatch of ``large_batch`` rows. ``cohorts[r - 1]`` lists the clients of
round r, ``weights`` has one number per client, and ``eta(t)`` is the step size of step t = 1, 2, ... ``project`` acts
after each local step and at the server. ``local`` has the settings of the local optimiser. All functions return x
after each round.
"""

from __future__ import annotations

from .cross_device import FREE, averages
from .minimax_baselines import average, free
from .rates import most, steps_of
from .sgd import SGD


def fedprox(
    grad, x, cohorts, weights, *, K, eta, mu, eta_g=1.0, stragglers=0.0, numbers=None, project=free
):
    """``numbers(k, r)``: two uniform numbers of client k in round r, which decide whether it is a straggler, and its
    number of steps."""
    path = []
    for r, cohort in enumerate(cohorts, 1):
        ends = {}
        for k in cohort:
            steps, ends[k] = steps_of(K, k), x
            if stragglers:
                chance, share = numbers(k, r)
                if chance < stragglers:
                    steps = 1 + int(share * (steps - 1))
            for j in range(steps):
                rate = eta((r - 1) * most(K) + j + 1)
                ends[k] = project(ends[k] - rate * (grad(k, ends[k], (r, j)) + mu * (ends[k] - x)))
        x = project(x + eta_g * (average(ends, weights) - x))
        path.append(x)
    return path


def fedprox_minimax(
    grad, x, y, cohorts, weights, *, K, eta, mu, eta_g=1.0, stragglers=0.0, numbers=None, project=FREE, local=None
):
    """``grad`` has both gradients; ``project`` is a pair; ``cohorts[r - 1]`` has one list."""
    path = []
    for r, (cohort,) in enumerate(cohorts, 1):
        moves = {}
        for k in cohort:
            steps, xk, yk = K, x, y
            of_x, of_y = SGD(**local or {}), SGD(**local or {})
            if stragglers:
                chance, share = numbers(k, r)
                if chance < stragglers:
                    steps = 1 + int(share * (K - 1))
            for j in range(steps):
                rate = eta((r - 1) * K + j + 1)
                gx, gy = grad(k, xk, yk, (r, j))
                # Gradients of f_k + (μ/2) ‖x - x_t‖² in x, and of -f_k + (μ/2) ‖y - y_t‖² in y.
                gx, gy = gx + mu * (xk - x), -gy + mu * (yk - y)
                xk, yk = project[0](of_x.step(xk, gx, rate)), project[1](of_y.step(yk, gy, rate))
            moves[k] = (xk - x, yk - y)
        dx, dy = averages(moves, weights)
        x, y = project[0](x + eta_g * dx), project[1](y + eta_g * dy)
        path.append((x, y))
    return path


def fednova(
    grad, x, cohorts, weights, *, tau, eta, rho=0.0, nesterov=False, mu=0.0, beta=0.0, tau_eff=None, project=free
):
    """‖a_i‖_1 is counted as in the reference implementation FedNova, one step after another; Nesterov's
    variant looks one step ahead."""
    path, m = [], 0 * x
    for r, cohort in enumerate(cohorts, 1):
        d, effective = {}, {}
        for k in cohort:
            xk, v, counter, norm = x, 0 * x, 0.0, 0.0
            for j in range(tau[k]):
                g = grad(k, xk, (r, j))
                v = rho * v + g
                counter = rho * counter + 1
                if mu:
                    norm = (1 - eta * mu) * norm + 1
                elif nesterov:
                    norm += 1 + rho * counter
                else:
                    norm += counter
                xk = project(xk - eta * ((g + rho * v if nesterov else v) + mu * (xk - x)))
            d[k], effective[k] = (x - xk) / norm, tau[k] if mu else norm
        m = beta * m + (tau_eff or average(effective, weights)) * average(d, weights)
        x = project(x - m)
        path.append(x)
    return path


def feddyn(grad, x, cohorts, weights, *, K, eta, alpha, local=None):
    """With the sums l_i of displacements; the stored gradients of the paper are -α l_i."""
    path, total = [], sum(weights)
    own = [0 * x for _ in weights]
    for r, cohort in enumerate(cohorts, 1):
        ends = {}
        for k in cohort:
            ends[k], optimiser = x, SGD(**local or {})
            for j in range(steps_of(K, k)):
                slope = grad(k, ends[k], (r, j)) + alpha * (ends[k] - x + own[k])
                ends[k] = optimiser.step(ends[k], slope, eta((r - 1) * most(K) + j + 1))
        for k in cohort:
            own[k] = own[k] + ends[k] - x
        x = average(ends, weights) + sum(w * one for w, one in zip(weights, own)) / total
        path.append(x)
    return path


def fedexp(grad, x, cohorts, weights, *, K, eta, epsilon, epsilon_scaled=False, project=free, local=None):
    path = []
    for r, cohort in enumerate(cohorts, 1):
        changes = {}
        for k in cohort:
            end, optimiser = x, SGD(**local or {})
            for j in range(steps_of(K, k)):
                step = eta((r - 1) * most(K) + j + 1)
                end = project(optimiser.step(end, grad(k, end, (r, j)), step))
            changes[k] = x - end
        mean = average(changes, weights)
        offset = len(cohort) * epsilon if epsilon_scaled else epsilon
        squares = average({k: float(change @ change) for k, change in changes.items()}, weights)
        x = project(x - max(1.0, squares / (2 * (float(mean @ mean) + offset))) * mean)
        path.append(x)
    return path


def step_of(base, m, v, g):
    """The direction of a local step for fixed statistics m and v."""
    name = base["name"]
    if name == "momentum" and base["mix"] == "sum":
        return g + base["beta"] * m
    if name == "momentum":
        return (1 - base["beta"]) * g + base["beta"] * m
    if name == "adam":
        g = (1 - base["beta_1"]) * g + base["beta_1"] * m
    return g / (v**0.5 + base["epsilon"])


def mime(grad, x, cohorts, weights, *, K, eta, base, eta_g=1.0, large_batch=None, lite=False, project=free):
    """The sample of a large batch precedes the local steps in Mime and follows them in MimeLite."""
    path, m, v = [], 0 * x, 0 * x
    for r, cohort in enumerate(cohorts, 1):
        key = (r, K if lite else 0, "large") if large_batch else (r, None)
        c = average({k: grad(k, x, key) for k in cohort}, weights)
        first, ends = int(bool(large_batch) and not lite), {}
        for k in cohort:
            ends[k] = x
            for j in range(K):
                g = grad(k, ends[k], (r, first + j))
                if not lite:
                    g = g - grad(k, x, (r, first + j)) + c
                ends[k] = project(ends[k] - eta((r - 1) * K + j + 1) * step_of(base, m, v, g))
        x = project(x + eta_g * (average(ends, weights) - x))
        if base["name"] == "momentum":
            m = base["beta"] * m + (c if base["mix"] == "sum" else (1 - base["beta"]) * c)
        else:
            m = base.get("beta_1", 0.0) * m + (1 - base.get("beta_1", 0.0)) * c
            v = base["beta_2"] * v + (1 - base["beta_2"]) * c**2
        path.append(x)
    return path
