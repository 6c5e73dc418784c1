"""Offsets of groups: OffsetCommit 2-9, OffsetFetch 1-9, OffsetDelete 0.

Behaviour: a group without commits, and a partition without a commit, have offset -1 without an error. An offset is
stored with the id of its topic, so that a new topic of the same name does not inherit it.
Versions: OffsetCommit 2-4 have a retention time; OffsetFetch from 2 on may request all topics (null), from 8 on several
groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat

from broker.coordination.groups.coordinator import GroupCoordinator
from broker.coordination.groups.offsets import TopicOffsets
from broker.coordination.groups.values import NO_EPOCH, NO_OFFSET, CommitRequest, CommittedOffset, OffsetToCommit
from broker.requests.context import RequestContext
from common.errors import ErrorCode, ProtocolError
from common.identifiers import ZERO_UUID
from common.pacing import Work
from kraft.image.metadata import MetadataImage
from wire.messages import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

RETENTION_UNTIL = 4
TOP_LEVEL_ERROR_FROM = 2
MANY_GROUPS_FROM = 8
ROW_COST = 4  # units of `common.pacing`

_CommitTopic = OffsetCommitResponse.OffsetCommitResponseTopic
_OldTopic = OffsetFetchResponse.OffsetFetchResponseTopic
_Asked = (
    OffsetFetchRequest.OffsetFetchRequestTopic | OffsetFetchRequest.OffsetFetchRequestGroup.OffsetFetchRequestTopics
)
_Group = OffsetFetchResponse.OffsetFetchResponseGroup
_Topics = _Group.OffsetFetchResponseTopics
_DeleteTopic = OffsetDeleteResponse.OffsetDeleteResponseTopic
_NOTHING = CommittedOffset(NO_OFFSET, NO_EPOCH, "", -1)


class GroupOffsetHandlers:
    """One method per API."""

    def __init__(self, coordinator: GroupCoordinator, image: Callable[[], MetadataImage]) -> None:
        self._coordinator = coordinator
        self._image = image

    async def offset_commit(self, context: RequestContext, request: OffsetCommitRequest) -> OffsetCommitResponse:
        items: list[OffsetToCommit] = []
        known: list[bool] = []
        for topic in request.topics:
            topic_id = self._topic_id(topic.name)
            known.append(topic_id is not None)
            if topic_id is not None:
                items += [
                    OffsetToCommit(
                        topic.name,
                        partition.partition_index,
                        partition.committed_offset,
                        partition.committed_leader_epoch,
                        partition.committed_metadata or "",
                        topic_id,
                    )
                    for partition in topic.partitions
                ]
        decided = iter(await self._commit(context, request, tuple(items)) if items or not request.topics else ())
        unknown = repeat(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return OffsetCommitResponse(
            topics=[
                committed_row(topic, decided if is_known else unknown)
                for topic, is_known in zip(request.topics, known, strict=True)
            ]
        )

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
            return (error.code,) * len(items)

    # OffsetFetch -------------------------------------------------------------------------------------------

    async def offset_fetch(self, context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
        version = context.api_version
        if version >= MANY_GROUPS_FROM:
            groups = [await self._fetch_group(context, group.group_id, group.topics) for group in request.groups]
            return OffsetFetchResponse(groups=groups)
        group = await self._fetch_group(context, request.group_id, request.topics)
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

    async def _fetch_group(self, context: RequestContext, group_id: str, topics: Sequence[_Asked] | None) -> _Group:
        try:
            if topics is None:
                found = await self._fetch_all(context, group_id)
            else:
                found = await self._fetch_some(group_id, topics)
        except ProtocolError as error:
            return _Group(group_id=group_id, topics=[], error_code=error.code)
        return _Group(group_id=group_id, topics=found, error_code=ErrorCode.NONE)

    async def _fetch_all(self, context: RequestContext, group_id: str) -> list[_Topics]:
        committed = await self._coordinator.fetch_all_offsets(group_id)
        return await context.paced(self._all_rows(committed))

    def _all_rows(self, committed: Mapping[str, TopicOffsets]) -> Work[list[_Topics]]:
        """As work. Offsets may change meanwhile: each topic's partitions are read in that topic's turn."""
        topics = []
        for name in list(committed):
            topic_id, rows = self._topic_id(name), list[_Topics.OffsetFetchResponsePartitions]()
            for index, offset in list(committed.get(name, {}).items()):
                current = _of_topic(offset, topic_id)
                if current is not _NOTHING:
                    rows.append(fetched_row(index, current))
                yield ROW_COST
            if rows:
                topics.append(_Topics(name=name, partitions=rows))
        return topics

    async def _fetch_some(self, group_id: str, topics: Sequence[_Asked]) -> list[_Topics]:
        wanted = [(topic.name, topic.partition_indexes) for topic in topics]
        answers = await self._coordinator.fetch_offsets(group_id, wanted)
        found = []
        for topic, offsets in zip(topics, answers, strict=True):
            topic_id = self._topic_id(topic.name)
            rows = [
                fetched_row(index, _of_topic(offset, topic_id))
                for index, offset in zip(topic.partition_indexes, offsets, strict=True)
            ]
            found.append(_Topics(name=topic.name, partitions=rows))
        return found

    def _topic_id(self, name: str) -> bytes | None:
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


def _of_topic(committed: CommittedOffset | None, topic_id: bytes | None) -> CommittedOffset:
    """The committed offset, or nothing if it was committed for an earlier topic of that name."""
    if committed is None or (topic_id is not None and committed.topic_id not in (ZERO_UUID, topic_id)):
        return _NOTHING
    return committed


def committed_row(topic: OffsetCommitRequest.OffsetCommitRequestTopic, codes: Iterator[ErrorCode]) -> _CommitTopic:
    """`codes` are what becomes of the partitions in turn, as for `deleted_row`."""
    row = _CommitTopic.OffsetCommitResponsePartition
    rows = [row(partition_index=one.partition_index, error_code=next(codes)) for one in topic.partitions]
    return _CommitTopic(name=topic.name, partitions=rows)


def deleted_row(topic: OffsetDeleteRequest.OffsetDeleteRequestTopic, codes: Iterator[ErrorCode]) -> _DeleteTopic:
    row = _DeleteTopic.OffsetDeleteResponsePartition
    rows = [row(partition_index=one.partition_index, error_code=next(codes)) for one in topic.partitions]
    return _DeleteTopic(name=topic.name, partitions=rows)


def fetched_row(
    index: int, committed: CommittedOffset = _NOTHING, code: ErrorCode = ErrorCode.NONE
) -> _Topics.OffsetFetchResponsePartitions:
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
