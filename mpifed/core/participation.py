"""Availability of clients in a round, and the sampling of cohorts.

``[participation] availability = { name = "markov", p_off = 0.1, p_on = 0.3 }`` selects a model of the clients
that are *available*. If ``participation.cohort`` is set, that many of them are sampled, uniformly except with
``weighted``. Random numbers have addresses (seed, purpose, client, round), so all ranks sample the same
clients without communication, and checkpoints store no state. A trace is read from a CSV file.

Sampling S of N clients takes time and memory proportional to S: clients are drawn one after another, and
those that are not available are skipped. Without a cohort, and with ``weighted``, every client is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from mpifed.base.data_files import digest
from mpifed.base.errors import short_repr
from mpifed.base.settings import Section, UserPath, choice, hyperparameters, suggest
from mpifed.core.problem import DataFile
from mpifed.core.streams import Stream

__all__ = [
    "AVAILABILITY_MODELS", "Availability", "Available", "Bernoulli", "Chain", "Cyclic", "Markov",
    "Participation", "Probabilities", "Trace", "Uniform", "Weighted", "inclusion_probabilities", "per_client",
    "random_order", "read_trace", "systematic_sample",
]  # fmt: skip


def random_order(stream: Stream, n: int, first: int) -> Iterator[np.ndarray]:
    """Yield a random permutation of ``range(n)`` in parts; time and memory are proportional to what is used.

    Numbers are drawn with replacement, and repeated ones are dropped. When half of the numbers have been
    drawn, the others follow in one part.

    Args:
        first: number of draws for the first part; every further part has twice as many as the one before.
    """
    drawn, size = np.zeros(0, dtype=np.int64), first + first % 2  # two draws use a whole counter
    while 2 * len(drawn) < n:
        numbers = (stream.uniform(size)[0, 0] * n).astype(np.int64)
        _, positions = np.unique(numbers, return_index=True)
        part = numbers[np.sort(positions)]
        part = part[~np.isin(part, drawn)]
        drawn, size = np.concatenate([drawn, part]), 2 * size
        yield part
    others = np.setdiff1d(np.arange(n), drawn)
    yield others[np.argsort(stream.uniform(len(others))[0, 0], kind="stable")]


@dataclass(frozen=True)
class Available:
    """The clients that are available when a cohort is sampled.

    Attributes:
        candidates: numbers of clients, ascending.
        are_available: returns which of the given clients are available, bool; ``None`` if all candidates are.
    """

    candidates: range | np.ndarray
    are_available: Callable[[np.ndarray], np.ndarray] | None = None

    def all(self) -> np.ndarray:
        """Return all available clients, ascending."""
        return self._available(np.arange(len(self.candidates)))

    def sample(self, size: int, stream: Stream) -> np.ndarray:
        """Return ``size`` of the available clients, sampled uniformly without replacement, ascending.

        If fewer clients are available, all of them are returned.
        """
        if size >= len(self.candidates):
            return self.all()
        parts: list[np.ndarray] = []
        for positions in random_order(stream, len(self.candidates), size):
            parts.append(self._available(positions))
            if sum(map(len, parts)) >= size:
                break
        return np.sort(np.concatenate(parts)[:size])

    def _available(self, positions: np.ndarray) -> np.ndarray:
        """Return the available ones of the candidates at ``positions``."""
        some = self.candidates
        clients = some.start + positions if isinstance(some, range) else some[positions]
        return clients if self.are_available is None else clients[self.are_available(clients)]


class Chain:
    """Two-state Markov chains, one per client: in round r, a client is on if u_r < P(on | previous state).

    The number u_r has an address. If it is outside the interval between P(on | on) and P(on | off), it
    determines the state without the previous one. The state of any round is therefore found by going back to
    the last such number, at most to round 1, and need not be stored in checkpoints.

    Args:
        p_off, p_on: probabilities of P(off | on) and P(on | off), ``[N]``.
        stationary: probabilities of being on in round 1, ``[N]``.
    """

    def __init__(self, seed: int, p_off: np.ndarray, p_on: np.ndarray, stationary: np.ndarray):
        self._seed, self._on, self._off, self._first = seed, p_on, p_off, stationary
        self._round, self._state = 0, np.zeros(0, dtype=bool)

    def _draws(self, clients: np.ndarray, r: int) -> np.ndarray:
        return Stream(self._seed, "markov", clients, r).uniform()[:, 0]

    def are_on(self, clients: np.ndarray, r: int) -> np.ndarray:
        """Return which of the ``clients`` are on in round ``r``, bool.

        If all clients are asked for in one round after another, each state follows from the one before.
        """
        if len(clients) < len(self._on):
            return self._go_back(clients, r)
        if r == self._round + 1 and self._round:
            self._state = self._draws(clients, r) < np.where(self._state, 1 - self._off, self._on)
        elif r != self._round:
            self._state = self._go_back(clients, r)
        self._round = r
        return self._state

    def _go_back(self, clients: np.ndarray, r: int) -> np.ndarray:
        """Compute the states of ``clients`` in round ``r`` without those of round ``r`` - 1."""
        state, undecided = np.zeros(len(clients), dtype=bool), np.arange(len(clients))
        for back in range(r):
            numbers = clients[undecided]
            draws, stay, on = self._draws(numbers, r - back), 1 - self._off[numbers], self._on[numbers]
            if back == r - 1:
                decided, value = np.ones(len(undecided), dtype=bool), draws < self._first[numbers]
            else:
                low, high = np.minimum(stay, on), np.maximum(stay, on)
                decided, value = (draws < low) | (draws >= high), draws < low
            flipped = (stay < on) & (back % 2 == 1)  # in each undecided round, such a chain changes its state
            state[undecided[decided]] = (value ^ flipped)[decided]
            undecided = undecided[~decided]
            if not len(undecided):
                break
        return state


def inclusion_probabilities(weights: np.ndarray, size: int) -> np.ndarray:
    """Return the probability of each client to be in a weighted sample of ``size`` clients, ``[N]``.

    The probabilities sum to ``size`` and are proportional to the weights, but at most 1.
    """
    certain = np.zeros(len(weights), dtype=bool)
    while True:
        rest = np.where(certain, 0.0, weights)
        left = size - int(certain.sum())
        probabilities = np.where(certain, 1.0, left * rest / rest.sum() if left else 0.0)
        if not (over := (probabilities >= 1) & ~certain).any():
            return probabilities
        certain |= over


def systematic_sample(probabilities: np.ndarray, order: np.ndarray, start: float) -> np.ndarray:
    """Return a systematic sample of clients, ascending.

    The clients' intervals, of the lengths ``probabilities``, are placed one after another. The sample
    consists of the clients whose intervals contain ``start``, ``start`` + 1, ...

    Args:
        probabilities: inclusion probabilities, ``[N]``.
        order: the clients in the order of their intervals.
        start: a number in (0, 1).
    """
    certain, order = np.flatnonzero(probabilities >= 1), order[probabilities[order] < 1]
    size = round(float(probabilities.sum())) - len(certain)
    ends = np.cumsum(probabilities[order])
    intervals = np.searchsorted(ends, start + np.arange(size), side="right")
    sampled = order[np.minimum(intervals, len(order) - 1)] if size else order[:0]
    return np.unique(np.concatenate([certain, sampled]))


def _numbers(value, expected: str, fits: Callable[[Any], bool]) -> float | tuple[float, ...]:
    """Validate a number, or a list of numbers, which becomes a tuple."""
    listed = isinstance(value, list | tuple | np.ndarray)
    values = list(value) if listed else [value]
    wrong = [x for x in values if not isinstance(x, Real) or isinstance(x, bool) or not fits(x)]
    if wrong or not values:
        raise ValueError(f"expected {expected}, got {short_repr(wrong[0] if wrong else value)}")
    return tuple(map(float, values)) if listed else float(value)


def _probabilities(value):
    return _numbers(value, "a probability from 0 to 1, or a list with one per client", lambda p: 0 <= p <= 1)


def _weights(value):
    if isinstance(value, str) and value == "samples":
        return value
    listed = isinstance(value, list | tuple | np.ndarray)
    expected = '"samples" or a list of positive weights, one per client'
    weights = _numbers(value, expected, lambda w: listed and 0 < w < np.inf)
    if isinstance(weights, tuple) and sum(weights) == np.inf:
        raise ValueError("expected weights with a finite sum")
    return weights


#: One probability for all clients, or one per client.
Probabilities = Annotated[
    float | tuple[float, ...],
    BeforeValidator(_probabilities),
    Field(title="probability, or list of probabilities per client"),
]


def per_client(values: float | tuple[float, ...], clients: int, name: str) -> np.ndarray:
    """Return one value per client, ``[N]``, or a 0-d array for one number, since N may be large.

    Args:
        name: name of the setting, for the error message.

    Raises:
        ValueError: the list does not have one value per client.
    """
    if isinstance(values, tuple) and len(values) != clients:
        raise ValueError(
            f"{name}: expected one number, or one per client for {clients} clients, got {len(values)}"
        )
    return np.asarray(values, dtype=np.float64)


class _AvailabilityModel:
    """Base class of availability models. By default all clients are available in every round.

    Attributes:
        unbiased: whether averages are weighted by the inverse of the inclusion probabilities.
    """

    unbiased = False

    def expected_fraction(self, clients: int) -> float:
        """Return the expected fraction of clients that are available.

        Raises:
            ValueError: the settings are invalid for this number of clients.
        """
        return 1.0

    def start(self, seed: int, clients: int) -> Callable[[int, int], Available]:
        """Return the function ``available(r, number)`` of a run, for cohort ``number`` of round ``r``."""
        return lambda r, number: Available(range(clients))


@hyperparameters
class Uniform(_AvailabilityModel):
    """All clients are available; the cohort is sampled uniformly without replacement."""


@hyperparameters
class Weighted(_AvailabilityModel):
    """All clients are available; the cohort is sampled without replacement by weight.

    Systematic sampling in a random order (Madow 1949): with a cohort of S, client k is sampled with
    probability min(1, c w_k), where c is such that the probabilities sum to S.
    """

    weights: Annotated[Literal["samples"] | tuple[float, ...], BeforeValidator(_weights)] = Field(
        "samples", description="weights, one per client, or the clients' numbers of samples"
    )
    unbiased: bool = Field(
        False, description="divide each client's weight in averages by its probability of being sampled"
    )

    def expected_fraction(self, clients):
        if self.weights != "samples":
            per_client(self.weights, clients, "participation.availability.weights")
        return 1.0


@hyperparameters
class Bernoulli(_AvailabilityModel):
    """Each client is available with a given probability, independently in each round."""

    probability: Probabilities = Field(description="probability that a client is available")
    unbiased: bool = Field(False, description="divide each client's weight in averages by its probability")

    def expected_fraction(self, clients):
        probabilities = self.probabilities(clients)
        if self.unbiased and not probabilities.all():
            raise ValueError(
                "participation.availability: unbiased needs probabilities above 0: a client that is never "
                "available has no influence"
            )
        return float(probabilities.mean())

    def probabilities(self, clients: int) -> np.ndarray:
        """Return the clients' probabilities, as :func:`per_client`."""
        return per_client(self.probability, clients, "participation.availability.probability")

    def start(self, seed, clients):
        probabilities = np.broadcast_to(self.probabilities(clients), (clients,))

        def available(r: int, number: int) -> Available:
            def are_available(some: np.ndarray) -> np.ndarray:
                draws = Stream(seed, "bernoulli", some, r, first=number).uniform()[:, 0]
                return draws < probabilities[some]

            return Available(range(clients), are_available)

        return available


@hyperparameters
class Cyclic(_AvailabilityModel):
    """One block of consecutive clients is available per round, in turn; a new cohort uses the next block."""

    blocks: int = Field(ge=1, description="number of blocks, whose sizes differ by at most one client")

    def expected_fraction(self, clients):
        if self.blocks > clients:
            raise ValueError(
                f"participation.availability.blocks: expected at most {clients}, one per client, "
                f"got {self.blocks}"
            )
        return 1 / self.blocks

    def start(self, seed, clients):
        edges = [block * clients // self.blocks for block in range(self.blocks + 1)]

        def available(r: int, number: int) -> Available:
            turn = (r - 1 + number) % self.blocks
            return Available(range(edges[turn], edges[turn + 1]))

        return available


@hyperparameters
class Markov(_AvailabilityModel):
    """A Markov chain per client, available or unavailable, that starts in its stationary distribution."""

    p_off: Probabilities = Field(description="probability that an available client becomes unavailable")
    p_on: Probabilities = Field(description="probability that an unavailable client becomes available")

    def expected_fraction(self, clients):
        return float(self.stationary(clients).mean())

    def transitions(self, clients: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the clients' ``p_off`` and ``p_on``, each as :func:`per_client`."""
        off = per_client(self.p_off, clients, "participation.availability.p_off")
        return off, per_client(self.p_on, clients, "participation.availability.p_on")

    def stationary(self, clients: int) -> np.ndarray:
        """Return the stationary probability that each client is on, as :func:`per_client`."""
        off, on = self.transitions(clients)
        if not (off + on).all():
            raise ValueError(
                "participation.availability: expected p_off or p_on above 0, got 0 and 0 for client "
                f"{int(np.argmin(off + on))}, whose Markov chain has no unique stationary distribution"
            )
        return on / (off + on)

    def start(self, seed, clients):
        probabilities = (*self.transitions(clients), self.stationary(clients))
        chain = Chain(seed, *(np.broadcast_to(p, (clients,)) for p in probabilities))
        return lambda r, number: Available(range(clients), lambda some: chain.are_on(some, r))


@hyperparameters
class Trace(_AvailabilityModel):
    """A file lists the available clients of each round, or of each cohort."""

    file: UserPath = Field(
        description="CSV file with the columns round (from 1) and client (from 0), or round, cohort (from 0) "
        "and client; rounds and cohorts that it omits have no available clients"
    )


#: Name in a job file → availability model.
AVAILABILITY_MODELS = {
    "uniform": Uniform,
    "weighted": Weighted,
    "bernoulli": Bernoulli,
    "cyclic": Cyclic,
    "markov": Markov,
    "trace": Trace,
}

#: An availability model by name, table or instance.
Availability: Any = choice("availability model", AVAILABILITY_MODELS)


class Participation(Section):
    """[participation]: which clients participate in a round, and their weights."""

    cohort: int | None = Field(
        None, ge=1, description="number of clients sampled per round; default: all clients"
    )
    weights: Literal["uniform", "samples"] = Field(
        "uniform", description="weights of the clients: equal, or proportional to their numbers of samples"
    )
    availability: Availability | None = Field(
        None,
        description="model of the availability of clients and of the sampling of cohorts; default: uniform",
    )
    oversample: int | None = Field(
        None,
        ge=1,
        description="number of clients that are contacted for a cohort; the first that respond form the "
        "cohort",
    )
    dropout: Probabilities | None = Field(
        None,
        description="probability that a sampled client drops out of a phase, or one probability per client",
    )

    @model_validator(mode="after")
    def _is_consistent(self):
        if self.oversample is not None and self.oversample < (self.cohort or self.oversample + 1):
            got = "none" if self.cohort is None else f"cohort = {self.cohort}"
            raise ValueError(
                f"oversample = {self.oversample} needs a cohort of at most {self.oversample}, got {got}"
            )
        if isinstance(self.availability, Weighted) and self.cohort is None:
            raise ValueError(
                "availability = 'weighted' samples a cohort: set participation.cohort, its number of clients"
            )
        others = {"oversample": self.oversample, "dropout": self.dropout}
        if self.availability and self.availability.unbiased and not isinstance(self.availability, Weighted):
            others["cohort"] = self.cohort
        given = [name for name, value in others.items() if value is not None]
        if self.availability and self.availability.unbiased and given:
            raise ValueError(
                "availability.unbiased needs the probability that a client reports, which is unknown with "
                f"{' and '.join(given)}: leave out one of these settings"
            )
        return self

    def expect_clients(self, clients: int) -> None:
        """Validate the settings for a number of clients.

        Raises:
            ValueError: the settings are invalid.
        """
        for name in ("cohort", "oversample"):
            value = getattr(self, name)
            if value is not None and value > clients:
                raise ValueError(f"participation.{name} = {value} is more than problem.clients = {clients}")
        self.expected_reports(clients)

    def partial_setting(self, clients: int) -> str:
        """Return the setting due to which participation is partial, as in a job file; "" if it is full."""
        model = self.availability
        if model and (model.expected_fraction(clients) < 1 or isinstance(model, Trace)):
            return f"participation.availability = {model.choice_name!r}"
        if self.dropout is not None and per_client(self.dropout, clients, "participation.dropout").any():
            return "participation.dropout"
        if self.cohort not in (None, clients):
            return f"participation.cohort = {self.cohort} of {clients}"
        return ""

    def expected_reports(self, clients: int) -> int:
        """Return the expected number of clients that report in a phase, at least 1.

        Raises:
            ValueError: the settings are invalid for this number of clients.
        """
        available = (self.availability.expected_fraction(clients) if self.availability else 1.0) * clients
        sampled = min(available, self.oversample or self.cohort or clients)
        reporting = sampled * (1 - per_client(self.dropout or 0.0, clients, "participation.dropout").mean())
        return max(1, round(min(reporting, self.cohort or clients)))


#: Columns of a trace with one row per round and client, and of one with a row per cohort and client.
COLUMNS = (("round", "client"), ("round", "cohort", "client"))
NUMBERS = {2: "two", 3: "three"}


def read_trace(file: str, clients: int, cohorts: int) -> tuple[Callable[[int, int], Available], DataFile]:
    """Read a trace: return the function ``available(r, number)``, and the file with its digest.

    Args:
        cohorts: number of cohorts per round of the method.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not a trace, or lists a client or cohort that does not exist.
    """
    path = Path(file)
    try:
        if path.exists() and not path.is_file():  # reading a device or a pipe might never end
            raise ValueError
        content = path.read_bytes()
        lines = content.decode("utf-8-sig").splitlines()
    except OSError as error:
        raise OSError(
            f"participation.availability: cannot read the trace {short_repr(file)}: {error.strerror}"
        ) from None
    except ValueError:
        raise ValueError(f"the trace {short_repr(file)} is not a text file: expected a CSV file") from None
    columns = _columns(file, lines[0] if lines else "")
    numbered_lines = [(number, line) for number, line in enumerate(lines[1:], 2) if line.strip()]
    if not numbered_lines:
        raise ValueError(f"the trace {short_repr(file)} has no rows: expected one row per round and client")
    rows = np.array(
        [_row(f"{file}, line {number}", columns, line, clients, cohorts) for number, line in numbered_lines]
    )
    order = np.lexsort(rows.T[::-1])
    rows = rows[order]
    duplicates = np.flatnonzero((rows[1:] == rows[:-1]).all(axis=1))
    if len(duplicates):
        (r, cohort, client), number = rows[duplicates[0]], numbered_lines[order[duplicates[0] + 1]][0]
        where = f"round {r}, cohort {cohort}" if "cohort" in columns else f"round {r}"
        raise ValueError(f"{file}, line {number}: duplicate entry: client {client}, {where}")
    keys, members = rows[:, 0] * cohorts + rows[:, 1], np.ascontiguousarray(rows[:, 2])

    def available(r: int, number: int) -> Available:
        key = r * cohorts + (number if "cohort" in columns else 0)
        return Available(members[slice(*np.searchsorted(keys, [key, key + 1]))])

    return available, DataFile(str(path.absolute()), digest([content]))


def _columns(file: str, line: str) -> tuple[str, ...]:
    """Parse the header of a trace."""
    names = tuple(name.strip().strip('"') for name in line.split(","))
    if names in COLUMNS:
        return names
    unknown = next((name for name in names if name not in COLUMNS[1]), "")
    hint = f", {suggest(unknown, COLUMNS[1])}" if unknown else ""
    raise ValueError(
        f"the trace {short_repr(file)} begins with {short_repr(line)}: expected the columns "
        f"{' or '.join(map(','.join, COLUMNS))}{hint}"
    )


def _row(where: str, columns: tuple[str, ...], line: str, clients: int, cohorts: int) -> tuple[int, int, int]:
    """Parse a row into round, cohort and client; the cohort is 0 if the file has no such column."""
    try:
        row = dict(zip(columns, map(int, line.split(",")), strict=True))
    except ValueError:
        raise ValueError(
            f"{where}: expected {NUMBERS[len(columns)]} integers, {','.join(columns)}, got {short_repr(line)}"
        ) from None
    r, cohort, client = row["round"], row.get("cohort", 0), row["client"]
    if not 1 <= r < 2**31:
        raise ValueError(f"{where}: rounds are numbered from 1, got {short_repr(r)}")
    if not 0 <= cohort < cohorts:
        several = "1 cohort, number 0" if cohorts == 1 else f"{cohorts} cohorts, numbered from 0"
        raise ValueError(f"{where}: a round of the method has {several}, got cohort {short_repr(cohort)}")
    if not 0 <= client < clients:
        raise ValueError(f"{where}: expected a client from 0 to {clients - 1}, got {short_repr(client)}")
    return r, cohort, client
