"""What `tidelog up` asks of an object store before it starts a cluster."""

from __future__ import annotations

import os
import time
from pathlib import Path
from random import Random

from object_store.blocking import BlockingStore
from object_store.limits import StoreLimits
from object_store.store import Body, ObjectInfo, ObjectStore
from object_store.uri import StoreUri
from tests.object_store.faulty_store import FaultyStore
from tidelog.cluster.store_check import store_trouble


def test_nothing_of_the_trial_write_stays(tmp_path: Path) -> None:
    assert store_trouble(f"file://{tmp_path}") is None
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / ".unfinished" / "lock"]


def test_a_trial_write_that_came_late_is_gone_a_day_later(tmp_path: Path) -> None:
    old, young, foreign = (tmp_path / f"tidelog-up-{name}" for name in ("0a" * 16, "0b" * 16, "notes"))
    for file in (old, young, foreign):
        file.write_bytes(b"1")
    two_days_ago = time.time() - 2 * 86_400
    for file in (old, foreign):
        os.utime(file, (two_days_ago, two_days_ago))
    assert store_trouble(f"file://{tmp_path}") is None
    assert sorted(tmp_path.glob("tidelog-up-*")) == sorted([young, foreign])


class CarelessStore(BlockingStore):
    """Takes writes whatever their conditions."""

    def __init__(self, uri: str | StoreUri, limits: StoreLimits | None = None, *, create: bool = False) -> None:
        super().__init__(uri, limits, create=create)
        self.store = Careless(self.store)


class Careless(FaultyStore):
    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner, Random(1))

    async def put(self, key: str, body: Body, *, create_only: bool = False) -> ObjectInfo:
        return await super().put(key, body)


def test_a_store_that_ignores_a_condition_is_refused(tmp_path: Path) -> None:
    trouble = store_trouble(f"file://{tmp_path}", CarelessStore)
    assert trouble == f"the object store file://{tmp_path} cannot be used: the store ignores If-None-Match"
