"""Fixtures that several unit tests share."""

from verdicts import verdicts  # noqa: F401
