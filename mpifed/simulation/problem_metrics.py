"""Metrics of the problem and of the user: on splits of held-out rows, and on the samples of each client.

Held-out rows are scored on all ranks. The first NaN of a metric is a warning, with the first row whose scores
are not finite, if any.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
import torch

from mpifed.base.errors import ContractError, short_repr, user_code_errors
from mpifed.base.log import info, warning
from mpifed.core.metrics import CLIENTS, PERSONAL, QUANTILES, VALIDATION, Column, Details
from mpifed.core.numerics import all_finite
from mpifed.core.problem import Problem, named_point, sizes_of, user_problem
from mpifed.core.ranking import RankingMetric
from mpifed.core.user_metrics import Metric
from mpifed.core.writes import same_values
from mpifed.parallel.comm import (
    SerialComm,
    broadcast_text,
    collective_errors,
    gather_rows,
    reduce_number,
    texts_of_ranks,
)
from mpifed.parallel.placement import Placement
from mpifed.simulation.evaluation import EvaluatedPoint, Evaluation
from mpifed.simulation.full_data import FullData, fine_tuned
from mpifed.simulation.options import Personalize

__all__ = [
    "ClientMetrics", "ScoredProblem", "SplitMetrics", "client_summary", "evaluation_details",
    "expect_metrics",
]  # fmt: skip

#: Number of held-out rows scored in one call. The calls are the same for every number of ranks.
SCORE_ROWS = 250
#: Maximum number of classes of a confusion matrix, which then has 8 MB.
MAX_CLASSES = 1000
#: Maximum number of characters of a metric's name.
MAX_NAME = 100


class ScoredProblem:
    """A problem with the metrics that the job names in addition to its own.

    Args:
        reserved: name → owner of measures that are no metrics.

    Raises:
        ContractError: there are no labelled samples for a user-defined metric.
    """

    def __init__(
        self, problem: Problem, user_metrics: Sequence[Metric | RankingMetric], reserved: Mapping[str, str]
    ):
        self.problem, self.user_metrics, self.reserved = problem, user_metrics, reserved
        self._maximised = {*problem.maximised}.union(*(metric.maximised for metric in user_metrics))
        self._undefined: set[Column] = set()  # metrics for whose NaN a warning was given
        name, labelled = type(user_problem(problem)).__name__, problem.test_labels() is not None
        for metric in user_metrics:
            if metric.of_scores and not (labelled and problem.test_rows):
                raise ContractError(
                    f"the metric {metric.title} is a function of (scores, labels), but {name} has no "
                    "labelled held-out samples: expected a function of (point)"
                )

    def column(self, name: str, split: str) -> Column:
        """Return the column of a metric.

        A problem without ``test_rows`` may compute metrics of test samples itself. Metrics to maximise, such
        as accuracies, count as such. All metrics in ``of_training`` use no held-out samples.
        """
        problem = self.problem
        held_out = problem.test_rows or name in problem.maximised
        if split == "test" and (name in problem.of_training or not held_out):
            split = ""
        return Column(name, split, maximised=name in self._maximised)

    def expect_splits(self, setting: str, remedy: str) -> None:
        """Check that the metrics are defined on other samples.

        Raises:
            ContractError: they are not; names the setting that needs them.
        """
        with user_code_errors(f"{type(self.problem).__name__}.tested_on"):
            supported = self.problem.tested_on(0) is not None
        if not supported:
            name = type(user_problem(self.problem)).__name__
            raise ContractError(
                f"{setting}: {name} does not define its metrics on other samples (tested_on): {remedy}"
            )

    def named(self, blocks: Sequence[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        """Return the parameters of each flat block by name."""
        variables = self.problem.variables()
        return [variables.unflatten(block, flat) for block, flat in zip(variables, blocks)]

    def values(
        self, problem: Problem, point, predictions: torch.Tensor | None, r: int, split: str | int
    ) -> dict[str, float]:
        """Return the metrics of the problem and of the user on a split or a client; metrics of the point
        alone belong to the test split."""
        function, clients = f"{type(problem).__name__}.metrics", [split] if isinstance(split, int) else []
        own = predictions if predictions is None else predictions.clone()  # metrics may sort them in place
        with user_code_errors(function, clients=clients), _unchanged(point, function) as given:
            returned = problem.metrics(*given, own)
        owners = {**self.reserved} if split == "test" else {}
        values = _validated(returned, function, r, owners)
        for metric in self.user_metrics:
            if metric.of_scores:
                labels = torch.from_numpy(problem.test_labels().copy())
                arguments = [problem.class_scores(predictions.clone()).clone(), labels]
            elif split == "test":
                arguments = [named_point(problem, point)]
            else:
                continue
            with user_code_errors(f"the metric {metric.title}", clients=clients):
                returned = metric.given(*arguments)
            returned = returned if isinstance(returned, Mapping) else {metric.title: returned}
            unknown = [name for name in metric.maximised if name not in returned]
            if unknown:
                raise ContractError(
                    f"{metric.title}.maximise refers to the metric {unknown[0]!r}: expected one of "
                    f"{', '.join(map(repr, returned))}"
                )
            values |= _validated(returned, f"the metric {metric.title}", r, owners)
        return values

    def warn_of_nan(self, values: Mapping[Column, float], r: int, where: str, row: int | None) -> None:
        """Warn about metrics that are NaN for the first time.

        Args:
            where: the rows of the scores, with "{}" for a number.
            row: the first row whose scores are not finite, if any.
        """
        new = [
            column for column, value in values.items() if math.isnan(value) and column not in self._undefined
        ]
        if not new:
            return
        self._undefined.update(new)
        cause = "it is undefined for these labels or this point, although all scores are finite"
        if row is not None:
            cause = f"the network's output for {where.format(row)} is not finite"
            cause += ", at the starting point: check the data of that row" if r == 0 else ""
        warning(f"nan after round {r} in {', '.join(column.name for column in new)}: {cause}")


class SplitMetrics(Evaluation):
    """Metrics on the test and validation splits, and on all training samples if the job asks for them.

    Raises:
        CollectiveError: the problem does not define its metrics on these samples.
    """

    def __init__(self, scored: ScoredProblem, comm: SerialComm, on: Collection[str]):
        self._scored, self._comm, problem = scored, comm, scored.problem
        with collective_errors(comm, ValueError):
            with user_code_errors(f"{type(problem).__name__}.tested_on"):
                names = [VALIDATION, *(["train"] if "train" in on else [])]
                others = {name: split for name in names if (split := problem.tested_on(name))}
            if on:
                scored.expect_splits(f"run.evaluate_on = {list(on)}", "expected []")
        self._splits = {"test": problem} | others

    @property
    def rows(self) -> dict[str, int]:  # type: ignore[override]
        return {split: problem.test_rows for split, problem in self._splits.items() if problem.test_rows}

    def evaluate(self, point: EvaluatedPoint) -> dict[Column, float]:
        named, values = self._scored.named(point.blocks), {}
        for split, problem in self._splits.items():
            predictions = _predict(problem, self._comm, named) if problem.test_rows else None
            with collective_errors(self._comm, ValueError):
                if self._comm.rank == 0:
                    by_name = self._scored.values(problem, named, predictions, point.round, split)
                    by_column = {self._scored.column(name, split): value for name, value in by_name.items()}
                    where, row = f"row {{}} of the {split} split", _non_finite_row(predictions)
                    self._scored.warn_of_nan(by_column, point.round, where, row)
                    values |= by_column
                    if split == "test":
                        self.details = evaluation_details(problem, predictions, point.round)
        return values


class ClientMetrics(Evaluation):
    """Metrics on the samples of each client: their mean, quantiles and the worst client.

    Each client is evaluated by the rank that hosts it, so the number of ranks changes no value.

    Args:
        placement: of the clients on the ranks.
        tuning: fine-tunes the point on each client's samples before it is evaluated, with these settings;
            ``None`` for the point itself.

    Raises:
        CollectiveError: the problem does not define its metrics on the clients' samples.
    """

    def __init__(
        self,
        scored: ScoredProblem,
        comm: SerialComm,
        placement: Placement,
        tuning: tuple[Personalize, FullData] | None = None,
    ):
        self._scored, self._comm, self._placement, self._tuning = scored, comm, placement, tuning
        self._split = PERSONAL if tuning else CLIENTS
        with collective_errors(comm, ValueError):
            if tuning:
                scored.expect_splits("[personalize]", "leave it out")

    @property
    def rows(self) -> dict[str, int]:  # type: ignore[override]
        problem = self._scored.problem
        return {"clients": int(sizes_of(problem, np.arange(problem.clients)).sum())}

    def evaluate(self, point: EvaluatedPoint) -> dict[Column, float]:
        table = self._table(point)
        self.details = Details(clients={column.of_clients: values for column, values in table.items()})
        return client_summary(table)

    def _point_of(self, position: int, point: EvaluatedPoint) -> list[dict[str, torch.Tensor]]:
        """Return the evaluated point of the client at a position of this rank."""
        if self._tuning is None:
            return self._scored.named(point.blocks)
        settings, full = self._tuning
        tuned = fine_tuned(full, settings, position, torch.cat([*point.blocks]), point.round)
        return self._scored.named(tuned.split([len(block) for block in point.blocks]))

    def _table(self, point: EvaluatedPoint) -> dict[Column, np.ndarray]:
        """Return every metric on each client's samples, ``[N]``, on all ranks. Collective.

        A metric that a client does not return is NaN.
        """
        with collective_errors(self._comm, ValueError):
            by_client, bad_rows = {}, []  # NaN: all scores of the client are finite
            for position, client in enumerate(self._placement.clients_of(self._comm.rank).tolist()):
                problem, named = self._scored.problem.tested_on(client), self._point_of(position, point)
                scores = _scores(problem, named, 0, problem.test_rows)
                by_client[client] = self._scored.values(problem, named, scores, point.round, client)
                row = _non_finite_row(scores)
                bad_rows.append(np.nan if row is None else row)
        names = json.dumps([*by_client[0]]) if 0 in by_client else None
        columns = json.loads(broadcast_text(self._comm, names, self._placement.rank_of(0)))
        others = json.dumps(sorted({*chain(*by_client.values())}.difference(columns)))  # nearly always []
        columns += sorted({*chain(*map(json.loads, texts_of_ranks(self._comm, others)))})
        hosted = [
            [*(values.get(name, np.nan) for name in columns), row]
            for values, row in zip(by_client.values(), bad_rows)
        ]
        table = np.array(hosted, dtype=np.float64).reshape(len(hosted), len(columns) + 1)
        *metrics, bad = gather_rows(self._comm, table, self._placement.counts).T
        by_column = {self._scored.column(name, self._split): of for name, of in zip(columns, metrics)}
        client = int((bad >= 0).argmax())
        if self._comm.rank == 0:
            row = None if np.isnan(bad[client]) else int(bad[client])
            of_client = {column: values[client] for column, values in by_column.items()}
            values = client_summary(by_column) if row is None else of_client
            where = f"row {{}} of the evaluated samples of client {client}"
            self._scored.warn_of_nan(values, point.round, where, row)
        return by_column


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
    """Return the scores of all held-out rows on rank 0, computed in blocks on all ranks. Collective."""
    total = problem.test_rows
    blocks = -(-total // SCORE_ROWS)
    edges = [min(total, rank * blocks // comm.size * SCORE_ROWS) for rank in range(comm.size + 1)]
    with collective_errors(comm, ValueError):
        local = _scores(problem, point, edges[comm.rank], edges[comm.rank + 1])
    width = reduce_number(comm, local[0].numel() if len(local) else 0, "max")
    rows = local.numpy().reshape(len(local), width)
    scores = torch.from_numpy(gather_rows(comm, rows, np.diff(edges).tolist(), root=0))
    return scores[:, 0] if width == 1 else scores


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


def _validated(values, function: str, r: int, owners: dict[str, str]) -> dict[str, float]:
    """Return the metrics that ``function`` has returned after round ``r``, as floats.

    Args:
        owners: name of each metric so far → what it belongs to; the new names are added.
    """
    try:
        metrics = expect_metrics(values)
        for name in metrics:
            if name in owners:
                raise ContractError(f"{owners[name]} has a metric {name!r} already: choose another name")
    except ContractError as error:
        raise ContractError(f"{function} after round {r}: {error}") from None
    owners |= dict.fromkeys(metrics, function)
    return metrics


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


def client_summary(table: Mapping[Column, np.ndarray]) -> dict[Column, float]:
    """Return the mean and quantiles over the clients, by linear interpolation, and the worst client's value.

    NaN, such as the AUC on samples of one class, is ignored.
    """
    summary = {}
    for column, values in table.items():
        defined = values[~np.isnan(values)]
        defined = defined if len(defined) else np.array([np.nan])
        quantiles = np.quantile(defined, np.array(QUANTILES) / 100)
        statistics = {"mean": defined.mean()} | {f"q{percent}": q for percent, q in zip(QUANTILES, quantiles)}
        statistics["worst"] = defined.min() if column.maximised else defined.max()
        summary |= {column._replace(statistic=name): float(value) for name, value in statistics.items()}
    return summary
