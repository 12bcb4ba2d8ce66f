"""The result of a run: returned by ``mpifed.run``, read from files, and shown as text or HTML."""

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

from mpifed.base.errors import ConfigError, expect_extra
from mpifed.base.paths import expand_home
from mpifed.config.job import Config
from mpifed.config.plugins import create, expect_same_sources, find_class
from mpifed.core.metrics import Details
from mpifed.core.problem import network_parameters, user_point
from mpifed.core.records import Blocks
from mpifed.parallel.comm import SerialComm, broadcast_text
from mpifed.running.recorder import Recorder
from mpifed.simulation.simulation import Simulation
from mpifed.storage import results
from mpifed.storage.files import RUN_FILE
from mpifed.storage.results import End, class_name

__all__ = ["Result", "broadcast", "from_files", "load"]

if TYPE_CHECKING:
    import pandas as pd

#: Shown in the text and the HTML: at most this number of metrics, these costs, and a curve of this size in
#: pixels.
MAX_METRICS = 12
SHOWN_COSTS = ("round", "oracle_calls", "bytes_up", "bytes_down", "seconds")
WIDTH, HEIGHT = 320, 80


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """The result of a run, on every rank. ``metrics``, ``history``, ``costs`` and ``iterates`` are complete
    on rank 0.

    Attributes:
        config: the resolved settings, a table that ``mpifed.run`` accepts.
        point: the output point, one flat tensor per block of the problem, whatever the method: x and y of a
            minimax problem, z of an operator.
        parameters: the output point by block and name of the parameter: ``parameters["x"]["w"]``.
        metrics: metrics of the output point.
        history: values of each metric by name, with ``round``.
        costs: cumulative costs by name, ``[R + 1]``.
        iterates: with ``record``: averaged iterates of rounds 1 to R by block, ``[R, d]``.
        round: the round after which the run had the point.
        network: block and name in ``parameters`` of the network's parameters, by name in the network.
        end: why the run ended; ``None`` if it is still running or has crashed.
        path: the results file.
        infeasible: distance of the first evaluated infeasible point, as a sentence; "" without one.
        details: details of the evaluation of the output point, for :attr:`confusion` and :attr:`clients`.
    """

    config: dict
    point: dict[str, torch.Tensor]
    parameters: dict[str, dict[str, torch.Tensor]]
    metrics: dict[str, float]
    history: dict[str, list[float]]
    costs: dict[str, np.ndarray]
    iterates: dict[str, np.ndarray]
    round: int
    network: dict[str, tuple[str, str]]
    end: End | None
    path: Path
    details: Details = Details()
    infeasible: str = ""
    _model: Any = field(default=None, repr=False)
    _best: results.BestPoint | None = field(default=None, repr=False)

    def __fspath__(self) -> str:
        """Return the results file: a result can be passed wherever runs are read."""
        return str(self.path)

    def __repr__(self) -> str:
        return "\n".join([_heading(self), *(f"  {name:8} {text}" for name, text in _lines(self))])

    def _repr_html_(self) -> str:
        rows = (f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in _lines(self))
        return f"<p><b>{escape(_heading(self))}</b></p><table>{''.join(rows)}</table>{_curve(self)}"

    @property
    def confusion(self) -> pd.DataFrame | None:
        """Number of test samples by true (rows) and predicted class at the output point.

        ``None`` if the problem is no classification, or has more than 1,000 classes.
        """
        expect_extra("plots", "data frames")
        import pandas as pd  # slow to import

        counts, classes = self.details.confusion, self.details.classes
        if counts is None:
            return None
        return pd.DataFrame(counts, pd.Index(classes, name="class"), pd.Index(classes, name="predicted"))

    @property
    def clients(self) -> pd.DataFrame:
        """Metrics of each client (rows) at the output point, with ``run.evaluate_on = ["clients"]``."""
        expect_extra("plots", "data frames")
        import pandas as pd

        table = pd.DataFrame(self.details.clients)
        return table.rename_axis("client")

    @property
    def stopped(self) -> str:
        """Why the run ended, as a sentence; "" while it runs."""
        return self.end.sentence if self.end else ""

    @property
    def unfinished(self) -> bool:
        """Whether the run continues if it is started again."""
        return self.end is None or self.end.kind == "signal"

    @property
    def best(self) -> Result | None:
        """The same run with its best evaluated point as the point, by ``run.keep_best``.

        ``metrics`` and ``round`` are those of this point. ``None`` without ``run.keep_best``, and on ranks
        other than 0.
        """
        if self._best is None:
            return None
        point = {block: torch.from_numpy(values) for block, values in self._best.flat.items()}
        return self.at(point, self._best.round)

    def at(self, point: dict[str, torch.Tensor], round: int) -> Result:
        """Return the result with the point that was evaluated after ``round`` as its point."""
        parameters, metrics = _by_name(point, Blocks(**_shapes(self.parameters))), {}
        if round in self.history["round"]:
            row = self.history["round"].index(round)
            metrics = {name: column[row] for name, column in self.history.items() if name != "round"}
        changes = {"point": point, "parameters": parameters, "metrics": metrics, "round": round}
        return replace(self, **changes, details=Details(), _best=None)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the state dict of the network, for torch's ``load_state_dict``.

        Buffers, frozen parameters and all names of shared parameters of a user-defined module are included.
        Other variables of the problem, such as a, b and α of DeepAUC, are in ``parameters``.

        Raises:
            ConfigError: as for :meth:`model`.
        """
        return {name: values.clone() for name, values in self.model().state_dict().items()}

    def model(self) -> torch.nn.Module:
        """Return the network with the weights of the output point, on the CPU and in evaluation mode.

        The module is of the user-defined class, or of a class that calls the package's network. It maps
        samples of the problem's data to outputs ``[b, outputs]``.

        Raises:
            ConfigError: the problem has no network, or its source file has changed since the run.
        """
        if not self.network:
            blocks = {block: list(named) for block, named in self.parameters.items()}
            raise ConfigError(
                f"{class_name(self.config, 'problem')} has no neural network, so there are no weights; its "
                f"variables are in result.parameters: {blocks or 'unnamed in version 0.1'}"
            )
        network = self._model or _model_of(self.config)
        places = self.network.items()
        return network.module(
            {name: self.parameters[block][parameter].cpu() for name, (block, parameter) in places}
        )

    def with_network(self, config: Config) -> Result:
        """Return the result with the network of ``config``: files contain no network passed as an object."""
        return replace(self, _model=getattr(config.problem, "model", None))

    @classmethod
    def from_run(
        cls, simulation: Simulation, recorder: Recorder, end: End, metrics: dict[str, float], folder: Path
    ) -> Result:
        """Return the result of a run that has ended in this process."""
        problem = simulation.config.problem
        point = user_point(problem, simulation.point(simulation.output).clone())
        return cls(
            config=simulation.config.table(),
            point=point,
            parameters=_by_name(point, problem.variables()),
            metrics=metrics,
            history=recorder.metrics,
            costs=recorder.columns(),
            iterates=recorder.recorded,
            round=simulation.round,
            network=network_parameters(problem),
            end=end,
            path=folder / RUN_FILE,
            details=simulation.details,
            infeasible=simulation.infeasible,
            _best=recorder.best_point,
        ).with_network(simulation.config)


def load(folder: str | Path) -> Result:
    """Read the result of a run from its folder. An unfinished run has the results of its last checkpoint.

    ``parameters`` is empty for files of versions that stored no names of parameters.

    Raises:
        ValueError: there is no results file, or it is damaged.
    """
    return from_files(*results.read(expand_home(folder)))


def from_files(run: results.RunData, output: results.RunOutput) -> Result:
    """Return the result of a run that has been read with its output point."""
    point = {block: torch.from_numpy(values) for block, values in output.point.flat.items()}
    return Result(
        config=run.config,
        point=point,
        parameters=_by_name(point, Blocks(**output.point.shapes)),
        metrics=output.metrics,
        history={
            name: values.tolist() for name, values in {"round": run.metric_rounds, **run.metrics}.items()
        },
        costs=run.costs,
        iterates=output.iterates,
        round=run.last_round,
        network=output.point.network,
        end=run.end,
        path=run.path,
        details=run.details,
        infeasible=run.infeasible,
        _best=output.best,
    )


def broadcast(result: Result | None, comm: SerialComm) -> Result:
    """Return on all ranks a result that rank 0 has read; on the others without history and metrics.
    Collective."""
    table: dict[str, Any] = {}
    if comm.rank == 0:
        table = {name: getattr(result, name) for name in ("config", "round", "network", "infeasible")}
        table |= {"end": astuple(result.end), "path": str(result.path), "shapes": _shapes(result.parameters)}
        table["vectors"] = {key: (str(flat.numpy().dtype), len(flat)) for key, flat in result.point.items()}
    table = json.loads(broadcast_text(comm, json.dumps(table)))
    point, shapes = {}, table.pop("shapes")
    for block, (dtype, size) in table.pop("vectors").items():
        values = result.point[block].numpy() if comm.rank == 0 else np.empty(size, dtype)
        comm.bcast_(values)
        point[block] = torch.from_numpy(values)
    if comm.rank == 0:
        return result
    table["network"] = {name: tuple(place) for name, place in table["network"].items()}
    table |= {"end": End(*table["end"]), "path": Path(table["path"])}
    table |= {name: {} for name in ("metrics", "history", "costs", "iterates")}
    return Result(point=point, parameters=_by_name(point, Blocks(**shapes)), **table)


def _model_of(config: dict):
    """Construct the network (``models.base.Network``) from stored settings without reading data.

    Raises:
        ConfigError: the source file of a user-defined problem or network has changed or is missing.
    """
    plugins = {
        part: plugin for part, plugin in config.get("plugins", {}).items() if part.startswith("problem")
    }
    expect_same_sources(config | {"plugins": plugins})
    settings = dict(config["problem"])
    return create(find_class(settings.pop("name"), "problem"), settings, "problem", {}).model


def _shapes(parameters: dict[str, dict[str, torch.Tensor]]) -> dict[str, dict[str, tuple[int, ...]]]:
    return {
        block: {name: tuple(values.shape) for name, values in named.items()}
        for block, named in parameters.items()
    }


def _by_name(point: dict[str, torch.Tensor], blocks: Blocks) -> dict[str, dict[str, torch.Tensor]]:
    """Return the named parameters of every block as views of ``point``."""
    return {block: blocks.unflatten(block, point[block]) for block in blocks}


def _heading(result: Result) -> str:
    names = [class_name(result.config, part) or part for part in ("algorithm", "problem")]
    ended = "; infeasible: ".join(filter(None, [result.stopped or "not finished", result.infeasible]))
    return f"{' on '.join(names)}: {ended}"


def _lines(result: Result) -> Iterator[tuple[str, str]]:
    """Yield names and texts: metrics of the output point, or the last metrics of an unfinished run, ..."""
    last = {name: values[-1] for name, values in result.history.items() if name != "round" and len(values)}
    metrics = [f"{name} {value:.4g}" for name, value in (result.metrics or last).items()]
    more = [f"and {len(metrics) - MAX_METRICS} more"] if len(metrics) > MAX_METRICS else []
    spent = {name: result.costs[name][-1] for name in SHOWN_COSTS if len(result.costs.get(name, ()))}
    costs = [
        f"{name.replace('_', ' ')} {format(value, '.3g' if name == 'seconds' else ',.0f')}"
        for name, value in spent.items()
    ]
    point = [f"{block} [{len(values)}]" for block, values in result.point.items()]
    for name, parts in {"metrics": metrics[:MAX_METRICS] + more, "costs": costs, "point": point}.items():
        if parts:
            yield name, ", ".join(parts)
    if (kept := result._best) and (best := result.best):
        yield "best", f"{kept.metric} {best.metrics.get(kept.metric, math.nan):.4g} after round {best.round}"
    yield "file", str(result.path)


def _curve(result: Result) -> str:
    """Return an SVG of the first metric by round; "" if it has fewer than two finite values."""
    name = next((name for name in result.history if name != "round"), "round")
    pairs = zip(result.history.get("round", ()), result.history.get(name, ()))
    finite = [(number, value) for number, value in pairs if math.isfinite(value)]
    if len(finite) < 2:
        return ""
    rounds, values = zip(*finite)
    points = " ".join(
        f"{x:.1f},{HEIGHT - y:.1f}" for x, y in zip(_rescale(WIDTH, rounds), _rescale(HEIGHT, values))
    )
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="-2 -2 {WIDTH + 4} {HEIGHT + 4}" role="img">'
        f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.5"/></svg>'
        f"<p>{escape(name)}: {min(values):.4g} to {max(values):.4g}, rounds {rounds[0]} to {rounds[-1]}</p>"
    )


def _rescale(size: float, values: Sequence[float]) -> list[float]:
    """Scale values to 0 .. ``size``. Halving them first avoids overflow."""
    low, span = min(values) / 2, max(values) / 2 - min(values) / 2
    return [size * ((value / 2 - low) / span) if span else size / 2 for value in values]
