"""A user-defined network: trained on two ranks, checked, returned as a module, exported to plain torch."""

NET = """
import torch
from torch import nn

def Net(width=8):
    return nn.Sequential(
        nn.Conv2d(1, width, 3), nn.GroupNorm(2, width), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2),
        nn.LazyLinear(10),
    )

class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.Linear(12, 10))

    def forward(self, images):
        return self.layers(images)
"""
JOB = """
rounds = 4
algorithm = { name = "FedAvg", K = 2, eta = 0.1 }
problem = { name = "Classification", dataset = "digits", clients = 4, model = "./net.py:Net" }
run = { progress = false, out = "runs/two", reduction = "exact" }
"""
SCRIPT = """
import mpifed, torch

two, one = (mpifed.resume(f"runs/{name}") for name in ("two", "one"))
assert torch.equal(two.point["x"], one.point["x"])
net = two.model()
samples = torch.rand(3, 1, 8, 8)
scores = net(samples)
assert scores.shape == (3, 10) and not net.training
torch.save((samples, scores), "scores.pt")
"""
PLAIN = """
import sys
import torch
from net import Net
from safetensors.torch import load_file

net = Net().eval()
net.load_state_dict(load_file("model.safetensors"))
samples, scores = torch.load("scores.pt")
assert "mpifed" not in sys.modules and scores.std() > 1e-3
assert torch.equal(net(samples), scores)
"""


def test_a_user_defined_network(user):
    user.write({"net.py": NET, "job.toml": JOB, "script.py": SCRIPT, "plain.py": PLAIN})
    user("mpifed", "run", "job.toml", ranks=2)
    user("mpifed", "run", "job.toml", "run.out=runs/one")
    user("python", "script.py")
    user("mpifed", "export", "runs/two", "--to", "model.safetensors")
    user("python", "plain.py")
    printed = user(
        "mpifed", "run", "job.toml", "run.out=runs/no", "problem.model=./net.py:Normalised", code=2
    )
    assert "has BatchNorm1d at 'layers.2'" in printed and "use nn.GroupNorm(1, 12)" in printed
    printed = user("mpifed", "run", "job.toml", "run.out=runs/no", "problem.model=./net.py:Nett", code=2)
    assert "./net.py has no 'Nett': did you mean 'Net'?" in printed and "Traceback" not in printed
