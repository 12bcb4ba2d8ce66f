"""Which tests reach which line, and how long they take.

Every test file runs once, alone, under coverage. What it said is kept in ``.mutation.json`` with the text of
the package at that time: a test file that has changed runs again, and lines of a module that has changed are
found again by their text.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import json
import os
import time
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from mutation.runs import ROOT, copy_of_the_checkout, fork, pytest_in

__all__ = ["Reach", "TEST_FOLDERS"]

STORE = ROOT / ".mutation.json"
#: Tests that run in one process, or start some for a moment.
TEST_FOLDERS = ("unit", "reference", "identities", "convergence", "parallel")
#: Tests that look at all classes and their constants, which are made when a module is imported.
LOOKING = ("tests/unit/test_info.py",)
#: Seconds that a test file may take.
PATIENCE = 1800
PROCESSES = """[run]
parallel = true
source_pkgs = mpifed
data_file = {folder}/lines
context = ${{MUTATION_TEST}}
core = ctrace
"""


class Recorder:
    """A plugin of pytest: gives every line that runs the name of the test, and measures its seconds.

    What a fixture runs may serve all tests of the file, so it is put down to the file.
    """

    def __init__(self, coverage, file: str):
        self.coverage, self.file, self.seconds, self.failed = coverage, file, defaultdict(float), set()

    def _context(self, name: str) -> None:
        os.environ["MUTATION_TEST"] = name
        self.coverage.switch_context(name)

    def pytest_runtest_setup(self, item):
        self._context(self.file)

    def pytest_runtest_call(self, item):
        self._context(item.nodeid)

    def pytest_runtest_teardown(self, item):
        self._context(self.file)

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid] += report.duration
        if report.failed or report.skipped:
            self.failed.add(report.nodeid)


def measure(file: str, tree: Path, result: Path) -> int:
    """In a fork: the tests of one file, and what they reach as JSON in ``result``."""
    import coverage

    folder = tree.parent / f"{tree.name}.tmp"
    settings = folder / "coveragerc"
    settings.write_text(PROCESSES.format(folder=folder))
    (folder / "sitecustomize.py").write_text("import coverage\ncoverage.process_startup()\n")
    site = str(Path(coverage.__file__).parents[1])
    here = coverage.Coverage(data_file=f"{folder}/lines.here", source_pkgs=["mpifed"], config_file=False)
    here.set_option("run:core", "ctrace")
    os.environ.update(
        COVERAGE_PROCESS_START=str(settings), PYTHONPATH=f"{tree}:{folder}:{site}", MUTATION_TEST=file
    )
    here.start()
    here.switch_context(file)
    recorder = Recorder(here, file)
    pytest_in(tree, file, plugins=(recorder,))
    here.stop()
    here.save()
    lines = _collected(folder, tree)
    tests = {
        name: round(seconds, 3) for name, seconds in recorder.seconds.items() if name not in recorder.failed
    }
    told = {
        "tests": tests,
        "failed": sorted(recorder.failed),
        "lines": {
            module: {
                line: sorted(names & {*tests, file})
                for line, names in found.items()
                if names & {*tests, file}
            }
            for module, found in lines.items()
        },
    }
    result.write_text(json.dumps(told))
    return 0


def _collected(folder: Path, tree: Path) -> dict[str, dict[int, set[str]]]:
    """Names of the tests by module and line, from what all processes of a test file have left."""
    import coverage

    lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for part in folder.glob("lines.*"):
        data = coverage.CoverageData(str(part))
        data.read()
        for module in data.measured_files():
            if not module.startswith(str(tree)):
                continue
            for line, names in data.contexts_by_lineno(module).items():
                lines[os.path.relpath(module, tree)][line] |= set(names) - {""}
    return lines


@dataclass
class Reach:
    """The map, one entry for each test file."""

    files: dict[str, dict] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    _moved: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)

    @staticmethod
    def read() -> Reach:
        if not STORE.exists():
            return Reach()
        stored = json.loads(STORE.read_text())
        return Reach(stored["files"], stored["sources"])

    def update(self, tree: Path, every: bool, say) -> None:
        """Run the test files that are not in the map or have changed, or all."""
        wanted = {}
        for folder in TEST_FOLDERS:
            for path in sorted((ROOT / "tests" / folder).glob("test_*.py")):
                wanted[str(path.relative_to(ROOT))] = hashlib.sha256(path.read_bytes()).hexdigest()
        self.files = {file: entry for file, entry in self.files.items() if file in wanted}
        known = {} if every else {file: entry["digest"] for file, entry in self.files.items()}
        changed = {file: digest for file, digest in wanted.items() if known.get(file) != digest}
        if changed:
            copy_of_the_checkout(tree)
        for file, digest in changed.items():
            result, began = tree.parent / "reach.json", time.monotonic()
            result.unlink(missing_ok=True)
            fork(lambda: measure(file, tree, result), tree, PATIENCE)
            if not result.exists():
                say(f"{file}: no map\n{(tree.parent / f'{tree.name}.log').read_text()[-2000:]}")
                continue
            found = json.loads(result.read_text())
            failed = f", {len(found['failed'])} failed or skipped" if found["failed"] else ""
            say(f"{file}: {len(found['tests'])} tests{failed}, {time.monotonic() - began:.0f} s")
            self._keep(file, digest, found)

    def _keep(self, file: str, digest: str, found: dict) -> None:
        texts = {module: (ROOT / module).read_text() for module in found["lines"]}
        keys = {module: hashlib.sha256(text.encode()).hexdigest()[:16] for module, text in texts.items()}
        self.sources.update({keys[module]: text for module, text in texts.items()})
        self.files[file] = {"digest": digest, "sources": keys, **found}
        used = {key for entry in self.files.values() for key in entry["sources"].values()}
        self.sources = {key: text for key, text in self.sources.items() if key in used}
        STORE.write_text(json.dumps({"files": self.files, "sources": self.sources}))

    def tests(self, module: str, line: int) -> dict[str, float]:
        """Seconds of the tests that reach a line; those that reach the module, if it runs at import."""
        if line not in self._in_functions(module):
            return self._module(module)
        found: dict[str, float] = {}
        for entry in self.files.values():
            if module not in entry["lines"]:
                continue
            old = self._old_line(module, entry["sources"][module], line)
            for name in entry["lines"][module].get(str(old), ()):
                found.update({name: entry["tests"][name]} if name in entry["tests"] else entry["tests"])
        return found

    @staticmethod
    @cache
    def _in_functions(module: str) -> set[int]:
        tree = ast.parse((ROOT / module).read_text())
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda)]
        bodies = [node.body if isinstance(node.body, list) else [node.body] for node in functions]
        return {line for body in bodies for line in range(body[0].lineno, body[-1].end_lineno + 1)}

    def _module(self, module: str) -> dict[str, float]:
        """Tests that reach a line of the module, or whose file imports from it: they may read constants."""
        found: dict[str, float] = {}
        dotted = module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for file, entry in self.files.items():
            if file in LOOKING or dotted in _imports(file):
                found.update(entry["tests"])
            for names in entry["lines"].get(module, {}).values():
                for name in names:
                    found.update({name: entry["tests"][name]} if name in entry["tests"] else {})
        return found

    def _old_line(self, module: str, key: str, line: int) -> int:
        """Where a line of the present module stood; the line before it, if it is new."""
        if (module, key) not in self._moved:
            old, new = self.sources[key].splitlines(), (ROOT / module).read_text().splitlines()
            moved: dict[int, int] = {}
            for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
                for place in range(c, d):
                    moved[place + 1] = (
                        a + place - c if tag == "equal" else min(a + place - c, max(b - 1, 0))
                    ) + 1
            self._moved[module, key] = moved
        return self._moved[module, key].get(line, line)


@cache
def _imports(file: str) -> set[str]:
    """The modules that a test file imports names from."""
    nodes = list(ast.walk(ast.parse((ROOT / file).read_text())))
    from_ = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    whole = {
        f"{node.module}.{name.name}"
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    return {name for name in from_ | whole if name}
