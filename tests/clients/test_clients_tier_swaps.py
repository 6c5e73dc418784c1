"""A real cluster whose tiered segments a program beside it replaces, while a stock client reads and a leader dies.

The program knows the bucket alone. What it leaves out are whole batches, so the offsets that a reader has to find are
known: those of the newest manifest's objects, and the rest of the log.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.embedded import EmbeddedCluster
from object_store.opening import open_store
from object_store.store import ObjectStore
from object_store.uri import parse_uri
from records.batch import BatchHeader
from tests.clients.test_clients_tier import SETTINGS, eventually, make_topic, objects, produce
from tests.tidelog.test_tidelog_tier_rebuild import succeeded, tidelog
from tests.tiering.rewriting import proposal_of, write_rewritten
from tiering.bucket.keys import TierRoot
from tiering.jobs.proposal import Verdict, submit, wait_for_verdict
from tiering.manifests.manifest import Manifest
from tiering.upkeep.inventory import find_topics

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

RECORDS = 4_000
PATIENCE_S = 60.0
MORE = {
    "tidelog.tier.proposals.interval.ms": "100",
    "tidelog.tier.delete.delay.ms": "15000",
    "broker.session.timeout.ms": "3000",
}


@pytest.fixture(scope="module")
def tiered() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(settings=SETTINGS | MORE) as running:
        yield running


def keep(header: BatchHeader) -> bool:
    """About every second batch, as its offset falls."""
    return header.base_offset % 64 < 32


def read_offsets(cluster: EmbeddedCluster, topic: str, end: int, start: int = 0) -> list[int]:
    """As a stock client does, up to the last record, which nobody removes."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "swaps", "check.crcs": True})
    consumer.assign([TopicPartition(topic, 0, start)])
    found: list[int] = []
    deadline = time.monotonic() + PATIENCE_S
    while (not found or found[-1] < end - 1) and time.monotonic() < deadline:
        for message in consumer.consume(500, 0.5):
            if message.error() is None:
                assert int((message.value() or b"").split()[0]) == message.offset()
                found.append(message.offset() or 0)
    consumer.close()
    return found


class Job:
    """What a job does, on the bucket of an embedded cluster."""

    def __init__(self, cluster: EmbeddedCluster, topic: str) -> None:
        self.tier = (cluster.data / "tier").resolve()
        (cluster_file,) = self.tier.glob("*/cluster.json")
        self.root = TierRoot(cluster_file.parent.name)
        self.topic = topic

    async def store(self) -> ObjectStore:
        return await open_store(parse_uri(self.tier.as_uri()))

    async def manifest(self, store: ObjectStore) -> Manifest:
        (found,) = await find_topics(store, self.root, self.topic)
        manifest = found.partitions[0].manifest
        assert manifest is not None
        return manifest

    async def propose(self, number: int, first: int, count: int) -> str:
        """One output in the place of `count` segments."""
        store = await self.store()
        head, segments = await self.manifest(store)
        path = (await find_topics(store, self.root, self.topic))[0].partitions[0].path
        inputs = segments[first : first + count]
        output = await write_rewritten(store, self.root, path, inputs, keep, number << 64 | time.time_ns() % 10**9)
        proposal = proposal_of(path, inputs, [output], number << 64 | 1, incarnation=head.incarnation)
        await submit(store, self.root, proposal)
        await store.close()
        return proposal.uuid

    async def verdict(self, uuid: str) -> Verdict:
        store = await self.store()
        told = await wait_for_verdict(store, self.root, uuid, PATIENCE_S)
        await store.close()
        return told


def kept_offsets(first_removed: int, end_removed: int, batches: list[tuple[int, int]]) -> list[int]:
    """All offsets but those of batches in the range that the job left out."""
    return [
        offset
        for base, after in batches
        for offset in range(base, after)
        if not first_removed <= base < end_removed or base % 64 < 32
    ]


def batches_of(paths: list[Path]) -> list[tuple[int, int]]:
    """Base offset and end of each batch in objects that brokers wrote."""
    found = []
    for path in paths:
        data = path.read_bytes()
        at, end = 0, int(path.name[:20])
        while at + 61 <= len(data):
            base = int.from_bytes(data[at : at + 8], "big")
            size = int.from_bytes(data[at + 8 : at + 12], "big") + 12
            if base != end or data[at + 16] != 2:
                break  # the sections begin
            end = base + int.from_bytes(data[at + 23 : at + 27], "big") + 1
            found.append((base, end))
            at += size
    return found


def test_readers_do_not_notice_a_swap_and_a_leaders_death(tiered: EmbeddedCluster) -> None:
    topic = make_topic(tiered)
    produce(tiered, topic, 0, RECORDS)
    eventually(lambda: len(objects(tiered, topic)) >= 12, "segments are in the object store")
    job = Job(tiered, topic)
    eventually(lambda: _manifest_segments(job) >= 12, "a manifest names them")
    batches = batches_of(objects(tiered, topic))
    batches += [(batches[-1][1], RECORDS)]
    errors: list[object] = []
    done = threading.Event()

    def read_on() -> None:
        """Whatever is removed meanwhile, offsets ascend and the first and the last are found."""
        while not done.is_set():
            found = read_offsets(tiered, topic, RECORDS)
            if found != sorted(set(found)) or found[0] != 0 or found[-1] != RECORDS - 1:
                errors.append(found[:3])

    reader = threading.Thread(target=read_on)
    reader.start()
    try:
        admin = AdminClient({"bootstrap.servers": tiered.bootstrap})
        leader = admin.list_topics(topic).topics[topic].partitions[0].leader
        before = _segments(job)
        first = asyncio.run(job.propose(1, 1, 3))
        tiered.kill(f"broker-{leader}")
        told = asyncio.run(job.verdict(first))
        assert told.accepted, told.reason
        tiered.command("start", f"broker-{leader}")
        second = asyncio.run(job.propose(2, 2, 4))
        assert asyncio.run(job.verdict(second)).accepted
        stale = asyncio.run(job.verdict(asyncio.run(_again(job, first))))
        assert not stale.accepted
    finally:
        done.set()
        reader.join()
    assert not errors
    removed = (before[1][0], before[7][1])
    expected = kept_offsets(*removed, batches)
    assert len(expected) < RECORDS
    assert read_offsets(tiered, topic, RECORDS) == expected
    for start in (removed[0] + 40, removed[1] - 1):
        assert read_offsets(tiered, topic, RECORDS, start) == [offset for offset in expected if offset >= start]
    check = ("tier", "check", "--json", "--data", str(tiered.data))  # its status tells of disagreements as well
    eventually(lambda: json.loads(tidelog(*check).stdout)["disagreements"] == [], "all agree")
    listed = succeeded("tier", "ls", topic, "--data", str(tiered.data))
    assert sum(row["rewritten"] for row in listed) == 2
    (row,) = succeeded("tier", "status", topic, "--data", str(tiered.data))["partitions"]
    assert row["rewritten"] == 2


def test_a_restored_topic_has_what_was_left(tiered: EmbeddedCluster) -> None:
    topic = make_topic(tiered)
    produce(tiered, topic, 0, RECORDS)
    job = Job(tiered, topic)
    eventually(lambda: _manifest_segments(job) >= 12, "a manifest names them")
    assert asyncio.run(job.verdict(asyncio.run(job.propose(3, 0, 5)))).accepted
    eventually(lambda: json.loads(_head(job))["segments"][0]["rewritten"], "the manifest shows it")
    end = _end(job)
    due = [one for one in read_offsets(tiered, topic, RECORDS) if one < end]
    assert len(due) < end
    admin = AdminClient({"bootstrap.servers": tiered.bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    eventually(lambda: _head(job) and json.loads(_head(job))["dropped_ms"], "the manifest says that it was deleted")
    succeeded("tier", "restore", topic, "--as", f"{topic}-again", "--data", str(tiered.data))
    assert read_offsets(tiered, f"{topic}-again", due[-1] + 1) == due


def _end(job: Job) -> int:
    return int(json.loads(_head(job))["end_offset"])


def _head(job: Job) -> bytes:
    return max(job.tier.glob(f"*/_/{job.topic}-*/0/manifest/*")).read_bytes()


def _segments(job: Job) -> list[tuple[int, int]]:
    return [(one["base_offset"], one["end_offset"]) for one in json.loads(_head(job))["segments"]]


def _manifest_segments(job: Job) -> int:
    heads = list(job.tier.glob(f"*/_/{job.topic}-*/0/manifest/*"))
    return len(json.loads(max(heads).read_bytes())["segments"]) if heads else 0


async def _again(job: Job, uuid: str) -> str:
    """The same swap under another name, as a job that was started twice would have it."""
    body = json.loads((job.tier / job.root.proposal_key(uuid)).read_bytes())
    body["uuid"] = "f" * 32
    body["outputs"][0]["uuid"] = "e" * 32
    (job.tier / job.root.proposal_key("f" * 32)).write_bytes(json.dumps(body).encode())
    return "f" * 32
