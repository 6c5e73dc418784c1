"""ElectLeaders 0-2, which the controller decides; from version 1 on an answer has an error of the whole request."""

from __future__ import annotations

from broker.requests.context import RequestContext
from broker.requests.forwarding import Forwarder
from wire.messages import ElectLeadersRequest, ElectLeadersResponse

WHOLE_ERROR_FROM = 1

_Elected = ElectLeadersResponse.ReplicaElectionResult


class ElectLeaders:
    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder

    async def handle(self, context: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
        response = await self._forwarder.serve(context, request)
        if context.api_version < WHOLE_ERROR_FROM and response.error_code:
            response = for_each_partition(request, response.error_code)
        return response


def for_each_partition(request: ElectLeadersRequest, error_code: int, whole: int = 0) -> ElectLeadersResponse:
    """The first version has no place for an error of the whole request: each partition carries it. Later ones carry
    `whole`, too."""
    return ElectLeadersResponse(
        error_code=whole,
        replica_election_results=[
            _Elected(
                topic=topic.topic,
                partition_result=[
                    _Elected.PartitionResult(partition_id=index, error_code=error_code, error_message=None)
                    for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )
