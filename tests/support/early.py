"""mpifed's command line, paused while it loads: early.py FOLDER RANK ARGUMENTS OF mpifed

The given rank creates FOLDER/arrived before it imports the modules of the command line, then waits until
FOLDER/go exists.
"""

import os
import sys
import time
from pathlib import Path

from mpifed.__main__ import main

folder, victim = Path(sys.argv[1]), sys.argv[2]


class Slow:
    """An import hook that delays the import of the command line."""

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
