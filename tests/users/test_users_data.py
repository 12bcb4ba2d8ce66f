"""A user-defined table and function as data sets, two rounds each on two ranks."""

import json

import h5py

TABLE = "\n".join(
    ["age,sex,hospital,finding"]
    + [
        f"{20 + i},{'fm'[i % 2]},{('north', 'south')[i % 3 > 0]},{('well', 'ill')[i % 4 > 1]}"
        for i in range(48)
    ]
)
FUNCTION = """
import torch
from torch.utils.data import TensorDataset

def load(rows):
    draw = torch.Generator().manual_seed(0)
    samples = torch.randn(rows, 1, 4, 4, generator=draw)
    whole = TensorDataset(samples, (samples.mean((1, 2, 3)) > 0).long())
    return {"train": whole, "test": whole, "classes": ["dark", "bright"]}
"""
JOB = """
rounds = 2
algorithm = { name = "LocalSGDA", q = 2, eta_x = 0.01, eta_y = 0.01 }
[problem]
name = "DeepAUC"
model = "linear"
clients = 2
"""
OWN_TABLE = (
    'partition = "natural"\n[problem.dataset]\nname = "table"\nfile = "mine.csv"\ntarget = "finding"\n'
)
OWN_TABLE += 'test = 0.25\nclient = "hospital"\nstandardize = true\n'


def test_a_table_and_a_function(user):
    own_function = 'dataset = { name = "./data.py:load", rows = 32 }\n'
    jobs = {"table.toml": JOB + OWN_TABLE, "function.toml": JOB + own_function}
    user.write({"mine.csv": TABLE, "data.py": FUNCTION} | jobs)
    for name, files in (("table", {"mine.csv"}), ("function", {"data.py:load"})):
        user("mpifed", "run", f"{name}.toml", f"run.out=two {name}", ranks=2)
        user("mpifed", "run", f"{name}.toml", f"run.out=one {name}")
        two, one = (h5py.File(user.folder / f"{ranks} {name}" / "run.h5") for ranks in ("two", "one"))
        with two, one:
            for name, values in one["final/x"].items():
                assert (two["final/x"][name][()] == values[()]).all()
            assert set(json.loads(two.attrs["data"])) == files
    said = user(
        "mpifed", "run", "table.toml", "run.out=c", "problem.dataset.target=findings", ranks=2, code=2
    )
    assert "mine.csv has no column 'findings': did you mean 'finding'?" in said
