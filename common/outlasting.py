"""Waits for work to its end, even when the caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def outlast(work: asyncio.Future[T], on_cancel: Callable[[], None] = lambda: None) -> T:
    """The outcome of `work`. On cancellation: `on_cancel` once, then the end of `work`, then CancelledError."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        on_cancel()
        while not work.done():  # the caller may be cancelled repeatedly
            try:
                await asyncio.wait([work])
            except asyncio.CancelledError:
                continue
        if not work.cancelled():
            work.exception()  # marks it as retrieved
        raise
