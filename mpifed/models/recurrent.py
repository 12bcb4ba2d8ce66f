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
    """A recurrent network whose outputs are linear in its last layer's state after the last word (Zhang & Gao
    n.d., section 5).

    The paper has two layers of width 4096 over vectors of 300 numbers and does not name the cell: the plain
    one, h' = tanh(Wx + Uh + b), is the literal reading, and a long short-term memory is the common
    alternative. Parameters have the names and shapes of torch's ``nn.RNN`` and ``nn.LSTM``, and start uniform
    in ±1/√width as these do.
    """

    hidden: PositiveInt = Field(default=4096, description="width of each layer")
    layers: PositiveInt = Field(default=2, description="number of layers")
    cell: Literal["tanh", "lstm"] = Field(
        default="tanh", description="plain recurrence, or long short-term memory"
    )

    def shapes(self, sample_shape: tuple[int, ...], outputs: int) -> Shapes:
        """Shapes of the parameters, in order, for sequences of shape ``(length, d)``.

        Raises:
            ValueError: the samples are no sequences of vectors.
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
        """Everything uniform in ±1/√width; float64."""
        return {name: uniform(self.hidden**-0.5, shape, rng) for name, shape in shapes.items()}

    def __call__(self, params: Params, samples: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Outputs ``[b, outputs]`` for sequences ``[b, length, d]`` of which the first ``lengths`` ``[b]``,
        int64, vectors count.

        A state depends on nothing to its right, so padding on that side changes no state that is read. Of a
        sequence without vectors the first one counts.
        """
        step = _lstm if self.cell == "lstm" else _plain
        h = samples.transpose(0, 1)
        for layer in range(self.layers):
            biases = params[f"bias_ih_l{layer}"] + params[f"bias_hh_l{layer}"]
            inputs = F.linear(h, params[f"weight_ih_l{layer}"], biases)  # one product for all words
            h = torch.stack(step(inputs, params[f"weight_hh_l{layer}"]))
        last = (lengths.clamp(min=1) - 1)[None, :, None].expand(1, -1, self.hidden)
        return F.linear(h.gather(0, last)[0], params["fc.weight"], params["fc.bias"])


def _plain(inputs: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
    """States ``[b, width]`` of one layer, starting from 0, for Wx + b of each word: ``[length, b,
    width]``."""
    states = [torch.tanh(inputs[0])]
    for own in inputs[1:].unbind():
        states.append(torch.tanh(own + F.linear(states[-1], weight)))
    return states


def _lstm(inputs: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
    """As for the plain cell; rows are input, forget, cell and output gate."""
    states: list[torch.Tensor] = []
    memory = None
    for own in inputs.unbind():
        gates = own + F.linear(states[-1], weight) if states else own
        i, f, g, o = gates.chunk(4, dim=-1)
        fresh = torch.sigmoid(i) * torch.tanh(g)
        memory = fresh + torch.sigmoid(f) * memory if states else fresh
        states.append(torch.sigmoid(o) * torch.tanh(memory))
    return states
