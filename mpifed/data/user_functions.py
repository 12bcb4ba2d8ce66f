"""User-defined functions that return data sets.

The function returns a dictionary: ``train``, ``test`` and optionally ``validation``, each a pair of samples
and labels or a torch ``Dataset`` of such pairs; ``classes``, the names of the classes; ``clients``, the
client of each training sample. It is called on every rank, with global random generators seeded by the seed
of the run. An argument ``seed`` without a default is this seed, and an argument ``data_dir`` without a
default is the data folder. The digest of its result shows whether ranks, or a run and its resumption, got
different samples. A fast function is called a second time, because a generator that is not seeded,
``np.random.default_rng()``, would otherwise go unnoticed on one rank, and the run could not be resumed.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
import time
from collections.abc import Callable, Iterable, Sequence, Sized
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset

from mpifed.base.errors import short_repr
from mpifed.base.nested import leaves
from mpifed.base.plugins import UserObject, call_user_code, folder_of_users
from mpifed.base.settings import suggest
from mpifed.core.problem import DataFile, seed_of_preparation
from mpifed.core.streams import seeded_globals
from mpifed.data.samples import (
    PARTS,
    Labelled,
    Texts,
    as_float32,
    expect_all_classes,
    expect_contiguous,
    expect_labels,
    owner_fields,
    split_fields,
    warn_of_scales,
)
from mpifed.data.sources import DataError, parsing

__all__ = ["UserFunction", "UserTextFunction"]

_FORM = 'expected a dictionary {"train": (samples, labels), "test": (samples, labels)}'
_KEYS = (*PARTS, "classes", "clients")

#: Maximum duration in seconds of a function that is called twice.
FAST = 2.0

Pair = tuple[Any, np.ndarray]


class UserFunction(UserObject):
    """A function that returns samples ``[n, ...]``, arrays or tensors of numbers, and labels ``[n]``."""

    expected = "a function that returns a data set"

    @classmethod
    def _expect(cls, given: Any, settings: dict[str, Any], what: str) -> None:
        of_run = dict.fromkeys(_arguments_of_run(given, settings))
        super()._expect(functools.partial(given, **of_run) if of_run else given, settings, what)

    @classmethod
    def _from_instance(cls, value: Any) -> UserObject | None:
        return cls._from_function(value) if inspect.isfunction(value) else None

    def __call__(self, data_dir: str | None = None) -> Labelled:
        """Call the function and convert its result.

        Raises:
            ConfigError: it raised an error; shows the user's lines.
            DataError: it did not return a data set, or returned different samples in two calls.
        """
        parts, classes, clients = self._returned(_as_numbers, data_dir)
        samples = parts["train"][0]
        remedy = "divide images by 255, or standardise the samples"
        warn_of_scales(samples, str(self), remedy, range(1, samples.shape[1] + 1))
        return Labelled(
            **split_fields({part: tuple(map(torch.from_numpy, pair)) for part, pair in parts.items()}),
            files=self._digest(parts, classes, clients),
            class_names=classes,
            **self._owners(clients, parts),
        )

    def _returned(
        self, convert: Callable[[Any, str], Any], data_dir: str | None
    ) -> tuple[dict[str, Pair], tuple[str, ...], Any]:
        """Call the function and return splits, names of the classes, and clients of the training samples.

        Args:
            convert: validates and converts the samples of a split.
            data_dir: folder of the data files; ``None`` for ``$MPIFED_DATA``.

        Raises:
            DataError: it did not return a data set, or returned different samples in two calls, or needs a
                data folder and there is none.
        """
        settings = self.settings | self._of_run(data_dir)
        began = time.monotonic()
        data = self._called(convert, settings)
        is_fast = time.monotonic() - began < FAST
        if is_fast and self._digest(*data) != self._digest(*self._called(convert, settings)):
            raise DataError(
                f"{self}: expected the same samples from every call, found others in a second call: seed its "
                "generators, e.g. np.random.default_rng(0), or np.random.default_rng(seed) with an argument "
                "seed, the seed of the run"
            )
        return data

    def _of_run(self, data_dir: str | None) -> dict[str, Any]:
        """Return the values of the arguments that the run determines."""
        of_run = {"seed": seed_of_preparation(), "data_dir": folder_of_users(data_dir)}
        wanted = _arguments_of_run(self.given, self.settings)
        if "data_dir" in wanted and of_run["data_dir"] is None:
            raise DataError(
                f"{self}: its argument data_dir is the data folder, but there is none: set run.data_dir "
                "(--data-dir) or $MPIFED_DATA"
            )
        return {name: of_run[name] for name in wanted}

    def _called(
        self, convert: Callable[[Any, str], Any], settings: dict[str, Any]
    ) -> tuple[dict[str, Pair], tuple[str, ...], Any]:
        with seeded_globals(seed_of_preparation()):
            return self._converted(call_user_code(f"{self} failed", lambda: self.given(**settings)), convert)

    def _converted(
        self, returned: Any, convert: Callable[[Any, str], Any]
    ) -> tuple[dict[str, Pair], tuple[str, ...], Any]:
        """Validate and convert what the function has returned. A ``Dataset`` may draw random numbers."""
        if not isinstance(returned, dict):
            raise DataError(f"{self} returned {_described(returned)}: {_FORM}")
        if wrong := [key for key in returned if key not in _KEYS]:
            raise DataError(f"{self} returned {short_repr(wrong[0])}: {suggest(str(wrong[0]), _KEYS)}")
        if lacking := [part for part in ("train", "test") if returned.get(part) is None]:
            raise DataError(f"{self} returned no {lacking[0]} samples: {_FORM}")
        parts = {}
        for part in (part for part in PARTS if returned.get(part) is not None):
            what = f"{self}, {part}"
            samples, labels = self._pair(returned[part], what)
            samples, labels = convert(samples, what), _as_labels(labels, what)
            if len(samples) != len(labels) or not len(samples):
                found = f"{len(samples)} samples and {len(labels)} labels"
                raise DataError(f"{what}: expected samples and one label per sample, found {found}")
            parts[part] = samples, labels
        return parts, self._classes(returned.get("classes"), parts), returned.get("clients")

    def _pair(self, given: Any, what: str) -> tuple[Any, Any]:
        """Return samples and labels of a pair or a torch ``Dataset``, which is read once."""
        if isinstance(given, tuple | list) and len(given) == 2:
            return given[0], given[1]
        if not isinstance(given, Dataset):
            raise DataError(
                f"{what}: expected a pair (samples, labels) or a torch Dataset, found {_described(given)}"
            )
        pairs = call_user_code(
            f"{self} failed",
            lambda: [
                copy.deepcopy(pair, {id(one): _copied(one) for one in leaves(pair)})
                for pair in (
                    (given[row] for row in range(len(given)))
                    if isinstance(given, Sized) and not isinstance(given, IterableDataset)
                    else given
                )
            ],
        )
        for row, one in enumerate(pairs):
            if not (isinstance(one, tuple | list) and len(one) == 2):
                found = f"{_described(one)} in row {row}"
                raise DataError(f"{what}: expected a Dataset of pairs (sample, label), found {found}")
        return _stacked([one[0] for one in pairs], what), np.asarray([one[1] for one in pairs])

    def _classes(self, given: Any, parts: dict[str, Pair]) -> tuple[str, ...]:
        """Return the names of the classes; empty if they are named by their numbers."""
        given = given.tolist() if isinstance(given, np.ndarray) else given
        if given is not None and not (
            isinstance(given, list | tuple)
            and all(isinstance(one, str) for one in given)
            and len({*given}) == len(given)
        ):
            raise DataError(f"{self}, classes: expected a list of different names, found {short_repr(given)}")
        train = parts["train"][1]
        if given is None and train.min() > 0:
            low, high = train.min(), train.max()
            raise DataError(f"{self}: expected labels from 0, found {low} to {high}: subtract {low}")
        if given is None:
            expect_labels(train, int(train.max()) + 1, f"{self}, train")
            expect_contiguous(train, f"{self}, train")
        classes = tuple(given or map(str, range(int(train.max()) + 1)))
        for part, (_, labels) in parts.items():
            expect_labels(labels, len(classes), f"{self}, {part}")
        expect_all_classes(classes, {part: labels for part, (_, labels) in parts.items()}, str(self))
        return classes if given else ()

    def _owners(self, clients: Any, parts: dict[str, Pair]) -> dict:
        if clients is None:
            return {}
        # NumPy would convert the entries of a list to one type: 7 and "007" to texts, 2**63 and 0 to float64.
        given_list = isinstance(clients, list | tuple)
        names = np.array(clients, dtype=object) if given_list else _array(clients, f"{self}, clients")
        train = parts["train"][1]
        if names.shape != train.shape:
            raise DataError(
                f"{self}, clients: expected one client for each of {len(train)} training samples, found "
                f"shape {names.shape}"
            )
        return owner_fields(
            names, "clients", np.arange(len(train)), lambda row: f"{self}, clients, row {row}"
        )

    def _digest(self, parts: dict[str, Pair], classes: Sequence[str], clients: Any) -> dict[str, DataFile]:
        digest = hashlib.sha256(repr((classes, None if clients is None else list(clients))).encode())
        for part, (samples, labels) in parts.items():
            digest.update(f"{part} {np.shape(samples)}".encode())
            digest.update(np.ascontiguousarray(samples) if _is_array(samples) else repr(samples).encode())
            digest.update(np.ascontiguousarray(labels))
        return {str(self): DataFile(f"returned by {self.name}", digest.hexdigest())}


class UserTextFunction(UserFunction):
    """A function that returns lists of texts, and labels ``[n]``: 1 positive, 0 negative."""

    expected = "a function that returns a data set of texts"

    def __call__(self, data_dir: str | None = None) -> Texts:  # type: ignore[override]
        """Call the function and convert its result, as for samples of numbers."""
        parts, classes, clients = self._returned(_as_texts, data_dir)
        if any(labels.max() > 1 for _, labels in parts.values()):
            raise DataError(f"{self}: expected labels 1 (positive) and 0 (negative), found more classes")
        return Texts(
            **split_fields(parts),
            files=self._digest(parts, classes, clients),
            **self._owners(clients, parts),
        )


def _arguments_of_run(function: Callable, settings: dict[str, Any]) -> list[str]:
    """Return which of ``seed`` and ``data_dir`` are arguments without a default that no setting sets."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # not written in Python
        return []
    return [
        name
        for name in ("seed", "data_dir")
        if name in parameters and parameters[name].default is inspect.Parameter.empty and name not in settings
    ]


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray | torch.Tensor)


def _described(value: Any) -> str:
    """Return a description of a value for messages."""
    if _is_array(value):
        return f"an array of type {value.dtype} and shape {tuple(value.shape)}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return (
        short_repr(value)
        if value is None or isinstance(value, str | int | float)
        else f"a {type(value).__name__}"
    )


def _copied(value: Any) -> Any:
    """Copy an array, because a ``Dataset`` may write every sample to the same memory."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return value.copy() if isinstance(value, np.ndarray) else value


def _stacked(samples: list, what: str) -> Any:
    """Stack samples of one shape into an array. Texts and an empty list are returned unchanged."""
    if not samples or isinstance(samples[0], str):
        return samples
    for row, one in enumerate(samples):
        if not (_is_array(one) and one.shape == samples[0].shape):
            raise DataError(
                f"{what}: expected samples that are tensors or arrays of one shape, found {_described(one)} "
                f"in row {row}: convert them in the Dataset's transform"
            )
    return np.stack([_array(one, what) for one in samples])


def _as_numbers(samples: Any, what: str) -> np.ndarray:
    """Return a copy of samples ``[n, ...]`` as float32, because the user may keep the array and change it."""
    array = _array(samples, what)
    if array.dtype.kind not in "biuf" or array.ndim < 2 or 0 in array.shape[1:]:
        raise DataError(f"{what}: expected numeric samples [n, ...], found {_described(array)}")
    return np.array(as_float32(array, lambda *index: f"{what}, row {index[0]}"), order="C")


def _as_texts(samples: Any, what: str) -> list[str]:
    if isinstance(samples, str) or not isinstance(samples, Iterable):
        raise DataError(f"{what}: expected a list of texts, found {_described(samples)}")
    texts = list(samples)
    if odd := [row for row, one in enumerate(texts) if not isinstance(one, str)]:
        raise DataError(f"{what}: expected texts, found {_described(texts[odd[0]])} in row {odd[0]}")
    return [str(one) for one in texts]


def _as_labels(labels: Any, what: str) -> np.ndarray:
    """Return labels ``[n]`` as int64."""
    array = _array(labels, what)
    if array.ndim != 1 or array.dtype.kind not in "biu":
        raise DataError(
            f"{what}: expected labels [n] that are integers from 0, found {_described(array)}"
            f"{_first_label(array)}: number the classes, and return their names as classes"
        )
    if array.dtype.kind == "u" and len(array) and array.max() > np.iinfo(np.int64).max:
        raise DataError(
            f"{what}: expected labels from 0 to the number of classes, found {array.max()} in row "
            f"{array.argmax()}"
        )
    return array.astype(np.int64)


def _first_label(array: np.ndarray) -> str:
    """Return where the first value is that is not an integer of 64 bits, for messages; "" if unknown."""
    for row, value in enumerate(array.tolist() if array.ndim == 1 else ()):
        if not isinstance(value, int) or abs(value) > np.iinfo(np.int64).max:
            return f", {short_repr(value)} in row {row}"
    return ""


def _array(value: Any, what: str) -> np.ndarray:
    if isinstance(value, np.ma.MaskedArray) and (masked := np.ma.count_masked(value)):
        raise DataError(f"{what}: expected an array without masked entries, found {masked}: fill them")
    with parsing(what, "an array"):
        if not isinstance(value, torch.Tensor):
            return np.asarray(value)
        value = value.detach().cpu()
        # NumPy has no bfloat16, of which each number is one of float32.
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
