"""Groups: the list, one group's members and lag, and what can be done with it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from common.errors import ProtocolError
from console.access.trouble import EXPECTED, Trouble, trouble_of
from console.queries.cluster import cluster
from console.queries.record_scan import fetch
from console.queries.topics import leaders_and_id
from records.batch import iterate_batches
from records.record import decode_records
from tidelog.admin.admin_client import outcome_text
from tidelog.admin.group_lag import Behind, lags
from tidelog.admin.library_client import AdminClient
from tidelog.admin.replica_moves import Refused
from tidelog.admin.transaction_doctor import Place
from wire.messages import ListGroupsRequest

KEY, FRESH_S, STALE_S = "groups", 5.0, 60.0
FIRST_BYTES = 4_096
INFLATED_BYTES_MAX = 64 << 20
TIMES_MAX = 200  # partitions of which the time is looked up


class GroupLine(NamedTuple):
    name: str
    state: str
    kind: str
    protocol: str


class Groups(NamedTuple):
    """`silent`: why brokers did not list theirs."""

    lines: Sequence[GroupLine]
    silent: Sequence[str]


class Member(NamedTuple):
    member_id: str
    client_id: str
    host: str
    instance: str
    assigned: Mapping[str, Sequence[int]]

    @property
    def partitions(self) -> int:
        return sum(map(len, self.assigned.values()))


class LagLine(NamedTuple):
    """One partition. `behind_ms` is None while it is unknown."""

    place: Place
    committed: int
    end: int | None
    lag: int | None
    behind_ms: int | None
    member: str


class Group(NamedTuple):
    name: str
    state: str
    assignor: str
    members: Sequence[Member]
    lags: Sequence[LagLine]

    @property
    def lag(self) -> int:
        return sum(one.lag or 0 for one in self.lags)


def groups(client: AdminClient) -> Groups:
    """Raises KafkaError if the brokers cannot be listed."""
    found, silent = dict[str, GroupLine](), list[str]()
    for broker in cluster(client).live:
        try:
            answer = client.send(ListGroupsRequest(states_filter=[], types_filter=[]), broker)
        except EXPECTED as error:
            silent.append(f"broker {broker}: {trouble_of(error)}")
            continue
        if answer.error_code:
            silent.append(f"broker {broker}: error {answer.error_code}")
        for row in answer.groups:
            kind = row.group_type or "classic"
            found[row.group_id] = GroupLine(row.group_id, row.group_state, kind, row.protocol_type)
    return Groups(sorted(found.values()), silent)


def lag_of(client: AdminClient, names: Sequence[str]) -> dict[str, int | None]:
    """Of each group in all partitions; None if no leader answered. Groups without commits have none."""
    found: dict[str, int | None] = {}
    for name, rows in groupby(lags(client, names), key=lambda row: row.group):
        known = [row.lag for row in rows if row.lag is not None]
        found[name] = sum(known) if known else None
    return found


def group(client: AdminClient, name: str) -> Group:
    """Raises Trouble if there is no such group, and KafkaError."""
    described = client.describe_groups([name])[name]
    if described["error"]:
        raise Trouble(outcome_text(str(described["error"])))
    members = [_member(row) for row in described["members"]]
    owners = {
        Place(topic, one): member.client_id or member.member_id
        for member in members
        for topic, of in member.assigned.items()
        for one in of
    }
    rows = lags(client, [name])
    if described["group_state"] == "Dead" and not rows:
        raise Trouble(f"there is no group {name}")
    times = first_times(client, [row for row in rows if row.lag][:TIMES_MAX])
    now_ms = time.time_ns() // 1_000_000
    lines = [_lag_line(row, times, now_ms, owners.get(row.place, "")) for row in rows]
    return Group(name, str(described["group_state"]), str(described["protocol_data"] or ""), sorted(members), lines)


def first_times(client: AdminClient, rows: Sequence[Behind]) -> dict[Place, int]:
    """When the first record was written that a group has not read, of partitions that answer."""
    found: dict[Place, int] = {}
    for topic, of in groupby(sorted(rows, key=lambda row: row.place), key=lambda row: row.place.topic):
        at = {row.place.partition: row.committed for row in of}
        try:
            known, topic_id = leaders_and_id(client, topic)
        except (*EXPECTED, Trouble):
            continue
        by_leader: dict[int, dict[int, int]] = {}
        for partition, offset in at.items():
            by_leader.setdefault(known.get(partition, -1), {})[partition] = offset
        for leader, places in by_leader.items():
            if leader < 0:
                continue
            try:
                answer = client.send(fetch(topic, topic_id, places, 0, bytes_max=FIRST_BYTES), leader)
            except EXPECTED:
                continue
            for response in answer.responses:
                for row in response.partitions:
                    moment = _first_time(row.records or b"", places[row.partition_index])
                    if moment is not None:
                        found[Place(topic, row.partition_index)] = moment
    return found


def delete(client: AdminClient, name: str) -> None:
    """Raises Refused and KafkaError."""
    outcome = client.delete_groups([name])[name]
    if outcome != "OK":
        raise Refused(outcome_text(str(outcome)))


def _first_time(data: bytes, offset: int) -> int | None:
    view = memoryview(data)
    try:
        for at, header in iterate_batches(view, 0, len(view)):
            if header.last_offset >= offset and not header.is_control:
                records = decode_records(view, at, header.size, inflated_bytes_max=INFLATED_BYTES_MAX)
                return next((one.timestamp for one in records if one.offset >= offset), header.max_timestamp)
    except ProtocolError:
        return None
    return None


def _lag_line(row: Behind, times: Mapping[Place, int], now_ms: int, member: str) -> LagLine:
    first = times.get(row.place)
    behind_ms = 0 if row.lag == 0 else None if first is None or first < 0 else max(0, now_ms - first)
    return LagLine(row.place, row.committed, row.end, row.lag, behind_ms, member)


def _member(row: dict[str, Any]) -> Member:
    assignment = row["member_assignment"]
    listed = assignment.get("assigned_partitions", []) if isinstance(assignment, dict) else []
    assigned = {str(one["topic"]): sorted(one["partitions"]) for one in listed}
    return Member(row["member_id"], row["client_id"], row["client_host"], row["group_instance_id"] or "", assigned)
