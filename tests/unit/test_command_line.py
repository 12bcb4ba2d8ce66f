"""The command line and job files: what is accepted, and how what is wrong is said."""

import json
import sys

import pytest
from click.testing import CliRunner
from launch import launch
from runfiles import decay, write

from mpifed import run
from mpifed.cli.catalogue import catalogue
from mpifed.cli.main import cli, main
from mpifed.config.job import Config, ConfigError
from mpifed.parallel.comm import SerialComm

JOB = """
rounds = 3
[algorithm]
name = "AdaFGDA"
q = 2
[problem]
name = "Saddle"
clients = 4
d = 3
[oracle]
batch_size = 0
[run]
progress = false
checkpoint_every = 2
"""


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(JOB + f'out = "{tmp_path / "run"}"\n')
    return path


@pytest.mark.parametrize(
    "override, says",
    [
        ("algorithm.gama=0.1", "algorithm has no setting 'gama': did you mean 'gamma'?"),
        ("algorithm.q=0", "algorithm.q: Input should be greater than or equal to 1, got 0"),
        ("algorithm.q=2.5", "algorithm.q: Input should be a valid integer"),
        ("algorithm.eta=-1", "algorithm.eta: expected a finite number >= 0 or a schedule, got -1"),
        ("algorithm.eta.name=powr", "unknown schedule 'powr': did you mean 'power'?"),
        ("algorithm.matrix=adm", "unknown matrix 'adm': did you mean 'adam'?"),
        ("algorithm.matrix={name='adam', rh=1}", "matrix 'adam' has no setting 'rh': did you mean 'rho'?"),
        ("algorithm={name='FGDA', q=2, matrix='adam'}", "algorithm has no setting 'matrix'"),
        ("algorithm.name=AdaFGD", "unknown algorithm 'AdaFGD': did you mean 'AdaFGDA'?"),
        ("algorithm={name='LocalSGDA', q=2, eta_x=0.1}", "algorithm.eta_y is missing"),
        ("problem.name=Sadle", "unknown problem 'Sadle': did you mean 'Saddle'?"),
        ("problem.clients=0", "problem.clients: Input should be greater than or equal to 1"),
        ("participation.cohort=5", "participation.cohort = 5 is more than problem.clients = 4"),
        ("participation.cohort=3", "AdaFGDA needs every client in every round"),
        ("run.devise=cpu", "[run] has no setting 'devise': did you mean 'device'?"),
        ("run.dtype=float16", "run.dtype"),
        ("rnds=3", "a job file has no setting 'rnds': did you mean 'rounds'?"),
        ("rounds=many", "rounds"),
        ("stop.metric=error", "a target needs metric and exactly one of at_least, at_most"),
        (
            "stop={metric='eror', at_most=1}",
            "stop.metric = 'eror' is no metric of this problem: did you mean 'error'?",
        ),
        ("record=['z']", "there is no block 'z' (options: x, y)"),
        ("oracle.noise.scale=1", "unknown noise None"),
        ("oracle.noise={name='gaussian', scale=0}", "Input should be greater than 0"),
        ("no-equals-sign", "an override is key=value"),
        ("problem={name='DeepAUC', dataset='minst'}", "minst"),
        ("algorithm.name=./nothing.py:Method", "there is no file ./nothing.py"),
        ("algorithm.name=os.path:join", "os.path:join is not a subclass of mpifed.Algorithm"),
        ("algorithm.name=no.such.package:Method", "cannot import 'no.such.package'"),
    ],
)
def test_one_clear_message(job, override, says, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["mpifed", "run", str(job), override])
    with pytest.raises(SystemExit) as end:
        main()
    error = capsys.readouterr().err
    assert end.value.code == 2
    assert error.startswith("mpifed: ") and says in error, error
    assert not (job.parent / "run" / "run.h5").exists()


@pytest.mark.parametrize(
    "override", ["algorithm.gama=0.1", "problem={name='DeepAUC', dataset='mnist'}", "run.out=/proc/no"]
)
def test_the_same_on_all_ranks(job, override, tmp_path):
    """Settings, missing data and folders: exit code 2, one message from rank 0, no traceback, no hang."""
    command = ["-m", "mpifed", "run", job, override, "--data-dir", tmp_path]
    code, output = launch(3, command, limit=60)
    assert code == 2, output
    assert output.count("mpifed: ") == 1 and "Traceback" not in output, output


def test_unreadable_job_files(tmp_path):
    with pytest.raises(ConfigError, match="cannot read the job file .*No such file"):
        Config.load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("rounds = ")
    with pytest.raises(ConfigError, match="is not TOML"):
        Config.load(tmp_path / "bad.toml")
    (tmp_path / "empty.toml").write_text("")
    with pytest.raises(ConfigError, match=r"\[algorithm\] needs a name"):
        Config.load(tmp_path / "empty.toml")


@pytest.mark.parametrize(
    "name", ["\U0001f600", "é ü", "\udcff", "7", "true", '"x"', "a\nb", "\x7f", "a=b", "[1]"]
)
def test_a_data_folder_may_have_any_name(job, name, monkeypatch):
    """A byte that is no UTF-8, too, which Python keeps as half a surrogate pair."""
    seen = []
    monkeypatch.setattr("mpifed.running.run.run", lambda config, *_: seen.append(config) or sys.exit(3))
    done = CliRunner().invoke(cli, ["run", str(job), "--data-dir", name])
    assert [config.run.data_dir for config in seen] == [name], done.exception


def test_a_folder_whose_name_is_no_utf8_is_named(job):
    name = "nowhere/\udcff"
    words = ["run", str(job), "problem={name='DeepAUC', dataset='mnist'}", "--data-dir", name]
    done = CliRunner().invoke(cli, words)
    assert "mnist lacks a file" in str(done.exception) and name in str(done.exception)


def test_overrides_reach_every_depth(job):
    config = Config.load(
        job,
        [
            "seed=7",
            "algorithm.matrix.rho=0.5",
            "algorithm.matrix.name=norm",
            "run.device=cpu",
            "problem.s=3",
            "oracle.noise={name='gaussian', scale=2}",
            "record=['x']",
        ],
    )
    assert (
        config.seed == 7
        and config.algorithm.matrix.rho == 0.5
        and config.problem.s == 3
        and config.oracle.noise.scale == 2
    )
    assert Config.from_table(json.loads(json.dumps(config.table()))).table() == config.table()


def test_run_resume_report(job, tmp_path):
    """A run in one process, its files, a second start of it, a longer resumption and a report of it."""
    out, invoke = tmp_path / "run", lambda *words: CliRunner().invoke(cli, [str(word) for word in words])
    done = invoke("run", job)
    assert done.exit_code == 0, done.output
    assert "AdaFGDA" in done.output and "error final" in done.output
    names = {path.name for path in out.iterdir()}
    assert names == {
        "run.h5",
        "run.lock",
        "mpifed-files.txt",
        "history.bin",
        "checkpoint-00000002.h5",
        "checkpoint-00000003.h5",
        "report.html",
        "curves.png",
        "table.txt",
        "table.csv",
        "log",
    }
    written = {path: path.stat().st_mtime_ns for path in out.glob("*.h5")}
    again = invoke("run", job)
    assert again.exit_code == 0 and f"mpifed: {out} is complete: all 3 rounds done" in again.output, (
        again.output
    )
    assert written == {path: path.stat().st_mtime_ns for path in out.glob("*.h5")}
    longer = invoke("resume", out, "rounds=5")
    assert (
        longer.exit_code == 0 and "continuing" in longer.output and (out / "checkpoint-00000005.h5").exists()
    ), longer.output
    shorter = invoke("resume", out, "rounds=2")
    assert "is at round 5 already" in str(shorter.exception)
    nothing = invoke("resume", tmp_path)
    assert "there is no checkpoint in" in str(nothing.exception)
    report = invoke("report", out, out, "--out", tmp_path / "report")
    assert report.exit_code == 0 and (tmp_path / "report" / "curves.png").exists(), report.output
    assert "no such" in invoke("report", tmp_path / "nowhere").output.lower()


def test_targets_and_budgets_stop_the_run(job):
    for override, reason in (
        ("stop={metric='error', at_most=1e9}", "error is at most"),
        ("stop.seconds=1e-9", "wall-time budget"),
    ):
        result = run(
            Config.load(job, ["rounds=1000", "run.eval_every=1", "run.overwrite=true", override]),
            SerialComm(),
        )
        assert reason in result.stopped and result.costs["round"][-1] <= 1


@pytest.mark.parametrize(
    "word, shows",
    [
        (
            "AdaFGDA",
            [
                "q",
                "required",
                "Huang et al. 2024, Algorithm 1",
                "message of 'round'",
                "mean_after",
                "in the papers",
            ],
        ),
        ("LocalSGDA", ["up D; down D", "partial participation: yes"]),
        ("DeepAUC", ["imbalance", "Huang et al. 2024, eq. 13"]),
        ("adam", ["varrho", "0.9"]),
        ("mnist", ["IDX"]),
    ],
)
def test_info(word, shows):
    output = CliRunner().invoke(cli, ["info", word]).output
    for text in shows:
        assert text in output, output


def test_info_of_everything():
    """Every name has an explanation; methods show their costs next to those of the papers."""
    for group, members in catalogue().items():
        for name in members:
            done = CliRunner().invoke(cli, ["info", name])
            assert done.exit_code == 0, (name, done.output, done.exception)
            assert group != "methods" or "in the papers" in done.output, name


def test_list_and_help():
    table = json.loads(CliRunner().invoke(cli, ["list", "--json"]).output)
    assert {"AdaFGDA", "FGDA", "LocalSGDA"} <= set(table["methods"]) and {"Saddle", "DeepAUC"} <= set(
        table["problems"]
    )
    assert all(line for members in table.values() for line in members.values()), (
        "everything has a description"
    )
    assert "barzilai_borwein" in CliRunner().invoke(cli, ["list"]).output
    for words in ([], ["run"], ["resume"], ["list"], ["info"], ["check"], ["report"]):
        assert "Usage" in CliRunner().invoke(cli, [*words, "--help"]).output


def test_unknown_names_and_commands(monkeypatch, capsys):
    for words, says in ((["info", "AdaFGD"], "did you mean 'AdaFGDA'"), (["rum"], "No such command")):
        monkeypatch.setattr(sys, "argv", ["mpifed", *words])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 2 and says in capsys.readouterr().err


@pytest.mark.parametrize("words", [["list"], ["list", "--help"]])
def test_a_command_that_is_done_removes_the_batch_scripts_mark(tmp_path, monkeypatch, capsys, words):
    """Neither a mark that cannot be removed nor one that could not be made turns success into failure."""
    mark = tmp_path / "mark"
    monkeypatch.setattr(sys, "argv", ["mpifed", *words])
    monkeypatch.setenv("MPIFED_UNFINISHED", str(mark))
    for there, says in (
        (True, ""),
        (False, f"warning: {mark} cannot be removed (No such file or directory)"),
    ):
        mark.touch() if there else None
        main()
        assert not mark.exists()
        said = capsys.readouterr().err
        assert says in said if says else not said
    monkeypatch.setenv("MPIFED_UNFINISHED", "")
    main()
    assert not capsys.readouterr().err
    mark.touch()
    monkeypatch.setenv("MPIFED_UNFINISHED", str(mark))
    monkeypatch.setattr(sys, "argv", ["mpifed", "info", "nothing"])
    with pytest.raises(SystemExit):
        main()
    monkeypatch.setattr(sys, "argv", ["mpifed", *words])
    monkeypatch.setenv("PMIX_RANK", "1")
    main()
    assert mark.exists()


LONG = "n" * 300
#: Job files by name: settings are what a command needs to come to the name.
SMALL = """
rounds = 1
problem = { name = "Saddle", d = 2, clients = 2 }
run = { out = "runs", progress = false }
"""
METHOD = '{ name = "LocalSGDA", q = 2, eta_x = 0.01, eta_y = 0.01 }'
FILES = {
    "run": f"{SMALL}algorithm = {METHOD}",
    "sweep": f"{SMALL}algorithm = {METHOD}\nsweep = {{ seed = [0, 1] }}",
    "tune": f"{SMALL}tune = {{ runs = 3, methods = [{METHOD.replace('= 0.01', '= [0.1, 0.2]')}] }}",
}


@pytest.mark.parametrize(
    "words",
    [
        *([name, LONG] for name in ("resume", "status", "report", "measure", "tune", "sweep", "info")),
        *(["status", f"a/{LONG}/b"], ["status", f"{LONG}.toml"], ["export", LONG, "--to", "w.safetensors"]),
        *(["new", kind, LONG] for kind in ("job", "method", "problem")),
        *([name, f"{name}.toml", f"run.out={LONG}"] for name in ("run", "sweep", "tune")),
        *(["status", "sweep.toml", f"run.out={LONG}"], ["info", "run.toml", "--out", f"{LONG}.png"]),
        *(["report", "done", "--out", LONG], ["report", "done", "--figure", f"{LONG}.pdf"]),
        *(["export", "done", "--to", f"{LONG}.safetensors"], ["launch", "run.toml", "--script", LONG]),
        ["check", f"./{LONG}.py:Mine"],
    ],
    ids=lambda words: "-".join(words).replace(LONG, "LONG"),
)
def test_names_that_are_too_long_are_told(tmp_path, monkeypatch, capsys, words):
    """One sentence, code 2, and no traceback."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / f"{name}.toml").write_text(text)
    write(tmp_path / "done", config={"problem": {"name": "Saddle", "clients": 2}}, error=decay(0.1))
    monkeypatch.setattr(sys, "argv", ["mpifed", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.startswith("mpifed: ") and "Traceback" not in said
    assert len(said) < 1500, "a long name is shown in part"
