"""Run under mpirun: the first run of the last method in each of some job files, two rounds long.

Usage: mpirun -n P python job_files.py FOLDER DATA FILE...
"""

import sys
import warnings
from pathlib import Path

from mpifed.config.grids import Variant, variants
from mpifed.parallel.world import world
from mpifed.running.sweep import sweep


def main() -> None:
    warnings.filterwarnings("ignore", ".* are absent")  # a part of CIFAR-10's files will do
    folder, data, *files = sys.argv[1:]
    for file in files:
        runs = variants(
            file, ["run.eval_every=2", f"run.out={folder}/{Path(file).stem}", f'run.data_dir="{data}"']
        )
        method = type(runs[-1].config.algorithm)
        first = next(one for one in runs if type(one.config.algorithm) is method)
        sweep([Variant(first.name, first.config.model_copy(update={"rounds": 2}))], world())


if __name__ == "__main__":
    main()
