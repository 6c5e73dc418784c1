"""Asks coordinators and partition leaders about transactions, and ends them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from common.errors import ErrorCode
from tidelog.admin.admin_client import error_text
from tidelog.admin.partition_offsets import LATEST, PARTITIONS_AT_ONCE, by_leader, leaders_of, offsets_of, portions
from tidelog.admin.replica_moves import Refused
from tidelog.admin.transaction_doctor import (
    NOTHING_HELD,
    OPEN_STATES,
    Coordinated,
    Finding,
    Held,
    Opened,
    Place,
    diagnose,
)

if TYPE_CHECKING:
    from tidelog.admin.library_client import AdminClient
    from wire.messages import DescribeProducersRequest, DescribeProducersResponse, DescribeTransactionsResponse

    _State = DescribeTransactionsResponse.TransactionState
    _Producers = DescribeProducersResponse.TopicResponse.PartitionResponse

IDS_AT_ONCE = 500  # of one request
FENCING_TIMEOUT_MS = 60_000  # of the transaction that an operator's fencing never begins


class UnknownState(Refused):
    """No transaction can be in the state that a caller asked for."""


class Listed(NamedTuple):
    """A row of ListTransactions."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


def listed(
    client: AdminClient, states: Sequence[str] = (), pattern: str | None = None, longer_ms: int = -1
) -> list[Listed]:
    """Transactional ids of all coordinators. Raises UnknownState, Refused, and KafkaError."""
    from wire.messages import ListTransactionsRequest  # noqa: PLC0415

    request = ListTransactionsRequest(
        state_filters=list(states), producer_id_filters=[], duration_filter=longer_ms, transactional_id_pattern=pattern
    )
    rows: list[Listed] = []
    brokers = live_brokers(client)
    for broker, response in zip(brokers, client.send_all([(request, one) for one in brokers]), strict=True):
        if isinstance(response, Exception):
            raise response
        _check({"error_code": response.error_code})
        if response.unknown_state_filters:
            raise UnknownState(f"no such state: {', '.join(response.unknown_state_filters)}")
        rows += [
            Listed(row.transactional_id, row.producer_id, row.transaction_state, broker)
            for row in response.transaction_states
        ]
    return sorted(rows)


def described(client: AdminClient, transactional_id: str) -> Coordinated:
    """One transactional id, by its coordinator. Raises Refused if that does not know it, and KafkaError."""
    coordinator = coordinator_of(client, transactional_id)
    (row,) = _described(client, [transactional_id], coordinator)
    if row.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        raise Refused(f"broker {coordinator}, its coordinator, does not know the transactional id {transactional_id}")
    _check({"error_code": row.error_code})
    return _coordinated(row, coordinator)


def examined(
    client: AdminClient, topics: Collection[str] | None, blocked_bytes: Callable[[], Mapping[Place, int]]
) -> list[Finding]:
    """Every open transaction, of these topics or of all. `blocked_bytes` returns what the tier does not hold yet of
    each tiered partition. Raises Refused, and KafkaError."""
    coordinated = [
        _coordinated(row, coordinator)
        for coordinator, rows in groupby(sorted(listed(client, OPEN_STATES), key=_coordinator), key=_coordinator)
        for some in portions(rows, IDS_AT_ONCE)
        for row in _described(client, [one.transactional_id for one in some], coordinator)
        if row.transaction_state in OPEN_STATES and not row.error_code
    ]
    leaders = leaders_of(client, topics)
    if unseen := set(topics or ()) - {place.topic for place in leaders}:  # else a wrong name would pass for health
        raise Refused(f"{min(unseen)}: there is no such topic, or this user may not see it")
    opened = list(_opened(client, leaders))
    if topics is not None:
        coordinated = [one for one in coordinated if not one.partitions.isdisjoint(leaders)]
    asked = dict.fromkeys([*(row.place for row in opened), *(place for one in coordinated for place in one.partitions)])
    held = _held(client, asked, leaders, blocked_bytes() if asked else {})
    return diagnose(coordinated, opened, held, time.time_ns() // 1_000_000)


def fence(client: AdminClient, transactional_id: str) -> None:
    """Abort the transaction through its coordinator: the id gets a new epoch, which ends its producer. Returns when the
    coordinator has decided it. Raises Refused, and KafkaError."""
    from wire.messages import InitProducerIdRequest  # noqa: PLC0415

    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=FENCING_TIMEOUT_MS, producer_id=-1, producer_epoch=-1
    )
    response = client.send(request, coordinator_of(client, transactional_id))
    if response.error_code != ErrorCode.CONCURRENT_TRANSACTIONS:  # it is decided, and the markers are on their way
        _check({"error_code": response.error_code})


def abort_in(client: AdminClient, row: Opened) -> None:
    """Write an abort marker for a transaction that its coordinator does not know. Raises Refused, and KafkaError."""
    from wire.messages import WriteTxnMarkersRequest  # noqa: PLC0415

    marker = WriteTxnMarkersRequest.WritableTxnMarker
    topic = marker.WritableTxnMarkerTopic(name=row.place.topic, partition_indexes=[row.place.partition])
    request = WriteTxnMarkersRequest(
        markers=[
            marker(
                producer_id=row.producer_id,
                producer_epoch=row.producer_epoch,
                transaction_result=False,
                topics=[topic],
                coordinator_epoch=max(row.coordinator_epoch, 0),
            )
        ]
    )
    leader = leaders_of(client, [row.place.topic]).get(row.place, -1)
    if leader < 0:
        raise Refused(f"{row.place} has no leader")
    for answer in client.send(request, leader).markers:
        for one in answer.topics:
            for partition in one.partitions:
                _check({"error_code": partition.error_code})


def coordinator_of(client: AdminClient, transactional_id: str) -> int:
    """The broker that coordinates a transactional id. Raises Refused, and KafkaError."""
    from wire.messages import FindCoordinatorRequest  # noqa: PLC0415

    request = FindCoordinatorRequest(key=transactional_id, key_type=1, coordinator_keys=[transactional_id])
    (found,) = client.send(request).coordinators
    _check({"error_code": found.error_code, "error_message": found.error_message})
    broker: int = found.node_id
    return broker


def live_brokers(client: AdminClient) -> list[int]:
    return sorted(int(row["broker_id"]) for row in client.describe_cluster()["brokers"] if not row["is_fenced"])


def _coordinator(row: Listed) -> int:
    return row.coordinator


def _check(row: dict[str, Any]) -> None:
    if (problem := error_text(row)) is not None:
        raise Refused(problem)


def _described(client: AdminClient, ids: list[str], coordinator: int) -> list[_State]:
    from wire.messages import DescribeTransactionsRequest  # noqa: PLC0415

    return client.send(DescribeTransactionsRequest(transactional_ids=ids), coordinator).transaction_states


def _coordinated(row: _State, coordinator: int) -> Coordinated:
    return Coordinated(
        row.transactional_id,
        coordinator,
        row.transaction_state,
        row.producer_id,
        row.producer_epoch,
        row.transaction_start_time_ms,
        row.transaction_timeout_ms,
        frozenset(Place(topic.topic, index) for topic in row.topics for index in topic.partitions),
    )


def _opened(client: AdminClient, leaders: Mapping[Place, int]) -> Iterator[Opened]:
    """What the partitions' leaders have open. Partitions without an answer are left out. Each leader has one question
    at a time, and all leaders have one at once."""
    asked = [
        [(leader, some) for some in portions(places, PARTITIONS_AT_ONCE)]
        for leader, places in by_leader(leaders).items()
    ]
    for at_once in zip_longest(*asked):
        requests = [(_producers_of(places), leader) for leader, places in filter(None, at_once)]
        for answer in client.send_all(requests):
            if isinstance(answer, Exception):
                raise answer
            for topic in answer.topics:
                for partition in topic.partitions:
                    yield from _open_of(Place(topic.name, partition.partition_index), partition)


def _producers_of(places: Iterable[Place]) -> DescribeProducersRequest:
    from wire.messages import DescribeProducersRequest  # noqa: PLC0415

    topics = [
        DescribeProducersRequest.TopicRequest(name=name, partition_indexes=[place.partition for place in of])
        for name, of in groupby(places, key=lambda place: place.topic)
    ]
    return DescribeProducersRequest(topics=topics)


def _open_of(place: Place, partition: _Producers) -> Iterator[Opened]:
    for row in partition.active_producers:
        if row.current_txn_start_offset >= 0:
            yield Opened(
                place, row.producer_id, row.producer_epoch, row.coordinator_epoch, row.current_txn_start_offset,
                row.last_timestamp,
            )  # fmt: skip


def _held(
    client: AdminClient, places: Iterable[Place], leaders: Mapping[Place, int], tier: Mapping[Place, int]
) -> dict[Place, Held]:
    """What lies behind the last stable offset of these partitions."""
    wanted = {place: leaders.get(place, -1) for place in places}
    ends, stable = (offsets_of(client, wanted, LATEST, isolation) for isolation in (0, 1))
    return {
        place: NOTHING_HELD._replace(
            leader=leader,
            records_behind=ends[place] - stable[place] if place in ends and place in stable else None,
            tier_bytes=tier.get(place),
        )
        for place, leader in wanted.items()
    }
