"""Gates of APIs about groups' offsets. A group that the client may not describe is treated as not there.

From version 10 on OffsetCommit and OffsetFetch identify topics by id, and rights are those to the topic of that id.
Unknown ids pass here: the handlers answer UNKNOWN_TOPIC_ID.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any, TypeVar

from broker.gates.gating import (
    DELETE,
    DESCRIBE,
    GROUP,
    NO_GROUP,
    NO_TOPIC,
    READ,
    TOPIC,
    allowed_work,
    extended,
    split,
    then,
    then_work,
)
from broker.handlers.group_offsets import (
    IDS_FROM,
    MANY_GROUPS_FROM,
    TOP_LEVEL_ERROR_FROM,
    ById,
    committed_row,
    deleted_row,
    topic_of,
    unfetched_topic,
)
from broker.requests.context import Handler, RequestContext
from broker.security.authorizer import Access
from common.errors import ErrorCode
from common.pacing import Work
from kraft.image.metadata import MetadataImage
from wire.messages import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    changed,
)

T = TypeVar("T", bound=ById)

_FetchedGroup = OffsetFetchResponse.OffsetFetchResponseGroup


class OffsetGates:
    """`image` gives the names of topics that a request identifies by id."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image

    def offset_commit(
        self, context: RequestContext, access: Access, request: OffsetCommitRequest, handler: Handler
    ) -> Any:
        if not access.may(READ, GROUP, request.group_id):
            return OffsetCommitResponse(topics=[committed_row(topic, repeat(NO_GROUP)) for topic in request.topics])
        allowed, refused = self._split(context, access, READ, request.topics)
        if not refused:
            return handler(context, request)
        rows = [committed_row(topic, repeat(NO_TOPIC)) for topic in refused]
        if not allowed:
            return OffsetCommitResponse(topics=rows)
        return then(handler(context, changed(request, topics=allowed)), lambda answer: extended(answer, "topics", rows))

    def offset_fetch(
        self, context: RequestContext, access: Access, request: OffsetFetchRequest, handler: Handler
    ) -> Any:
        if context.api_version >= MANY_GROUPS_FROM:
            return self._fetch_groups(context, access, request, handler)
        if not access.may(DESCRIBE, GROUP, request.group_id):
            before = context.api_version < TOP_LEVEL_ERROR_FROM
            topics = request.topics or [] if before else []
            rows = [unfetched_topic(context.api_version, topic, NO_GROUP) for topic in topics]
            return OffsetFetchResponse(topics=rows, error_code=NO_GROUP)
        everything = request.topics is None
        rows = []
        if request.topics is not None:
            allowed, refused = split(request.topics, access, DESCRIBE, TOPIC, _name)
            rows = [unfetched_topic(context.api_version, topic, NO_TOPIC) for topic in refused]
            request = changed(request, topics=allowed) if refused else request

        def complete(answer: OffsetFetchResponse) -> Work[OffsetFetchResponse]:
            if everything:
                shown = yield from allowed_work(answer.topics, access, DESCRIBE, TOPIC, _name)
                answer = changed(answer, topics=shown)
            return extended(answer, "topics", [] if answer.error_code else rows)

        return then_work(context, handler(context, request), complete)

    def _fetch_groups(
        self, context: RequestContext, access: Access, request: OffsetFetchRequest, handler: Handler
    ) -> Any:
        described, refused = split(request.groups, access, DESCRIBE, GROUP, lambda group: group.group_id)
        unfetched = [_FetchedGroup(group_id=group.group_id, topics=[], error_code=NO_GROUP) for group in refused]
        everything: list[bool] = []
        rows: list[list[Any]] = []
        groups: list[OffsetFetchRequest.OffsetFetchRequestGroup] = []
        for group in described:
            everything.append(group.topics is None)
            topics: list[OffsetFetchRequest.OffsetFetchRequestGroup.OffsetFetchRequestTopics] = []
            if group.topics is not None:
                allowed, topics = self._split(context, access, DESCRIBE, group.topics)
                group = changed(group, topics=allowed) if topics else group
            groups.append(group)
            rows.append([unfetched_topic(context.api_version, topic, NO_TOPIC) for topic in topics])
        if not groups:
            return OffsetFetchResponse(groups=unfetched)

        def complete(answer: OffsetFetchResponse) -> Work[OffsetFetchResponse]:
            fetched: list[_FetchedGroup] = []
            for group, whole, more in zip(answer.groups, everything, rows, strict=True):
                if whole:
                    shown = yield from allowed_work(group.topics, access, DESCRIBE, TOPIC, _name)
                    group = changed(group, topics=shown)
                if not group.error_code:
                    group.topics.extend(more)
                fetched.append(group)
            return changed(answer, groups=fetched + unfetched)

        return then_work(context, handler(context, changed(request, groups=groups)), complete)

    def _split(
        self, context: RequestContext, access: Access, operation: int, topics: list[T]
    ) -> tuple[list[T], list[T]]:
        """As `split`, also for topics that are identified by id."""
        if context.api_version < IDS_FROM:
            return split(topics, access, operation, TOPIC, _name)
        allowed: list[T] = []
        refused: list[T] = []
        known = self._image().topics
        for topic in topics:
            found = topic_of(known, topic)
            (allowed if found is None or access.may(operation, TOPIC, found.name) else refused).append(topic)
        return allowed, refused


def _name(topic: Any) -> str:
    return str(topic.name)


def offset_delete(context: RequestContext, access: Access, request: OffsetDeleteRequest, handler: Handler) -> Any:
    if not access.may(DELETE, GROUP, request.group_id):
        return OffsetDeleteResponse(error_code=NO_GROUP, topics=[])
    topics, refused = split(request.topics, access, READ, TOPIC, _name)
    rows = [deleted_row(topic, repeat(NO_TOPIC)) for topic in refused]
    if not topics and rows:
        return OffsetDeleteResponse(error_code=ErrorCode.NONE, topics=rows)
    request = changed(request, topics=topics) if rows else request
    return then(
        handler(context, request), lambda answer: answer if answer.error_code else extended(answer, "topics", rows)
    )
