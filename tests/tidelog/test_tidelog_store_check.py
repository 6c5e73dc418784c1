"""What `tidelog up` asks of an object store before it starts a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from object_store.directory_store import DirectoryStore
from object_store.store import Body, ObjectInfo
from tidelog.store_check import store_trouble


def test_nothing_of_the_trial_write_stays(tmp_path: Path) -> None:
    assert store_trouble(f"file://{tmp_path}") is None
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / ".unfinished" / "lock"]


def test_a_store_that_ignores_a_condition_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = DirectoryStore.put

    async def put(self: DirectoryStore, key: str, body: Body, *, create_only: bool = False) -> ObjectInfo:
        return await right(self, key, body)

    monkeypatch.setattr(DirectoryStore, "put", put)
    trouble = store_trouble(f"file://{tmp_path}")
    assert trouble == f"the object store file://{tmp_path} cannot be used: the store ignores If-None-Match"
