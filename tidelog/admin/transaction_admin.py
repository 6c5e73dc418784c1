"""Asks transaction coordinators what they know, and finds out whether all have answered.

A transaction hangs if no coordinator knows it. That is certain only if every one was asked: each partition of
`__transaction_state` has a leader, and led it in one epoch from before its transactions were listed to after they were
described.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from common.errors import ErrorCode
from tidelog.admin.admin_client import error_text, outcome_text
from tidelog.admin.partition_offsets import LATEST, offset_requests, offsets_in, portions
from tidelog.admin.replica_moves import Refused
from tidelog.admin.transaction_doctor import (
    LOOK_INTERVAL,
    NO_LEADER,
    OPEN_STATES,
    STATE_TOPIC,
    STATES,
    Coordinated,
    Place,
    ProducerClient,
    Unanswered,
)

if TYPE_CHECKING:
    from tidelog.admin.library_client import AdminClient
    from wire.messages import (
        DescribeTransactionsResponse,
        ListTransactionsRequest,
        ListTransactionsResponse,
        MetadataResponse,
    )

    _State = DescribeTransactionsResponse.TransactionState

IDS_AT_ONCE = 500  # of one request
FENCING_TIMEOUT_MS = 1
"""Of the transaction that an operator's fencing never begins. Each `transaction.max.timeout.ms` allows it."""

_BROKER = 4  # Kafka's number of the resource type
_NOT_SHOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


class UnknownState(Refused):
    """No transaction can be in the state that a caller asked for."""


class UnknownPattern(Refused):
    """Brokers do not take the pattern that a caller asked for."""


class Fenced(Enum):
    """What an operator's fencing of a transactional id came to."""

    ABORTED = "aborted"
    COMMITTED = "its producer had committed the transaction before the abort came"
    NOTHING_OPEN = "no transaction was open any more; its producer was fenced all the same, and must begin again"
    UNKNOWN = "the transaction has ended; whether it was aborted or committed before is unknown"


_OUTCOMES = {
    "PrepareAbort": Fenced.ABORTED,
    "CompleteAbort": Fenced.ABORTED,
    "PrepareEpochFence": Fenced.ABORTED,
    "PrepareCommit": Fenced.COMMITTED,
    "CompleteCommit": Fenced.COMMITTED,
}


class Known(NamedTuple):
    """Open transactions that coordinators know, and what was not answered: others may be there."""

    coordinated: list[Coordinated]
    unanswered: list[Unanswered]


class _Keeper(NamedTuple):
    """The leader of a partition of `__transaction_state`; -1 if there is none."""

    broker: int
    leader_epoch: int


class Listed(NamedTuple):
    """A row of ListTransactions."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


def listed(
    client: AdminClient, states: Sequence[str] = (), pattern: str | None = None, longer_ms: int = -1
) -> list[Listed]:
    """Transactional ids of all coordinators. Raises UnknownState, UnknownPattern, Refused, and KafkaError."""
    request = _listing(states, pattern=pattern, longer_ms=longer_ms)
    rows: list[Listed] = []
    brokers = live_brokers(client)
    for broker, response in zip(brokers, client.send_all([(request, one) for one in brokers]), strict=True):
        if isinstance(response, Exception):
            raise response
        if response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION:
            raise UnknownPattern(f"{pattern!r:.80} is no expression of RE2, or too large a one")
        _check({"error_code": response.error_code})
        if response.unknown_state_filters:
            unknown = ", ".join(response.unknown_state_filters)
            raise UnknownState(f"no such state: {unknown}; states are {', '.join(STATES)}")
        rows += _rows_of(response.transaction_states, broker)
    return sorted(rows)


def described(client: AdminClient, transactional_id: str) -> Coordinated:
    """One transactional id, by its coordinator. Raises Refused if that does not know it, and KafkaError."""
    coordinator = coordinator_of(client, transactional_id)
    (row,) = _described(client, [transactional_id], coordinator)
    if row.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        raise Refused(f"broker {coordinator}, its coordinator, does not know the transactional id {transactional_id}")
    _check({"error_code": row.error_code})
    return _coordinated(row, coordinator)


def known_open(client: AdminClient, producer_ids: Collection[int] = ()) -> Known:
    """Of these producers, or of all. Raises KafkaError."""
    keepers, unanswered = _keepers(client)
    led = _led(client, keepers)
    brokers = sorted({*live_brokers(client), *(one.broker for one in keepers.values() if one.broker >= 0)})
    rows = list[Listed]()
    answers = client.send_all([(_listing(OPEN_STATES, producer_ids), one) for one in brokers])
    for broker, answer in zip(brokers, answers, strict=True):
        if isinstance(answer, Exception):
            unanswered.append(_silent(broker, answer))
        elif answer.error_code:
            unanswered.append(_refusing(broker, answer.error_code))
        else:
            rows += _rows_of(answer.transaction_states, broker)
    coordinated, undescribed = _described_open(client, rows)
    led &= _led(client, keepers)
    for place, keeper in sorted(keepers.items()):
        if place not in led:
            why = NO_LEADER if keeper.broker < 0 else f"its leader, broker {keeper.broker}, changes or does not answer"
            unanswered.append(Unanswered(str(place), why))
    return Known(coordinated, unanswered + undescribed)


def hidden_from_user(client: AdminClient) -> list[Unanswered]:
    """What this user may not see of coordinators. They leave that out of what they list, so a transaction that they
    know would pass for one that they do not. Raises KafkaError."""
    from wire.messages import DescribeTransactionsRequest  # noqa: PLC0415

    found = list[Unanswered]()
    topic = _state_topic(client)
    # brokers call the topic internal also while there is none; a tenant's topic of that name is not
    if topic is None or topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED or not topic.is_internal:
        found.append(Unanswered(STATE_TOPIC, "this user may not see it"))
    request = DescribeTransactionsRequest(transactional_ids=[uuid.uuid4().hex])  # any: the right to all covers it
    (row,) = client.send(request).transaction_states
    if row.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        found.append(Unanswered("transactional ids", "this user may not see all of them"))
    return found


def fence(client: AdminClient, transactional_id: str) -> Fenced:
    """Abort the transaction through its coordinator, as Apache Kafka's `forceTerminateTransaction` does: the id gets a
    new epoch, which ends its producer. Returns when the coordinator has decided it. Raises Refused, and KafkaError.

    If the id has no open transaction, its producer is fenced all the same: the protocol has no request that aborts a
    transaction and does nothing where none is open.
    """
    from wire.messages import InitProducerIdRequest  # noqa: PLC0415

    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=FENCING_TIMEOUT_MS, producer_id=-1, producer_epoch=-1
    )
    coordinator = coordinator_of(client, transactional_id)
    response = client.send(request, coordinator)
    if not response.error_code:
        return Fenced.NOTHING_OPEN
    if response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE:
        raise Refused(
            f"broker {coordinator} coordinates {transactional_id}, and cannot write {STATE_TOPIC} now. Look whether "
            f"enough replicas are in sync (`tidelog topics describe {STATE_TOPIC}`), and whether a disk is full "
            "(`tidelog doctor`); then try again"
        )
    if response.error_code != ErrorCode.CONCURRENT_TRANSACTIONS:
        _check({"error_code": response.error_code})
    try:  # it is decided, by this or by its producer just before, and the markers are on their way
        return _OUTCOMES.get(described(client, transactional_id).state, Fenced.UNKNOWN)
    except Refused:
        return Fenced.UNKNOWN


def clients_of(client: AdminClient, coordinators: Iterable[tuple[str, int]]) -> dict[str, ProducerClient]:
    """Which clients produce, by transactional id, of pairs of such an id and its coordinator; without those that the
    coordinator does not know, or does not tell this user."""
    from wire.messages import DescribeTransactionClientsRequest  # noqa: PLC0415

    requests = [
        (DescribeTransactionClientsRequest(transactional_ids=[name for name, _ in some]), broker)
        for broker, of in groupby(sorted(coordinators, key=_second), key=_second)
        for some in portions(of, IDS_AT_ONCE)
    ]
    found = dict[str, ProducerClient]()
    for answer in client.send_all(requests):
        if not isinstance(answer, Exception):
            found |= {row.transactional_id: ProducerClient(row.client_id, row.client_host) for row in answer.clients}
    return found


def look_intervals(client: AdminClient, brokers: Iterable[int]) -> dict[int, int]:
    """How often each of these coordinators looks for transactions past their timeout, in milliseconds; without those
    that do not say it to this user."""
    from wire.messages import DescribeConfigsRequest  # noqa: PLC0415

    resource = DescribeConfigsRequest.DescribeConfigsResource
    asked = [
        (
            DescribeConfigsRequest(
                resources=[
                    resource(resource_type=_BROKER, resource_name=str(broker), configuration_keys=[LOOK_INTERVAL])
                ]
            ),
            broker,
        )
        for broker in sorted(brokers)
    ]
    found = dict[int, int]()
    for (_, broker), answer in zip(asked, client.send_all(asked), strict=True):
        if isinstance(answer, Exception):
            continue
        for row in (one for result in answer.results for one in result.configs):
            if row.name == LOOK_INTERVAL and row.value:
                found[broker] = int(row.value)
    return found


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


def _second(pair: tuple[str, int]) -> int:
    return pair[1]


def _coordinator(row: Listed) -> int:
    return row.coordinator


def _check(row: dict[str, Any]) -> None:
    if (problem := error_text(row)) is not None:
        raise Refused(problem)


def _described(client: AdminClient, ids: list[str], coordinator: int) -> list[_State]:
    from wire.messages import DescribeTransactionsRequest  # noqa: PLC0415

    return client.send(DescribeTransactionsRequest(transactional_ids=ids), coordinator).transaction_states


def _listing(
    states: Sequence[str], producer_ids: Collection[int] = (), pattern: str | None = None, longer_ms: int = -1
) -> ListTransactionsRequest:
    from wire.messages import ListTransactionsRequest  # noqa: PLC0415

    return ListTransactionsRequest(
        state_filters=list(states),
        producer_id_filters=sorted(producer_ids),
        duration_filter=longer_ms,
        transactional_id_pattern=pattern,
    )


def _rows_of(rows: Iterable[ListTransactionsResponse.TransactionState], broker: int) -> Iterator[Listed]:
    return (Listed(row.transactional_id, row.producer_id, row.transaction_state, broker) for row in rows)


def _described_open(client: AdminClient, rows: Iterable[Listed]) -> tuple[list[Coordinated], list[Unanswered]]:
    """Those that are open still, and what coordinators do not say of them. One that another coordinator describes, to
    which it has moved, is answered; one that is gone has ended."""
    from wire.messages import DescribeTransactionsRequest  # noqa: PLC0415

    asked = [
        (coordinator, [one.transactional_id for one in some])
        for coordinator, of in groupby(sorted(rows, key=_coordinator), key=_coordinator)
        for some in portions(of, IDS_AT_ONCE)
    ]
    requests = [(DescribeTransactionsRequest(transactional_ids=ids), coordinator) for coordinator, ids in asked]
    found = dict[str, Coordinated | None]()
    failed = dict[str, Unanswered]()
    for (coordinator, ids), answer in zip(asked, client.send_all(requests), strict=True):
        if isinstance(answer, Exception):
            failed |= dict.fromkeys(ids, _silent(coordinator, answer))
            continue
        for row in answer.transaction_states:
            if not row.error_code and row.transaction_state in OPEN_STATES:
                found[row.transactional_id] = _coordinated(row, coordinator)
            elif not row.error_code:
                found.setdefault(row.transactional_id)
            elif row.error_code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                failed[row.transactional_id] = _refusing(coordinator, row.error_code)
    unanswered = dict.fromkeys(why for name, why in failed.items() if name not in found)
    return [one for one in found.values() if one is not None], list(unanswered)


def _state_topic(client: AdminClient) -> MetadataResponse.MetadataResponseTopic | None:
    from wire.messages import MetadataRequest  # noqa: PLC0415

    asked = [MetadataRequest.MetadataRequestTopic(name=STATE_TOPIC)]
    answer = client.send(MetadataRequest(topics=asked, allow_auto_topic_creation=False))
    return next((topic for topic in answer.topics if topic.name == STATE_TOPIC), None)


def _keepers(client: AdminClient) -> tuple[dict[Place, _Keeper], list[Unanswered]]:
    """Of the partitions of `__transaction_state` that this user may see; `hidden_from_user` says whether it may."""
    topic = _state_topic(client)
    if topic is None or topic.error_code in _NOT_SHOWN:
        return {}, []
    if (problem := error_text({"error_code": topic.error_code})) is not None:
        return {}, [Unanswered(STATE_TOPIC, problem)]
    rows = {
        Place(STATE_TOPIC, one.partition_index): _Keeper(one.leader_id, one.leader_epoch) for one in topic.partitions
    }
    return rows, []


def _led(client: AdminClient, keepers: Mapping[Place, _Keeper]) -> set[Place]:
    """The partitions whose leaders say that they lead them in these epochs."""
    leaders = {place: one.broker for place, one in keepers.items()}
    epochs = {place: one.leader_epoch for place, one in keepers.items()}
    answers = client.send_all(offset_requests(leaders, LATEST, epochs=epochs))
    return set(offsets_in(answer for answer in answers if not isinstance(answer, Exception)))


def _silent(broker: int, error: Exception) -> Unanswered:
    return Unanswered(f"broker {broker}", outcome_text(str(error)))


def _refusing(broker: int, code: int) -> Unanswered:
    return Unanswered(f"broker {broker}", error_text({"error_code": code}) or "")


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
