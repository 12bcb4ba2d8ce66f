"""What can be wrong with a job, a method or a problem."""

from __future__ import annotations

__all__ = ["ConfigError", "ContractError", "PluginError"]


class ConfigError(ValueError):
    """A job file or an override asks for something that cannot be done. The message has one line a fault."""


class ContractError(ValueError):
    """A method or a problem breaks the contract that the simulator relies on."""


class PluginError(ValueError):
    """A function of a method or of a problem has raised an error, which is ``__cause__``.

    Attributes:
        round, phase: where in the run.
        clients: the numbers of the clients that were stepped.
    """

    def __init__(self, message: str, round: int, phase: str, clients: list[int]):
        super().__init__(message)
        self.round, self.phase, self.clients = round, phase, clients
