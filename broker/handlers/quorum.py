"""DescribeQuorum 0-2, which the active controller answers (`kraft.controller.quorum_description`).

Of anything but the one partition of the metadata the broker itself says UNKNOWN_TOPIC_OR_PARTITION.
"""

from __future__ import annotations

from collections.abc import Awaitable

from broker.requests.context import RequestContext
from broker.requests.forwarding import Forwarder
from common.errors import ErrorCode, OutcomeUnknown
from common.pacing import Work
from kraft.observers.controller_channel import ControllerUnavailable
from kraft.records import METADATA_TOPIC
from wire.messages import DescribeQuorumRequest, DescribeQuorumResponse

NEWEST = 2  # in which the controller is asked, whatever the client's version
TIMEOUT_S = 10.0
ROW_COST = 10  # units of `common.pacing`

_Topic = DescribeQuorumResponse.TopicData


class DescribeQuorum:
    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder

    def handle(
        self, context: RequestContext, request: DescribeQuorumRequest
    ) -> Awaitable[DescribeQuorumResponse] | Work[DescribeQuorumResponse]:
        return self._ask(request) if _is_of_metadata(request) else _unknown(request)

    async def _ask(self, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
        try:
            return await self._forwarder.channel.call(request, NEWEST, timeout_s=TIMEOUT_S)
        except (ControllerUnavailable, OutcomeUnknown):
            return DescribeQuorumResponse(error_code=ErrorCode.REQUEST_TIMED_OUT, topics=[], nodes=[])


def _is_of_metadata(request: DescribeQuorumRequest) -> bool:
    if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
        return False
    (topic,) = request.topics
    return topic.topic_name == METADATA_TOPIC and topic.partitions[0].partition_index == 0


def _unknown(request: DescribeQuorumRequest) -> Work[DescribeQuorumResponse]:
    topics = []
    for topic in request.topics:
        rows = []
        for one in topic.partitions:
            rows.append(
                _Topic.PartitionData(
                    partition_index=one.partition_index,
                    error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    leader_id=0,
                    leader_epoch=0,
                    high_watermark=0,
                    current_voters=[],
                    observers=[],
                )
            )
            yield ROW_COST
        topics.append(_Topic(topic_name=topic.topic_name, partitions=rows))
    return DescribeQuorumResponse(error_code=0, topics=topics, nodes=[])
