"""The files of the README and of docs/ are written, and their commands are run in order in one folder."""

import inspect
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launch import environment, mpirun_path

ROOT = Path(__file__).parents[1]
#: The README comes first, since the pages use its files.
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
#: Pages whose links the build of the site does not check.
OUTSIDE = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "scripts/evidence/README.md")]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)
#: Page → its blocks, pairs of a language and a text.
BLOCKS = {page.name: BLOCK.findall(page.read_text(encoding="utf-8")) for page in PAGES}
FILES = [
    (page, re.match(r"# (\S+)", text)[1], text)
    for page, blocks in BLOCKS.items()
    for language, text in blocks
    if language in ("toml", "python")
]
COMMANDS = [
    pytest.param(line, id=f"{page}: {line}")
    for page, blocks in BLOCKS.items()
    for language, text in blocks
    if language == "bash"
    for line in text.strip().splitlines()
]
LINKS = [
    (page, link)
    for page in OUTSIDE
    for link in re.findall(
        r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    )
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readme")
    for _, name, text in FILES:
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_command(folder, command):
    words = shlex.split(command, comments=True)
    names = {
        "mpirun": [mpirun_path()],
        "mpifed": [sys.executable, "-m", "mpifed"],
        "python": [sys.executable],
    }
    done = subprocess.run(
        [part for word in words for part in names.get(word, [word])],
        cwd=folder,
        env=environment(),
        timeout=120,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "FAILS" not in done.stdout, done.stdout


@pytest.mark.parametrize(
    "page", [PAGES[0], *(ROOT / "docs" / name for name in ("quickstart.md", "installation.md"))]
)
def test_pages_name_what_mpirun_needs_as_root(page):
    needed = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
    assert needed in page.read_text(encoding="utf-8")


def test_a_file_on_two_pages_is_identical():
    texts = {}
    for page, name, text in FILES:
        assert texts.setdefault(name, text) == text, (page, name)


def test_the_figure_of_a_round_is_the_same_on_both_pages():
    figures = [
        [text for language, text in BLOCKS[page] if language == "mermaid" and "Allreduce" in text]
        for page in ("architecture.md", "own_methods.md")
    ]
    assert len(figures[0]) == 1 and figures[0] == figures[1]


@pytest.mark.parametrize(
    ("path", "count"), [("mpifed/running/loop.py", 7), ("mpifed/simulation/rounds.py", 5)]
)
def test_the_steps_of_a_run_and_a_round_are_those_of_the_code(path, count):
    page = " ".join((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split())
    steps = re.findall(r"^ +# (\d\. .*)$", (ROOT / path).read_text(encoding="utf-8"), re.M)
    assert len(steps) == count
    assert not [step for step in steps if step not in page]


@pytest.mark.parametrize("page, name, text", [one for one in FILES if one[1].endswith(".py")])
def test_examples_are_short(page, name, text):
    assert sum(bool(line.strip()) for line in text.splitlines()) <= 40
    assert max(map(len, text.splitlines())) <= 110


@pytest.mark.parametrize("page, link", LINKS, ids=str)
def test_links_have_targets(page, link):
    place, _, anchor = link.partition("#")
    if place.startswith(("http:", "https:")):
        return
    target = page.parent / place if place else page
    assert target.exists(), link
    if anchor:
        headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.M)
        assert anchor in {re.sub(r"[^\w\s-]", "", one).strip().lower().replace(" ", "-") for one in headings}


def test_the_front_page_is_short():
    assert len(PAGES[0].read_text(encoding="utf-8").splitlines()) <= 150


def test_the_artifact_appendix_lists_every_experiment():
    names = re.findall(r"^\[experiment\.(\w+)\]", (ROOT / "jobs/papers/claims.toml").read_text(), re.M)
    appendix = (ROOT / "docs" / "artifact.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", appendix, re.M) == names


def test_files_of_the_appendix_compare_every_method_on_three_ranks():
    from mpifed.algorithms import ALGORITHMS

    appendix = (ROOT / "docs" / "artifact.md").read_text(encoding="utf-8")
    files = re.search(r"`scripts/test --ranks 3 (.*?)`", appendix)[1].split()
    names = set(re.findall(r"\w+", " ".join((ROOT / file).read_text(encoding="utf-8") for file in files)))
    assert not {*ALGORITHMS} - names


def test_counts_on_the_pages_are_those_of_the_package():
    from mpifed.algorithms import ALGORITHMS
    from mpifed.problems import PROBLEMS

    def lines(method) -> int:
        """The lines of a method and of the built-in classes that it extends."""
        own = [cls for cls in method.__mro__ if cls.__module__.startswith("mpifed.algorithms.")]
        return sum(len(inspect.getsource(cls).splitlines()) for cls in own)

    for page in ("README.md", "index.md", "software_paper.md"):
        text = (ROOT / "docs" / page if page != "README.md" else PAGES[0]).read_text(encoding="utf-8")
        counts = re.findall(r"\b(\d+)\s+(methods|problems)\b", text)
        numbers = {what: int(number) for number, what in counts}
        assert len({*counts}) == 2 and numbers["problems"] == len(PROBLEMS), page
        assert numbers["methods"] < len(ALGORITHMS), page  # "more than 60"
    most, half = map(
        int,
        re.search(r"at most (\d+) lines of [^;]*; half of the methods have fewer than (\d+)", text).groups(),
    )
    each = sorted(map(lines, ALGORITHMS.values()))
    assert each[-1] <= most and each[len(each) // 2] < half
    searches = [path.read_text() for path in (ROOT / "jobs/papers").glob("*.toml")]
    searches = [job for job in searches if "\n[tune]" in job]
    proportional = sum('budget = "proportional"' in job for job in searches)
    same = len(searches) - proportional
    text = " ".join(text.split())
    assert f"In {proportional} of the {len(searches)} searches" in text
    assert f"in the other {same}, it is the same for all methods" in text


def test_shares_of_verdicts_in_the_software_paper_are_those_of_the_generated_pages():
    """More than 80 claims of five papers, of which fewer than half are reproduced, and more than half of the
    statements of theorems."""
    reproduced, claims = {}, {}
    for name, file in (("experiments", "experiments/index"), ("theory_experiments", "theory_experiments")):
        page = (ROOT / f"docs/{file}.md").read_text(encoding="utf-8")
        column = r"[^|]*\| " if name == "experiments" else r".*\| "
        words = re.findall(rf"^\| \[{column}\*\*(.*?)\*\*", page, re.M)
        reproduced[name], claims[name] = words.count("reproduced"), len(words)
    assert claims["experiments"] > 80
    assert reproduced["experiments"] < claims["experiments"] / 2
    assert reproduced["theory_experiments"] > claims["theory_experiments"] / 2


def test_times_of_the_front_page_are_those_of_the_page_of_performance():
    """A row of the README joins the rows of two tables, without their intervals."""
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in (ROOT / "docs/performance.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| ")
    ]
    table = PAGES[0].read_text(encoding="utf-8").split("## Speed")[1].split("## ")[0]
    shown = [line.split("|")[1:-1] for line in table.splitlines() if re.match(r"\| .*\d", line)][1:]
    assert len(shown) == 5
    for title, *times in ([cell.strip() for cell in line] for line in shown):
        model, _, clients = title.rpartition(", ")
        model = model.removesuffix(" (Local-SGDA)")
        found = [
            [cell.partition(" (")[0] for cell in row[3:6]]
            for row in rows
            if row[0].removesuffix(" 60-10") == model and row[1] == clients and len(row) == 6
        ]
        assert [times[:3], times[3:]] == found, title


def test_ratios_to_other_simulators_are_those_of_the_tables():
    """Of one process on three processors, and of two processes on one."""
    page = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    section = page.split("## FedAvg in other simulators")[1].split("\n## ")[0]
    large, logistic, parts, bare = [], [], [], []
    for line in section.splitlines():
        title, *cells = [cell.strip() for cell in line.split("|")[1:-1]] or [""]
        ratios = [float(cell.partition(" (")[0]) for cell in cells if re.match(r"[\d.]+ \(", cell)]
        pfl, loops = ratios[: len(ratios) // 2], ratios[len(ratios) // 2 :]
        if "logistic regression 60-10, 1,000 clients" in title:
            logistic, bare = logistic + pfl, bare + loops
            parts += [peer / loop for peer, loop in zip(pfl, loops)]
        elif "MLP 60-64" not in title and "logistic" not in title and ratios:
            large += pfl
            assert all(loop < min(1, peer) for peer, loop in zip(pfl, loops))
    assert (len(large), len(logistic)) == (13, 4)
    text = " ".join(section.split())
    assert f"({min(large):.2f} to {max(large):.2f})" in text
    assert f"The factor of {int(min(logistic))} to {round(max(logistic))} of logistic" in text
    assert f"are {round(min(bare))} to {round(max(bare))} times as fast as the bare loop" in text
    assert f"takes 1/{min(parts):.1f} to 1/{max(parts):.1f} of the time" in text
    paper = " ".join((ROOT / "docs/software_paper.md").read_text(encoding="utf-8").split())
    assert f"takes {1 / max(large):.1f} to {1 / min(large):.1f} times the time of pfl-research" in paper
    assert f"(1/{round(min(bare))} to 1/{round(max(bare))} of the time of a bare loop)" in paper


def test_every_job_file_is_valid():
    from mpifed.config.job import Config

    jobs = sorted((ROOT / "jobs").glob("*.toml"))  # test_job_files.py tests jobs/papers
    assert jobs
    for job in jobs:
        Config.load(job)


def test_scripts_and_files_of_the_pages_exist():
    for page in {*PAGES, *OUTSIDE}:
        text = page.read_text(encoding="utf-8")
        for path in re.findall(r"(?:scripts|jobs|tests|mpifed)/[\w/.-]*\w", text):
            assert (ROOT / path).exists(), (page.name, path)
        for script in re.findall(r"^scripts/\S+", text, re.M):
            assert shutil.which(ROOT / script), (page.name, script)
