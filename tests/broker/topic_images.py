"""Metadata images with the topics that a test needs."""

from __future__ import annotations

from kraft.image.metadata import MetadataImage
from kraft.image.partitions import PartitionImage
from kraft.image.sharded_map import ShardedMap
from kraft.image.topics import TopicImage, TopicsImage


def image_of(*names: str, partitions: int = 1) -> MetadataImage:
    """Topics with so many partitions each."""
    topics = {}
    for name in names:
        topic_id = name.encode().ljust(16)[:16]
        indexes = range(partitions)
        topics[name] = TopicImage(name, topic_id, {at: PartitionImage(topic_id, at, (1,), (1,), 1) for at in indexes})
    by_id = {topic.topic_id: topic for topic in topics.values()}
    ids = {name: topic.topic_id for name, topic in topics.items()}
    return MetadataImage(topics=TopicsImage(ShardedMap(by_id), ShardedMap(ids)))
