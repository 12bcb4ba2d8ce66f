"""Setup of a simulation: the problem is prepared and checked, initial weights are read, clients are placed.

Ranks must have read the same data files and have the same user-defined objects, and a resumed run must read
the data of the original run. Ranks compare the contents of files, not their paths: copies on each node are as
good as one shared folder.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mpifed.base.data_files import digest, expect_regular
from mpifed.base.errors import (
    ConfigError,
    format_ranges,
    join_lines,
    message_of,
    truncate,
    user_code_errors,
)
from mpifed.base.plugins import plugins_of
from mpifed.base.settings import title
from mpifed.core.participation import Participation, Weighted
from mpifed.core.problem import DataFile, Problem, as_family, data_read, user_problem, with_network_weights
from mpifed.core.streams import seeded_globals
from mpifed.core.validation import check_problem
from mpifed.parallel.comm import (
    CollectiveError,
    SerialComm,
    broadcast_text,
    collective_errors,
    raise_if_any,
    same_on_all_ranks,
)
from mpifed.parallel.devices import choose_device, ranks_on
from mpifed.parallel.placement import Placement
from mpifed.parallel.shared_memory import read_once_per_node
from mpifed.simulation.coordinator import Participants
from mpifed.simulation.settings import SimulationSettings
from mpifed.simulation.state import expect_memory

__all__ = [
    "InitialWeights", "agree_on_data", "data_change", "default_dtype", "digests", "expect_same",
    "files_from_table", "files_to_json", "place_clients", "prepare", "read_files", "resolve_reduction",
]  # fmt: skip

Files = dict[str, DataFile]

#: Maximum number of parameters named in a message.
NAMED = 5


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """A context for user code, in which torch's default dtype is ``dtype``."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def resolve_reduction(config: SimulationSettings, comm: SerialComm) -> SimulationSettings:
    """Return ``config`` with the default reduction for the ranks' devices, if none is set. Collective.

    Raises:
        CollectiveError: on all ranks: the devices are not available.
    """
    if config.run.reduction is not None:
        return config
    on_cpu = choose_device(comm, config.run.device, config.run.gpus).type == "cpu"
    # Compiled code for several clients gives results that depend on the size of the group.
    reproducible = config.run.compile == "none" or config.run.group == 1
    run = config.run.model_copy(update={"reduction": "exact" if on_cpu and reproducible else "fused"})
    return config.model_copy(update={"run": run})


def prepare(
    config: SimulationSettings, comm: SerialComm, dtype: torch.dtype, device: torch.device, files: Files
) -> Problem:
    """Return the problem in the method's family, prepared and checked. Collective, also if it fails.

    Args:
        files: files read in addition to the problem's data.

    Raises:
        CollectiveError: on all ranks: the problem violates its contract, or its data cannot be read or differ
            between ranks.
    """
    problem, error, sharing = config.problem, None, ranks_on(comm, device)
    name = type(problem).__name__
    agree_on_sources(comm, plugins_of("algorithm", config.algorithm) | plugins_of("problem", problem))
    with collective_errors(comm, ValueError, OSError), default_dtype(dtype), user_code_errors(name):
        if problem.footprint():  # otherwise the data determine the sizes of the blocks
            expect_memory(config, comm, device, sharing)
    reading = _reading(config, comm, dtype)
    try:
        with default_dtype(dtype), seeded_globals(config.seed), user_code_errors(name), reading:
            problem.prepare(config.seed, config.run.data_dir)
            expect_memory(config, comm, device, sharing)
            check_problem(
                problem,
                config.algorithm,
                dtype=dtype,
                device=device,
                batch_size=config.oracle.batch_size,
                weights=_weights(config.participation),
                seed=config.seed,
            )
    except (ValueError, OSError) as failure:
        error = failure
    try:
        agree_on_data(comm, files | problem.files, error and message_of(error))
    except CollectiveError as common:
        raise common from error
    return as_family(problem, config.algorithm.family)


def _reading(config: SimulationSettings, comm: SerialComm, dtype: torch.dtype) -> AbstractContextManager:
    """Return a context in which ``problem.read_once`` returns data that were read once per node. Collective.

    Every rank calls a user-defined function that returns a data set.

    Raises:
        CollectiveError: on all ranks: the data cannot be read.
    """
    problem = config.problem
    if type(problem).read_once is Problem.read_once or "problem.dataset" in plugins_of("problem", problem):
        return contextlib.nullcontext()

    def read() -> Any:
        with default_dtype(dtype), user_code_errors(type(problem).__name__):
            return problem.read_once(config.run.data_dir)

    return data_read(problem, read_once_per_node(comm, read))


def read_files(config: SimulationSettings) -> Files:
    """Return the data files that a simulation reads, by name, as read by this rank.

    Raises:
        ValueError, OSError: a file cannot be read.
    """
    problem = config.problem
    files = Participants(config.participation, config.seed, problem).files
    files = files | InitialWeights(config.initial).files
    with (
        default_dtype(getattr(torch, config.run.dtype)),
        seeded_globals(config.seed),
        user_code_errors(type(problem).__name__),
    ):
        problem.prepare(config.seed, config.run.data_dir)
    return files | problem.files


def _weights(participation: Participation) -> str:
    """Return "samples" if participation or averages depend on the clients' numbers of samples."""
    model = participation.availability
    return "samples" if isinstance(model, Weighted) and model.weights == "samples" else participation.weights


def place_clients(config: SimulationSettings, problem: Problem, comm: SerialComm) -> Placement:
    """Return the placement of the clients on the ranks. Collective.

    With ``run.placement = "balanced"``, the cost of a client is the number of rows that a full gradient
    evaluates. Minibatches have the same number of rows on all clients.

    Raises:
        CollectiveError: on all ranks: a client's number of samples cannot be determined.
    """
    even, source = Placement(problem.clients, comm.size), user_problem(problem)
    if config.run.placement == "even" or config.oracle.batch_size:
        return even
    with (
        collective_errors(comm, ValueError, OSError),
        user_code_errors(f"{type(source).__name__}.client_size"),
    ):
        if type(source).client_size is Problem.client_size and not len(source.client_data(0)):
            return even  # all clients generate the same number of samples
        rows = [source.client_size(client) for client in range(problem.clients)]
        return Placement.balanced(np.array(rows, dtype=np.int64).clip(min=1), comm.size)


class InitialWeights:
    """The network weights of the setting ``initial``, read from a safetensors file.

    Args:
        file: path of the file; ``None`` for the problem's own starting point.

    Attributes:
        files: the file and its digest, by name.

    Raises:
        OSError, ValueError: the file cannot be read, or is not a safetensors file.
    """

    def __init__(self, file: str | None):
        self.files: Files = {}
        self._file, self._tensors = truncate(file or ""), {}
        if file is None:
            return
        try:
            expect_regular(Path(file))
            content = Path(file).read_bytes()
        except OSError as error:
            raise OSError(f"initial: cannot read {self._file}: {error.strerror}") from None
        self._tensors = _tensors(self._file, content)
        self.files["initial"] = DataFile(file, digest([content]))

    def expect_fit(self, problem: Problem, given: Problem) -> None:
        """Compare the weights with the network of a prepared problem.

        Args:
            given: the problem of the settings, before its conversion to the method's family.

        Raises:
            ConfigError: the problem has no network, or names, shapes, dtypes or values do not fit; one line
                per error.
        """
        if not self._file:
            return
        if not problem.network:
            raise ConfigError(
                f"initial = {self._file!r}: {title(given)} has no network that could start from weights: "
                "leave initial out"
            )
        errors = list(self._errors(problem.network)) or list(self._other_errors(problem.network, given))
        if errors:
            raise ConfigError(join_lines(errors, lambda error: f"initial: {error}"))

    def _errors(self, network: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
        """Yield errors of the network's parameters."""
        tensors = self._tensors
        if missing := [name for name in network if name not in tensors]:
            others = [name for name in tensors if name not in network]
            yield (
                f"{self._file} lacks {_names(missing)} of the network"
                + (f", and has {_names(others)} instead" if others else "")
            )
        for name in (name for name in network if name in tensors):
            if tensors[name].shape != torch.Size(network[name]):
                found = list(tensors[name].shape)
                yield f"{name!r} has the shape {found} in {self._file}, expected {list(network[name])}"
            elif not tensors[name].is_floating_point():
                dtype = str(tensors[name].dtype).removeprefix("torch.")
                yield f"{name!r} has the dtype {dtype} in {self._file}, expected floating-point numbers"
            elif not torch.isfinite(tensors[name]).all():
                yield f"{name!r} has values in {self._file} that are not finite"

    def _other_errors(self, network: Mapping[str, tuple[int, ...]], given: Problem) -> Iterator[str]:
        """Yield errors of tensors that are not parameters: they must equal the module's other state."""
        state = given.model.module({name: self._tensors[name] for name in network}).state_dict()
        others = {name: one for name, one in self._tensors.items() if name not in network}
        if unknown := [name for name in others if name not in state]:
            known = _names([*network])
            yield f"{self._file} has {_names(unknown)}, which the network ({known}) does not have"
        for name in sorted(others.keys() & state.keys()):
            if not torch.equal(state[name].to(others[name]), others[name]):
                yield (
                    f"{name!r} has other values in {self._file} than in the network, where it is a buffer or "
                    "a frozen or shared parameter: construct the network with these values"
                )

    def start(self, problem: Problem, point: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the starting point with these weights."""
        weights = {name: self._tensors[name] for name in problem.network} if self._tensors else {}
        return with_network_weights(problem, point, weights) if weights else point


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(truncate(name) for name in names[:NAMED]) + more


def _tensors(file: str, content: bytes) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file by name, sorted."""
    from safetensors import SafetensorError  # imported only if there is a file
    from safetensors.torch import load

    try:
        return dict(sorted(load(content).items()))
    except (SafetensorError, KeyError, ValueError) as error:  # KeyError: a dtype that torch does not have
        raise ValueError(
            f"initial: {file} is not a safetensors file ({truncate(str(error))}): write one by `mpifed "
            "export` or safetensors.torch.save_file(module.state_dict(), FILE)"
        ) from None


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
        changed = [name for name, file in files.items() if before.get(name) != file.digest]
        remedy = "restore the data"
        if any(files[name].path.startswith("returned by ") for name in changed):
            remedy = "the function must return the same samples again, from the same files and seeds"
        raise CollectiveError(f"{difference}: {remedy}, or set run.overwrite=true to start a new run")


def data_change(before: dict[str, str], files: Files, since: str) -> str:
    """Return a sentence about the first file by name whose digest has changed, "" if there is none.

    Args:
        since: time of the earlier digests, in words.
    """
    after = digests(files)
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            expected, found = (
                f"SHA-256 {table[name][:12]}" if name in table else "no such file"
                for table in (before, after)
            )
            path = f" in {files[name].path}" if name in files else ""
            return f"data file {name} has changed since {since}: expected {expected}, found {found}{path}"
    return ""


def agree_on_data(comm: SerialComm, files: Files, error: str | None) -> None:
    """Check that all ranks have prepared the problem and have read the same data. Collective.

    Args:
        files: the files that this rank has read.
        error: the message of the error in this rank's preparation, if any.

    Raises:
        CollectiveError: on all ranks: the first error, or the first file that differs and the ranks that read
            each version.
    """
    raise_if_any(comm, error)
    _agree(
        comm, files, "data file {}", "copy one version to every node, or seed the functions that draw samples"
    )


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
    contents = json.dumps([(name, file.digest) for name, file in sorted(files.items())])
    if same_on_all_ranks(comm, contents):
        return
    tables = [json.loads(broadcast_text(comm, files_to_json(files), rank)) for rank in range(comm.size)]
    raise CollectiveError(f"{_difference(tables, subject)}: {remedy}")


def _difference(tables: list[dict], subject: str = "data file {}") -> str:
    """Describe the first file by name that differs between the ranks' ``tables``."""
    for name in sorted(set().union(*tables)):
        ranks_of: dict[str | None, list[int]] = {}
        for rank, table in enumerate(tables):
            ranks_of.setdefault(table.get(name, {}).get("digest"), []).append(rank)
        if len(ranks_of) > 1:
            break
    versions = []
    for version, ranks in ranks_of.items():
        read = f"read {version[:12]} ({tables[ranks[0]][name]['path']})" if version else "did not read it"
        versions.append(f"{'ranks' if len(ranks) > 1 else 'rank'} {format_ranges(ranks)} {read}")
    return f"{subject.format(name)} differs between ranks: {'; '.join(versions)}"
