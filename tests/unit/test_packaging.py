"""The files of scripts/packaging: containers and the conda recipe."""

import configparser
import re
from pathlib import Path

import yaml
from containers import DOCKERFILE, commands, copied

import mpifed

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "scripts" / "packaging"
DEFINITION = (PACKAGING / "mpifed.def").read_text()
RECIPE = yaml.safe_load((PACKAGING / "recipe.yaml").read_text())
#: Names on PyPI → names on conda-forge, where they differ.
CONDA = {"torch": "pytorch", "matplotlib": "matplotlib-base"}


def test_both_containers_run_the_same_commands_with_the_same_files():
    files = DEFINITION.partition("%files")[2].partition("%post")[0]
    assert {line.split()[0] for line in files.strip().splitlines()} == copied(DOCKERFILE)
    post = DEFINITION.partition("%post")[2].partition("%environment")[0]
    lines = [line.strip() for line in post.strip().splitlines()]
    assert [line for line in lines if not line.startswith("export ")] == commands(DOCKERFILE)
    variables = re.findall(r"^ENV (.*)$", DOCKERFILE, re.M)
    assert [line.removeprefix("export ") for line in lines if line.startswith("export ")] == variables
    images = [
        re.findall(rf"^{word} (.*)$", text, re.M)
        for word, text in (("FROM", DOCKERFILE), ("From:", DEFINITION))
    ]
    assert images[0] == images[1]


def requirements() -> dict[str, str]:
    """Return the bounds of the dependencies of mpifed and its extras in setup.cfg, by name on conda-forge."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = setup["options.extras_require"]
    lines = [setup["options"]["install_requires"], *(extras[name] for name in ("mpi", "plots", "tune"))]
    found = re.findall(r"^([\w-]+)(>=\S+?)(?:;.*)?$", "\n".join(lines).replace("; ", ";"), re.M)
    return {CONDA.get(name, name): bound for name, bound in found}


def test_the_recipe_has_the_dependencies_of_setup_cfg():
    run = dict(line.split(" ", 1) for line in RECIPE["requirements"]["run"])
    assert run.pop("python") == ">=${{ python_min }}"
    assert run == requirements() and len(run) == 20


def test_the_recipe_describes_this_version():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert RECIPE["context"] == {
        "version": mpifed.__version__,
        "python_min": setup["options"]["python_requires"].removeprefix(">="),
    }
    scripts = setup["options.entry_points"]["console_scripts"].strip().splitlines()
    assert RECIPE["build"]["python"]["entry_points"] == scripts
    assert RECIPE["about"]["summary"] == setup["metadata"]["description"]
    build = re.search(r'"setuptools(>=\d+)"', (ROOT / "pyproject.toml").read_text())[1]
    assert f"setuptools {build}" in RECIPE["requirements"]["host"]
