"""The stores that the behaviour suite runs over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from object_store.directory_store import DirectoryStore
from object_store.limits import MIB, StoreLimits
from object_store.store import ObjectStore
from tests.object_store.memory_store import MemoryStore

LIMITS = StoreLimits(part_bytes=5 * MIB, page_keys=7, backoff_first_s=0.01, backoff_max_s=0.05)


@pytest.fixture(params=["memory", "directory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    """An empty store of each kind."""
    opened: ObjectStore
    if request.param == "memory":
        opened = MemoryStore()
    else:
        directory = DirectoryStore(str(tmp_path / "root"), LIMITS)
        await directory.open()
        opened = directory
    yield opened
    await opened.close()
