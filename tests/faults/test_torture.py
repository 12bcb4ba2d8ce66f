"""scripts/torture.py: random kills, and the detection of a job with wrong results."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "torture.py"


def torture(*arguments) -> tuple[int, str]:
    done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=1200)
    return done.returncode, done.stdout + done.stderr


def test_twenty_random_kills():
    code, output = torture("--kills", "20", "--ranks", "2,2,2,3", "--rounds", "40", "--seed", "1")
    assert code == 0 and output.endswith("survived 20 of 20, lost 0\n"), output
    assert output.count("exit code 137 after") == 20, output


def test_a_job_with_other_results_is_lost():
    """Without the exact reduction a restart on another number of ranks changes the last digits."""
    code, output = torture(
        "--kills", "1", "--ranks", "1,2", "--rounds", "40", "--seed", "4", "run.reduction=fused"
    )
    assert code == 1 and output.endswith("survived 0 of 1, lost 1\n"), output
    assert "the result differs from the uninterrupted run" in output, output
