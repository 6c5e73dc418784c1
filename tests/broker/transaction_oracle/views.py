"""What who looks on is told in each state: operators, readers of committed records, and readers of offsets."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

from common.errors import known_error
from records.batch import iterate_batches
from records.control import read_marker
from tests.broker.transaction_oracle.client import Client, compared
from tests.broker.transaction_oracle.states import GONE, Scene

HOUR_MS = 3_600_000
View = Callable[[Client, Scene], Awaitable[str]]


async def describe_transactions(client: Client, scene: Scene) -> str:
    known = await client.describe(scene.name)
    if not known.timeout_ms:
        return known.state
    names = sorted(topic if topic != scene.held[0] else "its partition" for topic, _ in known.partitions)
    start = "begun" if known.has_start else "not begun"
    return f"{known.state}, {compared(known.pair, scene.client)}, {start}, partitions: {', '.join(names)}"


async def _listed(client: Client, scene: Scene, version: int = 2, **filters: Any) -> str:
    wanted = {
        "state_filters": [], "producer_id_filters": [scene.known.pair.id], "duration_filter": -1,
        "transactional_id_pattern": None,
    } | filters  # fmt: skip
    told = await client.call(version, "ListTransactions", **wanted)
    rows = [row for row in told.transaction_states if row.transactional_id == scene.name]
    own = scene.client.id
    states = [f"{row.transaction_state}, {'its' if row.producer_id == own else 'another'} id" for row in rows]
    return f"{known_error(told.error_code).name}: {', '.join(states) or 'not listed'}"


async def list_by_id(client: Client, scene: Scene) -> str:
    return await _listed(client, scene)


async def list_by_state(client: Client, scene: Scene) -> str:
    return await _listed(client, scene, state_filters=[scene.known.state or "Empty"])


async def list_by_age(client: Client, scene: Scene) -> str:
    found = [await _listed(client, scene, 1, duration_filter=age) for age in (0, HOUR_MS)]
    return "{}; for an hour: {}".format(*found)


async def list_by_pattern(client: Client, scene: Scene) -> str:
    return await _listed(
        client, scene, producer_id_filters=[], transactional_id_pattern=re.escape(scene.name)[:-1] + "."
    )


async def describe_producers(client: Client, scene: Scene) -> str:
    row = await client.producer(scene.held, scene.client.id)
    code, _ = await client.producers(GONE)
    return f"{producer_row(row, scene)}; without leader: {code}"


def producer_row(row: Any | None, scene: Scene) -> str:
    """What a partition's leader knows of the scene's producer."""
    if row is None:
        return "unknown producer"
    epoch = row.producer_epoch - scene.client.epoch
    is_open = "open" if row.current_txn_start_offset >= 0 else "nothing open"
    marked = "no coordinator" if row.coordinator_epoch < 0 else "coordinator"
    return f"epoch {epoch:+d}, last sequence {row.last_sequence}, {is_open}, {marked}"


async def find_coordinator(client: Client, scene: Scene) -> str:
    told = (await client.call(4, "FindCoordinator", key_type=1, coordinator_keys=[scene.name])).coordinators[0]
    return f"{known_error(told.error_code).name}: node {told.node_id}"


async def _offsets(client: Client, scene: Scene, isolation: int) -> str:
    topic, index = scene.held
    found = []
    for timestamp in (-2, -1, -3, 0):
        partition = {"partition_index": index, "current_leader_epoch": -1, "timestamp": timestamp}
        told = await client.call(
            7, "ListOffsets", replica_id=-1, isolation_level=isolation,
            topics=[{"name": topic, "partitions": [partition]}], timeout_ms=5_000,
        )  # fmt: skip
        row = told.topics[0].partitions[0]
        found.append(f"{known_error(row.error_code).name} {row.offset}")
    return "first {}, next {}, newest {}, at 0: {}".format(*found)


async def committed_offsets(client: Client, scene: Scene) -> str:
    return await _offsets(client, scene, 1)


async def all_offsets(client: Client, scene: Scene) -> str:
    return await _offsets(client, scene, 0)


async def _fetched(client: Client, scene: Scene, isolation: int) -> str:
    topic, index = scene.held
    partition = {
        "partition": index, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1,
        "log_start_offset": -1, "partition_max_bytes": 1 << 16,
    }  # fmt: skip
    told = await client.call(
        12, "Fetch", replica_id=-1, max_wait_ms=500, min_bytes=1, max_bytes=1 << 20, isolation_level=isolation,
        session_id=0, session_epoch=-1, topics=[{"topic": topic, "partitions": [partition]}],
        forgotten_topics_data=[], rack_id="",
    )  # fmt: skip
    row = told.responses[0].partitions[0]
    aborted = "none" if row.aborted_transactions is None else [
        f"from {one.first_offset}" + ("" if one.producer_id == scene.client.id else " of another")
        for one in row.aborted_transactions
    ]  # fmt: skip
    batches = _batches(bytes(row.records or b""), scene)
    code = known_error(row.error_code).name
    return f"{code}, HW {row.high_watermark}, LSO {row.last_stable_offset}, aborted {aborted}: {', '.join(batches)}"


def _batches(records: bytes, scene: Scene) -> list[str]:
    found = []
    view = memoryview(records)
    for at, header in iterate_batches(view, 0, len(records)):
        marker = read_marker(view, at, header.size) if header.is_control else None
        kind = "records" if marker is None else marker.kind.name.lower()
        found.append(f"{header.base_offset} {kind} of epoch {header.producer_epoch - scene.client.epoch:+d}")
    return found


async def read_committed(client: Client, scene: Scene) -> str:
    return await _fetched(client, scene, 1)


async def read_all(client: Client, scene: Scene) -> str:
    return await _fetched(client, scene, 0)


async def group_offsets(client: Client, scene: Scene) -> str:
    """Its group's: stable ones, and whatever there are."""
    found = []
    topic, index = scene.held
    for stable in (True, False):
        group = {"group_id": scene.name, "member_id": None, "member_epoch": -1,
                 "topics": [{"name": topic, "partition_indexes": [index]}]}  # fmt: skip
        told = (await client.call(9, "OffsetFetch", groups=[group], require_stable=stable)).groups[0]
        row = told.topics[0].partitions[0] if told.topics else None
        code = known_error(told.error_code).name if row is None else known_error(row.error_code).name
        found.append(f"{code} {row.committed_offset if row else ''}".strip())
    return f"stable {found[0]}, any {found[1]}"


VIEWS: dict[str, View] = {
    "DescribeTransactions": describe_transactions,
    "ListTransactions by producer id": list_by_id,
    "ListTransactions by state": list_by_state,
    "ListTransactions by age": list_by_age,
    "ListTransactions by pattern": list_by_pattern,
    "DescribeProducers": describe_producers,
    "FindCoordinator": find_coordinator,
    "ListOffsets of committed records": committed_offsets,
    "ListOffsets of all records": all_offsets,
    "Fetch of committed records": read_committed,
    "Fetch of all records": read_all,
    "OffsetFetch": group_offsets,
}
