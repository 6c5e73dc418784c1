"""Topics with their partitions in hand-written codecs: at once if they are few, otherwise as work."""

from __future__ import annotations

from collections.abc import Callable
from struct import error as struct_error
from typing import Generic, Protocol, TypeVar

from common.errors import MalformedFrame
from common.pacing import Work
from wire.primitives import PARTS_MAX, count_at, put_count, put_string, skip_tags, topic_at

PARTS_AT_ONCE = 250  # partitions read, or rows written, between two yields (`common/pacing.py`)
PART_COST = 2  # units of one of them

P = TypeVar("P")
ReadParts = Callable[[bytearray, int, int, int, bytes, int, list[P]], int]
"""(buffer, position, end, version, topic, how many partitions, where to) -> the next position."""


class ManyParts(MalformedFrame):
    """More topics or partitions than are read in one go."""


class Row(Protocol):
    @property
    def topic(self) -> bytes: ...


R = TypeVar("R", bound=Row)


class TopicList(Generic[P]):
    """One message's list of topics, each with a list of partitions."""

    __slots__ = ("_flexible_from", "_ids_from", "_read_parts")

    def __init__(self, flexible_from: int, ids_from: int, read_parts: ReadParts[P]) -> None:
        self._flexible_from = flexible_from
        self._ids_from = ids_from
        self._read_parts = read_parts

    def read(
        self, buffer: bytearray, at: int, end: int, version: int, prefix: bytes, most: int
    ) -> tuple[list[P], int]:  # fmt: skip
        """(all partitions, next position). Topics' names get `prefix`.

        Raises ManyParts above `most` topics or partitions; MalformedFrame; IndexError and struct.error at the end of
        `buffer`.
        """
        flexible, by_id = version >= self._flexible_from, version >= self._ids_from
        parts: list[P] = []
        topics, at = count_at(buffer, at, end, flexible)
        if topics > most:
            raise ManyParts("too many topics")
        for _ in range(topics):
            topic, at = topic_at(buffer, at, end, flexible, by_id, prefix)
            count, at = count_at(buffer, at, end, flexible)
            if len(parts) + count > most:
                raise ManyParts("too many partitions")
            at = self._read_parts(buffer, at, end, version, topic, count, parts)
            if flexible:
                at = skip_tags(buffer, at, end) if buffer[at] else at + 1
        return parts, at

    def reading(
        self, buffer: bytearray, at: int, end: int, version: int, prefix: bytes
    ) -> Work[tuple[list[P], int]]:  # fmt: skip
        """`read` as work, of up to `PARTS_MAX`. Raises MalformedFrame."""
        flexible, by_id = version >= self._flexible_from, version >= self._ids_from
        parts: list[P] = []
        unpaid = 0
        try:
            topics, at = count_at(buffer, at, end, flexible)
            for _ in range(topics):
                topic, at = topic_at(buffer, at, end, flexible, by_id, prefix)
                count, at = count_at(buffer, at, end, flexible)
                if len(parts) + count > PARTS_MAX:
                    raise ManyParts("too many partitions")
                unpaid += 1
                while True:
                    now = min(count, PARTS_AT_ONCE)
                    at = self._read_parts(buffer, at, end, version, topic, now, parts)
                    count -= now
                    unpaid += now
                    if unpaid >= PARTS_AT_ONCE:
                        yield unpaid * PART_COST
                        unpaid = 0
                    if not count:
                        break
                if flexible:
                    at = skip_tags(buffer, at, end)
        except (IndexError, struct_error) as error:
            raise MalformedFrame("partitions: cut short") from error
        return parts, at

    def put_head(self, out: bytearray, version: int, topic: bytes, count: int, cut: int) -> None:
        """A topic, and how many partitions of it follow; `cut` bytes of its name are left out."""
        flexible = version >= self._flexible_from
        out += topic if version >= self._ids_from else put_string(topic[cut:] if cut else topic, flexible)
        out += put_count(count, flexible)


def by_topic(rows: list[R]) -> dict[bytes, list[R]]:
    """Rows by topic; those of one topic need not be adjacent."""
    topics: dict[bytes, list[R]] = {}
    for row in rows:
        topics.setdefault(row.topic, []).append(row)
    return topics


def grouping(rows: list[R]) -> Work[dict[bytes, list[R]]]:
    """`by_topic` as work."""
    topics: dict[bytes, list[R]] = {}
    for begin in range(0, len(rows), PARTS_AT_ONCE):
        for topic, of_topic in by_topic(rows[begin : begin + PARTS_AT_ONCE]).items():
            topics.setdefault(topic, []).extend(of_topic)
        yield PARTS_AT_ONCE
    return topics
