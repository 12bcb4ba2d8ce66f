"""Which data files a problem has read, and whether all ranks have read the same, before and after an
interruption.

Ranks compare what the files hold, not where they lie: copies on each node are as good as one shared folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import numpy as np

from mpifed.core.problem import DataFile
from mpifed.parallel.comm import CollectiveError, SerialComm, broadcast_text, raise_if_any

__all__ = ["agree_on_data", "agree_on_sources", "change", "digests", "expect_same", "from_table", "to_json"]

Files = dict[str, DataFile]


def to_json(files: Files) -> str:
    """Name → path and digest, as a JSON text with sorted names."""
    return json.dumps({name: file._asdict() for name, file in sorted(files.items())})


def from_table(table: dict) -> Files:
    """What :func:`to_json` has written, read back.

    Raises:
        ValueError: it is something else.
    """
    try:
        return {name: DataFile(**file) for name, file in table.items()}
    except TypeError:
        raise ValueError(f"expected path and digest of every data file, found {str(table)[:80]}") from None


def digests(files: Files) -> dict[str, str]:
    """Name → digest: what a checkpoint knows of the data."""
    return {name: file.digest for name, file in sorted(files.items())}


def expect_same(before: dict[str, str], files: Files) -> None:
    """Hold the data of a run that continues against those that it began with, by their digests.

    Raises:
        CollectiveError: the first file that differs. All ranks have read the same data, so that it is raised
            on all.
    """
    if found := change(before, files, "the checkpoint was written"):
        raise CollectiveError(f"{found}. Bring the data back, or set run.overwrite=true to start over")


def change(before: dict[str, str], files: Files, since: str) -> str:
    """The first file by name whose digest is another one than before, in a sentence; "" where there is none.

    Args:
        since: when it was as before, in words.
    """
    after = digests(files)
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            was, now = (
                f"SHA-256 {table[name][:12]}" if name in table else "no such file"
                for table in (before, after)
            )
            place = f" in {files[name].path}" if name in files else ""
            return f"data file {name} has changed since {since}: expected {was}, found {now}{place}"
    return ""


def agree_on_data(comm: SerialComm, files: Files, error: str | None) -> None:
    """Go on only if every rank could prepare its problem and all have read the same data. Collective.

    Args:
        files: what this rank has read.
        error: why this rank's preparation failed, ``None`` if it did not.

    Raises:
        CollectiveError: on all ranks, with the first error, or the first file that differs and the ranks that
            have it.
    """
    raise_if_any(comm, error)
    _agree(comm, files)


def agree_on_sources(comm: SerialComm, sources: Mapping[str, tuple[str, str]]) -> None:
    """Go on only if what is the user's is the same on all ranks. Collective.

    Args:
        sources: name and digest of each class, and of what else of the settings is the user's.

    Raises:
        CollectiveError: on all ranks, with the first one that differs.
    """
    files = {place: DataFile(*one) for place, one in sources.items()}
    _agree(comm, files, "{}", "copy one version to every node, and seed what an object is drawn from")


def _agree(comm: SerialComm, files: Files, *words: str) -> None:
    """Raises:
    CollectiveError: on all ranks, with the first file that differs and the ranks that have it.
    """
    contents = json.dumps([(name, file.digest) for name, file in sorted(files.items())])
    least = np.frombuffer(hashlib.sha256(contents.encode()).digest()[:8], np.int64).copy()
    most = least.copy()
    comm.allreduce_(least, "min")
    comm.allreduce_(most, "max")
    if least[0] != most[0]:
        tables = [json.loads(broadcast_text(comm, to_json(files), rank)) for rank in range(comm.size)]
        raise CollectiveError(_difference(tables, *words))


def _difference(
    tables: list[dict],
    what: str = "data file {}",
    remedy: str = "copy one version to every node, or let a function seed what it draws",
) -> str:
    """In words, the first file by name that some ranks' ``tables`` lack or hold with another digest."""
    for name in sorted(set().union(*tables)):
        holders: dict[str | None, list[int]] = {}
        for rank, table in enumerate(tables):
            holders.setdefault(table.get(name, {}).get("digest"), []).append(rank)
        if len(holders) > 1:
            break
    versions = []
    for digest, ranks in holders.items():
        read = f"read {digest[:12]} ({tables[ranks[0]][name]['path']})" if digest else "did not read it"
        versions.append(f"{_ranks(ranks)} {read}")
    return f"{what.format(name)} differs between ranks: {'; '.join(versions)}: {remedy}"


def _ranks(ranks: list[int]) -> str:
    """``rank 0`` or ``ranks 1-3, 7``."""
    breaks = [i for i in range(1, len(ranks)) if ranks[i] != ranks[i - 1] + 1]
    runs = [ranks[i:j] for i, j in zip([0, *breaks], [*breaks, len(ranks)])]
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return ("ranks " if len(ranks) > 1 else "rank ") + ", ".join(texts)
