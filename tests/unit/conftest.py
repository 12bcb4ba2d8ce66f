"""Fixtures that several unit tests share."""

from patches import patches  # noqa: F401
from verdicts import verdicts  # noqa: F401
