"""Metadata 0-13: brokers, topics and partition leaders, as clients of the request's listener may see them.

Behaviour: the controller id is that of a live broker. An unknown topic requested by name is created if
`auto.create.topics.enable` and the request allow it, and returned when it exists; while another request creates it the
response is LEADER_NOT_AVAILABLE. A request that names topics, as producers and consumers send it, also gets the names
of brokers that died a moment ago (`broker/lost_brokers.py`); one for all topics or for none, as administrators send it,
gets live brokers alone. The handler checks rights itself, without a gate, because rows are shared
(`topic_rows.py`).
Versions: in 0 an empty list requests all topics, later null does; before 4 creation is always allowed; from 12 on
topics may be requested by id.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from itertools import islice
from uuid import UUID

from broker.coordination.internal_topics import InternalTopics
from broker.handlers.client_view import ClientView
from broker.handlers.topic_rows import OPERATIONS_FROM, Rows, RowTable, TopicRow, TopicRows
from broker.requests.context import RequestContext, WrittenRows
from broker.requests.forwarding import Forwarder
from broker.security.authorizer import CLUSTER_OPERATIONS, RIGHT_COST, TOPIC_OPERATIONS, Access
from common.errors import ErrorCode, ProtocolError, known_error
from common.node_settings.topics import TopicDefaults
from common.pacing import Work
from common.settings import same
from kraft.image.metadata import MetadataImage
from kraft.image.topics import TopicImage
from kraft.records import AclOperation, AclResource
from kraft.topic_names import INTERNAL_TOPICS, check_topic_name
from wire.messages import CreateTopicsRequest, MetadataRequest, MetadataResponse, changed, raw_uuid
from wire.paced_codec import PART_BYTES

AUTO_CREATION_ASKED_FROM = 4
BY_ID_FROM = 12
CREATE_TIMEOUT_MS = 5_000
CREATING_MAX = 1_000
CREATED_PER_REQUEST = 25  # the portion size of CreateTopics
JOIN_COST, ONCE_PER_STEP = 1, 200
MISSING_COST = 4  # in addition to JOIN_COST: of a name without a topic that is checked, or answered, or refused
DESCRIBE, CREATE, TOPIC = int(AclOperation.DESCRIBE), int(AclOperation.CREATE), int(AclResource.TOPIC)

_Topic = MetadataResponse.MetadataResponseTopic
_Asked = MetadataRequest.MetadataRequestTopic
_Creatable = CreateTopicsRequest.CreatableTopic


def _never(_broker_id: int) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class MetadataConfig:
    """Kafka's settings node.id and auto.create.topics.enable; the controller sets the sizes of created topics."""

    node_id: int
    auto_create_topics_enable: bool = same(TopicDefaults, "auto_create_topics_enable")


class MetadataHandler:
    """Answers from the local image."""

    def __init__(
        self,
        forwarder: Forwarder,
        internal_topics: InternalTopics,
        config: MetadataConfig,
        is_doubted: Callable[[int], bool] = _never,
        rows: TopicRows | None = None,
        is_lost: Callable[[int], bool] = _never,
    ) -> None:
        self._rows = TopicRows() if rows is None else rows
        self._forwarder = forwarder
        self._internal_topics = internal_topics
        self._config = config
        self._is_doubted = is_doubted
        self._is_lost = is_lost
        self._creating: dict[str, None] = {}

    async def metadata(self, context: RequestContext, request: MetadataRequest) -> WrittenRows:
        version, access = context.api_version, _rights(context)
        if request.topics is None or (version == 0 and not request.topics):
            view = self._view(context)
            rows, failures = await self._all(context, view, request, access), list[_Topic]()
        else:
            asked = await context.paced(_once_each(request.topics))
            failed = await self._create_missing(context, request, asked, access)
            view = self._view(context)
            rows, failures = await context.paced(self._asked_rows(context, view, asked, request, failed, access))
        view.name(rows.nodes)
        cluster_operations = CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else None
        message = MetadataResponse(
            brokers=[
                MetadataResponse.MetadataResponseBroker(
                    node_id=broker.broker_id, host=broker.host, port=broker.port, rack=broker.rack
                )
                for broker in view.brokers(shows_fenced=self._is_lost if request.topics else _never)
            ],
            cluster_id=view.image.cluster_id,
            controller_id=view.controller_id,
            topics=failures,
            authorized_operations=cluster_operations,
            error_code=ErrorCode.NONE,
        )
        return WrittenRows(message, "topics", rows.parts, rows.number)

    def _view(self, context: RequestContext) -> ClientView:
        return ClientView(
            self._forwarder.image, context.listener, self._config.node_id, self._is_doubted, context.tenant
        )

    # all topics --------------------------------------------------------------------------------------------

    async def _all(
        self, context: RequestContext, view: ClientView, request: MetadataRequest, access: Access | None
    ) -> Rows:
        """Rows of all topics that the client may describe. Clients with the same rights share the same bytes."""
        with_rights = bool(request.include_topic_authorized_operations) and context.api_version >= OPERATIONS_FROM
        table = self._rows.table(view, context.api_version, context.tenant is not None)
        work = self._join(context.tenant, view, table, access, with_rights)
        image = view.image
        rights = None if access is None else image.acls
        return await table.joined(
            (context.tenant, access, with_rights), (image.topics, rights), lambda: context.paced(work)
        )

    def _join(
        self, tenant: str | None, view: ClientView, table: RowTable, access: Access | None, with_rights: bool
    ) -> Work[Rows]:
        topics = view.image.topics
        known = topics if tenant is None else topics.of_tenant(tenant)
        join = _Join()
        for topic in known:
            if access is not None and not access.may(DESCRIBE, TOPIC, topic.name):
                yield RIGHT_COST
                continue
            row = table.find(topic)
            if row is None:
                row = yield from table.make(view, topic, _shown_name(topic.name, tenant))
            join.add(self._with_operations(table, row, access) if with_rights else row.data, row.nodes)
            yield JOIN_COST
        if tenant is None:
            table.forget_missing(topics.by_id, len(topics))
        return join.rows()

    @staticmethod
    def _with_operations(table: RowTable, row: TopicRow, access: Access | None) -> bytes:
        operations: Iterable[int] = TOPIC_OPERATIONS
        if access is not None:
            operations = access.operations(TOPIC_OPERATIONS, TOPIC, row.topic.name)
        return table.with_operations(row.data, operations)

    # named topics ------------------------------------------------------------------------------------------

    def _asked_rows(
        self,
        context: RequestContext,
        view: ClientView,
        asked: list[_Asked],
        request: MetadataRequest,
        failed: dict[str, ErrorCode],
        access: Access | None,
    ) -> Work[tuple[Rows, list[_Topic]]]:
        """Rows of the requested topics, and error rows of missing ones, which are never shared."""
        version, tenant = context.api_version, context.tenant
        with_rights = bool(request.include_topic_authorized_operations) and version >= OPERATIONS_FROM
        table = self._rows.table(view, version, tenant is not None)
        creates = self._creates(context, request)
        join, failures, refused = _Join(), list[_Topic](), list[_Topic]()
        for one in asked:
            yield JOIN_COST
            found = self._find(view.image, one, version, failed)
            if access is not None:
                yield RIGHT_COST
                refusal = _refusal(access, one, found, view.image, creates=creates)
                if refusal is not None:
                    refused.append(refusal)
                    yield MISSING_COST
                    continue
            if isinstance(found, TopicImage):
                row = table.find(found)
                if row is None:
                    row = yield from table.make(view, found, _shown_name(found.name, tenant))
                join.add(self._with_operations(table, row, access) if with_rights else row.data, row.nodes)
            else:
                yield MISSING_COST
                if with_rights and found.name and access is not None:
                    operations = access.operations(TOPIC_OPERATIONS, TOPIC, found.name)
                    found = changed(found, authorized_operations=operations)
                failures.append(found)
        return join.rows(), failures + refused

    def _find(
        self, image: MetadataImage, asked: _Asked, version: int, failed: dict[str, ErrorCode]
    ) -> TopicImage | _Topic:
        """The topic, or its error row."""
        topics = image.topics
        if asked.topic_id is not None and asked.topic_id.int:
            if version < BY_ID_FROM:
                return _failure(asked.name or "", asked.topic_id, ErrorCode.INVALID_REQUEST)
            topic = topics.get_by_id(raw_uuid(asked.topic_id))
            return _failure(None, asked.topic_id, ErrorCode.UNKNOWN_TOPIC_ID) if topic is None else topic
        if asked.name is None:
            return _failure("" if version < BY_ID_FROM else None, None, ErrorCode.INVALID_REQUEST)
        topic = topics.get(asked.name)
        return _failure(asked.name, None, failed.get(asked.name) or _missing(asked.name)) if topic is None else topic

    # creation ----------------------------------------------------------------------------------------------

    def _creates(self, context: RequestContext, request: MetadataRequest) -> bool:
        asked = request.allow_auto_topic_creation or context.api_version < AUTO_CREATION_ASKED_FROM
        return bool(asked) and self._config.auto_create_topics_enable

    async def _create_missing(
        self, context: RequestContext, request: MetadataRequest, asked: list[_Asked], access: Access | None
    ) -> dict[str, ErrorCode]:
        """Create the request's unknown topics if that is allowed. Returns the error codes of those that do not exist
        after that.

        Of very many only some are created, the others are answered with LEADER_NOT_AVAILABLE: clients retry, and other
        clients' requests do not wait for thousands of new logs.
        """
        if not self._creates(context, request):
            return {}
        missing = await context.paced(self._missing_names(asked, access))
        failed = dict.fromkeys(missing, ErrorCode.LEADER_NOT_AVAILABLE)
        for name in self._internal_topics.names():
            if name in failed:
                del failed[name]
                failed.update(await self._create_internal(name))
        wanted = self._created_now(missing)
        if wanted:
            for name in wanted:
                failed.pop(name, None)
            failed.update(await self._create(context, wanted))
        return failed

    def _created_now(self, missing: list[str]) -> list[str]:
        """The topics that this request creates. The caller registers them in the same turn, so no other request creates
        them."""
        room = min(CREATED_PER_REQUEST, CREATING_MAX - len(self._creating))
        ours = (name for name in missing if name not in self._creating and name not in self._internal_topics)
        return list(islice(ours, room))

    def _missing_names(self, asked: list[_Asked], access: Access | None) -> Work[list[str]]:
        """Names without a topic that the client may create."""
        missing: list[str] = []
        for one in asked:
            yield JOIN_COST
            name = one.name
            if not name or (one.topic_id is not None and one.topic_id.int) or name in self._forwarder.image.topics:
                continue
            yield MISSING_COST
            if _missing(name) is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue
            if access is None or (access.may(DESCRIBE, TOPIC, name) and _may_create(access, name)):
                missing.append(name)
        return missing

    async def _create_internal(self, name: str) -> dict[str, ErrorCode]:
        try:
            await self._internal_topics.ensure(name)
        except ProtocolError:
            return {name: ErrorCode.LEADER_NOT_AVAILABLE}
        return {}

    async def _create(self, context: RequestContext, names: list[str]) -> dict[str, ErrorCode]:
        self._creating.update(dict.fromkeys(names))
        creatable = [
            _Creatable(name=name, num_partitions=-1, replication_factor=-1, assignments=[], configs=[])
            for name in names
        ]  # fmt: skip
        create = CreateTopicsRequest(topics=creatable, timeout_ms=CREATE_TIMEOUT_MS, validate_only=False)
        try:
            response = await self._forwarder.forward(context, create)
        except ProtocolError:
            return dict.fromkeys(names, ErrorCode.LEADER_NOT_AVAILABLE)
        finally:
            for name in names:
                del self._creating[name]
        failed = {}
        for result in response.topics:
            code = known_error(result.error_code)
            if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                code = ErrorCode.LEADER_NOT_AVAILABLE  # it exists, but perhaps not yet in this broker's image
            failed[result.name] = code
        return failed


class _Join:
    """Joins rows into parts of the response."""

    def __init__(self) -> None:
        self.nodes: frozenset[int] = frozenset()
        self._parts: list[bytes] = []
        self._open: list[bytes] = []
        self._size = self._count = 0

    def add(self, row: bytes, nodes: frozenset[int]) -> None:
        self.nodes |= nodes
        self._open.append(row)
        self._count += 1
        self._size += len(row)
        if self._size >= PART_BYTES:
            self._close()

    def _close(self) -> None:
        self._parts.append(b"".join(self._open))
        self._open = []
        self._size = 0

    def rows(self) -> Rows:
        if self._open:
            self._close()
        return Rows(self._parts, self._count, self.nodes)


def _rights(context: RequestContext) -> Access | None:
    """None for a client that may do everything."""
    access = context.session.access
    return None if access is None or access.is_super else access


def _once_each(topics: list[_Asked]) -> Work[list[_Asked]]:
    """As in Apache Kafka, a topic that is named twice is answered once."""
    found: dict[Hashable, _Asked] = {}
    for number, one in enumerate(topics):
        found.setdefault((one.name, one.topic_id), one)
        if number % ONCE_PER_STEP == 0:
            yield ONCE_PER_STEP
    return list(found.values())


def _refusal(
    access: Access, asked: _Asked, found: TopicImage | _Topic, image: MetadataImage, *, creates: bool
) -> _Topic | None:
    """The error row if the client may not describe or create the topic, None if `found` may be returned.

    As in Kafka, the response for a topic that the client may not describe is the same whether or not the topic exists.
    """
    by_id = asked.topic_id is not None and asked.topic_id.int != 0
    topic = image.topics.get_by_id(raw_uuid(asked.topic_id)) if by_id else None
    name = asked.name if topic is None else topic.name
    if name is None or (by_id and topic is None):
        return None  # the response does not depend on rights
    if not access.may(DESCRIBE, TOPIC, name):
        return _unknown(None if by_id else name, asked.topic_id if by_id else None, is_internal=False)
    if by_id or isinstance(found, TopicImage) or not creates or _may_create(access, name):
        return None
    return _unknown(name, None, is_internal=name in INTERNAL_TOPICS)


def _may_create(access: Access, name: str) -> bool:
    return access.may_cluster(CREATE) or access.may(CREATE, TOPIC, name)


def _shown_name(name: str, tenant: str | None) -> str:
    return name if tenant is None else name[len(tenant) + 1 :]


def _unknown(name: str | None, topic_id: UUID | None, *, is_internal: bool) -> _Topic:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return _Topic(error_code=code, name=name, topic_id=topic_id, is_internal=is_internal, partitions=[])


def _missing(name: str) -> ErrorCode:
    try:
        check_topic_name(name)
    except ProtocolError as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _failure(name: str | None, topic_id: UUID | None, code: ErrorCode) -> _Topic:
    is_internal = name in INTERNAL_TOPICS
    return _Topic(error_code=code, name=name, topic_id=topic_id, is_internal=is_internal, partitions=[])
