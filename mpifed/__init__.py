"""mpifed: federated minimax, variational-inequality and compositional optimisation on MPI clusters."""

from mpifed.config.job import Config
from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.errors import ConfigError
from mpifed.core.problem import Composition, Minimax, Operator
from mpifed.core.records import Blocks, Record
from mpifed.core.schedules import Rate
from mpifed.core.sets import Sets
from mpifed.core.settings import hyperparameters
from mpifed.running.result import Result, load
from mpifed.running.run import resume, run
from mpifed.running.signals import Stopped

__all__ = [
    "Algorithm",
    "Blocks",
    "Composition",
    "Config",
    "ConfigError",
    "Minimax",
    "Operator",
    "Phase",
    "Rate",
    "Record",
    "Result",
    "Sets",
    "Stopped",
    "hyperparameters",
    "load",
    "resume",
    "run",
]

__version__ = "0.1.0"
