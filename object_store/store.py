"""The protocol of an object store: whole objects under keys, listed in order, with conditional writes.

Keys are relative to the place that the store was opened at: `file:///srv/tier` and `s3://bucket/prefix` are roots,
and the prefix is put before each key and taken off again by the store itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

from common.ports import File
from object_store.errors import InvalidKey

KEY_BYTES_MAX = 900  # of the 1,024 of S3; the rest is for the prefix
NAME_BYTES_MAX = 255  # between two slashes: what a directory can hold
RESERVED_NAME = ".unfinished"  # a directory store keeps half-written objects there


class ObjectInfo(NamedTuple):
    """One object as a listing or a write tells it."""

    key: str
    size: int
    modified_ms: int
    """By the clock of the store."""
    version: str
    """Opaque; another one after each write of other bytes."""


class FileRange(NamedTuple):
    """A part of a body, read by position in the store's own thread. The caller keeps `file` open until the put ends."""

    file: File
    position: int
    length: int


Body = bytes | Sequence[bytes | FileRange]


class ObjectStore(Protocol):
    """Safe to use from several tasks of one event loop.

    Each call ends within a time that the store's limits name, retries included, and raises nothing but StoreError.
    A call that is cancelled ends only when nothing of it reads the caller's files any more; whether it was done is
    then unknown. Objects appear whole or not at all, and what a put returned is durable.
    """

    @property
    def name(self) -> str:
        """For messages: the URI without its options."""
        ...

    async def put(self, key: str, body: Body, *, create_only: bool = False) -> ObjectInfo:
        """Write an object, over an older one unless `create_only`: then raises ObjectExists.

        A create-only put whose first answer was lost and whose retry finds its own object succeeds.
        """
        ...

    async def replace(self, key: str, body: bytes, expected_version: str | None) -> ObjectInfo:
        """Compare and set; None expects that there is no object. Raises VersionConflict."""
        ...

    async def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Exactly `length` bytes from `start`, or all from there to the end.

        Raises ObjectMissing, and ObjectTruncated when the object ends earlier. A whole object is checked against the
        checksum that the store keeps, a range is not.
        """
        ...

    async def get_with_version(self, key: str) -> tuple[bytes, str]:
        """A whole object and the version that these bytes have. Raises ObjectMissing."""
        ...

    async def head(self, key: str) -> ObjectInfo:
        """Raises ObjectMissing."""
        ...

    async def lend(self, key: str, start: int = 0, length: int = 0) -> File | None:
        """The object as an open file, to read only, where it lies on a disk of the caller's own; the caller closes it.

        Its bytes stay while it is open, also when the object is deleted or written over. `length` bytes from `start` on
        are in memory by then, as far as the object has them, so that reading them at once waits for no device. None
        when the store is not such a one: `get` then. Raises ObjectMissing.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Those that are missing are no error."""
        ...

    async def copy(self, source: str, target: str) -> None:
        """Inside the store, over an older object. Raises ObjectMissing."""
        ...

    async def sweep_unfinished(self, before_ms: int) -> int:
        """Remove what puts that never ended left behind and last touched before that wall time; how many there were."""
        ...

    async def close(self) -> None:
        """Ends the calls under way. Idempotent."""
        ...

    async def list_names(self, prefix: str) -> list[str]:
        """The names one level below `prefix` ("" or ending with "/"), sorted, without it.

        A name below which there are keys ends with "/".
        """
        ...

    def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        """Objects whose key begins with `prefix` (any string) and is greater than `start_after`, ascending by key.

        What is written or deleted meanwhile may or may not be seen.
        """
        ...


def check_key(store: str, operation: str, key: str) -> None:
    """Raises InvalidKey unless every kind of store can hold `key`.

    Names joined by single slashes, none of them "." or "..", no control characters or backslashes, no first name that
    is reserved. No key may be the directory of another one; a directory store refuses that, other stores do not see it.
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
    """A body as its parts."""
    return [body] if isinstance(body, bytes) else body


def part_size(part: bytes | FileRange) -> int:
    """In bytes."""
    return part.length if isinstance(part, FileRange) else len(part)


def body_size(body: Body) -> int:
    """In bytes."""
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
