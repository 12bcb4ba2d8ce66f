"""The methods, one family per file."""

from mpifed.algorithms.adaseg import LocalAdaSEG
from mpifed.algorithms.cdma import CDMAADA, CDMANC, CDMAONE
from mpifed.algorithms.clipping import Bi2Clip, FATClipping
from mpifed.algorithms.coda import CODASCA, CODAPlus
from mpifed.algorithms.composition import MFCGD, AdaMFCGD
from mpifed.algorithms.composition_baselines import (
    ComFedL,
    FedNestComposition,
    LocalMOML,
    LocalSCGD,
    LocalSCGDM,
)
from mpifed.algorithms.drfa import DRFA
from mpifed.algorithms.dual_averaging import FedDualAvg, FeDualEx
from mpifed.algorithms.dual_extrapolation import LocalDualExtrapolation
from mpifed.algorithms.fed_norm import AFL, FedNormSGDA, FedNormSGDAPlus
from mpifed.algorithms.fed_sgda import FedSGDAM, FedSGDAPlus
from mpifed.algorithms.fedavg import FedAvg
from mpifed.algorithms.feddyn import FedDyn
from mpifed.algorithms.fedexp import FedExP
from mpifed.algorithms.fednest import FedNest, LFedNest
from mpifed.algorithms.fednest_bilevel import FedNestBilevel, LFedNestBilevel
from mpifed.algorithms.fednova import FedNova
from mpifed.algorithms.fedprox import FedProx
from mpifed.algorithms.fgda import FGDA, STEM, AdaFGDA
from mpifed.algorithms.flra import FLRA
from mpifed.algorithms.heavy_tailed import FedMuonDA, FedNSGDAM, FedSGDAClip
from mpifed.algorithms.local_amsgrad import LocalAMSGrad
from mpifed.algorithms.local_sgda import LocalSGDA, LocalSGDAPlus, MomentumLocalSGDA, MomentumLocalSGDAPlus
from mpifed.algorithms.masha import MASHA1, MASHA2
from mpifed.algorithms.memory import MIFA, FedVARP
from mpifed.algorithms.mime import Mime, MimeLite
from mpifed.algorithms.proxskip import ProxSkipLSVRGDAFL, ProxSkipVIPFL
from mpifed.algorithms.simfbo import ShroFBO, SimFBO
from mpifed.algorithms.smoothed import FESSGDA, FSGDA, SmoothedGDA
from mpifed.algorithms.variates import SAGDA, SCAFFOLD, FedGDAGT, KGTMinimax
from mpifed.algorithms.variational import LESGD, LIPPAX, LSGD, SLIPPAX, ExtraSGD, ExtraStepLocalSGD

#: Every method by name.
ALGORITHMS = {
    cls.__name__: cls
    for cls in (
        FGDA, AdaFGDA,
        FedNSGDAM, FedMuonDA, FedSGDAClip,
        LSGD, LESGD, LIPPAX, SLIPPAX, LocalDualExtrapolation,
        ExtraSGD, ExtraStepLocalSGD, FedDualAvg, FeDualEx,
        MFCGD, AdaMFCGD, ComFedL, LocalMOML, LocalSCGD, LocalSCGDM, FedNestComposition,
        FESSGDA, SmoothedGDA, FSGDA, LocalSGDA,
        LocalSGDAPlus, MomentumLocalSGDA, MomentumLocalSGDAPlus,
        FedSGDAPlus, FedSGDAM, FedNormSGDA, FedNormSGDAPlus,
        SAGDA, FedGDAGT, KGTMinimax, CODAPlus, CODASCA,
        CDMANC, CDMAONE, CDMAADA,
        FedNest, LFedNest,
        FLRA,
        LocalAMSGrad,
        AFL, DRFA,
        FedAvg, FedProx, FedNova, FedDyn, FedExP, MimeLite, Mime, SCAFFOLD, STEM,
        FedVARP, MIFA,
        LocalAdaSEG,
        FATClipping, Bi2Clip,
        SimFBO, ShroFBO, FedNestBilevel, LFedNestBilevel,
        ProxSkipVIPFL, ProxSkipLSVRGDAFL,
        MASHA1, MASHA2,
    )
}

__all__ = ["ALGORITHMS", *ALGORITHMS]
