"""Batch jobs under a real Slurm: the shipped scripts, both MPIs, incompatible launchers, time limits,
preemption.

The time limits allow for four ranks on a busy machine with two cores.
"""

import re
import shlex
from pathlib import Path

import h5py
import numpy as np
import pytest
from batch import Job, command, run_command, slurm_answers, submit, workplace
from launch import mpirun_path

import mpifed
from mpifed.parallel.comm import SerialComm

pytestmark = pytest.mark.skipif(not slurm_answers(), reason="no Slurm answers to sinfo")

ROOT = Path(__file__).parents[2]
#: The lines of docs/cluster.md; the tests add settings that make the runs short.
GPU_NODES = "sbatch jobs/slurm/gpu_nodes.sbatch"
SHARED_GPU = "sbatch jobs/slurm/shared_gpu.sbatch"
CPU = "sbatch jobs/slurm/cpu.sbatch"
ARRAY = "sbatch jobs/slurm/array.sbatch"
PREEMPTIBLE = "sbatch --partition=low jobs/slurm/preemptible.sbatch"
PARTS = "mpifed launch jobs/papers/composite_game.toml --ranks-per-node 2 --parts 2"
LAUNCH = "mpifed launch jobs/saddle.toml --nodes 2 --ranks-per-node 2 --time 10"
SHORT = " rounds=3 run.reduction=exact"
HELD = (
    " rounds=60 run.reduction=exact run.checkpoint_every=1"
    """ "algorithm={name='./held.py:Held',hold='hold'}" "oracle.noise={name='gaussian',scale=1}" """
)


def point(folder: Path, ranks: int | None = None) -> np.ndarray:
    """Return the output point of a finished run, and assert its number of ranks if given."""
    with h5py.File(folder / "run.h5") as file:
        assert file.attrs["stopped"].startswith("all "), file.attrs["stopped"]
        assert ranks is None or f'"ranks": {ranks}' in file.attrs["layout"], file.attrs["layout"]
        return np.concatenate([file["final/x/x"][...], file["final/y/y"][...]])


def completed(job: Job, task: str = "") -> str:
    """Wait for the end of a job, which must succeed, and return its output."""
    state, code, log = job.end(task=task)
    assert (state, code) == ("COMPLETED", 0), log
    return log


def uninterrupted(folder: Path, settings: str) -> np.ndarray:
    """Return the output point of the same job in this process."""
    changes = [word.replace("./held.py", str(folder / "held.py")) for word in shlex.split(settings)]
    changes += [f"run.out={folder / 'here'}", "run.overwrite=true", "run.progress=false"]
    config = mpifed.Config.load(ROOT / "jobs/saddle.toml", changes)
    mpifed.run(config, SerialComm())
    return point(folder / "here")


def test_the_page_on_clusters_shows_these_commands():
    lines = {line.split("#")[0].strip() for line in (ROOT / "docs/cluster.md").read_text().splitlines()}
    assert {GPU_NODES, SHARED_GPU, CPU, ARRAY, PREEMPTIBLE, PARTS, LAUNCH} <= lines


@pytest.mark.parametrize(
    "mpi, asked, used",
    [
        ("openmpi", {}, "srun --mpi=pmix"),
        ("openmpi", {"MPIFED_LAUNCHER": "pmi2 mpirun"}, "mpirun"),
        ("mpich", {}, "srun --mpi=pmi2"),
        ("mpich", {"MPIFED_LAUNCHER": "pmix mpirun"}, "mpirun"),
    ],
)
def test_compatible_launchers(tmp_path, mpi, asked, used):
    """The launcher that the script chooses, and the second of two if the first is incompatible."""
    folder = workplace(tmp_path)
    log = completed(submit(CPU + SHORT, folder, mpi=mpi, **asked))
    assert re.search(rf"mpifed: 4 ranks on 2 nodes of (Open MPI|MPICH) \S+ by {used} ", log), log
    np.testing.assert_array_equal(point(folder / "runs/saddle", ranks=4), uninterrupted(folder, SHORT))


@pytest.mark.parametrize(
    "mpi, launcher", [("openmpi", "pmi2"), ("openmpi", "none"), ("mpich", "pmix"), ("mpich", "none")]
)
def test_an_incompatible_launcher_is_refused(tmp_path, mpi, launcher):
    folder = workplace(tmp_path)
    line = CPU.replace("sbatch", "sbatch --ntasks-per-node=1", 1)
    state, code, log = submit(line, folder, mpi=mpi, MPIFED_LAUNCHER=launcher).end()
    assert (state, code) == ("FAILED", 71), log
    assert "launcher and MPI library do not match: no launcher connects 2 ranks" in log, log
    assert f"unset MPIFED_LAUNCHER={launcher}" in log and "Open MPI needs pmix or its own mpirun" in log, log
    assert not (folder / "runs").exists()


def test_the_wrong_mpirun_is_refused(tmp_path):
    folder = workplace(tmp_path)
    script = (folder / "jobs/slurm/cpu.sbatch").read_text()
    (folder / "wrong.sbatch").write_text(
        script.replace("here=", f"PATH={Path(mpirun_path('mpich')).parent}:$PATH\nhere=", 1)
    )
    state, code, log = submit(
        "sbatch --ntasks-per-node=1 wrong.sbatch", folder, MPIFED_LAUNCHER="mpirun"
    ).end()
    assert (state, code) == ("FAILED", 71), log
    assert "expected a world of 2 processes, got 1" in log, log


def test_exit_code_0_without_an_end_is_a_failure(tmp_path):
    """Open MPI's mpirun exits with 0 after the loss of a node; a command unrelated to mpifed has the same
    effect."""
    folder = workplace(tmp_path)
    script = (folder / "jobs/slurm/cpu.sbatch").read_text()
    (folder / "true.sbatch").write_text(re.sub("mpifed_launch .*", "mpifed_launch true", script))
    state, code, log = submit("sbatch --nodes=1 --ntasks-per-node=1 true.sbatch", folder).end()
    assert (state, code) == ("FAILED", 1), log
    assert "the launcher ended with exit code 0, but the command has not finished" in log, log


@pytest.mark.parametrize("how", ["srun -n 2 --mpi=pmi2", "mpirun -n 2"])
def test_a_run_without_a_script_refuses_too(tmp_path, how):
    """Open MPI's library under an srun with PMI2, and under MPICH's mpirun."""
    how = how.replace("mpirun", mpirun_path("mpich"))
    code, output = run_command(f"{how} mpifed run jobs/saddle.toml", workplace(tmp_path))
    assert code == 71, output
    assert (
        "the launcher started 2 processes, but MPI's world (Open MPI" in output
        and "srun --mpi=pmix" in output
    ), output
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("line, nodes, ranks, threads", [(GPU_NODES, 2, 4, 2), (SHARED_GPU, 1, 4, 1)])
def test_gpus(tmp_path, line, nodes, ranks, threads):
    """Every rank sees both GPUs of its node; torch sees none, since they are copies of /dev/null."""
    folder = workplace(tmp_path)
    (folder / "seen").mkdir()
    job = submit(f"""{line} rounds=1 "algorithm={{name='./held.py:Held',witness='seen'}}" """, folder)
    completed(job)
    assert job.fields()["TresPerNode"] in ("gres:gpu:2", "gres/gpu:2"), job.fields()
    seen = list((folder / "seen").iterdir())
    assert len(seen) == ranks and len({file.name.split(".")[0] for file in seen}) == nodes, seen
    assert {file.read_text() for file in seen} == {f"0,1 {threads}"}


def test_array(tmp_path):
    folder = workplace(tmp_path)
    job = submit(ARRAY + SHORT, folder)
    for seed in range(3):
        completed(job, f"_{seed}")
        found = point(folder / f"runs/saddle/seed={seed}", ranks=2)
        np.testing.assert_array_equal(found, uninterrupted(folder, f"{SHORT} seed={seed}"))


SWEEP = """
rounds = 2
problem = { name = "L1BoxBilinear", clients = 2 }
run = { out = "runs/shared" }
[sweep]
algorithm = { name = "LocalDualExtrapolation", K = 2, eta = [0.01, 0.03, 0.1, 0.3] }
"""


def test_a_sweep_shared_by_an_array(tmp_path):
    """Four runs, two per job."""
    folder = workplace(tmp_path)
    (folder / "shared.toml").write_text(SWEEP)
    script = command(PARTS.replace("jobs/papers/composite_game", "shared") + " --no-submit", folder).strip()
    job = submit(f"sbatch {script}", folder)
    for part in range(2):
        assert "2 runs are finished, 0 of them before" in completed(job, f"_{part}")
    assert len(list((folder / "runs/shared").glob("*/run.h5"))) == 4


def test_a_search_shared_by_an_array(tmp_path):
    """Three methods in two jobs; the job that ends last writes the results of both."""
    folder = workplace(tmp_path)
    small = " rounds=2 tune.runs=2 tune.seeds=1 tune.fresh=1 --no-submit"
    job = submit(f"sbatch {command(PARTS + small, folder).strip()}", folder)
    for part in range(2):
        completed(job, f"_{part}")
    found = (folder / "runs/papers/composite_game/best.toml").read_text()
    assert all(name in found for name in ("LocalDualExtrapolation", "FeDualEx", "FedDualAvg")), found


def test_time_limit_then_another_number_of_nodes(tmp_path):
    """Slurm may warn one minute early, so this warning comes at once. The next job has other nodes and the
    other MPI."""
    folder = workplace(tmp_path)
    (folder / "hold").touch()
    state, code, log = submit(
        CPU.replace("sbatch", "sbatch --time=1 --signal=B:USR1@50", 1) + HELD, folder
    ).end()
    assert (state, code) == ("FAILED", 85), log
    assert "stopped by a signal: submit the same script again" in log, log
    (folder / "hold").unlink()
    other = CPU.replace("sbatch", "sbatch --nodes=3 --ntasks-per-node=1", 1) + HELD
    completed(submit(other, folder, mpi="mpich"))
    np.testing.assert_array_equal(point(folder / "runs/saddle", ranks=3), uninterrupted(folder, HELD))


def test_preemption(tmp_path):
    """A job of a higher partition takes all nodes: the run is checkpointed, requeued and resumed, bitwise
    identical."""
    ways = [("openmpi", "pmix"), ("openmpi", "mpirun"), ("mpich", "pmi2"), ("mpich", "mpirun")]
    jobs = []
    for mpi, launcher in ways:
        folder = tmp_path / f"{mpi}-{launcher}"
        folder.mkdir()
        (workplace(folder) / "hold").touch()
        line = PREEMPTIBLE.replace("sbatch", "sbatch --ntasks-per-node=1", 1)
        jobs.append(submit(line + HELD, folder, mpi=mpi, MPIFED_LAUNCHER=launcher))
    for job in jobs:
        job.until(lambda fields, job=job: any(job.folder.glob("runs/saddle/checkpoint-*")), 120)
    submit("sbatch --partition=high --nodes=4 --exclusive --wrap true", tmp_path)
    for job in jobs:
        job.until(lambda fields: fields["Restarts"] == "1", 60)
        (job.folder / "hold").unlink()
    for job, way in zip(jobs, ways):
        log = completed(job)
        # MPICH's mpirun itself ends with 255 if a signal reaches it while its ranks end
        codes = "(85|255)" if way == ("mpich", "mpirun") else "85"
        assert re.search(f"requeued after exit code {codes}", log), log
        assert "continuing runs/saddle from round" in log, log
        np.testing.assert_array_equal(
            point(job.folder / "runs/saddle", ranks=2), uninterrupted(job.folder, HELD)
        )


def test_a_cancelled_job_stays_cancelled(tmp_path):
    folder = workplace(tmp_path)
    (folder / "hold").touch()
    job = submit(PREEMPTIBLE.replace("sbatch", "sbatch --nodes=1 --ntasks-per-node=1", 1) + HELD, folder)
    job.until(lambda fields: any(folder.glob("runs/saddle/checkpoint-*")), 60)
    command(f"scancel {job.number}", folder)
    state, code, log = job.end()
    assert state == "CANCELLED" and "stopped after round" in log and "requeued" not in log, log
    assert job.fields()["Restarts"] == "0"


def test_names_with_every_character(tmp_path):
    """Names of a folder, a job file, a plugin, results and the script; sbatch gets a name and a comment."""
    place = tmp_path / "-w 'o' \"r\" $HOME `id` $(id);&|<>*?[a]{b}!~#%j%%\\n\\x é漢😀\tx\ny"
    place.mkdir()
    folder = workplace(place)
    job, plugin, out = "-my 'job' \"x\" $PATH;#%x\\ ü\n.toml", "p 'l' $u;#%é.py", "-r 'u' \"n\" `id` #%j\\ é"
    (folder / "jobs/saddle.toml").rename(folder / job)
    (folder / "held.py").rename(folder / plugin)
    changes = [f"algorithm={{name=\"./{plugin}:Held\", hold='$x'}}", f"run.out={out}", *SHORT.split()]
    words = ["mpifed", "launch", "--ranks-per-node=2"]
    words += ["--script=-s 'c' %j.sbatch", "--extra=--comment='a \"b\" #c'"]
    left = {"SLURM_JOB_ID": "1", "SLURM_ARRAY_JOB_ID": "9", "SLURM_NTASKS": "64", "SLURM_EXPORT_ENV": "NONE"}
    output = command(shlex.join([*words, "--", job, *changes]), folder, **left)
    ended = Job(re.search(r"Submitted batch job (\d+)", output)[1], folder, ())
    completed(ended)
    assert (
        "JobName=-my 'job' \"x\" $PATH;#%x\\ ü_ " in (shown := ended.text()) and 'Comment=a "b" #c ' in shown
    )
    with h5py.File(folder / out / "run.h5") as file:
        assert '"ranks": 2' in file.attrs["layout"] and file.attrs["stopped"].startswith("all ")


def test_leftovers_of_other_jobs(tmp_path):
    """sbatch is called with the variables of a finished job and without those of this shell."""
    folder = workplace(tmp_path)
    left = {
        "SLURM_ARRAY_JOB_ID": "998",
        "SLURM_ARRAY_TASK_ID": "7",
        "SLURM_EXPORT_ENV": "NONE",
        "SLURM_MEM_PER_NODE": "100",
        "SLURM_NTASKS": "64",
        "SLURM_STEP_NUM_TASKS": "64",
        "SLURM_PROCID": "3",
        "TMPDIR": str(tmp_path / "missing"),
    }
    line = CPU.replace("sbatch", "sbatch --nodes=1", 1) + SHORT
    completed(submit(line, folder, **left))
    np.testing.assert_array_equal(point(folder / "runs/saddle", ranks=2), uninterrupted(folder, SHORT))


def test_launch_submits(tmp_path):
    folder = workplace(tmp_path)
    output = command(LAUNCH + SHORT, folder)
    assert "runs/saddle/job.sbatch" in output, output
    number = re.search(r"Submitted batch job (\d+)", output)[1]
    assert (folder / "runs/saddle/job.sbatch").exists()
    command(f"scancel {number}", folder)
