"""What a run has come to, as it returns it and as it is read back from its folder."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import torch

from mpifed.core.records import Blocks
from mpifed.parallel.comm import SerialComm, share
from mpifed.simulation.simulation import Simulation
from mpifed.storage import results
from mpifed.storage.format import RUN_FILE, End
from mpifed.storage.recorder import Recorder

__all__ = ["Result", "everywhere", "load"]


@dataclass(frozen=True, eq=False)
class Result:
    """What a run returns on every rank; the dictionaries but for the point are complete on rank 0.

    Attributes:
        config: the resolved settings, a table that ``mpifed.run`` takes again.
        point: the output point, one flat tensor a block.
        parameters: the same by block and parameter's name, each in its shape: ``parameters["x"]["w"]``.
        metrics: metrics of the output point.
        history: metric name → values, with ``round``.
        costs: cost name → cumulative values by round.
        iterates: with ``record``, block → averaged iterates of rounds 1 to R, ``[R, d]``.
        end: why the run ended; ``None`` for one read while it goes on, or after a crash.
        path: the results file.
    """

    config: dict
    point: dict[str, torch.Tensor]
    parameters: dict[str, dict[str, torch.Tensor]]
    metrics: dict[str, float]
    history: dict[str, list[float]]
    costs: dict[str, np.ndarray]
    iterates: dict[str, np.ndarray]
    end: End | None
    path: Path

    def __fspath__(self) -> str:
        """The results file: a result stands for it wherever runs are read."""
        return str(self.path)

    @property
    def stopped(self) -> str:
        """Why the run ended, in words; "" while it goes on."""
        return self.end.sentence if self.end else ""

    @property
    def unfinished(self) -> bool:
        """Whether the run continues when it is started again."""
        return self.end is None or self.end.kind == "signal"

    @classmethod
    def of(
        cls, simulation: Simulation, recorder: Recorder, end: End, metrics: dict[str, float], folder: Path
    ) -> Result:
        """The result of a run that is over in this process."""
        blocks = simulation.blocks
        point = {block: getattr(simulation.output, block).clone() for block in blocks}
        return cls(
            config=simulation.config.table(),
            point=point,
            parameters=_by_name(point, blocks),
            metrics=metrics,
            history=recorder.metrics,
            costs=recorder.columns(),
            iterates={block: recorder.table(block) for block in recorder.blocks},
            end=end,
            path=folder / RUN_FILE,
        )


def load(folder: str | Path) -> Result:
    """Read what a run has left in its folder: what :func:`mpifed.run` returned, or how far it has got.

    Files of versions that kept no names of parameters give no ``parameters``.

    Raises:
        ValueError: there is no results file, or it is damaged; says what was expected and found.
    """
    run, found = results.load(folder), results.outcome(folder)
    point = {block: torch.from_numpy(values) for block, values in found.point.items()}
    return Result(
        config=run.config,
        point=point,
        parameters=_by_name(point, Blocks(**found.shapes)),
        metrics=found.metrics,
        history={"round": run.metric_rounds.tolist()}
        | {name: values.tolist() for name, values in run.metrics.items()},
        costs=run.costs,
        iterates=found.iterates,
        end=run.end,
        path=run.path,
    )


def everywhere(result: Result | None, comm: SerialComm) -> Result:
    """A result that rank 0 has read, on all ranks; what only rank 0 has of a run stays there. Collective."""
    if comm.rank == 0:
        blocks = {
            block: [
                str(values.numpy().dtype),
                len(values),
                {name: list(part.shape) for name, part in named.items()},
            ]
            for (block, values), named in zip(result.point.items(), result.parameters.values())
        }
        known = {
            "config": result.config,
            "end": astuple(result.end),
            "path": str(result.path),
            "blocks": blocks,
        }
    known = json.loads(share(comm, json.dumps(known) if comm.rank == 0 else None))
    point = {}
    for block, (dtype, size, _) in known["blocks"].items():
        values = result.point[block].numpy() if comm.rank == 0 else np.empty(size, dtype)
        comm.bcast_(values)
        point[block] = torch.from_numpy(values)
    if comm.rank == 0:
        return result
    shapes = Blocks(**{block: shapes for block, (_, _, shapes) in known["blocks"].items()})
    return Result(
        config=known["config"],
        point=point,
        parameters=_by_name(point, shapes),
        metrics={},
        history={},
        costs={},
        iterates={},
        end=End(*known["end"]),
        path=Path(known["path"]),
    )


def _by_name(point: dict[str, torch.Tensor], blocks: Blocks) -> dict[str, dict[str, torch.Tensor]]:
    """The named parameters of every block as views of ``point``."""
    return {block: blocks.unflatten(block, point[block]) for block in blocks}
