"""A node's note, on its own disk, of the object store that it has used."""

from __future__ import annotations

import asyncio
import contextlib

from common.outlasting import outlast
from common.ports import Disk
from common.whole_files import read_whole, replace_file

FILE_NAME = "tier-store-seen"


class StoreSeen:
    """When its cluster began in the store that this node works with (`created_ms` of `cluster.json`), once it knows.

    A node that finds another value, or none, has another store than the one that holds the tier: a volume is not
    mounted, the prefix differs, or the bucket was emptied. Segments copied there would be missing in the tier.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._noted: int | None = None
        self._is_read = False
        self._file = asyncio.Lock()

    async def noted(self) -> int | None:
        """The noted value; None before the first note, or when it cannot be read."""
        async with self._file:
            return await self._known()

    async def note(self, created_ms: int) -> None:
        """Note the value unless one is known. If the disk refuses it, it holds only while this node runs."""
        async with self._file:
            if await self._known() is None:
                self._noted = created_ms
                data = f"{created_ms}\n".encode()
                with contextlib.suppress(OSError):  # one thread at a time, even if its caller is cancelled
                    await outlast(
                        asyncio.ensure_future(asyncio.to_thread(replace_file, self._disk, "", FILE_NAME, data))
                    )

    async def _known(self) -> int | None:
        if not self._is_read:
            self._noted = await asyncio.to_thread(self._read)
            self._is_read = True
        return self._noted

    def _read(self) -> int | None:
        try:
            return int(read_whole(self._disk, FILE_NAME) or b"")
        except (OSError, ValueError):
            return None
