"""``mpifed launch``: the text of batch scripts, refused arguments, files and submission, without Slurm."""

import os
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path

import commands
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mpifed.cli.launch import array_settings, batch_script, launch, parse_time_limit, split_sbatch_line

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "jobs/slurm").glob("*.sbatch"))


@pytest.fixture(autouse=True)
def root(monkeypatch):
    monkeypatch.chdir(ROOT)


invoke = partial(commands.invoke, "launch")


def script(*arguments) -> list[str]:
    done = invoke("jobs/saddle.toml", *arguments, "--dry-run")
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


# Quoting

HOSTILE = "-\n\r\t \"'`$\\;#%!&*?[]{}()<>|~=:,é😀\u2028\u00a0\x7f\x1b\udcff"
words = st.text(
    st.one_of(st.sampled_from(HOSTILE), st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    min_size=1,
    max_size=12,
)


def arguments_of_launcher(script: str, *arguments: str, **variables: str) -> list[str]:
    """Return the arguments that a script passes to ``mpifed_launch``, which a stub replaces."""
    stub = "() { echo /; }", "() { printf '%s\\0' \"$@\"; }"
    done = subprocess.run(
        ["bash", "-c", script.replace('. "$here/cli/launcher.sh"', ""), "job.sbatch", *arguments],
        env={"BASH_FUNC_python%%": stub[0], "BASH_FUNC_mpifed_launch%%": stub[1], **variables},
        capture_output=True,
        timeout=20,
    )
    assert done.returncode == 0 and not done.stderr, done.stderr.decode()
    return [os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]]


def words_of_sbatch(line: str) -> list[str]:
    """Split a line of ``#SBATCH`` by the rules of sbatch's source, ``_get_argument``."""
    done, word, quote, escaped = [], None, "", False
    for character in line.removeprefix("#SBATCH"):
        if escaped:
            word, escaped = (word or "") + character, False
        elif character == "\\":
            escaped = True
        elif character == quote:
            quote = ""
        elif quote:
            word += character
        elif character in "\"'":
            word, quote = word or "", character
        elif character == "#":
            break
        elif character in " \t\n\v\f\r":
            done, word = done + ([] if word is None else [word]), None
        else:
            word = (word or "") + character
    assert not quote and not escaped
    return done + ([] if word is None else [word])


@settings(max_examples=100, deadline=None)
@given(st.lists(words, min_size=3, max_size=6), words.filter(str.isprintable))
@example(["-n 2.toml", "run.out=a\nb", "x=$(id)`id`", "\n#SBATCH --nodes=9", "'\"\\", "\r"], 'a "b" #c\\')
def test_the_command_and_sbatch_receive_the_exact_arguments(names, comment):
    job, *changes, last = names
    options = launch.make_context("launch", ["x", f"--extra=--comment={shlex.quote(comment)}"]).params
    text = batch_script("run", job, changes, 1, [names], [*names, comment], options)
    place = f"./{job}" if job[0] in "-:" else job
    assert arguments_of_launcher(text, last) == ["mpifed", "run", place, *changes, last]
    shebang, typed, name, *lines = text.partition("\nhere=")[0].split("\n")
    assert shebang == "#!/bin/bash" and typed.startswith("# mpifed launch ") and typed.isprintable()
    printable = "".join(letter if letter.isprintable() else "_" for letter in Path(job).stem)
    assert words_of_sbatch(name) == [f"--job-name={printable}"]
    directives = [words_of_sbatch(line) for line in lines if line.startswith("#SBATCH")]
    defaults = ["--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=1", "--signal=B:USR1@120"]
    assert directives == [[option] for option in (*defaults, f"--comment={comment}")]
    assert lines[-1].startswith("# runs 0: ") and lines[-1].isascii() and len(lines) == 6


@pytest.mark.parametrize("line, read", [
    ("--account=abc", ["--account=abc"]),
    ("#SBATCH --account=abc # mine", ["--account=abc"]),
    ("-A abc --exclusive", ["-A", "abc", "--exclusive"]),
    ("--comment='a b' --nice=#1", ["--comment=a b", "--nice=#1"]),
])  # fmt: skip
def test_options_of_sbatch_are_split(line, read):
    assert split_sbatch_line(line) == tuple(read)


# Scripts


def test_cores_per_rank_on_gpus():
    assert "#SBATCH --cpus-per-task=4" in script("--gpus-per-node", "2", "--ranks-per-node", "2")
    assert "#SBATCH --cpus-per-task=3" in script("--gpus-per-node", "2", "--cpus-per-rank", "3")


def test_a_limited_array():
    assert "#SBATCH --array=0-3%2" in script("--array", "seed=0,1,2,3", "--array-limit", "2")
    refused = invoke("jobs/saddle.toml", "--array-limit", "2", "--dry-run")
    assert refused.exit_code == 2 and "--array-limit needs a job array" in refused.output


def test_a_container():
    """Everything runs in the container, and the functions of the shell come from it."""
    lines = script("--container", "apptainer exec 'my image.sif'")
    prefix = "apptainer exec 'my image.sif' "
    exported = next(line for line in lines if line.startswith("export MPIFED_CONTAINER="))
    assert shlex.split(shlex.split(exported)[1].partition("=")[2]) == ["apptainer", "exec", "my image.sif"]
    assert any(line.startswith(f"here=$({prefix}python -c") for line in lines)
    assert f'. <({prefix}cat "$here/cli/launcher.sh")' in lines
    refused = invoke("jobs/saddle.toml", "--container", "a 'b", "--dry-run")
    assert refused.exit_code == 2 and "expected a command, got" in refused.output


def test_shipped_scripts_are_the_output_of_launch():
    """The second line of a script is the command that writes it."""
    assert {file.stem for file in SHIPPED} == {"gpu_nodes", "shared_gpu", "cpu", "array", "preemptible"}
    for file in SHIPPED:
        text = file.read_text()
        arguments = shlex.split(text.splitlines()[1].removeprefix("# mpifed launch "))
        assert arguments[-2:] == ["--script", f"jobs/slurm/{file.name}"]
        assert invoke(*arguments, "--dry-run").stdout == text
    for file in (*SHIPPED, ROOT / "mpifed/cli/launcher.sh"):
        subprocess.run(["bash", "-n", file], check=True, timeout=20)


def test_options():
    options = {"--nodes": 2, "--ranks-per-node": 3, "--cpus-per-rank": 4, "--gpus-per-node": "a100:2"}
    options |= {"--time": "1-12", "--partition": "long", "--warning": 300, "--setup": "module load x"}
    options |= {"--mem": "64G", "--mail-user": "a@b.org"}
    extra = ["--extra", "#SBATCH --account=abc", "--extra", "--exclusive"]
    lines = script("rounds=20", *(word for option in options.items() for word in option), *extra)
    expected = (
        "--job-name=saddle --nodes=2 --ntasks-per-node=3 --cpus-per-task=4 --signal=B:USR1@300 "
        "--gpus-per-node=a100:2 --time=1-12 --partition=long --mem=64G --mail-user=a@b.org --account=abc "
        "--exclusive"
    )
    assert [line[8:] for line in lines if line.startswith("#SBATCH")] == expected.split()
    assert "module load x" in lines and "export MPIFED_REQUEUE=1" not in lines
    assert lines[-1] == 'mpifed_launch mpifed run jobs/saddle.toml rounds=20 "$@"'
    preemptible = {"#SBATCH --requeue", "#SBATCH --open-mode=append", "export MPIFED_REQUEUE=1"}
    assert preemptible <= {*script("--preemptible")}


TUNE = """
problem = { name = "Saddle", clients = 2 }
[[tune.methods]]
name = "FGDA"
q = 2
"""


@pytest.mark.parametrize("verb", ["sweep", "tune"])
def test_parts_of_a_sweep_or_a_search(verb, tmp_path):
    job = "jobs/baselines/composition.toml" if verb == "sweep" else tmp_path / "tune.toml"
    if verb == "tune":
        job.write_text(TUNE)
    lines = invoke(job, "run.out=out", "--parts", 4, "--dry-run").stdout.splitlines()
    assert "#SBATCH --array=0-3" in lines
    command = f"mpifed_launch mpifed {verb} {job} run.out=out"
    assert lines[-1] == f'{command} --part "${{SLURM_ARRAY_TASK_ID:-0}}/4" "$@"'
    alone = invoke(job, "run.out=out", "--dry-run").stdout
    assert "--array" not in alone and alone.endswith(f'{command} "$@"\n')
    refused = invoke(job, "--array", "seed=0,1", "--dry-run").output
    assert f"has a [{verb}]: use --parts N instead of --array" in refused
    out = tmp_path / "out"
    assert str(out / "job.sbatch") in invoke(job, f"run.out={out}", "--no-submit").stdout


def test_parts_of_a_single_run():
    refused = invoke("jobs/saddle.toml", "--parts", 2, "--dry-run").output
    assert "--parts needs a job file with a [sweep]" in refused


def test_an_array_has_the_runs_of_a_sweep():
    """Values in TOML, and names without quotes; a setting of the job file may be a list."""
    values = 'algorithm={name="FGDA", q=5, gamma=0.1},{name="LocalSGDA", q=5}'
    assert array_settings(["seed=0, 1", values, "algorithm.matrix=adam,norm", 'record=[],["x"]']) == [
        "sweep.seed=[0, 1]",
        'sweep.algorithm=[{ name = "FGDA", q = 5, gamma = 0.1 }, { name = "LocalSGDA", q = 5 }]',
        'sweep.algorithm.matrix=["adam", "norm"]',
        'sweep.record=[[], ["x"]]',
    ]
    lines = script("--array", "seed=3,4", "--array", 'record=[],["x"]')
    assert "#SBATCH --array=0-3" in lines and '# runs 2: ["seed=4,record=_"]' in lines
    command = """mpifed_launch mpifed sweep jobs/saddle.toml 'sweep.seed=[3, 4]' 'sweep.record=[[], ["x"]]'"""
    assert lines[-1] == f'{command} --part "${{SLURM_ARRAY_TASK_ID:-0}}/4" "$@"'
    lines = script("--array", "seed=0,1,2", "--parts", "2")
    assert "#SBATCH --array=0-1" in lines and '# runs 0: ["seed=0", "seed=2"]' in lines


# Refused arguments

TIME = "expected minutes, H:M:S, D-H:M:S or a time such as 2h, got "
GPUS = "expected a number or TYPE:NUMBER, e.g. 4 or a100:4, got "
ARRAY = "--array: expected KEY=VALUE,VALUE,..., e.g. seed=0,1,2, got "
NAMES = "expected a name, or several names separated by commas, got "


@pytest.mark.parametrize("arguments, message", [
    (["--nodes", "0"], "0 is not in the range 1<=x<=65000"),
    (["--ranks-per-node", "70000"], "70000 is not in the range 1<=x<=65000"),
    (["--cpus-per-rank", "9" * 5000], "is not a valid integer range"),
    (["--warning", "65536"], "expected 1 to 65000 seconds, got '65536'"),
    (["--warning", "20h"], "expected 1 to 65000 seconds, got '20h'"),
    (["--warning", "x"], "expected a time in seconds"),
    (["--time", "soon"], f"{TIME}'soon'"),
    (["--time", "2 hrs"], f"{TIME}'2 hrs'"),
    (["--time", "4294967296"], f"{TIME}'4294967296'"),
    (["--time", "٣"], f"{TIME}'٣'"),
    (["--gpus-per-node", "many"], f"{GPUS}'many'"),
    (["--gpus-per-node", "a100:"], f"{GPUS}'a100:'"),
    (["--gpus-per-node", "9" * 5000], f"{GPUS}'999"),
    (["--partition", "a b"], f"{NAMES}'a b'"),
    (["--partition", "a\n#SBATCH -n9"], f"{NAMES}'a\\n"),
    (["--partition", ""], f"{NAMES}''"),
    (["--setup", "echo 'open"], 'expected complete lines of shell, got "echo \'open"'),
    (["--setup", "cat <<EOF"], "expected complete lines of shell, got 'cat <<EOF'"),
    (["--setup", "module load x &&"], "expected complete lines of shell, got 'module load x &&'"),
    (["--setup", "module load x \\"], "expected lines of shell"),
    (["--setup", "#SBATCH --nodes=9"], "options of sbatch go into --extra"),
    (["--extra", "--comment=a b"], "'b' is not an option; quote values with blanks"),
    (["--extra", "-A abc def"], "'def' is not an option"),
    (["--extra", "--comment='a"], "No closing quotation"),
    (["--extra", "--a=1\nrm -rf x"], "'rm' is not an option"),
    (["--extra", "--"], "'--' is not an option"),
    (["--extra", "#SBATCH"], "the line is empty"),
    (["--extra", ""], "the line is empty"),
    (["--qos", "4\n#SBATCH -n9"], "must not contain line breaks"),
    (["--extra", "--a='1\nrm'"], "must not contain line breaks"),
    (["--extra", "account=abc"], "expected an option of sbatch, e.g. --exclude=node7, got 'account=abc'"),
    (["--preemptible", "run.overwrite=true"], "would restart from the beginning each time"),
    (["rnds=3"], "a job file has no setting 'rnds'"),
    (["--array", "algorithm.q=1,0"], "algorithm.q: Input should be greater than or equal to 1, got 0"),
    (["--array", "seed=0,"], f"{ARRAY}'seed=0,'"),
    (["--array", 'run.title="a,b'], ARRAY),
    (["--array", "record=[[1,2]"], ARRAY),
    (["--array", "seed"], f"{ARRAY}'seed'"),
    (["--array", "seed=1,1"], "[sweep] lists the run 'seed=1"),
    (["--array", "seed=1", "--array", "seed=2"], "--array: got seed twice, expected all values at once"),
])  # fmt: skip
def test_invalid_arguments(arguments, message):
    text = commands.error_of("launch", "jobs/saddle.toml", *arguments, "--dry-run")
    assert message in " ".join(text.split()), text


@pytest.mark.parametrize("arguments, message", [
    (["--nodes", "3", "--ranks-per-node", "7"], "21 ranks for 20 clients: 1 of the ranks will be idle"),
    (["--gpus-per-node", "2"], "2 GPUs per node for 1 ranks per node: a rank uses one GPU"),
    (["--time", "2"], "expected a time limit above the warning time of 120 s, got 120 s"),
])  # fmt: skip
def test_warnings(arguments, message):
    assert message in invoke("jobs/saddle.toml", *arguments, "--dry-run").stderr


@pytest.mark.parametrize(
    "text, seconds",
    [("5", 300), ("5:30", 330), ("1:00:01", 3601), ("2-3", 183600), ("2-3:30", 185400),
     ("1-0:0:1", 86401), ("x", None), ("", None)],
)  # fmt: skip
def test_time_limits_of_slurm(text, seconds):
    assert parse_time_limit(text) == seconds


@pytest.mark.parametrize("time, limit", [("2h", "120"), ("90 s", "2"), ("2:00:00", "2:00:00"), ("30", "30")])
def test_times_with_units(time, limit):
    lines = script("--preemptible", "--time", time, "--warning", "1min")
    assert f"#SBATCH --time={limit}" in lines and "#SBATCH --signal=B:USR1@60" in lines


# Files and submission


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    """``sbatch(text)``: puts a program named sbatch first on PATH."""

    def make(text: str) -> None:
        program = tmp_path / "bin" / "sbatch"
        program.parent.mkdir()
        program.write_text(f"#!/bin/bash\n{text}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent), prepend=":")

    return make


def test_the_script_is_written_and_submitted(tmp_path, monkeypatch, sbatch):
    sbatch('[ -z "$REFUSE" ] || { echo "invalid partition" >&2; exit 1; }\necho Submitted "$@"')
    settings = ["jobs/saddle.toml", f"run.out={tmp_path / 'run'}"]
    file = tmp_path / "run" / "job.sbatch"
    assert invoke(*settings).output == f"{file}\nSubmitted {file}\n"
    assert file.read_text() == invoke(*settings, "--dry-run").output
    assert "Submitted" not in invoke(*settings, "--no-submit").output
    monkeypatch.setenv("REFUSE", "1")
    done = invoke(*settings)
    assert done.exit_code == 2 and "invalid partition" in done.output and f"refused {file}" in done.output
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "there is no sbatch on this machine" in " ".join(invoke(*settings).output.split())


def test_a_python_without_the_package_is_reported_in_one_sentence(tmp_path):
    """As after sbatch --export=NONE, which drops the environment of submission."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "$@"\n')
    bare.chmod(0o755)
    text = invoke("jobs/saddle.toml", "--dry-run").output
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", text], cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.returncode == 71 and "Traceback" not in done.stderr
    assert f"mpifed is not installed for {bare}: submit" in done.stderr and "--setup" in done.stderr


def test_sbatch_does_not_inherit_variables_of_another_job(tmp_path, monkeypatch, sbatch):
    """The name of the script is not parsed as an option or searched on PATH."""
    sbatch('echo "$@"\nenv')
    for name in ("SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_EXPORT_ENV", "PMIX_RANK", "PMI_SIZE"):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    monkeypatch.chdir(tmp_path)
    lines = invoke(ROOT / "jobs/saddle.toml", "--script", "-x").stdout.splitlines()
    assert lines[:2] == ["-x", str(tmp_path / "-x")]
    assert "SLURM_CONF=/etc/slurm.conf" in lines and not [line for line in lines if line.endswith("=7")]


@pytest.mark.parametrize("kind", ["text", "link", "dangling", "folder", "pipe", "below a file"])
def test_other_files_are_not_replaced(tmp_path, kind):
    file, target = tmp_path / "job.sbatch", tmp_path / "mine"
    text = "#!/bin/bash\n# made by:\n# mpifed launch jobs/saddle.toml\nmine\n"
    if kind != "dangling":
        target.write_text(text)
    match kind:
        case "text":
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
    message = "cannot write" if kind == "below a file" else "was not written by mpifed launch"
    assert kind == "folder" or message in " ".join(done.output.split()), done.output
    assert [path.read_text() for path in tmp_path.iterdir() if path.is_file()] == (
        [] if kind == "dangling" else [text] * (2 if kind == "link" else 1)
    )
