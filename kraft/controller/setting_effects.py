"""Consequences for partitions of a change of `min.insync.replicas` or unclean elections. No I/O.

ELRs from another `min.insync.replicas` prove nothing any more. They are cleared before the setting changes, or with it;
otherwise an election in between could rely on one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from common.decision import Decision
from common.pacing import Work
from kraft.batches import MetadataRecord
from kraft.controller.broker_removal import piece_of
from kraft.controller.elections import CHANGE_COST, changes_where_leaders_lack, changes_where_min_isr_changes
from kraft.controller.policy import (
    MIN_ISR,
    UNCLEAN_ELECTION,
    ControllerPolicy,
    min_insync_replicas,
    unclean_leader_election,
)
from kraft.controller.reassignment import changes_where_moves_may_end
from kraft.image.delta import replaying_all
from kraft.image.metadata import MetadataImage
from kraft.image.partition_index import PartitionKey, PartitionSet
from kraft.records import Cause, ConfigRecord, ResourceType

R = TypeVar("R")

LOOKS_PER_YIELD = 100  # partitions, each of which may be of another topic


def with_effects(
    image: MetadataImage, records: list[MetadataRecord], reply: R, policy: ControllerPolicy
) -> Work[Decision[MetadataRecord, R]]:
    """The commit of `records`, which change settings, with the consequences for partitions. What is too much for one
    commit comes before it, or in pieces after it (`kraft.controller.piecework`)."""
    concerned = [r for r in records if isinstance(r, ConfigRecord) and r.name in (MIN_ISR, UNCLEAN_ELECTION)]
    yield len(records)
    if not concerned:
        return Decision(reply, records)
    piece = piece_of(image, policy)
    changes = _Changes(image, (yield from replaying_all(image, records)), concerned, policy)
    unsettled = yield from _first(changes.of(image.topics.index.unsettled, changes.min_isr), piece + 1)
    cleared: list[MetadataRecord] = list(changes_where_min_isr_changes(image, unsettled[:piece]))
    yield len(cleared) * CHANGE_COST
    if len(unsettled) > piece:
        return Decision(reply, cleared, again=True)
    after = yield from replaying_all(image, cleared + records)
    leaderless = yield from _first(changes.of(after.topics.index.leaderless, changes.either), piece)
    elected = list(changes_where_leaders_lack(after, policy, leaderless, Cause.REQUESTED_ELECTION))
    yield len(leaderless) * CHANGE_COST
    after = yield from replaying_all(after, list(elected))
    moving = yield from _first(changes.of(after.topics.index.moving, changes.min_isr), piece)
    yield len(moving) * CHANGE_COST
    return Decision(reply, [*cleared, *records, *elected, *changes_where_moves_may_end(after, policy, moving)])


def _first(keys: Iterator[tuple[PartitionKey, bool]], most: int) -> Work[list[PartitionKey]]:
    """The first of the keys that are marked as concerned."""
    found: list[PartitionKey] = []
    for number, (key, is_concerned) in enumerate(keys, 1):
        if is_concerned:
            found.append(key)
            if len(found) == most:
                break
        if number % LOOKS_PER_YIELD == 0:
            yield LOOKS_PER_YIELD
    return found


class _Changes:
    """The topics whose effective settings change."""

    def __init__(
        self, before: MetadataImage, after: MetadataImage, concerned: list[ConfigRecord], policy: ControllerPolicy
    ) -> None:
        self._before = before
        self._after = after
        self._policy = policy
        self._named = {record.resource_name: record.resource_type for record in concerned}
        self._everywhere = ResourceType.BROKER in self._named.values()

    def of(self, partitions: PartitionSet, differs: Callable[[str], bool]) -> Iterator[tuple[PartitionKey, bool]]:
        """`partitions` whose topics may be concerned, each with `differs` of its topic."""
        topics = self._after.topics
        if not self._everywhere:
            for name in self._named:
                topic = topics.get(name)
                if topic is not None and differs(name):
                    yield from ((key, True) for key in partitions.of_topic(topic.topic_id))
                elif topic is not None:
                    yield (topic.topic_id, 0), False
            return
        known: dict[bytes, bool] = {}
        for key in partitions:
            found = known.get(key[0])
            if found is None:
                found = known[key[0]] = differs(topics.by_id[key[0]].name)
            yield key, found

    def min_isr(self, name: str) -> bool:
        before, after, policy = self._before, self._after, self._policy
        return min_insync_replicas(before, name, policy) != min_insync_replicas(after, name, policy)

    def either(self, name: str) -> bool:
        """Also true if unclean elections become allowed."""
        before, after, policy = self._before, self._after, self._policy
        relaxed = unclean_leader_election(after, name, policy) and not unclean_leader_election(before, name, policy)
        return relaxed or self.min_isr(name)
