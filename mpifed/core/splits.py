"""What the metrics of a split are called: those of the test split as the problem calls them, all others with
the split before the name, ``validation_auc``."""

from __future__ import annotations

__all__ = ["VALIDATION", "of_split"]

#: The split that settings are chosen on.
VALIDATION = "validation"


def of_split(split: str, metric: str) -> str:
    """The name of a metric of a split."""
    return f"{split}_{metric}"
