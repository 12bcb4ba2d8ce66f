"""The types of objects that job files name, and an example of every section of a job file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from mpifed.algorithms import ALGORITHMS
from mpifed.algorithms.fedavg import SERVERS
from mpifed.config.tuning import EXAMPLE
from mpifed.core.adaptive import MATRICES
from mpifed.core.compression import COMPRESSIONS
from mpifed.core.directions import DIRECTIONS
from mpifed.core.noise import NOISES
from mpifed.core.participation import AVAILABILITY_MODELS
from mpifed.core.schedules import SCHEDULES
from mpifed.core.sets import MIRRORS, PROXIMALS, SETS
from mpifed.data import DATASETS, TEXTS, USER_DATASETS, USER_TEXTS
from mpifed.data.partition import PARTITIONS
from mpifed.models import MODELS
from mpifed.problems import PROBLEMS
from mpifed.theory import THEOREMS

__all__ = ["EXAMPLES", "GROUPS", "Group"]


class Group(NamedTuple):
    """Objects of one type.

    Attributes:
        members: name → class, preset or object.
        one: the word for one of them.
        setting: the setting of a job file that takes one; empty where several settings do.
        note: a sentence for the page of settings.
    """

    members: Mapping[str, Any]
    one: str
    setting: str
    note: str = ""


GROUPS = {
    "methods": Group(ALGORITHMS, "algorithm", "algorithm"),
    "problems": Group(PROBLEMS, "problem", "problem"),
    "datasets": Group(DATASETS, "dataset", "problem.dataset"),
    "texts": Group(TEXTS, "text", "problem.dataset"),
    "own data": Group(
        {**USER_DATASETS, **USER_TEXTS}, "own", "problem.dataset", "See [Your own data](own_data.md)."
    ),
    "models": Group(MODELS, "model", "problem.model"),
    "partitions": Group(PARTITIONS, "partition", "problem.partition"),
    "matrices": Group(MATRICES, "matrix", "algorithm.matrix"),
    "directions": Group(DIRECTIONS, "direction", "algorithm.direction"),
    "servers": Group(SERVERS, "server", "algorithm.server"),
    "schedules": Group(
        SCHEDULES, "schedule", "algorithm.eta", "Any step size or weight takes one; a number is `constant`."
    ),
    "noises": Group(NOISES, "noise", "oracle.noise"),
    "availability": Group(AVAILABILITY_MODELS, "availability model", "participation.availability"),
    "compressions": Group(COMPRESSIONS, "compression", "message.compression"),
    "sets": Group(SETS, "set", "", "For the problems that take a set as a setting."),
    "convex functions": Group(PROXIMALS, "phi", "problem.phi"),
    "mirror maps": Group(MIRRORS, "mirror", "algorithm.mirror"),
    "theorems": Group(THEOREMS, "theorem", "theory.of"),
}

#: Section → a part of a job file with its most common settings. "job" is the whole.
EXAMPLES = {
    "job": """\
rounds = 100
seed = 0
[algorithm]
name = "FGDA"
q = 10
[problem]
name = "DeepAUC"
dataset = "digits"
model = "mlp"
clients = 8
[run]
out = "runs/first\"""",
    "oracle": """\
[oracle]
batch_size = 16
noise = { name = "gaussian", scale = 0.1 }""",
    "participation": """\
[participation]
cohort = 4          # clients a round
dropout = 0.1""",
    "message": """\
[message]
compression = { name = "top-k", ratio = 0.01 }
error_feedback = true""",
    "stop": """\
[stop]
metric = "error"    # see the columns of a report for the metrics of a problem
at_most = 0.01
seconds = "2h\"""",
    "run": """\
[run]
out = "runs/first"
dtype = "float64"
eval_every = 5
checkpoint_every = 20""",
    "clock": """\
[clock]
bandwidth_down = "100Mbit/s"
bandwidth_up = "10MB/s"
gradients_per_second = "500/s"
latency = "20ms\"""",
    "measures": """\
[measures]
of = ["stationarity", "phi"]
ell = 10.0""",
    "regularize": """\
[regularize]
x = 0.1""",
    "theory": """\
[algorithm]
name = "LESGD"
K = 10
eta = "theorem"
[problem]
name = "AffineGame"
clients = 4
[theory]
of = "wang-kale-2"
D = 10.0""",
    "sweep": """\
[sweep]
seed = [0, 1, 2]
"algorithm.gamma" = [0.01, 0.1]    # with three seeds, six runs: mpifed sweep JOB""",
    "tune": EXAMPLE.strip(),
}
