"""Checks an object store before a cluster starts, within a bounded time."""

from __future__ import annotations

import asyncio
import time
from uuid import uuid4

from object_store.blocking import BlockingStore
from object_store.errors import StoreError, StoreUnavailable
from object_store.limits import StoreLimits
from object_store.probe import probe_conditions, sweep_probes

CHECK_S = 15.0
"""For the whole check; one attempt has less, so that a lost packet does not fail it."""
CONNECT_S, SILENCE_S, ATTEMPT_S, ATTEMPTS = 3.0, 5.0, 6.0, 2
_ASKED = "tidelog-up/"  # no keys begin so: the response is short
_PROBE_PREFIX = "tidelog-up-"
_LEFT_MS = 24 * 3_600_000  # a trial write of this age, which exceeds any difference of clocks, is no longer in progress


def store_trouble(uri: str, opened: type[BlockingStore] = BlockingStore) -> str | None:
    """Why nodes could not use the store at `uri`, None if it answers. A directory is created as nodes do it. Raises
    InvalidStoreUri."""
    limits = StoreLimits(
        connect_timeout_s=CONNECT_S, silence_timeout_s=SILENCE_S, attempt_timeout_s=ATTEMPT_S, attempts_max=ATTEMPTS
    )
    try:
        store = opened(uri, limits, create=True)
    except StoreError as error:
        return f"the object store {uri} cannot be used: {error.reason}"
    try:
        store.wait(lambda: asyncio.wait_for(_asked(store), CHECK_S))
    except (StoreUnavailable, TimeoutError) as error:
        reason = error.reason if isinstance(error, StoreUnavailable) else f"silence for {CHECK_S:g} s"
        return f"the object store {uri} does not answer ({reason})"
    except StoreError as error:
        return f"the object store {uri} cannot be used: {error.reason}"
    finally:
        store.close_within(1.0)
    return None


async def _asked(store: BlockingStore) -> None:
    async for _ in store.store.list(_ASKED):
        break
    await probe_conditions(store.store, f"{_PROBE_PREFIX}{uuid4().hex}")
    await sweep_probes(store.store, _PROBE_PREFIX, int(time.time() * 1000) - _LEFT_MS)
