"""Networks as pure functions of named parameters: built-in networks and user-defined modules."""

from mpifed.base.settings import choice
from mpifed.models.modules import Module, SequenceModule
from mpifed.models.networks import CNN, CNN7, MLP, RNN, Conv4, LeNet5, Linear, ResNet

#: Every network by name.
MODELS = {
    "linear": Linear,
    "mlp": MLP,
    "lenet5": LeNet5,
    "cnn": CNN,
    "cnn7": CNN7,
    "conv4": Conv4,
    "resnet50": ResNet,
    "rnn": RNN,
}

#: A network by name, table or instance; a user-defined module.
Model = choice("model", MODELS, Module)

#: A network that reads sequences of vectors; a user-defined module.
SequenceModel = choice("model", {"rnn": RNN}, SequenceModule, title="recurrent model")

__all__ = [
    "MODELS", "Model", "SequenceModel", "Linear", "MLP", "LeNet5", "CNN", "CNN7", "Conv4", "Module", "ResNet",
    "RNN",
]  # fmt: skip
