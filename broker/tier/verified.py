"""The last verifications of the tier, as a broker reports them: read from the store when someone asks, at times."""

from __future__ import annotations

import asyncio
import logging

from common.ports import Clock
from object_store.errors import StoreError
from object_store.store import ObjectStore
from tiering.bucket.keys import TierRoot
from tiering.bucket.verified import Verifications, read_verifications

FRESH_S = 20.0
READ_S = 3.0

_log = logging.getLogger(__name__)


class LastVerifications:
    """Reads the file at most once per `fresh_s`, however many ask."""

    def __init__(self, store: ObjectStore, root: TierRoot, clock: Clock, fresh_s: float = FRESH_S) -> None:
        self._store, self._root, self._clock, self._fresh_s = store, root, clock, fresh_s
        self.last: Verifications | None = None
        """As it was read last; None if there was none, or it was not read yet."""
        self._asked_at = float("-inf")
        self._reading = asyncio.Lock()
        self._trouble = ""

    async def known(self) -> Verifications | None:
        """As of some seconds ago, or longer while the store does not answer; None if there is none."""
        async with self._reading:
            if self._clock.monotonic() - self._asked_at >= self._fresh_s:
                await self._read()
                self._asked_at = self._clock.monotonic()
        return self.last

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(READ_S):
                self.last = await read_verifications(self._store, self._root)
            trouble = ""
        except TimeoutError:
            trouble = f"no answer within {READ_S:g} s"
        except (StoreError, ValueError) as error:
            trouble = str(error)
        if trouble and trouble != self._trouble:
            _log.warning("the outcomes of verifications cannot be read", extra={"cause": trouble})
        self._trouble = trouble
