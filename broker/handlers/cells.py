"""Cells, for operators: DescribeCells (10012), AlterCell (10013), our own.

Behaviour: both are the controller's and travel to it in an Envelope: how full a cell may be is its settings' to say.
"""

from __future__ import annotations

from broker.requests.context import RequestContext
from broker.requests.forwarding import Forwarder
from common.errors import ProtocolError
from wire.messages import AlterCellRequest, AlterCellResponse, DescribeCellsRequest, DescribeCellsResponse

VERSION = 0


class CellHandlers:
    """One method per API."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder

    async def describe_cells(self, context: RequestContext, request: DescribeCellsRequest) -> DescribeCellsResponse:
        try:
            return await self._forwarder.forward(context, request, VERSION)
        except ProtocolError as error:
            return DescribeCellsResponse(error_code=error.code, error_message=error.message or None, cells=[])

    async def alter_cell(self, context: RequestContext, request: AlterCellRequest) -> AlterCellResponse:
        try:
            return await self._forwarder.forward(context, request, VERSION, request.timeout_ms)
        except ProtocolError as error:
            return AlterCellResponse(error_code=error.code, error_message=error.message or None)
