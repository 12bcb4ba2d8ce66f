"""The files of a run: checkpoints, and the results file beside them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from tqdm import tqdm

from mpifed.config.sections import Run
from mpifed.parallel.comm import SerialComm, together
from mpifed.simulation.simulation import Simulation
from mpifed.storage.folder import Folder
from mpifed.storage.format import End
from mpifed.storage.recorder import Recorder, ending
from mpifed.storage.snapshot import Snapshot

__all__ = ["Keeper", "say"]


def say(comm: SerialComm, text: str) -> None:
    """A line on standard error, once, above the progress bar."""
    if comm.rank == 0:
        tqdm.write(f"mpifed: {text}", file=sys.stderr)


class Keeper:
    """Writes what a run leaves in its folder, and takes it up again.

    Attributes:
        safe: the round of the newest checkpoint.
    """

    def __init__(
        self, run: Run, folder: Folder, simulation: Simulation, recorder: Recorder, comm: SerialComm
    ):
        self.run, self.folder, self.comm = run, folder, comm
        self.simulation, self.recorder, self.safe = simulation, recorder, 0

    def clear(self) -> None:
        """Remove the files of the run that is being replaced."""
        if self.comm.rank == 0:
            for path in self.folder.results():
                path.unlink()

    def restore(self, saved: Snapshot) -> None:
        """Take up the state of a checkpoint that rank 0 has read. Collective."""
        saved.restore(self.simulation, self.recorder, self.comm)
        self.safe = saved.round
        say(self.comm, f"continuing {self.folder.path} from round {self.safe}")

    def save(
        self, end: End | None = None, metrics: dict[str, float] | None = None, asked: bool = False
    ) -> None:
        """Bring the history to rank 0; write the checkpoint and the results file. Collective.

        Args:
            end: why the run stops here. Files that cannot be written are an error then; before the end, they
                cost a warning and the old ones stay.
            metrics: of the output point, at the end.
            asked: a signal has come: write a checkpoint also where none are wanted otherwise.

        Raises:
            CollectiveError: the files of the end cannot be written.
        """
        self.recorder.gather()
        snapshot = Snapshot.take(self.simulation, self.recorder, end)
        with together(self.comm, OSError):
            try:
                with self._writing():
                    if self.run.checkpoint_every or asked:
                        snapshot.write(self.folder.path, self.run.keep, self.simulation, self.comm)
                        self.safe, self.folder.ours = self.simulation.round, True
                    self._results(end, metrics)
            except OSError as fault:
                if end:
                    raise
                say(self.comm, f"warning: {fault}; the run goes on")

    def mend(self, end: End, metrics: dict[str, float]) -> None:
        """Write the results file where a kill came between it and the last checkpoint. Collective."""
        with together(self.comm, OSError), self._writing():
            if self.comm.rank == 0 and ending(self.folder.path)[1] != end:
                self._results(end, metrics)

    def note(self, end: End) -> None:
        """Keep the curves of a run that cannot go on; its checkpoints stay as they are. Collective."""
        self.recorder.gather()
        self._results(end, None)

    def _results(self, end: End | None, metrics: dict[str, float] | None) -> None:
        if self.comm.rank == 0:
            self.recorder.write(self.folder.path, end, metrics or {})

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError) as fault:  # HDF5 raises either
            raise OSError(
                f"the files of round {self.simulation.round} could not be written to {self.folder.path} "
                f"({fault}); the newest checkpoint is of round {self.safe}"
            ) from fault
