"""``mpifed launch``: the file it writes, what it leaves alone, what sbatch gets. No Slurm is needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mpifed.base.errors import ConfigError
from mpifed.cli.launch import launch

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def invoke(*arguments):
    return CliRunner().invoke(launch, [str(argument) for argument in arguments])


def test_writes_and_submits(tmp_path, monkeypatch):
    """A program named sbatch stands for Slurm's."""
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(
        '#!/bin/bash\n[ -z "$REFUSE" ] || { echo "invalid partition" >&2; exit 1; }\necho Submitted "$@"\n'
    )
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", str(sbatch.parent), prepend=":")
    settings = ["jobs/saddle.toml", f"run.out={tmp_path / 'run'}"]
    file = tmp_path / "run" / "job.sbatch"
    assert invoke(*settings).output == f"{file}\nSubmitted {file}\n"
    assert file.read_text() == invoke(*settings, "--dry-run").output
    assert "Submitted" not in invoke(*settings, "--no-submit").output
    monkeypatch.setenv("REFUSE", "1")
    done = invoke(*settings)
    assert done.exit_code == 2 and "invalid partition" in done.output and f"refused {file}" in done.output
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "there is no sbatch on this machine: --no-submit writes the script" in " ".join(
        invoke(*settings).output.split()
    )


def test_a_python_without_the_package_is_told_in_a_sentence(tmp_path):
    """sbatch --export=NONE leaves the environment of submission behind, and its python with it."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "$@"\n')
    bare.chmod(0o755)
    script = invoke("jobs/saddle.toml", "--dry-run").output
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 71 and "Traceback" not in done.stderr
    assert f"mpifed is not installed for {bare}: submit" in done.stderr and "--setup" in done.stderr


def test_sbatch_hears_nothing_of_another_job(tmp_path, monkeypatch):
    """And the script's name is neither an option to it nor looked for on PATH."""
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text('#!/bin/bash\necho "$@"\nenv\n')
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", str(sbatch.parent), prepend=":")
    for name in ("SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_EXPORT_ENV", "PMIX_RANK", "PMI_SIZE"):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    job = (ROOT / "jobs/saddle.toml").absolute()
    monkeypatch.chdir(tmp_path)
    lines = invoke(job, "--script", "-x").stdout.splitlines()
    assert lines[:2] == ["-x", str(tmp_path / "-x")]
    assert "SLURM_CONF=/etc/slurm.conf" in lines and not [line for line in lines if line.endswith("=7")]


@pytest.mark.parametrize("kind", ["text", "mark", "link", "dangling", "folder", "pipe", "below a file"])
def test_no_other_file_is_replaced(tmp_path, kind):
    file, target = tmp_path / "job.sbatch", tmp_path / "mine"
    text = "mine\n" if kind != "mark" else "#!/bin/bash\n# made by:\n# mpifed launch jobs/saddle.toml\nmine\n"
    if kind != "dangling":
        target.write_text(text)
    match kind:
        case "text" | "mark":
            target.rename(file)
        case "link" | "dangling":
            file.symlink_to(target)
        case "folder":
            file.mkdir()
        case "pipe":
            os.mkfifo(file)
        case "below a file":
            file = target / "job.sbatch"
    done = invoke("jobs/saddle.toml", "--script", file, "--no-submit")
    assert done.exit_code == 2, done.output
    says = "cannot write" if kind == "below a file" else "no script of mpifed launch"
    assert kind == "folder" or says in " ".join(done.output.split()), done.output
    assert [path.read_text() for path in tmp_path.iterdir() if path.is_file()] == (
        [] if kind == "dangling" else [text] * (2 if kind == "link" else 1)
    )


def test_a_null_character_is_no_path():
    done = invoke("jobs/saddle.toml", 'run.out="a\\u0000b"', "--no-submit")
    assert isinstance(done.exception, ConfigError) and "has no NUL character" in str(done.exception)
