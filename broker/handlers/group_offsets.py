"""Offsets of groups: OffsetCommit 2-10, OffsetFetch 1-10, OffsetDelete 0.

Behaviour: a group without commits, and a partition without a commit, have offset -1 without an error. An offset is
stored with the id of its topic, so that a new topic of the same name does not inherit it.
Versions: OffsetCommit 2-4 have a retention time; OffsetFetch from 2 on may request all topics (null), from 8 on several
groups. From 10 on both identify topics by id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Protocol
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
        version = context.api_version
        if version >= MANY_GROUPS_FROM:
            stable = request.require_stable
            groups = [
                await self._fetch_group(context, group.group_id, group.topics, stable=stable)
                for group in request.groups
            ]
            return OffsetFetchResponse(groups=groups)
        group = await self._fetch_group(context, request.group_id, request.topics, stable=request.require_stable)
        topics = [
            _OldTopic(
                name=topic.name,
                partitions=[
                    _OldTopic.OffsetFetchResponsePartition(
                        partition_index=partition.partition_index,
                        committed_offset=partition.committed_offset,
                        committed_leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.metadata,
                        error_code=partition.error_code,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in group.topics
        ]
        if group.error_code and version < TOP_LEVEL_ERROR_FROM:
            topics = old_failure(request.topics or [], group.error_code)
        return OffsetFetchResponse(topics=topics, error_code=group.error_code)

    async def _fetch_group(
        self, context: RequestContext, group_id: str, topics: Sequence[_Asked] | None, *, stable: bool
    ) -> _Group:
        """`stable`: an offset that an open transaction may change is answered with an error (KIP-447)."""
        try:
            if topics is None:
                found = await self._fetch_all(context, group_id, stable=stable)
            else:
                found = await self._fetch_some(context.api_version, group_id, topics, stable=stable)
        except ProtocolError as error:
            return _Group(group_id=group_id, topics=[], error_code=error.code)
        return _Group(group_id=group_id, topics=found, error_code=ErrorCode.NONE)

    async def _fetch_all(self, context: RequestContext, group_id: str, *, stable: bool) -> list[_Topics]:
        committed = await self._coordinator.fetch_all_offsets(group_id, stable=stable)
        return await context.paced(self._all_rows(committed, by_id=context.api_version >= IDS_FROM))

    def _all_rows(self, committed: Mapping[str, TopicOffsets], *, by_id: bool) -> Work[list[_Topics]]:
        """As work. Offsets may change meanwhile: each topic's partitions are read in that topic's turn. A topic that
        does not exist has no id, so it is left out where the response identifies topics `by_id`."""
        topics = []
        for name in list(committed):
            topic_id, rows = self._id_of(name), list[_Topics.OffsetFetchResponsePartitions]()
            if by_id and topic_id is None:
                continue
            for index, offset in list(committed.get(name, {}).items()):
                current = _of_topic(offset, topic_id)
                if current is not _NOTHING:
                    rows.append(fetched_row(index, current))
                yield ROW_COST
            if rows:
                shown_id = None if topic_id is None else schema_uuid(topic_id)
                topics.append(_Topics(name=name, topic_id=shown_id, partitions=rows))
        return topics

    async def _fetch_some(
        self, version: int, group_id: str, topics: Sequence[_Asked], *, stable: bool
    ) -> list[_Topics]:
        names = [self._name(version, topic) for topic in topics]
        wanted = [
            (name, topic.partition_indexes) for name, topic in zip(names, topics, strict=True) if name is not None
        ]
        answers = iter(await self._coordinator.fetch_offsets(group_id, wanted, stable=stable))
        return [
            self._unknown_id(topic) if name is None else self._fetched(topic, name, next(answers))
            for name, topic in zip(names, topics, strict=True)
        ]

    def _name(self, version: int, asked: _Asked) -> str | None:
        """The topic's name, whether or not it exists; None for an id that no topic has."""
        if version < IDS_FROM or not isinstance(asked, _AskedTopics):
            return asked.name
        found = topic_of(self._image().topics, asked)
        return None if found is None else found.name

    def _fetched(self, asked: _Asked, name: str, offsets: Sequence[CommittedOffset | None]) -> _Topics:
        asked_id = asked.topic_id if isinstance(asked, _AskedTopics) else None
        topic_id = self._id_of(name) if asked_id is None else asked_id.bytes
        rows = [
            fetched_row(index, _of_topic(offset, topic_id))
            for index, offset in zip(asked.partition_indexes, offsets, strict=True)
        ]
        return _Topics(name=asked.name, topic_id=asked_id, partitions=rows)

    def _unknown_id(self, asked: _Asked) -> _Topics:
        asked_id = asked.topic_id if isinstance(asked, _AskedTopics) else None
        rows = [fetched_row(index, code=ErrorCode.UNKNOWN_TOPIC_ID) for index in asked.partition_indexes]
        return _Topics(name=asked.name, topic_id=asked_id, partitions=rows)

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


def fetched_row(
    index: int, committed: CommittedOffset = _NOTHING, code: ErrorCode = ErrorCode.NONE
) -> _Topics.OffsetFetchResponsePartitions:
    if committed is UNSTABLE:
        committed, code = _NOTHING, ErrorCode.UNSTABLE_OFFSET_COMMIT
    return _Topics.OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=code,
    )


def old_failure(topics: list[OffsetFetchRequest.OffsetFetchRequestTopic], code: int) -> list[_OldTopic]:
    """Version 1 has errors of partitions only."""
    return [
        _OldTopic(
            name=topic.name,
            partitions=[
                _OldTopic.OffsetFetchResponsePartition(
                    partition_index=index,
                    committed_offset=NO_OFFSET,
                    committed_leader_epoch=NO_EPOCH,
                    metadata="",
                    error_code=code,
                )
                for index in topic.partition_indexes
            ],
        )
        for topic in topics
    ]
