"""``scripts/peers``: the page of agreement with other implementations, and the programs behind it."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

from mpifed.algorithms import FedAvg

ROOT = Path(__file__).resolve().parents[2]


def load(name: str):
    # scripts/bench has a module with one of the names.
    spec = importlib.util.spec_from_file_location(f"peers_{name}", ROOT / f"scripts/peers/{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def agreement():
    return load("agreement")


@pytest.fixture(scope="module")
def stored(agreement):
    return json.loads(agreement.STORED.read_text(encoding="utf-8"))


def result(**changes) -> dict:
    base = {"method": "SCAFFOLD", "package": "other", "version": "1.0", "problem": "network", "rounds": 2}
    return base | {"deviation": [1e-16, 4e-16], "scale": 2.0, "differs": None, "proof": None} | changes


def entry(*results, error=None) -> dict:
    return {"machine": {"torch": "2"}, "error": error, "results": list(results)}


def test_page_and_file_are_those_of_the_stored_results(agreement, stored):
    assert agreement.PAGE.read_text(encoding="utf-8") == agreement.page(stored)
    assert agreement.STORED.read_text(encoding="utf-8") == agreement.dumps(stored)


def test_every_program_has_requirements_with_pinned_versions_and_results(agreement, stored):
    names = set(agreement.programs())
    assert names == {path.stem for path in (agreement.PROGRAMS / "requirements").glob("*.txt")} == set(stored)
    for name in names:
        lines = agreement.requirements(name).read_text(encoding="utf-8").splitlines()
        assert all(re.match(r"#|[\w.\[\]-]+==[\w.+!-]+$", line) for line in lines), name


def test_stored_differences_are_explained(agreement, stored):
    assert not [
        one for entry in stored.values() for one in entry["results"] if not agreement.is_explained(one)
    ]


def test_a_difference_is_explained_by_a_change_that_removes_it(agreement):
    # Relative differences of 1e-10 in float64 and of 1e-5 in float32 are those of sums in another order.
    assert agreement.is_explained(result())
    assert not agreement.is_explained(result(deviation=[0.0, 1e-9]))
    assert not agreement.is_explained(result(deviation=[0.0, float("nan")]))
    assert agreement.is_explained(result(deviation=[0.0, 1e-6], problem="network, float32"))
    assert agreement.is_explained(result(deviation=[0.0, 0.5], differs="Another sign."))
    assert not agreement.is_explained(result(deviation=[0.0, 0.5], differs="Another sign.", proof=0.1))
    assert agreement.is_explained(result(deviation=[0.0, 0.5], differs="Another sign.", proof=1e-16))


def test_page_shows_failed_programs_and_unexplained_differences(agreement):
    differs = result(method="FedDyn", deviation=[0.5, 1.0], differs="Another sign | factor.", proof=2e-16)
    page = agreement.page(
        {
            "good": entry(result(), differs),
            "bad": entry(result(method="FedAvg", deviation=[0.1]), error="ImportError: x"),
        }
    )
    assert "| SCAFFOLD | other 1.0 | network | 2 | 2.0e-16 |\n" in page
    assert r"| FedDyn | other 1.0 | network | 5.0e-01 | Another sign \| factor. | 1.0e-16 |" in page
    assert "The program `peer_bad.py` failed: ImportError: x\n" in page
    assert "FedAvg in other 1.0: the difference is not explained.\n" in page
    assert page.count("not explained") == 1 and page.count("- torch 2\n") == 1


def test_a_plain_loop_repeats_the_recorded_rounds(capsys):
    common = load("common")
    path = common.run_mpifed(FedAvg(K=2, eta=0.3), cohort=3, weights="samples")
    point, points = path.start, []
    for r, batches in enumerate(path.minibatches):
        moved = {client: common.local_sgd(path, r, client, point, 0.3) for client in batches}
        total = sum(path.counts[client] for client in moved)
        point = sum(path.counts[client] / total * one for client, one in moved.items())
        points.append(point)
    common.report("FedAvg", "torch", path, points, "A reason.", path.points)
    found = json.loads(capsys.readouterr().out)
    assert found["problem"] == "network, 3 of 5 clients, weights samples" and found["proof"] == 0
    assert len(found["deviation"]) == found["rounds"] == len(path.minibatches)
    # Sums in another order, of numbers below 1, in float64.
    assert max(found["deviation"]) < 1e-14 and 0.1 < found["scale"] < 1
