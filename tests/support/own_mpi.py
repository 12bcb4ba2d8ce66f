"""A script that initialises MPI itself: own_mpi.py FOLDER [raise]

Prints "refused: ..." where a run is not possible, and at the end a sum over the ranks. With "raise", rank 1
fails after a run while rank 0 waits for it.
"""

import sys

import mpi4py

mpi4py.rc.initialize = False
from mpi4py import MPI  # noqa: E402

import mpifed  # noqa: E402
from mpifed.parallel.comm import CollectiveError  # noqa: E402

folder, fails = sys.argv[1], "raise" in sys.argv


def job(name: str) -> dict:
    return {
        "rounds": 3,
        "algorithm": {"name": "LocalSGDA", "q": 2, "eta_x": 0.01, "eta_y": 0.01},
        "problem": {"name": "Saddle", "clients": 4, "d": 3},
        "oracle": {"batch_size": 0},
        "run": {"dtype": "float64", "reduction": "exact", "progress": False, "out": f"{folder}/{name}"},
    }


def refused() -> None:
    try:
        mpifed.run(job("none"))
    except CollectiveError as error:
        print(f"refused: {error}", flush=True)


refused()
MPI.Init_thread(MPI.THREAD_SINGLE)
world = MPI.COMM_WORLD
whole = mpifed.run(job("whole"), world)
if fails:
    if world.rank == 1:
        raise ValueError("after the run")
    world.Barrier()
half = mpifed.run(job(f"half-{world.rank}"), world.Split(world.rank))
assert (whole.point["x"] == half.point["x"]).all() and half.unfinished is False
try:
    mpifed.run(job("none"), 5)
except TypeError as error:
    print(f"refused: {error}", flush=True)
print(f"the sum of ranks is {world.allreduce(world.rank)}", flush=True)
MPI.Finalize()
refused()
