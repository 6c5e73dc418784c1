"""One running project for all tests here; they run one after another, each leaves every broker serving."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.compose.compose_project import ComposeProject


@pytest.fixture(scope="session")
def project() -> Iterator[ComposeProject]:
    running = ComposeProject()
    try:
        running.up()
        yield running
    finally:
        running.remove()
