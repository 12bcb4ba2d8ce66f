"""The methods, one family a file."""

from mpifed.algorithms.composition import MFCGD, AdaMFCGD
from mpifed.algorithms.composition_baselines import (
    ComFedL,
    FedNestComposition,
    LocalMOML,
    LocalSCGD,
    LocalSCGDM,
)
from mpifed.algorithms.dual_extrapolation import LocalDualExtrapolation
from mpifed.algorithms.fgda import FGDA, AdaFGDA
from mpifed.algorithms.heavy_tailed import FedMuonDA, FedNSGDAM, FedSGDAClip
from mpifed.algorithms.local_sgda import LocalSGDA
from mpifed.algorithms.smoothed import FESSGDA, FSGDA, SmoothedGDA
from mpifed.algorithms.variational import LESGD, LIPPAX, LSGD, SLIPPAX

#: Every method by name, in the order of the papers.
ALGORITHMS = {
    cls.__name__: cls
    for cls in (
        FGDA, AdaFGDA,
        FedNSGDAM, FedMuonDA, FedSGDAClip,
        LSGD, LESGD, LIPPAX, SLIPPAX, LocalDualExtrapolation,
        MFCGD, AdaMFCGD, ComFedL, LocalMOML, LocalSCGD, LocalSCGDM, FedNestComposition,
        FESSGDA, SmoothedGDA, FSGDA, LocalSGDA,
    )
}

__all__ = ["ALGORITHMS", *ALGORITHMS]
