"""Short names of users' own methods."""

from runfiles import write

from mpifed.report.comparison import settings_of
from mpifed.report.labels import labels, short_names
from mpifed.storage.results import load


def test_a_name_keeps_of_its_place_what_tells_it_apart():
    assert short_names(["FGDA", "./mine.py:Mine", "pack.age:Other"]) == {
        "FGDA": "FGDA",
        "./mine.py:Mine": "Mine",
        "pack.age:Other": "Other",
    }
    assert list(short_names(["FGDA", "./a.py:FGDA", "b.c:FGDA"]).values()) == [
        "FGDA",
        "FGDA (a.py)",
        "FGDA (b.c)",
    ]
    alike = short_names(["/w/a/mine.py:M", "/w/b/mine.py:M", "mine.py:M"])
    assert list(alike.values()) == ["M (a/mine.py)", "M (b/mine.py)", "M (mine.py)"]


def test_two_files_with_one_class_are_two_methods(tmp_path):
    folders = [write(tmp_path / "r" / name, f"{tmp_path}/{name}.py:Mine") for name in ("a", "b")]
    settings = settings_of(map(load, folders))
    assert labels(settings) == ["Mine (a.py)", "Mine (b.py)"]
    assert labels(settings[:1]) == ["Mine (a.py)"], "named among those read together"
    assert labels(settings_of(map(load, folders[:1]))) == ["Mine"]
