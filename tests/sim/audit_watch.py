"""The audit comes first: a log is cut, or begins higher, only when its broker's device holds the event that says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kraft.topic_names import AUDIT_TOPIC
from records.audit_event import AuditEvent, AuditKind, decode_audit_event
from records.record import decode_records
from storage.audit.audit_journal import JOURNAL_DIRECTORY
from storage.audit.journal_files import entries_in
from tests.sim.disk import Device, Directory, FileNode
from tests.sim.history import TopicPartition
from tests.sim.invariants import Coverage, InvariantBroken
from tests.sim.world import Node

_CUTS = (AuditKind.LOG_TRUNCATED, AuditKind.LOG_STARTED_OVER)
_MOVES = (AuditKind.LOG_START_MOVED, *_CUTS)


class DurableJournal:
    """The events of one device's journal that a loss of power would leave, each to explain one change."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._read: dict[str, int] = {}  # by file: the position behind what was read
        self._unused: list[AuditEvent] = []

    def explains(self, kinds: tuple[AuditKind, ...], key: TopicPartition, name: str, offset: int) -> bool:
        """Whether an event of these kinds says that this partition's `name` becomes `offset`; it is used up then."""
        self._look()
        for number, event in enumerate(self._unused):
            if event.event in kinds and (event.topic, event.partition) == key and event.after.get(name) == offset:
                del self._unused[number]
                return True
        return False

    def _look(self) -> None:
        directory = self._device.root.durable.get(JOURNAL_DIRECTORY)
        names = directory.durable if isinstance(directory, Directory) else {}
        for name in sorted(names):
            node = names[name]
            if not name.endswith(".journal") or not isinstance(node, FileNode):
                continue
            for entry in entries_in(bytes(node.durable), self._read.get(name, 0)):
                self._read[name] = entry.end
                self._unused.append(decode_audit_event(entry.payload))


class AuditShippedOnce:
    """What is committed to `__audit`: of each journal in order, each event once, none about the topic itself."""

    def __init__(self, coverage: Coverage) -> None:
        self._coverage = coverage
        self._last: dict[tuple[int, str], int] = {}  # by node and incarnation: the sequence

    def committed(self, batch: bytes) -> None:
        for record in decode_records(memoryview(batch), 0, len(batch), inflated_bytes_max=1 << 20):
            event = decode_audit_event(record.value or b"")
            journal = (event.node, event.incarnation)
            if event.sequence <= self._last.get(journal, -1) or event.topic == AUDIT_TOPIC:
                raise InvariantBroken(self, f"{event} after sequence {self._last.get(journal, -1)}")
            self._last[journal] = event.sequence
            self._coverage.add("events shipped")


class AuditComesFirst:
    """Looks at logs within one life of their broker; what recovery cuts was not on the device as a whole."""

    def __init__(self, device_of: Callable[[str], Device], coverage: Coverage) -> None:
        self._coverage = coverage
        self._device_of = device_of
        self._journals: dict[str, DurableJournal] = {}
        self._seen: dict[tuple[str, TopicPartition], tuple[Any, int, int]] = {}  # log, start, end

    def saw(self, node: Node, key: TopicPartition, log: Any) -> None:
        start, end = log.log_start_offset, log.log_end_offset
        known = self._seen.get((node.name, key))
        if known is not None and known[0] is log and known[1] == start and known[2] <= end:
            if known[2] != end:
                self._seen[node.name, key] = (log, start, end)
            return
        self._seen[node.name, key] = (log, start, end)
        if known is None or known[0] is not log:
            return
        if end < known[2]:
            self._check(node.name, _CUTS, key, "log_end_offset", end)
        elif start > known[1]:
            self._check(node.name, _MOVES, key, "log_start_offset", start)

    def _check(self, name: str, kinds: tuple[AuditKind, ...], key: TopicPartition, what: str, offset: int) -> None:
        self._coverage.add("changes that the audit tells")
        journal = self._journals.get(name)
        if journal is None:
            journal = self._journals[name] = DurableJournal(self._device_of(name))
        if not journal.explains(kinds, key, what, offset):
            raise InvariantBroken(self, f"{name}: {key} has {what} {offset}, and no durable event says so")
