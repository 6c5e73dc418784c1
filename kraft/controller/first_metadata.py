"""The first records of a cluster, new or rebuilt. No I/O."""

from __future__ import annotations

import random
from itertools import islice

from common.identifiers import random_uuid, uuid_text
from common.pacing import Work
from kraft.batches import MetadataRecord
from kraft.features import INITIAL_LEVELS
from kraft.image.metadata import MetadataImage
from kraft.image.snapshot import snapshot_records
from kraft.records import ClusterRecord, FeatureLevelRecord, PartitionRecord, TopicRecord

_STRETCH = 100  # records between two yields
_RECORD_COST = 3


def first_records(
    image: MetadataImage, rebuilt: MetadataImage | None, rng: random.Random
) -> Work[list[MetadataRecord]]:  # fmt: skip
    """The records that create the cluster in `image`, which has no cluster id yet.

    The id comes last: no broker registers before it exists, and a controller that finds only part of the rest,
    committed by its predecessor, adds what is missing.
    """
    if rebuilt is None or rebuilt.cluster_id is None:
        levels = [FeatureLevelRecord(name, level) for name, level in INITIAL_LEVELS.items()]
        return [*levels, ClusterRecord(uuid_text(random_uuid(rng)))]
    records: list[MetadataRecord] = []
    target = snapshot_records(rebuilt)
    while some := list(islice(target, _STRETCH)):
        records += [record for record in some if not _is_there(image, record)]
        yield len(some) * _RECORD_COST
    records.append(ClusterRecord(rebuilt.cluster_id, rebuilt.incarnation))
    return records


def _is_there(image: MetadataImage, record: MetadataRecord) -> bool:
    if isinstance(record, TopicRecord):
        return image.topics.get_by_id(record.topic_id) is not None
    if isinstance(record, PartitionRecord):
        return image.partition(record.topic_id, record.partition) is not None
    return isinstance(record, ClusterRecord)
