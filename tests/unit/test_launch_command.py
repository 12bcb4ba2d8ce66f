"""``mpifed launch``: what stands in a batch script, and what is refused. No Slurm is needed."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mpifed.base.errors import ConfigError
from mpifed.cli.batch_script import seconds as seconds_of
from mpifed.cli.launch import array_tasks, launch
from mpifed.cli.main import main
from mpifed.config.grids import variants
from mpifed.config.tables import override

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "jobs/slurm").glob("*.sbatch"))


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def invoke(*arguments):
    return CliRunner().invoke(launch, [str(argument) for argument in arguments])


def script(*arguments) -> list[str]:
    done = invoke("jobs/saddle.toml", *arguments, "--dry-run")
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_shipped_scripts_are_what_launch_writes(file):
    """The second line of a script is the command that makes it."""
    text = file.read_text()
    arguments = shlex.split(text.splitlines()[1].removeprefix("# mpifed launch "))
    assert arguments[-2:] == ["--script", f"jobs/slurm/{file.name}"]
    assert invoke(*arguments, "--dry-run").stdout == text


def test_five_kinds_are_shipped():
    assert {file.stem for file in SHIPPED} == {"gpu_nodes", "shared_gpu", "cpu", "array", "preemptible"}


@pytest.mark.parametrize("file", [*SHIPPED, ROOT / "mpifed/cli/launcher.sh"], ids=lambda file: file.name)
def test_scripts_are_bash(file):
    subprocess.run(["bash", "-n", file], check=True, timeout=20)


def test_options_of_sbatch():
    lines = script(
        "rounds=20",
        "--nodes",
        2,
        "--ranks-per-node",
        3,
        "--cpus-per-rank",
        4,
        "--gpus-per-node",
        "a100:2",
        "--time",
        "1-12",
        "--partition",
        "long",
        "--warning",
        300,
        "--extra",
        "#SBATCH --account=abc",
        "--extra",
        "--exclusive",
        "--setup",
        "module load x",
    )
    assert [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")] == [
        "--job-name=saddle",
        "--nodes=2",
        "--ntasks-per-node=3",
        "--cpus-per-task=4",
        "--gpus-per-node=a100:2",
        "--time=1-12",
        "--partition=long",
        "--signal=B:USR1@300",
        "--account=abc",
        "--exclusive",
    ]
    assert "module load x" in lines and "export MPIFED_REQUEUE=1" not in lines
    assert lines[-1] == 'mpifed_launch mpifed run jobs/saddle.toml rounds=20 "$@"'


def test_every_job_file_as_it_is():
    for path in sorted((ROOT / "jobs").rglob("*.toml")):
        if path.name != "claims.toml":
            assert "mpifed_launch mpifed " in invoke(path, "--dry-run").stdout, path


def test_a_sweep_in_parts():
    job = "jobs/baselines/composition.toml"
    lines = invoke(job, "rounds=3", "--parts", 4, "--dry-run").stdout.splitlines()
    assert "#SBATCH --array=0-3" in lines and lines[2].startswith("# a sweep in 4 part(s);")
    assert (
        lines[-1] == f'mpifed_launch mpifed sweep {job} rounds=3 --part "${{SLURM_ARRAY_TASK_ID:-0}}/4" "$@"'
    )
    alone = invoke(job, "--dry-run").stdout
    assert "--array" not in alone and alone.endswith(f'mpifed_launch mpifed sweep {job} "$@"\n')
    assert "--parts N shares its runs" in invoke(job, "--array", "seed=0,1", "--dry-run").output
    assert (
        "--parts is for a job file with a [sweep]"
        in invoke("jobs/saddle.toml", "--parts", 2, "--dry-run").output
    )


def test_a_search_in_parts(tmp_path):
    job, out = tmp_path / "tune.toml", tmp_path / "out"
    problem, run = 'problem = { name = "Saddle", clients = 2 }\n', f'[run]\nout = "{out}"\n'
    job.write_text(problem + run + '[[tune.methods]]\nname = "FGDA"\nq = 2\n')
    lines = invoke(job, "--parts", 2, "--ranks-per-node", 4, "--dry-run").stdout.splitlines()
    assert "#SBATCH --array=0-1" in lines and lines[2].startswith("# a search in 2 part(s);")
    assert lines[-1].endswith(f'mpifed tune {job} --part "${{SLURM_ARRAY_TASK_ID:-0}}/2" "$@"')
    alone = invoke(job, "--dry-run").stdout
    assert "--array" not in alone and alone.endswith(f'mpifed_launch mpifed tune {job} "$@"\n')
    assert "has a [tune]: --parts N" in invoke(job, "--array", "seed=0,1", "--dry-run").output
    assert str(out / "job.sbatch") in invoke(job, "--no-submit").stdout


def test_preemptible():
    lines = script("--preemptible")
    assert {"#SBATCH --requeue", "#SBATCH --open-mode=append", "export MPIFED_REQUEUE=1"} <= set(lines)


def test_array_is_the_product_of_its_axes():
    values = 'algorithm={name="FGDA", q=5, gamma=0.1},{name="LocalSGDA", q=5, eta_x=0.1, eta_y=0.1}'
    tasks = array_tasks(["seed=0,1", values], "runs/a")
    assert [task[:2] for task in tasks] == [
        (seed, f"algorithm={algorithm}")
        for seed in ("seed=0", "seed=1")
        for algorithm in ('{name="FGDA", q=5, gamma=0.1}', '{name="LocalSGDA", q=5, eta_x=0.1, eta_y=0.1}')
    ]
    nested = array_tasks(["x=[[1,2],[3]],{a=[1,2],b={c=1},d=2}"], "a")
    assert [task[0] for task in nested] == ["x=[[1,2],[3]]", "x={a=[1,2],b={c=1},d=2}"]
    assert [task[2].removeprefix("run.out=runs/a/") for task in tasks] == [
        "seed=0,FGDA",
        "seed=0,LocalSGDA",
        "seed=1,FGDA",
        "seed=1,LocalSGDA",
    ]


def test_folders_of_an_array_are_named_as_those_of_a_sweep(tmp_path):
    job = tmp_path / "job.toml"
    job.write_text(
        (ROOT / "jobs/saddle.toml").read_text() + "\n[sweep]\nseed = [0, 1]\nalgorithm.gamma = [0.1, 1e-2]\n"
    )
    tasks = array_tasks(["seed=0,1", "algorithm.gamma=0.1,1e-2"], "runs/saddle")
    assert [run.config.run.out for run in variants(job)] == [
        task[-1].removeprefix("run.out=") for task in tasks
    ]


def test_a_task_of_an_array_gets_its_settings():
    lines = script("--array", "seed=3,4", "--array", 'record=[],["x"]')
    assert "#SBATCH --array=0-3" in lines
    choice = lines[lines.index('case "${SLURM_ARRAY_TASK_ID-}" in') : lines.index("esac") + 1]

    def chosen(element):
        return subprocess.run(
            ["bash", "-c", "\n".join([*choice, 'printf "%s\\n" "$@"']), "bash", "last=1"],
            env={"SLURM_ARRAY_TASK_ID": element},
            capture_output=True,
            text=True,
            timeout=20,
        )

    assert (chosen("4").returncode, chosen("4").stderr) == (2, "mpifed: this array has no element 4\n")
    assert chosen("3").stdout.splitlines() == [
        "seed=4",
        'record=["x"]',
        "run.out=runs/saddle/seed=4,record=_x_",
        "last=1",
    ]


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["--nodes", "0"], "0 is not in the range 1<=x<=65000"),
        (["--ranks-per-node", "70000"], "70000 is not in the range 1<=x<=65000"),
        (["--cpus-per-rank", "9" * 5000], "is not a valid integer range"),
        (["--warning", "65536"], "expected 1 to 65000 seconds, got"),
        (["--time", "soon"], "expected minutes, H:M:S, D-H:M:S or a time such as 2h, got 'soon'"),
        (["--time", "4294967296"], "expected minutes, H:M:S, D-H:M:S or a time such as 2h, got '4294967296'"),
        (["--time", "٣"], "expected minutes, H:M:S, D-H:M:S or a time such as 2h, got '٣'"),
        (["--gpus-per-node", "many"], "expected a number or TYPE:NUMBER, e.g. 4 or a100:4, got 'many'"),
        (["--gpus-per-node", "a100:"], "expected a number or TYPE:NUMBER, e.g. 4 or a100:4, got 'a100:'"),
        (["--gpus-per-node", "9" * 5000], "expected a number or TYPE:NUMBER, e.g. 4 or a100:4, got '999"),
        (["--partition", "a b"], "expected a name, or several with commas between, got 'a b'"),
        (["--partition", "a\n#SBATCH -n9"], "expected a name, or several with commas between, got 'a\\n"),
        (["--partition", ""], "expected a name, or several with commas between, got ''"),
        (["--setup", "echo 'open"], 'bash cannot read "echo \'open"'),
        (["--setup", "cat <<EOF"], "bash cannot read 'cat <<EOF'"),
        (["--setup", "module load x &&"], "bash cannot read 'module load x &&'"),
        (["--setup", "module load x \\"], "expected lines of shell"),
        (["--setup", "#SBATCH --nodes=9"], "options of sbatch go into --extra"),
        (["--extra", "--comment=a b"], "'b' is no option; values with blanks need quotes"),
        (
            ["--extra", "account=abc"],
            "--extra takes an option of sbatch, e.g. --account=abc123, got 'account=abc'",
        ),
        (
            ["--preemptible", "run.overwrite=true"],
            "run.overwrite=true would restart a preemptible job from the beginning",
        ),
    ],
)
def test_refused(arguments, says):
    done = invoke("jobs/saddle.toml", *arguments, "--dry-run")
    assert done.exit_code == 2 and says in " ".join(done.output.split()), done.output


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["rnds=3"], "a job file has no setting 'rnds'"),
        (["--array", "algorithm.q=1,0"], "algorithm.q: Input should be greater than or equal to 1, got 0"),
        (["--array", "seed=0,"], "--array takes KEY=VALUE,VALUE,..., e.g. seed=0,1,2, got 'seed=0,'"),
        (["--array", 'run.title="a,b'], "--array takes KEY=VALUE,VALUE"),
        (["--array", "record=[[1,2]"], "--array takes KEY=VALUE,VALUE"),
        (["--array", "seed"], "--array takes KEY=VALUE,VALUE,..., e.g. seed=0,1,2, got 'seed'"),
        (["--array", "seed=1,1"], "--array names the same run twice"),
        (
            ["--array", "seed=1", "--array", "seed=2"],
            "--array names seed twice: give all of its values at once",
        ),
    ],
)
def test_settings_are_checked_first(arguments, says, monkeypatch, capsys):
    assert isinstance(invoke("jobs/saddle.toml", *arguments, "--dry-run").exception, ConfigError)
    monkeypatch.setattr(sys, "argv", ["mpifed", "launch", "jobs/saddle.toml", *arguments, "--dry-run"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2 and says in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["--nodes", "3", "--ranks-per-node", "7"], "21 ranks for 20 clients: 1 would have nothing to do"),
        (["--gpus-per-node", "2"], "2 GPUs a node for 1 ranks: a rank uses one GPU"),
        (["--time", "2"], "the time limit of 120 s lies before the warning, 120 s ahead of it"),
    ],
)
def test_warnings(arguments, says):
    assert says in invoke("jobs/saddle.toml", *arguments, "--dry-run").stderr


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("5", 300),
        ("5:30", 330),
        ("1:00:01", 3601),
        ("2-3", 183600),
        ("2-3:30", 185400),
        ("1-0:0:1", 86401),
        ("x", None),
        ("", None),
    ],
)
def test_time_limits(text, seconds):
    assert seconds_of(text) == seconds


def test_an_element_of_an_array_keeps_its_folder():
    """Also where the folder's name reads as TOML."""
    for out in ('"a" # b', "[1]\n#", "1 # é", "runs/a"):
        (*_, setting), _ = array_tasks(["seed=1,2"], out)
        table = {}
        override(table, setting)
        assert table["run"]["out"] == f"{out}/seed=1"
