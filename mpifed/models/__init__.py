"""Networks as pure functions of named parameters."""

from mpifed.models.networks import MODELS, MLP, LeNet5, Linear, Model

__all__ = ["MODELS", "Model", "Linear", "MLP", "LeNet5"]
