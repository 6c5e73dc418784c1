"""Compaction of batches, one after the other: decides from a batch's bytes what remains of it.

A batch keeps its base and last offset, its producer fields and its codec, so that offsets and sequence numbers do not
change. A tombstone gets a delete horizon when a pass first sees it (attribute bit 6; the base timestamp then holds the
time), and the first pass after that time removes it; likewise a transaction marker, once no record of its transaction
is left. Source: KIP-98, KIP-534 and the behaviour of Apache Kafka 4.1's Cleaner.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from common.errors import ProtocolError
from records.batch import DELETE_HORIZON, NO_TIMESTAMP, BatchHeader
from records.builder import assemble, empty_batch
from records.compression import Compression, compress
from records.control import EndMarker, MarkerKind, read_marker
from records.record import RecordSpan, inflate_records, key_of, scan_records, with_timestamp_delta
from storage.cleaning.compaction import OffsetMap
from storage.indexes.transaction_index import AbortedTransaction
from storage.producers.frozen_producers import LastRecord

Report = Callable[[int, str], None]
"""(base offset, reason) of a batch that is kept unchanged because its records cannot be read."""


class TransactionTracker:
    """Finds, batch by batch in offset order, aborted records and unnecessary markers."""

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        """`aborted`: from the transaction indexes, those that overlap the range."""
        self._waiting = sorted(set(aborted), key=lambda entry: entry.first_offset, reverse=True)
        self._aborted: dict[int, AbortedTransaction] = {}  # by producer id: open at the current offset
        self._with_records: set[int] = set()  # producer ids of aborted transactions with remaining batches
        self._committed: dict[int, None] = {}  # producer ids with records since their last marker

    def _advance(self, offset: int) -> None:
        waiting = self._waiting
        while waiting and waiting[-1].first_offset <= offset:
            entry = waiting.pop()
            self._aborted.setdefault(entry.producer_id, entry)

    def on_data(self, header: BatchHeader) -> bool:
        """Whether the records of this batch were aborted."""
        self._advance(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id not in self._aborted:
            self._committed[header.producer_id] = None
            return False
        self._with_records.add(header.producer_id)
        return True

    def on_marker(self, header: BatchHeader, marker: EndMarker | None) -> tuple[bool, AbortedTransaction | None]:
        """Whether this marker's transaction has no batch left in the log; and its index entry if it was aborted."""
        self._advance(header.last_offset)
        if marker is None:
            return header.count == 0, None  # emptied before, or not of a transaction
        if marker.kind is MarkerKind.COMMIT:
            had_records = header.producer_id in self._committed
            self._committed.pop(header.producer_id, None)
            return not had_records, None
        aborted = self._aborted.pop(header.producer_id, None)
        has_records = aborted is not None and header.producer_id in self._with_records
        self._with_records.discard(header.producer_id)
        return not has_records, aborted


def index_batch(
    offset_map: OffsetMap,
    tracker: TransactionTracker,
    view: memoryview,
    at: int,
    header: BatchHeader,
    start_offset: int,
    inflated_bytes_max: int,
) -> bool:
    """Add the keys of one dirty batch to the map; False if it became full within this batch.

    Aborted records and unreadable batches are skipped: neither replaces anything.
    """
    if header.is_control:
        tracker.on_marker(header, _marker_of(view, at, header))
    elif not tracker.on_data(header):
        try:
            _, data = inflate_records(view, at, header.size, inflated_bytes_max=inflated_bytes_max)
            keyed = [(key_of(data, span), span.offset_delta) for span in scan_records(header, data)]
        except ProtocolError:
            keyed = []
        for key, delta in keyed:
            offset = header.base_offset + delta
            if key is not None and offset >= start_offset and not offset_map.put(key, offset):
                return False
            offset_map.advance_to(offset)
    if header.last_offset >= start_offset:
        offset_map.advance_to(header.last_offset)
    return True


def _marker_of(view: memoryview, at: int, header: BatchHeader) -> EndMarker | None:
    try:
        return read_marker(view, at, header.size)
    except ProtocolError:
        return None


class FilterSettings(NamedTuple):
    """`keeps_deletes`: a tier still has older values, so tombstones, markers and their index entries must stay."""

    delete_retention_ms: int
    inflated_bytes_max: int
    keeps_deletes: bool = False


class FilterCounts(NamedTuple):
    """The counts of one pass; records are counted only in batches that were decoded."""

    batches: int = 0
    batches_dropped: int = 0
    batches_unreadable: int = 0
    records_dropped: int = 0
    records_without_key: int = 0


class BatchFilter:
    """Decides for each batch of the segments, in offset order, what is written again."""

    def __init__(
        self,
        offset_map: OffsetMap,
        tracker: TransactionTracker,
        last_records: Mapping[int, LastRecord],
        first_uncleanable_offset: int,
        now_ms: int,
        settings: FilterSettings,
        report: Report,
    ) -> None:
        self._map = offset_map
        self._tracker = tracker
        self._last_records = last_records
        self._first_uncleanable_offset = first_uncleanable_offset
        self._now_ms = now_ms
        self._settings = settings
        self._report = report
        self._batches = self._batches_dropped = self._batches_unreadable = 0
        self._records_dropped = self._records_without_key = 0
        self.kept_aborted: list[AbortedTransaction] = []  # for the new segment's transaction index

    @property
    def counts(self) -> FilterCounts:
        return FilterCounts(
            self._batches,
            self._batches_dropped,
            self._batches_unreadable,
            self._records_dropped,
            self._records_without_key,
        )

    def filter(self, view: memoryview, at: int, header: BatchHeader) -> memoryview | bytearray | None:
        """The bytes to write: the batch unchanged (a view), a smaller one, or None."""
        self._batches += 1
        left = self._filter_control(view, at, header) if header.is_control else self._filter_data(view, at, header)
        if left is None and self._must_stay(header):
            left = empty_batch(header)
        if left is None:
            self._batches_dropped += 1
        return left

    def _must_stay(self, header: BatchHeader) -> bool:
        """Keep the pass's last batch, because it has the log's last offset, and a producer's last batch, because it has
        the producer's sequence and epoch."""
        if header.next_offset == self._first_uncleanable_offset:
            return True
        last = self._last_records.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            return False
        if last.last_data_offset >= 0:
            return header.last_offset == last.last_data_offset
        return header.is_control and header.producer_epoch == last.producer_epoch

    def _has_passed(self, header: BatchHeader) -> bool:
        """Whether the delete horizon has passed."""
        horizon = header.delete_horizon_ms
        return horizon is not None and horizon <= self._now_ms and not self._settings.keeps_deletes

    def _new_horizon(self, header: BatchHeader) -> int | None:
        if header.delete_horizon_ms is not None or self._settings.keeps_deletes:
            return None
        return self._now_ms + self._settings.delete_retention_ms

    def _filter_control(self, view: memoryview, at: int, header: BatchHeader) -> memoryview | bytearray | None:
        try:
            marker = read_marker(view, at, header.size)
        except ProtocolError as error:
            return self._keep_unreadable(view, at, header, error)
        is_unneeded, aborted = self._tracker.on_marker(header, marker)
        # The tier may still have the records of a transaction of which the local log has only the marker. Until the
        # marker is copied, this entry alone says that they were aborted.
        if aborted is not None and (not is_unneeded or self._settings.keeps_deletes):
            self.kept_aborted.append(aborted)
        if header.count == 0 or (is_unneeded and self._has_passed(header)):
            return None
        horizon = self._new_horizon(header) if is_unneeded else None
        if horizon is None:
            return view[at : at + header.size]
        try:
            _, data = inflate_records(view, at, header.size, inflated_bytes_max=self._settings.inflated_bytes_max)
            spans = list(scan_records(header, data))
        except ProtocolError as error:
            return self._keep_unreadable(view, at, header, error)
        return _rebuild(header, data, spans, horizon)

    def _filter_data(self, view: memoryview, at: int, header: BatchHeader) -> memoryview | bytearray | None:
        if self._tracker.on_data(header):
            self._records_dropped += header.count
            return None
        if header.count == 0:
            return None
        if header.base_offset > self._map.latest_offset:
            return view[at : at + header.size]
        try:
            _, data = inflate_records(view, at, header.size, inflated_bytes_max=self._settings.inflated_bytes_max)
            retained, has_tombstone = self._retained(header, data)
        except ProtocolError as error:
            return self._keep_unreadable(view, at, header, error)
        self._records_dropped += header.count - len(retained)
        if not retained:
            return None
        horizon = self._new_horizon(header) if has_tombstone else None
        if horizon is None and len(retained) == header.count:
            return view[at : at + header.size]
        return _rebuild(header, data, retained, horizon)

    def _retained(self, header: BatchHeader, data: bytes) -> tuple[list[RecordSpan], bool]:
        """The records to keep, and whether one of them is a tombstone."""
        retained = []
        has_tombstone = False
        without_key = 0
        deletes_go = self._has_passed(header)
        latest = self._map.latest_offset
        for span in scan_records(header, data):
            offset = header.base_offset + span.offset_delta
            if offset <= latest:
                key = key_of(data, span)
                if key is None:
                    without_key += 1
                    continue
                if offset < self._map.get(key) or (span.value_length < 0 and deletes_go):
                    continue
            retained.append(span)
            has_tombstone = has_tombstone or span.value_length < 0
        self._records_without_key += without_key
        return retained, has_tombstone

    def _keep_unreadable(self, view: memoryview, at: int, header: BatchHeader, error: ProtocolError) -> memoryview:
        """Keep the batch: its CRC is correct, so its producer sent these bytes, and they harm only its readers."""
        self._batches_unreadable += 1
        self._report(header.base_offset, error.message)
        return view[at : at + header.size]


def _rebuild(header: BatchHeader, data: bytes, retained: Sequence[RecordSpan], horizon_ms: int | None) -> bytearray:
    """The batch with only `retained` (at least one) and, if given, a delete horizon."""
    base = header.base_timestamp
    fields = header
    if horizon_ms is None:
        body = b"".join(data[span.start : span.end] for span in retained)
    else:
        shift = base - horizon_ms
        body = b"".join(with_timestamp_delta(data, span, span.timestamp_delta + shift) for span in retained)
        fields = replace(header, attributes=header.attributes | DELETE_HORIZON, base_timestamp=horizon_ms)
    if not header.is_log_append_time:
        largest = max(base + span.timestamp_delta for span in retained)
        fields = replace(fields, max_timestamp=max(largest, NO_TIMESTAMP))
    return assemble(replace(fields, count=len(retained)), compress(Compression(header.compression), body))
