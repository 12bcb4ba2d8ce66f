"""The HTML page: self-contained, valid, and interactive in a real browser."""

from __future__ import annotations

import base64
import json
import re
import time
from html.parser import HTMLParser

import numpy as np
import pytest
from browser import Browser
from runfiles import decay, edited, write

from mpifed.report.comparison import Rule, best, settings_of
from mpifed.report.page import bokeh_js, page, points_per_line
from mpifed.storage.results import find_runs, load

#: Elements without an end tag.
VOID = {"meta", "img", "input", "br", "hr", "wbr", "line", "link"}
PNG = b"an image"


class Reader(HTMLParser):
    """Checks that elements are closed in order; stores elements, the text of cells and the whole text."""

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


def make(folder, rule=Rule(), figure=b""):
    settings = settings_of(load(path) for path in find_runs([folder]))
    return page(settings, best(settings, rule), rule, figure)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """The page of two methods, one with two settings, three seeds, a diverged run, and hostile names."""
    folder = tmp_path_factory.mktemp("runs")
    problem = {"name": "DeepAUC", "clients": 2, "note": "<b>&\"'"}
    kinds = [("g", "FGDA", 0.1, 50), ("h", "FGDA", 0.2, 50), ("<i>", "CDMA", 0.3, 60)]
    for seed in range(3):
        for name, method, gamma, slope in kinds:
            algorithm = {"gamma": gamma} if method == "FGDA" else {}
            settings = dict(
                every=4 if method == "FGDA" else 5,
                stopped="non-finite value in round 20" if (name, seed) == ("h", 1) else "all 20 rounds done",
                config={"seed": seed, "algorithm": algorithm, "problem": problem},
                maximised=["auc"],
            )
            metrics = dict(error=decay(gamma), auc=lambda r, seed=seed, slope=slope: 0.5 + (seed + r) / slope)
            path = write(folder / f"{name}{seed}", method, **settings, **metrics)
        with edited(path / "run.h5") as file:
            file["holdings"] = np.array([[3, 4], [5, 6]])
            file["holdings"].attrs["classes"] = json.dumps(["cat", "dog"])
            file.attrs["data"] = json.dumps({"images.gz": {"path": "/data/images.gz", "digest": "ab" * 32}})
            file["ranks/peak_host_bytes"], file["ranks/peak_gpu_bytes"] = [100_000_000, 300_000_000], [0, 0]
    return make(folder, Rule(target=0.7), PNG)


def test_the_page_is_valid_and_self_contained(text):
    read = Reader(text)
    assert not [tag for tag, _ in read.elements if tag in ("link", "iframe", "object", "embed", "i", "b")]
    keys = ("src", "href", "srcset", "action")
    links = [one[key] for _, one in read.elements for key in keys if key in one]
    assert links and all(link.startswith("data:image/") for link in links)
    rest = re.sub(r'"data:image/[^"]*"', "", text.replace(bokeh_js(), ""))
    assert len(rest) < 100_000 and not re.search(r"https?:|url\(|@import", rest)


def curves(text):
    (block,) = re.findall(r'<script type="application/json" id="curves">(.*?)</script>', text, re.S)
    return json.loads(block)


def test_curves_are_data_and_an_image(text):
    data = curves(text)
    assert [one["name"] for one in data["axes"]] == ["rounds", "oracle calls", "bytes", "seconds"]
    assert data["scales"] == {"error": ["log", "linear"], "auc": ["linear"]}
    first = data["lines"][0]  # the chosen settings of CDMA and FGDA, then the other setting of FGDA
    assert first["x"]["bytes"] == [0, 20, 40, 60, 80], "4,000 bytes per round, in kB"
    # Of seeds 0, 1, 2: 0.5 + (seed + r) / 60.
    assert first["y"]["auc"]["mean"] == pytest.approx([0.5 + (1 + r) / 60 for r in range(0, 21, 5)], rel=1e-5)
    assert first["y"]["auc"]["deviation"] == pytest.approx([1 / 60] * 5, rel=1e-5)
    elements = Reader(text).elements
    lines = [one for tag, one in elements if tag == "li" and "data-color" in one]
    assert [("hidden" in one, "data-best" in one) for one in lines] == [(False, True)] * 2 + [(True, False)]
    still, partition = (one for tag, one in elements if tag == "img")
    assert still["src"] == f"data:image/png;base64,{base64.b64encode(PNG).decode()}" and still["alt"]
    assert partition["alt"] == "Samples by client and class: DeepAUC, 2 clients, seed 0"


def test_long_curves_are_thinned(tmp_path):
    long = dict(rounds=5000, every=1, auc=lambda r: np.where(r == 2500, np.nan, r / 5000))
    text = make(write(tmp_path / "a", **long))
    (line,) = curves(text)["lines"]
    assert len(line["x"]["rounds"]) == points_per_line(1) == 2000 and line["x"]["rounds"][-1] == 5000
    assert "at most 2000 evenly spaced evaluations" in text
    assert points_per_line(40) == 200 and points_per_line(1000) == 200
    short = make(write(tmp_path / "b", rounds=2, every=1, auc=[1, np.nan, np.inf]))
    assert '"mean":[1.0,null,null]' in short and "evenly spaced" not in short


def test_tables_and_their_explanation(text):
    read = Reader(text)
    # Seeds 0, 1, 2 end at 0.5 + (20 + seed) / 50 and / 60; the deviation of 0, 1, 2 is 1.
    assert read.cells.count("0.92 ± 0.02") >= 2 and read.cells.count("0.85 ± 0.017") >= 2
    # 10 exp(-0.3 r) is below 0.7 from r = 8.9 on, 10 exp(-0.2 r) from 13.3.
    assert "10 ± 0" in read.cells and "16 ± 0" in read.cells
    assert "9 runs, 3 settings, 2 methods, 1 ended in non-finite values" in read.text
    assert "values or leave the problem's sets, then the smallest final error" in read.text
    words = {"rounds to 0.7", "reached by", "images.gz", "ab" * 32, "<i>0", "torch"}
    assert words | {"host 100-300 MB, GPU 0 MB", "non-finite value in round 20"} <= {*read.cells}
    assert '"<b>&\\"\'"' in read.text, "settings are escaped"
    explained = read.text.partition("Columns of the tables")[2]
    for column in ("diverged", "communication %", "wire bytes", "rounds to 0.7", "… final"):
        assert column in explained


def test_the_page_of_a_single_run_and_of_a_run_without_metrics(tmp_path):
    read = Reader(make(write(tmp_path / "a", auc=[0.5] * 5, stopped="")))
    assert "not finished" in read.text
    assert "standard deviation" not in read.text and "Best setting" not in read.text
    empty = Reader(make(write(tmp_path / "b")))
    assert "Curves" not in empty.text and "Costs" in empty.text


@pytest.fixture(scope="module")
def browser(tmp_path_factory, text):
    """The page in a browser, loaded from a file."""
    folder = tmp_path_factory.mktemp("browser")
    (folder / "report.html").write_text(text, encoding="utf-8")
    browser = Browser(folder / "profile")
    browser.resize(1200, 900)
    browser.open(folder / "report.html")
    yield browser
    browser.close()


#: The choices that are shown and the number of lines.
SHOWN = (
    "['show', 'metric', 'axis', 'scale', 'lines'].map(name => document.getElementById('chart').dataset[name])"
)
#: The visible entries of the legend: name, value at the pointer, whether the line is visible.
LEGEND = """[...document.querySelectorAll('.legend li')].filter(one => one.offsetParent).map(one =>
    [one.querySelector('span').innerText, one.querySelector('output').value,
     one.querySelector('button').getAttribute('aria-pressed')])"""


def choice(name, value):
    return f"""document.querySelector('input[name="{name}"][value="{value}"] + span')"""


def wait(browser, expression, expected):
    """Wait until a script returns a value; charts are drawn a moment after a click."""
    end = time.monotonic() + 60
    while (found := browser.run(expression)) != expected and time.monotonic() < end:
        time.sleep(0.05)
    assert found == expected


def test_choices_change_the_chart(browser):
    wait(browser, SHOWN, ["best", "error", "rounds", "log", "2"])
    steps = [
        ("axis", "oracle calls", ["best", "error", "oracle calls", "log", "2"]),
        ("scale", "linear", ["best", "error", "oracle calls", "linear", "2"]),
        ("axis", "seconds", ["best", "error", "seconds", "linear", "2"]),
        ("show", "every", ["every", "error", "seconds", "linear", "3"]),
        ("metric", "auc", ["every", "auc", "seconds", "linear", "3"]),  # its only scale
        ("scale", "log", ["every", "auc", "seconds", "linear", "3"]),
        ("metric", "error", ["every", "error", "seconds", "log", "3"]),  # its preferred scale
    ]
    for name, value, shown in steps:
        browser.click(choice(name, value))
        wait(browser, SHOWN, shown)
    names = [name for name, *_ in browser.run(LEGEND)]
    assert names == ["CDMA", "FGDA, gamma=0.1", "FGDA, gamma=0.2 (2 of 3 finite)"]
    assert browser.run("document.querySelectorAll('#chart > .bk-Figure').length") == 1, "others are removed"


def test_the_pointer_shows_values_and_a_click_hides_a_line(browser):
    browser.click(choice("metric", "auc"))
    browser.click(choice("axis", "rounds"))
    wait(browser, SHOWN, ["every", "auc", "rounds", "linear", "3"])
    wait(browser, "shown.view !== undefined", True)
    box = browser.run(
        "(() => {const c = document.getElementById('chart'); c.scrollIntoView({block: 'center'});"
        " const b = c.getBoundingClientRect(); return {x: b.x + b.width / 2, y: b.y + b.height / 2}})()"
    )
    browser._ask("Input.dispatchMouseEvent", type="mouseMoved", **box)
    wait(browser, "document.getElementById('at').innerText", "rounds: 10")  # nearest to the middle
    # 0.5 + 11 / 60 in round 10; FGDA was evaluated in round 8: 0.5 + 9 / 50.
    texts = [text for _, text, _ in browser.run(LEGEND)]
    assert texts == ["0.6833 ± 0.017", "0.6800 ± 0.020 at 8", "0.6800 (0.664 to 0.696) at 8"]
    browser.run("showValues(12.4)")
    assert browser.run("document.getElementById('at').innerText") == "rounds: 12"
    assert browser.run(LEGEND)[0][1] == "0.6833 ± 0.017 at 10"
    visible = "shown.lines.map(line => line.parts.every(part => part.visible))"
    browser.click("document.querySelectorAll('.legend button')[1]")
    assert browser.run(visible) == [True, False, True] and browser.run(LEGEND)[1][2] == "false"
    browser.click(choice("metric", "error"))
    wait(browser, SHOWN, ["every", "error", "rounds", "log", "3"])
    assert browser.run(visible) == [True, False, True], "it stays hidden"
    browser.click("document.querySelectorAll('.legend button')[1]")
    assert browser.run(visible) == [True, True, True]


def test_dark_mode_and_print(browser):
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    color = "shown.lines[0].parts[0].glyph.line_color.value"
    assert browser.run(paper) == "rgb(255, 255, 255)" and browser.run(color) == "#0072B2"
    browser._ask("Emulation.setEmulatedMedia", features=dark)
    wait(browser, color, "#4FA8E0")
    assert browser.run(paper) != "rgb(255, 255, 255)"
    browser._ask("Emulation.setEmulatedMedia", media="print", features=dark)
    display = "['#chart', '.still'].map(one => getComputedStyle(document.querySelector(one)).display)"
    assert browser.run(paper) == "rgb(255, 255, 255)" and browser.run(display) == ["none", "block"]
    browser._ask("Emulation.setEmulatedMedia", media="", features=[])
    assert browser.run(display)[1] == "none"


def test_the_page_causes_no_errors_and_no_requests(browser):
    assert browser.complaints() == []
    (request,) = [url for url in browser.requests() if not url.startswith("data:")]
    assert request.startswith("file:") and request.endswith("/report.html")


def test_names_with_dollars_do_not_load_mathjax(tmp_path):
    """Bokeh would load it from the network, which the page's policy also forbids."""
    tex = r"$$\frac{x^2}$$"
    write(tmp_path / "run", tex, **{tex: decay(0.1), r"\(x": decay(0.2), "$x_": decay(0.3)})
    text = make(tmp_path / "run")
    (policy,) = (one["content"] for _, one in Reader(text).elements if "http-equiv" in one)
    assert policy.startswith("default-src 'none';") and not re.search(r"http|\*|unsafe-eval", policy)
    file = tmp_path / "report.html"
    # Without the policy, which would hide the request.
    file.write_text(text.replace("http-equiv", "data-none"), encoding="utf-8")
    browser = Browser(tmp_path / "profile")
    try:
        browser.open(file)
        wait(browser, SHOWN, ["best", tex, "rounds", "linear", "1"])
        assert browser.run("shown.view !== undefined && document.querySelectorAll('script[src]').length") == 0
        assert browser.complaints() == []
        assert [url[:5] for url in browser.requests() if not url.startswith("data:")] == ["file:"]
        kinds = browser.run("[...Bokeh.documents[0].all_models].map(one => one.type)")
        assert "PlainText" in kinds and not {"TeX", "MathML"} & {*kinds}
    finally:
        browser.close()


def test_the_page_fits_a_narrow_screen(browser):
    browser.resize(375, 800)
    wait(browser, "document.documentElement.scrollWidth <= 375", True)  # the chart is drawn again
