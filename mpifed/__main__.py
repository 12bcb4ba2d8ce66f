"""The command line, ``mpifed`` or ``python -m mpifed``: it records signals before it imports large packages.

Importing torch takes seconds on a busy machine. A signal during the import would otherwise end one rank but
not the others, with an exit code that does not report the signal.
"""

from mpifed.running.signals import EarlySignals

__all__ = ["main"]


def main() -> None:
    """Run the command line, and record signals from the beginning."""
    EarlySignals().listen()
    from mpifed.cli.main import main as command_line

    command_line()


if __name__ == "__main__":
    main()
