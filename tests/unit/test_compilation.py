"""Losses that are compiled or evaluated in mixed precision.

The compiler backend "eager" runs the traced graph with torch's own kernels: everything but the generated code
is as with "inductor", which one test uses.
"""

import shutil

import numpy as np
import pytest
import torch
from everything import FITTING, METHODS, SETTINGS, method, problem
from games import Game, configuration, started

import mpifed.core.autodiff as autodiff
from mpifed import resume, run
from mpifed.algorithms import ALGORITHMS, LocalSGDA
from mpifed.base.errors import ConfigError
from mpifed.core.autodiff import Evaluation
from mpifed.core.oracle import ORACLES
from mpifed.core.problem import is_analytic
from mpifed.core.sampling import Sampler
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.problems import PROBLEMS
from mpifed.simulation.simulation import Simulation

COMM = SerialComm()
ROUNDING = 2.0**-9  # of bfloat16, relative
BILEVEL = {name for name, cls in {**PROBLEMS, **ALGORITHMS}.items() if cls.family == "bilevel"}
DIFFERENTIATED = [name for name in PROBLEMS if name not in BILEVEL and not is_analytic(problem(name))]
#: Each of these problems with one method, and each method on a small problem.
SMALL = ("DeepAUC", "LinearMAML", "Classification", "ClientMixture")
CASES = [next(pair for pair in FITTING if pair[1] == name) for name in DIFFERENTIATED if name not in SMALL]
CASES += [
    next(pair for pair in FITTING if pair[0] == name and pair[1] in SMALL)
    for name in METHODS
    if name not in BILEVEL
]
#: A method calls compiled gradients as it calls others: all problems, and every third of the other cases.
COMPILED = [number for number, pair in enumerate(CASES) if pair[1] not in SMALL or number % 3 == 0]


@pytest.fixture
def eager(monkeypatch):
    monkeypatch.setattr(autodiff, "BACKEND", "eager")


def final(names, **settings) -> torch.Tensor:
    """The state after two rounds."""
    settings = dict(dtype="float32", noise=0) | settings
    config = configuration(method(names[0]), problem(names[1]), "unused", **settings)
    return started(config, 2).shared.buffer


@pytest.mark.parametrize("number", COMPILED, ids=["-".join(CASES[number]) for number in COMPILED])
def test_a_compiled_gradient_is_the_same_function(number, eager):
    """Every second case in pairs. 1e-9 in float64: the same operations, with sums in another order."""
    names, group = CASES[number], 1 + number % 2
    settings = dict(dtype="float64", group=group)
    torch.testing.assert_close(
        final(names, compile="default", **settings), final(names, **settings), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("number", range(len(CASES)), ids=list(map("-".join, CASES)))
def test_state_stays_float32_under_autocast(number, monkeypatch):
    """Every second case in the loop. Steps are small: rounding errors of gradients change the state by less.

    The last convolution of conv4 has images of one pixel, whose gradients oneDNN computes from uninitialised
    memory in bfloat16 on some processors.
    """
    perceptron = {"model": {"name": "mlp", "hidden": [4]}}
    monkeypatch.setitem(SETTINGS, "FewShotMAML", SETTINGS["FewShotMAML"] | perceptron)
    names, group = CASES[number], 2 - number % 2
    found, plain = final(names, autocast="bfloat16", group=group), final(names, group=group)
    assert found.dtype == torch.float32
    assert (found - plain).norm() <= 8 * ROUNDING * plain.norm()
    assert not torch.equal(found, plain), "products were in float32"


@pytest.mark.parametrize("name", [name for name in PROBLEMS if name not in {*DIFFERENTIATED, *BILEVEL}])
@pytest.mark.parametrize("option", [dict(compile="default"), dict(autocast="bfloat16")], ids=str)
def test_analytic_gradients_are_rejected(name, option):
    names = next(pair for pair in FITTING if pair[1] == name)
    with pytest.raises(ConfigError, match=f"but {name} has analytic gradients: expected run.* = 'none'"):
        final(names, **option)


def test_second_derivatives_are_not_compiled():
    with pytest.raises(ConfigError, match="run.compile = 'default' does not support second derivatives"):
        final(("SimFBO", "QuadraticBilevel"), compile="default")


def gradients(way: Evaluation, batched: bool) -> torch.Tensor:
    """Gradients of three clients at one point, on the same samples."""
    fair = problem("FairClassification")
    fair.prepare(0)
    sampler = Sampler(
        fair, range(3), 0, batch_size=32, noise=None, noise_width=0, dtype=torch.float32, device="cpu"
    )
    oracle = ORACLES["minimax"](fair, sampler, batched, way)
    oracle.select_clients(slice(0, 3) if batched else slice(1, 2))
    generator = torch.Generator().manual_seed(1)
    point = [torch.randn(size, generator=generator) for size in fair.variables().sizes.values()]
    return torch.cat(oracle.grad(*point, oracle.sample()), dim=1)


@pytest.mark.parametrize("compile", ["none", "default"])
@pytest.mark.parametrize("batched", [False, True], ids=["one", "three"])
def test_gradients_in_bfloat16(compile, batched, eager):
    """Operands and results of two forward and two backward products are rounded: at most eight roundings."""
    plain, mixed = gradients(Evaluation(), batched), gradients(Evaluation(compile, "bfloat16"), batched)
    assert mixed.dtype == torch.float32 and not torch.equal(plain, mixed)
    assert (mixed - plain).norm() <= 8 * ROUNDING * plain.norm()


def overwriting(graph, inputs, **_):
    """Return results in the same memory every time, like the replay of a CUDA graph."""
    kept = []

    def replay(*arguments):
        for one in kept:
            one.fill_(torch.nan)
        results = graph(*arguments)
        if not kept:
            kept.extend(torch.empty_like(one) for one in results)
        for one, result in zip(kept, results):
            one.copy_(result)
        return tuple(kept)

    return replay


@pytest.mark.parametrize("group", [1, 2], ids=["loop", "pairs"])
@pytest.mark.parametrize("names", [("FGDA", "DeepAUC"), ("MFCGD", "LinearMAML")], ids="-".join)
def test_results_of_a_graph_survive_its_next_replay(names, group, monkeypatch):
    """These methods keep a gradient while they compute the next; tolerance as above."""
    monkeypatch.setattr(autodiff, "BACKEND", overwriting)
    settings = dict(dtype="float64", group=group)
    found, plain = final(names, compile="reduce-overhead", **settings), final(names, **settings)
    torch.testing.assert_close(found, plain, rtol=1e-9, atol=1e-9)


def test_one_compilation_per_run(eager):
    """Also after a run with other shapes in the same process."""
    final(("FGDA", "DeepAUC"), compile="default", group="all")
    torch._dynamo.utils.counters.clear()
    final(("FGDA", "DeepAUC"), compile="default", group=2)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler")
def test_generated_code(tmp_path):
    """With torch's deterministic algorithms. 1e-9 in float64: fused loops sum in another order."""
    settings = dict(reduction="exact", group=1, threads=1)
    points = []
    for way in ("none", "reduce-overhead"):
        config = configuration(method("FGDA"), problem("DeepAUC"), tmp_path / way, compile=way, **settings)
        points.append(torch.cat(list(run(config, COMM).point.values())))
    torch.testing.assert_close(*points, rtol=1e-9, atol=1e-9)


class Branch(Game):
    """A loss that branches on a value, which cannot be traced."""

    def loss(self, x, y, batch):
        value = super().loss(x, y, batch)
        return 2 * value if value.item() > 0 else value


def missing(graph, inputs):
    raise RuntimeError("no compiler. Install one\nwith a long trace")


@pytest.mark.parametrize(
    "loss, backend, error",
    [(Branch(), "eager", "expected functions that torch supports.*got .*: leave the options out"),
     (Game(), missing, "^run.compile = 'default': .* C.. compiler.*RuntimeError: no compiler.?.?: leave")],
    ids=["branch", "compiler"],
)  # fmt: skip
def test_losses_that_cannot_be_compiled_are_rejected_before_the_first_round(
    loss, backend, error, monkeypatch
):
    monkeypatch.setattr(autodiff, "BACKEND", backend)
    config = configuration(LocalSGDA(q=2, eta_x=0.1, eta_y=0.1), loss, "unused", compile="default")
    with pytest.raises(CollectiveError, match=error) as raised:
        Simulation.from_settings(config, COMM)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "settings, error",
    [
        (dict(autocast="bfloat16", dtype="float64"), "autocast = 'bfloat16' needs dtype = 'float32', got"),
        (dict(autocast="float16"), "run.autocast: Input should be 'none' or 'bfloat16', got 'float16'"),
        (
            dict(matmul_precision="high", reduction="exact"),
            "reduction = 'exact' needs matmul_precision = 'highest', got 'high'",
        ),
        (dict(compile="fast"), "Input should be 'none', 'default' or 'reduce-overhead', got 'fast'"),
        *((dict(compile="default", reduction="exact", group=group),
           f"expected group = 1 with compile = 'default' and reduction = 'exact', got group = {group!r}")
          for group in (2, "auto", "all")),
    ],
)  # fmt: skip
def test_inconsistent_settings(settings, error):
    with pytest.raises(ConfigError, match=error):
        final(("FGDA", "DeepAUC"), **settings)


def test_full_batches_of_different_sizes_are_not_compiled():
    """Each size would be compiled, or results would depend on earlier sizes."""
    job = configuration(method("FGDA"), Game(), "unused", batch_size=0, group=1, compile="default")
    with pytest.raises(
        CollectiveError, match="compiled full batches need clients of one size, got 5 to 7 rows: set oracle"
    ):
        Simulation.from_settings(job, COMM)


@pytest.mark.parametrize("option", [dict(compile="default"), dict(autocast="bfloat16")], ids=str)
def test_a_resumed_run_keeps_its_options(tmp_path, eager, option):
    """Bitwise identical to an uninterrupted run; other options are rejected."""
    [(name, value)] = option.items()
    folder, names = tmp_path / "run", ("FGDA", "RobustRegression")

    def job(out, rounds, **settings):
        kept = dict(dtype="float32", reduction="exact", group=1, overwrite=False, checkpoint_every=1)
        return configuration(method(names[0]), problem(names[1]), out, rounds=rounds, **kept | settings)

    once = run(job(tmp_path / "once", 3, **option), COMM)
    run(job(folder, 2, **option), COMM)
    with pytest.raises(
        CollectiveError, match=f"another job: run.{name} is {value} in the stored run and none in this job"
    ):
        run(job(folder, 3), COMM)
    with pytest.raises(CollectiveError, match=f"depends on run.{name} .stored {value}, now none"):
        resume(folder, ["rounds=3", f"run.{name}=none"], COMM)
    on = resume(folder, ["rounds=3"], COMM)
    assert all(np.array_equal(on.point[block], once.point[block]) for block in on.point)
