"""A sweep, then a figure, a table and references for a paper."""

import re

JOB = """
rounds = 2
run = { out = "runs", progress = false }
problem = { name = "Saddle", s = 4, clients = 2 }
sweep = { seed = [0, 1], algorithm = [
    { name = "FGDA", q = 2, gamma = 0.01, lam = 0.01 }, { name = "./mine.py:Mine", eta = [0.01, 0.02] }] }
"""
MINE = """
from dataclasses import dataclass
from mpifed import Algorithm, Record

@dataclass(frozen=True)
class Mine(Algorithm):
    eta: float
    shared = Record(x="x", y="y")
    message = Record(x="x", y="y")

    def client_round(self, now, shared, client, message, oracle):
        gx, gy = oracle.grad(shared.x, shared.y, oracle.sample())
        message.x, message.y = shared.x - self.eta * gx, shared.y + self.eta * gy
"""


def test_a_figure_a_table_and_references(user):
    (user.folder / "job.toml").write_text(JOB)
    (user.folder / "mine.py").write_text(MINE)
    (user.folder / "labels.toml").write_text('[methods]\nMine = "Mine_1 (ours)"\n')
    user("mpifed", "sweep", "job.toml")
    options = ["--figure", "fig.pdf", "--width", "84mm", "--x", "bytes", "--latex", "table.tex"]
    user("mpifed", "report", "runs", *options, "--labels", "labels.toml")
    pdf = (user.folder / "fig.pdf").read_bytes()
    (width,) = re.findall(rb"/MediaBox \[ 0 0 ([0-9.]+)", pdf)
    assert abs(float(width) - 84 / 25.4 * 72) < 1e-4 and b"/FontFile2" in pdf and b"/Type3" not in pdf
    table = (user.folder / "table.tex").read_text()
    assert r"Mine\_1 (ours) & $" in table and r"\mathbf" in table and "paired t-test" in table
    page = (user.folder / "report" / "report.html").read_text(encoding="utf-8")
    assert "Bokeh.Plotting.figure" in page and ">eta=0.02<" in page and "mine.py:Mine</td>" not in page
    assert user("mpifed", "report", "runs", "--cite").startswith("@inproceedings{huang2024adafgda")
    assert "did you mean 'bytes'" in user("mpifed", "report", "runs", *options[:4], "--x", "byte", code=2)
