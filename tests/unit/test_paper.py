"""Output for papers: size and fonts of the figure, rows of the table, names, citations."""

from __future__ import annotations

import json
import re

import pytest
from commands import error_of, output_of
from runfiles import decay, write

from mpifed.report.comparison import Rule, best, settings_of
from mpifed.report.figures import inches
from mpifed.report.labels import Labels
from mpifed.report.latex import escape, number, table
from mpifed.report.statistics import MeanStd
from mpifed.storage.results import find_runs, load

LABELS = """
[methods]
FGDA = "FGDA (ours), $\\\\alpha$ & 5 %"
"LocalSGDA" = "Local_SGDA"
[metrics]
error = "distance"
[axes]
bytes = "communication"
[settings]
name = "name"
"""
#: The last errors of seeds 0 to 3. LocalSGDA minus FGDA is 1, 0, 1, 0: t = 0.5 / (0.57735 / 2) = 1.732 and
#: p = 0.182 with 3 degrees of freedom. CDMA minus FGDA is 10, 10.1, 10, 10.1: p < 1e-6.
LAST = {"FGDA": (2, 3, 2, 3), "LocalSGDA": (3, 3, 3, 3), "CDMA": (12, 13.1, 12, 13.1)}


@pytest.fixture
def runs(tmp_path):
    for method, values in LAST.items():
        for seed, last in enumerate(values):
            write(
                tmp_path / "runs" / f"{method}{seed}",
                method,
                config={"seed": seed, "problem": {"name": "DeepAUC", "dataset": "digits"}},
                maximised=["auc"],
                error=[100, 50, 20, 10, last],
                auc=lambda r: r / 40,
            )
    (tmp_path / "labels.toml").write_text(LABELS)
    return tmp_path / "runs"


def report(runs, *words, call=output_of):
    return " ".join(call("report", runs, "--out", runs.parent / "out", *words).split())


def test_the_pdf_has_the_given_width_and_embedded_fonts(runs):
    file = runs.parent / "fig.pdf"
    for _ in range(2):  # a figure of mpifed is replaced
        report(runs, "--figure", file, "--width", "3.25in", "--metrics", "error", "--x", "bytes",
               "--labels", runs.parent / "labels.toml")  # fmt: skip
    content = file.read_bytes()
    (box,) = re.findall(rb"/MediaBox \[ 0 0 ([0-9.]+) ([0-9.]+) \]", content)
    assert float(box[0]) == 234 and 100 < float(box[1]) < 234, "3.25 times 72"
    # TrueType outlines are stored in FontFile2; journals reject Type 3 fonts.
    assert b"/FontFile2" in content and b"/Type3" not in content


def test_the_svg_has_all_names_and_panels(runs, monkeypatch):
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")  # as in a user's matplotlibrc
    file = runs.parent / "fig.svg"
    report(runs, "--figure", file, "--width", "84mm", "--metrics", "error,auc", "--x", "bytes, oracle_calls",
           "--labels", runs.parent / "labels.toml")  # fmt: skip
    text = file.read_text()
    width = float(re.search(r'<svg [^>]*width="([0-9.]+)pt"', text)[1])
    assert width == pytest.approx(84 / 25.4 * 72, abs=1e-5)
    for word in ("communication (kB)", "oracle calls", "distance", "Local_SGDA", "(ours)"):
        assert word in text
    assert text.count('<g id="axes_') == 4 and len(set(re.findall(r"stroke-dasharray: [0-9.,]+", text))) >= 2


@pytest.mark.parametrize(
    ("text", "width"), [("3.25in", 3.25), ("84 mm", 84 / 25.4), ("240pt", 240 / 72.27), ("8cm", 8 / 2.54)]
)
def test_units_of_a_width(text, width):
    assert inches(text) == pytest.approx(width)


def test_the_table(runs):
    file = runs.parent / "table.tex"
    for _ in range(2):
        report(runs, "--latex", file, "--metrics", "error,auc", "--metric", "error",
               "--labels", runs.parent / "labels.toml")  # fmt: skip
    text = file.read_text()
    body = text.partition("\\midrule\n")[2].partition("\n\\bottomrule")[0].splitlines()
    assert body == [
        r"CDMA & $12.55 \pm 0.64$ & $\mathbf{0.5000 \pm 0.0000}$ \\",
        r"FGDA (ours), $\alpha$ \& 5 \% & $\mathbf{2.50 \pm 0.58}$ & $\mathbf{0.5000 \pm 0.0000}$ \\",
        r"Local\_SGDA & $3.000 \pm 0.000^{\dagger}$ & $\mathbf{0.5000 \pm 0.0000}$ \\",
    ]
    assert r"Method & distance $\downarrow$ & auc $\uparrow$ \\" in text
    assert r"paired t-test over the seeds, p-values corrected by Holm's method" in text and "4 seeds" in text
    outside = re.sub(r"(?m)^%.*\n", "", text)
    assert outside.count("{") == outside.count("}") and outside.count("$") % 2 == 0
    assert re.findall(r"\\(begin|end)\{(\w+)\}", outside) == [
        ("begin", "table"), ("begin", "tabular"), ("end", "tabular"), ("end", "table"),
    ]  # fmt: skip
    assert {line.count("&") for line in body} == {2, 3}, "one of the names has an ampersand"


def test_a_user_defined_method_has_its_short_name(runs):
    for eta in (0.01, 0.02):
        settings = {"problem": {"name": "DeepAUC", "dataset": "digits"}, "algorithm": {"eta": eta}}
        for seed in (0, 1):
            folder, last = runs / f"mine-{eta}-{seed}", 1 + eta + seed
            config = {"seed": seed, **settings}
            write(folder, "/a/mine.py:Mine", config=config, error=[100, 50, 20, 10, last])
    file, labels = runs.parent / "table.tex", runs.parent / "labels.toml"
    labels.write_text('[methods]\nMine = "Mine_1 (ours)"\n')
    report(runs, "--latex", file, "--labels", labels)
    assert r"Mine\_1 (ours) & $" in file.read_text()
    page = (runs.parent / "out" / "report.html").read_text(encoding="utf-8")
    assert "Bokeh.Plotting.figure" in page and ">eta=0.02<" in page and "mine.py:Mine</td>" not in page


def test_a_table_with_one_seed_and_a_diverged_run(tmp_path):
    write(tmp_path / "r" / "a", "FGDA", error=decay(0.1))
    write(tmp_path / "r" / "b", "Own_1", error=decay(0.2), stopped="non-finite value in round 9")
    settings = settings_of(load(path) for path in find_runs([tmp_path / "r"]))
    text = table(best(settings, Rule()), Rule(), ["error"], Labels())
    assert r"Own\_1 & 0/1 \\" in text and r"FGDA & $\mathbf{1.353}$ \\" in text  # 10 exp(-2)
    assert "Too few seeds for a test" in text and "end in finite values" in text and "dagger" not in text
    assert "for a test" not in table(settings[:1], Rule(), ["error"], Labels())


@pytest.mark.parametrize(
    ("mean", "deviation", "text"),
    [(0.98512, 0.0031, r"0.9851 \pm 0.0031"), (1.23e-7, 4.5e-8, r"(1.23 \pm 0.45) \times 10^{-7}"),
     (1234.5, 12.3, r"1234 \pm 12"), (3e6, float("nan"), r"3.000 \times 10^{6}"),
     (0.0, float("nan"), "0.000")],
)  # fmt: skip
def test_the_deviation_determines_the_digits(mean, deviation, text):
    assert number(MeanStd(mean, deviation)) == f"${text}$"


def test_special_characters_of_latex_are_escaped():
    assert escape(r"a_b & 5% #1 {x} $y$ ~^\ ") == (
        r"a\_b \& 5\% \#1 \{x\} \$y\$ \textasciitilde{}\textasciicircum{}\textbackslash{} "
    )


def test_settings_are_selected_by_the_metric_of_their_search(runs):
    folder = runs.parent
    (folder / "tried.csv").touch()
    for name, metric in (("FGDA", "auc"), ("CDMA", "auc")):
        (folder / "trials" / name).mkdir(parents=True)
        (folder / "trials" / name / "tried.json").write_text(json.dumps({"metric": metric}))
    report(runs, "--latex", folder / "a.tex")
    assert "& auc" in (folder / "a.tex").read_text() and "error" not in (folder / "a.tex").read_text()
    report(runs, "--latex", folder / "a.tex", "--metric", "error")
    assert "& error" in (folder / "a.tex").read_text()


def test_curves_of_few_evaluations_cause_a_warning(runs):
    words, figure = "warning: curves of fewer than 5 evaluations", runs.parent / "a.svg"
    assert words not in report(runs, "--figure", figure)
    write(runs / "short", "Short", every=10, error=[3, 2, 1])
    assert f"{words}: Short (3); a smaller run.eval_every gives more" in report(runs, "--figure", figure)


def test_cite_prints_only_bibtex(runs):
    output = report(runs, "--cite")
    assert output.startswith("@") and all(key in output for key in ("huang2024adafgda", "deng2021localsgda"))
    assert not (runs.parent / "out").exists()


def test_errors_are_found_before_anything_is_written(runs):
    fig, labels = runs.parent / "fig.pdf", runs.parent / "labels.toml"
    for words, message in [
        (["--figure", fig, "--x", "byte"], "did you mean 'bytes'"),
        (["--figure", fig, "--x", "federated seconds"], "because their jobs have no [clock]"),
        (["--figure", fig, "--metrics", "erorr"], "did you mean 'error'"),
        (["--figure", fig, "--width", "3.25"], "such as 3.25in"),
        (["--figure", fig, "--width", "0.1in"], "from 1in to 30in"),
        (["--figure", runs.parent / "fig.png"], "ends in .pdf, .svg, .eps"),
        (["--figure", fig, "--labels", runs / "none.toml"], "cannot read the file of labels"),
        (["--latex", labels], "labels.toml is a file that mpifed has not written"),
        (["--width", "3in"], "--width needs --figure FILE"),
        (["--labels", labels], "--labels needs --figure"),
        (["--cite", "--latex", "t.tex"], "--cite only prints"),
    ]:  # fmt: skip
        assert message in report(runs, *words, call=error_of).replace("│ ", ""), words
    for text, message in [
        ("[method]\nFGDA = 'a'", "unknown section [method]: did you mean 'methods'"),
        ("[methods]\nFGD = 'a'", "[methods] has no 'FGD': did you mean 'FGDA'"),
        ("[settings]\nrun.out = 'a'", "[settings] has no 'run'"),
        ("[axes]\nbytes = 1", "[axes] bytes must be a text, got 1"), ("axes = 1", "axes must be a table"),
    ]:  # fmt: skip
        labels.write_text(text)
        words = ("--latex", runs.parent / "t.tex", "--labels", labels)
        assert message in report(runs, *words, call=error_of), text
    assert not (runs.parent / "out").exists() and not fig.exists()
