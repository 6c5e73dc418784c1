"""What is open in partitions, why, and the end of what hangs.

A transaction is in its coordinator's state before its first batch is in a partition, and stays there until the marker
is in that partition too. So leaders are asked first, and coordinators after them: what no coordinator knows then has
ended meanwhile, or it hangs. If its leader still has it open when asked again, it hangs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, NamedTuple

from common.errors import ErrorCode
from tidelog.admin.admin_client import error_text
from tidelog.admin.partition_offsets import LATEST, PARTITIONS_AT_ONCE, by_leader, leaders_of, offsets_of, portions
from tidelog.admin.replica_moves import Refused
from tidelog.admin.transaction_admin import clients_of, hidden_from_user, known_open, look_intervals
from tidelog.admin.transaction_doctor import (
    NO_LEADER,
    NOTHING_HELD,
    Class,
    Coordinated,
    Examined,
    Held,
    Opened,
    Place,
    Unanswered,
    diagnose,
    is_past_timeout,
    reasons,
    unclaimed,
)
from tidelog.shell_words import argument

if TYPE_CHECKING:
    from tidelog.admin.library_client import AdminClient
    from wire.messages import DescribeProducersRequest, DescribeProducersResponse

    _Producers = DescribeProducersResponse.TopicResponse.PartitionResponse


class _Look(NamedTuple):
    """`doubtful`: rows that some coordinator may know which has not answered."""

    opened: list[Opened]
    coordinated: list[Coordinated]
    unanswered: list[Unanswered]
    doubtful: frozenset[Opened] = frozenset()


def examined(
    client: AdminClient, topics: Collection[str] | None, blocked_bytes: Callable[[], Mapping[Place, int]]
) -> Examined:
    """Every open transaction, of these topics or of all. `blocked_bytes` returns what the tier does not hold yet of
    each tiered partition, and raises Refused if this user cannot learn it. Raises Refused, and KafkaError."""
    leaders = leaders_of(client, topics)
    if unseen := set(topics or ()) - {place.topic for place in leaders}:  # else a wrong name would pass for health
        raise Refused(f"{min(unseen)}: there is no such topic, or this user may not see it")
    opened, silent = _opened_by_now(client, leaders)
    look = _Look(opened, *known_open(client))
    if candidates := unclaimed(look.coordinated, opened):
        look = _looked_again(client, look, candidates)
    coordinated = look.coordinated
    if topics is not None:
        coordinated = [one for one in coordinated if not one.partitions.isdisjoint(leaders)]
    asked = dict.fromkeys(
        [*(row.place for row in look.opened), *(place for one in coordinated for place in one.partitions)]
    )
    tier: Mapping[Place, int] = {}
    tier_unknown = ""
    if asked:
        try:
            tier = blocked_bytes()
        except Refused as error:
            tier_unknown = str(error)
    held = _held(client, asked, leaders, tier)
    now_ms = time.time_ns() // 1_000_000
    looks = look_intervals(client, {one.coordinator for one in coordinated if is_past_timeout(one, now_ms)})
    found = diagnose(coordinated, look.opened, held, now_ms, look.doubtful, looks)
    clients = clients_of(client, [(one.transactional_id, one.coordinator) for one in coordinated])
    found = [replace(one, client=clients.get(one.transactional_id)) for one in found]
    if tier_unknown:
        found = [replace(one, tier_bytes=None) for one in found]
    return Examined(found, tuple(dict.fromkeys([*look.unanswered, *silent])), tier_unknown)


def hanging_in(client: AdminClient, place: Place, producer_id: int) -> Opened:
    """A producer's hanging transaction in a partition. Raises Refused if it is not certain that there is one, and
    KafkaError."""
    found, unanswered, _ = examined(client, [place.topic], dict)
    for one in found:
        for row in one.open_in:
            if (row.place, row.producer_id) != (place, producer_id):
                continue
            if one.kind is Class.HANGING:
                return row
            if one.kind is Class.UNKNOWN:
                raise Refused(
                    f"it is unknown whether the transaction of producer {producer_id} in {place} hangs: "
                    f"{'; '.join(reasons(unanswered))}"
                )
            name = one.transactional_id
            raise Refused(
                f"that is {name}'s transaction, which a coordinator knows: tidelog transactions abort {argument(name)}"
            )
    for silent in unanswered:
        if silent.who == str(place):
            raise Refused(f"it is unknown what producer {producer_id} has open in {silent}")
    partitions = {one.partition for one in leaders_of(client, [place.topic])}
    if place.partition not in partitions:
        raise Refused(f"{place.topic} has no partition {place.partition}, it has {len(partitions)}")
    raise Refused(f"producer {producer_id} has no open transaction in {place}")


def abort_in(client: AdminClient, row: Opened) -> None:
    """Write an abort marker for a transaction that no coordinator knows, as `hanging_in` has just found it. Raises
    Refused, and KafkaError."""
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
                if (problem := error_text({"error_code": partition.error_code})) is not None:
                    raise Refused(problem)


def _opened_by_now(client: AdminClient, leaders: Mapping[Place, int]) -> tuple[list[Opened], list[Unanswered]]:
    """What is open in these partitions, and the partitions whose leaders do not say. Where the leader has changed, the
    new one is asked."""
    opened, refused = _opened(client, leaders)
    if refused:
        now = leaders_of(client, sorted({place.topic for place in refused}))
        leaders = {**leaders, **{place: now[place] for place in refused if place in now}}
        more, refused = _opened(client, {place: leaders[place] for place in refused if place in now})
        opened += more
    refused |= {place: NO_LEADER for place, leader in leaders.items() if leader < 0}
    return opened, [Unanswered(str(place), why) for place, why in sorted(refused.items())]


def _looked_again(client: AdminClient, first: _Look, candidates: list[Opened]) -> _Look:
    """The first look, with what became of candidates for hanging. What is open still, and was unknown to every
    coordinator in between and is so afterwards, hangs; unless a coordinator has not answered, in either look."""
    stays, lost = _still_open(client, candidates)
    again = known_open(client, {row.producer_id for row in candidates}) if stays else None
    unanswered = list(first.unanswered)
    coordinated = {one.transactional_id: one for one in first.coordinated}
    if again is not None:
        unanswered += again.unanswered
        coordinated |= {one.transactional_id: one for one in again.coordinated}
    if unclaimed(coordinated.values(), stays):
        unanswered += hidden_from_user(client)
    doubtful = [*lost, *(stays if unanswered else ())]
    # what coordinators knew, and know no more, has ended
    ended = {*candidates, *unclaimed(coordinated.values(), first.opened)}
    opened = [*(row for row in first.opened if row not in ended), *stays, *lost]
    silent = [Unanswered(str(row.place), why) for row, why in lost.items()]
    return _Look(opened, list(coordinated.values()), unanswered + silent, frozenset(doubtful))


def _still_open(client: AdminClient, candidates: Iterable[Opened]) -> tuple[list[Opened], dict[Opened, str]]:
    """Those that their leaders have open since the same offset, as these say now; and those whose leaders do not say,
    with the reason."""
    all_leaders = leaders_of(client, sorted({row.place.topic for row in candidates}))
    leaders = {row.place: all_leaders[row.place] for row in candidates if row.place in all_leaders}
    rows, refused = _opened(client, leaders)
    refused |= {place: NO_LEADER for place, leader in leaders.items() if leader < 0}
    now = {_identity(row): row for row in rows}
    stays = [now[_identity(row)] for row in candidates if _identity(row) in now]
    return stays, {row: refused[row.place] for row in candidates if row.place in refused}


def _identity(row: Opened) -> tuple[Place, int, int, int]:
    return row.place, row.producer_id, row.producer_epoch, row.start_offset


def _opened(client: AdminClient, leaders: Mapping[Place, int]) -> tuple[list[Opened], dict[Place, str]]:
    """What the partitions' leaders have open, and why some do not say. Each leader has one question at a time, and all
    leaders have one at once."""
    found, refused = list[Opened](), dict[Place, str]()
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
                    place = Place(topic.name, partition.partition_index)
                    found += _open_of(place, partition)
                    problem = error_text({"error_code": partition.error_code})
                    if problem is not None and partition.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        refused[place] = problem
    return found, refused


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
