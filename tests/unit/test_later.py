"""What torch loads at its start and a run does not use: put off, and there when it is asked for."""

import subprocess
import sys

import pytest

from mpifed.core.later import WANTING

#: Kernels that torch writes in Python for tensors without data, and the module that they stand on.
MADE = "'torch._refs' in sys.modules"
START = f"""
import sys
from mpifed.core.later import make_up, put_off
put_off()
import torch
assert not {MADE}
"""
CONVOLUTION = """
kernel, images = torch.nn.Conv2d(1, 2, 3, device="meta"), torch.empty(4, 1, 8, 8, device="meta")
assert kernel(images).shape == (4, 2, 6, 6)
"""


def run(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", START + code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_tensors_without_data_after_it_is_made_up():
    run(f"make_up()\nassert {MADE}\n{CONVOLUTION}")


@pytest.mark.parametrize(
    "code",
    [
        "compiled = torch.compile(lambda x: x.sin() + 1, backend='eager')\n"
        "assert torch.equal(compiled(torch.ones(3)), torch.ones(3).sin() + 1)",
        "from torch._subclasses import FakeTensorMode\nwith FakeTensorMode():"
        + CONVOLUTION.replace("\n", "\n    "),
        "def loss(x, y):\n    return torch.nn.functional.mse_loss(x, y)\n"
        "x, y = torch.ones(4, 3), torch.zeros(4, 3)\n"
        "found = torch.func.vmap(torch.func.grad(loss))(x, y)\n"  # by torch's decompositions
        "assert torch.allclose(found, 2 / 3 * x)",
    ],
    ids=["compiler", "fake tensors", "several clients"],
)
def test_who_needs_it_loads_it(code):
    run(f"{code}\nassert {MADE}")


@pytest.mark.parametrize("module", sorted(WANTING))
def test_no_table_is_lost(module):
    """Whichever part is asked for first: the decompositions are those that an untouched process has."""
    count = (
        "import torch._decomp\nprint(len(torch._decomp.decomposition_table), len(torch._decomp.meta_table))"
    )
    plain = subprocess.run([sys.executable, "-c", count], capture_output=True, check=True, timeout=120)
    late = subprocess.run(
        [sys.executable, "-c", f"{START}\nimport {module}\n{count}"], capture_output=True, timeout=120
    )
    assert late.stdout == plain.stdout and int(plain.stdout.split()[0]) > 100, late.stderr


def test_nothing_changes_for_who_does_not_put_it_off():
    code = f"import sys, mpifed.core.later, torch\nassert {MADE}\nmpifed.core.later.make_up()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_modules_may_be_looked_through():
    """As inspect does, which asks every module for its file."""
    run(f"import inspect\ninspect.stack()\nassert torch._meta_registrations.__file__\nassert not {MADE}")
