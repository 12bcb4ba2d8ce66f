"""A sweep whose results a script reads as a table and plots."""

JOB = """
rounds = 4
problem = { name = "Saddle", clients = 2, d = 3 }
oracle = { batch_size = 0 }
run = { out = "runs", progress = false, eval_every = 2 }
[sweep]
seed = [0, 1, 2]
algorithm = [
    { name = "LocalSGDA", q = 2, eta_x = [0.01, 0.1], eta_y = 0.01 },
    { name = "FGDA", q = 2, gamma = 0.01, lam = 0.01 },
]
"""
SCRIPT = """
import mpifed

found = mpifed.frame("runs")
last = found[(found["metric"] == "x_error") & (found["round"] == 4)]
print(last.groupby("setting", observed=True)["value"].agg(["mean", "std", "count"]))
mpifed.plot(found, metric="x_error", x="bytes_up").figure.savefig("errors.pdf")
print(mpifed.load(found["run"].iloc[0]))
"""


def test_a_table_and_a_figure(user):
    user.write({"job.toml": JOB, "script.py": SCRIPT})
    user("mpifed", "sweep", "job.toml")
    said = user("python", "script.py").splitlines()
    rows = [line.rsplit(maxsplit=3) for line in said[2:5]]
    names = [name.rstrip() for name, *_ in rows]
    assert names == ["FGDA", "LocalSGDA, eta_x=0.01", "LocalSGDA, eta_x=0.1"]
    assert [count for *_, count in rows] == ["3", "3", "3"]
    assert said[5] == "FGDA on Saddle: all 4 rounds done"
    assert (user.folder / "errors.pdf").read_bytes().startswith(b"%PDF")
