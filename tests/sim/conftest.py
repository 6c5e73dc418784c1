"""What holds for all tests in simulated worlds."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _what_is_left_is_searched_once() -> Iterator[None]:
    """Each world has the collector run several times when it ends; what earlier tests keep costs none of them."""
    yield
    gc.collect()
    gc.freeze()
