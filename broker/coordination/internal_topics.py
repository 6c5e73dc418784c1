"""Creates internal topics on first use through the controller, one request per topic at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

from msgspec import Struct, field

from common.errors import ErrorCode, ProtocolError, error_name
from common.ports import Clock
from common.settings import declared
from common.topic_settings import TopicSettings
from kraft.image.metadata import MetadataImage
from kraft.topic_names import AUDIT_TOPIC, GROUP_TOPIC, TIER_TOPIC, TRANSACTION_TOPIC
from tiering.bucket.cluster_file import FIRST_INCARNATION
from wire.messages import CreateTopicsRequest, CreateTopicsResponse

RETRY_PAUSE_S = 0.5
LOOK_PAUSE_S = 0.02
BROKERS_AWAITED_S = 30.0
MIN_ISR = declared(TopicSettings, "min_insync_replicas").name
MAX_MESSAGE_BYTES = "1048588"  # Apache Kafka's default; `message.max.bytes` does not apply to these topics
"""How long a topic of a rebuilt cluster waits for the brokers that others are placed on: they start one by one."""

_log = logging.getLogger(__name__)

CreateTopics = Callable[[CreateTopicsRequest], Awaitable[CreateTopicsResponse]]
"""Sends the request to the controller; raises ProtocolError."""


class InternalTopic(Struct, frozen=True):
    """`exact`: the factor was set explicitly, so creation waits for that many brokers; otherwise fewer are enough.
    `min_isr` is lowered below the replicas of a topic that has fewer than `replication_factor`; 0: the topic has no
    setting of its own."""

    name: str
    partitions: int
    replication_factor: int
    exact: bool = False
    configs: Mapping[str, str] = field(default_factory=dict)
    min_isr: int = 0

    def configs_for(self, replicas: int) -> dict[str, str]:
        """The topic's settings with that many replicas."""
        if not self.min_isr:
            return dict(self.configs)
        lowered = self.min_isr if replicas >= self.replication_factor else min(self.min_isr, max(1, replicas - 1))
        return {**self.configs, MIN_ISR: str(lowered)}


def group_topic(
    partitions: int = 50, replication_factor: int = 3, segment_bytes: int = 100 << 20, *, exact: bool = False
) -> InternalTopic:
    """`__consumer_offsets` by the settings offsets.topic.…: compacted, and stored as it is written."""
    configs = {
        "cleanup.policy": "compact",
        "segment.bytes": str(segment_bytes),
        "compression.type": "producer",
        "max.message.bytes": MAX_MESSAGE_BYTES,
    }
    return InternalTopic(GROUP_TOPIC, partitions, replication_factor, exact, configs)


def transaction_topic(
    partitions: int = 50,
    replication_factor: int = 3,
    segment_bytes: int = 100 << 20,
    min_isr: int = 2,
    *,
    exact: bool = False,
) -> InternalTopic:
    """`__transaction_state` by the settings transaction.state.log.…: compacted, and stored as it is written."""
    configs = {
        "cleanup.policy": "compact",
        "segment.bytes": str(segment_bytes),
        "compression.type": "uncompressed",
        "max.message.bytes": MAX_MESSAGE_BYTES,
    }
    return InternalTopic(TRANSACTION_TOPIC, partitions, replication_factor, exact, configs, min_isr)


def tier_topic(
    partitions: int = 50, replication_factor: int = 3, segment_bytes: int = 100 << 20, *, exact: bool = False
) -> InternalTopic:
    """`__tier_state` by the settings tidelog.tier.state.…: compacted, and never tiered itself."""
    configs = {
        "cleanup.policy": "compact",
        "segment.bytes": str(segment_bytes),
        "max.message.bytes": MAX_MESSAGE_BYTES,
    }
    return InternalTopic(TIER_TOPIC, partitions, replication_factor, exact, configs)


def audit_topic(
    partitions: int = 4,
    replication_factor: int = 3,
    segment_bytes: int = 100 << 20,
    retention_ms: int = 604_800_000,
    *,
    exact: bool = False,
) -> InternalTopic:
    """`__audit` by the settings tidelog.audit.topic.…: kept for a time, and never tiered, since it is exported."""
    configs = {
        "cleanup.policy": "delete",
        "retention.ms": str(retention_ms),
        "segment.bytes": str(segment_bytes),
        "compression.type": "producer",
        "max.message.bytes": MAX_MESSAGE_BYTES,
    }
    return InternalTopic(AUDIT_TOPIC, partitions, replication_factor, exact, configs)


class Ensure(Protocol):
    """`InternalTopics`, as its users see it."""

    async def ensure(self, name: str) -> None:
        """See `InternalTopics.ensure`."""
        ...


class InternalTopics:
    """Creates each topic at most once at a time; other requests meanwhile get a retriable error."""

    def __init__(
        self,
        topics: list[InternalTopic],
        image: Callable[[], MetadataImage],
        create: CreateTopics,
        clock: Clock,
    ) -> None:
        self._topics = {topic.name: topic for topic in topics}
        self._image = image
        self._create = create
        self._clock = clock
        self._under_way: dict[str, None] = {}
        self._not_before: dict[str, float] = {}
        self._short_since: dict[str, float] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._topics

    def names(self) -> Iterable[str]:
        """The names of all topics that a broker creates on first use."""
        return self._topics

    async def ensure(self, name: str) -> None:
        """Return if `name` exists in the local image. Raises COORDINATOR_NOT_AVAILABLE while it does not."""
        if self._image().topics.get(name) is not None:
            return
        topic = self._topics[name]
        if name in self._under_way or self._clock.monotonic() < self._not_before.get(name, 0.0):
            raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self._under_way[name] = None
        try:
            await self._create_topic(topic)
        finally:
            del self._under_way[name]
        if self._image().topics.get(name) is None:
            raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    async def ensure_within(self, name: str, timeout_s: float) -> None:
        """As `ensure`, and waits for it, also if another request has begun to create the topic."""
        deadline = self._clock.monotonic() + timeout_s
        while True:
            try:
                await self.ensure(name)
            except ProtocolError:
                if self._clock.monotonic() >= deadline:
                    raise
                await asyncio.sleep(LOOK_PAUSE_S)
            else:
                return

    async def _create_topic(self, topic: InternalTopic) -> None:
        replicas = topic.replication_factor if topic.exact else self._replicas_now(topic)
        creatable = CreateTopicsRequest.CreatableTopic(
            name=topic.name,
            num_partitions=topic.partitions,
            replication_factor=replicas,
            assignments=[],
            configs=[
                CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(name=name, value=value)
                for name, value in topic.configs_for(replicas).items()
            ],
        )
        request = CreateTopicsRequest(topics=[creatable], timeout_ms=10_000, validate_only=False)
        try:
            response = await self._create(request)
        except ProtocolError as error:
            self._not_before[topic.name] = self._clock.monotonic() + RETRY_PAUSE_S
            raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE) from error
        for result in response.topics:
            if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                self._not_before[topic.name] = self._clock.monotonic() + RETRY_PAUSE_S
                fields = {"topic": topic.name, "error": error_name(result.error_code)}
                _log.warning("internal topic not created", extra=fields)
                raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _replicas_now(self, topic: InternalTopic) -> int:
        """The number of brokers, at most the factor. Raises COORDINATOR_NOT_AVAILABLE while more brokers are
        expected."""
        image = self._image()
        serving = {broker.broker_id for broker in image.unfenced_brokers()}
        if len(serving) < topic.replication_factor and image.incarnation > FIRST_INCARNATION:
            now_s = self._clock.monotonic()
            since_s = self._short_since.setdefault(topic.name, now_s)
            if now_s - since_s < BROKERS_AWAITED_S and not serving.issuperset(image.topics.index.replicas):
                self._not_before[topic.name] = now_s + RETRY_PAUSE_S
                raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return max(1, min(topic.replication_factor, len(serving)))
