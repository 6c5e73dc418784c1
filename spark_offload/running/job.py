"""The common parts of all jobs over the tier: options, progress and reports.

A job is one function `run(spark, options, progress) -> report`: `options` is a `JobOptions` with the job's own fields
added, `report` a `Report` with its own. Whatever is wrong with the data belongs in the report's problems, and the job
goes on with the rest; it raises only when nothing can be done at all: OptionError for what cannot be meant, StoreError
for a store that does not answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from spark_offload.options import ReadOptions, parse_options


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Which partitions a job works on. Empty texts and tuples choose nothing, so everything is meant.

    `tier` is the URI of the store, `topic_id` 32 hex digits, `partitions` text like `0,2,5-7`.
    """

    tier: str
    topics: tuple[str, ...] = ()
    cluster_id: str = ""
    tenant: str = ""
    topic_id: str = ""
    partitions: str = ""

    def source_options(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """The choice as options of the data source, with `more` of them."""
        chosen = {
            "tier": self.tier,
            "clusterId": self.cluster_id,
            "tenant": self.tenant,
            "topicId": self.topic_id,
            "partitions": self.partitions,
        }
        chosen |= {"topic": ",".join(self.topics)} if self.topics else {"topicPattern": ".*"}
        return {name: text for name, text in chosen.items() if text} | dict(more or {})

    def reading(self, more: Mapping[str, str] | None = None) -> ReadOptions:
        """The same, understood, for `Catalog` and its like. Raises OptionError."""
        return parse_options(self.source_options(more))


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it should be. `what` is one word of a fixed list of the job's, for machines; `reason`
    is a sentence for people. -1 and empty texts where there is none; `position` is a byte of the object `key`."""

    what: str
    reason: str
    topic: str = ""
    partition: int = -1
    offset: int = -1
    key: str = ""
    position: int = -1

    def line(self) -> str:
        place = f"{self.topic}-{self.partition}" if self.partition >= 0 else self.topic
        place += f" at offset {self.offset}" if self.offset >= 0 else ""
        place += f", object {self.key}" if self.key else ""
        place += f", byte {self.position}" if self.position >= 0 else ""
        return f"{place}: {self.what}: {self.reason}" if place else f"{self.what}: {self.reason}"


@dataclass(slots=True, kw_only=True)
class Report:
    """The common part of reports. Jobs add fields of plain values, dataclasses, lists and dicts with texts as keys."""

    problems: list[Problem] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether the command ends with 1."""
        return bool(self.problems)

    def as_json(self) -> dict[str, Any]:
        """All fields, ready for `json.dumps`; a job whose fields are not plain says itself how they read."""
        return {"failed": self.failed} | asdict(self)

    def lines(self) -> list[str]:
        """The report's lines for the user."""
        return [problem.line() for problem in self.problems]


def size_text(size: float) -> str:
    """Bytes in the unit in which they are a number to read, never a rounded nothing."""
    for unit in ("bytes", "KB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:,.2f} GB"


class Stage(Protocol):
    """One part of a job whose size is known."""

    def advance(self, by: int = 1) -> None: ...


class Progress(Protocol):
    """Receives a job's progress; called by the driver's main thread and by one that follows tasks."""

    def stage(self, title: str, total: int, unit: str = "partitions") -> Stage:
        """Begin the next part, which ends the previous one. `unit` names what is counted, or is `bytes`."""
        ...

    def note(self, text: str) -> None:
        """Show a line for the user, beside the bars."""
        ...


class SilentStage:
    def advance(self, by: int = 1) -> None:
        pass


class SilentProgress:
    """For callers that show nothing."""

    def stage(self, title: str, total: int, unit: str = "partitions") -> Stage:
        return SilentStage()

    def note(self, text: str) -> None:
        pass
