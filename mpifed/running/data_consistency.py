"""Whether the data that a run in a folder has read are still the same.

The digests of files are taken again at the places where the run has read them. Only where that leaves a doubt
are the job's data read as a run reads them: a file is gone or differs, ``run.data_dir`` names another folder,
or a function returns the samples.
"""

from __future__ import annotations

from mpifed.base.data_files import digest_at
from mpifed.base.errors import ConfigError
from mpifed.base.log import warning
from mpifed.config.job import Config
from mpifed.simulation.data_consistency import change, digests, from_table
from mpifed.simulation.setup import read_files
from mpifed.storage.results import RunData

__all__ = ["expect_same_data", "has_same_data"]


def has_same_data(run: RunData, config: Config) -> bool:
    """Whether a run has read the data that a run of ``config`` would read now.

    Raises:
        ConfigError: it has read other data, and ``config`` does not replace it.
    """
    if not config.run.overwrite:
        expect_same_data(run, config)
        return True
    return not _change(run, config)


def expect_same_data(run: RunData, config: Config) -> None:
    """Raises:
    ConfigError: a run has read other data than a run of ``config`` would read now; names the file.
    """
    if found := _change(run, config):
        raise ConfigError(
            f"{found}. Restore the file, choose another run.out, or start over with `mpifed run` and "
            "run.overwrite=true"
        )


def _change(run: RunData, config: Config) -> str:
    """The first data file that has changed since a run, in a sentence; "" where all are the same."""
    before = from_table(run.data)
    moved = run.config["run"].get("data_dir") != config.run.data_dir
    if not moved and all(file.derived or digest_at(file.path) == file.digest for file in before.values()):
        return ""
    try:
        now = read_files(config)
    except (ValueError, OSError) as fault:
        words = str(fault).partition("\n")[0]
        warning(f"nothing tells whether the data of {run.folder} have changed: {words}")
        return ""
    return change(digests(before), now, f"the run in {run.folder}")
