"""The result of a run: returned, read from its folder, and shown as text or HTML."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mpifed.base.errors import ConfigError
from mpifed.config.job import Config
from mpifed.config.plugins import expect_same_sources, find, make
from mpifed.core.metrics import Details
from mpifed.core.problem import network_parameters
from mpifed.core.records import Blocks
from mpifed.parallel.comm import SerialComm, broadcast_text
from mpifed.running.recorder import Recorder
from mpifed.simulation.simulation import Simulation
from mpifed.storage import results
from mpifed.storage.format import RUN_FILE, End

__all__ = ["Result", "everywhere", "load", "of_files"]

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
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
        network: where in ``parameters`` those of the problem's network are: name → block and name there.
        end: why the run ended; ``None`` if it is still running or has crashed.
        path: the results file.
        infeasible: how far the first evaluated point that was not in the problem's sets lay outside; "" for
            none.
        details: what the evaluation of the output point has found beside its metrics, for :attr:`confusion`
            and :attr:`clients`.
    """

    config: dict
    point: dict[str, torch.Tensor]
    parameters: dict[str, dict[str, torch.Tensor]]
    metrics: dict[str, float]
    history: dict[str, list[float]]
    costs: dict[str, np.ndarray]
    iterates: dict[str, np.ndarray]
    network: dict[str, tuple[str, str]]
    end: End | None
    path: Path
    details: Details = Details()
    infeasible: str = ""
    _model: Any = field(default=None, repr=False)

    def __fspath__(self) -> str:
        """The results file: a result stands for it wherever runs are read."""
        return str(self.path)

    def __repr__(self) -> str:
        return _as_text(self)

    def _repr_html_(self) -> str:
        return _as_html(self)

    @property
    def confusion(self) -> pd.DataFrame | None:
        """Test samples by class (rows) and the class that they are taken for at the output point; ``None``
        for a problem that is no classification."""
        import pandas as pd  # which takes a while

        counts, classes = self.details.confusion, self.details.classes
        if counts is None:
            return None
        return pd.DataFrame(counts, pd.Index(classes, name="class"), pd.Index(classes, name="taken for"))

    @property
    def clients(self) -> pd.DataFrame:
        """Metrics on the samples of each client at the output point, a row a client: with
        ``run.evaluate_on = ["clients"]``."""
        import pandas as pd

        table = pd.DataFrame(self.details.clients)
        return table.rename_axis("client")

    @property
    def stopped(self) -> str:
        """Why the run ended, in words; "" while it is running."""
        return self.end.sentence if self.end else ""

    @property
    def unfinished(self) -> bool:
        """Whether the run continues when it is started again."""
        return self.end is None or self.end.kind == "signal"

    def state_dict(self) -> dict[str, torch.Tensor]:
        """What torch's ``load_state_dict`` of the network takes: its parameters by name, in their shapes.

        Of a user's module also its buffers and frozen parameters, and one that layers share under each of its
        names. The problem's other variables, such as a, b and α of DeepAUC, are in ``parameters``.

        Raises:
            ConfigError: as for :meth:`model`.
        """
        return {name: values.clone() for name, values in self.model().state_dict().items()}

    def model(self) -> torch.nn.Module:
        """The network as a module in evaluation mode with the weights of the output point, on the CPU: of the
        user's own class, or of one that calls the package's network.

        It takes samples as the problem holds them, and returns what the problem makes its predictions of:
        ``[b, outputs]``.

        Raises:
            ConfigError: the problem has no network, or its source has changed since the run.
        """
        if not self.network:
            blocks = {block: list(named) for block, named in self.parameters.items()}
            raise ConfigError(
                f"{self.config['problem']['name'].rpartition(':')[2]} has no network whose weights could be "
                f"had: its variables are in result.parameters, {blocks or 'in version 0.1 without names'}"
            )
        network = self._model or _model_of(self.config)
        return network.module(
            {name: self.parameters[block][own].cpu() for name, (block, own) in self.network.items()}
        )

    def made_by(self, config: Config) -> Result:
        """The same result with the network of ``config``, the configuration of its run: a network that was
        given as an object is in no file."""
        return replace(self, _model=getattr(config.problem, "model", None))

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
            network=network_parameters(simulation.problem),
            end=end,
            path=folder / RUN_FILE,
            details=simulation.metrics.details,
            infeasible=simulation.infeasible,
        ).made_by(simulation.config)


def load(folder: str | Path) -> Result:
    """Read what a run has left in its folder: what :func:`mpifed.run` returned, or how far it has got.

    Files of versions that kept no names of parameters give no ``parameters``.

    Raises:
        ValueError: there is no results file, or it is damaged; says what was expected and found.
    """
    return of_files(*results.read(folder))


def of_files(run: results.RunData, found: results.Outcome) -> Result:
    """The result of a run that has been read with its output point."""
    point = {block: torch.from_numpy(values) for block, values in found.point.flat.items()}
    return Result(
        config=run.config,
        point=point,
        parameters=_by_name(point, Blocks(**found.point.shapes)),
        metrics=found.metrics,
        history={"round": run.metric_rounds.tolist()}
        | {name: values.tolist() for name, values in run.metrics.items()},
        costs=run.costs,
        iterates=found.iterates,
        network=found.point.network,
        end=run.end,
        path=run.path,
        details=run.details,
        infeasible=run.infeasible,
    )


def everywhere(result: Result | None, comm: SerialComm) -> Result:
    """A result that rank 0 has read, on all ranks; what only rank 0 has of a run stays there. Collective."""
    known = json.loads(broadcast_text(comm, json.dumps(_shared(result)) if comm.rank == 0 else None))
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
        network={name: tuple(place) for name, place in known["network"].items()},
        end=End(*known["end"]),
        path=Path(known["path"]),
        infeasible=known["infeasible"],
    )


def _shared(result: Result) -> dict:
    """What all ranks have of a result but for the numbers of its point."""
    blocks = {
        block: [
            str(values.numpy().dtype),
            len(values),
            {name: list(part.shape) for name, part in named.items()},
        ]
        for (block, values), named in zip(result.point.items(), result.parameters.values())
    }
    return {
        "config": result.config,
        "end": astuple(result.end),
        "path": str(result.path),
        "network": result.network,
        "infeasible": result.infeasible,
        "blocks": blocks,
    }


def _model_of(config: dict):
    """A new network (``models.base.Network``) from stored settings; the data are not read.

    Raises:
        ConfigError: the source of the user's problem or network has changed, or is not there.
    """
    own = {part: one for part, one in config.get("plugins", {}).items() if part.startswith("problem")}
    expect_same_sources(config | {"plugins": own})
    settings = dict(config["problem"])
    return make(find(settings.pop("name"), "problem"), settings, "problem").model


def _by_name(point: dict[str, torch.Tensor], blocks: Blocks) -> dict[str, dict[str, torch.Tensor]]:
    """The named parameters of every block as views of ``point``."""
    return {block: blocks.unflatten(block, point[block]) for block in blocks}


if TYPE_CHECKING:
    from mpifed.running.result import Result


#: Most metrics that are shown.
METRICS = 12
#: Costs that are shown.
COSTS = ("round", "oracle_calls", "bytes_up", "bytes_down", "seconds")
#: Width and height of a curve, in pixels.
WIDTH, HEIGHT = 320, 80


def _as_text(result: Result) -> str:
    """The result in a few lines; a rank that has only the point of it shows that."""
    return "\n".join([_heading(result), *(f"  {name:8} {text}" for name, text in _lines(result))])


def _as_html(result: Result) -> str:
    """The same as a table, with the curve of the first metric where there is one."""
    rows = (f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in _lines(result))
    return f"<p><b>{escape(_heading(result))}</b></p><table>{''.join(rows)}</table>{_curve(result)}"


def _heading(result: Result) -> str:
    names = [result.config.get(part, {}).get("name", part) for part in ("algorithm", "problem")]
    ended = "; infeasible: ".join(filter(None, [result.stopped or "not finished", result.infeasible]))
    return f"{' on '.join(name.rpartition(':')[2] for name in names)}: {ended}"


def _lines(result: Result) -> Iterator[tuple[str, str]]:
    """What is known, by name: the metrics of the point, or the last ones while there is none of it."""
    last = {name: values[-1] for name, values in result.history.items() if name != "round" and len(values)}
    metrics = [f"{name} {value:.4g}" for name, value in (result.metrics or last).items()]
    more = [f"and {len(metrics) - METRICS} more"] if len(metrics) > METRICS else []
    spent = {name: result.costs[name][-1] for name in COSTS if len(result.costs.get(name, ()))}
    costs = [
        f"{name.replace('_', ' ')} {format(value, '.3g' if name == 'seconds' else ',.0f')}"
        for name, value in spent.items()
    ]
    point = [f"{block} [{len(values)}]" for block, values in result.point.items()]
    for name, parts in {"metrics": metrics[:METRICS] + more, "costs": costs, "point": point}.items():
        if parts:
            yield name, ", ".join(parts)
    yield "file", str(result.path)


def _curve(result: Result) -> str:
    """The first metric against the rounds, "" where it has fewer than two finite values."""
    name = next((name for name in result.history if name != "round"), "round")
    pairs = zip(result.history.get("round", ()), result.history.get(name, ()))
    seen = [(at, value) for at, value in pairs if math.isfinite(value)]
    if len(seen) < 2:
        return ""
    rounds, values = zip(*seen)
    points = " ".join(f"{x:.1f},{HEIGHT - y:.1f}" for x, y in zip(_to(WIDTH, rounds), _to(HEIGHT, values)))
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="-2 -2 {WIDTH + 4} {HEIGHT + 4}" role="img">'
        f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.5"/></svg>'
        f"<p>{escape(name)}: {min(values):.4g} to {max(values):.4g}, rounds {rounds[0]} to {rounds[-1]}</p>"
    )


def _to(size: float, values: Sequence[float]) -> list[float]:
    """From 0 to ``size``. Halves are subtracted, since the difference of large numbers may overflow."""
    low, span = min(values) / 2, max(values) / 2 - min(values) / 2
    return [size * ((value / 2 - low) / span) if span else size / 2 for value in values]
