"""Following the committed metadata from outside the quorum, as brokers and proxies do.

The observer asks any controller for the committed records after its own end, folds them into its image, tells its
subscribers, and keeps an fsynced copy (`kraft.local_copy`) so that a restart needs only what it missed. It never
goes back: an answer with a lower epoch or end than its own is ignored and another controller is asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from common.ports import Address, Ports
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.links import Links

log = logging.getLogger(__name__)

Subscriber = Callable[[MetadataDelta, MetadataImage], None]


@dataclass(frozen=True, slots=True)
class ObserverConfig:
    """Times in seconds. `directory` is relative to the node's disk."""

    node_id: int
    directory: str
    cluster_id: str | None = None
    fetch_wait_s: float = 0.5
    fetch_bytes_max: int = 8 << 20
    attempt_timeout_s: float = 3.0
    connect_timeout_s: float = 1.0
    backoff_s: float = 0.05
    backoff_max_s: float = 0.5
    ahead_patience_s: float = 5.0
    persist_pause_s: float = 0.05
    unsaved_bytes_max: int = 64 << 20


class MetadataObserver:
    """`image` is always a committed state, only ever replaced by a later one."""

    def __init__(
        self,
        ports: Ports,
        links: Links,
        controllers: Mapping[int, Address],
        config: ObserverConfig,
        on_fatal: Callable[[str], None],
    ) -> None:
        """`on_fatal` is called once, with a sentence, when the local metadata cannot belong to this quorum."""
        self.image: MetadataImage = EMPTY_IMAGE

    async def start(self) -> None:
        """Load the local copy, then follow in the background. Raises StorageFailure when the copy cannot be read."""
        raise NotImplementedError

    async def stop(self) -> None:
        raise NotImplementedError

    def subscribe(self, callback: Subscriber) -> None:
        """Call `callback(delta, image)` on the loop after each step; a delta may span many batches or a snapshot."""
        raise NotImplementedError

    async def wait_for(self, offset: int, timeout_s: float) -> bool:
        """Whether the image holds `offset` within `timeout_s`."""
        raise NotImplementedError
