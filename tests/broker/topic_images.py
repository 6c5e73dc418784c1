"""Metadata images with the topics that a test needs."""

from __future__ import annotations

from kraft.image.metadata import MetadataImage
from kraft.image.partitions import PartitionImage
from kraft.image.sharded_map import ShardedMap
from kraft.image.topics import TopicImage, TopicsImage


def image_of(*names: str) -> MetadataImage:
    """Topics with one partition each."""
    topics = {}
    for name in names:
        topic_id = name.encode().ljust(16)[:16]
        topics[name] = TopicImage(name, topic_id, {0: PartitionImage(topic_id, 0, (1,), (1,), 1)})
    by_id = {topic.topic_id: topic for topic in topics.values()}
    ids = {name: topic.topic_id for name, topic in topics.items()}
    return MetadataImage(topics=TopicsImage(ShardedMap(by_id), ShardedMap(ids)))
