"""mpifed: federated minimax, variational-inequality and compositional optimisation on MPI clusters."""

from mpifed.config.job import Config
from mpifed.core.adaptive import adaptive
from mpifed.core.algorithm import Algorithm, Phase
from mpifed.core.errors import ConfigError, ContractError
from mpifed.core.problem import Composition, Minimax, Minimisation, Operator
from mpifed.core.records import Blocks, Record, between, kept
from mpifed.core.schedules import Rate
from mpifed.core.sets import Sets
from mpifed.core.settings import hyperparameters, problem_settings
from mpifed.running.result import Result, load
from mpifed.running.run import resume, run
from mpifed.running.signals import Stopped

__all__ = [
    "Algorithm",
    "Blocks",
    "Composition",
    "Config",
    "ConfigError",
    "ContractError",
    "Minimax",
    "Minimisation",
    "Operator",
    "Phase",
    "Rate",
    "Record",
    "Result",
    "Sets",
    "Stopped",
    "adaptive",
    "between",
    "hyperparameters",
    "kept",
    "load",
    "problem_settings",
    "resume",
    "run",
]

__version__ = "0.2.0"
