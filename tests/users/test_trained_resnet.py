"""A user-defined ResNet-18, trained on CIFAR-10 files, exported, and used in plain torch."""

import pickle
import re

import numpy as np

NET = '''
"""ResNet-18 (He et al., 2016) for images of 32 x 32, with group normalisation; knows torch alone."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, inside, out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.GroupNorm(32, out), nn.GroupNorm(32, out)
        projected = nn.Conv2d(inside, out, 1, stride, bias=False), nn.GroupNorm(32, out)
        self.shortcut = nn.Sequential(*(projected if stride != 1 or inside != out else ()))

    def forward(self, x):
        h = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(h + self.shortcut(x))


class ResNet18(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(32, 64)
        widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
        strides = [1, 1, 2, 1, 2, 1, 2, 1]
        self.blocks = nn.Sequential(*map(Block, widths, widths[1:], strides))
        self.fc = nn.Linear(512, classes)

    def forward(self, images):
        h = self.blocks(torch.relu(self.norm(self.conv(images))))
        return self.fc(h.mean((2, 3)))
'''
DATA = '''
"""CIFAR-10's Python batches."""

import pickle
from pathlib import Path

import numpy as np


def batch(name):
    content = pickle.loads(Path("cifar-10-batches-py", name).read_bytes(), encoding="bytes")
    return content[b"data"].reshape(-1, 3, 32, 32).astype("float32") / 255, np.array(content[b"labels"])


def load():
    parts = [batch(f"data_batch_{number}") for number in range(1, 6)]
    return {"train": tuple(map(np.concatenate, zip(*parts))), "test": batch("test_batch")}
'''
JOB = """
rounds = 2
algorithm = { name = "FedAvg", K = 1, eta = 0.005 }
problem = { name = "Classification", dataset = "./data.py:load", model = "./net.py:ResNet18", clients = 2 }
oracle = { batch_size = 4 }
run = { out = "run", progress = false }
"""
OWN = """
import mpifed, torch
from data import load
from net import ResNet18

result = mpifed.load("run")
problem = mpifed.Config.from_table(result.config).problem
problem.prepare(result.config["seed"])
scores = problem.predict(result.parameters["x"], slice(0, problem.test_rows))
labels = torch.from_numpy(load()["test"][1])
assert abs(float((scores.argmax(1) == labels).double().mean()) - result.metrics["accuracy"]) < 1e-12
torch.save(scores, "scores.pt")
model = result.model()
assert type(model).__name__ == "ResNet18" and not model.training
assert model.state_dict().keys() == ResNet18().state_dict().keys()
"""
PLAIN = """
import sys
import torch
from data import load
from net import ResNet18
from safetensors.torch import load_file

net = ResNet18().eval()
net.load_state_dict(load_file("model.safetensors"))
with torch.no_grad():
    scores = net(torch.from_numpy(load()["test"][0]))
assert "mpifed" not in sys.modules
expected = torch.load("scores.pt")
print("largest score", float(expected.abs().max()), "difference", float((scores - expected).abs().max()))
"""


def batches(folder, images=6):
    """Write six small batches in the official format: keys of type bytes, rows of 3072 bytes."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for number, name in enumerate([*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]):
        labels = [(images * number + image) % 10 for image in range(images)]
        content = {
            b"batch_label": name.encode(),
            b"labels": labels,
            b"data": rng.integers(0, 256, (images, 3072), dtype=np.uint8),
            b"filenames": [b"image.png"] * images,
        }
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))


def test_a_resnet_is_trained_exported_and_used_in_plain_torch(user):
    user.write({"net.py": NET, "data.py": DATA, "job.toml": JOB, "own.py": OWN, "plain.py": PLAIN})
    batches(user.folder / "cifar-10-batches-py")
    user("mpifed", "run", "job.toml", "--no-report", ranks=2)
    user("mpifed", "export", "run", "--to", "model.safetensors")
    user("python", "own.py")
    said = user("python", "plain.py")
    largest, difference = map(float, re.fullmatch(r"largest score (\S+) difference (\S+)\n", said).groups())
    # Other threads may add in another order: about 6e-8 on scores of about 1 in float32.
    assert difference < 1e-6 and 0.1 < largest < 5, said
