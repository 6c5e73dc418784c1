"""A broker's surroundings for handler tests: an image, and a controller that decides for real."""

from __future__ import annotations

import random
from types import GeneratorType
from typing import Any

from broker.coordination.groups.config import GroupConfig
from broker.coordination.groups.coordinator import GroupCoordinator
from broker.coordination.internal_topics import InternalTopics, group_topic, transaction_topic
from broker.coordination.runtime import CoordinatorRuntime, RuntimeConfig
from broker.requests.context import RequestContext, WrittenRows
from broker.requests.forwarding import Forwarder, ForwardLimits
from broker.security.session import ClientSession
from common.pacing import Pacer, at_once
from kraft.batches import MetadataRecord
from kraft.controller.policy import ControllerPolicy
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.records import (
    BrokerRegistrationChangeRecord,
    ClusterRecord,
    Endpoint,
    FeatureLevelRecord,
    RegisterBrokerRecord,
)
from kraft.topic_names import GROUP_TOPIC
from tests.broker.coordinated_partition import MemoryPartition
from tests.kraft.decisions import (
    decide_alter_configs,
    decide_alter_partition_reassignments,
    decide_create_partitions,
    decide_create_topics,
    decide_delete_topics,
    decide_elect_leaders,
    decide_incremental_alter_configs,
    decide_list_partition_reassignments,
)
from tests.virtual_time import LoopClock
from wire.apis import APIS
from wire.codec import decode_request, decode_response, encode_request, encode_response
from wire.messages import EnvelopeResponse
from wire.paced_codec import ANSWER_BYTES_MAX, RowsWriter

BROKERS = (0, 1, 2)


class BrokerWorld:
    """The observer, the channel and the controller of broker 0, of three; `lag`: the image stays behind."""

    def __init__(self, policy: ControllerPolicy | None = None) -> None:
        self.image: MetadataImage = EMPTY_IMAGE
        self.policy = policy or ControllerPolicy(num_partitions=3, default_replication_factor=2)
        self.rng = random.Random(1)
        self.failure: Exception | None = None
        self.waited: list[int] = []
        self.forwarded: list[tuple[int, int]] = []
        self.replay(ClusterRecord("cluster-1"), FeatureLevelRecord("metadata.version", 27))
        for broker_id in BROKERS:
            endpoints = (
                Endpoint("PLAINTEXT", f"host-{broker_id}", 9092 + broker_id),
                Endpoint("INTERNAL", "internal", 19092 + broker_id),
            )
            self.replay(RegisterBrokerRecord(broker_id, bytes([broker_id]) * 16, endpoints, f"rack-{broker_id}"))
            self.set_fenced(broker_id, False)
        self.forwarder = Forwarder(self, self, LoopClock(), ForwardLimits())
        self.runtime = CoordinatorRuntime(LoopClock(), RuntimeConfig(), Pacer())
        config = GroupConfig(group_initial_rebalance_delay_ms=0)
        self.coordinator = GroupCoordinator(self.runtime, config, lambda: self.image, random.Random(2))
        self.internal_topics = InternalTopics(
            [group_topic(partitions=1), transaction_topic(partitions=1)],
            lambda: self.image,
            lambda request: self.forwarder.forward(None, request),
            LoopClock(),
        )
        self.offsets = MemoryPartition(GROUP_TOPIC)

    def replay(self, *records: MetadataRecord) -> None:
        delta = MetadataDelta(self.image)
        delta.replay_all(records)
        self.image = delta.image()

    def set_fenced(self, broker_id: int, fenced: bool) -> None:
        epoch = self.image.brokers[broker_id].epoch
        self.replay(BrokerRegistrationChangeRecord(broker_id, epoch, fenced))

    # the channel and the observer ----------------------------------------------------------------------------

    async def call(self, request: Any, version: int, *, timeout_s: float, repeatable: bool = True) -> Any:
        if self.failure is not None:
            raise self.failure
        assert not repeatable  # creating twice is not creating once
        header, inner = decode_request(request.request_data)
        self.forwarded.append((header.api_key, header.version))
        decisions: dict[int, Any] = {
            19: lambda: decide_create_topics(self.image, inner, self.policy, self.rng),
            20: lambda: decide_delete_topics(self.image, inner, self.policy),
            33: lambda: decide_alter_configs(self.image, inner, self.policy),
            37: lambda: decide_create_partitions(self.image, inner, self.policy, self.rng),
            43: lambda: decide_elect_leaders(self.image, inner, self.policy),
            45: lambda: decide_alter_partition_reassignments(self.image, inner, self.policy),
            46: lambda: decide_list_partition_reassignments(self.image, inner),
            44: lambda: decide_incremental_alter_configs(self.image, inner, self.policy),
        }
        decision = decisions[header.api_key]()
        self.replay(*decision.records)
        framed = encode_response(header.api_key, header.version, header.correlation, decision.reply)
        return EnvelopeResponse(error_code=0, response_data=framed[4:], committed_offset=self.image.offset)

    async def wait_for(self, offset: int, timeout_s: float) -> bool:
        self.waited.append(offset)
        return True


def context(api: str, version: int, listener: str = "PLAINTEXT", client_id: str | None = "client") -> RequestContext:
    key = next(key for key, row in APIS.items() if row.name == api)
    session = ClientSession(listener, listener == "INTERNAL", "127.0.0.1", None)
    return RequestContext(session, key, version, 1, client_id)


def over_the_wire(version: int, request: Any) -> Any:
    """The request as a broker decodes it: with the fields of its version alone."""
    return decode_request(encode_request(request, version, 1, "client")[4:])[1]


def reply_over_the_wire(context: RequestContext, response: Any) -> Any:
    """The response as a client of that version decodes it; work is done at once."""
    if isinstance(response, GeneratorType):
        response = at_once(response)
    if isinstance(response, WrittenRows):
        writer = RowsWriter(context.api_key, context.api_version, 1, response.name, ANSWER_BYTES_MAX)
        writer.add_written(response.parts, response.count)
        at_once(writer.add(getattr(response.message, response.name)))
        framed = b"".join(writer.finished(response.message))
    else:
        framed = encode_response(context.api_key, context.api_version, 1, response)
    return decode_response(context.api_key, context.api_version, framed[4:])[1]


def versions_of(api: str) -> range:
    row = next(row for row in APIS.values() if row.name == api)
    return range(row.min_version, row.max_version + 1)
