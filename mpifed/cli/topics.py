"""What ``mpifed info`` says beside the settings of a class: the kinds of things that have names, where a job
asks for one, and an example of every section of a job file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from mpifed.algorithms import ALGORITHMS
from mpifed.algorithms.fedavg import SERVERS
from mpifed.config.tuning import EXAMPLE
from mpifed.core.adaptive import MATRICES
from mpifed.core.compression import COMPRESSIONS
from mpifed.core.directions import DIRECTIONS
from mpifed.core.mirrors import MIRRORS
from mpifed.core.noise import NOISES
from mpifed.core.participation import LAWS
from mpifed.core.proximal import PROXIMALS
from mpifed.core.schedules import SCHEDULES
from mpifed.core.sets import SETS
from mpifed.data import DATASETS, OWN, OWN_TEXTS, TEXTS
from mpifed.data.partition import PARTITIONS
from mpifed.models import MODELS
from mpifed.problems import PROBLEMS
from mpifed.theory import THEOREMS

__all__ = ["EXAMPLES", "GROUPS", "Group"]


class Group(NamedTuple):
    """Things by name, what one of them is called, and the setting by which a job asks for one."""

    members: Mapping[str, Any]
    one: str
    setting: str


GROUPS = {
    "methods": Group(ALGORITHMS, "algorithm", "algorithm"),
    "problems": Group(PROBLEMS, "problem", "problem"),
    "datasets": Group(DATASETS, "dataset", "problem.dataset"),
    "texts": Group(TEXTS, "text", "problem.dataset"),
    "own data": Group({**OWN, **OWN_TEXTS}, "own", "problem.dataset"),
    "models": Group(MODELS, "model", "problem.model"),
    "partitions": Group(PARTITIONS, "partition", "problem.partition"),
    "matrices": Group(MATRICES, "matrix", "algorithm.matrix"),
    "directions": Group(DIRECTIONS, "direction", "algorithm.direction"),
    "servers": Group(SERVERS, "server", "algorithm.server"),
    "schedules": Group(SCHEDULES, "schedule", "algorithm.eta"),
    "noises": Group(NOISES, "noise", "oracle.noise"),
    "laws": Group(LAWS, "law", "participation.law"),
    "compressions": Group(COMPRESSIONS, "compression", "message.compression"),
    "sets": Group(SETS, "set", ""),
    "functions": Group(PROXIMALS, "phi", "problem.phi"),
    "mirrors": Group(MIRRORS, "mirror", "algorithm.mirror"),
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
