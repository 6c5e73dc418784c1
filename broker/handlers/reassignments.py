"""Moving replicas and leaders: AlterPartitionReassignments 0-1, ListPartitionReassignments 0, ElectLeaders 0-2.

Behaviour: all three are the controller's to decide and travel to it in an Envelope, in their newest versions. What
runs is listed by the controller too, so that who has just begun a reassignment finds it wherever they ask.
Versions: AlterPartitionReassignments from 1 on can forbid another number of replicas; ElectLeaders from 1 on knows
unclean elections and an error of the whole request.
"""

from __future__ import annotations

from broker.requests.context import RequestContext
from broker.requests.forwarding import Forwarder
from common.errors import ProtocolError
from wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

REASSIGN_VERSION = 1
LIST_VERSION = 0
ELECT_VERSION = 2
WHOLE_ERROR_FROM = 1

_Elected = ElectLeadersResponse.ReplicaElectionResult


class ReassignmentHandlers:
    """One method per API."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder

    async def alter_partition_reassignments(
        self, context: RequestContext, request: AlterPartitionReassignmentsRequest
    ) -> AlterPartitionReassignmentsResponse:
        try:
            return await self._forwarder.forward(context, request, REASSIGN_VERSION, request.timeout_ms)
        except ProtocolError as error:
            return AlterPartitionReassignmentsResponse(
                error_code=error.code, error_message=error.message or None, responses=[]
            )

    async def list_partition_reassignments(
        self, context: RequestContext, request: ListPartitionReassignmentsRequest
    ) -> ListPartitionReassignmentsResponse:
        try:
            return await self._forwarder.forward(context, request, LIST_VERSION, request.timeout_ms)
        except ProtocolError as error:
            return ListPartitionReassignmentsResponse(
                error_code=error.code, error_message=error.message or None, topics=[]
            )

    async def elect_leaders(self, context: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
        try:
            response = await self._forwarder.forward(context, request, ELECT_VERSION, request.timeout_ms)
        except ProtocolError as error:
            response = ElectLeadersResponse(error_code=error.code, replica_election_results=[])
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
