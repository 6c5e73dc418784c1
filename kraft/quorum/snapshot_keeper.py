"""Makes snapshots durable in the background: encoded and decoded in slices, written in a thread.

Snapshots are written one after another, so that a later one always replaces an earlier one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from common.pacing import Pacer, Work
from kraft.quorum.journal_format import SnapshotBase
from kraft.quorum.snapshot_file import Snapshot, SnapshotFile, encode_snapshot
from kraft.quorum.snapshot_transfer import Arrived

LANE = "quorum-snapshot"

Kept = Callable[[bytes], None]
Installed = Callable[[Callable[[], None]], None]


class SnapshotKeeper(Protocol):
    def keep(self, base: SnapshotBase, state: Work[bytes], done: Kept) -> None:
        """Make this node's own state durable, then call `done` with the encoded snapshot."""
        ...

    def install(self, arrived: Arrived, restoring: Work[Callable[[], None]], done: Installed) -> None:
        """Make a leader's snapshot durable and decode it; then call `done` with the function that installs it as the
        state."""
        ...


class BackgroundKeeper:
    """`failed` is called with an error of the disk or the state machine, after which the node must stop; `settled`
    after each `done`."""

    def __init__(
        self,
        pacer: Pacer,
        file: SnapshotFile,
        failed: Callable[[Exception, str], None],
        settled: Callable[[], None],
    ) -> None:
        self._pacer = pacer
        self._file = file
        self._failed = failed
        self._settled = settled
        self._order = asyncio.Lock()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._writing: asyncio.Task[None] | None = None
        self._has_ended = False

    def keep(self, base: SnapshotBase, state: Work[bytes], done: Kept) -> None:
        self._begin(self._keep(base, state, done), "a snapshot")

    def install(self, arrived: Arrived, restoring: Work[Callable[[], None]], done: Installed) -> None:
        self._begin(self._install(arrived, restoring, done), "a snapshot of the leader")

    def end(self) -> None:
        """Call `done` no more, and drop everything except a write in progress, because a thread cannot be cancelled."""
        self._has_ended = True
        for task in self._tasks:
            if task is not self._writing:
                task.cancel()

    async def stop(self) -> None:
        """`end`, and wait for it."""
        self.end()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, work: Coroutine[Any, Any, None], doing: str) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded(work, doing), name=LANE)
        self._tasks[task] = None
        task.add_done_callback(lambda ended: self._tasks.pop(ended, None))

    async def _guarded(self, work: Coroutine[Any, Any, None], doing: str) -> None:
        try:
            await work
            if not self._has_ended:
                self._settled()
        except Exception as error:
            self._failed(error, doing)

    async def _keep(self, base: SnapshotBase, state: Work[bytes], done: Kept) -> None:
        encoded_state = await self._pacer.run(state, LANE, own=True)
        encoded = await self._write(lambda: encode_snapshot(Snapshot(base, encoded_state)))
        if not self._has_ended:
            done(encoded)

    async def _install(self, arrived: Arrived, restoring: Work[Callable[[], None]], done: Installed) -> None:
        restore = await self._pacer.run(restoring, LANE, own=True)
        await self._write(lambda: arrived.encoded)
        if not self._has_ended:
            done(restore)

    async def _write(self, encode: Callable[[], bytes]) -> bytes:
        def write() -> bytes:
            encoded = encode()
            self._file.write(encoded)
            return encoded

        async with self._order:
            self._writing = asyncio.current_task()
            try:
                return await asyncio.to_thread(write)
            finally:
                self._writing = None
