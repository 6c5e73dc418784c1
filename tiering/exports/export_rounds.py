"""The common part of exports: once per interval a round writes new data, less often while it fails."""

from __future__ import annotations

import asyncio
import logging
import random
from abc import ABC, abstractmethod

from msgspec import Struct

from common.backoff import SLIGHT, Backoff
from common.errors import OutcomeUnknown, ProtocolError
from common.lifecycle import duty, end_task
from common.ports import Clock
from object_store.errors import StoreError
from tiering.bucket.cluster_file import StaleCluster

BACKOFF_MAX_S = 600.0

_log = logging.getLogger(__name__)

OF_ONE = (OutcomeUnknown, ProtocolError, ValueError)
"""Errors of one export rather than of the store; the other exports are still written."""


class ExportTrouble(Struct):
    """`since_ms` is wall time, 0 while exports succeed."""

    since_ms: int = 0
    reason: str = ""


class ExportRounds(ABC):
    """One task between `start` and `stop`. It ends by itself when the cluster may no longer write to the bucket."""

    def __init__(self, what: str, clock: Clock, chance: random.Random, interval_s: float) -> None:
        """`what`: the export's name in the log."""
        self.trouble = ExportTrouble()
        self._what = what
        self._clock = clock
        self._chance = chance
        self._backoff = Backoff(interval_s, max(BACKOFF_MAX_S, interval_s), SLIGHT)
        self._failures = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=duty(f"export-{self._what}"))

    async def stop(self) -> None:
        await end_task(self._task)
        self._task = None

    @abstractmethod
    async def round(self) -> int:
        """Write new data; returns how much. Raises StaleCluster, StoreError, and one of OF_ONE after writing the
        rest."""

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._backoff.jittered_s(self._failures + 1, self._chance))
            try:
                await self.round()
            except StaleCluster as error:
                self._failed(error)
                _log.error("nothing is exported any more", extra={"what": self._what, "reason": str(error)})
                return
            except (StoreError, *OF_ONE) as error:
                self._failed(error)
                if self._failures & (self._failures - 1) == 0:  # not each time
                    fields = {"what": self._what, "failures": self._failures, "error": str(error)}
                    _log.warning("not exported", extra=fields)
            else:
                self._failures, self.trouble = 0, ExportTrouble()

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        self.trouble = ExportTrouble(self.trouble.since_ms or self._clock.wall_ms(), str(error))
