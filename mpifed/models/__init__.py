"""Networks as pure functions of named parameters."""

from mpifed.core.settings import choice
from mpifed.models.convolutional import CNN, CNN7, Conv4, LeNet5
from mpifed.models.dense import MLP, Linear
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

#: A network by name, table or instance.
Model = choice("model", MODELS)

#: A network that reads sequences of vectors.
SequenceModel = choice("model", {"rnn": RNN})

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
    "ResNet",
    "RNN",
]
