"""Encoded topic rows of Metadata responses, cached until their content changes.

A row is encoded for a listener, a version, operators or tenants, and a state of the brokers: which of them can be
reached there, and which are doubted. It is valid while the image has the same topic object. So a change of one topic
costs one row, and a thousand clients that ask for everything cost one join of the rows and their sends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable
from struct import Struct
from typing import NamedTuple

from broker.handlers.client_view import LISTENER_NOT_FOUND_FROM, ClientView
from common.node_settings.connections import ConnectionSettings
from common.pacing import Work
from kraft.image.topics import TopicImage
from kraft.topic_names import INTERNAL_TOPICS
from wire.apis import ApiKey
from wire.messages import MetadataResponse, schema_uuid
from wire.paced_codec import element_work

OPERATIONS_FROM, TAGS_FROM = 8, 9
TABLE_BYTES_MAX = ConnectionSettings().metadata_cache_bytes_max
PARTITION_COST, PARTITIONS_PER_STEP = 6, 32
JOINED_MAX = 16  # responses with all topics that one table keeps
ENTRY_BYTES = 250  # memory of an entry beside the row

_OPERATIONS = Struct(">i")
_Topic = MetadataResponse.MetadataResponseTopic
_Partition = _Topic.MetadataResponsePartition


class TopicRow(NamedTuple):
    """`nodes`: the brokers with replicas of the topic."""

    topic: TopicImage
    data: bytes
    nodes: frozenset[int]


class Rows(NamedTuple):
    """Rows for one response, in parts that several responses may share."""

    parts: list[bytes]
    number: int
    nodes: frozenset[int]


class _Joined:
    __slots__ = ("of", "rows", "size")

    def __init__(self, of: tuple[object, ...], rows: asyncio.Future[Rows]) -> None:
        self.of = of
        self.rows = rows
        self.size = 0

    def count(self) -> int:
        """Compute `size`, in bytes, when the rows are there."""
        self.size = sum(len(part) for part in self.rows.result().parts)
        return self.size


class RowTable:
    """The rows for one listener, version, kind of client and state of the brokers."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.size = 0
        self._rows: dict[bytes, TopicRow] = {}
        self._joined: dict[Hashable, _Joined] = {}

    def find(self, topic: TopicImage) -> TopicRow | None:
        """The row, if there is a valid one."""
        row = self._rows.get(topic.topic_id)
        return row if row is not None and row.topic is topic else None

    def make(self, view: ClientView, topic: TopicImage, shown_name: str) -> Work[TopicRow]:
        """Encode the row again."""
        listener_not_found = self.version >= LISTENER_NOT_FOUND_FROM
        partitions: list[_Partition] = []
        nodes: dict[int, None] = {}
        for image in topic.partitions.values():
            seen = view.partition(image, listener_not_found=listener_not_found)
            nodes.update(dict.fromkeys(seen.replicas))
            partitions.append(
                _Partition(
                    error_code=seen.error,
                    partition_index=seen.partition,
                    leader_id=seen.leader,
                    leader_epoch=seen.leader_epoch,
                    replica_nodes=seen.replicas,
                    isr_nodes=seen.isr,
                    offline_replicas=seen.offline,
                )
            )
            if len(partitions) % PARTITIONS_PER_STEP == 0:
                yield PARTITIONS_PER_STEP * PARTITION_COST
        yield len(partitions) % PARTITIONS_PER_STEP * PARTITION_COST
        message = _Topic(
            error_code=0,
            name=shown_name,
            topic_id=schema_uuid(topic.topic_id),
            is_internal=topic.name in INTERNAL_TOPICS,
            partitions=partitions,
            authorized_operations=None,
        )
        data = yield from element_work(ApiKey.METADATA, self.version, "topics", message)
        row = TopicRow(topic, data, frozenset(nodes))
        before = self._rows.get(topic.topic_id)
        self.size += len(data) - len(before.data) if before is not None else len(data) + ENTRY_BYTES
        self._rows[topic.topic_id] = row
        return row

    async def joined(self, reader: Hashable, of: tuple[object, ...], join: Callable[[], Awaitable[Rows]]) -> Rows:
        """All rows that `reader` may see, made once by `join` for all who ask while `of` is the same.

        `of`: the objects that the result depends on, compared by identity.
        """
        found = self._joined.pop(reader, None)
        if found is None or any(mine is not theirs for mine, theirs in zip(found.of, of, strict=True)):
            self._drop(found)
            found = _Joined(of, asyncio.ensure_future(join()))
            found.rows.add_done_callback(lambda rows: self._count(found, rows))
        self._joined[reader] = found
        while len(self._joined) > JOINED_MAX:
            self._drop(self._joined.pop(next(iter(self._joined))))
        return await asyncio.shield(found.rows)

    def _count(self, joined: _Joined, rows: asyncio.Future[Rows]) -> None:
        if rows.cancelled() or rows.exception() is not None:
            for reader, one in list(self._joined.items()):
                if one is joined:
                    del self._joined[reader]
        elif any(one is joined for one in self._joined.values()):
            self.size += joined.count()

    def _drop(self, joined: _Joined | None) -> None:
        if joined is not None:
            self.size -= joined.size

    def forget_missing(self, known: Iterable[bytes], count: int) -> None:
        """Drop the rows of deleted topics once they are as many as the others."""
        if len(self._rows) <= 2 * count + PARTITIONS_PER_STEP:
            return
        self._rows = {topic_id: self._rows[topic_id] for topic_id in known if topic_id in self._rows}
        self.size = sum(len(row.data) + ENTRY_BYTES for row in self._rows.values())

    def with_operations(self, data: bytes, operations: Iterable[int]) -> bytes:
        """The row with the operations that the client may perform on the topic."""
        bits = _OPERATIONS.pack(sum(1 << operation for operation in operations))
        end = b"\0" if self.version >= TAGS_FROM else b""
        return data[: -len(bits + end)] + bits + end


class TopicRows:
    """The tables of a broker, least recently used ones dropped: at most `bytes_max` bytes in all."""

    def __init__(self, bytes_max: int = TABLE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._tables: dict[Hashable, RowTable] = {}

    @property
    def size(self) -> int:
        """Total bytes."""
        return sum(table.size for table in self._tables.values())

    def table(self, view: ClientView, version: int, is_tenant: bool) -> RowTable:
        """The table for the response. If all tables are too large, the least recently used one is dropped."""
        key = (version, is_tenant, view.state)
        table = self._tables.pop(key, None)
        if table is None:
            table = RowTable(version)
        self._tables[key] = table
        while self.size > self._bytes_max and len(self._tables) > 1:
            del self._tables[next(iter(self._tables))]
        if table.size > self._bytes_max:
            table = self._tables[key] = RowTable(version)
        return table
