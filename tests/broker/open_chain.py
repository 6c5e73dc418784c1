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
    def charge(self, session: ClientSession, api_key: int, request_bytes: int) -> int:
        return 0


def open_chain() -> RequestChain:
    return RequestChain(KeepNames(), NoQuota())
