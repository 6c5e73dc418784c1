"""RestoreTopic (10002): a topic whose records are already in the tier, under a given id. No I/O."""

from __future__ import annotations

import random

from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from common.identifiers import ZERO_UUID
from common.pacing import Work
from kraft.batches import MetadataRecord
from kraft.controller.configs import check_together
from kraft.controller.policy import ControllerPolicy
from kraft.controller.tenant_topics import TenantTopics
from kraft.controller.tier_configs import REMOTE_STORAGE, check_tier
from kraft.controller.topics import check_new_name, new_partitions, placed, topic_overrides
from kraft.image.metadata import MetadataImage
from kraft.records import Cause, ConfigRecord, ResourceType, TopicRecord
from wire.messages import RestoreTopicRequest, RestoreTopicResponse, raw_uuid

LEFT_OUT_CHARACTERS_MAX = 4_000


def restore_topic(
    image: MetadataImage, request: RestoreTopicRequest, policy: ControllerPolicy, rng: random.Random
) -> Work[Decision[MetadataRecord, RestoreTopicResponse]]:
    """The first leaders adopt the manifests. `leader_epochs`: above those of the records in the tier; `left_out`: what
    is known to be missing, for the audit."""
    name, topic_id, epochs = request.topic_name, raw_uuid(request.topic_id), list(request.leader_epochs)
    try:
        tenant, tenants = (yield from check_new_name(image, name, {})), TenantTopics(image, policy, rng)
        if topic_id == ZERO_UUID or image.topics.get_by_id(topic_id) is not None:
            raise ProtocolError(ErrorCode.TOPIC_ALREADY_EXISTS, "A topic of that id exists, or it is none.")
        if not 0 < len(epochs) <= policy.partitions_per_request_max or min(epochs) < 0:
            raise ProtocolError(ErrorCode.INVALID_PARTITIONS, "One leader epoch of at least 0 for each partition.")
        overrides = topic_overrides(request.configs) | {REMOTE_STORAGE: "true"}
        check_together(image, policy, {}, overrides)
        check_tier(image, policy, name, {}, overrides)
        wanted = request.replication_factor
        factor = policy.default_replication_factor if wanted == -1 else wanted
        if factor < 1:
            raise ProtocolError(ErrorCode.INVALID_REPLICATION_FACTOR, "The replication factor must be above 0, or -1.")
        yield from tenants.check_partitions(tenant, len(epochs))
        assignments = yield from placed(tenants.placer(tenant), len(epochs), factor)
        tenants.take(tenant, assignments)
        left_out = request.left_out[:LEFT_OUT_CHARACTERS_MAX]
        records: list[MetadataRecord] = [TopicRecord(name, topic_id, adopts_tier=True, left_out=left_out)]
        records += [ConfigRecord(ResourceType.TOPIC, name, key, value) for key, value in overrides.items()]
        records += yield from new_partitions(image, topic_id, 0, assignments, Cause.TOPIC_CREATED, epochs)
    except ProtocolError as error:
        return Decision(
            RestoreTopicResponse(throttle_time_ms=0, error_code=int(error.code), error_message=error.message)
        )
    return Decision(RestoreTopicResponse(throttle_time_ms=0, error_code=0, error_message=None), records)
