"""Messages of refused settings."""

import pytest

from mpifed import ConfigError


def refusal(make, error: type[Exception] = ConfigError) -> str:
    """Return the message of the error that ``make()`` raises: short, and without words of pydantic."""
    with pytest.raises(error) as refused:
        make()
    text = str(refused.value)
    assert len(text) < 4500 and "pydantic" not in text and "function-" not in text, text
    return text
