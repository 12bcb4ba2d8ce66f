"""A warning of mpifed fails a test and a job; one of a library does not."""

import subprocess
import sys

import pytest
from launch import environment

WARN = "import warnings; warnings.warn('this goes', DeprecationWarning)"


def test_of_mpifed_in_a_test():
    with pytest.raises(DeprecationWarning, match="this goes"):
        exec(WARN, {"__name__": "mpifed.core.records"})


def test_of_a_library_in_a_test():
    exec(WARN, {"__name__": "numpy.linalg"})


@pytest.mark.parametrize("module, code", [("mpifed.core.records", 1), ("numpy.linalg", 0)])
def test_in_a_job(module, code):
    program = [sys.executable, "-c", f"exec({WARN!r}, {{'__name__': {module!r}}})"]
    done = subprocess.run(program, env=environment(), capture_output=True, text=True)
    assert done.returncode == code, done.stderr
