"""mpifed: federated minimax, variational-inequality and compositional optimisation on MPI clusters."""

from mpifed.algorithm import Algorithm, Phase
from mpifed.config import Config, ConfigError
from mpifed.options import hyperparameters
from mpifed.problem import Minimax
from mpifed.projections import Sets
from mpifed.records import Blocks, Record
from mpifed.run import Result, resume, run
from mpifed.schedules import Rate

__all__ = [
    "Algorithm", "Blocks", "Config", "ConfigError", "Minimax", "Phase", "Rate", "Record", "Result", "Sets",
    "hyperparameters", "resume", "run",
]

__version__ = "0.1.0"
