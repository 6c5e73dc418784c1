"""docs/tier-format.md is enough to read a bucket: a reader that uses the standard library and a CRC alone."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

import msgspec
import pytest

from common.checksum import crc32c
from records.batch import stamp
from records.builder import build_batch
from records.record import Record
from tests.tiering.segments import segment
from tests.tiering.tier_world import PATH, ROOT, TierWorld
from tiering.bucket.keys import ManifestKey, PageKey, PartitionPath, SegmentKey, TierRoot, parse_topic_directory
from tiering.bucket.segment import Section, SegmentId, SegmentState
from tiering.manifests.manifest_writer import ManifestWriter
from tiering.shard.shard_protocol import FinishCopy, StartCopy

Bucket = dict[str, bytes]


def read_partition(bucket: Bucket, prefix: str) -> Iterator[tuple[int, bytes]]:
    """(base offset, batch) of all that may be read, as the document says."""
    version = max(key for key in bucket if key.startswith(f"{prefix}manifest/"))
    manifest = json.loads(bucket[version])
    assert manifest["format"] == 1
    segments = []
    for page in manifest["pages"]:
        body = bucket[f"{prefix}manifest-pages/{page['uuid']}"]
        assert len(body) == page["size"] and crc32c(body) == page["crc32c"]
        segments += json.loads(body)["segments"]
    segments += manifest["segments"]
    for entry in segments:
        if entry["end_offset"] <= manifest["log_start_offset"]:
            continue
        data = bucket[f"{prefix}{entry['base_offset']:020d}-{entry['uuid']}.segment"]
        assert len(data) == entry["object_bytes"]
        assert crc32c(data[: entry["log_bytes"]]) == entry["log_crc32c"]
        index = entry["sections"]["offset_index"]
        raw = data[index["position"] : index["position"] + index["length"]]
        assert crc32c(raw) == index["crc32c"]
        starts = {position: relative for relative, position in struct.iter_unpack(">ii", raw)}
        at = 0
        while at < entry["log_bytes"]:
            base, length = struct.unpack_from(">qi", data, at)
            batch = data[at : at + 12 + length]
            (last_delta,) = struct.unpack_from(">i", batch, 23)
            if at in starts:
                assert entry["base_offset"] + starts[at] == base + last_delta
            if base + last_delta >= manifest["log_start_offset"]:
                yield base, batch
            at += 12 + length


async def put_segment(world: TierWorld, base: int, batches: int) -> None:
    """A segment of `batches` batches of ten records, with its object, in the order of a real copy."""
    log, index = bytearray(), b""
    for number in range(batches):
        records = [Record(at, 1_000 + at, b"k", b"v" * 20, ()) for at in range(10)]
        batch = build_batch(records)
        stamp(batch, 0, base + 10 * number, 1)
        index += struct.pack(">ii", 10 * number + 9, len(log))
        log += batch
    sections = {"offset_index": Section(len(log), len(index), crc32c(index))}
    finished = msgspec.structs.replace(
        segment(base, base + 10 * batches),
        log_bytes=len(log),
        log_crc32c=crc32c(log),
        object_bytes=len(log) + len(index),
        sections=sections,
    )
    world.ask(StartCopy(1, 10, msgspec.structs.replace(finished, state=SegmentState.COPY_STARTED)))
    await world.store.put(ROOT.segment_key(PATH, finished.id), bytes(log) + index)
    world.ask(FinishCopy(1, 10, finished))


async def test_a_stranger_reads_a_bucket() -> None:
    world = TierWorld()
    world.claim(1)
    for base in range(0, 1_002 * 20, 20):
        await put_segment(world, base, 2)
    world.move_log_start(35)
    await ManifestWriter(world.services, world.view()).publish()
    bucket = {key: body for key, (body, _) in world.store.objects.items()}
    assert any("/manifest-pages/" in key for key in bucket)
    prefix = f"cluster-1/_/flights-{bytes(range(16)).hex()}/0/"
    bases = [base for base, _ in read_partition(bucket, prefix)]
    assert bases == list(range(30, 1_002 * 20, 10))
    assert json.loads(bucket["cluster-1/cluster.json"])["incarnation"] == 1


# names -----------------------------------------------------------------------------------------------------

UUID = "0123456789abcdef" * 2


@pytest.mark.parametrize("topic", ["a", "a-b", "-", "a.b_c", "x-" + UUID])
@pytest.mark.parametrize("tenant", ["", "lkc-7"])
def test_every_key_is_read_as_it_was_built(topic: str, tenant: str) -> None:
    root = TierRoot("-cluster_1", "some/prefix/")
    path = PartitionPath(topic, bytes(range(16)), 12, tenant)
    one = SegmentId(7, UUID)
    assert root.parse_key(root.segment_key(path, one)) == SegmentKey(path, one)
    assert root.parse_key(root.manifest_key(path, 3)) == ManifestKey(path, 3)
    assert root.parse_key(root.page_key(path, UUID)) == PageKey(path, UUID)
    assert parse_topic_directory(root.topic_prefix(topic, path.topic_id).split("/")[-2]) == (topic, path.topic_id)


@pytest.mark.parametrize(
    "key",
    [
        "cluster.json",
        f"_/t-{UUID}/0/7-{UUID}.segment",
        f"_/t-{UUID}/0/{7:020d}-{UUID}.log",
        f"_/t-{UUID}/x/{7:020d}-{UUID}.segment",
        f"_/t/0/{7:020d}-{UUID}.segment",
        f"_/t-{UUID.upper()}/0/manifest/{1:020d}",
        f"_/t-{UUID}/0/manifest/1",
        f"proposals/t-{UUID}/0/manifest/{1:020d}",
        f"metadata/t-{UUID}/0/manifest/{1:020d}",
    ],
)
def test_other_keys_are_nothing(key: str) -> None:
    assert TierRoot("c").parse_key(f"c/{key}") is None
    assert TierRoot("c").parse_key(f"d/_/t-{UUID}/0/manifest/{1:020d}") is None


@pytest.mark.parametrize("tenant", ["_", "metadata", "proposals", "cluster.json", "a/b"])
def test_a_tenant_cannot_take_a_name_that_means_something(tenant: str) -> None:
    with pytest.raises(ValueError, match="tenant"):
        TierRoot("c").tenant_prefix(tenant)
