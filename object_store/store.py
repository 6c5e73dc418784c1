"""The protocol of an object store: whole objects under keys, listed in order, with conditional writes.

Keys are relative to the store's root, such as `file:///srv/tier` or `s3://bucket/prefix`. The store itself adds and
removes the prefix.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

from common.ports import File
from object_store.errors import InvalidKey

KEY_BYTES_MAX = 900  # S3 allows 1,024; the rest is for the prefix
NAME_BYTES_MAX = 255  # between two slashes: the limit of file systems
RESERVED_NAME = ".unfinished"  # where a directory store keeps half-written objects


class ObjectInfo(NamedTuple):
    """One object as listings and writes return it."""

    key: str
    size: int
    modified_ms: int
    """By the store's clock."""
    version: str
    """Opaque; each write of other bytes changes it."""


class FileRange(NamedTuple):
    """A part of a body, read in the store's own thread. The caller keeps `file` open until the put ends."""

    file: File
    position: int
    length: int


Body = bytes | Sequence[bytes | FileRange]


class ObjectStore(Protocol):
    """Safe to use from several tasks of one event loop.

    Each call ends within a time that the store's limits set, retries included, and raises only StoreError. A cancelled
    call ends once it no longer reads the caller's files; its outcome is unknown. Objects appear whole or not at all,
    and are durable when the put returns.
    """

    @property
    def name(self) -> str:
        """For messages: the URI without its options."""
        ...

    async def put(self, key: str, body: Body, *, create_only: bool = False) -> ObjectInfo:
        """Write an object, replacing an older one, or with `create_only` raising ObjectExists.

        A create-only put whose first answer was lost and whose retry finds its own object succeeds.
        """
        ...

    async def replace(self, key: str, body: bytes, expected_version: str | None) -> ObjectInfo:
        """Compare and set; None expects that the object is missing. Raises VersionConflict."""
        ...

    async def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Exactly `length` bytes from `start`, or all from there to the end.

        Raises ObjectMissing, and ObjectTruncated when the object ends earlier. Only whole objects are checked against
        the store's checksum.
        """
        ...

    async def get_with_version(self, key: str) -> tuple[bytes, str]:
        """A whole object and the version of these bytes. Raises ObjectMissing."""
        ...

    async def head(self, key: str) -> ObjectInfo:
        """Raises ObjectMissing."""
        ...

    async def lend(self, key: str, start: int = 0, length: int = 0) -> File | None:
        """The object as an open file, read-only, when it lies on the device of `own_directory`; otherwise None.

        The bytes stay readable until the caller closes the file, even when the object is deleted or replaced. `length`
        bytes from `start` on are loaded into the page cache. Raises ObjectMissing.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; a missing one is no error."""
        ...

    async def copy(self, source: str, target: str) -> None:
        """Copy inside the store, replacing an older target. Raises ObjectMissing."""
        ...

    async def sweep_unfinished(self, before_ms: int) -> int:
        """Remove leftovers of unfinished puts last written before `before_ms` (wall time); returns how many."""
        ...

    async def close(self) -> None:
        """End the calls under way. Idempotent."""
        ...

    async def list_names(self, prefix: str) -> list[str]:
        """The names one level below `prefix` ("" or ending with "/"), sorted, without it.

        A name below which there are keys ends with "/".
        """
        ...

    def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        """Objects whose key begins with `prefix` (any string) and is greater than `start_after`, ascending by key.

        Objects written or deleted meanwhile may or may not appear.
        """
        ...


def check_key(store: str, operation: str, key: str) -> None:
    """Raises InvalidKey unless every kind of store can hold `key`.

    Names are joined by single slashes, none is "." or "..", none holds control characters or backslashes, and the first
    is not reserved. No key may be the directory of another; only a directory store detects and refuses that.
    """
    reason = _fault(key)
    if reason:
        raise InvalidKey(store, operation, key, reason)


def check_listing_prefix(prefix: str) -> None:
    """Raises ValueError unless `prefix` ends where a name does."""
    if prefix and not prefix.endswith("/"):
        raise ValueError(f"{prefix!r} is neither empty nor ends with a slash")


def check_range(start: int, length: int | None) -> None:
    """Raises ValueError for a range that no object can have."""
    if start < 0 or (length is not None and length < 0):
        raise ValueError(f"no range: start {start}, length {length}")


def body_parts(body: Body) -> Sequence[bytes | FileRange]:
    return [body] if isinstance(body, bytes) else body


def part_size(part: bytes | FileRange) -> int:
    return part.length if isinstance(part, FileRange) else len(part)


def body_size(body: Body) -> int:
    return sum(part_size(part) for part in body_parts(body))


def _fault(key: str) -> str:
    if not key:
        return "the key is empty"
    try:
        if len(key.encode()) > KEY_BYTES_MAX:
            return f"the key is longer than {KEY_BYTES_MAX} bytes"
    except UnicodeEncodeError:
        return "the key is no text"
    if any(ord(char) < 32 or char in "\x7f\\" for char in key):
        return "the key holds a control character or a backslash"
    names = key.split("/")
    if any(name in {"", ".", ".."} for name in names):
        return 'the key holds an empty name, "." or ".."'
    if any(len(name.encode()) > NAME_BYTES_MAX for name in names):
        return f"a name in the key is longer than {NAME_BYTES_MAX} bytes"
    if names[0] == RESERVED_NAME:
        return f"{RESERVED_NAME!r} is reserved"
    return ""
