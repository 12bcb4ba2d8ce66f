"""Fixtures that several unit tests share."""

import io

import pytest
from patches import patches  # noqa: F401
from verdicts import verdicts  # noqa: F401


@pytest.fixture
def job(request, tmp_path):
    """Write the file's job ``JOB``, with the folder of the test for "FOLDER", and return its path."""
    path = tmp_path / "job.toml"
    path.write_text(request.module.JOB.replace("FOLDER", str(tmp_path)))
    return path


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
