"""Settings selected on validation data, user-defined metrics, metrics per client and the confusion matrix."""

METRICS = """
def calibration(scores, labels):
    confidence, predicted = scores.softmax(dim=1).max(dim=1)
    return abs(confidence.mean() - (predicted == labels).double().mean())
"""

JOB = """
rounds = 4
metrics = ["./my_metrics.py:calibration"]
problem = { name = "Classification", dataset = "digits", clients = 5, validation = 0.2 }
[run]
out = "runs"
progress = false
evaluate_on = ["train", "clients"]
[sweep]
algorithm = { name = "FedAvg", K = 5, eta = [0.01, 0.1] }
"""

LOOK = """
import mpifed

result = mpifed.load("runs/eta=0.1")
assert {"validation_accuracy", "train_accuracy", "validation_calibration"} <= result.metrics.keys()
counts = result.confusion.to_numpy()
assert abs(counts.trace() / counts.sum() - result.metrics["accuracy"]) < 1e-12
worst = result.clients["accuracy"].min()
assert worst == result.metrics["client_accuracy_worst"] and len(result.clients) == 5
"""


def test_a_sweep_is_selected_on_validation_data_and_evaluated_per_client(user):
    user.write({"my_metrics.py": METRICS, "job.toml": JOB, "look.py": LOOK})
    user("mpifed", "sweep", "job.toml", ranks=2)
    printed = " ".join(user("mpifed", "report", "runs", "--out", "report").split())
    assert "largest final validation_accuracy" in printed and "chosen on the validation data" in printed
    assert "Confusion" in (user.folder / "report" / "report.html").read_text()
    user("python", "look.py")
