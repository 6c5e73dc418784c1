"""Brokers and controllers, and what brokers report of their load."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from tidelog.admin.library_client import AdminClient
from tidelog.admin.usage_admin import described


class BrokerLine(NamedTuple):
    broker: int
    address: str
    rack: str
    is_fenced: bool


class Cluster(NamedTuple):
    """`controller`: the id that clients send changes to."""

    cluster_id: str
    brokers: Sequence[BrokerLine]
    controller: int

    @property
    def live(self) -> list[int]:
        return [one.broker for one in self.brokers if not one.is_fenced]


class ControllerLine(NamedTuple):
    """`behind`: records of the metadata log that it lacks; None is unknown. `silent_ms`: since it last fetched."""

    controller: int
    is_leader: bool
    behind: int | None
    silent_ms: int | None


class Usage(NamedTuple):
    """Of each broker by its id, and of all. A rate is None while it is unknown."""

    brokers: dict[int, dict[str, Any]]
    in_rate: float | None
    out_rate: float | None
    request_rate: float | None
    at_s: float


def cluster(client: AdminClient) -> Cluster:
    """Raises KafkaError."""
    found = client.describe_cluster()
    lines = [
        BrokerLine(int(row["broker_id"]), f"{row['host']}:{row['port']}", row["rack"] or "", bool(row["is_fenced"]))
        for row in found["brokers"]
    ]
    return Cluster(str(found["cluster_id"]), sorted(lines), int(found["controller_id"]))


def controllers(client: AdminClient) -> list[ControllerLine]:
    """Raises KafkaError."""
    ((quorum,),) = [topic["partitions"] for topic in client.describe_metadata_quorum()["topics"]]
    leader, now_ms = int(quorum["leader_id"]), time.time_ns() // 1_000_000
    voters = quorum["current_voters"]
    end = max((int(row["log_end_offset"]) for row in voters), default=-1)
    return sorted(_controller(row, leader, end, now_ms) for row in voters)


def _controller(row: dict[str, Any], leader: int, end: int, now_ms: int) -> ControllerLine:
    at, heard = int(row["log_end_offset"]), int(row["last_fetch_timestamp"])
    is_leader = row["replica_id"] == leader
    silent_ms = 0 if is_leader else None if heard < 0 else max(0, now_ms - heard)
    return ControllerLine(int(row["replica_id"]), is_leader, None if at < 0 else max(0, end - at), silent_ms)


def usage(client: AdminClient) -> Usage:
    """Raises Refused and KafkaError."""
    _, rows = described(client, tenants=False, partitions=False)
    return Usage(
        {int(row["broker"]): row for row in rows},
        _sum(rows, "in_rate"),
        _sum(rows, "out_rate"),
        _sum(rows, "request_rate"),
        time.time(),
    )


def _sum(rows: Sequence[dict[str, Any]], name: str) -> float | None:
    known = [float(row[name]) for row in rows if row[name] is not None]
    return sum(known) if known else None
