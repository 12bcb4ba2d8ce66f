"""Fixtures that several unit tests share."""

import io

import pytest
from patches import patches  # noqa: F401
from verdicts import verdicts  # noqa: F401


@pytest.fixture
def drawn(monkeypatch):
    """Return a function of settings that returns the figure of :func:`figures.curves` and writes no file."""
    from mpifed.report import figures  # which imports Matplotlib

    saved = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, *_, **__: saved.append(figure))

    def draw(settings):
        figures.curves(settings, io.BytesIO())
        return saved[-1]

    return draw
