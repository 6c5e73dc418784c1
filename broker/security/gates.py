"""The gate before each API, on one screen; APIs without one cannot be served to whom rights apply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.request import Handler, RequestContext
from broker.security.cluster_gates import cluster_gates
from broker.security.gating import Gate
from broker.security.group_gates import group_gates
from broker.security.record_gates import record_gates
from broker.security.topic_gates import TopicGates
from kraft.image.metadata import MetadataImage
from wire.messages import Message


class Gates:
    """`creates` is auto.create.topics.enable."""

    def __init__(self, image: Callable[[], MetadataImage], creates: bool) -> None:
        self.by_key: dict[int, Gate] = (
            TopicGates(image, creates).gates() | group_gates() | record_gates() | cluster_gates()
        )

    def serve(self, context: RequestContext, request: Message, handler: Handler) -> Any:
        """The handler's answer, or in its place what those are told who may not have it."""
        access = context.session.access
        if access is None:
            return handler(context, request)
        return self.by_key[context.api_key](context, access, request, handler)
