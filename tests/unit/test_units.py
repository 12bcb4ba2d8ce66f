"""Times, sizes and rates with units, in job files and in overrides."""

import pytest
from refusals import refusal

from mpifed import Config
from mpifed.base.units import GRADIENT_RATE, RATE, TIME, convert

JOB = """
algorithm = { name = "FGDA", q = 2 }
problem = { name = "Saddle", clients = 4 }
clock = { bandwidth_down = "100Mbit/s", bandwidth_up = "10MB/s", gradients_per_second = "500/s", latency = "20 ms" }
"""  # noqa: E501


@pytest.mark.parametrize("kind, texts", [
    (TIME, {"2h": 7200, "90 s": 90, "1.5 hours": 5400, "5m": 300, "5 min": 300, "1d": 86400, "-2s": -2}),
    (TIME, {"1ns": 1e-9, "1us": 1e-6, " 1 µs ": 1e-6, "20ms": 0.02, ".5e3 seconds": 500}),
    (RATE, {"1B/s": 1, "10MB/s": 1e7, "12 GB/min": 2e8, "1 MiB per second": 2**20, "10MBps": 1e7}),
    (RATE, {"8bit/s": 1, "100Mbit/s": 125e5, "100 Mbps": 125e5, "1Gb/s": 125e6, "1 kbit/s": 125}),
    (RATE, {"64MiB/s": 2**26, "1kB/s": 1000, "1KB/s": 1000, "8 Mbit/s": 1e6, "2 GB/s": 2e9}),
    (GRADIENT_RATE, {"500/s": 500, "5/ms": 5000, "120 gradients/min": 2}),
])  # fmt: skip
def test_texts_with_a_unit(kind, texts):
    """Up to the rounding of a factor and of one multiplication."""
    assert {text: convert(text, kind) for text in texts} == pytest.approx(texts, rel=1e-15)
    assert convert(3, kind) == 3 and convert(None, kind) is None


@pytest.mark.parametrize(
    "kind, text, says",
    [
        (RATE, "10 MBs", "expected a rate in bytes/second, or with its unit such as \"10MB/s\""),
        (RATE, "10 MBs", "got '10 MBs': did you mean \"10MB/s\"?"),
        (RATE, "10MB", 'did you mean "10MB/s"?'),
        (RATE, "10mb/s", 'did you mean "10MB/s"?'),  # not millibits
        (RATE, "2h", "(units: B/s, kB/s, MB/s, GB/s, kbit/s, Mbit/s, Gbit/s)"),
        (TIME, "3usx", 'did you mean "3us"?'),
        (TIME, "60", "got '60': write 60"),
        (TIME, "fast", "a time in seconds, or with its unit such as \"2h\", got 'fast' (units: ns, "),
        (TIME, "2h30min", "(units: "),
        (TIME, "1..2s", "(units: "),
        (TIME, "nan s", "(units: "),
        (TIME, "9**9**9 s", "(units: "),
        (TIME, "9" * 100_000 + "s", "100,001 characters"),
        (GRADIENT_RATE, "500", "write 500"),
    ],
)  # fmt: skip
def test_invalid_texts(kind, text, says):
    assert says in (message := refusal(lambda: convert(text, kind), ValueError)) and len(message) < 500


def test_a_job_stores_numbers(job):
    config = Config.load(
        job, ["stop.seconds=2h", "run.watchdog=5min", "clock.timeout=1 min", "clock.dropout=0.1"]
    )
    clock = config.clock
    assert (clock.bandwidth_down, clock.bandwidth_up, clock.gradients_per_second) == (125e5, 1e7, 500)
    assert (clock.latency, clock.timeout, config.stop.seconds, config.run.watchdog) == (0.02, 60, 7200, 300)
    table = config.table()
    assert table["clock"]["bandwidth_up"] == 1e7 and table["stop"] == {"seconds": 7200.0}
    assert Config.from_table(table).table() == table


@pytest.mark.parametrize(
    "change, says",
    [
        ("clock.bandwidth_up=10 MBs", 'clock.bandwidth_up: expected a rate in bytes/second, or with'),
        ("stop.seconds=-2h", "stop.seconds: Input should be greater than 0, got '-2h'"),
        ("stop.seconds=true", "stop.seconds: Input should be a valid number, got True"),
        ("run.watchdog=9999d", "run.watchdog: Input should be less than or equal to 1"),
        ("clock.stragglers=2s", "clock.stragglers: Input should be a valid number, got '2s'"),
    ],
)  # fmt: skip
def test_errors_name_the_setting(job, change, says):
    assert says in refusal(lambda: Config.load(job, [change]))
