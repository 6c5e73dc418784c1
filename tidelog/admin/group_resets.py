"""Moving a group's committed offsets over an admin client: what a target means for it, and doing it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidelog.admin.offset_reset import LISTED, TIME, Move, Target, chosen, planned
from tidelog.admin.partition_offsets import EARLIEST, LATEST, leaders_of, offsets_of
from tidelog.admin.transaction_doctor import Place

if TYPE_CHECKING:
    from tidelog.admin.library_client import AdminClient


def moves_of(
    client: AdminClient,
    group: str,
    target: Target,
    wanted: Sequence[tuple[str, list[int] | None]],
    *,
    all_topics: bool,
) -> list[Move]:
    """A move of each partition of these topics, or of all that the group has committed in.

    Raises BadReset if a topic or partition is not there or does not answer, and KafkaError.
    """
    found = client.list_group_offsets({group: None})[group]
    current = {Place(one.topic, one.partition): int(row.offset) for one, row in found.items()}
    if target.kind == LISTED:
        wanted = [(place.topic, [place.partition]) for place in target.listed]
    names = {place.topic for place in current} if all_topics else {name for name, _ in wanted}
    leaders = leaders_of(client, sorted(names)) if names else {}
    places = chosen(wanted, leaders, current if all_topics else None)
    asked = {place: leaders[place] for place in places}
    begins, ends = offsets_of(client, asked, EARLIEST), offsets_of(client, asked, LATEST)
    at_time = offsets_of(client, asked, target.number) if target.kind == TIME else {}
    return planned(target, places, current, begins, ends, at_time)


def move(client: AdminClient, group: str, moves: Sequence[Move]) -> list[str]:
    """What was refused, a text for each partition. Raises KafkaError."""
    from kafka.errors import NoError  # noqa: PLC0415
    from kafka.structs import OffsetAndMetadata, TopicPartition  # noqa: PLC0415

    wanted = {TopicPartition(*one.place): OffsetAndMetadata(one.new, "", None) for one in moves}
    return [
        f"{one.topic}-{one.partition}: {error.message}"
        for one, error in client.alter_group_offsets(group, wanted).items()
        if error is not NoError
    ]
