"""What every object store does alike: one suite over memory, a directory, and S3."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.machine_disk import MachineDisk, MachineFile
from object_store.errors import (
    InvalidKey,
    ObjectExists,
    ObjectMissing,
    ObjectTruncated,
    VersionConflict,
)
from object_store.limits import MIB
from object_store.store import FileRange, ObjectStore

BIG = 12 * MIB + 345  # more than two parts


async def keys_of(store: ObjectStore, prefix: str, start_after: str = "") -> list[str]:
    return [info.key async for info in store.list(prefix, start_after=start_after)]


@pytest.fixture
def big_file(tmp_path: Path) -> Iterator[tuple[MachineFile, bytes]]:
    data = random.Random(7).randbytes(BIG)
    (tmp_path / "source").mkdir()
    file = MachineDisk(tmp_path / "source").open("log", create=True)
    file.pwrite(data, 0)
    yield file, data
    file.close()


async def test_what_was_put_is_read_whole_and_in_ranges(store: ObjectStore) -> None:
    put = await store.put("a/b/object", b"0123456789")
    assert (put.key, put.size) == ("a/b/object", 10)
    assert await store.get("a/b/object") == b"0123456789"
    assert await store.get("a/b/object", 3, 4) == b"3456"
    assert await store.get("a/b/object", 8) == b"89"
    assert await store.get("a/b/object", 10) == b""
    assert await store.get("a/b/object", 4, 0) == b""
    head = await store.head("a/b/object")
    assert (head.key, head.size, head.version) == ("a/b/object", 10, put.version)
    assert await store.get_with_version("a/b/object") == (b"0123456789", put.version)


async def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    assert (await store.put("empty", b"")).size == 0
    assert await store.get("empty") == b""
    assert await store.get_with_version("empty") == (b"", (await store.head("empty")).version)
    assert await keys_of(store, "") == ["empty"]


async def test_a_put_replaces_the_object_and_its_version(store: ObjectStore) -> None:
    first = await store.put("key", b"first")
    second = await store.put("key", b"other")
    assert await store.get("key") == b"other"
    assert first.version != second.version == (await store.head("key")).version


async def test_a_body_of_many_parts_arrives_in_order(store: ObjectStore, big_file: tuple[MachineFile, bytes]) -> None:
    file, data = big_file
    body: list[bytes | FileRange] = [b"front", FileRange(file, 100, BIG - 200), b"", FileRange(file, 0, 50), b"back"]
    expected = b"front" + data[100 : BIG - 100] + data[:50] + b"back"
    info = await store.put("segment", body)
    assert info.size == len(expected)
    assert await store.get("segment") == expected
    assert await store.get("segment", 6 * MIB - 5, 4 * MIB) == expected[6 * MIB - 5 : 10 * MIB - 5]
    assert (await store.head("segment")).version == info.version


async def test_a_small_body_of_parts(store: ObjectStore, big_file: tuple[MachineFile, bytes]) -> None:
    file, data = big_file
    await store.put("small", [FileRange(file, 10, 20), b"!", FileRange(file, BIG - 5, 5)])
    assert await store.get("small") == data[10:30] + b"!" + data[-5:]


async def test_a_missing_object_is_called_missing(store: ObjectStore) -> None:
    await store.put("there", b"x")
    await store.put("dir/object", b"x")
    for key in ["missing", "there/below", "ther", "dir"]:
        for call in (
            store.get(key),
            store.get(key, 1, 2),
            store.get_with_version(key),
            store.head(key),
            store.copy(key, "target"),
        ):
            with pytest.raises(ObjectMissing, match=key):
                await call
        await store.delete([key])
    assert await keys_of(store, "") == ["dir/object", "there"]


async def test_a_range_beyond_the_end_is_truncated_never_short(store: ObjectStore) -> None:
    await store.put("key", b"0123456789")
    for start, length in [(0, 11), (9, 2), (10, 1), (11, None), (50, 5)]:
        with pytest.raises(ObjectTruncated):
            await store.get("key", start, length)


async def test_create_only_keeps_what_is_there(store: ObjectStore, big_file: tuple[MachineFile, bytes]) -> None:
    await store.put("key", b"first", create_only=True)
    with pytest.raises(ObjectExists, match="key"):
        await store.put("key", b"second", create_only=True)
    with pytest.raises(ObjectExists):
        await store.put("key", [FileRange(big_file[0], 0, BIG)], create_only=True)
    assert await store.get("key") == b"first"
    await store.delete(["key"])
    await store.put("key", [FileRange(big_file[0], 0, BIG)], create_only=True)
    assert await store.get("key") == big_file[1]


async def test_of_many_creators_one_wins(store: ObjectStore) -> None:
    bodies = [f"writer {number}".encode() for number in range(8)]
    outcomes = await asyncio.gather(
        *[store.put("manifest/00000001", body, create_only=True) for body in bodies], return_exceptions=True
    )
    winners = [number for number, outcome in enumerate(outcomes) if not isinstance(outcome, BaseException)]
    assert len(winners) == 1
    assert all(isinstance(outcome, ObjectExists) for outcome in outcomes if isinstance(outcome, BaseException))
    assert await store.get("manifest/00000001") == bodies[winners[0]]


async def test_replace_is_compare_and_set(store: ObjectStore) -> None:
    created = await store.replace("cluster.json", b"1", None)
    with pytest.raises(VersionConflict):
        await store.replace("cluster.json", b"again", None)
    data, version = await store.get_with_version("cluster.json")
    assert (data, version) == (b"1", created.version)
    second = await store.replace("cluster.json", b"2", version)
    with pytest.raises(VersionConflict):
        await store.replace("cluster.json", b"3", version)
    assert await store.get_with_version("cluster.json") == (b"2", second.version)
    await store.delete(["cluster.json"])
    with pytest.raises(VersionConflict):
        await store.replace("cluster.json", b"4", second.version)


async def test_no_update_is_lost_between_replacers(store: ObjectStore) -> None:
    await store.replace("counter", b"0", None)

    async def add(times: int) -> None:
        while times:
            data, version = await store.get_with_version("counter")
            try:
                await store.replace("counter", str(int(data) + 1).encode(), version)
            except VersionConflict:
                continue
            times -= 1

    await asyncio.gather(*[add(5) for _ in range(4)])
    assert await store.get("counter") == b"20"


async def test_listing_is_ascending_by_key_and_starts_after(store: ObjectStore) -> None:
    keys = ["a", "a-b", "a-b/c", "a.b", "a0", "b/1/x", "b/1/y", "b/10/x", "b/2/x", "b/2", "b-/x", "ü/ß", "z"]
    keys.remove("a-b")  # no object may be another's directory
    keys.remove("b/2")
    for key in random.Random(3).sample(keys, len(keys)):
        await store.put(key, key.encode())
    ordered = sorted(keys)
    assert await keys_of(store, "") == ordered
    for after in [*ordered, "a-", "b/1", "b/1/", "b/1/xx", "b/11", "zz", "0"]:
        assert await keys_of(store, "", after) == [key for key in ordered if key > after], after
    for prefix in ["a", "a-b/", "b/1", "b/1/", "b/", "b", "nothing", "b/1/x", "b/1/x/"]:
        assert await keys_of(store, prefix) == [key for key in ordered if key.startswith(prefix)], prefix
        assert await keys_of(store, prefix, "b/1/x") == [
            key for key in ordered if key.startswith(prefix) and key > "b/1/x"
        ]
    infos = [info async for info in store.list("b/")]
    assert [info.size for info in infos] == [len(info.key) for info in infos]
    assert [info.version for info in infos] == [(await store.head(info.key)).version for info in infos]


async def test_a_listing_goes_over_many_pages(store: ObjectStore) -> None:
    keys = [f"partition/{number:020d}-segment" for number in range(40)]
    await asyncio.gather(*[store.put(key, b"") for key in keys])
    assert await keys_of(store, "partition/") == keys
    assert await keys_of(store, "partition/", keys[20]) == keys[21:]
    seen = []
    async for info in store.list("partition/"):  # left early
        seen.append(info.key)
        if len(seen) == 3:
            break
    assert seen == keys[:3]


async def test_names_of_one_level(store: ObjectStore) -> None:
    for key in [
        "t/0/a.segment",
        "t/0/manifest/1",
        "t/0/manifest/2",
        "t/1/b.segment",
        "t/10/c",
        "t/file",
        "cluster.json",
    ]:
        await store.put(key, b"")
    assert await store.list_names("") == ["cluster.json", "t/"]
    assert await store.list_names("t/") == ["0/", "1/", "10/", "file"]
    assert await store.list_names("t/0/") == ["a.segment", "manifest/"]
    assert await store.list_names("t/2/") == []
    await store.delete(["t/0/manifest/1", "t/0/manifest/2", "t/1/b.segment"])
    assert await store.list_names("t/") == ["0/", "10/", "file"]
    with pytest.raises(ValueError, match="slash"):
        await store.list_names("t")


async def test_delete_takes_many_and_forgives_missing(store: ObjectStore) -> None:
    keys = [f"d/{number}" for number in range(30)]
    await asyncio.gather(*[store.put(key, b"x") for key in keys])
    await store.delete([*keys[:25], "d/none", "nothing/at/all"])
    assert await keys_of(store, "") == sorted(keys[25:])
    await store.delete([])


async def test_copy_is_an_object_of_its_own(store: ObjectStore, big_file: tuple[MachineFile, bytes]) -> None:
    await store.put("source", [FileRange(big_file[0], 0, BIG)])
    await store.copy("source", "deep/target")
    await store.delete(["source"])
    assert await store.get("deep/target") == big_file[1]
    await store.put("other", b"small")
    await store.copy("other", "deep/target")
    assert await store.get("deep/target") == b"small"


REFUSED = ["", "/a", "a/", "a//b", "../a", "a/../../b", ".", "a/.", "a\0b", "a\nb", "a\\b", ".unfinished/x", "x" * 256,
           "/".join(["long"] * 200), "\ud800"]  # fmt: skip
UNUSUAL = ["a b", "a+b", "a%2Fb", "a&b=c?d#e", "tïdelog/日本", "a'b\"c", "~", "a:b@c", "..a/b.."]


async def test_a_key_that_could_escape_or_confuse_is_refused(store: ObjectStore) -> None:
    for key in REFUSED:
        for call in (
            store.put(key, b"x"),
            store.get(key),
            store.get_with_version(key),
            store.replace(key, b"x", None),
            store.head(key),
            store.delete(["fine", key]),
            store.copy("fine", key),
            store.copy(key, "fine"),
        ):
            with pytest.raises(InvalidKey):
                await call
    assert await keys_of(store, "") == []


async def test_unusual_keys_are_kept_as_they_are(store: ObjectStore) -> None:
    for key in UNUSUAL:
        await store.put(key, b"x")
        await store.copy(key, key + "2")
        assert await keys_of(store, "") == sorted([key, key + "2"])
        assert await keys_of(store, key) == sorted([key, key + "2"])
        assert await store.get(key + "2") == b"x"
        await store.delete([key, key + "2"])
        assert await keys_of(store, "") == []


async def test_many_calls_at_once(store: ObjectStore) -> None:
    bodies = {f"k/{number}": os.urandom(1000 + number) for number in range(60)}
    await asyncio.gather(*[store.put(key, body) for key, body in bodies.items()])
    got = await asyncio.gather(*[store.get(key) for key in bodies])
    assert got == list(bodies.values())


async def test_what_puts_left_unfinished_is_swept(store: ObjectStore) -> None:
    await store.put("key", b"x")
    assert await store.sweep_unfinished(2**53) == 0
    assert await keys_of(store, "") == ["key"]
