"""Local-SGDA+, Momentum-Local-SGDA, FedSGDA+, FedSGDA-M and Fed-Norm-SGDA as plain loops, from their formulas.

``grad(k, x, y, (r, j))`` returns both gradients of client k on sample j = 0, 1, ... of round r = 0, 1, ...
``cohorts[r - 1]`` lists the clients of round r; ``weights`` has one number per client. ``project`` is the projection of y.
All functions return the point after each round.
"""

from __future__ import annotations


def average(values: dict, weights):
    """Return Σ w_k v_k / Σ w_k over the clients in ``values``."""
    return sum(weights[k] * value for k, value in values.items()) / sum(weights[k] for k in values)


def free(y):
    return y


def local_sgda_plus(grad, x, y, cohorts, weights, *, q, S, eta_x, eta_y, project=free):
    """``eta_x(t)``, ``eta_y(t)``: step sizes of steps t = 1, 2, ..."""
    path, t, snapshot = [], 0, x
    for r, cohort in enumerate(cohorts, 1):
        xs, ys = dict.fromkeys(cohort, x), dict.fromkeys(cohort, y)
        for j in range(q):
            t += 1
            for k in cohort:
                gx = grad(k, xs[k], ys[k], (r, j))[0]
                gy = grad(k, snapshot, ys[k], (r, j))[1]
                xs[k] = xs[k] - eta_x(t) * gx
                ys[k] = project(ys[k] + eta_y(t) * gy)
        x, y = average(xs, weights), average(ys, weights)
        if t % S == 0:
            snapshot = x
        path.append((x, y))
    return path


def momentum_local_sgda(
    grad, x, y, cohorts, weights, *, q, eta_x, eta_y, alpha, beta_x, beta_y, average_start, S=None, project=free
):
    """``alpha(t)``: weight of step t = 1, 2, ...; with S, the gradient in y is evaluated at a snapshot of x."""
    clients, path, snapshot = range(len(weights)), [], x
    xs, ys = dict.fromkeys(clients, x), dict.fromkeys(clients, y)
    us, vs = {}, {}
    for k in clients:
        us[k], vs[k] = grad(k, x, y, (0, 0))
    if average_start:
        us, vs = ({k: average(values, weights) for k in clients} for values in (us, vs))
    for t in range(len(cohorts) * q):
        a = alpha(t + 1)
        for k in clients:
            xs[k] = xs[k] - a * eta_x * us[k]
            ys[k] = project(ys[k] + a * eta_y * vs[k])
            key = (t // q + 1, t % q)
            gx = grad(k, xs[k], ys[k], key)[0]
            gy = grad(k, snapshot if S else xs[k], ys[k], key)[1]
            us[k] = us[k] + beta_x * a * (gx - us[k])
            vs[k] = vs[k] + beta_y * a * (gy - vs[k])
        if (t + 1) % q == 0:
            xs, ys, us, vs = ({k: average(values, weights) for k in clients} for values in (xs, ys, us, vs))
            path.append((xs[0], ys[0]))
        if S and (t + 1) % S == 0:
            snapshot = xs[0]
    return path


def fed_sgda_plus(
    grad, x, y, cohorts, weights, *, K, S, eta_x, eta_y, gamma_x=1.0, gamma_y=1.0, project=free
):
    path, snapshot = [], x
    for r, cohort in enumerate(cohorts):
        if r % S == 0:
            snapshot = x
        xs, ys = {}, {}
        for k in cohort:
            xs[k], ys[k] = x, y
            for j in range(K):
                gx, gy = grad(k, xs[k], ys[k], (r + 1, j))[0], grad(k, snapshot, ys[k], (r + 1, j))[1]
                xs[k], ys[k] = xs[k] - eta_x * gx, project(ys[k] + eta_y * gy)
        x = x + gamma_x * (average(xs, weights) - x)
        y = project(y + gamma_y * (average(ys, weights) - y))
        path.append((x, y))
    return path


def fed_sgda_m(
    grad, x, y, cohorts, weights, *, Q, eta_x, eta_y, alpha, beta, order, average_start=True, project=free
):
    """``eta_x(t)``, ``eta_y(t)``, ``alpha(t)``, ``beta(t)``: values of steps t = 1, 2, ..."""
    clients, path = range(len(weights)), []

    def averaged(*states):
        return tuple({k: average(state, weights) for k in clients} for state in states)

    xs, ys, us, vs = dict.fromkeys(clients, x), dict.fromkeys(clients, y), {}, {}
    for k in clients:
        us[k], vs[k] = grad(k, x, y, (0, 0))
    if average_start:
        us, vs = averaged(us, vs)
    for t in range(1, len(cohorts) * Q + 1):
        old_xs, old_ys, key = xs, ys, ((t - 1) // Q + 1, (t - 1) % Q)
        xs = {k: xs[k] - eta_x(t) * us[k] for k in clients}
        ys = {k: project(ys[k] + eta_y(t) * vs[k]) for k in clients}
        if t % Q == 0 and order == "stem":
            xs, ys, us, vs = averaged(xs, ys, us, vs)
        new_us, new_vs = {}, {}
        for k in clients:
            (gx, gy), (old_gx, old_gy) = grad(k, xs[k], ys[k], key), grad(k, old_xs[k], old_ys[k], key)
            new_us[k] = gx + (1 - alpha(t)) * (us[k] - old_gx)
            new_vs[k] = gy + (1 - beta(t)) * (vs[k] - old_gy)
        us, vs = new_us, new_vs
        if t % Q == 0 and order == "after":
            xs, ys, us, vs = averaged(xs, ys, us, vs)
        if t % Q == 0:
            path.append((xs[0], ys[0]))
    return path


def fed_norm_sgda(
    grad, x, y, cohorts, weights, *, tau, eta_x, eta_y, gamma_x, gamma_y, a, tau_eff=None, S=None, project=free
):
    """``tau[k]`` is the number of steps of client k, ``a(j)`` the weight of step j = 0, 1, ..."""
    path, n, snapshot = [], len(weights), x
    w = [weight / sum(weights) for weight in weights]
    tau_eff = sum(tau) / n if tau_eff is None else tau_eff
    for r, cohort in enumerate(cohorts):
        if S and r % S == 0:
            snapshot = x
        step_x, step_y = 0, 0
        for k in cohort:
            xk, yk, sum_x, sum_y, sum_a = x, y, 0, 0, 0
            for j in range(tau[k]):
                gx, gy = grad(k, xk, yk, (r + 1, j))
                if S:
                    gy = grad(k, snapshot, yk, (r + 1, j))[1]
                xk, yk = xk - eta_x * a(j) * gx, yk + eta_y * a(j) * gy
                sum_x, sum_y, sum_a = sum_x + a(j) * gx, sum_y + a(j) * gy, sum_a + a(j)
            w_tilde = w[k] * n / len(cohort)
            step_x, step_y = step_x + w_tilde * sum_x / sum_a, step_y + w_tilde * sum_y / sum_a
        x, y = x - tau_eff * gamma_x * step_x, project(y + tau_eff * gamma_y * step_y)
        path.append((x, y))
    return path
