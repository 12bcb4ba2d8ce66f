"""The assignment of runs to the elements of a Slurm job array, as recorded in the batch script.

The script that ``mpifed launch`` writes into a folder of results has one comment per element, for example
``# runs 3: ["seed=0", "seed=1"]``, with the names of folders next to the script.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

from mpifed.storage.files import open_file

__all__ = ["HEAD", "SCRIPT", "assigned_runs", "is_script", "assignment_lines"]

#: The name of the script in a folder of results.
SCRIPT = "job.sbatch"
#: Maximum size of a script.
MAX_BYTES = 2**26
#: First characters of every script; a file without them is not replaced.
HEAD = "#!/bin/bash\n# mpifed launch "
_ASSIGNMENT = re.compile(r"# runs (\d+): (\[.*\])")


def assignment_lines(runs_by_element: Sequence[Sequence[str]]) -> list[str]:
    """Return comment lines in ASCII with the runs of each element, as names of folders next to the script."""
    return [f"# runs {number}: {json.dumps(list(names))}" for number, names in enumerate(runs_by_element)]


def is_script(file: Path) -> bool:
    """Whether ``mpifed launch`` has written a file."""
    return _text(file).startswith(HEAD)


def assigned_runs(script: Path) -> list[tuple[int, Path]]:
    """Return the element and the folder of every run in a script; [] for any other or unreadable file."""
    text, found = _text(script), []
    for match in _ASSIGNMENT.finditer(text) if text.startswith(HEAD) else ():
        with contextlib.suppress(ValueError):
            names = json.loads(match[2])
            found += [(int(match[1]), script.parent / name) for name in names if isinstance(name, str)]
    return found


def _text(script: Path) -> str:
    try:
        with open_file(script, MAX_BYTES) as file:
            return file.read().decode(errors="replace")
    except OSError:
        return ""
