"""Networks as pure functions of named parameters: the package's, and users' modules."""

from mpifed.core.settings import choice
from mpifed.models.convolutional import CNN, CNN7, Conv4, LeNet5
from mpifed.models.dense import MLP, Linear
from mpifed.models.modules import Module, SequenceModule
from mpifed.models.recurrent import RNN
from mpifed.models.resnet import ResNet

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

#: A network by name, table or instance; a module of the user's.
Model = choice("model", MODELS, Module)

#: A network that reads sequences of vectors; a module of the user's.
SequenceModel = choice("model", {"rnn": RNN}, SequenceModule)

__all__ = [
    "MODELS",
    "Model",
    "SequenceModel",
    "Linear",
    "MLP",
    "LeNet5",
    "CNN",
    "CNN7",
    "Conv4",
    "Module",
    "ResNet",
    "RNN",
]
