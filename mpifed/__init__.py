"""mpifed: federated minimax, variational-inequality and compositional optimisation on MPI clusters."""

import gc

# What is imported here stays, all of torch above all. Looking for garbage among it, while importing and in the collections at
# the end of every process, would take a quarter of a short run's time.
_collecting = gc.isenabled()
gc.disable()

from mpifed.algorithm import Algorithm, Phase  # noqa: E402
from mpifed.config import Config, ConfigError  # noqa: E402
from mpifed.options import hyperparameters  # noqa: E402
from mpifed.problem import Minimax  # noqa: E402
from mpifed.projections import Sets  # noqa: E402
from mpifed.records import Blocks, Record  # noqa: E402
from mpifed.run import Result, resume, run  # noqa: E402
from mpifed.schedules import Rate  # noqa: E402

gc.freeze()
if _collecting:
    gc.enable()

__all__ = [
    "Algorithm", "Blocks", "Config", "ConfigError", "Minimax", "Phase", "Rate", "Record", "Result", "Sets",
    "hyperparameters", "resume", "run",
]

__version__ = "0.1.0"
