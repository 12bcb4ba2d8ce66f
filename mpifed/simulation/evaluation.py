"""Metrics of a problem at a point, excluded from the costs; held-out rows are scored on all ranks.

The first evaluation of a run determines the columns of its history: a metric that a later evaluation lacks is
recorded as NaN, and a metric that only a later evaluation has is omitted with a warning. The first NaN of a
metric is a warning, too, with the first row whose scores are not finite, if any.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
import torch

from mpifed.base.errors import ContractError, short_repr, user_code_errors
from mpifed.base.log import info, warning
from mpifed.core.algorithm import local_steps
from mpifed.core.metrics import CLIENTS, PERSONAL, QUANTILES, VALIDATION, Details, split_metric_name
from mpifed.core.numerics import all_finite
from mpifed.core.problem import Game, Operator, Problem, user_problem
from mpifed.core.ranking import RankingMetric
from mpifed.core.sets import Zero
from mpifed.core.user_metrics import Metric
from mpifed.core.writes import same_values
from mpifed.parallel.comm import SerialComm, broadcast_text, collective_errors, same_on_all_ranks
from mpifed.parallel.placement import Placement
from mpifed.simulation.personalization import FineTuning
from mpifed.simulation.settings import SimulationSettings

__all__ = [
    "Evaluator", "client_summary", "evaluation_interval", "expect_metrics", "infeasibility", "named_point",
    "projections", "evaluation_details", "user_point",
]  # fmt: skip

#: Number of held-out rows scored in one call. The calls are the same for every number of ranks.
SCORE_ROWS = 250
#: Maximum number of classes of a confusion matrix, which then has 8 MB.
MAX_CLASSES = 1000
#: Number of rounds between evaluations, and minimum number of evaluations after the start in a shorter run.
INTERVAL, POINTS = 10, 20
#: Maximum share of a run's time for evaluations; number of rows that are scored in the time of one row's
#: gradient (a forward pass, and a backward pass of twice its time).
SHARE, ROWS_PER_GRADIENT = 0.1, 3
#: Maximum number of characters of a metric's name.
MAX_NAME = 100


def evaluation_interval(config: SimulationSettings, rows: Mapping[str, int]) -> int:
    """Return the number of rounds between evaluations: as set, or by the numbers of rounds and samples.

    A run has at least :data:`POINTS` evaluations, one every :data:`INTERVAL` rounds if it is long, as far as
    they take at most :data:`SHARE` of its time. The costs are counted from the job alone and not measured,
    because the evaluated rounds are part of the results. Full gradients use all training rows, compared with
    which the held-out rows are few. Stationarity measures cost more than a round: they are evaluated every
    :data:`INTERVAL` rounds.

    Args:
        rows: number of rows that an evaluation scores, by split.
    """
    if config.run.eval_every:
        return config.run.eval_every
    shortest = INTERVAL if config.measures else min(INTERVAL, max(1, config.rounds // POINTS))
    clients, method = config.problem.clients, config.algorithm
    batch = config.oracle.batch_size or max(rows.get("train", 0), rows.get("clients", 0)) / clients
    batch *= config.problem.gradients_per_call
    tuned = clients * config.personalize.steps * batch if config.personalize else 0
    scored = sum(rows.values()) + ROWS_PER_GRADIENT * tuned
    cohort = config.participation.expected_reports(clients)
    gradients = cohort * local_steps(method) * method.calls_per_step * batch
    costly = math.ceil(scored / (ROWS_PER_GRADIENT * SHARE * gradients)) if gradients else 1
    return max(shortest, costly)


class Evaluator:
    """Evaluates the metrics of a problem on all splits of its data.

    Args:
        on: "train" to include all training samples, "clients" to include the samples of each client.
        user_metrics: the metrics that the job names, in addition to those of the problem.
        placement: of the clients on the ranks; required with "clients" and for :meth:`personalize`.

    Attributes:
        splits: split → the problem with the held-out rows of that split; "test" is the problem itself.
        names: names of the metrics in the history, on rank 0; ``None`` before the first evaluation.
        details: further results of the last evaluation, on rank 0.

    Raises:
        CollectiveError: the problem does not define its metrics on these samples, or has no labelled
            samples for a user-defined metric.
    """

    def __init__(
        self,
        problem: Problem,
        comm: SerialComm,
        on: Collection[str] = (),
        user_metrics: Sequence[Metric | RankingMetric] = (),
        placement: Placement | None = None,
    ):
        self.problem, self.comm, self.user_metrics, self.placement = problem, comm, user_metrics, placement
        self.clients, self.details = "clients" in on, Details()
        self.names: Sequence[str] | None = None
        self._tuning: FineTuning | None = None
        self._warned: set[str] = set()
        self._undefined: set[str] = set()  # metrics for whose NaN a warning was given
        train = ["train"] if "train" in on else []
        with collective_errors(comm, ValueError):
            with user_code_errors(f"{type(problem).__name__}.tested_on"):
                others = {name: problem.tested_on(name) for name in (VALIDATION, *train)}
            if on:
                self._expect_splits(f"run.evaluate_on = {list(on)}", "expected []")
            self._expect_labels()
        self.splits = {"test": problem} | {name: one for name, one in others.items() if one}

    def personalize(self, tuning: FineTuning) -> None:
        """Also evaluate each client's metrics at the point that the client has fine-tuned. Collective.

        Raises:
            CollectiveError: the problem does not define its metrics on the clients' samples.
        """
        with collective_errors(self.comm, ValueError):
            self._expect_splits("[personalize]", "leave it out")
        self._tuning = tuning

    def _expect_splits(self, setting: str, remedy: str) -> None:
        with user_code_errors(f"{type(self.problem).__name__}.tested_on"):
            supported = self.problem.tested_on(0) is not None
        if not supported:
            name = type(user_problem(self.problem)).__name__
            raise ContractError(
                f"{setting}: {name} does not define its metrics on other samples (tested_on): {remedy}"
            )

    def _expect_labels(self) -> None:
        name, labelled = type(user_problem(self.problem)).__name__, self.problem.test_labels() is not None
        for metric in self.user_metrics:
            if metric.of_scores and not (labelled and self.problem.test_rows):
                raise ContractError(
                    f"the metric {metric.title} is a function of (scores, labels), but {name} has no "
                    "labelled held-out samples: expected a function of (point)"
                )

    @property
    def maximised(self) -> frozenset[str]:
        """Names of the metrics to maximise."""
        of_rows = {*self.problem.maximised}.union(*(m.maximised for m in self.user_metrics if m.of_scores))
        of_point = {name for m in self.user_metrics if not m.of_scores for name in m.maximised}
        prefixes = [CLIENTS] * self.clients + [PERSONAL] * (self._tuning is not None)
        of_clients = {
            name
            for prefix in prefixes
            for metric in of_rows
            for name in (*_summary_names(prefix, metric), split_metric_name(prefix, metric))
        }
        return frozenset(of_point | of_clients | {_title(s, name) for s in self.splits for name in of_rows})

    @property
    def rows(self) -> dict[str, int]:
        """Number of scored samples by split."""
        rows = {split: problem.test_rows for split, problem in self.splits.items() if problem.test_rows}
        evaluated = range(self.problem.clients) if self.clients or self._tuning else ()
        total = sum(map(self.problem.client_size, evaluated))
        return rows | ({"clients": total} if total else {})

    def __call__(
        self, point: list[torch.Tensor], r: int, stationarity: dict[str, float] | None = None
    ) -> dict[str, float]:
        """Evaluate the metrics after round ``r``. Collective.

        Args:
            point: one flat vector per block.
            stationarity: stationarity measures to include.

        Returns:
            The metrics on rank 0, an empty dictionary on the other ranks.

        Raises:
            CollectiveError: ``metrics`` or a user-defined metric has failed, or has returned neither a number
                nor a dictionary of numbers.
        """
        blocks = self.problem.variables()
        named = [blocks.unflatten(block, flat) for block, flat in zip(blocks, point)]
        values: dict[str, float] = {}
        details = Details()
        for split, problem in self.splits.items():
            predictions = _predict(problem, self.comm, named) if problem.test_rows else None
            with collective_errors(self.comm, ValueError):
                if self.comm.rank == 0:
                    measures = stationarity or {} if split == "test" else {}
                    found = self._values(problem, named, predictions, r, split, measures)
                    found = {_title(split, name): value for name, value in found.items()}
                    self._warn_of_nan(
                        found, r, f"row {{}} of the {split} split", _non_finite_row(predictions)
                    )
                    values |= found
                    details = details if split != "test" else evaluation_details(problem, predictions, r)
        if self.clients:
            table = self._client_table(lambda position: named, r, CLIENTS)
            values |= client_summary(CLIENTS, table, self.maximised)
            details = details._replace(clients=table)
        if self._tuning:
            flat, tune = torch.cat(point), self._tuning

            def tuned(position: int) -> list:
                parts = tune(position, flat, r).split([*blocks.sizes.values()])
                return [blocks.unflatten(block, part) for block, part in zip(blocks, parts)]

            table = self._client_table(tuned, r, PERSONAL)
            values |= client_summary(PERSONAL, table, self.maximised)
            own = {split_metric_name(PERSONAL, name): column for name, column in table.items()}
            details = details._replace(clients=details.clients | own)
        with collective_errors(self.comm, ValueError):
            self.details = details
            return self._columns(values | (stationarity or {}), r) if self.comm.rank == 0 else {}

    def _warn_of_nan(self, values: Mapping[str, float], r: int, where: str, row: int | None) -> None:
        """Warn about metrics that are NaN for the first time.

        Args:
            where: the rows of the scores, with "{}" for a number.
            row: the first row whose scores are not finite, if any.
        """
        new = [name for name, value in values.items() if math.isnan(value) and name not in self._undefined]
        if not new:
            return
        self._undefined.update(new)
        cause = "it is undefined for these labels or this point, although all scores are finite"
        if row is not None:
            cause = f"the network's output for {where.format(row)} is not finite"
            cause += ", at the starting point: check the data of that row" if r == 0 else ""
        warning(f"nan after round {r} in {', '.join(new)}: {cause}")

    def _client_table(self, point_of: Callable[[int], list], r: int, prefix: str) -> dict[str, np.ndarray]:
        """Return every metric on each client's samples, ``[N]``, on all ranks. Collective.

        ``point_of`` returns the evaluated point of the client at a position of this rank.

        Each client is evaluated by the rank that hosts it, so the number of ranks changes no value. A metric
        that a client does not return is NaN.
        """
        assert self.placement is not None
        with collective_errors(self.comm, ValueError):
            by_client, rows = {}, {}
            for position, client in enumerate(self.placement.clients_of(self.comm.rank).tolist()):
                problem, point = self.problem.tested_on(client), point_of(position)
                scores = _scores(problem, point, 0, problem.test_rows)
                by_client[client] = self._values(problem, point, scores, r, client)
                rows[client] = _non_finite_row(scores)
        names = json.dumps([*by_client[0]]) if 0 in by_client else None
        columns = json.loads(broadcast_text(self.comm, names, int(self.placement.rank_of[0])))
        columns += self._union({*chain(*by_client.values())}.difference(columns))
        # The last column has the first row whose scores are not finite, NaN without such a row.
        table = np.zeros((self.placement.clients, len(columns) + 1))
        for client, values in by_client.items():
            row = np.nan if rows[client] is None else rows[client]
            table[client] = [*(values.get(name, np.nan) for name in columns), row]
        self.comm.allreduce_(table)  # all other ranks add 0 to a client's row
        by_name, client = dict(zip(columns, table.T)), int((table[:, -1] >= 0).argmax())
        if self.comm.rank == 0:
            values = {split_metric_name(prefix, name): column[client] for name, column in by_name.items()}
            found = None if np.isnan(table[client, -1]) else int(table[client, -1])
            values = values if found is not None else client_summary(prefix, by_name, self.maximised)
            self._warn_of_nan(values, r, f"row {{}} of the evaluated samples of client {client}", found)
        return by_name

    def _union(self, names: Iterable[str]) -> list[str]:
        """Return the names of all ranks, sorted. Collective."""
        text = json.dumps(sorted(names))
        if same_on_all_ranks(self.comm, text):  # nearly always: each rank has none
            return json.loads(text)
        texts = [broadcast_text(self.comm, text, rank) for rank in range(self.comm.size)]
        return sorted({*chain(*map(json.loads, texts))})

    def _values(
        self,
        problem: Problem,
        point,
        predictions: torch.Tensor | None,
        r: int,
        split: str | int,
        measures: Iterable[str] = (),
    ) -> dict[str, float]:
        """Return the metrics of the problem and of the user on a split or a client; metrics of the point
        alone belong to the test split. ``measures`` are names that the metrics must not have."""
        function, clients = f"{type(problem).__name__}.metrics", [split] if isinstance(split, int) else []
        own = predictions if predictions is None else predictions.clone()  # metrics may sort them in place
        with user_code_errors(function, clients=clients), _unchanged(point, function) as given:
            found = problem.metrics(*given, own)
        owners = {name: "oracle.clip" if name == "clipped" else "[measures]" for name in measures}
        values = _validated(found, function, r, owners)
        for metric in self.user_metrics:
            if metric.of_scores:
                labels = torch.from_numpy(problem.test_labels().copy())
                arguments = [problem.class_scores(predictions.clone()).clone(), labels]
            elif split == "test":
                arguments = [named_point(problem, point)]
            else:
                continue
            with user_code_errors(f"the metric {metric.title}", clients=clients):
                found = metric.given(*arguments)
            found = found if isinstance(found, Mapping) else {metric.title: found}
            unknown = [name for name in metric.maximised if name not in found]
            if unknown:
                raise ContractError(
                    f"{metric.title}.maximise refers to the metric {unknown[0]!r}: expected one of "
                    f"{', '.join(map(repr, found))}"
                )
            values |= _validated(found, f"the metric {metric.title}", r, owners)
        return values

    def _columns(self, values: dict[str, float], r: int) -> dict[str, float]:
        """Return the columns of the history."""
        self.names = list(values) if self.names is None else self.names
        new = [name for name in values if name not in {*self.names, *self._warned}]
        if new:
            self._warned.update(new)
            warning(
                f"{type(self.problem).__name__}.metrics returns {', '.join(map(repr, new))} after round {r}, "
                "but not in the first evaluation: only "
                f"{', '.join(map(repr, self.names)) or 'no metric'} can be recorded"
            )
        return {name: values.get(name, float("nan")) for name in self.names}


def _title(split: str, metric: str) -> str:
    """Return the name of a metric in the history."""
    return metric if split == "test" else split_metric_name(split, metric)


@torch.no_grad()
def _scores(problem: Problem, point, first: int, last: int) -> torch.Tensor:
    """Return the scores of the held-out rows ``first .. last - 1``; ``[0]`` without rows."""
    function = f"{type(problem).__name__}.predict"
    with user_code_errors(function), _unchanged(point, function) as given:
        parts = []
        for start in range(first, last, SCORE_ROWS):
            rows = slice(start, min(start + SCORE_ROWS, last))
            parts.append(problem.predict(*given, rows))
            if not parts[-1].dim() or len(parts[-1]) != rows.stop - start:
                raise ContractError(
                    f"{function} returned scores of shape {list(parts[-1].shape)} for "
                    f"{rows.stop - start} row(s): expected one score, or one row of scores, per row; "
                    ".squeeze() without an axis also removes the axis of a single row: use .squeeze(-1)"
                )
        return torch.cat(parts).cpu().double() if parts else torch.empty(0, dtype=torch.float64)


def _non_finite_row(scores: torch.Tensor | None) -> int | None:
    """Return the number of the first row whose scores are not finite; ``None`` if there is none."""
    if scores is None or all_finite(scores):
        return None
    return int((~torch.isfinite(scores)).reshape(len(scores), -1).any(dim=1).nonzero()[0])


@contextlib.contextmanager
def _unchanged(point: Sequence[dict[str, torch.Tensor]], function: str) -> Iterator[list[dict]]:
    """A context for a function of a user that must not change the point, of which it gets views.

    Raises:
        ContractError: it has changed a parameter, whose value has been restored.
    """
    before = [{name: value.clone() for name, value in named.items()} for named in point]
    yield [dict(named) for named in point]
    changed = []
    for named, old in zip(point, before):
        for name, value in named.items():
            if not same_values(value, old[name]):
                value.copy_(old[name])
                changed.append(name)
    if changed:
        raise ContractError(
            f"{function} changes the parameter {changed[0]!r} in place, but evaluations must not change the "
            "point: compute a new tensor (v = v - 1 rather than v -= 1 or v.sub_(1))"
        )


def _predict(problem: Problem, comm: SerialComm, point) -> torch.Tensor:
    """Return the scores of all held-out rows, computed in blocks distributed over the ranks. Collective."""
    total = problem.test_rows
    blocks = -(-total // SCORE_ROWS)
    edges = [min(total, rank * blocks // comm.size * SCORE_ROWS) for rank in range(comm.size + 1)]
    with collective_errors(comm, ValueError):
        local = _scores(problem, point, edges[comm.rank], edges[comm.rank + 1])
    width = np.array([local[0].numel() if len(local) else 0], dtype=np.int64)
    comm.allreduce_(width, "max")
    gathered = np.empty(total * int(width[0]))
    counts = [(right - left) * int(width[0]) for left, right in zip(edges, edges[1:])]
    comm.allgatherv(np.ascontiguousarray(local.numpy()).reshape(-1), gathered, counts)
    scores = torch.from_numpy(gathered).reshape(total, -1)
    return scores[:, 0] if width[0] == 1 else scores


def evaluation_details(problem: Problem, predictions: torch.Tensor | None, r: int) -> Details:
    """Return the confusion matrix of the problem's held-out samples, for at most :data:`MAX_CLASSES`.

    More classes are logged in round ``r = 0``.
    """
    with user_code_errors(f"{type(problem).__name__}.class_scores"):
        labels = problem.test_labels()
        if labels is None or predictions is None:
            return Details()
        scores = problem.class_scores(predictions.clone())
    if scores.dim() != 2 or not torch.isfinite(scores).all():
        return Details()
    K = scores.shape[1]
    if K > MAX_CLASSES:
        if r == 0:
            info(f"no confusion matrix is stored: expected at most {MAX_CLASSES:,} classes, found {K:,}")
        return Details()
    counts = np.bincount(labels * K + scores.argmax(dim=1).numpy(), minlength=K**2)
    names = user_problem(problem).class_names()
    return Details(counts.reshape(K, K), names if len(names) == K else [*map(str, range(K))])


def user_point(problem: Problem, point: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return views of a point (all blocks in one vector) by block of the user's problem: x, y of a game."""
    sizes = user_problem(problem).variables().sizes
    return dict(zip(sizes, point.split([*sizes.values()])))


def named_point(problem: Problem, point) -> dict[str, dict[str, torch.Tensor]]:
    """Return a copy of the point by block and parameter of the user's problem."""
    blocks = problem.blocks_of(*point) if isinstance(problem, Game) else dict(zip(problem.variables(), point))
    return {block: {name: value.clone() for name, value in named.items()} for block, named in blocks.items()}


def _validated(values, function: str, r: int, owners: dict[str, str]) -> dict[str, float]:
    """Return the metrics that ``function`` has returned after round ``r``, as floats.

    Args:
        owners: name of each metric so far → what it belongs to; the new names are added.
    """
    try:
        found = expect_metrics(values)
        for name in found:
            if name in owners:
                raise ContractError(f"{owners[name]} has a metric {name!r} already: choose another name")
    except ContractError as error:
        raise ContractError(f"{function} after round {r}: {error}") from None
    owners |= dict.fromkeys(found, function)
    return found


def expect_metrics(values) -> dict[str, float]:
    """Return the metrics that a function has returned, as floats.

    Raises:
        ContractError: the value is not a dictionary, a name cannot be stored in a results file, or a value is
            not a number; a sentence to be preceded by the function's name.
    """
    if not isinstance(values, Mapping):
        raise ContractError(f"expected a dictionary name → number, got {short_repr(values)}")
    for name in values:
        _expect_name(name)
    return {name: _number(name, value) for name, value in values.items()}


def _expect_name(name) -> None:
    if not isinstance(name, str):
        raise ContractError(f"expected strings as names of metrics, got {short_repr(name)}")
    errors = {
        "is empty, or begins or ends with a blank": name != name.strip() or not name,
        f"has {len(name)} characters, more than {MAX_NAME}": len(name) > MAX_NAME,
        "is the column of the rounds": name == "round",
        "is a path in the results file": "/" in name or name in (".", ".."),
        "has characters that cannot be printed": not name.isprintable(),
    }
    if error := next((error for error, applies in errors.items() if applies), None):
        raise ContractError(f"the metric {name[:MAX_NAME]!r} {error}: expected another name")


def _number(name: str, value) -> float:
    try:
        if isinstance(value, str | bytes):  # float() parses some of them
            raise TypeError
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # torch raises RuntimeErrors
        raise ContractError(f"the metric {name!r} is {short_repr(value)}, expected a number") from None


def client_summary(prefix: str, table: dict[str, np.ndarray], maximised: Collection[str]) -> dict[str, float]:
    """Return the mean and quantiles over the clients, by linear interpolation, and the worst client's value.

    NaN, such as the AUC on samples of one class, is ignored.
    """
    summary = {}
    for name, values in table.items():
        defined = values[~np.isnan(values)]
        defined = defined if len(defined) else np.array([np.nan])
        worst = defined.min() if name in maximised else defined.max()
        found = [defined.mean(), *np.quantile(defined, np.array(QUANTILES) / 100), worst]
        summary |= dict(zip(_summary_names(prefix, name), map(float, found)))
    return summary


def _summary_names(prefix: str, metric: str) -> list[str]:
    suffixes = ("mean", *(f"q{percent}" for percent in QUANTILES), "worst")
    return [split_metric_name(prefix, f"{metric}_{suffix}") for suffix in suffixes]


def projections(problem: Problem) -> list[tuple[str, Callable]]:
    """Return the blocks of the user's problem that have a set, with the projections onto the sets.

    The domain of φ is a set: the proximal map with weight 0 is the projection onto it.
    """
    source = user_problem(problem)
    sets = [(block, getattr(source.sets, block)) for block in source.sets]
    if isinstance(source, Operator) and not isinstance(source.phi, Zero):
        sets.append(("z", lambda z: source.phi(z, 0.0)))
    return sets


def infeasibility(problem: Problem, sets: Iterable[tuple[str, Callable]], point) -> str:
    """Describe the distance of the first block that is outside its set; "" if all blocks are inside.

    Rounding of projections and averages is of the order of ε times the norm of the block. The tolerance √ε is
    thousands of times larger, and smaller than a step out of a set. Non-finite points are reported elsewhere.

    Args:
        sets: from :func:`projections`.
        point: the blocks of ``variables()`` in order, by parameter.
    """
    blocks = named_point(problem, point)
    for block, project in sets:
        v = torch.cat([value.reshape(-1) for value in blocks[block].values()])
        distance = float((project(v) - v).double().norm())
        if distance > math.sqrt(torch.finfo(v.dtype).eps) * max(1.0, float(v.double().norm())):
            return f"{block} is {distance:.3g} away from its set"
    return ""
