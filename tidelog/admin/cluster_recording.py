"""A live cluster as the lines of `kraft.balancer.recorded`, over one admin client."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from kraft.balancer.recorded import Line, RecordedBroker, RecordedHead, RecordedPartition, RecordedTopic, encoded
from kraft.image.tenants import tenant_of
from tidelog.admin import broker_health
from tidelog.admin.replica_moves import Key, Moving, ReplicaMoves
from tidelog.admin.tenant_admin import TenantAdmin
from tidelog.admin.usage_admin import described

if TYPE_CHECKING:
    from tidelog.admin.library_client import AdminClient

Row = dict[str, Any]
Sizes = Mapping[tuple[str, int, int], int]
"""Local bytes of replicas by topic, partition and broker."""

HEALTHY, ACTIVE = "healthy", "active"


class Gathered(Struct, frozen=True):
    """What the cluster said, in the rows of the admin classes. `health`: state by broker."""

    known: bool
    usage: list[Row]
    cells: list[Row]
    tenants: list[Row]
    health: dict[int, str]
    cordoned: list[int]
    topics: list[Row]
    running: Mapping[Key, Moving]
    sizes: Sizes


def gathered(client: AdminClient) -> Gathered:
    """Raises Refused with what the cluster said, and KafkaError."""
    known, usage = described(client, tenants=False, partitions=True)
    tenants = TenantAdmin(client)
    cells = tenants.cells()
    live = [broker["broker"] for cell in cells for broker in cell["brokers"] if broker["state"] == "running"]
    moves = ReplicaMoves(client)
    return Gathered(
        known,
        usage,
        cells,
        tenants.tenants(),
        {row["broker"]: row["state"] for row in broker_health.described(client).rows},
        moves.cordoned(live),
        client.describe_topics(),
        moves.running(),
        _sizes(client.describe_log_dirs(brokers=live)),
    )


def _sizes(answers: Iterable[Row]) -> dict[tuple[str, int, int], int]:
    return {
        (topic["name"], row["partition_index"], answer["broker"]): row["partition_size"]
        for answer in answers
        for folder in answer["log_dirs"]
        for topic in folder["topics"]
        for row in topic["partitions"]
        if not row["is_future_key"]
    }


def recorded(found: Gathered, now_ms: int | None = None) -> list[str]:
    """The record's lines: the cluster, its brokers, its topics."""
    at_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    head = RecordedHead(time_ms=at_ms, known=found.known)
    tenants = {str(row["id"]): row for row in found.tenants}
    topics = sorted(found.topics, key=lambda row: str(row["name"]))
    lines: list[Line] = [head, *_brokers(found), *(_topic(row, found, tenants) for row in topics)]
    return [encoded(line) for line in lines]


def _brokers(found: Gathered) -> list[RecordedBroker]:
    by_id = {row["broker"]: row for row in found.usage}
    rows: list[RecordedBroker] = []
    for cell in found.cells:
        for broker in cell["brokers"]:
            number = broker["broker"]
            use = by_id.get(number, {})
            row = {
                "record": "broker",
                "broker": number,
                "cell": cell["cell"],
                "rack": broker["rack"],
                "standing": _standing(found, broker),
                "load": use.get("load"),
                "disk_used_bytes": use.get("disk_used_bytes", -1),
                "disk_size_bytes": use.get("disk_size_bytes", -1),
                "bandwidth": cell["bandwidth_per_broker"],
                "replicas_max": cell["replicas_max"] // len(cell["brokers"]),
                "partitions": use.get("partitions", []),
                "topics": use.get("topics", []),
            }
            rows.append(msgspec.convert(row, RecordedBroker))
    return rows


def _standing(found: Gathered, broker: Row) -> str:
    if broker["state"] != "running" or found.health.get(broker["broker"], HEALTHY) != HEALTHY:
        return "apart"
    return "closed" if broker["broker"] in found.cordoned else "live"


def _topic(topic: Row, found: Gathered, tenants: Mapping[str, Row]) -> RecordedTopic:
    name = str(topic["name"])
    tenant = tenants.get(tenant_of(name) or "")
    stays = tenant is not None and tenant["state"] != ACTIVE  # its own move, or its deletion, takes care of it
    home = None if tenant is None else tenant["target_cell"] or tenant["cell"]
    ranges = _ranges(name, found)
    partitions = []
    for row in sorted(topic["partitions"], key=lambda row: int(row["partition_index"])):
        number = row["partition_index"]
        moving = found.running.get((name, number))
        leaving = moving.removing if moving is not None else ()
        replicas = tuple(one for one in row["replica_nodes"] if one not in leaving) or tuple(row["replica_nodes"])
        in_sync = tuple(row["isr_nodes"])
        offline = row["offline_replicas"]
        is_settled = row["leader_id"] >= 0 and all(one in in_sync or one in offline for one in replicas)
        partitions.append(
            RecordedPartition(
                number,
                replicas,
                row["leader_id"],
                in_sync,
                tuple([found.sizes.get((name, number, one)) for one in replicas]),
                ranges.get(number, home),
                stays or moving is not None or not is_settled,
            )
        )
    return RecordedTopic(name, str(topic["topic_id"]).replace("-", ""), partitions)


def _ranges(name: str, found: Gathered) -> dict[int, str]:
    """The cell of each partition of a topic of which every cell has a range."""
    held = [(cell["cell"], held) for cell in found.cells for held in cell["ranges"] if held["topic"] == name]
    return {one["first"] + offset: cell for cell, one in held for offset in range(one["count"])}
