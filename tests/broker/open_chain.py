"""A request chain that lets everything pass: an operator listener without tenants or quotas."""

from __future__ import annotations

from typing import Any

from broker.requests.context import RequestChain, RequestContext
from broker.security.session import ClientSession
from common.pacing import Work


class KeepNames:
    def inward(self, context: RequestContext, request: Any) -> Any:
        return request

    def inward_work(self, context: RequestContext, request: Any) -> Work[Any]:
        return request
        yield

    def outward(self, context: RequestContext, response: Any) -> Any:
        return response

    def outward_work(self, context: RequestContext, response: Any) -> Work[Any]:
        return response
        yield


class NoQuota:
    def charge(
        self, session: ClientSession, client_id: bytes | str | None, api_key: int, in_bytes: int, out_bytes: int
    ) -> int:
        return 0

    def refuses_ms(self, session: ClientSession, client_id: bytes | str | None, out_bytes: int) -> int:
        return 0

    def fetch_bytes_max(self, session: ClientSession, client_id: bytes | str | None, bytes_max: int) -> int:
        return bytes_max


def open_chain() -> RequestChain:
    return RequestChain(KeepNames(), NoQuota())
