"""One request outside Produce and Fetch, from its decoded form to the parts of its response.

A short request whose handler answers at once costs a few plain calls. Everything else runs in slices of the node's
pacer, in the client's lane: a long request in portions (`broker/requests/portions.py`), a handler's work, a long
response. All connections of one tenant, or of one user on one host, together get the turns of one lane.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from types import GeneratorType
from typing import Any

from broker.requests.admission import Admission
from broker.requests.context import RequestChain, RequestContext, Route, WrittenRows
from broker.requests.portions import Listing, distinct, is_long, join, portions
from common.errors import ErrorCode, ProtocolError
from common.pacing import Pacer, Work
from wire.codec import encode_response
from wire.disposal import disposal
from wire.messages import Message
from wire.paced_codec import RowsWriter, decode_request_work, encode_response_work, is_light, longest_list

Parts = list[bytes]


class RequestServing:
    """Serves decoded requests. `answer_bytes_max` bounds one response (tidelog.answer.bytes.max)."""

    def __init__(self, chain: RequestChain, pacer: Pacer, answer_bytes_max: int) -> None:
        self.chain = chain
        self._pacer = pacer
        self.admission = Admission()
        self._answer_bytes_max = answer_bytes_max

    def frame(
        self, context: RequestContext, data: memoryview, route: Route, release: Callable[[], None] | None
    ) -> Parts | Awaitable[Parts]:
        """Serve the request in the frame `data`, whose bytes do not change until `release` is called (None: never).

        Returns the parts of the response frame, or an awaitable of them. ProtocolError and MalformedFrame close the
        connection.
        """
        if release is not None:
            return self._long(context, data, route, release)
        decoded = self._pacer.start(decode_request_work(data), context.lane)
        if inspect.isawaitable(decoded):
            return self._decoded_later(context, decoded, route)
        return self.serve(context, decoded[1], route)

    async def _decoded_later(self, context: RequestContext, decoded: Awaitable[Any], route: Route) -> Parts:
        _, request = await decoded
        try:
            parts = self.serve(context, request, route)
            return await parts if inspect.isawaitable(parts) else parts
        finally:
            self._dispose(context, request)

    async def _long(
        self, context: RequestContext, data: memoryview, route: Route, release: Callable[[], None]
    ) -> Parts:
        """Decode a long frame when its client has a place. The place is released before the handler runs, because
        handlers may wait for other requests."""
        async with AsyncExitStack() as place:
            try:
                await place.enter_async_context(self.admission.place(context.session.lane.group))
                _check_open(context)
                _, request = await self._pacer.run(decode_request_work(data), context.lane)
            finally:
                data.release()
                release()
            listing = route.cut(context.api_version)
            if listing is not None and is_long(listing, request):
                try:
                    return await self._in_portions(context, request, route, listing)
                finally:
                    self._dispose(context, request)
        try:
            parts = self.serve(context, request, route)
            return await parts if inspect.isawaitable(parts) else parts
        finally:
            self._dispose(context, request)

    def _dispose(self, context: RequestContext, message: Any) -> None:
        ending = disposal(message)
        if ending is not None:
            self._pacer.start(ending, context.lane)

    def serve(self, context: RequestContext, request: Message, route: Route) -> Parts | Awaitable[Parts]:
        """The response to a decoded request. Raises ProtocolError and MalformedFrame."""
        listing = route.cut(context.api_version)
        if listing is not None and is_long(listing, request):
            return self._admitted(context, request, route, listing)
        if listing is None and not context.internal:
            elements = longest_list(request)
            if elements > route.elements_max and not route.paced:
                raise ProtocolError(
                    ErrorCode.POLICY_VIOLATION, f"the request has more than {route.elements_max} elements"
                )
            if context.tenant is not None and not is_light(request, context.api_version):
                return self._renamed(context, request, route)
        answer = self._handled(context, request, route)
        if inspect.isawaitable(answer):
            return self._later(context, answer)
        return self._encoded(context, answer)

    def _handled(self, context: RequestContext, request: Message, route: Route) -> Any:
        """The handler's response; awaitable if it comes later."""
        return self._outcome(context, self.chain.rewriter.inward(context, request), route)

    async def _renamed(self, context: RequestContext, request: Message, route: Route) -> Parts:
        """The answer to a tenant's request of many elements, whose names become internal ones in slices."""
        request = await self._pacer.run(self.chain.rewriter.inward_work(context, request), context.lane)
        answer = self._outcome(context, request, route)
        parts = self._encoded(context, await answer if inspect.isawaitable(answer) else answer)
        return await parts if inspect.isawaitable(parts) else parts

    def _outcome(self, context: RequestContext, request: Message, route: Route) -> Any:
        access = context.session.access
        if access is None:
            outcome = route.handler(context, request)
        else:
            outcome = route.gate(context, access, request, route.handler)
        if isinstance(outcome, GeneratorType):
            return self._pacer.start(outcome, context.lane)
        return outcome

    async def _later(self, context: RequestContext, answer: Awaitable[Any]) -> Parts:
        parts = self._encoded(context, await answer)
        return await parts if inspect.isawaitable(parts) else parts

    def _encoded(self, context: RequestContext, answer: Any) -> Parts | Awaitable[Parts]:
        if isinstance(answer, WrittenRows):
            return self._pacer.start(self._with_rows(context, answer), context.lane)
        if is_light(answer, context.api_version):
            answer = context.throttled(self.chain.rewriter.outward(context, answer))
            return [encode_response(context.api_key, context.api_version, context.correlation_id, answer)]
        return self._pacer.start(self._encoding(context, answer), context.lane)

    def _with_rows(self, context: RequestContext, answer: WrittenRows) -> Work[Parts]:
        message: Any = yield from self.chain.rewriter.outward_work(context, answer.message)
        message = context.throttled(message)
        writer = self._rows_writer(context, answer.name)
        writer.add_written(answer.parts, answer.count)
        yield from writer.add(getattr(message, answer.name))
        return writer.finished(message)

    def _rows_writer(self, context: RequestContext, name: str) -> RowsWriter:
        return RowsWriter(
            context.api_key, context.api_version, context.correlation_id, name, self._answer_bytes_max
        )  # fmt: skip

    def _encoding(self, context: RequestContext, answer: Any) -> Work[Parts]:
        answer = context.throttled((yield from self.chain.rewriter.outward_work(context, answer)))
        parts = yield from encode_response_work(
            context.api_key, context.api_version, context.correlation_id, answer, self._answer_bytes_max
        )
        self._dispose(context, answer)
        return parts

    # in portions -------------------------------------------------------------------------------------------

    async def _admitted(self, context: RequestContext, request: Message, route: Route, listing: Listing) -> Parts:
        async with self.admission.place(context.session.lane.group):
            return await self._in_portions(context, request, route, listing)

    async def _in_portions(self, context: RequestContext, request: Message, route: Route, listing: Listing) -> Parts:
        """An error of a whole portion ends the request: that portion's response is the response."""
        pacer, lane, name = self._pacer, context.lane, listing.answered[0]
        writer = RowsWriter(context.api_key, context.api_version, context.correlation_id, name, self._answer_bytes_max)
        rows: list[Any] = []
        answer: Any = None
        elements = await pacer.run(distinct(listing, request), lane)
        for portion in portions(listing, request, elements):
            await pacer.rest(lane, own=False)
            _check_open(context)
            outcome = self._handled(context, portion.request, route)
            answer = await outcome if inspect.isawaitable(outcome) else outcome
            answer = await pacer.run(self.chain.rewriter.outward_work(context, answer), lane)
            context.owe(answer)
            if getattr(answer, "error_code", 0) and not getattr(answer, name):
                return await pacer.run(self._whole(context, answer), lane)
            joined = portion.joined + listing.around
            if not joined:
                await self._add(context, writer, rows)
                rows = []
            join(rows, getattr(answer, name), listing.answered[1:], joined)
        await self._add(context, writer, rows)
        return writer.finished(context.throttled(answer))

    async def _add(self, context: RequestContext, writer: RowsWriter, rows: list[Any]) -> None:
        """Write `rows`, which are freed in slices too: one may be the answer of many portions."""
        await self._pacer.run(writer.add(rows), context.lane)
        for row in rows:
            self._dispose(context, row)

    def _whole(self, context: RequestContext, answer: Any) -> Work[Parts]:
        parts = yield from encode_response_work(
            context.api_key,
            context.api_version,
            context.correlation_id,
            context.throttled(answer),
            self._answer_bytes_max,
        )
        return parts


def _check_open(context: RequestContext) -> None:
    """Raises ProtocolError if the connection has closed, so that no work is done for it."""
    if context.connection is not None and context.connection.is_closed:
        raise ProtocolError(ErrorCode.NETWORK_EXCEPTION, "the client has disconnected")
