"""Building blocks of gates: the request continues without what the client has no right to, and the gate answers the
rest."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from types import GeneratorType
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from broker.requests.context import Gate, Handler, RequestContext
from broker.requests.failures import failing
from broker.security.authorizer import RIGHT_COST, Access
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from kraft.records import AclOperation, AclResource
from wire.apis import APIS
from wire.messages import Message, changed

T = TypeVar("T")

TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, USER = (
    int(AclResource.TOPIC),
    int(AclResource.GROUP),
    int(AclResource.CLUSTER),
    int(AclResource.TRANSACTIONAL_ID),
    int(AclResource.USER),
)
READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = (
    int(AclOperation.READ),
    int(AclOperation.WRITE),
    int(AclOperation.CREATE),
    int(AclOperation.DELETE),
    int(AclOperation.ALTER),
    int(AclOperation.DESCRIBE),
    int(AclOperation.CLUSTER_ACTION),
    int(AclOperation.DESCRIBE_CONFIGS),
    int(AclOperation.ALTER_CONFIGS),
    int(AclOperation.IDEMPOTENT_WRITE),
)
CREATE_TOKENS = int(AclOperation.CREATE_TOKENS)

NO_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
NO_GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
NO_CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
NO_TRANSACTION = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
MESSAGES = {
    NO_TOPIC: "Not authorized to access topics: [Topic authorization failed.]",
    NO_GROUP: "Not authorized to access group: Group authorization failed.",
    NO_CLUSTER: "Cluster authorization failed.",
    NO_TRANSACTION: "Transactional id authorization failed.",
}


class _OfTopics(Protocol):
    """A request with a list of topics."""

    topics: list[Any]


class _OfGroup(Protocol):
    """A request about one group."""

    group_id: str


def split(
    items: Iterable[T], access: Access, operation: int, resource_type: int, name: Callable[[T], str]
) -> tuple[list[T], list[T]]:
    """The items for which `operation` is allowed, and the others."""
    allowed: list[T] = []
    refused: list[T] = []
    for item in items:
        (allowed if access.may(operation, resource_type, name(item)) else refused).append(item)
    return allowed, refused


def split_work(
    items: Iterable[T], access: Access, operation: int, resource_type: int, name: Callable[[T], str]
) -> Work[tuple[list[T], list[T]]]:
    """`split` as work, for long lists."""
    allowed: list[T] = []
    refused: list[T] = []
    for item in items:
        (allowed if access.may(operation, resource_type, name(item)) else refused).append(item)
        yield RIGHT_COST
    return allowed, refused


def then(outcome: Any, complete: Callable[[Any], Any]) -> Any:
    """Apply `complete` to a handler's response, which may come at once, later or as work."""
    if isinstance(outcome, GeneratorType):
        return _worked(outcome, complete)
    return _later(outcome, complete) if inspect.isawaitable(outcome) else complete(outcome)


def _worked(outcome: Work[Any], complete: Callable[[Any], Any]) -> Work[Any]:
    answer = yield from outcome
    return complete(answer)


async def _later(outcome: Awaitable[Any], complete: Callable[[Any], Any]) -> Any:
    return complete(await outcome)


def then_work(context: RequestContext, outcome: Any, complete: Callable[[Any], Work[Any]]) -> Any:
    """As `then`, for a completion that is work itself, because the response may be long whatever the request."""
    if isinstance(outcome, GeneratorType):
        return _both_worked(outcome, complete)
    return _worked_later(context, outcome, complete) if inspect.isawaitable(outcome) else complete(outcome)


def _both_worked(outcome: Work[Any], complete: Callable[[Any], Work[Any]]) -> Work[Any]:
    answer = yield from outcome
    return (yield from complete(answer))


async def _worked_later(context: RequestContext, outcome: Awaitable[Any], complete: Callable[[Any], Work[Any]]) -> Any:
    return await context.paced(complete(await outcome))


def allowed_work(
    items: Iterable[T], access: Access, operation: int, resource_type: int, name: Callable[[T], str]
) -> Work[list[T]]:
    """The items for which `operation` is allowed, as work, for long lists."""
    allowed: list[T] = []
    for item in items:
        if access.may(operation, resource_type, name(item)):
            allowed.append(item)
        yield RIGHT_COST
    return allowed


def refused(request: Message, code: ErrorCode) -> Work[Any]:
    """A response with `code` for the whole request."""
    return failing(request, ProtocolError(code, MESSAGES[code]))


def by_topic(operation: int, refusal: Callable[[Any], Any], *, name: str = "name", answers: str = "topics") -> Gate:
    """Gate of an API that lists topics by name and answers for each: `refusal` makes the response row for one topic."""

    def gate(context: RequestContext, access: Access, request: _OfTopics, handler: Handler) -> Any:
        allowed, others = split(request.topics, access, operation, TOPIC, lambda topic: getattr(topic, name))
        if not others:
            return handler(context, request)
        rows = [refusal(topic) for topic in others]
        if not allowed:
            return APIS[context.api_key].response(**{answers: rows})
        return then(handler(context, changed(request, topics=allowed)), lambda answer: extended(answer, answers, rows))

    return gate


class ClusterRight(Struct, frozen=True):
    """Gate of an API that needs a right on the cluster; without it the whole request fails."""

    operation: int
    refusal: Callable[[RequestContext, Any], Any] = lambda context, request: refused(request, NO_CLUSTER)

    def __call__(self, context: RequestContext, access: Access, request: Message, handler: Handler) -> Any:
        if access.may_cluster(self.operation):
            return handler(context, request)
        return self.refusal(context, request)


def by_group(
    operation: int,
    refusal: Callable[[RequestContext, Any], Any] = lambda context, request: refused(request, NO_GROUP),
) -> Gate:
    """Gate of an API that names one group in `group_id`."""

    def gate(context: RequestContext, access: Access, request: _OfGroup, handler: Handler) -> Any:
        if access.may(operation, GROUP, request.group_id):
            return handler(context, request)
        return refusal(context, request)

    return gate


def extended(answer: T, field: str, more: list[Any]) -> T:
    """The response with more rows in its list `field`."""
    getattr(answer, field).extend(more)
    return answer


def free(context: RequestContext, access: Access, request: Message, handler: Handler) -> Any:
    """Gate of an API that needs no right."""
    return handler(context, request)
