"""``launcher.sh`` with stubs for Slurm: exit codes, requeueing, variables. tests/slurm uses a real Slurm."""

import os
import subprocess
from pathlib import Path

import pytest

LAUNCHER = Path(__file__).parents[2] / "mpifed/cli/launcher.sh"
#: srun executes its command once; scontrol knows some jobs and records its arguments.
STUBS = {
    "srun": """
        case $1 in --mpi=list) echo "pmix pmi2 ${TYPE:-}"; exit ;; --overlap) [ ! -e lost ]; exit ;; esac
        while [[ $1 == --* ]]; do shift; done
        exec "$@"
    """,
    "python": """
        [ ! -e early ] || { kill -TERM "$MAIN"; exit 1; }
        [[ $2 != *library* ]] || echo "${LIBRARY:-Open MPI v5.0.11}"
        [[ $2 != *world* ]] || { [ -n "${OTHER_TMP:-}" ] || rm -f "$4"; sleep "${SLOW:-0}"; }
    """,
    "scontrol": """
        echo "$*" >>asked
        case ${3:-$2} in
          7) echo "JobId=7 JobState=RUNNING" ;;
          4_2) echo "JobId=7 ArrayJobId=4 ArrayTaskId=2 JobState=RUNNING" ;;
          4_3) echo "JobId=8 ArrayJobId=4 ArrayTaskId=3 JobState=RUNNING" ;;
          config) echo "SlurmdTimeout           = 1 sec"; kill -TERM "$MAIN" ;;
          -o) shift; exec "$0" "$1" "$2" "$3" "$3" ;;
        esac
    """,
    "command": 'env; echo "args: $*"; [ "$1" != done ] || rm -f "$MPIFED_UNFINISHED"; exit "${2:-0}"',
}


@pytest.fixture
def launcher(tmp_path):
    """``launcher(WORD, CODE)`` runs ``mpifed_launch command``: exit code, output, arguments of scontrol."""
    (tmp_path / "bin").mkdir()
    for name, text in STUBS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)

    def run(*arguments, setup="", **variables):
        job = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "SLURM_NNODES": "1", "SLURM_CPUS_PER_TASK": "1"}
        done = subprocess.run(
            ["bash", "-c", f'{setup}\n. "$0"\nmpifed_launch command "$@"', LAUNCHER, *arguments],
            cwd=tmp_path,
            env=job | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"} | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        asked = tmp_path / "asked"
        return done.returncode, done.stdout, asked.read_text().splitlines() if asked.exists() else []

    return run


@pytest.mark.parametrize("code", [0, 1, 2, 3, 71, 75, 85, 130, 137, 255])
def test_the_exit_code_of_the_command_is_returned(launcher, code):
    ended, output, asked = launcher("done", str(code))
    assert ended == code and not asked, output
    assert ("submit the same script again" in output) == (code == 85)


def test_arguments_are_passed_unchanged(launcher):
    ended, output, _ = launcher("done", "0", "a  b", "$(id)", "*", "", "'\"\\", "é\nx")
    assert ended == 0 and "args: done 0 a  b $(id) *  '\"\\ é\nx\n" in output


@pytest.mark.parametrize("setup", [
    "set -euo pipefail; IFS=$'\\n\\t'", "shopt -s failglob nullglob", "set -f; IFS=x",
    "set -o noclobber -o posix",
])  # fmt: skip
def test_options_of_the_shell(launcher, setup):
    """The second launcher is tried after the first."""
    ended, output, _ = launcher("done", "3", setup=setup, MPIFED_LAUNCHER="other pmix")
    assert ended == 3 and "by srun --mpi=pmix " in output, output


def test_a_missing_temporary_folder(launcher):
    ended, output, _ = launcher("done", TMPDIR="/nowhere")
    assert ended == 0 and "TMPDIR=/nowhere is missing on this node: using /tmp" in output, output
    assert "MPIFED_UNFINISHED=/tmp/" in output


def test_exit_code_0_of_an_unfinished_command(launcher):
    """Without a temporary file, the exit code is trusted."""
    for words in (("stopped",), ("stopped", "0")):
        ended, output, _ = launcher(*words)
        assert ended == 1 and "exit code 0, but the command has not finished" in output, output
    ended, output, _ = launcher("stopped", "0", setup="mktemp() { false; }")
    assert ended == 0 and "has not finished" not in output, output


def test_ranks_that_do_not_see_the_temporary_folder(launcher):
    """In a container, the command cannot remove the file; the exit code is trusted."""
    ended, output, _ = launcher("stopped", "0", OTHER_TMP="1")
    assert ended == 0 and "has not finished" not in output, output


def test_a_slow_test_program_is_reported_as_such(launcher):
    ended, output, _ = launcher("never", SLOW="9", MPIFED_TEST_SECONDS="1", MPIFED_LAUNCHER="pmix")
    assert ended == 71 and "no end within 1 s" in output and "set MPIFED_TEST_SECONDS=4" in output, output
    assert "do not match" not in output and "args:" not in output, output


@pytest.mark.parametrize("library, kind, asked, used", [
    ("MPI VERSION : CRAY MPICH version 8.1.29", "cray_shasta", {}, "srun --mpi=cray_shasta --kill"),
    ("MPI VERSION : CRAY MPICH version 8.1.29", "", {}, "srun --kill"),
    ("Open MPI v5.0.11", "", {"MPIFED_LAUNCHER": "srun"}, "srun --kill"),
])  # fmt: skip
def test_launchers_of_other_sites(launcher, library, kind, asked, used):
    ended, output, _ = launcher("done", LIBRARY=library, TYPE=kind, **asked)
    assert ended == 0 and f" by {used}" in output, output


@pytest.mark.parametrize("user", [0, 1000])
def test_mpirun_starts_as_root(launcher, tmp_path, user):
    """Open MPI's mpirun refuses to, unless two variables are set."""
    for name, text in {"id": f"echo {user}", "mpirun": 'shift 2; exec "$@"'}.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    allowed = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "")
    ended, output, _ = launcher("done", MPIFED_LAUNCHER="mpirun", **allowed)
    seen = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
    assert ended == 0 and {seen[name] for name in allowed} == {"" if user else "1"}, output


def test_the_ranks_run_in_a_container(launcher, tmp_path):
    inside = tmp_path / "bin/inside"
    inside.write_text('#!/bin/bash\necho "in $1: $2" >&2\nshift; exec "$@"\n')
    inside.chmod(0o755)
    ended, output, _ = launcher("done", "3", MPIFED_CONTAINER="inside 'my image'")
    assert ended == 3 and "in my image: command" in output and "args: done 3" in output, output
    assert "in my image: python" in output, output  # the library is that of the image


def test_variables_of_another_job(launcher):
    left = {"SLURM_ARRAY_JOB_ID": "4", "SLURM_ARRAY_TASK_ID": "3", "SLURM_EXPORT_ENV": "NONE"}
    left |= {"SLURM_MEM_PER_CPU": "1", "SLURM_MEM_PER_NODE": "2", "SLURM_STEP_NUM_TASKS": "64"}
    left |= {"PMIX_RANK": "3", "PMI_SIZE": "9", "PMIX_MCA_psec": "native"}
    ended, output, asked = launcher("done", "85", MPIFED_REQUEUE="1", **left)
    assert ended == 85 and asked[-1] == "requeue 7", output
    seen = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
    assert seen["SLURM_EXPORT_ENV"] == "ALL" and seen["PMIX_MCA_psec"] == "native"
    assert not (set(left) - {"SLURM_EXPORT_ENV", "PMIX_MCA_psec"}) & set(seen), output


def test_only_the_element_of_an_array_is_requeued(launcher):
    code, output, asked = launcher(
        "done", "85", MPIFED_REQUEUE="1", SLURM_ARRAY_JOB_ID="4", SLURM_ARRAY_TASK_ID="2"
    )
    assert code == 85 and asked[-1] == "requeue 4_2", output


@pytest.mark.parametrize("code", [2, 3, 71, 75])
def test_errors_that_would_recur_are_not_requeued(launcher, code):
    ended, output, asked = launcher("done", str(code), MPIFED_REQUEUE="1")
    assert ended == code and asked == ["show job 7"], output


@pytest.mark.parametrize("code", ["0", "1", "75", "137"])
def test_a_lost_node(launcher, tmp_path, code):
    """The script waits until Slurm notices the loss and sends SIGTERM."""
    (tmp_path / "lost").touch()
    ended, output, asked = launcher("lost", code, setup="export MAIN=$$", MPIFED_REQUEUE="1")
    assert ended == (int(code) or 1), output
    assert "a node of this job does not respond: waiting up to 61 s" in output, output
    assert asked[:2] == ["show config", "show job 7"]


def test_a_signal_before_the_ranks_start(launcher, tmp_path):
    (tmp_path / "early").touch()
    ended, output, asked = launcher("never", setup="export MAIN=$$", MPIFED_REQUEUE="1")
    assert ended == 85 and asked == ["show job 7", "requeue 7"] and "args:" not in output, output
    assert "cannot load" not in output and "do not match" not in output, output
