"""A small data set of images without a file."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mpifed.data import DATASETS, Images


def patches_of(monkeypatch, height: int, width: int) -> Images:
    """Register 60 + 25 random images of ``height`` x ``width`` in four classes as "patches" for one test."""
    rng = np.random.default_rng(5)

    def part(n):
        pixels = rng.uniform(size=(n, 1, height, width)).astype(np.float32)
        return torch.from_numpy(pixels), torch.arange(n) % 4

    images = Images(*part(60), *part(25))
    monkeypatch.setitem(DATASETS, "patches", lambda data_dir: images)
    return images


@pytest.fixture
def patches(monkeypatch):
    """The data set "patches" with images of 3 x 4."""
    return patches_of(monkeypatch, 3, 4)
