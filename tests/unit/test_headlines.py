"""Statements of the headline page: their verdicts must allow them, and their figures follow from the runs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from planted_runs import panel, planted

import headlines
from claims.entries import Book, Claim, Experiment
from claims.statements import Evidence, listed, rounded_down
from mpifed.base.errors import ConfigError

ENDS = {"New": 0.1, "Old": 0.5, "Best": 0.01}


def runs(ends: dict[str, float]) -> list:
    """Return runs of three seeds per method with about these final errors."""
    return [
        planted(name, seed, [1, end * (1 + seed / 100)]) for name, end in ends.items() for seed in range(3)
    ]


def evidence(*panels, **changes) -> Evidence:
    """Return the claim that the final error of New is smaller; default: than those of Old and Best."""
    table = dict(name="it", paper="shen2024fessgda", place="here", says="", job="job", metric="error")
    claim = Claim(**table | dict(better=["New"], than=["Old", "Best"], margin=0.01) | changes)
    experiment = Experiment("job", "shen2024fessgda", "A saddle, by s", "error")
    book = Book(Path("none"), [claim], {"job": experiment}, {})
    return Evidence([book], {"job": panels or [panel(*runs(ENDS))]})


OPEN = panel(*(planted("New", seed, [1, 0.1]) for seed in range(3)),
             *(planted("Old", seed, [1, end]) for seed, end in enumerate([0.01, 0.1, 0.3])))  # fmt: skip


@pytest.mark.parametrize("results, than, right", [
    (panel(*runs(ENDS)), "Old", "agrees"),
    (panel(*runs(ENDS)), "Best", "differs"),
    (panel(*runs({"New": 0.1, "Old": 0.1})), "Old", None),
    (OPEN, "Old", "open"),
    (panel(*runs({"New": 0.1})), "Old", "open"),
])  # fmt: skip
def test_a_statement_needs_a_verdict_that_allows_it(results, than, right):
    """A tie allows none of these; a claim whose runs are missing is open."""
    for kind in ("agrees", "partly", "stated", "differs", "open"):
        found = evidence(results, than=[than])
        found.say(kind, "it")
        assert bool(found.errors) == (kind != right), kind


def test_a_statement_about_the_stated_settings_needs_that_verdict():
    tuned, stated = panel(*runs(ENDS)), panel(*runs({"New": 0.1, "Best": 0.5}), name="stated")
    found = evidence(tuned, stated, than=["Best"])
    text = found.say("stated", "it")
    assert (
        not found.errors
        and "([only at the stated settings](experiments/shen2024fessgda.md#a-saddle-by-s)):" in text
    )
    found.say("differs", "it")
    assert found.errors == ["it: a statement 'differs' needs not reproduced, got only at the stated settings"]


def test_a_statement_about_some_pairs_needs_their_states():
    found = evidence()
    text = found.say("agrees", "it", rival="Old")
    assert text == "*Agrees in part* ([partly reproduced](experiments/shen2024fessgda.md#a-saddle-by-s)):"
    found.say("differs", "it", method="New", rival="Best")
    assert not found.errors
    found.say("agrees", "it", rival="Best")
    found.say("differs", "it", task="s = 1")
    assert [one.partition(" needs ")[2] for one in found.errors] == [
        "holds, got fails",
        "fails, got no pairs",
    ]
    again = evidence(panel(*runs(ENDS)), panel(*runs({**ENDS, "Old": 0.05}), name="second search"))
    again.say("agrees", "it", rival="Old")
    again.say("open", "it", rival="Old")
    assert len(again.errors) == 1 and "got depends on the search" in again.errors[0]


def test_verdicts_at_the_stated_settings_are_shown_without_lists_of_pairs():
    found = evidence(panel(*runs(ENDS)), panel(*runs({"New": 0.5, "Old": 0.1}), name="stated"), than=["Old"])
    assert found.say("agrees", "it").startswith("*Agrees* ([reproduced, not at the stated settings](")


def test_a_page_with_a_wrong_statement_is_an_error_that_names_all():
    template = '{{ say("agrees", "it") }} a. {{ say("open", "it") }} b. {{ say("partly", "it") }} c.'
    with pytest.raises(ConfigError, match=r"not allow:\nit: .*'agrees'.*\nit: .*'open'[^\n]*$"):
        headlines.page(evidence(), template)


def test_paragraphs_of_a_page_are_wrapped_and_tables_are_not():
    words = " ".join(["word"] * 40)
    text = headlines.page(
        evidence(), f"# {words}\n\n{{{{ means('it') | max | fixed(3) }}}}\n{words}\n\n| {words} |\n"
    )
    heading, paragraph, table = text.split("\n\n")
    assert (heading, table) == (f"# {words}", f"| {words} |\n")
    first, second = paragraph.split("\n")
    assert first.startswith("0.505 word") and 125 < len(first) <= 130 and second


def test_values_count_runs_without_a_value():
    lost = [planted("New", 3, [1, math.nan], end="diverged"), planted("New", 4, [1, 0.4])]
    target = dict(statistic="rounds_to", target=0.2, scale="log", than=["Old"])
    found = evidence(panel(*runs(ENDS), *lost), **target).values("it", "New")
    assert (found.total, found.reached, found.missing, found.diverged) == (5, 3, 2, 1)
    assert found.mean_reached == pytest.approx(
        8, rel=0.15
    )  # 0.2 is at 70 % of the way to 0.1 on the log axis
    for name in ("mean", "largest"):
        with pytest.raises(ConfigError, match="2 of 5 runs of New have no value"):
            getattr(found, name)


def test_values_are_those_of_one_task_panel_and_statistic():
    both = [planted("New", 0, [1, 0.1 * s], problem={"s": s}) for s in (1, 4)]
    found = evidence(panel(*both, keys=["problem.s"]), panel(*runs({"New": 0.3}), name="stated"))
    assert found.values("it", "New", {"problem.s": 4}).mean == pytest.approx(0.4)
    assert found.values("it", "New", {"problem.s": 4}).of("problem.s") == 4
    assert found.values("it", "New", panel="stated").largest == pytest.approx(0.306)
    assert found.values("it", "New", {"problem.s": 4}, statistic="rounds_to", target=1.0).mean == 1
    with pytest.raises(ConfigError, match="expected one task, got"):
        found.values("it", "New")
    with pytest.raises(ConfigError, match="no runs of Old"):
        found.values("it", "Old", {"problem.s": 4})
    with pytest.raises(ConfigError, match="no results of the panel 'second search'"):
        found.values("it", "New", panel="second search")


def test_rivals_have_the_state_for_all_methods_and_tasks():
    found = evidence(panel(*runs({**ENDS, "Newer": 0.1})), better=["New", "Newer"])
    assert found.rivals("it", "holds", "New", "Newer") == ["Old"]
    found = evidence(panel(*runs({**ENDS, "Newer": 1.0})), better=["New", "Newer"])
    assert found.rivals("it", "holds", "New") == ["Old"] and found.means("it", ["New"]) == [
        pytest.approx(0.101)
    ]
    with pytest.raises(ConfigError, match="claim 'it': no rival has the state 'holds' for New, Newer"):
        found.rivals("it", "holds", "New", "Newer")
    tasks = [
        planted(name, seed, [1, end * (1 + seed / 100)], problem={"s": s})
        for s, best in ((1, 0.01), (2, 0.5))
        for name, end in {**ENDS, "Best": best}.items()
        for seed in range(3)
    ]
    assert evidence(panel(*tasks, keys=["problem.s"])).rivals("it", "holds", "New") == ["Old"]


def test_the_factor_is_the_smallest_of_all_pairs_and_searches():
    panels = [panel(*runs(ENDS)), panel(*runs({**ENDS, "New": 0.25}), name="second search"),
              panel(*runs({**ENDS, "New": 0.4}), name="stated")]  # fmt: skip
    assert evidence(*panels, than=["Old"], scale="log").factor("it") == pytest.approx(2)
    with pytest.raises(ConfigError, match='needs scale = "log"'):
        evidence(*panels, than=["Old"]).factor("it")


def test_the_exponent_is_that_of_the_only_method():
    lines = [
        planted("New", seed, [1, 0.5 / n * (1 + seed / 100)], problem={"n": n})
        for n in (1, 4)
        for seed in range(3)
    ]
    law = {"along": "problem.n", "formula": "n ** -0.5", "law": "at least"}
    found = evidence(panel(*lines, keys=["problem.n"]), than=(), scale="log", trend=law)
    assert found.exponent("it") == pytest.approx(-1)


def test_names_and_factors_as_text():
    assert (
        listed(["Old"]) == "Old" and listed(["CDMAADA", "SAGDA", "FESSGDA"]) == "CDMA-ADA, SAGDA and FESS-GDA"
    )
    assert [rounded_down(one) for one in (28561.2, 16.99, 3.7)] == ["28,000", "16", "3"]


def test_unknown_names_are_errors():
    with pytest.raises(ConfigError, match="no type of statement 'agree': did you mean 'agrees'"):
        evidence().say("agree", "it")
    with pytest.raises(ConfigError, match="no claim 'its': did you mean 'it'"):
        evidence().say("agrees", "its")
    with pytest.raises(ConfigError, match="no experiment 'jobs'"):
        evidence().link("jobs")
