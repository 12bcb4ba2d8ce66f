"""Residual networks of bottleneck blocks (He et al., 2016)."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt

from mpifed.core.settings import hyperparameters
from mpifed.models.base import Network, Params, Shapes, layers, uniform

__all__ = ["ResNet"]

#: Channels that a bottleneck block puts out for one inside.
EXPANSION = 4


@hyperparameters
class ResNet(Network):
    """A residual network of bottleneck blocks with group normalisation; by default ResNet-50 (Huang et al.
    2024, section 6.2).

    With 3 channels and 1000 outputs ResNet-50 has 25,557,032 parameters, as published: group normalisation
    (Wu and He, 2018) has the two numbers a channel of batch normalisation. It takes the latter's place
    because that couples the samples of a batch, so that a batch's loss would estimate no client's loss
    without bias, and because its running averages are neither variables nor equal among unlike clients (Hsieh
    et al., 2020). A block's stride is in its 3 x 3 convolution, as in torchvision.

    Starting values: convolutions normal with standard deviation √(2 / fan_out), scales 1 and shifts 0, the
    linear layer uniform in ±1/√fan_in; all as in torchvision.
    """

    blocks: tuple[PositiveInt, ...] = Field(
        default=(3, 4, 6, 3), min_length=1, description="blocks of each stage; (3, 4, 23, 3) makes ResNet-101"
    )
    width: PositiveInt = Field(
        default=64, description="channels of the first convolution and inside the first stage's blocks"
    )
    groups: Annotated[int, Field(ge=1)] = Field(
        default=32, description="groups of channels that are normalised together"
    )
    stem: Literal["large", "small"] = Field(
        default="large",
        description="first layer: 7 x 7 with stride 2 and pooling, or 3 x 3 with neither, for images of 32 "
        "x 32 or so",
    )

    def __post_init__(self):
        if self.width % self.groups:
            raise ValueError(
                f"expected a width that is a multiple of groups = {self.groups}, got width = {self.width}"
            )

    def shapes(self, sample_shape: tuple[int, ...], outputs: int) -> Shapes:
        """Shapes of the parameters, in order, for images of shape ``(c, h, w)``.

        Raises:
            ValueError: the samples are no images.
        """
        if len(sample_shape) != 3:
            raise ValueError(
                f"resnet50 takes images, got samples of shape {' x '.join(map(str, sample_shape))}"
            )
        size, channels = 7 if self.stem == "large" else 3, self.width
        shapes: Shapes = {
            "conv1.weight": (channels, sample_shape[0], size, size),
            **layers(norm1=(channels,)),
        }
        for name, inside, stride in self._plan():
            out = EXPANSION * inside
            kernels = (inside, channels, 1, 1), (inside, inside, 3, 3), (out, inside, 1, 1)
            for i, kernel in enumerate(kernels, 1):
                shapes |= {f"{name}.conv{i}.weight": kernel, **layers(**{f"{name}.norm{i}": kernel[:1]})}
            if stride > 1 or channels != out:
                shapes |= {
                    f"{name}.shortcut.weight": (out, channels, 1, 1),
                    **layers(**{f"{name}.norm": (out,)}),
                }
            channels = out
        return shapes | layers(fc=(outputs, channels))

    def _plan(self):
        """Name, inner channels and stride of every block."""
        for stage, count in enumerate(self.blocks):
            for block in range(count):
                yield f"stage{stage + 1}.{block}", self.width * 2**stage, 2 if stage and not block else 1

    def initial(self, shapes: Shapes, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """Starting values, float64."""
        params = {}
        for name, shape in shapes.items():
            if len(shape) == 4:
                fan_out = shape[0] * math.prod(shape[2:])
                params[name] = torch.from_numpy(math.sqrt(2 / fan_out) * rng.standard_normal(shape))
            elif name.startswith("fc"):
                params[name] = uniform(shapes["fc.weight"][1] ** -0.5, shape, rng)
            else:
                params[name] = torch.full(shape, float(name.endswith("weight")), dtype=torch.float64)
        return params

    def __call__(self, params: Params, samples: torch.Tensor) -> torch.Tensor:
        """Outputs ``[b, outputs]`` for images ``[b, c, h, w]``."""
        large = self.stem == "large"
        h = F.conv2d(samples, params["conv1.weight"], stride=2 if large else 1, padding=3 if large else 1)
        h = torch.relu(self._norm(params, "norm1", h))
        if large:
            h = F.max_pool2d(h, 3, stride=2, padding=1)
        for name, _, stride in self._plan():
            h = self._block(params, name, h, stride)
        return F.linear(h.mean((-2, -1)), params["fc.weight"], params["fc.bias"])

    def _norm(self, params: Params, name: str, h: torch.Tensor) -> torch.Tensor:
        return F.group_norm(h, self.groups, params[f"{name}.weight"], params[f"{name}.bias"])

    def _block(self, params: Params, name: str, samples: torch.Tensor, stride: int) -> torch.Tensor:
        h = torch.relu(self._norm(params, f"{name}.norm1", F.conv2d(samples, params[f"{name}.conv1.weight"])))
        h = F.conv2d(h, params[f"{name}.conv2.weight"], stride=stride, padding=1)
        h = torch.relu(self._norm(params, f"{name}.norm2", h))
        h = self._norm(params, f"{name}.norm3", F.conv2d(h, params[f"{name}.conv3.weight"]))
        if f"{name}.shortcut.weight" in params:
            samples = F.conv2d(samples, params[f"{name}.shortcut.weight"], stride=stride)
            samples = self._norm(params, f"{name}.norm", samples)
        return torch.relu(h + samples)
