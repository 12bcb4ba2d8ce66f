"""mpifed: federated minimax, variational-inequality, compositional and bilevel optimisation on MPI clusters.

Importing the package has one side effect on the process: it sets the environment variable ``MKL_CBWR`` to
"AUTO" unless the variable is already set. MKL then returns bitwise identical results regardless of the memory
alignment of the operands, which ``run.reduction = "exact"`` requires. MKL reads the variable only once, at
its first matrix product. Import mpifed before the process computes its first matrix product; it may be
imported before or after torch.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from mpifed.base.versions import __version__ as __version__

os.environ.setdefault("MKL_CBWR", "AUTO")

if TYPE_CHECKING:
    from mpifed.base.errors import ConfigError, ContractError
    from mpifed.base.settings import hyperparameters, problem_settings
    from mpifed.config.job import Config
    from mpifed.core.adaptive import (
        AdaBelief,
        AdaGradNorm,
        Adam,
        AMSGrad,
        BarzilaiBorwein,
        FirstMatrix,
        Identity,
        Matrix,
        Norm,
        adaptive,
    )
    from mpifed.core.algorithm import Algorithm, Now, Phase
    from mpifed.core.compression import Compression, compress
    from mpifed.core.directions import Clip, Direction, Normalize, Orthogonalize
    from mpifed.core.problem import Bilevel, Composition, DataFile, Minimax, Minimisation, Operator
    from mpifed.core.records import Blocks, Record, compressed, not_sent, stored, within_round
    from mpifed.core.schedules import Rate, StormWeight, Weight
    from mpifed.core.sets import (
        L1,
        Ball,
        Box,
        Indicator,
        L1Box,
        Mirror,
        Nuclear,
        Proximal,
        Separable,
        Set,
        Sets,
        Simplex,
        Space,
    )
    from mpifed.core.streams import Stream, generator
    from mpifed.models import Model
    from mpifed.report.figures import plot
    from mpifed.report.frame import frame
    from mpifed.running.callbacks import Event
    from mpifed.running.result import Result, load
    from mpifed.running.run import resume, run
    from mpifed.running.signals import Stopped
    from mpifed.simulation.simulation import Simulation

__all__ = [
    "AMSGrad", "AdaBelief", "AdaGradNorm", "Adam", "Algorithm", "Ball", "BarzilaiBorwein", "Bilevel",
    "Blocks", "Box", "Clip", "Composition", "Compression", "Config", "ConfigError", "ContractError",
    "DataFile", "Direction", "Event", "FirstMatrix", "Identity", "Indicator", "L1", "L1Box", "Matrix",
    "Minimax", "Minimisation", "Mirror", "Model", "Norm", "Normalize", "Now", "Nuclear", "Operator",
    "Orthogonalize", "Phase", "Proximal", "Rate", "Record", "Result", "Separable", "Set", "Sets", "Simplex",
    "Simulation", "Space", "Stopped", "StormWeight", "Stream", "Weight", "adaptive", "compress", "compressed",
    "frame", "generator", "hyperparameters", "load", "not_sent", "plot", "problem_settings", "resume", "run",
    "stored", "within_round",
]  # fmt: skip


#: Module → its public names.
_MODULES = {
    "base.errors": "ConfigError ContractError",
    "base.settings": "hyperparameters problem_settings",
    "config.job": "Config",
    "core.adaptive": "AMSGrad AdaBelief AdaGradNorm Adam BarzilaiBorwein FirstMatrix Identity Matrix "
    "Norm adaptive",
    "core.algorithm": "Algorithm Now Phase",
    "core.compression": "Compression compress",
    "core.directions": "Clip Direction Normalize Orthogonalize",
    "core.problem": "Bilevel Composition DataFile Minimax Minimisation Operator",
    "core.records": "Blocks Record compressed not_sent stored within_round",
    "core.schedules": "Rate StormWeight Weight",
    "core.sets": "Ball Box Indicator L1 L1Box Mirror Nuclear Proximal Separable Set Sets Simplex Space",
    "core.streams": "Stream generator",
    "models": "Model",
    "report.figures": "plot",
    "report.frame": "frame",
    "running.callbacks": "Event",
    "running.result": "Result load",
    "running.run": "resume run",
    "running.signals": "Stopped",
    "simulation.simulation": "Simulation",
}
_PLACES = {name: f"mpifed.{module}" for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str):
    """Import a public name on first use.

    Importing torch takes seconds, and the command line must install its signal handlers before that.
    """
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_PLACES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
