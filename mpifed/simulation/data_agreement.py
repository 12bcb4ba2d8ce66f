"""Comparison of the data and user-defined objects of the ranks, and of a resumed run with its original.

Ranks compare the contents of files, not their paths: copies on each node are as good as one shared folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mpifed.base.errors import format_ranges
from mpifed.core.device import as_tensor
from mpifed.core.problem import DataFile, Problem
from mpifed.parallel.comm import CollectiveError, SerialComm, texts_of_ranks

__all__ = [
    "Files", "agree_on_data", "agree_on_problem", "agree_on_sources", "data_change", "digests", "expect_same",
    "files_from_table", "files_to_json",
]  # fmt: skip

#: Remedy for values that depend on the order of hashes or of a folder.
ORDER = "sort sets and os.listdir, whose order differs between processes"
#: Data files by name.
Files = dict[str, DataFile]


def files_to_json(files: Files) -> str:
    """Return name → path and digest as JSON, sorted by name."""
    return json.dumps({name: file._asdict() for name, file in sorted(files.items())})


def files_from_table(table: dict) -> Files:
    """Return the files that :func:`files_to_json` has written, from the parsed JSON.

    Raises:
        ValueError: the table has another form.
    """
    try:
        return {name: DataFile(**file) for name, file in table.items()}
    except TypeError:
        raise ValueError(f"expected path and digest of every data file, found {str(table)[:80]}") from None


def digests(files: Files) -> dict[str, str]:
    """Return name → digest, as stored in checkpoints."""
    return {name: file.digest for name, file in sorted(files.items())}


def expect_same(before: dict[str, str], files: Files) -> None:
    """Compare the data of a resumed run with the digests in its checkpoint.

    Raises:
        CollectiveError: names the first file that differs; on all ranks, which have read the same data.
    """
    if difference := data_change(before, files, "the checkpoint was written"):
        changed = [file for name, file in files.items() if before.get(name) != file.digest]
        remedy = "restore the data"
        if any(file.path.startswith("returned by ") for file in changed):
            remedy = (
                "the function must return the same samples again, from the same files and seeds, and in the "
                f"same order ({ORDER})"
            )
        raise CollectiveError(f"{difference}: {remedy}, or set run.overwrite=true to start a new run")


def data_change(before: dict[str, str], files: Files, since: str) -> str:
    """Return a sentence about the first file by name whose digest has changed, "" if there is none.

    Args:
        since: time of the earlier digests, in words.
    """
    after = digests(files)
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            old, new = (
                f"SHA-256 {table[name][:12]}" if name in table else "no such file"
                for table in (before, after)
            )
            path = f" in {files[name].path}" if name in files else ""
            return f"data file {name} has changed since {since}: expected {old}, found {new}{path}"
    return ""


def agree_on_data(comm: SerialComm, files: Files) -> None:
    """Check that all ranks have read the same ``files``. Collective.

    Raises:
        CollectiveError: on all ranks: the first file that differs and the ranks that read each version.
    """
    remedy = f"copy one version to every node, or seed the functions that draw samples ({ORDER})"
    _agree(comm, files, "data file {}", remedy)


def agree_on_problem(comm: SerialComm, problem: Problem, values: Mapping[str, Sequence[Any]]) -> None:
    """Check that arrays that a user-defined problem has returned are the same on all ranks. Collective.

    Processors may round differently, so four digits of a weighted sum are compared.

    Args:
        values: arrays or tensors by the name of the function.

    Raises:
        CollectiveError: on all ranks: the first function whose values differ.
    """
    summaries = {}
    for function, arrays in values.items():
        flat = [as_tensor(array).double().flatten() for array in arrays]
        sums = [float(column @ torch.arange(len(column), dtype=torch.float64).cos()) for column in flat]
        text = " ".join(f"{value:.4g}" for value in sums)
        summaries[f"{type(problem).__name__}.{function}"] = DataFile("weighted sum of its values", text)
    _agree(comm, summaries, "{}", f"seed the random numbers of the problem ({ORDER})")


def agree_on_sources(comm: SerialComm, sources: Mapping[str, tuple[str, str]]) -> None:
    """Check that user-defined objects in the settings are the same on all ranks. Collective.

    Args:
        sources: name and digest of each user-defined object.

    Raises:
        CollectiveError: on all ranks: the first object that differs.
    """
    files = {place: DataFile(*source) for place, source in sources.items()}
    _agree(comm, files, "{}", "copy one version to every node, and seed the random numbers of objects")


def _agree(comm: SerialComm, files: Files, subject: str, remedy: str) -> None:
    tables = [*map(json.loads, texts_of_ranks(comm, files_to_json(files)))]
    if difference := _difference(tables, subject):
        raise CollectiveError(f"{difference}: {remedy}")


def _difference(tables: list[dict], subject: str = "data file {}") -> str:
    """Describe the first file by name that differs between the ranks' ``tables``; "" if none does."""
    for name in sorted(set().union(*tables)):
        ranks_of: dict[str | None, list[int]] = {}
        for rank, table in enumerate(tables):
            ranks_of.setdefault(table.get(name, {}).get("digest"), []).append(rank)
        if len(ranks_of) == 1:
            continue
        versions = []
        for version, ranks in ranks_of.items():
            read = f"read {version[:12]} ({tables[ranks[0]][name]['path']})" if version else "did not read it"
            versions.append(f"{'ranks' if len(ranks) > 1 else 'rank'} {format_ranges(ranks)} {read}")
        return f"{subject.format(name)} differs between ranks: {'; '.join(versions)}"
    return ""
