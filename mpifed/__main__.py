"""``python -m mpifed``: the command line."""

from mpifed.cli.main import main

if __name__ == "__main__":
    main()
