"""The step of the request chain that translates between a tenant's names and the cluster's.

Produce and Fetch do not pass here: their codecs add and strip the prefix in the buffers, and their handlers check topic
ids (`broker/handlers/produce.py`, `broker/replication/fetch_reading.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NoReturn, TypeVar

from broker.requests.context import RequestContext
from broker.tenancy.compiled_names import CompiledNames
from broker.tenancy.scope import ForeignName, ProxyAddress, TenantScope, prefix_of
from common.errors import MalformedFrame
from common.pacing import Work
from kraft.image.metadata import MetadataImage
from wire.messages import Message

M = TypeVar("M", bound="Message")

logger = logging.getLogger(__name__)


class TenantNames:
    """Implements `broker.requests.context.Rewriter`. Requests of operators and nodes are not changed."""

    def __init__(self, image: Callable[[], MetadataImage], proxies: ProxyAddress, compiled: CompiledNames) -> None:
        self._image = image
        self._proxies = proxies
        self._compiled = compiled

    def inward(self, context: RequestContext, request: M) -> M:
        tenant = context.tenant
        if tenant is None:
            return request
        rewrite = self._compiled.inward[context.api_key]
        if rewrite is not None:
            rewrite(self._scope(context, tenant), request)
        return request

    def inward_work(self, context: RequestContext, request: M) -> Work[M]:
        tenant = context.tenant
        rewrite = None if tenant is None else self._compiled.inward_work[context.api_key]
        if tenant is not None and rewrite is not None:
            yield from rewrite(self._scope(context, tenant), request)
        return request

    def outward(self, context: RequestContext, response: M) -> M:
        """Raises MalformedFrame, which closes the connection, if another tenant's name cannot be left out."""
        tenant = context.tenant
        if tenant is None:
            return response
        rewrite = self._compiled.outward[context.api_key]
        if rewrite is None:
            return response
        scope = self._scope(context, tenant)
        try:
            rewrite(scope, response)
        except ForeignName:
            self._refuse(context)
        self._note_left_out(context, scope)
        return response

    def outward_work(self, context: RequestContext, response: M) -> Work[M]:
        """Raises MalformedFrame as `outward` does."""
        tenant = context.tenant
        rewrite = None if tenant is None else self._compiled.outward_work[context.api_key]
        if tenant is None or rewrite is None:
            return response
        scope = self._scope(context, tenant)
        try:
            yield from rewrite(scope, response)
        except ForeignName:
            self._refuse(context)
        self._note_left_out(context, scope)
        return response

    @staticmethod
    def _refuse(context: RequestContext) -> NoReturn:
        logger.exception("a response had another tenant's name and was not sent", extra=_where(context))
        raise MalformedFrame("the response had another tenant's name") from None

    @staticmethod
    def _note_left_out(context: RequestContext, scope: TenantScope) -> None:
        if scope.left_out:
            extra = _where(context) | {"left_out": scope.left_out}
            logger.warning("rows with another tenant's name were left out of a response", extra=extra)

    def _scope(self, context: RequestContext, tenant: str) -> TenantScope:
        scope = context.scope
        if not isinstance(scope, TenantScope):
            scope = TenantScope(tenant, prefix_of(tenant), self._image().topics, self._proxies)
            context.keep_scope(scope)
        else:
            scope.follow(self._image().topics)  # the request may have changed them
        return scope


def _where(context: RequestContext) -> dict[str, object]:
    return {"tenant": context.tenant, "api": context.api_key, "version": context.api_version}
