"""Fixtures of the fault tests."""

import os
import signal

import launch
import pytest
from small_job import end


@pytest.fixture(autouse=True)
def no_job_outlives_its_test(monkeypatch):
    """Kill the jobs that a failed test leaves waiting."""
    started, start = [], launch.start

    def noted(*arguments, **options):
        started.append(start(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(launch, "start", noted)
    yield
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """Return the output point of the small job without faults."""
    return end(tmp_path_factory.mktemp("whole"), "never")
