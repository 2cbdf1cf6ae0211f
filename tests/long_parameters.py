"""Which parameters of a test only `make test-all` runs."""

from collections.abc import Iterable
from typing import Any

import pytest


def long_after(count: int, values: Iterable[Any]) -> list[Any]:
    """Parameters for `pytest.mark.parametrize`: all but the first `count` are marked `long`. A
    tuple has a value for each of several names."""
    return [
        pytest.param(*_each(value), marks=() if place < count else pytest.mark.long)
        for place, value in enumerate(values)
    ]


def _each(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
