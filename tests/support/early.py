"""mpifed's command line that stands still while it loads: early.py FOLDER RANK ARGUMENTS OF mpifed

The given rank makes FOLDER/arrived when the command line's modules are about to be imported, then waits for
FOLDER/go, which somebody makes.
"""

import os
import sys
import time
from pathlib import Path

from mpifed.cli.entry import main

folder, victim = Path(sys.argv[1]), sys.argv[2]


class Slow:
    """Python asks it for every module that is not there yet."""

    @staticmethod
    def find_spec(name, *_):
        if name == "mpifed.cli.main":
            (folder / "arrived").touch()
            while not (folder / "go").exists():
                time.sleep(0.01)


if (
    next((os.environ[name] for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK") if name in os.environ), "0")
    == victim
):
    sys.meta_path.insert(0, Slow)
sys.argv[1:] = sys.argv[3:]
main()
