"""The command line with one data folder per rank, FOLDER/RANK, and the data set of tiny_data.py.

Every rank is on a node of its own, unless the variable ONE_NODE is set.

Usage: own_data.py FOLDER ARGUMENTS OF mpifed ...
"""

import os
import sys
from pathlib import Path

from tiny_data import TINY

from mpifed.cli.main import main
from mpifed.data import DATASETS
from mpifed.parallel.comm import MpiComm

folder = Path(sys.argv.pop(1))
rank = next(os.environ[name] for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK") if name in os.environ)
os.environ["MPIFED_DATA"] = str(folder / rank)
DATASETS["tiny"] = TINY
if "ONE_NODE" not in os.environ:
    construct = MpiComm.__init__

    def on_own_node(comm, mpi=None):
        construct(comm, mpi)
        comm.node, comm.local_rank, comm.local_size = comm.rank, 0, 1

    MpiComm.__init__ = on_own_node
main()
