"""Removes fenced, stopping and unregistered brokers from leadership and ISRs, in pieces. Pure.

The broker's own record comes first. From then on it is not active: clients are not sent to it, and it is neither
elected nor added to an ISR. The image's index shows the partitions that still list it, so a new active controller
continues where the last one stopped. A broker is not unfenced before the last piece, so that no partition lists it from
before while it may lead.

The first piece is in the commit of the broker's record, so small changes are one commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from kraft.batches import MetadataRecord
from kraft.controller.elections import Standing, changes_where_brokers_leave, standing_of
from kraft.controller.policy import ControllerPolicy
from kraft.features import PIECES_LEVEL, TIDELOG_VERSION
from kraft.image.delta import replayed
from kraft.image.metadata import MetadataImage
from kraft.image.partition_index import NO_PARTITIONS, PartitionKey
from kraft.records import Cause, PartitionChangeRecord
from kraft.topic_names import AUDIT_TOPIC, GROUP_TOPIC, TIER_TOPIC, TRANSACTION_TOPIC

WHOLE = 1 << 31
_FIRST_TOPICS = (GROUP_TOPIC, TRANSACTION_TOPIC, TIER_TOPIC, AUDIT_TOPIC)
"""These come first, because clients and brokers depend on them."""


def piece_of(image: MetadataImage, policy: ControllerPolicy) -> int:
    """How many partitions change in one commit: all, while nodes may run that do not support pieces."""
    return policy.piece_records_max if image.features.get(TIDELOG_VERSION, 0) >= PIECES_LEVEL else WHOLE


def with_first_piece(
    image: MetadataImage, policy: ControllerPolicy, records: list[MetadataRecord], cause: Cause
) -> list[MetadataRecord]:
    """`records`, which make a broker inactive, and the first piece of its removal."""
    return [*records, *removal_piece(replayed(image, records), policy, cause)]


def removal_piece(
    image: MetadataImage, policy: ControllerPolicy, cause: Cause | None = None
) -> list[PartitionChangeRecord]:
    """The next partitions that a broker must leave; empty if no partition lists a broker that has left.

    Without `cause`, it is derived from the broker's state in the image.
    """
    standing = standing_of(image)
    for broker_id in gone(standing):
        keys = list(islice(_places(image, standing, broker_id), piece_of(image, policy)))
        if keys:
            return changes_where_brokers_leave(image, policy, keys, cause or _cause(image, broker_id))
    return []


def is_listed(image: MetadataImage, broker_id: int) -> bool:
    """Whether a partition still lists the broker, which is not active, from before it left."""
    standing = standing_of(image)
    return next(_places(image, standing, broker_id), None) is not None


def gone(standing: Standing) -> list[int]:
    return sorted(standing.leaving | standing.unclean)


def _places(image: MetadataImage, standing: Standing, broker_id: int) -> Iterator[PartitionKey]:
    """The partitions that list the broker, each once: first those that it leads, and internal topics before all
    others."""
    index = image.topics.index
    in_sync = index.in_sync_with(broker_id) if broker_id in standing.leaving else NO_PARTITIONS
    leads = index.led_by(broker_id) if in_sync else NO_PARTITIONS
    eligible = index.eligible_with(broker_id) if broker_id in standing.unclean else NO_PARTITIONS
    first = [topic.topic_id for name in _FIRST_TOPICS if (topic := image.topics.get(name)) is not None]
    seen: dict[PartitionKey, None] = {}
    for key in chain(chain.from_iterable(in_sync.of_topic(topic_id) for topic_id in first), leads, in_sync, eligible):
        if key not in seen:
            seen[key] = None
            yield key


def _cause(image: MetadataImage, broker_id: int) -> Cause:
    broker = image.brokers.get(broker_id)
    if broker is None:
        return Cause.BROKER_UNREGISTERED
    if broker.in_controlled_shutdown:
        return Cause.CONTROLLED_SHUTDOWN
    return Cause.UNCLEAN_STOP if broker.is_unclean else Cause.BROKER_FENCED
