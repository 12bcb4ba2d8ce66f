"""``python -m mpifed``: the command line."""

from mpifed.cli.entry import main

if __name__ == "__main__":
    main()
