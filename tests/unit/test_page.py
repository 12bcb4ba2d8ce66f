"""The page: complete in itself, sound HTML, and alive in a real browser."""

from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import h5py
import numpy as np
import pytest
from browser import Browser
from matplotlib.image import imread
from runfiles import decay, write

from mpifed.report.comparison import Rule, best, settings_of
from mpifed.report.page import page
from mpifed.storage.results import find_runs, load

#: Elements without an end.
VOID = {"meta", "img", "input", "br", "hr", "wbr", "line", "link"}


class Reader(HTMLParser):
    """Checks that every element is closed in order, and keeps elements, the text of cells and all text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.cells, self.text = [], [], [], ""
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names)), (tag, names)
        self.elements.append((tag, dict(attributes)))
        if tag in ("td", "th"):
            self.cells.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> in {self.open}, line {self.getpos()[0]}"

    def handle_data(self, data):
        self.text += data
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data


def make(folder, rule=Rule()):
    settings = settings_of(load(path) for path in find_runs([folder]))
    return page(settings, best(settings, rule), rule)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """The page of two methods with two settings of one, three seeds, one diverged run, and hostile names."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in range(3):
        shared = dict(maximised=["auc"], rounds=20, stopped="all 20 rounds done")
        for gamma in (0.1, 0.2):
            config = {
                "seed": seed,
                "algorithm": {"gamma": gamma},
                "problem": {"name": "DeepAUC", "clients": 2, "note": "<b>&\"'"},
            }
            ends = {"stopped": "non-finite value in round 20"} if (seed, gamma) == (1, 0.2) else {}
            write(
                folder / f"g{gamma}s{seed}",
                "FGDA",
                config=config,
                error=decay(gamma),
                auc=lambda r: 0.5 + (seed + r) / 50,
                **shared | ends,
            )
        config = {"seed": seed, "problem": {"name": "DeepAUC", "clients": 2, "note": "<b>&\"'"}}
        path = write(
            folder / f"<i>{seed}",
            "CDMA",
            config=config,
            error=decay(0.3),
            auc=lambda r: 0.5 + (seed + r) / 60,
            **shared,
        )
        with h5py.File(path / "run.h5", "a") as file:
            file["holdings"] = np.array([[3, 4], [5, 6]])
            file["holdings"].attrs["classes"] = json.dumps(["cat", "dog"])
            file.attrs["data"] = json.dumps({"images.gz": {"path": "/data/images.gz", "digest": "ab" * 32}})
            file["ranks/peak_host_bytes"], file["ranks/peak_gpu_bytes"] = [100_000_000, 300_000_000], [0, 0]
    return make(folder, Rule(target=0.7))


def test_the_page_is_sound_and_needs_nothing_else(text):
    read = Reader(text)
    assert not [tag for tag, _ in read.elements if tag in ("link", "iframe", "object", "embed", "i", "b")]
    links = [
        value
        for _, attributes in read.elements
        for name, value in attributes.items()
        if name in ("src", "href", "srcset", "action")
    ]
    assert links and all(link.startswith("data:image/") for link in links)
    outside = re.sub(r'"data:image/[^"]*"', "", text)
    assert (
        "http:" not in outside
        and "https:" not in outside
        and "url(" not in outside
        and "@import" not in outside
    )


def test_every_figure_is_an_image_inside(text):
    images = [attributes for tag, attributes in Reader(text).elements if tag == "img"]
    curves = [one for one in images if "data-axis" in one]
    combinations = {(one["data-show"], one["data-metric"], one["data-axis"]) for one in curves}
    assert len(combinations) == 2 * 2 * 4 and all(one["alt"] for one in images)
    assert [one.get("hidden", "shown") for one in curves].count("shown") == 1
    for one in curves:
        kind, _, content = one["src"].partition(",")
        assert kind == "data:image/svg+xml;base64"
        svg = ElementTree.fromstring(base64.b64decode(content))
        assert svg.tag.endswith("}svg")
        loaded = [
            value for node in svg.iter() for name, value in node.attrib.items() if name.endswith("href")
        ]
        assert all(value.startswith("#") for value in loaded), "parts of the figure itself"
        words = " ".join("".join(node.itertext()) for node in svg.iter() if node.tag.endswith("}text"))
        assert one["data-metric"] in words and one["data-axis"] in words
    (partition,) = [one for one in images if one["src"].startswith("data:image/png")]
    assert partition["alt"].startswith("Samples by client and class: DeepAUC, 2 clients, seed 0")


def test_the_tables_hold_the_figures_and_the_words_explain_them(text):
    read = Reader(text)
    # Seeds 0, 1, 2 end at 0.5 + (20 + seed) / 50 and / 60; the deviation of 0, 1, 2 is 1.
    assert read.cells.count("0.92 ± 0.02") >= 2 and read.cells.count("0.85 ± 0.017") >= 2
    # 10 exp(-0.3 r) is below 0.7 from r = 8.9, 10 exp(-0.2 r) from 13.3; evaluated every fifth round.
    assert "10 ± 0" in read.cells and "15 ± 0" in read.cells
    assert "9 runs, 3 settings, 2 methods, 1 ended in non-finite values" in read.text
    assert "fewest runs that end in non-finite values, then the smallest final error" in read.text
    for word in (
        "rounds to 0.7",
        "reached by",
        "images.gz",
        "ab" * 32,
        "host 100-300 MB, GPU 0 MB",
        "non-finite value in round 20",
        "<i>0",
        "torch",
    ):
        assert word in read.cells, word
    assert '"<b>&\\"\'"' in read.text, "settings are shown as they are, and escaped"
    explained = read.text.partition("What the columns mean")[2]
    assert all(
        column in explained
        for column in ("diverged", "communication %", "wire bytes", "rounds to 0.7", "… final")
    )


def test_the_page_of_a_single_run_and_of_none_with_metrics(tmp_path):
    read = Reader(make(write(tmp_path / "a", auc=[0.5] * 5, stopped="")))
    assert (
        "not finished" in read.text
        and "standard deviation" not in read.text
        and "Best setting" not in read.text
    )
    empty = Reader(make(write(tmp_path / "b")))
    assert "Curves" not in empty.text and "Costs" in empty.text


@pytest.fixture(scope="module")
def browser(tmp_path_factory, text):
    """The page in a browser, from the disk."""
    folder = tmp_path_factory.mktemp("browser")
    (folder / "report.html").write_text(text, encoding="utf-8")
    browser = Browser(folder / "profile")
    browser.resize(1200, 900)
    browser.open(folder / "report.html")
    yield browser
    browser.close()


#: What is shown, and whether it has been decoded: [show, metric, axis, scale, width of the image].
SHOWN = """[...document.querySelectorAll('.plot img')].filter(one => one.offsetParent)
           .map(one => [...['show', 'metric', 'axis', 'scale'].map(name => one.dataset[name]),
                        one.naturalWidth > 100])"""


def choice(name, value):
    return f"""document.querySelector('input[name="{name}"][value="{value}"] + span')"""


def test_a_click_on_an_axis_changes_the_figure(browser, tmp_path):
    assert browser.run(SHOWN) == [["best", "error", "rounds", "log", True]]
    steps = [
        ("axis", "oracle calls", ["best", "error", "oracle calls", "log", True]),
        ("scale", "linear", ["best", "error", "oracle calls", "linear", True]),
        (
            "axis",
            "wall time without evaluation",
            ["best", "error", "wall time without evaluation", "linear", True],
        ),
        ("show", "every", ["every", "error", "wall time without evaluation", "linear", True]),
        (
            "metric",
            "auc",
            ["every", "auc", "wall time without evaluation", "linear", True],
        ),  # it has no other scale
        ("scale", "log", ["every", "auc", "wall time without evaluation", "linear", True]),
        (
            "metric",
            "error",
            ["every", "error", "wall time without evaluation", "log", True],
        ),  # its better scale
    ]
    seen = set()
    for number, (name, value, shown) in enumerate(steps):
        browser.click(choice(name, value))
        assert browser.run(SHOWN) == [shown], (name, value)
        browser.screenshot(tmp_path / f"{number}.png")
        seen.add(imread(tmp_path / f"{number}.png").tobytes())
    assert len(seen) == len(steps) - 1, (
        "only the click on a scale that is not there leaves the picture as it is"
    )
    legends = browser.run(
        "[...document.querySelectorAll('.legend')].filter(one => one.offsetParent).map(one => one.innerText)"
    )
    assert len(legends) == 1 and "FGDA, gamma=0.2" in legends[0]


def test_the_browser_finds_no_fault_and_asks_for_nothing(browser):
    assert browser.complaints() == []
    asked = [url for url in browser.requests() if not url.startswith("data:")]
    assert len(asked) == 1 and asked[0].startswith("file:") and asked[0].endswith("/report.html")


def test_the_page_fits_a_narrow_screen(browser):
    browser.resize(380, 800)
    assert browser.run("document.documentElement.scrollWidth") <= 380, (
        "tables and figures scroll in themselves"
    )
