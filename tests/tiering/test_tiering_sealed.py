"""Checksums of manifests and of `cluster.json`: any change is noticed, and what has none is read as before."""

from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.checksum import crc32c
from tests.object_store.memory_store import MemoryStore
from tests.tiering.tier_world import ROOT, TierWorld
from tiering.bucket.cluster_file import begin_incarnation, read_cluster_file
from tiering.bucket.keys import PartitionPath
from tiering.bucket.sealed import check_seal, sealed
from tiering.manifests.manifest import DamagedManifest, decode_head, encode_head
from tiering.manifests.manifest_writer import ManifestWriter

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=6).filter(lambda name: name != "crc32c"), values, min_size=1, max_size=5)


@given(value=objects, indent=st.booleans())
def test_a_sealed_object_is_the_same_object_with_one_member_more(value: dict[str, object], indent: bool) -> None:
    body = sealed(json.dumps(value, indent=2 if indent else None).encode() + b"\n" * indent)
    check_seal(body)
    read = json.loads(body)
    assert read.pop("crc32c") == crc32c(body[: body.rindex(b',"crc32c"')])
    assert read == value


@given(value=objects, at=st.integers(0), bit=st.integers(0, 7))
def test_no_changed_bit_of_the_content_passes(value: dict[str, object], at: int, bit: int) -> None:
    body = bytearray(sealed(json.dumps(value).encode()))
    content = body.rindex(b',"crc32c"')
    body[at % content] ^= 1 << bit
    with pytest.raises(ValueError, match="checksum"):
        check_seal(bytes(body))


async def test_a_manifest_that_was_changed_into_another_is_damaged() -> None:
    world = TierWorld()
    world.claim(1)
    world.copy(range(0, 50, 10), 10)
    head = await ManifestWriter(world.services, world.view()).publish()
    assert head is not None
    body = encode_head(head)
    assert decode_head(body, "key") == head
    with pytest.raises(DamagedManifest, match="key: its checksum"):
        decode_head(body.replace(b'"end_offset":50', b'"end_offset":40', 1), "key")
    assert decode_head(msgspec.json.encode(head), "key") == head, "of an older version"
    assert json.loads(body)["crc32c"] > 0


def flipped(body: bytes) -> Iterator[bytes]:
    """With each bit turned over, one at a time."""
    for at in range(len(body)):
        for bit in range(8):
            yield body[:at] + bytes([body[at] ^ 1 << bit]) + body[at + 1 :]


async def test_with_any_bit_turned_over_a_manifest_is_damaged_by_name_or_says_the_same() -> None:
    world = TierWorld()
    world.claim(1)
    world.copy(range(0, 20, 10), 10)
    head = await ManifestWriter(world.services, world.view()).publish()
    assert head is not None
    path = PartitionPath(head.topic, bytes.fromhex(head.topic_id), head.partition)
    key, body = ROOT.manifest_key(path, head.version), encode_head(head)
    refused = 0
    for one in flipped(body):
        try:
            assert decode_head(one, key) == head
        except DamagedManifest as error:
            assert str(error).startswith(key)  # noqa: PT017
            refused += 1
    assert refused >= 8 * body.rindex(b',"crc32c"')


async def test_with_any_bit_turned_over_a_cluster_file_is_refused_by_name_or_says_the_same() -> None:
    store = MemoryStore()
    file = await begin_incarnation(store, ROOT, 1_700_000_000_000)
    body, version = await store.get_with_version(ROOT.cluster_file)
    refused = 0
    for one in flipped(body):
        version = (await store.replace(ROOT.cluster_file, one, version)).version
        try:
            found = await read_cluster_file(store, ROOT)
            assert found is not None
            assert found[0] == file
        except ValueError as error:
            assert ROOT.cluster_file in str(error)  # noqa: PT017
            refused += 1
    assert refused >= 8 * body.rindex(b',"crc32c"')


async def test_a_changed_cluster_file_is_not_believed() -> None:
    store = MemoryStore()
    await begin_incarnation(store, ROOT, 5)
    body, version = await store.get_with_version(ROOT.cluster_file)
    file, _ = await read_cluster_file(store, ROOT) or pytest.fail("it is not there")
    assert file.incarnation == 1
    await store.replace(ROOT.cluster_file, body.replace(b'"incarnation": 1', b'"incarnation": 7'), version)
    with pytest.raises(ValueError, match=r"cluster\.json.*checksum"):
        await read_cluster_file(store, ROOT)
    _, version = await store.get_with_version(ROOT.cluster_file)
    await store.replace(ROOT.cluster_file, msgspec.json.encode(file), version)
    assert (await read_cluster_file(store, ROOT) or ("",))[0] == file
