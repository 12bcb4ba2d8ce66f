"""Metrics that change while a run goes on, or cannot be recorded: the first evaluation decides."""

import math
import sys

import numpy as np
import pytest
import torch
from games import Game, configuration
from launch import launch

import mpifed
from mpifed.algorithms import FGDA
from mpifed.base.errors import ContractError
from mpifed.cli.main import main
from mpifed.config.sections import Stop
from mpifed.parallel.comm import CollectiveError, SerialComm
from mpifed.simulation.evaluation import expect_metrics
from mpifed.storage.format import End

COMM, NAN = SerialComm(), math.nan


class Moody(Game):
    """Each evaluation returns the next of the answers, the last one again and again."""

    answers = []

    def metrics(self, x, y, predictions):
        return Moody.answers.pop(0) if len(Moody.answers) > 1 else Moody.answers[0]


def run(out, answers, rounds=4, stop=None, **settings) -> mpifed.Result:
    Moody.answers = list(answers)
    settings = dict(eval_every=1, checkpoint_every=1, overwrite=False) | settings
    config = configuration(FGDA(q=2, gamma=0.02, lam=0.02), Moody(), out, rounds=rounds, **settings)
    return mpifed.run(config.model_copy(update={"stop": stop or Stop()}), COMM)


@pytest.mark.parametrize("every", [0, 1])
def test_one_that_comes_or_goes_costs_nothing(tmp_path, capsys, every):
    """The sixth answer is of the output point."""
    answers = [
        {"a": 1, "b": 10},
        {"a": 2},
        {"c": 7, "b": 30, "a": 3},
        {},
        {"b": 50, "c": 8, "d": 9},
        {"c": 1, "a": 6},
    ]
    result, stored = run(tmp_path, answers, checkpoint_every=every), mpifed.load(tmp_path)
    said = capsys.readouterr().err
    assert said.count("Moody.metrics returns 'c' after round 2, and did not at first") == 1, said
    assert said.count("Moody.metrics returns 'd' after round 4") == 1 and said.count("warning") == 2, said
    for one in (result, stored):
        assert list(one.history) == ["round", "a", "b"] and one.history["round"] == [0, 1, 2, 3, 4]
        np.testing.assert_array_equal(one.history["a"], [1, 2, 3, NAN, NAN])
        np.testing.assert_array_equal(one.history["b"], [10, NAN, 30, NAN, 50])
        np.testing.assert_equal(one.metrics, {"a": 6.0, "b": NAN})


def test_a_run_that_continues_keeps_its_names(tmp_path, capsys):
    run(tmp_path, [{"b": 1, "a": 2}])
    continued = run(tmp_path, [{"new": 3, "a": 5}], rounds=6)
    assert "returns 'new' after round 5" in capsys.readouterr().err
    for one in (continued, mpifed.load(tmp_path)):
        assert list(one.history) == ["round", "b", "a"] and {*one.metrics} == {"a", "b"}
        np.testing.assert_array_equal(one.history["a"], [2] * 5 + [5] * 2)
        np.testing.assert_array_equal(one.history["b"], [1] * 5 + [NAN] * 2)


def test_a_problem_without_metrics_at_first_has_none(tmp_path, capsys):
    assert list(run(tmp_path, [{}, {"late": 1}]).history) == ["round"]
    assert "only no metric can be recorded" in capsys.readouterr().err


WRONG = {
    "name of the rounds": ({"round": 1}, "the metric 'round' is the column of the rounds"),
    "empty": ({"": 1}, "the metric '' is empty or has blanks at an end"),
    "blank": ({"a ": 1}, "the metric 'a ' is empty or has blanks at an end"),
    "slash": ({"a/b": 1}, "the metric 'a/b' is a place in the results file"),
    "dot": ({".": 1}, "the metric '.' is a place in the results file"),
    "NUL": ({"a\0b": 1}, r"the metric 'a\x00b' has characters that cannot be printed"),
    "surrogate": ({"a\ud800": 1}, "has characters that cannot be printed"),
    "long": ({"a" * 101: 1}, "has 101 characters, more than 100"),
    "number for a name": ({3: 1}, "expected names of metrics that are text, got 3"),
    "no table": ([("a", 1)], "expected a dictionary name → number, got [('a', 1)]"),
    "nothing": (None, "expected a dictionary name → number, got None"),
    "text": ({"a": "0.5"}, "the metric 'a' is '0.5', expected a number"),
    "none": ({"ok": 1, "a": None}, "the metric 'a' is None, expected a number"),
    "several": ({"a": torch.ones(2)}, "the metric 'a' is tensor([1., 1.]"),
    "array": ({"a": np.ones(3)}, "the metric 'a' is array([1., 1., 1.]), expected a number"),
    "complex": ({"a": 1j}, "the metric 'a' is 1j, expected a number"),
    "huge": ({"a": 10**400}, "expected a number"),
    "long text": ({"a": "x" * 10**5}, "expected a number"),
}


@pytest.mark.parametrize("answer, says", WRONG.values(), ids=WRONG)
def test_what_cannot_be_recorded_is_refused_before_the_first_round(tmp_path, answer, says):
    with pytest.raises(CollectiveError) as refused:
        run(tmp_path / "run", [answer])
    message = str(refused.value)
    assert message.startswith("Moody.metrics after round 0: ") and says in message, message
    assert len(message) < 300 and not list(tmp_path.glob("run/*.h5"))


def test_what_is_no_number_later_leaves_what_was_done(tmp_path):
    with pytest.raises(CollectiveError, match="Moody.metrics after round 3: the metric 'a' is 'x'"):
        run(tmp_path, [{"a": 1}, {"a": 1}, {"a": 1}, {"a": "x"}])
    assert run(tmp_path, [{"a": 2}]).history["a"] == [1, 1, 1, 2, 2]


def test_numbers_of_every_kind():
    values = {
        "int": 1, "bool": True, "numpy": np.float32(1), "array": np.ones((1, 1)), "tensor": torch.ones(1),
        "gradient": torch.ones((), requires_grad=True), "ä ö": 1.0, "a" * 100: 1,
    }  # fmt: skip
    assert expect_metrics(values) == dict.fromkeys(values, 1.0)
    with pytest.raises(ContractError, match="is a place"):
        expect_metrics({"..": 1})


def test_old_files_are_left_alone_by_what_is_refused(tmp_path):
    run(tmp_path, [{"a": 1}])
    before = (tmp_path / "run.h5").read_bytes()
    with pytest.raises(CollectiveError, match="the column of the rounds"):
        run(tmp_path, [{"round": 1}], overwrite=True)
    assert (tmp_path / "run.h5").read_bytes() == before


def test_the_bar_and_tensorboard_have_the_same_columns(tmp_path, monkeypatch, capsys):
    written = []
    board = "mpifed.storage.tensorboard.Scalars.on_evaluation"
    monkeypatch.setattr(board, lambda self, event: written.append((dict(event.metrics), event.round)))
    answers = [{"a": 1, "b": 2}, {"a": 2, "c": 3}, {"b": 1e300, "a": 7}]
    run(tmp_path, answers, tensorboard=True, progress=True)
    np.testing.assert_equal(written[:2], [({"a": 1.0, "b": 2.0}, 0), ({"a": 2.0, "b": NAN}, 1)])
    assert all(list(values) == ["a", "b"] for values, _ in written) and len(written) == 5
    assert "a=7, b=1e+300" in capsys.readouterr().err


AUC = Stop(metric="auc", at_least=0.5)


def test_a_target_that_was_never_a_number_is_told(tmp_path, capsys):
    result = run(tmp_path, [{"auc": NAN}], stop=AUC)
    said = capsys.readouterr().err
    assert said.count("warning: stop.metric = 'auc' is not a number (nan) after round 0") == 1, said
    assert result.end == End("rounds", "all 4 rounds done; auc was never a number")
    assert run(tmp_path, [{"auc": NAN}], stop=AUC).end == mpifed.load(tmp_path).end == result.end
    longer = run(tmp_path, [{"auc": NAN}], rounds=5, stop=AUC)
    assert longer.stopped == "all 5 rounds done; auc was never a number"
    assert run(tmp_path, [{"auc": 0.1}], rounds=6, stop=AUC).stopped == "all 6 rounds done"
    assert run(tmp_path, [{"auc": NAN}], rounds=7, stop=AUC).stopped == "all 7 rounds done"


def test_nan_reaches_nothing_and_a_number_does(tmp_path):
    for bound in ({"at_least": 0.5}, {"at_most": 0.9}):
        stop = Stop(metric="auc", **bound)
        result = run(tmp_path / str(*bound), [{"auc": NAN}, {}, {"auc": 0.7}], stop=stop)
        assert result.end.kind == "target" and result.history["round"] == [0, 1, 2], result.end


def test_a_target_that_is_no_metric(tmp_path):
    with pytest.raises(CollectiveError, match=r"'acu' is no metric of this problem: did you mean 'auc'\?"):
        run(tmp_path / "a", [{"auc": 1}], stop=Stop(metric="acu", at_least=1))
    with pytest.raises(CollectiveError, match="'round' is no metric"):
        run(tmp_path / "a", [{"auc": 1}], stop=Stop(metric="round", at_least=1))
    run(tmp_path, [{"auc": 0.1}])
    with pytest.raises(CollectiveError, match="'late' is no metric"):  # not rounds later
        run(tmp_path, [{"late": 1}], rounds=9, stop=Stop(metric="late", at_least=1))


PLUGIN = """
from mpifed.problems import Saddle

class Odd(Saddle):
    def metrics(self, x, y, predictions):
        return {"round": 1.0}
"""


def test_all_ranks_are_told(tmp_path, monkeypatch, capsys):
    (tmp_path / "odd.py").write_text(PLUGIN)
    job = tmp_path / "job.toml"
    job.write_text(
        'algorithm = { name = "FGDA", q = 1 }\n'
        f'problem = {{ name = "{tmp_path}/odd.py:Odd", clients = 2, d = 2 }}\n'
        f'run = {{ out = "{tmp_path}/run", progress = false }}\noracle.batch_size = 0\n'
    )
    code, output = launch(2, ["-m", "mpifed", "run", job], limit=120)
    assert code == 2 and output.count("the metric 'round' is the column of the rounds") == 1, output
    assert "Traceback" not in output and "MPI_ABORT" not in output, output
    monkeypatch.setattr("mpifed.cli.errors.signal.signal", lambda *arguments: None)
    monkeypatch.setattr(sys, "argv", ["mpifed", "run", str(job)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2 and "Odd.metrics after round 0" in capsys.readouterr().err
