"""The cluster itself: ApiVersions 0-4, DescribeCluster 0-2, FindCoordinator 0-6.

Behaviour: ApiVersions returns what the listener serves, and the finalised feature levels. FindCoordinator creates the
internal topic on first use.
Versions: ApiVersions from 3 on has the client's software name; DescribeCluster from 1 on requests one type of endpoint,
from 2 on fenced brokers too; FindCoordinator from 4 on takes many keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from msgspec import Struct

from broker.coordination.internal_topics import InternalTopics
from broker.coordination.placement import keeping_partition
from broker.handlers.client_view import ClientView, VisibleBroker
from broker.requests.context import RequestContext
from broker.requests.forwarding import Forwarder
from broker.security.authorizer import CLUSTER_OPERATIONS
from common.errors import ErrorCode, ProtocolError
from kraft.features import SUPPORTED_FEATURES
from kraft.topic_names import GROUP_TOPIC, TRANSACTION_TOPIC
from wire.apis import Features, api_versions
from wire.listeners import ListenerKind
from wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

SOFTWARE_FROM = 3
MANY_KEYS_FROM = 4
GROUP_KEY, TRANSACTION_KEY = 0, 1
TOPIC_OF_KEYS = {GROUP_KEY: GROUP_TOPIC, TRANSACTION_KEY: TRANSACTION_TOPIC}
BROKERS, CONTROLLERS = 1, 2

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_Coordinator = FindCoordinatorResponse.Coordinator


class Found(Struct, frozen=True):
    """A coordinator, or the error."""

    broker: VisibleBroker | None
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


class ClusterHandlers:
    """One method per API."""

    def __init__(
        self,
        forwarder: Forwarder,
        internal_topics: InternalTopics,
        node_id: int,
        greeted: Callable[[str | None], None] = lambda client_id: None,
    ) -> None:
        """`greeted` gets the client id of each ApiVersions request."""
        self._greeted = greeted
        self._forwarder = forwarder
        self._internal_topics = internal_topics
        self._node_id = node_id
        self._last_view: ClientView | None = None
        self._last_view_of: tuple[str, str | None] = ("", None)

    def _view(self, context: RequestContext) -> ClientView:
        """Created once for many keys and for many equal requests."""
        key, view = (context.listener, context.tenant), self._last_view
        if view is None or self._last_view_of != key or view.image is not self._forwarder.image:
            view = ClientView(self._forwarder.image, context.listener, self._node_id, tenant=context.tenant)
            self._last_view_of, self._last_view = key, view
        return view

    def api_versions(self, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
        self._greeted(context.client_id)
        version = context.api_version
        if version >= SOFTWARE_FROM:
            name, software_version = request.client_software_name, request.client_software_version
            if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(software_version)):
                return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_keys=[])
            context.session.introduce(name, software_version)
        image = self._forwarder.image
        finalized = {name: level for name, level in image.features.items() if level > 0}
        epoch = image.offset if context.tenant is None else 0  # a tenant must not see when others change the metadata
        return api_versions(_kind(context), version, Features(epoch, finalized, SUPPORTED_FEATURES))

    def describe_cluster(self, context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
        if request.endpoint_type != BROKERS:
            known = request.endpoint_type == CONTROLLERS
            code = ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            return DescribeClusterResponse(
                error_code=code,
                error_message="Brokers describe only brokers.",
                endpoint_type=request.endpoint_type,
                cluster_id="",
                brokers=[],
            )
        view = self._view(context)
        operations = CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else None
        return DescribeClusterResponse(
            error_code=ErrorCode.NONE,
            error_message=None,
            endpoint_type=BROKERS,
            cluster_id=view.image.cluster_id or "",
            controller_id=view.controller_id,
            brokers=[
                DescribeClusterResponse.DescribeClusterBroker(
                    broker_id=broker.broker_id,
                    host=broker.host,
                    port=broker.port,
                    rack=broker.rack,
                    is_fenced=broker.fenced,
                )
                for broker in view.brokers(shows_fenced=lambda _: bool(request.include_fenced_brokers))
            ],
            authorized_operations=operations,
        )

    # FindCoordinator ---------------------------------------------------------------------------------------

    async def find_coordinator(
        self, context: RequestContext, request: FindCoordinatorRequest
    ) -> FindCoordinatorResponse:
        find = await self._finder(context, request.key_type)
        if context.api_version < MANY_KEYS_FROM:
            found = find(request.key)
            broker = found.broker
            return FindCoordinatorResponse(
                error_code=found.error,
                error_message=found.message,
                node_id=-1 if broker is None else broker.broker_id,
                host="" if broker is None else broker.host,
                port=-1 if broker is None else broker.port,
            )
        coordinators = []
        for key in request.coordinator_keys:
            found = find(key)
            broker = found.broker
            coordinators.append(
                _Coordinator(
                    key=key,
                    node_id=-1 if broker is None else broker.broker_id,
                    host="" if broker is None else broker.host,
                    port=-1 if broker is None else broker.port,
                    error_code=found.error,
                    error_message=found.message,
                )
            )
        return FindCoordinatorResponse(coordinators=coordinators)

    async def _finder(self, context: RequestContext, key_type: int) -> Callable[[str], Found]:
        """Returns a function that finds the coordinator of one key; shared look-ups are made once."""
        topic = TOPIC_OF_KEYS.get(key_type)
        if topic is None:
            refusal = Found(None, ErrorCode.INVALID_REQUEST, "Only groups and transactions have a coordinator here.")
            return lambda _key: refusal
        try:
            await self._internal_topics.ensure(topic)
        except ProtocolError as error:
            failure = Found(None, error.code)
            return lambda _key: failure
        view = self._view(context)
        by_partition: dict[int | None, Found] = {}

        def find(key: str) -> Found:
            index = keeping_partition(view.image, topic, key)
            found = by_partition.get(index)
            if found is None:
                partition = None if index is None else view.image.partition_by_name(topic, index)
                found = by_partition[index] = _found(None if partition is None else view.broker(partition.leader))
            return found

        return find


def _found(broker: VisibleBroker | None) -> Found:
    return Found(broker) if broker is not None else Found(None, ErrorCode.COORDINATOR_NOT_AVAILABLE)


def _kind(context: RequestContext) -> ListenerKind:
    """Of the listener, because an unauthenticated client may ask too."""
    if context.internal:
        return ListenerKind.INTERNAL
    listener = context.connection.listener if context.connection is not None else None
    return ListenerKind.OPERATOR if listener is None else listener.kind
