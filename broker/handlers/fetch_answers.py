"""Answers of Fetch: charged to the client's quotas, encoded, counted, and sent."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from broker.partitions.leader_hints import LeaderHints
from broker.requests.context import Throttle
from broker.requests.error_counts import ErrorCounts
from broker.security.session import ClientSession
from common.errors import ErrorCode
from common.metrics import Metrics
from common.pacing import Work
from wire.connection import Connection
from wire.hot_codec import (
    FETCH,
    PARTS_AT_ONCE,
    Endpoint,
    FetchCall,
    FetchedRow,
    LeaderHint,
    RequestHead,
    encode_fetch_response,
    fetch_encoding,
)
from wire.outgoing import Part, Reply


class FetchAnswers:
    """Other nodes are neither charged nor counted."""

    def __init__(self, throttle: Throttle, hints: LeaderHints, fetch_bytes_max: int) -> None:
        self._throttle = throttle
        self._hints = hints
        self._fetch_bytes_max = fetch_bytes_max
        self._answered = 0
        self._failures = ErrorCounts()

    def bytes_max(self, client: ClientSession, head: RequestHead, call: FetchCall) -> int:
        """The most bytes of records in the answer to this fetch."""
        if call.replica >= 0:
            return call.bytes_max
        return self._throttle.fetch_bytes_max(client, head.client_id, min(call.bytes_max, self._fetch_bytes_max))

    def refuses_ms(self, client: ClientSession, head: RequestHead, out_bytes: int) -> int:
        """Milliseconds that the client has to wait before it may have so many bytes of records."""
        return 0 if client.internal else self._throttle.refuses_ms(client, head.client_id, out_bytes)

    def charge(self, client: ClientSession, head: RequestHead, in_bytes: int, out_bytes: int) -> int:
        """Milliseconds for which the client's connection is muted after its answer, which has `out_bytes` of
        records."""
        return 0 if client.internal else self._throttle.charge(client, head.client_id, FETCH, in_bytes, out_bytes)

    def send(
        self,
        client: ClientSession,
        reply: Reply | None,
        head: RequestHead,
        error: ErrorCode,
        session_id: int,
        rows: list[FetchedRow],
        pause_ms: int,
    ) -> None:
        """Send the response, in the order of requests if it had to wait, and mute the connection for `pause_ms`."""
        connection: Connection = client.connection
        failed = [row for row in rows if row.error]
        self._count(client, error or (failed[0].error if failed else 0))
        endpoints = self._endpoints(client, [row.leader for row in failed if row.leader is not None]) if failed else ()
        parts = encode_fetch_response(
            head.version, head.correlation, error, session_id, rows, pause_ms, endpoints, client.topic_prefix
        )
        if reply is not None:
            reply.send(parts)
        else:
            connection.reply(parts)
        if pause_ms:
            connection.mute_for(pause_ms / 1000)

    def encoding(
        self, client: ClientSession, head: RequestHead, session_id: int, rows: list[FetchedRow], pause_ms: int
    ) -> Work[list[Part]]:
        """The response to a long request."""
        hints: dict[int, LeaderHint] = {}
        error = 0
        for number, row in enumerate(rows):
            if number % PARTS_AT_ONCE == 0:
                yield PARTS_AT_ONCE
            if not row.error:
                continue
            error = error or row.error
            if row.leader is not None:
                hints[row.leader.leader] = row.leader
        self._count(client, error)
        endpoints = self._endpoints(client, hints.values())
        return (
            yield from fetch_encoding(
                head.version,
                head.correlation,
                ErrorCode.NONE,
                session_id,
                rows,
                pause_ms,
                endpoints,
                client.topic_prefix,
            )
        )

    def register(self, metrics: Metrics) -> None:
        """How many fetches of clients were answered, and which were not answered well."""
        metrics.counter("tidelog_fetch_responses_total", lambda: self._answered)
        self._failures.register(metrics, "tidelog_fetch_failures_total")

    def _count(self, client: ClientSession, error: int) -> None:
        """Count an answer. `error`: the request's, or the first one of its rows."""
        if client.internal:
            return
        self._answered += 1
        if error:
            self._failures.add(error)

    def _endpoints(self, client: ClientSession, hints: Collection[LeaderHint]) -> Sequence[Endpoint]:
        return self._hints.endpoints(hints, client.listener, client.tenant) if hints else ()
