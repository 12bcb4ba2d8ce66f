"""Where FedSGDA-M and Fed-Norm-SGDA end on games with a known solution, without noise."""

import numpy as np
import pytest
import torch
from baselines import Monotone
from games import configuration, trace

from mpifed.algorithms import FedNormSGDA, FedSGDAM, LocalSGDA
from mpifed.parallel.comm import SerialComm


def last(method, problem, out, rounds, **settings) -> np.ndarray:
    config = configuration(
        method, problem, out, rounds=rounds, batch_size=1, noise=0, group="all", eval_every=10**6, **settings
    )
    return trace(config, SerialComm())[0][-1]


Q, RATE = 5, 0.02


def error(method, out, rounds) -> float:
    problem = Monotone(clients=4)
    end = last(method, problem, out, rounds)
    return float(np.linalg.norm(end - problem.solution([1] * 4).numpy()))


def test_fedsgda_m_loses_the_drift_with_alpha_only_where_averages_enter_storm(tmp_path):
    """The error at rest of Local-SGDA is the drift of its local steps. ``stem`` has an error that falls as α,
    ``after`` about the same drift whatever α is."""
    rates = dict(eta_x=RATE, eta_y=RATE)
    drift = error(LocalSGDA(q=Q, **rates), tmp_path, 200)

    def errors(order):
        return [
            error(FedSGDAM(Q=Q, alpha=a, beta=a, order=order, **rates), tmp_path, int(max(200, 12 / a)))
            for a in (0.1, 0.025)
        ]

    large, small = errors("stem")
    assert small < drift / 8
    assert 3 < large / small < 5  # a fourth of α; the next terms are of order α
    assert errors("after") == pytest.approx([drift, drift], rel=0.1)


class Unnormalised(FedNormSGDA):
    """Clients send the sums of their steps: plain averaging, where both step sizes are the same."""

    def client_round(self, now, shared, client, message, oracle):
        super().client_round(now, shared, client, message, oracle)
        tau = torch.tensor(self.tau, dtype=message.gx.dtype)[oracle.client, None]
        message.gx *= tau / tau.new_tensor(self.tau).mean()
        message.gy *= tau / tau.new_tensor(self.tau).mean()


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_fed_norm_sgda_weighs_clients_as_asked_whatever_their_numbers_of_steps(tmp_path, weights):
    clients, tau = 6, (1, 8, 2, 5, 1, 3)
    problem = Monotone(clients)
    problem.prepare(1)
    given = np.array(problem.sizes() if weights == "samples" else [1] * clients)
    settings = dict(tau=tau, eta_x=1e-7, eta_y=1e-7, gamma_x=0.03, gamma_y=0.03)
    wanted, by_steps = (problem.solution(w).numpy() for w in (given, given * tau))
    for method, right, wrong in ((FedNormSGDA, wanted, by_steps), (Unnormalised, by_steps, wanted)):
        end = last(method(**settings), Monotone(clients), tmp_path, 200, weights=weights)
        assert np.linalg.norm(end - right) < 1e-6  # what is left is the drift, some times the local step size
        assert np.linalg.norm(end - wrong) > 0.05
