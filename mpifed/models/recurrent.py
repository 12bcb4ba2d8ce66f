"""Recurrent networks over sequences of vectors."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt

from mpifed.base.settings import hyperparameters
from mpifed.models.base import Network, Params, Shapes, uniform

__all__ = ["RNN"]


@hyperparameters
class RNN(Network):
    """A recurrent network with a linear layer on the last state of its last layer (Zhang & Gao n.d., section
    5).

    The paper uses two layers of width 4096 on 300-dimensional word vectors and does not specify the cell. The
    plain cell, h' = tanh(Wx + Uh + b), is the literal reading, and long short-term memory the common
    alternative. Names, shapes and initial distribution of the parameters are those of torch's ``nn.RNN`` and
    ``nn.LSTM``.
    """

    hidden: PositiveInt = Field(default=4096, description="width of each layer")
    layers: PositiveInt = Field(default=2, description="number of layers")
    cell: Literal["tanh", "lstm"] = Field(
        default="tanh", description="plain recurrence, or long short-term memory"
    )

    def shapes(self, sample_shape: tuple[int, ...], outputs: int) -> Shapes:
        """Return the shapes of the parameters, in order, for sequences of shape ``(length, d)``.

        Raises:
            ValueError: the samples are not sequences of vectors.
        """
        if len(sample_shape) != 2:
            raise ValueError(
                f"rnn takes sequences of vectors, got samples of shape {' x '.join(map(str, sample_shape))}"
            )
        rows, shapes = self.hidden * (4 if self.cell == "lstm" else 1), {}
        for layer in range(self.layers):
            shapes |= {
                f"weight_ih_l{layer}": (rows, self.hidden if layer else sample_shape[1]),
                f"weight_hh_l{layer}": (rows, self.hidden),
                f"bias_ih_l{layer}": (rows,),
                f"bias_hh_l{layer}": (rows,),
            }
        return shapes | {"fc.weight": (outputs, self.hidden), "fc.bias": (outputs,)}

    def initial(self, shapes: Shapes, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """Return all parameters uniform in ±1/√width, float64."""
        return {name: uniform(self.hidden**-0.5, shape, rng) for name, shape in shapes.items()}

    def __call__(self, params: Params, samples: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return outputs ``[b, outputs]`` for padded sequences.

        Args:
            samples: vectors ``[b, length, d]``, padded on the right, which does not change earlier states.
            lengths: number of vectors per sequence, int64 ``[b]``; 0 is treated as 1.
        """
        step = _lstm if self.cell == "lstm" else _plain
        h = samples.transpose(0, 1)
        for layer in range(self.layers):
            biases = params[f"bias_ih_l{layer}"] + params[f"bias_hh_l{layer}"]
            inputs = F.linear(h, params[f"weight_ih_l{layer}"], biases)  # one matrix product for all words
            h = torch.stack(step(inputs, params[f"weight_hh_l{layer}"]))
        last = (lengths.clamp(min=1) - 1)[None, :, None].expand(1, -1, self.hidden)
        return F.linear(h.gather(0, last)[0], params["fc.weight"], params["fc.bias"])


def _plain(inputs: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
    """Return the states ``[b, width]`` of one layer for Wx + b of each word, ``[length, b, width]``."""
    states = [torch.tanh(inputs[0])]
    for step in inputs[1:].unbind():
        states.append(torch.tanh(step + F.linear(states[-1], weight)))
    return states


def _lstm(inputs: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
    """Return the states as :func:`_plain`; rows are input, forget, cell and output gate."""
    states: list[torch.Tensor] = []
    memory = None
    for step in inputs.unbind():
        gates = step + F.linear(states[-1], weight) if states else step
        i, f, g, o = gates.chunk(4, dim=-1)
        fresh = torch.sigmoid(i) * torch.tanh(g)
        memory = fresh + torch.sigmoid(f) * memory if states else fresh
        states.append(torch.sigmoid(o) * torch.tanh(memory))
    return states
