"""The Dockerfile of scripts/packaging."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "scripts" / "packaging" / "Dockerfile").read_text()


def copied(text: str) -> set[str]:
    """Return the files that the Dockerfile copies."""
    return {name for line in re.findall(r"^COPY (.*)$", text, re.M) for name in line.split()[:-1]}


def commands(text: str) -> list[str]:
    """Return the shell commands that the Dockerfile runs as root."""
    return re.findall(r"^RUN (.*)$", text, re.M)
