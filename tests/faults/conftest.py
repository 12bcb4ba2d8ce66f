"""The fixture of the fault tests."""

import pytest
from small_job import end


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """The output point of the small job when nothing goes wrong."""
    return end(tmp_path_factory.mktemp("whole"), "never")
