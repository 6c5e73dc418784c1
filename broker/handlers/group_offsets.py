"""Offsets of groups: OffsetCommit 2-10, OffsetFetch 1-10, OffsetDelete 0.

Behaviour: a group without commits, and a partition without a commit, have offset -1 without an error. An offset is
stored with the id of its topic, so that a new topic of the same name does not inherit it.
Versions: OffsetCommit 2-4 have a retention time; OffsetFetch from 2 on may request all topics (null), from 8 on several
groups. From 10 on both identify topics by id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any, Protocol
from uuid import UUID

from broker.coordination.groups.coordinator import GroupCoordinator
from broker.coordination.groups.offsets import TopicOffsets
from broker.coordination.groups.values import (
    NO_EPOCH,
    NO_OFFSET,
    UNSTABLE,
    CommitRequest,
    CommittedOffset,
    OffsetToCommit,
)
from broker.requests.context import RequestContext
from common.errors import ErrorCode, ProtocolError
from common.identifiers import ZERO_UUID
from common.pacing import Work
from kraft.image.metadata import MetadataImage
from kraft.image.topics import TopicImage, TopicsImage
from wire.messages import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    raw_uuid,
    schema_uuid,
)

RETENTION_UNTIL = 4
TOP_LEVEL_ERROR_FROM = 2
MANY_GROUPS_FROM = 8
NO_GROUP_FROM = 9  # OffsetCommit says so of a group that does not exist; before it was the generation's fault
IDS_FROM = 10
ROW_COST = 4  # units of `common.pacing`

_CommitTopic = OffsetCommitResponse.OffsetCommitResponseTopic
_OldTopic = OffsetFetchResponse.OffsetFetchResponseTopic
_AskedTopics = OffsetFetchRequest.OffsetFetchRequestGroup.OffsetFetchRequestTopics
_Asked = OffsetFetchRequest.OffsetFetchRequestTopic | _AskedTopics
_Group = OffsetFetchResponse.OffsetFetchResponseGroup
_Topics = _Group.OffsetFetchResponseTopics
_DeleteTopic = OffsetDeleteResponse.OffsetDeleteResponseTopic
_NOTHING = CommittedOffset(NO_OFFSET, NO_EPOCH, "", -1)


class ById(Protocol):
    """A topic in a request of version 10 or later."""

    topic_id: UUID | None


class GroupOffsetHandlers:
    """One method per API."""

    def __init__(self, coordinator: GroupCoordinator, image: Callable[[], MetadataImage]) -> None:
        self._coordinator = coordinator
        self._image = image

    async def offset_commit(self, context: RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse:
        items: list[OffsetToCommit] = []
        refused: list[ErrorCode | None] = []  # by partition, in order; None: its offset is to be committed
        for topic in request.topics:
            found = self._topic(context.api_version, topic)
            for partition in topic.partitions:
                if found is None and context.api_version >= IDS_FROM:
                    refused.append(ErrorCode.UNKNOWN_TOPIC_ID)
                elif found is None or partition.partition_index not in found.partitions:
                    refused.append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                else:
                    refused.append(None)
                    items.append(
                        OffsetToCommit(
                            found.name,
                            partition.partition_index,
                            partition.committed_offset,
                            partition.committed_leader_epoch,
                            partition.committed_metadata or "",
                            found.topic_id,
                        )
                    )
        decided = iter(await self._commit(context, request, tuple(items)) if items or not request.topics else ())
        codes = (next(decided) if code is None else code for code in refused)
        return OffsetCommitResponse(topics=[committed_row(topic, codes) for topic in request.topics])

    async def _commit(
        self, context: RequestContext, request: OffsetCommitRequest, items: tuple[OffsetToCommit, ...]
    ) -> tuple[ErrorCode, ...]:
        retention_ms = request.retention_time_ms if context.api_version <= RETENTION_UNTIL else -1
        commit = CommitRequest(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
            items,
            retention_ms,
        )
        try:
            return await self._coordinator.commit(commit)
        except ProtocolError as error:
            is_old = error.code is ErrorCode.GROUP_ID_NOT_FOUND and context.api_version < NO_GROUP_FROM
            return (ErrorCode.ILLEGAL_GENERATION if is_old else error.code,) * len(items)

    # OffsetFetch -------------------------------------------------------------------------------------------

    async def offset_fetch(self, context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
        stable = request.require_stable
        if context.api_version >= MANY_GROUPS_FROM:
            groups = []
            for group in request.groups:
                code, topics = await self._fetch_group(context, group.group_id, group.topics, stable=stable)
                groups.append(_Group(group_id=group.group_id, topics=topics, error_code=code))
            return OffsetFetchResponse(groups=groups)
        code, topics = await self._fetch_group(context, request.group_id, request.topics, stable=stable)
        if code and context.api_version < TOP_LEVEL_ERROR_FROM:
            topics = [unfetched_topic(context.api_version, topic, code) for topic in request.topics or []]
        return OffsetFetchResponse(topics=topics, error_code=code)

    async def _fetch_group(
        self, context: RequestContext, group_id: str, topics: Sequence[_Asked] | None, *, stable: bool
    ) -> tuple[ErrorCode, list[Any]]:
        """The group's error, and its topics as the request's version has them.

        `stable`: an offset that an open transaction may change is answered with an error (KIP-447).
        """
        try:
            if topics is None:
                return ErrorCode.NONE, await self._fetch_all(context, group_id, stable=stable)
            return ErrorCode.NONE, await self._fetch_some(context.api_version, group_id, topics, stable=stable)
        except ProtocolError as error:
            return error.code, []

    async def _fetch_all(self, context: RequestContext, group_id: str, *, stable: bool) -> list[Any]:
        committed = await self._coordinator.fetch_all_offsets(group_id, stable=stable)
        return await context.paced(self._all_rows(context.api_version, committed))

    def _all_rows(self, version: int, committed: dict[str, TopicOffsets]) -> Work[list[Any]]:
        """As work, which empties `committed`, so that it need not be freed in one go. A topic that does not exist has
        no id, so it is left out where the response identifies topics by id."""
        topics = []
        for name in list(committed):
            offsets, topic_id, rows = committed.pop(name), self._id_of(name), list[Any]()
            if topic_id is None and version >= IDS_FROM:
                continue
            for index, offset in offsets.items():
                current = _of_topic(offset, topic_id)
                if current is not _NOTHING:
                    rows.append(_fetched_row(version, index, current))
                yield ROW_COST
            if rows:
                topics.append(_fetched_topic(version, name, None if topic_id is None else schema_uuid(topic_id), rows))
        return topics

    async def _fetch_some(self, version: int, group_id: str, topics: Sequence[_Asked], *, stable: bool) -> list[Any]:
        names = [self._name(version, topic) for topic in topics]
        wanted = [
            (name, topic.partition_indexes) for name, topic in zip(names, topics, strict=True) if name is not None
        ]
        answers = iter(await self._coordinator.fetch_offsets(group_id, wanted, stable=stable))
        return [
            unfetched_topic(version, topic, ErrorCode.UNKNOWN_TOPIC_ID)
            if name is None
            else self._fetched(version, topic, name, next(answers))
            for name, topic in zip(names, topics, strict=True)
        ]

    def _name(self, version: int, asked: _Asked) -> str | None:
        """The topic's name, whether or not it exists; None for an id that no topic has."""
        if version < IDS_FROM or not isinstance(asked, _AskedTopics):
            return asked.name
        found = topic_of(self._image().topics, asked)
        return None if found is None else found.name

    def _fetched(self, version: int, asked: _Asked, name: str, offsets: Sequence[CommittedOffset | None]) -> Any:
        asked_id = asked.topic_id if isinstance(asked, _AskedTopics) else None
        topic_id = self._id_of(name) if asked_id is None else asked_id.bytes
        rows = [
            _fetched_row(version, index, _of_topic(offset, topic_id))
            for index, offset in zip(asked.partition_indexes, offsets, strict=True)
        ]
        return _fetched_topic(version, asked.name, asked_id, rows)

    def _topic(self, version: int, asked: OffsetCommitRequest.OffsetCommitRequestTopic) -> TopicImage | None:
        topics = self._image().topics
        return topics.get(asked.name) if version < IDS_FROM else topic_of(topics, asked)

    def _id_of(self, name: str) -> bytes | None:
        topic = self._image().topics.get(name)
        return None if topic is None else topic.topic_id

    # OffsetDelete ------------------------------------------------------------------------------------------

    async def offset_delete(self, context: RequestContext, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
        known = self._image().topics
        asked = tuple(
            (topic.name, partition.partition_index)
            for topic in request.topics
            if topic.name in known
            for partition in topic.partitions
        )
        try:
            codes = iter(await self._coordinator.delete_offsets(request.group_id, asked))
        except ProtocolError as error:
            return OffsetDeleteResponse(error_code=error.code, topics=[])
        unknown = repeat(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        topics = [deleted_row(topic, codes if topic.name in known else unknown) for topic in request.topics]
        return OffsetDeleteResponse(error_code=ErrorCode.NONE, topics=topics)


def topic_of(topics: TopicsImage, asked: ById) -> TopicImage | None:
    return topics.get_by_id(raw_uuid(asked.topic_id))


def _of_topic(committed: CommittedOffset | None, topic_id: bytes | None) -> CommittedOffset:
    """The committed offset, or nothing if it was committed for an earlier topic of that name."""
    if committed is UNSTABLE:
        return UNSTABLE
    if committed is None or (topic_id is not None and committed.topic_id not in (ZERO_UUID, topic_id)):
        return _NOTHING
    return committed


def committed_row(topic: OffsetCommitRequest.OffsetCommitRequestTopic, codes: Iterator[ErrorCode]) -> _CommitTopic:
    """`codes` are what becomes of the partitions in turn, as for `deleted_row`."""
    row = _CommitTopic.OffsetCommitResponsePartition
    rows = [row(partition_index=one.partition_index, error_code=next(codes)) for one in topic.partitions]
    return _CommitTopic(name=topic.name, topic_id=topic.topic_id, partitions=rows)


def deleted_row(topic: OffsetDeleteRequest.OffsetDeleteRequestTopic, codes: Iterator[ErrorCode]) -> _DeleteTopic:
    row = _DeleteTopic.OffsetDeleteResponsePartition
    rows = [row(partition_index=one.partition_index, error_code=next(codes)) for one in topic.partitions]
    return _DeleteTopic(name=topic.name, partitions=rows)


def _fetched_row(
    version: int, index: int, committed: CommittedOffset = _NOTHING, code: ErrorCode = ErrorCode.NONE
) -> Any:
    row = (
        _OldTopic.OffsetFetchResponsePartition if version < MANY_GROUPS_FROM else _Topics.OffsetFetchResponsePartitions
    )
    if committed is UNSTABLE:
        committed, code = _NOTHING, ErrorCode.UNSTABLE_OFFSET_COMMIT
    return row(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=code,
    )


def _fetched_topic(version: int, name: str, topic_id: UUID | None, rows: list[Any]) -> Any:
    if version < MANY_GROUPS_FROM:
        return _OldTopic(name=name, partitions=rows)
    return _Topics(name=name, topic_id=topic_id, partitions=rows)


def unfetched_topic(version: int, topic: _Asked, code: ErrorCode) -> Any:
    """`topic` in a response, with `code` for each of its partitions."""
    topic_id = topic.topic_id if isinstance(topic, _AskedTopics) else None
    rows = [_fetched_row(version, index, code=code) for index in topic.partition_indexes]
    return _fetched_topic(version, topic.name, topic_id, rows)
