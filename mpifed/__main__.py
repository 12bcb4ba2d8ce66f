"""Run the command line with ``python -m mpifed``."""

from mpifed.cli.entry import main

if __name__ == "__main__":
    main()
