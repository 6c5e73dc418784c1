"""Produce 3-13, from the receive buffer to the log.

Behaviour: for each partition the handler checks its one batch by the header, stamps it in the buffer and appends it;
then the call returns. acks=0 gets no response (an error closes the connection, so that the client refreshes its
metadata), but over its quota its connection is muted all the same. acks=1 is answered when this broker holds the batch,
acks=all when the high watermark has passed it, a duplicate like its original. A batch whose records must be inspected
(`record_inspection.py`), or whose transaction's coordinator must be asked (`transactional_produce.py`), is copied and
appended later, in order.

Versions: record errors from 8 on, leader hints from 10 on, topic ids from 13 on.
A request has no task, future or timer of its own, except one with very many partitions or bytes (`long_produce.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from broker.deadlines import Deadlines
from broker.handlers.first_batches import check_order, note_refusal
from broker.handlers.pending_produce import GatheredRow, PendingProduce, RowWaiter
from broker.handlers.record_inspection import RecordInspection
from broker.handlers.transaction_verification import TransactionVerification
from broker.handlers.transactional_produce import TransactionalProduce
from broker.partitions.hosted import HostedPartitions
from broker.partitions.leader_hints import LeaderHints
from broker.partitions.partition import Partition
from broker.requests.context import Throttle
from broker.requests.error_counts import ErrorCounts
from broker.security.authorizer import Access
from broker.security.session import ClientSession
from broker.security.usage import ThrottleReason
from broker.telemetry.request_trace import RequestTrace, RequestTracer
from broker.tenancy.scope import tenant_text
from common.errors import ErrorCode, ProtocolError
from common.metric_catalogue.brokers import LATENCY_BUCKETS
from common.metrics import Histogram, Metrics
from common.pacing import Work
from common.ports import Clock
from kraft.image.tenants import local_name
from kraft.records import AclOperation, AclResource
from kraft.topic_names import INTERNAL_TOPICS
from records.batch import is_transactional
from records.record import InvalidRecords
from storage.log.partition_log import Appended
from wire.connection import Connection
from wire.hot_codec import (
    PARTS_AT_ONCE,
    PRODUCE,
    Endpoint,
    LeaderHint,
    ManyParts,
    ProduceCall,
    ProducedPart,
    ProducedRow,
    RecordError,
    RequestHead,
    decode_produce,
    encode_produce_response,
    produce_decoding,
    produce_encoding,
)
from wire.loop_meter import LoopMeter
from wire.outgoing import Reply

ALL, LEADER, NONE = -1, 1, 0
NO_ERROR = int(ErrorCode.NONE)
BY_ID_FROM = 13
TIMEOUT_MS_MAX = 2**31 - 1
BYTES_AT_ONCE = 4 << 20  # limit for a request of several batches that is served in one slice: a few milliseconds
ROW_COST = 4  # units of `common.pacing` per row of a long response, at most
_EMPTY: Mapping[int, Partition] = {}
_WRITE, _TOPIC = int(AclOperation.WRITE), int(AclResource.TOPIC)


class ProduceServices(Struct, frozen=True):
    """Dependencies of the handler; `disk_pause_ms` returns how long producers are throttled while the disk fills."""

    hosted: HostedPartitions
    hints: LeaderHints
    inspection: RecordInspection
    transactions: TransactionVerification
    deadlines: Deadlines
    throttle: Throttle
    clock: Clock
    meter: LoopMeter
    disk_pause_ms: Callable[[], int]
    parts_at_once: int
    tracer: RequestTracer | None = None


class ProduceHandler:
    """Serves every Produce request of a broker."""

    def __init__(self, services: ProduceServices) -> None:
        self._hosted = services.hosted
        self._hints = services.hints
        self._inspection = services.inspection
        self._transactional = TransactionalProduce(services.transactions, self, services.clock)
        self._deadlines = services.deadlines
        self._throttle = services.throttle
        self._clock = services.clock
        self.now = services.clock.monotonic
        self.meter = services.meter
        self._disk_pause_ms = services.disk_pause_ms
        self._latency = Histogram(LATENCY_BUCKETS)
        self.answered = self._latency.add
        self._failures = ErrorCounts()
        self._loop = asyncio.get_running_loop()
        self._tracer = services.tracer
        self.parts_at_once = services.parts_at_once
        self.bytes_at_once = BYTES_AT_ONCE

    def handle(
        self,
        session: ClientSession,
        buffer: bytearray,
        view: memoryview,
        head: RequestHead,
        at: int,
        end: int,
    ) -> Work[ProduceCall] | None:
        """Serve the request in the frame `buffer[at:end]`, which begins with `head`. Raises MalformedFrame.

        A request with more than `parts_at_once` partitions, or with several batches of more than `bytes_at_once`, is
        not served: the returned work decodes it.
        """
        prefix, version, body = session.topic_prefix, head.version, head.body
        try:
            call = decode_produce(buffer, body, end, version, prefix, self.parts_at_once)
        except ManyParts:
            return produce_decoding(buffer, body, end, version, prefix)
        if end - body > self.bytes_at_once and len(call.parts) > 1:
            return produce_decoding(buffer, body, end, version, prefix)
        pause_ms = self.pause_ms(session, head, end - at)
        pending = PendingProduce(self, session, call, head, pause_ms)
        if self._tracer is not None:
            pending.trace_by(self._tracer)
        self.take(pending, refusal_of(call), buffer, view, prefix)
        if pending.trace is not None:
            self._describe(pending.trace, session, call, head, end - at)
        if pause_ms:  # not when the response is sent: requests behind this one would be appended meanwhile
            connection: Connection = session.connection
            connection.mute_for(pause_ms / 1000)
        if not call.parts:
            self.reply(session, None, call.acks, head, pause_ms, [])
        elif call.acks != NONE and pending.park(0):
            timeout_ms = min(max(call.timeout_ms, 0), TIMEOUT_MS_MAX)
            self._deadlines.add(self._loop.time() + timeout_ms / 1000, pending)
        return None

    def _describe(
        self, trace: RequestTrace, session: ClientSession, call: ProduceCall, head: RequestHead, size: int
    ) -> None:
        """Its batches are appended or rejected."""
        topic = ""
        if call.parts:
            named = call.parts[0].topic
            known = self._hosted.image.topics.get_by_id(named) if head.version >= BY_ID_FROM else None
            topic = named.decode(errors="replace") if known is None else known.name
        trace.appended(
            self.now(),
            {
                "messaging.system": "kafka",
                "messaging.destination.name": local_name(topic),
                "messaging.client.id": (head.client_id or b"").decode(errors="replace"),
                "tidelog.tenant": session.tenant or "",
                "tidelog.request.bytes": size,
                "tidelog.partitions": len(call.parts),
                "tidelog.acks": call.acks,
            },
        )

    def take(
        self,
        pending: PendingProduce,
        refusal: ErrorCode | None,
        buffer: bytearray,
        view: memoryview,
        prefix: bytes,
    ) -> None:
        """Append all parts of `pending`, or answer them all with `refusal`."""
        call = pending.call
        transactional = call.transactional_id is not None
        if transactional and refusal is None:
            refusal = self._transactional.refusal(call, view, pending.access)
        if refusal is not None:
            for number, part in enumerate(call.parts):
                pending.answer(number, ProducedRow(part.topic, part.partition, refusal, -1))
            return
        topics = self._hosted.by_id if pending.head.version >= BY_ID_FROM else self._hosted.by_name
        now_ms = self._clock.wall_ms()
        access = pending.access
        for number, part in enumerate(call.parts):
            partition = topics.get(part.topic, _EMPTY).get(part.partition)
            if access is not None and not self._may_write(access, part, partition, pending.head.version, prefix):
                error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                pending.answer(number, ProducedRow(part.topic, part.partition, error, -1))
                continue
            if partition is None or (prefix and not partition.name.startswith(prefix)):
                pending.answer(number, self._missing(part, pending.head.version, prefix))
                continue
            # a coordinator's log: a client's records must not be replayed as its decisions
            if partition.topic in INTERNAL_TOPICS:
                error = ErrorCode.INVALID_TOPIC_EXCEPTION
                pending.answer(number, ProducedRow(part.topic, part.partition, error, -1))
                continue
            try:
                if partition.inspects_records or partition in self._inspection:
                    self._inspect(pending, number, partition, view, now_ms)
                    continue
                if transactional and is_transactional(view, part.start, part.end):
                    self._transactional.append(pending, number, partition, view, part.start, part.end, now_ms)
                    continue
                appended = partition.append_produced(buffer, view, part.start, part.end, call.acks, now_ms)
            except ProtocolError as error:
                self.failed(pending, number, error)
                continue
            self.appended(pending, number, partition, appended)

    def _may_write(
        self, access: Access, part: ProducedPart, partition: Partition | None, version: int, prefix: bytes
    ) -> bool:
        """Return whether the session may write to this topic, whether or not it exists.

        Unknown topic ids, and ids of other tenants, pass here: the append rejects them with UNKNOWN_TOPIC_ID, so that a
        tenant cannot learn which ids exist.
        """
        if partition is not None and partition.name.startswith(prefix):
            return access.may(_WRITE, _TOPIC, partition.topic)
        if version < BY_ID_FROM:
            return access.may(_WRITE, _TOPIC, part.topic.decode(errors="replace"))
        topic = self._hosted.image.topics.get_by_id(part.topic)
        return topic is None or not topic.name.encode().startswith(prefix) or access.may(_WRITE, _TOPIC, topic.name)

    def _inspect(
        self, pending: PendingProduce, number: int, partition: Partition, view: memoryview, now_ms: int
    ) -> None:
        part, acks = pending.call.parts[number], pending.call.acks
        partition.check_appendable(acks)
        transactional = pending.call.transactional_id is not None and is_transactional(view, part.start, part.end)
        header = partition.check_batch(view, part.start, part.end, now_ms, transactional=transactional)
        came_behind = partition.has_just_refused

        def inspected(batch: bytearray | ProtocolError) -> None:
            if pending.settled:  # timed out: the client may have sent it again, so this copy must not be appended
                note_refusal(partition, header)
                return
            # not raised, because a raised error would keep its frames and their data alive
            if isinstance(batch, ProtocolError):
                self.failed(pending, number, batch)
                return
            wall_ms = self._clock.wall_ms()
            try:
                check_order(partition, header, came_behind=came_behind)
                with memoryview(batch) as whole:
                    if transactional:
                        self._transactional.append(pending, number, partition, whole, 0, len(batch), wall_ms)
                        return
                    appended = partition.append_produced(batch, whole, 0, len(batch), acks, wall_ms)
            except ProtocolError as error:
                self.failed(pending, number, error)
                return
            self.appended(pending, number, partition, appended)

        try:
            self._inspection.submit(partition, bytes(view[part.start : part.end]), inspected)
        except ProtocolError:  # the queue is full
            note_refusal(partition, header)
            raise

    def appended(self, pending: PendingProduce, number: int, partition: Partition, appended: Appended) -> None:
        """Part `number` is in the log: answer it when that is as certain as the request wants."""
        part = pending.call.parts[number]
        row = ProducedRow(
            part.topic,
            part.partition,
            NO_ERROR,
            appended.base_offset,
            appended.max_timestamp,
            partition.log.log_start_offset,
        )
        if pending.gathered is not None:
            pending.gathered.setdefault(partition, []).append(GatheredRow(number, row, appended.next_offset))
            return
        acks = pending.call.acks
        if acks == ALL:
            waits = partition.when_committed(appended.next_offset, RowWaiter(pending, number, row, partition))
        elif acks == LEADER and partition.log.written_end_offset < appended.next_offset:
            waits = partition.when_written(appended.next_offset, RowWaiter(pending, number, row, partition))
        else:
            waits = False
        if not waits:
            pending.answer(number, row)

    def _missing(self, part: ProducedPart, version: int, prefix: bytes) -> ProducedRow:
        if version >= BY_ID_FROM:
            error = self._hosted.missing_by_id(part.topic, part.partition, prefix)
        else:
            error = self._hosted.missing_by_name(part.topic, part.partition)
        return ProducedRow(part.topic, part.partition, error, -1)

    def failed(self, pending: PendingProduce, number: int, error: ProtocolError) -> None:
        """Part `number` was rejected."""
        part = pending.call.parts[number]
        message = error.message.encode() if error.message else None
        record_errors: Sequence[RecordError] = ()
        if isinstance(error, InvalidRecords):
            record_errors = [RecordError(index, why.encode()) for index, why in error.record_errors]
        row = ProducedRow(
            part.topic, part.partition, error.code, -1, record_errors=record_errors, error_message=message
        )
        pending.answer(number, row)

    def reply(
        self,
        session: ClientSession,
        reply: Reply | None,
        acks: int,
        head: RequestHead,
        pause_ms: int,
        rows: list[ProducedRow],
    ) -> None:
        """Send the response, in the order of requests if it had to wait, with leader hints for rows that need them."""
        connection: Connection = session.connection
        error = NO_ERROR
        for row in rows:
            if row.error:
                error = row.error
                self._failures.add(error)
                break
        if acks == NONE:
            if error:
                connection.close_after_flush()
            return
        version = head.version
        endpoints: Sequence[Endpoint] = ()
        prefix = session.topic_prefix
        if error:
            rows, endpoints = self._explained(session, version, rows)
        frame = encode_produce_response(version, head.correlation, rows, pause_ms, endpoints, prefix)
        if reply is not None:
            reply.send([frame])
        else:
            connection.reply([frame])

    def answering(
        self, session: ClientSession, head: RequestHead, size: int, rows: list[ProducedRow]
    ) -> Work[tuple[bytes, int]]:
        """The response to a long request, and for how many milliseconds its connection is muted."""
        pause_ms = self.pause_ms(session, head, size)
        prefix, version = session.topic_prefix, head.version
        hints: dict[int, LeaderHint] = {}
        failed = False
        for number, row in enumerate(rows):
            if number % PARTS_AT_ONCE == 0:
                yield PARTS_AT_ONCE * ROW_COST
            if not row.error:
                continue
            if not failed:
                failed = True
                self._failures.add(row.error)
            hinted = self._hinted(row, version)
            if hinted.leader is not None:
                hints[hinted.leader.leader] = hinted.leader
            rows[number] = _without_prefix(hinted, prefix.decode()) if prefix else hinted
        endpoints = self._hints.endpoints(hints.values(), session.listener, session.tenant)
        frame = yield from produce_encoding(version, head.correlation, rows, pause_ms, endpoints, prefix)
        return frame, pause_ms

    def register(self, metrics: Metrics) -> None:
        """How soon requests are answered, and which were not answered well."""
        metrics.histogram("tidelog_produce_latency_seconds", lambda: self._latency)
        self._failures.register(metrics, "tidelog_produce_failures_total")

    def pause_ms(self, session: ClientSession, head: RequestHead, size: int) -> int:
        """For how long the client is to pause after a request of `size` bytes: the longer one of what its quotas say,
        and of what the disk needs."""
        owed_ms = self._throttle.charge(session, head.client_id, PRODUCE, size, 0)
        disk_ms = self._disk_pause_ms()
        if disk_ms <= owed_ms:
            return owed_ms
        session.usage.throttled(ThrottleReason.DISK, disk_ms - owed_ms)
        return disk_ms

    def _explained(
        self, session: ClientSession, version: int, rows: list[ProducedRow]
    ) -> tuple[list[ProducedRow], Sequence[Endpoint]]:
        """The rows of a response with errors, and the leaders' addresses: with hints, in the names of the client."""
        endpoints: Sequence[Endpoint] = ()
        if any(row.error == ErrorCode.NOT_LEADER_OR_FOLLOWER for row in rows):
            rows = [self._hinted(row, version) for row in rows]
            endpoints = self._hints.endpoints((row.leader for row in rows), session.listener, session.tenant)
        prefix = session.topic_prefix
        if prefix:
            rows = [_without_prefix(row, prefix.decode()) if row.error else row for row in rows]
        return rows, endpoints

    def _hinted(self, row: ProducedRow, version: int) -> ProducedRow:
        if row.error != ErrorCode.NOT_LEADER_OR_FOLLOWER:
            return row
        find = self._hints.by_id if version >= BY_ID_FROM else self._hints.by_name
        return replace(row, leader=find(row.topic, row.partition))


def _without_prefix(row: ProducedRow, prefix: str) -> ProducedRow:
    """The row with its error messages as a tenant may see them: without the prefix of its names."""

    def without_prefix(text: bytes | None) -> bytes | None:
        return None if text is None else tenant_text(text.decode(errors="replace"), prefix, row.error).encode()

    record_errors = [RecordError(one.batch_index, without_prefix(one.message)) for one in row.record_errors]
    return replace(row, record_errors=record_errors, error_message=without_prefix(row.error_message))


def refusal_of(call: ProduceCall) -> ErrorCode | None:
    if call.acks not in (ALL, LEADER, NONE):
        return ErrorCode.INVALID_REQUIRED_ACKS
    return None
