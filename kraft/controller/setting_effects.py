"""What partitions owe to a change of `min.insync.replicas` or of who may be elected. Pure.

ELRs that were made under another `min.insync.replicas` prove nothing any more. They are cleared before the setting
changes, or with it: were they cleared after it, an election in between could take one at its word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Any

from common.decision import Decision
from kraft.controller.departures import piece_of
from kraft.controller.elections import changes_where_leaders_lack, changes_where_min_isr_changes
from kraft.controller.policy import (
    MIN_ISR,
    UNCLEAN_ELECTION,
    ControllerPolicy,
    min_insync_replicas,
    unclean_leader_election,
)
from kraft.controller.reassignment import changes_where_moves_may_end
from kraft.image.delta import replayed
from kraft.image.metadata import MetadataImage
from kraft.image.partition_index import PartitionKey, PartitionSet
from kraft.records import Cause, ConfigRecord, MetadataRecord, ResourceType


def with_effects(
    image: MetadataImage, records: list[MetadataRecord], reply: Any, policy: ControllerPolicy
) -> Decision[MetadataRecord, Any]:
    """Commits `records`, which change settings, with what follows for partitions; what is too much for one commit comes
    before it, or in pieces after it (`kraft.controller.piecework`)."""
    concerned = [r for r in records if isinstance(r, ConfigRecord) and r.name in (MIN_ISR, UNCLEAN_ELECTION)]
    if not concerned:
        return Decision(reply, records)
    piece, changes = piece_of(image, policy), _Changes(image, replayed(image, records), concerned, policy)
    unsettled = list(islice(changes.of(image.topics.index.unsettled, changes.min_isr), piece + 1))
    cleared: list[MetadataRecord] = list(changes_where_min_isr_changes(image, unsettled[:piece]))
    if len(unsettled) > piece:
        return Decision(reply, cleared, again=True)
    after = replayed(image, cleared + records)
    leaderless = islice(changes.of(after.topics.index.leaderless, changes.either), piece)
    elected = list(changes_where_leaders_lack(after, policy, leaderless, Cause.REQUESTED_ELECTION))
    after = replayed(after, elected)
    moving = islice(changes.of(after.topics.index.moving, changes.min_isr), piece)
    return Decision(reply, [*cleared, *records, *elected, *changes_where_moves_may_end(after, policy, moving)])


class _Changes:
    """For which topics the changed settings are others than before."""

    def __init__(
        self, before: MetadataImage, after: MetadataImage, concerned: list[ConfigRecord], policy: ControllerPolicy
    ) -> None:
        self._before = before
        self._after = after
        self._policy = policy
        self._everywhere = any(record.resource_type is ResourceType.BROKER for record in concerned)
        self._named = dict.fromkeys(record.resource_name for record in concerned)

    def of(self, partitions: PartitionSet, differs: Callable[[str], bool]) -> Iterator[PartitionKey]:
        """Those of `partitions` whose topics `differs` is true for."""
        topics = self._after.topics
        if not self._everywhere:
            named = [
                topic.topic_id for name in self._named if differs(name) and (topic := topics.get(name)) is not None
            ]
            return chain.from_iterable(partitions.of_topic(topic_id) for topic_id in named)
        known: dict[bytes, bool] = {}

        def concerns(key: PartitionKey) -> bool:
            found = known.get(key[0])
            if found is None:
                found = known[key[0]] = differs(topics.by_id[key[0]].name)
            return found

        return filter(concerns, partitions)

    def min_isr(self, name: str) -> bool:
        before, after, policy = self._before, self._after, self._policy
        return min_insync_replicas(before, name, policy) != min_insync_replicas(after, name, policy)

    def either(self, name: str) -> bool:
        """Also where unclean elections are allowed from now on."""
        before, after, policy = self._before, self._after, self._policy
        relaxed = unclean_leader_election(after, name, policy) and not unclean_leader_election(before, name, policy)
        return relaxed or self.min_isr(name)
