"""A directory that nobody has mounted yet is not made a store by those who only look."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from object_store.errors import ObjectMissing, StoreUnavailable
from object_store.opening import open_store
from tests.object_store.conftest import LIMITS


async def test_who_only_looks_makes_no_store_of_an_empty_mount_point(tmp_path: Path) -> None:
    store = await open_store(f"file://{tmp_path}/root", LIMITS)
    await store.put("a/b", b"x")
    (tmp_path / "root").rename(tmp_path / "elsewhere")
    (tmp_path / "root").mkdir()
    other = await open_store(f"file://{tmp_path}/root", LIMITS, create=False)
    assert await other.list_names("") == []
    with pytest.raises(ObjectMissing):
        await other.head("a/b")
    assert await other.sweep_unfinished(1 << 50) == 0
    assert os.listdir(tmp_path / "root") == []
    with pytest.raises(StoreUnavailable, match="gone"):
        await store.get("a/b")
    await other.put("c", b"y")
    assert await other.get("c") == b"y"
    await other.close()
