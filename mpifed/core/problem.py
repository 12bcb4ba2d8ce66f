"""Base classes of problems, one per family, and the adapter from minimax problems to operators.

A problem defines an objective and its data. It does not depend on the method, the MPI ranks or the files of a
run. A problem is a dataclass: its fields are its settings, and it defines a loss. The package provides
gradients, flat views of the parameters, sampling, devices and noise.

============  ========================================  ===================================================
class         solves                                    defines, in addition to ``variables``
============  ========================================  ===================================================
Minimax       min over x, max over y of a loss          ``loss`` or ``gradients``
Minimisation  min over x of a loss                      ``loss`` or ``gradients``
Operator      a variational inequality in z             ``operator``
Composition   min over x of outer(inner(x))             ``inner_size``, ``inner``, and ``outer`` or
                                                        ``outer_gradient``
Bilevel       min over x of upper(x, y*(x)), where      ``upper``, ``lower``
              y*(x) minimises lower(x, y)
============  ========================================  ===================================================

A problem gets its samples in one of two ways, not both: ``client_data``, or ``client_rows`` for many clients
at once, returns the rows from which minibatches are drawn, or ``draw`` generates samples. Functions take one
argument per block. If the problem has no block y, the loss is ``loss(x, batch)``.

Shapes: C is the number of clients that are evaluated together, d is the size of a block, b is the number of
rows of a minibatch. Functions that autograd differentiates (``loss``, ``inner``, ``outer``, ``upper``,
``lower``) are called for *one* client with named parameters and a batch ``[b, ...]``. Analytic derivatives
(``gradients``, ``operator``, ``jacobian``, ``outer_gradient``) are called for *all* C clients with batches
``[C, b, ...]`` and flat blocks. Either all blocks are ``[C, d]``, or all blocks are ``[d]`` and are shared by
the clients. They are called under ``torch.no_grad()``: one that uses autograd itself needs
``torch.enable_grad()``.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import torch

from mpifed.base.errors import ContractError
from mpifed.base.nested import mapped
from mpifed.core.device import as_tensor
from mpifed.core.records import Blocks
from mpifed.core.sets import IndicatorOf, Separable, Sets, Zero
from mpifed.core.streams import Stream, generator, seeded_globals

__all__ = [
    "Batch", "Bilevel", "Composition", "DataFile", "Game", "Minimax", "Minimisation", "Named", "Operator",
    "Problem", "as_family", "data_read", "defines", "is_analytic", "named_point", "network_block",
    "has_sizes", "initial_point", "listed_clients", "minibatch_rows", "network_constants",
    "network_parameters", "on_stored_data", "rows_of", "seed_of_preparation", "sizes_of", "starting_point",
    "user_point", "user_problem", "with_network_weights",
]  # fmt: skip

#: The parameters of a block by name, as passed to functions of one client.
Named = dict[str, torch.Tensor]
#: The columns of a minibatch: ``[b, ...]`` for one client, ``[C, b, ...]`` for C clients.
Batch = tuple[torch.Tensor, ...]


class DataFile(NamedTuple):
    """A data file that has been read.

    Attributes:
        path: path of the file; ``"none: ..."`` for data that are derived from other files.
        digest: hexadecimal SHA-256 of the contents, preferably computed with :mod:`mpifed.base.data_files`.
            If the digest has changed when a finished run is started again, the problem reads its data again.
    """

    path: str
    digest: str

    @property
    def derived(self) -> bool:
        """Whether the data are derived from other files, so that there is no file at ``path``."""
        return self.path.startswith("none: ")


#: Maximum number of clients whose samples are counted by class for the results of a run.
LISTED = 1000

#: The problem that is being prepared, and the data that have been read for it.
_prepared: ContextVar[tuple[Problem, Any]] = ContextVar("prepared")
#: The seed with which a problem is being prepared.
_seed: ContextVar[int] = ContextVar("seed", default=0)


@contextlib.contextmanager
def data_read(problem: Problem, data: Any) -> Iterator[None]:
    """A context in which ``problem.read_once`` returns ``data``, which it has returned before."""
    token = _prepared.set((problem, data))
    try:
        yield
    finally:
        _prepared.reset(token)


def _returns_data_read(read_once: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the ``read_once`` of a class, so that it returns the data of :func:`data_read`."""

    @functools.wraps(read_once)
    def read(problem: Problem, *arguments: Any, **named: Any) -> Any:
        prepared, data = _prepared.get((None, None))
        return data if prepared is problem else read_once(problem, *arguments, **named)

    return read


def _with_seed(prepare: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the ``prepare`` of a class, so that :func:`seed_of_preparation` returns its seed."""

    @functools.wraps(prepare)
    def prepare_with_seed(problem: Problem, seed: int, *arguments: Any, **named: Any) -> Any:
        token = _seed.set(seed)
        try:
            return prepare(problem, seed, *arguments, **named)
        finally:
            _seed.reset(token)

    return prepare_with_seed


def seed_of_preparation() -> int:
    """Return the seed of the run while a problem is being prepared, otherwise 0."""
    return _seed.get()


class Problem:
    """Base class of the problem families. A problem is a dataclass whose fields are its settings.

    Every problem has the setting ``clients``, the number N of clients. Clients are numbered 0 .. N-1.
    """

    #: The problem family: "minimax", "operator", "composition" or "bilevel".
    family: ClassVar[str]
    #: The combinations of blocks that a problem of the family may have, each in order.
    layouts: ClassVar[tuple[tuple[str, ...], ...]]
    #: Source of the problem in the literature.
    source: str = ""
    #: Keys of the sources in the bibliography.
    cites: tuple[str, ...] = ()
    clients: int
    #: Number of held-out rows for which :meth:`predict` computes scores; 0 if no metric needs scores.
    test_rows: int = 0
    #: Names of the metrics that :meth:`metrics` may return, for ``mpifed info``. "GROUP" in a name stands for
    #: the name of each group of samples.
    metric_names: tuple[str, ...] = ()
    #: Names of the metrics to maximise, such as an accuracy. All other metrics are minimised.
    maximised: frozenset[str] = frozenset()
    #: Names of the metrics that use no held-out samples, so that hyperparameters may be selected by them.
    of_training: frozenset[str] = frozenset()
    #: Number of gradients that an evaluation of the problem's derivatives computes, by which oracle calls are
    #: counted: more than 1 if a loss computes gradients itself, such as those of an adversary.
    gradients_per_call: int = 1
    #: Closed convex feasible sets of the blocks. A block without a set is unconstrained.
    sets: Sets = Sets()
    #: Whether y has a set and each client's function depends on other coordinates of y. The average of points
    #: that clients have projected is then not the projection of the average, so that methods that project at
    #: the clients solve another problem and are refused (:attr:`Algorithm.projects`). Not needed for a box:
    #: its projection changes each coordinate on its own, so that both have the same fixed points.
    separate_coordinates: ClassVar[bool] = False
    #: Names and shapes of the parameters that belong to a neural network, the setting ``model``
    #: (``Network`` in ``mpifed.models.base``). They are in x, or in y of a bilevel problem. Known once the
    #: problem is prepared; empty without a network.
    network: Mapping[str, tuple[int, ...]] = {}
    #: The data files that :meth:`prepare` has read, by name. All ranks must have read the same files.
    files: dict[str, DataFile] = {}
    #: Names of the functions that write to their batch or return stored memory, found by the checks before
    #: a run: see :func:`on_stored_data`.
    called_on_copies: frozenset[str] = frozenset()

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if cls.read_once is not Problem.read_once:
            cls.read_once = _returns_data_read(cls.read_once)  # type: ignore[method-assign]
        if "prepare" in vars(cls):
            cls.prepare = _with_seed(cls.prepare)  # type: ignore[method-assign]

    def read_once(self, data_dir: str | None = None) -> Any:
        """Read the data that do not depend on the seed; :meth:`prepare` calls this function.

        In a run it is called once per node. All ranks of the node get its result, which must support
        pickling, and share the memory of the arrays and tensors in it. Without this function, every rank
        reads its data in :meth:`prepare`.

        Args:
            data_dir: folder of the data files; ``None`` for the default folders.
        """

    def prepare(self, seed: int, data_dir: str | None = None) -> None:
        """Read files, partition the data and compute constants. Called first, once on every rank.

        Args:
            seed: seed of the run. All random numbers must be drawn with it from ``mpifed.generator`` or
                ``Stream``.
            data_dir: folder of the data files; ``None`` for the default folders.
        """

    def footprint(self) -> int:
        """Return the peak memory of :meth:`prepare` in bytes; 0 if the settings do not determine it.

        A run is refused if less memory is available.
        """
        return 0

    def client_footprint(self) -> int:
        """Return the bytes of one client's data in float32; 0 if they are part of :meth:`footprint`, or if
        the settings do not determine them."""
        return 0

    def variables(self) -> Blocks:
        """Return the blocks of variables, with the names and shapes of their parameters."""
        raise ContractError(
            f"{type(self).__name__} must define variables(), the names and shapes of its blocks"
        )

    def constants(self) -> dict[str, float]:
        """Return the constants of theorems that are known once the problem is prepared, by name.

        Common constants are ``L``, the largest Lipschitz constant of a client's gradient or operator; ``mu``,
        the PL or strong-concavity constant in y of the mean over the clients; ``D``, the radius of the set on
        which an error is measured; and ``sigma``, the standard deviation of a stochastic gradient, which is 0
        if the oracle's noise is the only noise.
        """
        return {}

    def field_sizes(self) -> dict[str, int]:
        """Return the sizes of further types of record fields by name, in addition to the blocks."""
        return {}

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        """Return the starting point, one flat vector ``[d]`` per block. Omitted blocks start at 0."""
        return {}

    def client_data(self, client: int) -> Batch:
        """Return the data of one client: tensors whose first axis is over its samples, ``[n, ...]``.

        Minibatches are drawn uniformly with replacement from these rows. A full batch consists of all rows.
        By default they are those of :meth:`client_rows`.
        """
        rows = self.client_rows(np.array([client], dtype=np.int64))
        return () if rows is None else rows[0]

    def client_rows(self, clients: np.ndarray) -> tuple[Batch, np.ndarray] | None:
        """Return the data of several clients at once, which saves a call per client.

        A class defines this function or :meth:`client_data`. If a subclass overrides ``client_data`` alone,
        its ``client_data`` is called for each client (:func:`rows_of`).

        Args:
            clients: numbers of the clients, int64 ``[C]``, in any order.

        Returns:
            The columns of these clients, one client after the other, ``[n, ...]``, and the number of rows of
            each client, int64 ``[C]``; ``None`` if only ``client_data`` is defined.
        """
        return None

    def client_size(self, client: int) -> int:
        """Return the number of samples of a client, for weights proportional to it.

        Called for all clients on every rank, unless :meth:`client_sizes` is defined.
        """
        sizes = self.client_sizes(np.array([client], dtype=np.int64))
        return len(self.client_data(client)[0]) if sizes is None else int(sizes[0])

    def client_sizes(self, clients: np.ndarray) -> np.ndarray | None:
        """Return the numbers of samples of several clients at once, ``[C]``.

        A class defines this function or :meth:`client_size`, as for :meth:`client_rows`.

        Args:
            clients: numbers of the clients, int64 ``[C]``, in any order.

        Returns:
            int64 ``[C]``, or ``None`` if only ``client_size`` is defined.
        """
        return np.ones_like(clients) if self.single_row else None

    def client_labels(self, client: int) -> np.ndarray | None:
        """Return the class labels of one client's samples, ``[n]`` int64 from 0; ``None`` without classes."""
        return None

    def class_names(self) -> list[str]:
        """Return the names of the classes of :meth:`client_labels`, in order; by default their numbers."""
        return []

    def class_counts(self, clients: Sequence[int] | None = None) -> tuple[np.ndarray, list[str]] | None:
        """Return the number of samples by client and class, ``[C, classes]``, and the names of the classes.

        Without :meth:`class_names`, the classes are numbered up to the largest label of these clients.
        Returns ``None`` if a client's samples have no classes.

        Args:
            clients: numbers of the clients; by default all.
        """
        labels = []
        for client in range(self.clients) if clients is None else clients:
            client_labels = self.client_labels(client)
            if client_labels is None:
                return None
            labels.append(client_labels)
        classes = max(int(values.max(initial=0)) for values in labels) + 1
        names = self.class_names() or [str(label) for label in range(classes)]
        return np.stack([np.bincount(values, minlength=len(names)) for values in labels]), names

    def draw(self, stream: Stream, size: int) -> tuple[np.ndarray, ...] | None:
        """Generate samples. The default ``None`` means that minibatches are rows of :meth:`client_data`.

        Args:
            stream: the random stream; ``stream.normal(size, 3)`` is ``[C, count, size, 3]``.
                ``stream.clients`` holds the numbers of the clients ``[C]``, ``stream.count`` the number of
                samples per client. ``stream.of`` says which function of a composition the samples are for,
                "g" (ζ) or "f" (ξ); otherwise it is "".
            size: number of rows per sample, the batch size of the job. It is 0, for exact gradients, only if
                :meth:`full_batch` returns ``None``.

        Returns:
            A tuple of arrays ``[C, count, size, ...]``. A function of one client gets ``[size, ...]`` of each
            array.
        """
        return None

    #: Whether the data of each client are one row, which then is its only minibatch for every batch size.
    single_row: ClassVar[bool] = False

    #: ``strata(clients, size)`` fixes the composition of minibatches of ``size`` rows. It returns the strata
    #: of the rows, which follow each other in the data of a client: pairs of the number of rows of each
    #: client, ``[C]`` int64, and the number of rows of a minibatch that are drawn from the stratum, uniformly
    #: with replacement. These numbers add up to ``size``. The loss must weight the strata so that the value
    #: of a minibatch is an unbiased estimate. ``None``: rows of a minibatch are drawn from all rows.
    strata: ClassVar[Callable[..., Any] | None] = None

    #: ``augment(batch, words) -> batch`` changes the rows of one client's minibatch at random, each time
    #: they are drawn; tensors ``[b, ...]`` keep their shapes. ``words`` has the random numbers of the sample:
    #: ``words.mask(shape, p)`` is true with probability 1 - p, ``words.integers(high, shape)`` is uniform in
    #: [0, high), ``words.uniform(shape)`` in (0, 1), and ``words.normal(shape)`` is standard normal. A pure
    #: function, like a loss. It is not called for evaluations, full-batch gradients and analytic derivatives.
    #: ``None``: no augmentation.
    augment: ClassVar[Callable[..., Any] | None] = None

    def full_batch(self, client: int) -> Batch | None:
        """Return rows on which a client's functions equal their expectations, if :meth:`draw` is defined.

        Such rows are, for example, the mean of additive noise, or the nodes of an exact quadrature. They give
        the exact local gradient for ``oracle.full_batch`` and ``oracle.batch_size = 0``. ``None`` means that
        there are no such rows.
        """
        return None

    def predict(self, *point_and_rows) -> torch.Tensor:
        """``predict(*point, rows)``: compute the scores of held-out rows at a point, ``[n]`` or ``[n, k]``.

        The point is one dictionary of named parameters per block. ``rows`` is a slice, since each rank scores
        a part of the rows.
        """
        raise ContractError(f"{type(self).__name__} sets test_rows, so it must define predict()")

    def metrics(self, *point_and_predictions) -> dict[str, float]:
        """``metrics(*point, predictions)``: compute metrics of a point by name, such as accuracies.

        The time of this call does not count as run time. ``predictions`` are the results of :meth:`predict`
        for all rows, or ``None`` if ``test_rows`` is 0.
        """
        return {}

    def tested_on(self, split: str | int) -> Problem | None:
        """Return the prepared problem with another split as its held-out rows; ``None`` without such a split.

        In the returned problem, ``test_rows``, :meth:`predict`, :meth:`metrics` and :meth:`test_labels` refer
        to the rows of the split. Metrics that use no held-out rows are computed by the original problem.

        Args:
            split: "validation", "train" (the training samples of all clients), or the number of a client.
        """
        return None

    def test_labels(self) -> np.ndarray | None:
        """Return the class labels of the held-out rows, ``[n]`` int64; ``None`` without classes."""
        return None

    def class_scores(self, predictions: torch.Tensor) -> torch.Tensor:
        """Return the class scores that are contained in the results of :meth:`predict`.

        The scores are ``[n, classes]``, or ``[n]`` for two classes, where a larger score means class 1.
        """
        return predictions


class Minimax(Problem):
    """min_x max_y (1/N) Σ_n f_n(x, y).

    Define :meth:`loss`, which autograd differentiates, or analytic ``gradients``. If both are defined,
    `mpifed check` compares them. For problems without a block y see :class:`Minimisation`. Example:
    regression that is robust to a common shift y of the targets::

        @dataclass
        class Shifted(Minimax):
            clients: int = 4

            def variables(self):
                return Blocks(x={"w": (5,)}, y={"shift": (1,)})

            def client_data(self, client):
                rows = generator(0, "rows", client).standard_normal((20, 6))
                return torch.from_numpy(rows[:, :5]), torch.from_numpy(rows[:, 5])

            def loss(self, x, y, batch):
                inputs, targets = batch
                return ((inputs @ x["w"] - targets - y["shift"]) ** 2).mean() - 2 * (y["shift"] ** 2).sum()
    """

    family = "minimax"
    layouts = (("x", "y"), ("x",))
    #: Whether y has one weight per client, f_n(x, y) = N y_n ℓ_n(x) - r(y): a mixture of the clients' losses.
    mixture: ClassVar[bool] = False

    def loss(self, x: Named, y: Named, batch: Batch) -> torch.Tensor:
        """Compute f_n on a batch of client n: a scalar.

        ``x`` and ``y`` are named parameters, ``batch`` is a tuple of tensors ``[b, ...]``. The loss must be a
        pure function of its arguments (no in-place writes, no data-dependent Python branches), so that it can
        be vectorised over clients.
        """
        raise ContractError(f"{type(self).__name__} must define loss() or gradients()")

    #: Analytic gradients: ``gradients(x, y, batch) -> (gx, gy)`` with flat blocks ``[C, d]`` or ``[d]``
    #: (shared by all clients), ``batch`` tensors ``[C, b, ...]``, and ``gx``, ``gy`` of shape ``[C, d]``.
    #: Without y, ``gradients(x, batch)`` returns ``gx`` alone. ``None``: autograd differentiates ``loss``.
    gradients: ClassVar[Callable[..., Any] | None] = None
    #: ``best_response(x) -> y* [dy]`` maximises (1/N) Σ_n f_n(x, ·); used by stationarity measures. ``None``:
    #: y* is computed by gradient ascent.
    best_response: ClassVar[Callable[..., Any] | None] = None


class Minimisation(Problem):
    """min_x (1/N) Σ_n f_n(x): a loss without y, for minimisation methods and minimax methods.

    Example: least squares::

        @dataclass
        class LeastSquares(Minimisation):
            clients: int = 4

            def variables(self):
                return Blocks(x={"w": (5,)})

            def client_data(self, client):
                rows = generator(0, "rows", client).standard_normal((20, 6))
                return torch.from_numpy(rows[:, :5]), torch.from_numpy(rows[:, 5])

            def loss(self, x, batch):
                inputs, targets = batch
                return ((inputs @ x["w"] - targets) ** 2).mean() / 2
    """

    family = "minimax"
    layouts = (("x",),)

    def loss(self, x: Named, batch: Batch) -> torch.Tensor:
        """Compute f_n on a batch of client n: a scalar, a pure function of parameters and batch."""
        raise ContractError(f"{type(self).__name__} must define loss() or gradients()")

    #: Analytic gradients: ``gradients(x, batch) -> gx [C, d]`` with x flat, ``[C, d]`` or ``[d]`` (shared by
    #: all clients), and ``batch`` tensors ``[C, b, ...]``. ``None``: autograd differentiates ``loss``.
    gradients: ClassVar[Callable[..., Any] | None] = None


class Operator(Problem):
    """Find z*: ⟨V(z), z* - z⟩ + φ(z*) - φ(z) ≤ 0 for all z, with V = (1/N) Σ_n V_n.

    The problem of Wang & Kale, sections 3 and 5. Example: a rotation, whose solution is 0, and an ℓ1 norm::

        @dataclass
        class Rotation(Operator):
            clients: int = 4

            phi = L1(lam=0.1)
            monotone = True

            def variables(self):
                return Blocks(z={"z": (2,)})

            def client_data(self, client):
                return (torch.tensor([1.0 + client]),)  # one row: the client's speed

            def operator(self, z, batch):  # z: [C, 2] or [2]
                x, y = z.unbind(-1)
                return batch[0][:, :1] * torch.stack([y, -x], dim=-1)
    """

    family = "operator"
    layouts = (("z",),)
    #: The convex function φ of a composite problem, given by its proximal map.
    phi: Callable[[torch.Tensor, float], torch.Tensor] = Zero()
    #: Whether V is monotone; ``None`` if unknown. The value is not verified.
    monotone: ClassVar[bool | None] = None

    def operator(self, z: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Compute V_n(z; batch), ``[C, d]``, for C clients.

        ``z`` is flat, ``[C, d]`` or ``[d]`` (shared by all clients), ``batch`` is a tuple of tensors
        ``[C, b, ...]``.
        """
        raise ContractError(f"{type(self).__name__} must define operator()")


class Composition(Problem):
    """min_x (1/N) Σ_n E f_n(E g_n(x; ζ); ξ) (Huang, eq. 1).

    Define :meth:`inner`, and :meth:`outer` or an analytic ``outer_gradient``. Autograd differentiates
    :meth:`inner`, unless there is an analytic ``jacobian``. Example: the entropic risk log E exp(g) of a
    squared error g, with one inner value::

        @dataclass
        class Risk(Composition):
            clients: int = 4

            inner_size = 1

            def variables(self):
                return Blocks(x={"w": (5,)})

            def client_data(self, client):
                rows = generator(0, "rows", client).standard_normal((20, 6))
                return torch.from_numpy(rows[:, :5]), torch.from_numpy(rows[:, 5])

            def inner(self, x, batch):
                inputs, targets = batch
                return torch.exp((inputs @ x["w"] - targets) ** 2 / 9).mean().reshape(1)

            def outer(self, u, batch):
                return torch.log(u).sum()
    """

    family = "composition"
    layouts = (("x",),)
    #: Dimension p of the values of the inner functions g_n.
    inner_size: int = 1

    def field_sizes(self) -> dict[str, int]:
        """``u``: an inner value or outer gradient ``[p]``; ``jacobian``: ``[p, d]``, stored row by row."""
        return {"u": self.inner_size, "jacobian": self.inner_size * self.variables().sizes["x"]}

    def inner(self, x: Named, batch: Batch) -> torch.Tensor:
        """Compute g_n(x; ζ), ``[p]``, for a batch ζ of client n. Must be a pure function."""
        raise ContractError(f"{type(self).__name__} must define inner()")

    def outer(self, u: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Compute f_n(u; ξ), a scalar, for a batch ξ of client n. Must be a pure function."""
        raise ContractError(f"{type(self).__name__} must define outer() or outer_gradient()")

    #: Analytic Jacobian: ``jacobian(x, batch) -> (u, J)``, i.e. g_n(x; ζ) ``[C, p]`` and its Jacobian
    #: ``[C, p, d]``, with x flat, ``[C, d]`` or ``[d]`` (shared by all clients), and ``batch`` tensors
    #: ``[C, b, ...]``. ``None``: autograd differentiates :meth:`inner`. :meth:`inner` must be defined in any
    #: case, since it computes the value alone.
    jacobian: ClassVar[Callable[..., Any] | None] = None
    #: Analytic gradient: ``outer_gradient(u, batch) -> [C, p]``, ∇f_n(u; ξ), with u ``[C, p]`` or ``[p]``,
    #: and ``batch`` as above. ``None``: autograd differentiates :meth:`outer`.
    outer_gradient: ClassVar[Callable[..., Any] | None] = None


class Bilevel(Problem):
    """min_x (1/N) Σ_n f_n(x, y*(x)), where y*(x) minimises (1/N) Σ_n g_n(x, y) (Tarzanagh et al. 2022).

    f_n is the upper and g_n the lower function of client n, and the mean of the g_n is strongly convex in y.
    Define both; autograd differentiates them. A row of :meth:`client_data` has what both functions need, for
    example a sample for validation and one for training. Example: the weight of a regulariser::

        @dataclass
        class Ridge(Bilevel):
            clients: int = 4

            def variables(self):
                return Blocks(x={"log_weight": (1,)}, y={"w": (5,)})

            def client_data(self, client):
                rows = generator(0, "rows", client).standard_normal((20, 12))
                return torch.from_numpy(rows[:, :6]), torch.from_numpy(rows[:, 6:])

            def upper(self, x, y, batch):
                return ((batch[0][:, :5] @ y["w"] - batch[0][:, 5]) ** 2).mean()

            def lower(self, x, y, batch):
                error = ((batch[1][:, :5] @ y["w"] - batch[1][:, 5]) ** 2).mean()
                return error + (x["log_weight"].exp() * y["w"] ** 2).sum()
    """

    family = "bilevel"
    layouts = (("x", "y"),)

    def upper(self, x: Named, y: Named, batch: Batch) -> torch.Tensor:
        """Compute f_n(x, y; ξ), a scalar, for a batch ξ of client n. Must be a pure function."""
        raise ContractError(f"{type(self).__name__} must define upper()")

    def lower(self, x: Named, y: Named, batch: Batch) -> torch.Tensor:
        """Compute g_n(x, y; ζ), a scalar, for a batch ζ of client n. Must be a pure function."""
        raise ContractError(f"{type(self).__name__} must define lower()")


#: Functions of the base classes that subclasses must define and that only raise an error here.
_STUBS = (
    Problem.variables,
    Problem.predict,
    Minimax.loss,
    Minimisation.loss,
    Operator.operator,
    Composition.inner,
    Composition.outer,
    Bilevel.upper,
    Bilevel.lower,
)


def defines(problem: Problem, name: str) -> bool:
    """Return whether a problem defines the function ``name``, such as "loss" or "gradients"."""
    function = getattr(problem, name, None)
    return function is not None and getattr(function, "__func__", function) not in _STUBS


def on_stored_data(problem: Problem, name: str) -> Any:
    """Return a function of a problem, such as "loss", for calls on stored data, which it must not change.

    A function that writes to its batch, or returns memory that is used again, is called on a copy of the
    batch, and its results are copied. Other functions are returned unchanged. ``None`` if it is not defined.
    """
    function = getattr(problem, name)
    if name not in problem.called_on_copies:
        return function

    def on_copy(*arguments):
        copies = (
            mapped(torch.clone, value) if isinstance(value, tuple | list) else value for value in arguments
        )
        return mapped(torch.clone, function(*copies))

    return on_copy


#: Attributes and functions of a minimax problem that are the same for the game.
_OF_GAME = (
    "clients", "source", "cites", "maximised", "test_rows", "of_training", "gradients_per_call", "files",
    "network", "client_data", "client_rows", "client_size", "client_sizes", "draw", "full_batch",
    "test_labels", "class_scores",
)  # fmt: skip


class Game(Operator):
    """A minimax problem as a variational inequality: z = (x, y), V = (∂_x f, -∂_y f).

    φ is the indicator function of the problem's sets. Without a block y, z = x and V = ∇f.

    Attributes:
        split: sizes of x and y in z; 0 for a block that the problem does not have.
    """

    def __init__(self, problem: Minimax | Minimisation):
        self.problem = problem
        for name in _OF_GAME:
            setattr(self, name, getattr(problem, name))
        self._blocks = problem.variables()
        self.split = tuple(self._blocks.sizes.get(block, 0) for block in "xy")
        sets = {block: IndicatorOf(getattr(problem.sets, block)) for block in self._blocks}
        self.phi = Separable(sets, tuple(self._blocks.sizes.values()))
        self.sets = Sets(z=lambda z: self.phi(z, 0.0))

    def variables(self) -> Blocks:
        """Return one block z, whose parameters are named ``x.name`` and ``y.name``."""
        return Blocks(
            z={
                f"{block}.{name}": shape
                for block in self._blocks
                for name, shape in self._blocks[block].items()
            }
        )

    def initial(self, rng: np.random.Generator) -> dict[str, torch.Tensor]:
        start = self.problem.initial(rng)
        parts = [
            as_tensor(start.get(block, torch.zeros(size))).reshape(-1)
            for block, size in self._blocks.sizes.items()
        ]
        return {"z": torch.cat(parts)}

    def _point(self, z: Named) -> list[Named]:
        return [*self.blocks_of(z).values()]

    def blocks_of(self, z: Named) -> dict[str, Named]:
        """Split the parameters of z into the blocks of the minimax problem."""
        return {
            block: {name[2:]: value for name, value in z.items() if name[0] == block}
            for block in self._blocks
        }

    def predict(self, z: Named, rows: slice) -> torch.Tensor:
        return self.problem.predict(*self._point(z), rows)

    def metrics(self, z: Named, predictions: torch.Tensor | None) -> dict[str, float]:
        return self.problem.metrics(*self._point(z), predictions)

    def tested_on(self, split: str | int) -> Problem | None:
        other = self.problem.tested_on(split)
        return other and Game(cast("Minimax | Minimisation", other))


def user_problem(problem: Problem) -> Problem:
    """Return the problem as its user has written it: the minimax problem of a game."""
    return problem.problem if isinstance(problem, Game) else problem


def _of_several(problem: Problem, several: str, single: str) -> Any:
    """Return the function ``several`` of a problem, such as "client_rows".

    ``None`` if its values may differ from those of ``single``, because a derived class overrides only that.
    """
    owners = [problem, *type(problem).__mro__]
    levels = [next(k for k, owner in enumerate(owners) if name in vars(owner)) for name in (several, single)]
    return getattr(problem, several) if levels[0] <= levels[1] else None


def rows_of(problem: Problem, clients: np.ndarray) -> tuple[Batch, np.ndarray] | None:
    """Return the data of several clients by ``client_rows``, see there.

    ``None`` if ``client_data`` has to be called for each client: without ``client_rows``, or if a class
    overrides ``client_data`` and inherits ``client_rows``.
    """
    source = user_problem(problem)
    several = _of_several(source, "client_rows", "client_data")
    return several and several(clients)


def sizes_of(problem: Problem, clients: np.ndarray) -> np.ndarray:
    """Return the numbers of samples of clients, ``[C]``, by ``client_sizes`` or by ``client_size``.

    The second is called for each client if a class overrides it and inherits ``client_sizes``.

    Args:
        clients: numbers of the clients, int64 ``[C]``.
    """
    source = user_problem(problem)
    several = _of_several(source, "client_sizes", "client_size")
    sizes = several and several(clients)
    return np.array([source.client_size(client) for client in clients.tolist()]) if sizes is None else sizes


def has_sizes(problem: Problem) -> bool:
    """Return whether a problem defines the numbers of its clients' samples without their data."""
    source = user_problem(problem)
    return source.single_row or any(
        getattr(getattr(source, name), "__func__", None) is not getattr(Problem, name)
        for name in ("client_size", "client_sizes")
    )


def minibatch_rows(problem: Problem, size: int) -> int:
    """Return the number of rows of minibatches for which ``size`` rows are requested; 0 means all rows."""
    return min(size, 1) if user_problem(problem).single_row else size


def listed_clients(clients: int, number: int = LISTED) -> np.ndarray:
    """Return the numbers of all clients, or of ``number`` evenly spaced ones if there are more, ascending."""
    number = min(clients, number)
    return np.arange(number) * (clients - 1) // max(number - 1, 1)


def user_point(problem: Problem, point: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return views of a point (all blocks in one vector) by block of the user's problem: x, y of a game."""
    sizes = user_problem(problem).variables().sizes
    return dict(zip(sizes, point.split([*sizes.values()])))


def named_point(problem: Problem, point) -> dict[str, dict[str, torch.Tensor]]:
    """Return a copy of the point by block and parameter of the user's problem."""
    blocks = problem.blocks_of(*point) if isinstance(problem, Game) else dict(zip(problem.variables(), point))
    return {block: {name: value.clone() for name, value in named.items()} for block, named in blocks.items()}


def as_family(problem: Problem, family: str) -> Problem:
    """Return ``problem`` as a method of ``family`` needs it: a prepared minimax problem as a :class:`Game` if
    the family is "operator", otherwise the problem itself."""
    game = (problem.family, family) == ("minimax", "operator")
    return Game(cast("Minimax | Minimisation", problem)) if game else problem


def is_analytic(problem: Problem) -> bool:
    """Return whether all derivatives of a problem are analytic, so that autograd is not used.

    A game has the derivatives of its minimax problem.
    """
    if isinstance(problem, Game):
        return is_analytic(problem.problem)
    if isinstance(problem, Composition):
        return problem.jacobian is not None and problem.outer_gradient is not None
    return isinstance(problem, Operator) or getattr(problem, "gradients", None) is not None


def initial_point(problem: Problem, seed: int) -> dict[str, torch.Tensor]:
    """Return the result of ``problem.initial`` for a seed of the run, which also seeds global generators."""
    with seeded_globals(seed):
        return problem.initial(generator(seed, "initial"))


def starting_point(problem: Problem, dtype, device="cpu", seed: int = 0) -> list[torch.Tensor]:
    """Return the starting point of a run with this seed, one flat vector ``[d]`` per block.

    Checks before a run use the seed 0.
    """
    start = initial_point(problem, seed)
    return [
        as_tensor(start.get(block, torch.zeros(size))).reshape(-1).to(device, dtype)
        for block, size in problem.variables().sizes.items()
    ]


def network_block(problem: Problem) -> str:
    """Return the block of a problem's network: y, the variables of the lower problem, if it is bilevel."""
    return "y" if problem.family == "bilevel" else "x"


def network_parameters(problem: Problem) -> dict[str, tuple[str, str]]:
    """Return the block of each parameter of a problem's network and its name there; empty without a network.

    The block is x, z for a :class:`Game`, or y for a bilevel problem.
    """
    block, prefix = ("z", "x.") if isinstance(problem, Game) else (network_block(problem), "")
    return {name: (block, prefix + name) for name in problem.network}


def network_constants(problem: Problem) -> tuple[Mapping[str, torch.Tensor], Mapping[str, str]]:
    """Return the entries of the ``state_dict`` of a problem's network that are not parameters.

    Args:
        problem: a prepared problem, not a :class:`Game`.

    Returns:
        The constants by name, and the first name of a shared parameter by its further names.
    """
    return problem.model.fixed() if problem.network else ({}, {})  # type: ignore[attr-defined]


def with_network_weights(
    problem: Problem, point: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return a starting point in which parameters of the network are replaced by ``weights``.

    Args:
        point: flat vectors by block; missing blocks are 0.
        weights: values by the names of the network's parameters.

    Returns:
        Flat vectors by block; that of the network is float64, in which every weight is exact.
    """
    blocks, where = problem.variables(), network_parameters(problem)
    (block,) = {block for block, _ in where.values()}
    flat = as_tensor(point.get(block, torch.zeros(blocks.sizes[block]))).reshape(-1).double().clone()
    named = blocks.unflatten(block, flat)
    for name, values in weights.items():
        named[where[name][1]].copy_(values)
    return {**point, block: flat}
