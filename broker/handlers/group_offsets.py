"""Offsets of groups: OffsetCommit 2-10, OffsetFetch 1-10, OffsetDelete 0.

Behaviour: a group that never committed, and a partition it never committed, have offset -1 without an error.
Versions: OffsetCommit 2-4 give a retention of their own; OffsetFetch asks for all topics from 2 on (null), for
several groups from 8 on; from 10 on both name topics by id alone (KIP-848). An offset is kept with the id of the topic
that it was committed for, whichever way that was named: another topic of the same name does not inherit it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.coordination.groups.coordinator import GroupCoordinator
from broker.coordination.groups.values import NO_EPOCH, NO_OFFSET, CommitRequest, CommittedOffset, OffsetToCommit
from broker.request import RequestContext
from common.errors import ErrorCode, ProtocolError
from common.identifiers import ZERO_UUID
from kraft.image.metadata import MetadataImage
from wire.messages import (
    OffsetCommitResponse,
    OffsetDeleteResponse,
    OffsetFetchResponse,
    raw_uuid,
    schema_uuid,
)

TOPIC_IDS_FROM = 10
RETENTION_UNTIL = 4
TOP_LEVEL_ERROR_FROM = 2
MANY_GROUPS_FROM = 8

_CommitTopic = OffsetCommitResponse.OffsetCommitResponseTopic
_OldTopic = OffsetFetchResponse.OffsetFetchResponseTopic
_Group = OffsetFetchResponse.OffsetFetchResponseGroup
_Topics = _Group.OffsetFetchResponseTopics
_DeleteTopic = OffsetDeleteResponse.OffsetDeleteResponseTopic
_NOTHING = CommittedOffset(NO_OFFSET, NO_EPOCH, "", -1)


class GroupOffsetHandlers:
    """One method per API."""

    def __init__(self, coordinator: GroupCoordinator, image: Callable[[], MetadataImage]) -> None:
        self._coordinator = coordinator
        self._image = image

    async def offset_commit(self, context: RequestContext, request: Any) -> Any:
        by_id = context.api_version >= TOPIC_IDS_FROM
        topics, items = [], []
        places: list[Any] = []  # the response's partitions that the coordinator decides, in order of `items`
        for topic in request.topics:
            name, topic_id, unknown = self._named(topic, by_id)
            partitions = []
            for partition in topic.partitions:
                answer = _CommitTopic.OffsetCommitResponsePartition(
                    partition_index=partition.partition_index, error_code=unknown or ErrorCode.NONE
                )
                partitions.append(answer)
                if unknown is None:
                    places.append(answer)
                    items.append(
                        OffsetToCommit(
                            name,
                            partition.partition_index,
                            partition.committed_offset,
                            partition.committed_leader_epoch,
                            partition.committed_metadata or "",
                            topic_id,
                        )
                    )
            topics.append(_CommitTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions))
        if items or not request.topics:
            for answer, code in zip(places, await self._commit(context, request, tuple(items)), strict=True):
                answer.error_code = code
        return OffsetCommitResponse(topics=topics)

    async def _commit(
        self, context: RequestContext, request: Any, items: tuple[OffsetToCommit, ...]
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

    def _named(self, topic: Any, by_id: bool) -> tuple[str, bytes, ErrorCode | None]:
        """The topic's name and id, and the error where there is no such topic."""
        topics = self._image().topics
        found = topics.get_by_id(raw_uuid(topic.topic_id)) if by_id else topics.get(topic.name)
        if found is not None:
            return found.name, found.topic_id, None
        if by_id:
            return "", ZERO_UUID, ErrorCode.UNKNOWN_TOPIC_ID
        return topic.name, ZERO_UUID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    # OffsetFetch -------------------------------------------------------------------------------------------

    async def offset_fetch(self, context: RequestContext, request: Any) -> Any:
        version = context.api_version
        if version >= MANY_GROUPS_FROM:
            by_id = version >= TOPIC_IDS_FROM
            groups = [await self._fetch_group(group.group_id, group.topics, by_id) for group in request.groups]
            return OffsetFetchResponse(groups=groups)
        group = await self._fetch_group(request.group_id, request.topics, by_id=False)
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
            topics = old_failure(request.topics, group.error_code)
        return OffsetFetchResponse(topics=topics, error_code=group.error_code)

    async def _fetch_group(self, group_id: str, topics: list[Any] | None, by_id: bool) -> Any:
        try:
            if topics is None:
                found = await self._fetch_all(group_id, by_id)
            else:
                found = await self._fetch_some(group_id, topics, by_id)
        except ProtocolError as error:
            return _Group(group_id=group_id, topics=[], error_code=error.code)
        return _Group(group_id=group_id, topics=found, error_code=ErrorCode.NONE)

    async def _fetch_all(self, group_id: str, by_id: bool) -> list[Any]:
        committed = await self._coordinator.fetch_all_offsets(group_id)
        topics = []
        for name, partitions in committed.items():
            topic_id = self._topic_id(name)
            if by_id and topic_id is None:
                continue  # it is gone, so it has no id to be named by
            current = {index: _of_topic(offset, topic_id) for index, offset in partitions.items()}
            rows = [_row(index, offset) for index, offset in current.items() if offset is not _NOTHING]
            if rows:
                topics.append(_topic(name, topic_id, rows))
        return topics

    async def _fetch_some(self, group_id: str, topics: list[Any], by_id: bool) -> list[Any]:
        names = [self._named(topic, by_id) for topic in topics]
        wanted = [(name, topic.partition_indexes) for (name, _, _), topic in zip(names, topics, strict=True)]
        answers = await self._coordinator.fetch_offsets(group_id, wanted)
        found = []
        for (name, _, unknown), topic, offsets in zip(names, topics, answers, strict=True):
            code = ErrorCode.UNKNOWN_TOPIC_ID if by_id and unknown is not None else ErrorCode.NONE
            topic_id = raw_uuid(topic.topic_id) if by_id else self._topic_id(name)
            rows = [
                _row(index, _of_topic(offset, topic_id), code)
                for index, offset in zip(topic.partition_indexes, offsets, strict=True)
            ]
            found.append(_topic(topic.name if not by_id else name, topic_id, rows))
        return found

    def _topic_id(self, name: str) -> bytes | None:
        topic = self._image().topics.get(name)
        return None if topic is None else topic.topic_id

    # OffsetDelete ------------------------------------------------------------------------------------------

    async def offset_delete(self, context: RequestContext, request: Any) -> Any:
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
        topics = [
            _DeleteTopic(
                name=topic.name,
                partitions=[
                    _DeleteTopic.OffsetDeleteResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=next(codes) if topic.name in known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return OffsetDeleteResponse(error_code=ErrorCode.NONE, topics=topics)


def _of_topic(committed: CommittedOffset | None, topic_id: bytes | None) -> CommittedOffset:
    """Nothing where the offset was committed for an earlier topic of that name."""
    if committed is None or (topic_id is not None and committed.topic_id not in (ZERO_UUID, topic_id)):
        return _NOTHING
    return committed


def _row(index: int, committed: CommittedOffset, code: ErrorCode = ErrorCode.NONE) -> Any:
    if code:
        committed = _NOTHING
    return _Topics.OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=code,
    )


def _topic(name: str, topic_id: bytes | None, rows: list[Any]) -> Any:
    return _Topics(name=name, topic_id=None if topic_id is None else schema_uuid(topic_id), partitions=rows)


def old_failure(topics: list[Any], code: int) -> list[Any]:
    """Version 1 has no error but the partitions'."""
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
