"""Built-in problems."""

from mpifed.problems.adversarial import AdversarialTraining
from mpifed.problems.affine_shift import AffineShift
from mpifed.problems.bilevel import QuadraticBilevel
from mpifed.problems.classification import Classification
from mpifed.problems.data_cleaning import DataCleaning
from mpifed.problems.deep_auc import DeepAUC
from mpifed.problems.distributional import DistributionallyRobust
from mpifed.problems.fair import FairClassification
from mpifed.problems.few_shot import FewShotMAML
from mpifed.problems.finite_max import FiniteMax
from mpifed.problems.games import AffineGame, Bilinear, L1BoxBilinear
from mpifed.problems.maml import LinearMAML
from mpifed.problems.matrix_game import MatrixGame
from mpifed.problems.mixture import ClientMixture, QuadraticMixture
from mpifed.problems.parity import GroupParity
from mpifed.problems.partial_auc import OneWayPAUC, TwoWayPAUC
from mpifed.problems.policy import MSPBE
from mpifed.problems.quadratic import QuadraticNCPL, TwoSidedPL
from mpifed.problems.robust import RobustRegression
from mpifed.problems.saddle import Saddle
from mpifed.problems.sinusoid import SinusoidMAML
from mpifed.problems.softplus import SoftplusSaddle
from mpifed.problems.text_auc import TextAUC
from mpifed.problems.wgan import WGAN

#: Class name → class of each built-in problem.
PROBLEMS = {
    cls.__name__: cls
    for cls in (
        Saddle, DeepAUC, TextAUC, RobustRegression, AffineShift, AffineGame, Bilinear, L1BoxBilinear,
        MatrixGame, DistributionallyRobust, LinearMAML, SinusoidMAML, FewShotMAML, WGAN, FairClassification,
        GroupParity, Classification, AdversarialTraining, ClientMixture, QuadraticMixture, QuadraticNCPL,
        TwoSidedPL, FiniteMax, SoftplusSaddle, MSPBE, QuadraticBilevel, DataCleaning, OneWayPAUC,
        TwoWayPAUC,
    )
}  # fmt: skip

__all__ = ["PROBLEMS", *PROBLEMS]
