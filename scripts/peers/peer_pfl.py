#!/usr/bin/env python3
"""Methods of pfl (pfl-research) and of mpifed; ``agreement.py`` describes the output."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import BATCH, Path, flat, report, run_mpifed
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.fedprox import FedProx, FedProxParams
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.stats import MappedVectorStatistics

from mpifed import algorithms

ETA, K = 0.3, 3
PACKAGE = "pfl"


class Float64(PyTorchModel):
    """A model whose displacements are float64 instead of float32."""

    def get_model_difference(self, other_parameters, clone=False):
        now = self.get_parameters()
        return MappedVectorStatistics({name: now[name] - other_parameters[name] for name in now})


class Negated(SCAFFOLD):
    """SCAFFOLD with the other sign of the displacement in the new variate c_i."""

    def train_one_user(self, initial_model_state, model, user_dataset, central_context):
        payload, metrics = super().train_one_user(initial_model_state, model, user_dataset, central_context)
        chosen, user = central_context.algorithm_params, str(user_dataset.user_id)
        storage = chosen.user_state_storage
        variate = storage.load_state(user, "local_c")
        for name in variate:
            if chosen.use_gradient_as_control_variate:
                change = -2 * variate[name]
            else:
                change = -2 / (K * ETA) * payload[f"model_update/{name}"]
            variate[name] = variate[name] + change
            payload[f"c/{name}"] = payload[f"c/{name}"] + change
        storage.save_state(variate, user, "local_c")
        return payload, metrics


class Drawn(Dataset):
    """The drawn minibatches of a client, or all its rows if they are iterated without a batch size.

    Its length is the number of all rows if they weigh the client, otherwise that of drawn rows.
    """

    def __init__(self, path: Path, r: int, client: int):
        super().__init__(raw_data=path.data[client], user_id=str(client))
        self.drawn, self.count = path.minibatches[r][client], path.counts[client]

    def __len__(self) -> int:
        return self.count if self.count > 1 else self.drawn.numel()

    def iter(self, batch_size):
        for rows in [slice(None)] if batch_size is None else self.drawn:
            yield [column[rows] for column in self.raw_data]


def run_pfl(path: Path, algorithm, parameters=NNAlgorithmParams, model=PyTorchModel, **settings):
    """Run the rounds of a path and return the point after each.

    Args:
        algorithm: an algorithm of pfl, with parameters of the class ``parameters``.
        model: class of the model.
        settings: further parameters of the algorithm.
    """
    network = path.network()
    network.loss = lambda samples, labels: F.cross_entropy(network(samples), labels)
    network.metrics = lambda samples, labels: {"loss": Weighted(0.0, 1)}
    state = model(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    users = ((r, client) for r, batches in enumerate(path.minibatches) for client in batches)
    data = FederatedDataset(lambda user: Drawn(path, *user), lambda: next(users))
    backend = SimulatedBackend(data, None, [WeightByDatapoints()] if max(path.counts) > 1 else [])
    training = NNTrainHyperParams(
        local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=ETA, local_num_steps=None
    )
    chosen = parameters(
        central_num_iterations=len(path.points) + 1, evaluation_frequency=len(path.points) + 1,
        train_cohort_size=len(path.minibatches[0]), val_cohort_size=None, **settings,
    )  # fmt: skip
    points = []
    for r in range(len(path.points)):
        contexts, _, _ = algorithm.get_next_central_contexts(state, r, chosen, training, None)
        statistics, metrics = backend.gather_results(
            model=state, training_algorithm=algorithm, central_context=contexts[0]
        )
        algorithm.process_aggregated_statistics_from_all_contexts(
            ((contexts[0], statistics),), metrics, state
        )
        points.append(flat(network))
    return points


def main() -> None:
    reason = "Displacements are rounded to float32. In float64:"
    path = run_mpifed(algorithms.FedAvg(K=K, eta=ETA), cohort=3, weights="samples")
    corrected = run_pfl(path, FederatedAveraging(), model=Float64)
    report("FedAvg", PACKAGE, path, run_pfl(path, FederatedAveraging()), reason, corrected)

    path = run_mpifed(algorithms.FedProx(K=K, eta=ETA, mu=0.5), cohort=3, weights="samples")
    settings = {"parameters": FedProxParams, "mu": 0.5}
    corrected = run_pfl(path, FedProx(), model=Float64, **settings)
    report("FedProx", PACKAGE, path, run_pfl(path, FedProx(), **settings), reason, corrected)

    for option, variate in {
        "II": "(y_i - x) / (K η) instead of (x - y_i) / (K η)",
        "I": "-∇f_i instead of ∇f_i",
    }.items():
        path = run_mpifed(algorithms.SCAFFOLD(K=K, eta_l=ETA, option=option), cohort=3)

        def scaffold(algorithm, model):
            return run_pfl(
                path, algorithm, SCAFFOLDParams, model, population=len(path.data),
                use_gradient_as_control_variate=option == "I", user_state_storage=InMemoryUserStateStorage(),
            )  # fmt: skip

        report(
            f"SCAFFOLD, option {option}", PACKAGE, path, scaffold(SCAFFOLD(), PyTorchModel),
            f"The new variate c_i contains {variate}, and displacements are rounded to float32. With the "
            "other sign, in float64:",
            scaffold(Negated(), Float64),
        )  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
