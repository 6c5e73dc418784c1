"""Opens the store of a URI."""

from __future__ import annotations

import asyncio

from object_store.directory_store import DirectoryStore
from object_store.errors import StoreDenied
from object_store.limits import StoreLimits
from object_store.off_loop import OffLoop
from object_store.store import ObjectStore
from object_store.uri import StoreUri, parse_uri


async def open_store(
    uri: str | StoreUri,
    limits: StoreLimits | None = None,
    *,
    create: bool = True,
    off_loop: OffLoop | None = None,
) -> ObjectStore:
    """A store whose keys are relative to the URI. `create` makes a missing directory.

    The S3 client runs on `off_loop`, or in a thread that the store starts for it. Opening sends nothing to S3, so the
    first call reports an unreachable store. Raises InvalidStoreUri, StoreDenied (the directory is missing, or the extra
    `s3` is not installed).
    """
    place = parse_uri(uri) if isinstance(uri, str) else uri
    limits = limits or StoreLimits()
    if place.kind == "file":
        directory = DirectoryStore(place.path, limits)
        try:
            await directory.open(create=create)
        except BaseException:
            await directory.close()
            raise
        return directory
    try:
        return await asyncio.to_thread(_s3_store, place, limits, off_loop)
    except ModuleNotFoundError as missing:
        reason = (
            f"the Python package {missing.name} is missing; `make install-s3` in a checkout brings it, "
            "or pip with the extra `tidelog[s3]`"
        )
        raise StoreDenied(place.name, "open", "", reason) from None


def _s3_store(place: StoreUri, limits: StoreLimits, off_loop: OffLoop | None) -> ObjectStore:
    # Not at the top: it costs a second and 40 MiB that a node without S3 need not pay, and it may be missing.
    from object_store.s3_store import S3Store  # noqa: PLC0415

    return S3Store(place, limits, off_loop)
