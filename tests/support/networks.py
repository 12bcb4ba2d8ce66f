"""User-defined networks, referred to as ``./networks.py:LeNet``."""

import torch
import torch.nn.functional as F
from torch import nn


class LeNet(nn.Module):
    """LeNet-5 with one output in plain torch, equal to the package's lenet5."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 1)

    def forward(self, images):
        h = F.max_pool2d(F.relu(self.conv1(images)), 2)
        h = F.max_pool2d(F.relu(self.conv2(h)), 2).flatten(1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(h)))))


class Net(nn.Module):
    """A small network for digits with an arbitrary middle layer."""

    def __init__(self, middle=None, outputs=1, width=6):
        super().__init__()
        self.first, self.last = nn.Linear(64, width), nn.Linear(width, outputs)
        self.middle = middle or nn.Identity()

    def forward(self, images):
        return self.last(self.middle(torch.tanh(self.first(images.flatten(1)))))


def dropping(p=0.5, outputs=1):
    return Net(nn.Dropout(p), outputs)


class Tied(nn.Module):
    """A network in which two layers share their weight."""

    def __init__(self):
        super().__init__()
        self.inner, self.again = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)
        self.again.weight = self.inner.weight
        self.out = nn.Linear(64, 1)

    def forward(self, images):
        return self.out(torch.tanh(self.again(torch.tanh(self.inner(images.flatten(1))))))


class Branches(nn.Module):
    """A network that branches on the values of a parameter, which vmap does not support."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 1), nn.Linear(64, 1)

    def forward(self, images):
        rows = images.flatten(1)
        return self.a(rows) if self.a.bias.sum() > 0 else self.b(rows)


class Reader(nn.Module):
    """Two scores for sequences of vectors; vectors after the first ``lengths`` are padding."""

    def __init__(self, dimension, width=5, p=0.0):
        super().__init__()
        self.read, self.drop = nn.LSTM(dimension, width, batch_first=True), nn.Dropout(p)
        self.scores = nn.Linear(width, 2)

    def forward(self, vectors, lengths):
        states, _ = self.read(vectors)
        last = states[torch.arange(len(states)), lengths.clamp(min=1) - 1]
        return self.scores(self.drop(last))


class Attention(nn.Module):
    """One score by self-attention over the rows of an 8 × 8 image."""

    def __init__(self, p=0.0):
        super().__init__()
        self.heads, self.out = nn.MultiheadAttention(8, 2, p, batch_first=True), nn.Linear(8, 1)

    def forward(self, images):
        rows = images.flatten(1).unflatten(1, (8, 8))
        return self.out(self.heads(rows, rows, rows, need_weights=False)[0].mean(1))


class Recurrent(nn.Module):
    """One score for the rows of an 8 × 8 image by an explicit GRU, since vmap does not support that of
    torch."""

    def __init__(self, width=5):
        super().__init__()
        self.width, self.read, self.keep = width, nn.Linear(8, 3 * width), nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, 1)

    def forward(self, images):
        rows = images.flatten(1).unflatten(1, (8, 8))
        state = rows.new_zeros(len(rows), self.width)
        for row in rows.unbind(1):
            (a, b, c), (d, e, f) = self.read(row).chunk(3, -1), self.keep(state).chunk(3, -1)
            update = torch.sigmoid(b + e)
            state = update * state + (1 - update) * torch.tanh(c + torch.sigmoid(a + d) * f)
        return self.out(state)


def convolutional():
    return nn.Sequential(
        nn.Flatten(),
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 3, 3),
        nn.Mish(),
        nn.Flatten(),
        nn.Linear(108, 1),
    )
