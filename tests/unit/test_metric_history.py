"""Metrics during a run: changing names, invalid values, targets, and the context of user code."""

import math
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from games import DX, DY, Game, configuration, started

import mpifed
from mpifed.algorithms import FGDA, FSGDA
from mpifed.base.errors import ContractError
from mpifed.config.job import Stop
from mpifed.core.metrics import Column
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.running.stopping import StopRule
from mpifed.simulation.problem_metrics import expect_metrics
from mpifed.storage.results import End, load

COMM, NAN = SerialComm(), math.nan


class Scripted(Game):
    """Each evaluation returns the next of the answers, and the last one from then on."""

    answers = []

    def metrics(self, x, y, predictions):
        return Scripted.answers.pop(0) if len(Scripted.answers) > 1 else Scripted.answers[0]


def run(out, answers, rounds=4, stop=None, output=None, **settings) -> mpifed.Result:
    Scripted.answers = list(answers)
    settings = dict(eval_every=1, checkpoint_every=1, overwrite=False) | settings
    config = configuration(FGDA(q=2, gamma=0.02, lam=0.02), Scripted(), out, rounds=rounds, **settings)
    return mpifed.run(config.model_copy(update={"stop": stop or Stop(), "output": output}), COMM)


@pytest.mark.parametrize("every", [0, 1])
def test_first_evaluation_determines_the_names(tmp_path, capsys, every):
    """Missing metrics are NaN, new metrics cause a warning. The output point is that of the fifth answer."""
    first = [{"a": 1, "b": 10}, {"a": 2}, {"c": 7, "b": 30, "a": 3}]
    answers = [*first, {}, {"b": 50, "c": 8, "d": 9}, {"a": 6}]
    result, stored = run(tmp_path, answers, checkpoint_every=every), mpifed.load(tmp_path)
    output = capsys.readouterr().err
    assert output.count("Scripted.metrics returns 'c'") == 1 and output.count("after round 2") == 1, output
    assert output.count("Scripted.metrics returns 'd'") == 1 and output.count("warning") == 2, output
    for read in (result, stored):
        assert list(read.history) == ["round", "a", "b"] and read.history["round"] == [0, 1, 2, 3, 4]
        np.testing.assert_array_equal(read.history["a"], [1, 2, 3, NAN, NAN])
        np.testing.assert_array_equal(read.history["b"], [10, NAN, 30, NAN, 50])
        np.testing.assert_equal(read.metrics, {"a": NAN, "b": 50.0})


@pytest.mark.parametrize("output, metric", [
    ("last", 3.0), ("average", 3.0),
    ("uniform", 4.0),  # the last evaluation was that of the current point, not of the drawn one
])  # fmt: skip
def test_the_output_is_evaluated_unless_the_last_evaluation_was_its_own(tmp_path, output, metric):
    result = run(tmp_path, [{"a": k} for k in (1, 2, 3, 4)], rounds=2, output=output)
    assert result.metrics == {"a": metric}


def test_resumed_run_keeps_its_names(tmp_path, capsys):
    run(tmp_path, [{"b": 1, "a": 2}])
    columns = load(tmp_path).columns
    continued = run(tmp_path, [{"new": 3, "a": 5}], rounds=6)
    assert load(tmp_path).columns == columns == {"b": Column("b"), "a": Column("a")}
    assert "returns 'new'" in capsys.readouterr().err
    for read in (continued, mpifed.load(tmp_path)):
        assert list(read.history) == ["round", "b", "a"] and {*read.metrics} == {"a", "b"}
        np.testing.assert_array_equal(read.history["a"], [2] * 5 + [5] * 2)
        np.testing.assert_array_equal(read.history["b"], [1] * 5 + [NAN] * 2)


def test_no_metrics_in_the_first_evaluation(tmp_path, capsys):
    assert list(run(tmp_path, [{}, {"late": 1}]).history) == ["round"]
    assert "returns 'late'" in capsys.readouterr().err


INVALID = {
    "name of the rounds": ({"round": 1}, "the metric 'round' is the column of the rounds"),
    "empty": ({"": 1}, "the metric '' is empty, or begins"),
    "blank": ({"a ": 1}, "is empty, or begins or ends with a blank"),
    "slash": ({"a/b": 1}, "the metric 'a/b' is a path in the results file"),
    "dot": ({".": 1}, "the metric '.' is a path in the results file"),
    "NUL": ({"a\0b": 1}, r"the metric 'a\x00b' has characters that cannot be printed"),
    "surrogate": ({"a\ud800": 1}, "has characters that cannot be printed"),
    "long": ({"a" * 101: 1}, "has 101 characters, more than 100"),
    "number for a name": ({3: 1}, "expected strings as names of metrics, got 3"),
    "no table": ([("a", 1)], "got [('a', 1)]"),
    "nothing": (None, "got None"),
    "text": ({"a": "0.5"}, "the metric 'a' is '0.5', expected a number"),
    "none": ({"ok": 1, "a": None}, "the metric 'a' is None, expected a number"),
    "several": ({"a": torch.ones(2)}, "the metric 'a' is tensor([1., 1.]"),
    "array": ({"a": np.ones(3)}, "the metric 'a' is array([1., 1., 1.]), expected a number"),
    "complex": ({"a": 1j}, "the metric 'a' is 1j, expected a number"),
    "huge": ({"a": 10**400}, "expected a number"),
    "long text": ({"a": "x" * 10**5}, "expected a number"),
}


@pytest.mark.parametrize("answer, message", INVALID.values(), ids=INVALID)
def test_invalid_metrics_are_refused_before_the_first_round(tmp_path, answer, message):
    with pytest.raises(CollectiveError) as error:
        run(tmp_path / "run", [answer])
    text = str(error.value)
    assert text.startswith("Scripted.metrics after round 0: ") and message in text, text
    assert len(text) < 300 and not list(tmp_path.glob("run/*.h5"))


def test_types_of_numbers():
    values = {
        "int": 1, "bool": True, "numpy": np.float32(1), "array": np.ones((1, 1)), "tensor": torch.ones(1),
        "gradient": torch.ones((), requires_grad=True), "ä ö": 1.0, "a" * 100: 1,
    }  # fmt: skip
    assert expect_metrics(values) == dict.fromkeys(values, 1.0)
    with pytest.raises(ContractError):
        expect_metrics({"..": 1})


def test_refused_metrics_do_not_replace_old_files(tmp_path):
    run(tmp_path, [{"a": 1}])
    before = (tmp_path / "run.h5").read_bytes()
    with pytest.raises(CollectiveError, match="the metric 'round'"):
        run(tmp_path, [{"round": 1}], overwrite=True)
    assert (tmp_path / "run.h5").read_bytes() == before


def test_progress_bar_and_tensorboard_have_the_same_metrics(tmp_path, monkeypatch, capsys):
    written = []
    monkeypatch.setattr(
        "mpifed.running.callbacks.TensorBoard.on_evaluation",
        lambda self, event: written.append((dict(event.metrics), event.round)),
    )
    answers = [{"a": 1, "b": 2}, {"a": 2, "c": 3}, {"b": 1e300, "a": 7}]
    run(tmp_path, answers, tensorboard=True, progress=True)
    np.testing.assert_equal(written[:2], [({"a": 1.0, "b": 2.0}, 0), ({"a": 2.0, "b": NAN}, 1)])
    assert all(list(values) == ["a", "b"] for values, _ in written) and len(written) == 5
    assert "a=7, b=1e+300" in capsys.readouterr().err


AUC = Stop(metric="auc", at_least=0.5)


def test_target_whose_metric_is_always_nan(tmp_path, capsys):
    result = run(tmp_path, [{"auc": NAN}], stop=AUC)
    output = capsys.readouterr().err
    assert output.count("warning: stop.metric = 'auc' is nan after round 0: it cannot end the run") == 1
    assert result.end == End("rounds", "all 4 rounds done; auc was always nan")
    assert run(tmp_path, [{"auc": NAN}], stop=AUC).end == mpifed.load(tmp_path).end == result.end
    longer = run(tmp_path, [{"auc": NAN}], rounds=5, stop=AUC)
    assert longer.stopped == "all 5 rounds done; auc was always nan"
    assert run(tmp_path, [{"auc": 0.1}], rounds=6, stop=AUC).stopped == "all 6 rounds done"
    assert run(tmp_path, [{"auc": NAN}], rounds=7, stop=AUC).stopped == "all 7 rounds done"


@pytest.mark.parametrize("bound", [{"at_least": 0.5}, {"at_most": 0.9}], ids=str)
def test_target_is_reached_by_a_number_and_not_by_nan(tmp_path, bound):
    result = run(tmp_path, [{"auc": NAN}, {}, {"auc": 0.7}], stop=Stop(metric="auc", **bound))
    assert result.end.kind == "target" and result.history["round"] == [0, 1, 2], result.end


def test_target_of_an_unknown_metric(tmp_path):
    with pytest.raises(CollectiveError, match=r"'acu' is not a metric of this problem: did you mean 'auc'\?"):
        run(tmp_path / "a", [{"auc": 1}], stop=Stop(metric="acu", at_least=1))
    with pytest.raises(CollectiveError, match="'round' is not a metric"):
        run(tmp_path / "a", [{"auc": 1}], stop=Stop(metric="round", at_least=1))
    run(tmp_path, [{"auc": 0.1}])
    with pytest.raises(CollectiveError, match="'late' is not a metric"):  # when the run is resumed
        run(tmp_path, [{"late": 1}], rounds=9, stop=Stop(metric="late", at_least=1))


#: Values of a metric after rounds 0, 1, ...; settings of patience; the round of the end and that of the best.
PATIENCE = {
    "falling": ([5, 4, 4, 3, 3, 3, 3], {"patience": 2}, 5, 3),
    "one": ([5, 4, 4, 3], {"patience": 1}, 2, 1),
    "growing": ([0.5, 0.6, 0.5, 0.6, 0.7], {"patience": 2}, 3, 1),
    "small changes": ([5, 4.75, 4.5, 4.25, 4, 3], {"patience": 2, "min_delta": 0.5}, 2, 0),
    "a sum of small changes": ([5, 4.75, 4.25, 4.25, 4.25], {"patience": 2, "min_delta": 0.5}, 4, 2),
    "nan": ([NAN, NAN, NAN, 2, NAN, NAN], {"patience": 2}, 5, 3),
    "always improving": ([5, 4, 3, 2, 1], {"patience": 1}, None, None),
    "target first": ([5, 4, 4], {"patience": 1, "at_most": 4}, 1, None),
}


@pytest.mark.parametrize("values, settings, end, best", PATIENCE.values(), ids=PATIENCE)
def test_patience(values, settings, end, best):
    """The end is the same for a run that is resumed after any of its evaluations."""
    columns, stop = {"m": Column("m", maximised=values[0] < 1)}, Stop(metric="m", **settings)
    for cut in range(len(values) if end is None else end + 1):
        rule = StopRule(SimpleNamespace(rounds=100, stop=stop), COMM)
        rule.restore({"round": [*range(cut)], "m": values[:cut]}, columns)
        ends = ((r, rule.end_by_metric({"m": values[r]}, r, columns)) for r in range(cut, len(values)))
        r, reason = next(((r, reason) for r, reason in ends if reason), (None, None))
        assert r == end
        if best is not None:
            count, value = settings["patience"], f"{values[best]:.6g}"
            sentence = f"m has not improved in {count} evaluation(s) since {value} after round {best}"
            assert reason == End("patience", sentence)


def test_patience_ends_a_run(tmp_path):
    stop = Stop(metric="a", patience=2)
    result = run(tmp_path, [{"a": 1}], stop=stop)
    assert result.end.kind == "patience" and result.history["round"] == [0, 1, 2] and result.metrics
    assert run(tmp_path, [{"a": 1}], stop=stop).end == result.end
    longer = run(tmp_path, [{"a": 1}], stop=Stop(metric="a", patience=3))
    assert longer.history["round"] == [0, 1, 2, 3], "another rule continues the run"


def test_the_best_point_is_kept(tmp_path, capsys):
    values = [5, 2, 3, 2, NAN]
    answers = [{"a": value} for value in values]
    result, stored = run(tmp_path, answers, keep_best="a"), mpifed.load(tmp_path)
    assert "best a: 2 after round 1" in capsys.readouterr().err
    whole = run(tmp_path / "whole", [{"a": 0}], rounds=1)
    for read in (result, stored):
        best = read.best
        assert (best.round, best.metrics, best.best) == (1, {"a": 2.0}, None)
        assert all(torch.equal(best.point[block], whole.point[block]) for block in "xy")
        assert best.parameters.keys() == read.parameters.keys() and read.round == 4
        assert "best     a 2 after round 1" in repr(read)
    with pytest.raises(CollectiveError, match=r"run.keep_best = 'b' is not a metric.*: expected one of a"):
        run(tmp_path / "b", answers, keep_best="b")


def test_the_best_point_of_a_resumed_run(tmp_path):
    values = [{"a": value} for value in (5, 2, 3)]
    first = run(tmp_path, values, rounds=2, keep_best="a")
    second = run(tmp_path, [{"a": 4}], keep_best="a")
    assert second.best.round == 1 and torch.equal(first.best.point["x"], second.best.point["x"])


def test_the_best_point_of_another_metric_is_not_restored(tmp_path):
    answers = [{"a": value, "b": 1} for value in (1, 2, 3, 4, 5)]
    assert run(tmp_path, answers, keep_best="a").best.round == 0
    assert run(tmp_path, [{"a": 6, "b": 1}], rounds=6, keep_best="b").best.round == 5


@dataclass
class Noting(Game):
    """Records torch's default dtype in every method."""

    seen: dict = field(default_factory=dict)
    test_rows = 3

    def _note(self, where):
        self.seen.setdefault(where, set()).add(torch.get_default_dtype())

    def prepare(self, seed, data_dir=None):
        self._note("prepare")
        super().prepare(seed, data_dir)

    def initial(self, rng):
        self._note("initial")
        return {block: torch.from_numpy(rng.standard_normal(size)) for block, size in (("x", DX), ("y", DY))}

    def loss(self, x, y, batch):
        self._note("loss")
        return super().loss(x, y, batch)

    def predict(self, x, y, rows):
        self._note("predict")
        return torch.zeros(rows.stop - rows.start)

    def metrics(self, x, y, predictions):
        self._note("metrics")
        return {"mean": float(np.mean(predictions.numpy()))}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_default_dtype_of_user_code(tmp_path, dtype):
    problem, before = Noting(), torch.float64 if dtype == torch.float32 else torch.float32
    settings = {"dtype": str(dtype).removeprefix("torch.")}
    torch.set_default_dtype(before)
    try:
        config = configuration(FSGDA(K=1, eta_xl=0.01, eta_yl=0.01), problem, tmp_path, **settings)
        simulation = started(config, 1)
        assert simulation.evaluate() == {"mean": 0.0}
        assert torch.get_default_dtype() == before
    finally:
        torch.set_default_dtype(torch.float32)
    assert problem.seen == {part: {dtype} for part in ("prepare", "initial", "loss", "predict", "metrics")}
