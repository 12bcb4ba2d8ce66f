"""Availability of clients in a round, an option of every method, and the drawing of cohorts.

``[participation] availability = { name = "markov", p_off = 0.1, p_on = 0.3 }`` selects a model. It says which
clients are *available*; where ``participation.cohort`` is set, that many of them are drawn, uniformly except
under ``weighted``. Every draw has an address (seed, purpose, client, round), so all ranks draw the same
clients, nothing is communicated and no checkpoint stores any of it. A trace is read from a CSV file.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from mpifed.base.data_files import digest
from mpifed.base.errors import short_repr
from mpifed.base.settings import Section, choice, hyperparameters, suggest
from mpifed.core.problem import DataFile
from mpifed.core.streams import Stream

__all__ = [
    "AVAILABILITY_MODELS",
    "Availability",
    "Available",
    "Bernoulli",
    "Chain",
    "Cyclic",
    "Markov",
    "Participation",
    "Probabilities",
    "Trace",
    "Uniform",
    "Weighted",
    "inclusion",
    "one_each",
    "read_trace",
    "systematic",
]


class Chain:
    """Two-state Markov chains, one per client; round r's step is u_r < P(on | the state before), u_r by
    address.

    A u outside of the interval between the two probabilities decides by itself. So the state of any round
    follows from a walk back to the last such u, at most to round 1, and no checkpoint has to hold it.
    """

    def __init__(self, seed: int, off: np.ndarray, on: np.ndarray, stationary: np.ndarray):
        self._seed, self._on, self._stay, self._first = seed, on, 1 - off, stationary
        self._round, self._state = 0, np.zeros(len(on), dtype=bool)

    def _draws(self, clients: np.ndarray, r: int) -> np.ndarray:
        return Stream(self._seed, "markov", clients, r).uniform()[:, 0]

    def at(self, r: int) -> np.ndarray:
        """Which clients are on in round ``r``, bool ``[N]``."""
        if r == self._round + 1 and self._round:
            everyone = np.arange(len(self._on))
            self._state = self._draws(everyone, r) < np.where(self._state, self._stay, self._on)
        elif r != self._round:
            self._state = self._walk(r)
        self._round = r
        return self._state

    def _walk(self, r: int) -> np.ndarray:
        state, open_ = np.zeros(len(self._on), dtype=bool), np.arange(len(self._on))
        for back in range(r):
            draws, stay, on = self._draws(open_, r - back), self._stay[open_], self._on[open_]
            if back == r - 1:
                decided, value = np.ones(len(open_), dtype=bool), draws < self._first[open_]
            else:
                low, high = np.minimum(stay, on), np.maximum(stay, on)
                decided, value = (draws < low) | (draws >= high), draws < low
            turned = (stay < on) & (back % 2 == 1)  # undecided, such a chain takes the other state
            state[open_[decided]] = (value ^ turned)[decided]
            open_ = open_[~decided]
            if not len(open_):
                break
        return state


def inclusion(weights: np.ndarray, size: int) -> np.ndarray:
    """The probability with which each of N clients is among ``size`` drawn by weight, ``[N]``.

    Proportional to the weights as far as no probability exceeds 1; their sum is ``size``.
    """
    chances, certain = np.zeros(len(weights)), np.zeros(len(weights), dtype=bool)
    while True:
        rest = np.where(certain, 0.0, weights)
        left = size - int(certain.sum())
        chances = np.where(certain, 1.0, left * rest / rest.sum() if left else 0.0)
        if not (over := (chances >= 1) & ~certain).any():
            return chances
        certain |= over


def systematic(chances: np.ndarray, order: np.ndarray, point: float) -> np.ndarray:
    """Systematic sampling: the clients whose intervals contain ``point``, ``point`` + 1, ..., ascending.

    Args:
        chances: lengths of the intervals, ``[N]`` from 0 to 1.
        order: the clients in the order of their intervals.
        point: in (0, 1).
    """
    certain, order = np.flatnonzero(chances >= 1), order[chances[order] < 1]
    size = round(float(chances.sum())) - len(certain)
    ends = np.cumsum(chances[order])
    places = np.searchsorted(ends, point + np.arange(size), side="right")
    drawn = order[np.minimum(places, len(order) - 1)] if size else order[:0]
    return np.unique(np.concatenate([certain, drawn]))


#: ``available(r, number)``: the clients that can be reached when the ``number``-th cohort of round ``r`` is
#: drawn, ascending; ``None`` for all.
Available = Callable[[int, int], np.ndarray | None]


def _numbers(value, expected: str, fits: Callable[[Any], bool]) -> float | tuple[float, ...]:
    """A number or a list of them as a tuple."""
    listed = isinstance(value, list | tuple | np.ndarray)
    values = list(value) if listed else [value]
    wrong = [one for one in values if not isinstance(one, Real) or isinstance(one, bool) or not fits(one)]
    if wrong or not values:
        raise ValueError(f"expected {expected}, got {short_repr(wrong[0] if wrong else value)}")
    return tuple(map(float, values)) if listed else float(value)


def _probabilities(value):
    return _numbers(
        value, "a probability from 0 to 1, or a list of one per client", lambda one: 0 <= one <= 1
    )


def _weights(value):
    if isinstance(value, str) and value == "samples":
        return value
    listed = isinstance(value, list | tuple | np.ndarray)
    expected = '"samples" or a list of positive weights, one per client'
    return _numbers(value, expected, lambda one: listed and 0 < one < np.inf)


#: One probability for all clients, or one per client.
Probabilities = Annotated[
    float | tuple[float, ...],
    BeforeValidator(_probabilities),
    Field(title="probability, or list of probabilities per client"),
]


def one_each(values: float | tuple[float, ...], clients: int, name: str) -> np.ndarray:
    """One value per client, ``[N]``, or one for all as a 0-d array, as N may exceed memory.

    Raises:
        ValueError: the list has another length; the message names the setting ``name``.
    """
    if isinstance(values, tuple) and len(values) != clients:
        raise ValueError(
            f"{name}: expected one number, or one for each of {clients} clients, got {len(values)}"
        )
    return np.asarray(values, dtype=np.float64)


class _Everyone:
    """Base of the availability models: all clients are available.

    Attributes:
        unbiased: whether averages are weighted by the inverse of the inclusion probabilities.
    """

    unbiased = False

    def share(self, clients: int) -> float:
        """The expected share of clients that are available.

        Raises:
            ValueError: the settings do not fit this number of clients.
        """
        return 1.0

    def start(self, seed: int, clients: int) -> Available:
        """The function that returns the available clients.

        Raises:
            ValueError, OSError: a file cannot be read, or does not fit.
        """
        return lambda r, number: None


@hyperparameters
class Uniform(_Everyone):
    """All clients are available; the cohort is drawn uniformly without replacement."""


@hyperparameters
class Weighted(_Everyone):
    """All clients are available; the cohort is drawn without replacement by weight.

    Systematic sampling in a random order (Madow 1949): with a cohort of S, client k is drawn with probability
    min(1, c w_k), where c makes the sum S (:func:`mpifed.core.participation.inclusion`).
    """

    weights: Annotated[Literal["samples"] | tuple[float, ...], BeforeValidator(_weights)] = Field(
        "samples", description="weights, one per client, or the clients' numbers of samples"
    )
    unbiased: bool = Field(
        False, description="divide each client's weight in averages by its probability of being drawn"
    )

    def share(self, clients):
        if self.weights != "samples":
            one_each(self.weights, clients, "participation.availability.weights")
        return 1.0


@hyperparameters
class Bernoulli(_Everyone):
    """Every client is available with its own probability, independently in every round."""

    probability: Probabilities = Field(description="probability that a client is available")
    unbiased: bool = Field(False, description="divide each client's weight in averages by its probability")

    def share(self, clients):
        return float(self.chances(clients).mean())

    def chances(self, clients: int) -> np.ndarray:
        """The clients' probabilities, as :func:`one_each`."""
        return one_each(self.probability, clients, "participation.availability.probability")

    def start(self, seed, clients):
        everyone, chances = np.arange(clients), self.chances(clients)

        def available(r: int, number: int) -> np.ndarray:
            draws = Stream(seed, "bernoulli", everyone, r, first=number).uniform()[:, 0]
            return np.flatnonzero(draws < chances)

        return available


@hyperparameters
class Cyclic(_Everyone):
    """Blocks of consecutive clients take turns, one per round; a new cohort is drawn from the next block."""

    blocks: int = Field(ge=1, description="number of blocks, which differ by one client at most")

    def share(self, clients):
        if self.blocks > clients:
            raise ValueError(
                f"participation.availability.blocks: expected at most {clients}, one per client, "
                f"got {self.blocks}"
            )
        return 1 / self.blocks

    def start(self, seed, clients):
        edges = [block * clients // self.blocks for block in range(self.blocks + 1)]

        def available(r: int, number: int) -> np.ndarray:
            turn = (r - 1 + number) % self.blocks
            return np.arange(edges[turn], edges[turn + 1])

        return available


@hyperparameters
class Markov(_Everyone):
    """Every client is a two-state Markov chain, on or off, that starts in its stationary distribution."""

    p_off: Probabilities = Field(description="probability that a client that is on is off in the next round")
    p_on: Probabilities = Field(description="probability that a client that is off is on in the next round")

    def share(self, clients):
        return float(self.stationary(clients).mean())

    def chances(self, clients: int) -> tuple[np.ndarray, np.ndarray]:
        """The clients' ``p_off`` and ``p_on``, each as :func:`one_each`."""
        off = one_each(self.p_off, clients, "participation.availability.p_off")
        return off, one_each(self.p_on, clients, "participation.availability.p_on")

    def stationary(self, clients: int) -> np.ndarray:
        """The probability that each client is on, as :func:`one_each`."""
        off, on = self.chances(clients)
        if not (off + on).all():
            raise ValueError(
                "participation.availability: expected p_off or p_on above 0, got 0 and 0 for client "
                f"{int(np.argmin(off + on))}, whose Markov chain has no unique stationary distribution"
            )
        return on / (off + on)

    def start(self, seed, clients):
        probabilities = (*self.chances(clients), self.stationary(clients))
        chain = Chain(seed, *(np.broadcast_to(one, (clients,)) for one in probabilities))
        return lambda r, number: np.flatnonzero(chain.at(r))


@hyperparameters
class Trace(_Everyone):
    """The available clients of each round, or of each cohort, are listed in a file."""

    file: str = Field(
        description="CSV file with the columns round (from 1) and client (from 0), or round, cohort (from 0) "
        "and client; rounds and cohorts that it omits have no available client"
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
        description="model of the availability of clients, and of the sampling of a cohort; default: uniform",
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
    def _goes_together(self):
        if self.oversample is not None and self.oversample < (self.cohort or self.oversample + 1):
            got = "none" if self.cohort is None else f"cohort = {self.cohort}"
            raise ValueError(
                f"oversample = {self.oversample} clients need a cohort of at most as many, got {got}"
            )
        if isinstance(self.availability, Weighted) and self.cohort is None:
            raise ValueError(
                "availability = 'weighted' says how a cohort is drawn: set cohort, the number of clients"
            )
        others = {"oversample": self.oversample, "dropout": self.dropout}
        if self.availability and self.availability.unbiased and not isinstance(self.availability, Weighted):
            others["cohort"] = self.cohort
        given = [name for name, value in others.items() if value is not None]
        if self.availability and self.availability.unbiased and given:
            raise ValueError(
                "availability.unbiased divides by the probability that a client reports, unknown with "
                f"{' and '.join(given)}: leave out one or the other"
            )
        return self

    def expect(self, clients: int) -> None:
        """Hold the settings against the number of clients.

        Raises:
            ValueError: they do not fit; one sentence.
        """
        for name in ("cohort", "oversample"):
            value = getattr(self, name)
            if value is not None and value > clients:
                raise ValueError(f"participation.{name} = {value} is more than problem.clients = {clients}")
        self.members(clients)

    def partial(self, clients: int) -> str:
        """The setting by which clients may be absent in a round, as in a job file; "" where all answer."""
        law = self.availability
        if law and (law.share(clients) < 1 or isinstance(law, Trace)):
            return f"participation.availability = {law.choice_name!r}"
        if self.dropout is not None and one_each(self.dropout, clients, "participation.dropout").any():
            return "participation.dropout"
        if self.cohort not in (None, clients):
            return f"participation.cohort = {self.cohort} of {clients}"
        return ""

    def members(self, clients: int) -> int:
        """The number of clients that answer in a phase: the expected one, at least 1, where it is by chance.

        Raises:
            ValueError: the settings do not fit this number of clients.
        """
        reached = (self.availability.share(clients) if self.availability else 1.0) * clients
        asked = min(reached, self.oversample or self.cohort or clients)
        answering = asked * (1 - one_each(self.dropout or 0.0, clients, "participation.dropout").mean())
        return max(1, round(min(answering, self.cohort or clients)))


#: The columns of a trace; the second form has the clients of each cohort of a round.
COLUMNS = (("round", "client"), ("round", "cohort", "client"))
NUMBERS = {2: "two", 3: "three"}


def read_trace(file: str, clients: int, cohorts: int) -> tuple[Available, DataFile]:
    """The available clients as a file lists them, and the file with its digest.

    Args:
        cohorts: number of cohorts per round of the method.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not such a table, or lists a client or cohort that does not exist.
    """
    path = Path(file)
    try:
        content = path.read_bytes()
        lines = content.decode("utf-8-sig").splitlines()
    except OSError as error:
        raise OSError(
            f"participation.availability: cannot read the trace {short_repr(file)}: {error.strerror}"
        ) from None
    except ValueError:
        raise ValueError(f"the trace {short_repr(file)} is no text: expected a CSV file") from None
    columns = _columns(file, lines[0] if lines else "")
    lines_of = [(number, line) for number, line in enumerate(lines[1:], 2) if line.strip()]
    if not lines_of:
        raise ValueError(f"the trace {short_repr(file)} is empty: expected a row for each round and client")
    rows = np.array(
        [_row(f"{file}, line {number}", columns, line, clients, cohorts) for number, line in lines_of]
    )
    order = np.lexsort(rows.T[::-1])
    rows = rows[order]
    again = np.flatnonzero((rows[1:] == rows[:-1]).all(axis=1))
    if len(again):
        (r, cohort, client), number = rows[again[0]], lines_of[order[again[0] + 1]][0]
        where = f"round {r}, cohort {cohort}" if "cohort" in columns else f"round {r}"
        raise ValueError(f"{file}, line {number}: duplicate entry: client {client}, {where}")
    keys, members = rows[:, 0] * cohorts + rows[:, 1], np.ascontiguousarray(rows[:, 2])

    def available(r: int, number: int) -> np.ndarray:
        key = r * cohorts + (number if "cohort" in columns else 0)
        return members[slice(*np.searchsorted(keys, [key, key + 1]))]

    return available, DataFile(str(path.absolute()), digest([content]))


def _columns(file: str, line: str) -> tuple[str, ...]:
    """The columns in the first line."""
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
    """Round, cohort and client; the cohort is 0 if the file has no column for it."""
    try:
        row = dict(zip(columns, map(int, line.split(",")), strict=True))
    except ValueError:
        raise ValueError(
            f"{where}: expected {NUMBERS[len(columns)]} whole numbers, {','.join(columns)}, got "
            f"{short_repr(line)}"
        ) from None
    r, cohort, client = row["round"], row.get("cohort", 0), row["client"]
    if not 1 <= r < 2**31:
        raise ValueError(f"{where}: rounds are numbered from 1, got {short_repr(r)}")
    if not 0 <= cohort < cohorts:
        several = "1 cohort, with the number 0" if cohorts == 1 else f"{cohorts} cohorts, numbered from 0"
        raise ValueError(f"{where}: a round of the method has {several}, got cohort {short_repr(cohort)}")
    if not 0 <= client < clients:
        raise ValueError(f"{where}: expected a client from 0 to {clients - 1}, got {short_repr(client)}")
    return r, cohort, client
