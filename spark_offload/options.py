"""The options of the data source as one value: every name, default and range on one page."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

EARLIEST, LATEST = -2, -1  # as Kafka's ListOffsets and Spark's Kafka source count them
CHUNK_BYTES = 8 << 20  # decoding is fastest while a chunk and its columns fit the caches
INFLATED_BYTES_MAX = 256 << 20
PARTITION_NUMBER_MAX = 2**31 - 1
OFFSET_MAX = 2**63 - 1


class OptionError(ValueError):
    """An option that is unknown, missing, out of its range or in conflict with another one."""


@dataclass(frozen=True, slots=True)
class OffsetChoice:
    """Where reading starts or ends: by offset, one per partition where given, or by timestamp (ms)."""

    default: int
    by_partition: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    timestamp: int | None = None

    def of(self, topic: str, partition: int) -> int:
        """An offset, `EARLIEST` or `LATEST`."""
        return self.by_partition.get(topic, {}).get(partition, self.default)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """A reader's options. Bytes and rows are plain counts, timestamps milliseconds since 1970 in UTC."""

    tier: str
    topics: tuple[str, ...]
    topic_pattern: str
    topic_id: str
    cluster_id: str
    tenant: str
    partitions: tuple[range, ...]
    starting: OffsetChoice
    ending: OffsetChoice
    include_headers: bool
    read_committed: bool
    fail_on_data_loss: bool
    pushdown: bool
    max_offsets_per_trigger: int | None
    split_bytes: int | None  # None: as the amount of data has it
    chunk_bytes: int
    inflated_batch_bytes: int

    def wants_partition(self, partition: int) -> bool:
        return not self.partitions or any(partition in span for span in self.partitions)


NAMES = (
    "tier",
    "topic",
    "topicPattern",
    "topicId",
    "clusterId",
    "tenant",
    "partitions",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "includeHeaders",
    "isolation",
    "failOnDataLoss",
    "pushdown",
    "maxOffsetsPerTrigger",
    "splitBytes",
    "chunkBytes",
    "inflatedBatchBytes",
)
ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
_LOWER_NAMES = {name.lower(): name for name in NAMES}
_PARTITION_SPAN = re.compile(r"(\d+)(?:-(\d+))?")


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Parses the options from Spark; the case of names does not matter. Raises OptionError."""
    given: dict[str, str] = {}
    for name, text in options.items():
        if name.lower() not in _LOWER_NAMES:
            raise OptionError(f"unknown option {name!r}; the options are {', '.join(NAMES)}")
        given[_LOWER_NAMES[name.lower()]] = text
    topics = tuple(name for name in (one.strip() for one in given.get("topic", "").split(",")) if name)
    pattern = given.get("topicPattern", "")
    if not given.get("tier"):
        raise OptionError("the option tier is missing: the URI of the bucket, s3://… or file://…")
    if bool(topics) == bool(pattern):
        raise OptionError("give one of the options topic and topicPattern")
    if given.get("topicId") and len(topics) != 1:
        raise OptionError("topicId goes with a single topic")
    return ReadOptions(
        tier=given["tier"],
        topics=tuple(dict.fromkeys(topics)),
        topic_pattern=_pattern(pattern),
        topic_id=_topic_id(given.get("topicId", "")),
        cluster_id=given.get("clusterId", ""),
        tenant=given.get("tenant", ""),
        partitions=_partitions(given.get("partitions", "")),
        starting=_choice(given, "startingOffsets", "startingTimestamp", EARLIEST),
        ending=_choice(given, "endingOffsets", "endingTimestamp", LATEST),
        include_headers=_flag(given, "includeHeaders", False),
        read_committed=_isolation(given.get("isolation", ISOLATION_LEVELS[0])),
        fail_on_data_loss=_flag(given, "failOnDataLoss", True),
        pushdown=_flag(given, "pushdown", False),
        max_offsets_per_trigger=_number(given, "maxOffsetsPerTrigger", 1, OFFSET_MAX),
        split_bytes=_number(given, "splitBytes", 1 << 10, 1 << 40),
        chunk_bytes=_size(given, "chunkBytes", CHUNK_BYTES, 1 << 10, 1 << 30),
        inflated_batch_bytes=_size(given, "inflatedBatchBytes", INFLATED_BYTES_MAX, 1 << 10, (1 << 31) - 1),
    )


def _choice(given: Mapping[str, str], offsets: str, timestamp: str, default: int) -> OffsetChoice:
    if offsets in given and timestamp in given:
        raise OptionError(f"give one of the options {offsets} and {timestamp}")
    if (moment := _number(given, timestamp, -OFFSET_MAX, OFFSET_MAX)) is not None:
        return OffsetChoice(default, timestamp=moment)
    text = given.get(offsets, "").strip()
    if not text:
        return OffsetChoice(default)
    if text.lower() in ("earliest", "latest"):
        return OffsetChoice(EARLIEST if text.lower() == "earliest" else LATEST)
    return OffsetChoice(default, _by_partition(offsets, text))


def _by_partition(name: str, text: str) -> dict[str, dict[int, int]]:
    """`{"topic": {"0": 23, "1": -2}}`, as Spark's Kafka source takes it."""
    hint = f'{name} is "earliest", "latest" or JSON like {{"topic": {{"0": 23, "1": -2}}}}, not {text!r}'
    try:
        topics: Any = json.loads(text)
        found = {
            topic: {_partition(number): _offset(offset) for number, offset in partitions.items()}
            for topic, partitions in topics.items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise OptionError(hint) from error
    return found


def _partition(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(text)
    return int(text)


def _offset(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not EARLIEST <= value <= OFFSET_MAX:
        raise ValueError(value)
    return value


def _partitions(text: str) -> tuple[range, ...]:
    """`0,2,5-7`."""
    spans = []
    for part in filter(None, (one.strip() for one in text.split(","))):
        match = _PARTITION_SPAN.fullmatch(part)
        first = int(match[1]) if match else -1
        last = int(match[2] or match[1]) if match else -1
        if not 0 <= first <= last <= PARTITION_NUMBER_MAX:
            raise OptionError(f"partitions is a list like 0,2,5-7, not {text!r}")
        spans.append(range(first, last + 1))
    return tuple(spans)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(f"topicPattern {text!r} is no regular expression: {error}") from error
    return text


def _topic_id(text: str) -> str:
    digits = text.lower()
    if digits and (len(digits) != 32 or not all(digit in "0123456789abcdef" for digit in digits)):
        raise OptionError(f"topicId is 32 hex digits, as in the topic's directory, not {text!r}")
    return digits


def _isolation(text: str) -> bool:
    if text.lower() not in ISOLATION_LEVELS:
        raise OptionError(f"isolation is {' or '.join(ISOLATION_LEVELS)}, not {text!r}")
    return text.lower() == "read_committed"


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise OptionError(f"{name} is true or false, not {text!r}")
    return text == "true"


def _number(given: Mapping[str, str], name: str, low: int, high: int) -> int | None:
    if name not in given:
        return None
    try:
        value = int(given[name])
    except ValueError as error:
        raise OptionError(f"{name} is a whole number, not {given[name]!r}") from error
    if not low <= value <= high:
        raise OptionError(f"{name} is from {low} to {high}, not {value}")
    return value


def _size(given: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    value = _number(given, name, low, high)
    return default if value is None else value
