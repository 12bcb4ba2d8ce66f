"""Which runs the elements of a job array execute, as recorded in the batch script next to them.

The script that ``mpifed launch`` writes into a folder of results has a comment for each element, ``# runs
3:`` and a JSON list of names of folders, which are searched next to the script.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

__all__ = ["HEAD", "SCRIPT", "elements", "is_script", "share_lines"]

#: The name of a script that is written into a folder of results.
SCRIPT = "job.sbatch"
#: How every script begins; a file that begins otherwise is not replaced.
HEAD = "#!/bin/bash\n# mpifed launch "
_SHARE = re.compile(r"# runs (\d+): (\[.*\])")


def share_lines(shares: Sequence[Sequence[str]]) -> list[str]:
    """The comments of a script with the runs of its elements: names of folders next to it, in ASCII."""
    return [f"# runs {number}: {json.dumps(list(names))}" for number, names in enumerate(shares)]


def is_script(file: Path) -> bool:
    """Whether ``mpifed launch`` has written a file."""
    return _text(file).startswith(HEAD)


def elements(script: Path) -> list[tuple[int, Path]]:
    """Element and folder of every run that a script names; none of a file that ``mpifed launch`` has not
    written, or that cannot be read.
    """
    text, found = _text(script), []
    for match in _SHARE.finditer(text) if text.startswith(HEAD) else ():
        with contextlib.suppress(ValueError):
            names = json.loads(match[2])
            found += [(int(match[1]), script.parent / name) for name in names if isinstance(name, str)]
    return found


def _text(script: Path) -> str:
    """What a script holds, "" where it cannot be read."""
    try:
        return script.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
