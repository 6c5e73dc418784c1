"""An object store in a bucket of S3 or of a server that speaks its protocol (MinIO, Ceph, ...).

The client library runs on a private event loop, to which these calls cross over. Create-only puts use
`If-None-Match: *` and compare-and-set uses `If-Match`, both of which AWS supports since 2024. A server without them
either answers an error or silently overwrites, which `object_store.probe` finds out.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from common.ports import File
from object_store.errors import ObjectTruncated, StoreUnavailable
from object_store.limits import StoreLimits
from object_store.off_loop import OffLoop, OffLoopStopped
from object_store.s3_faults import RangeBeyondEnd, UploadGone, of_code
from object_store.s3_requests import S3Requests
from object_store.s3_uploads import S3Uploads
from object_store.store import Body, ObjectInfo, check_key, check_listing_prefix, check_range
from object_store.uri import StoreUri

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client

T = TypeVar("T")
DELETE_KEYS_MAX = 1000  # S3's limit


class S3Store:
    """Several event loops may use one store; each call is bounded by `limits`."""

    def __init__(self, place: StoreUri, limits: StoreLimits, off_loop: OffLoop | None = None) -> None:
        self.name = place.name
        self._limits = limits
        self._owns_loop = off_loop is None
        self._off_loop = off_loop or OffLoop("object-store-s3")
        self._requests = S3Requests(place, limits, Random())
        self._uploads = S3Uploads(self._requests)
        self._closed = False

    async def put(self, key: str, body: Body, *, create_only: bool = False) -> ObjectInfo:
        check_key(self.name, "put", key)
        return await self._cross("put", key, lambda: self._uploads.put(key, body, create_only))

    async def replace(self, key: str, body: bytes, expected_version: str | None) -> ObjectInfo:
        check_key(self.name, "replace", key)
        return await self._cross("replace", key, lambda: self._uploads.replace(key, body, expected_version))

    async def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        check_key(self.name, "get", key)
        check_range(start, length)
        return await self._cross("get", key, lambda: self._get(key, start, length))

    async def get_with_version(self, key: str) -> tuple[bytes, str]:
        check_key(self.name, "get", key)
        return await self._cross("get", key, lambda: self._requests.read("get", key, 0, None))

    async def head(self, key: str) -> ObjectInfo:
        check_key(self.name, "head", key)
        return (await self._cross("head", key, lambda: self._requests.head("head", key)))[0]

    async def lend(self, key: str, start: int = 0, length: int = 0) -> File | None:
        return None

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(self.name, "delete", key)
        for at in range(0, len(keys), DELETE_KEYS_MAX):
            some = keys[at : at + DELETE_KEYS_MAX]
            await self._cross("delete", some[0], partial(self._delete, some))

    async def copy(self, source: str, target: str) -> None:
        check_key(self.name, "copy", source)
        check_key(self.name, "copy", target)
        await self._cross("copy", source, lambda: self._uploads.copy(source, target))

    async def sweep_unfinished(self, before_ms: int) -> int:
        """Abort multipart uploads. MinIO does not list them, but aborts them itself, after a day by default."""
        return await self._cross("sweep", "", lambda: self._sweep(before_ms))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            await self._off_loop.run(self._requests.close)
        except OffLoopStopped:
            return
        if self._owns_loop:
            await asyncio.to_thread(self._off_loop.stop)

    async def _cross(self, operation: str, key: str, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return await self._off_loop.run(make)
        except OffLoopStopped:
            raise StoreUnavailable(self.name, operation, key, "the store is closed") from None

    # on the private loop

    async def _get(self, key: str, start: int, length: int | None) -> bytes:
        if length == 0:
            return self._nothing_at(key, start, (await self._requests.head("get", key))[0].size)
        try:
            return (await self._requests.read("get", key, start, length))[0]
        except RangeBeyondEnd:
            size = (await self._requests.head("get", key))[0].size
            return self._nothing_at(key, start if length is None else start + length, size)

    def _nothing_at(self, key: str, end: int, size: int) -> bytes:
        if end > size:
            raise ObjectTruncated(self.name, "get", key, f"it ends at {size}, not {end}")
        return b""

    async def _delete(self, keys: Sequence[str]) -> None:
        requests = self._requests

        async def request(client: S3Client) -> None:
            answer = await client.delete_objects(
                Bucket=requests.bucket,
                Delete={"Objects": [{"Key": requests.full_key(key)} for key in keys], "Quiet": True},
            )
            for failed in answer.get("Errors", []):
                raise of_code(failed.get("Code", ""), self.name, "delete", requests.own_key(failed.get("Key", "")))

        await requests.call("delete", keys[0], request)

    async def _page(
        self, prefix: str, start_after: str, continued: str, delimiter: str
    ) -> tuple[list[ObjectInfo], list[str], str]:
        """(objects, prefixes of the next level, the continuation token or "")."""
        requests = self._requests
        asked: dict[str, Any] = {"Bucket": requests.bucket, "MaxKeys": self._limits.page_keys}
        asked["Prefix"] = requests.full_key(prefix)
        if delimiter:
            asked["Delimiter"] = delimiter
        if continued:
            asked["ContinuationToken"] = continued
        elif start_after:
            asked["StartAfter"] = requests.full_key(start_after)

        async def request(client: S3Client) -> tuple[list[ObjectInfo], list[str], str]:
            answer = await client.list_objects_v2(**asked)
            objects = [
                ObjectInfo(
                    requests.own_key(found["Key"]),
                    found["Size"],
                    int(found["LastModified"].timestamp() * 1000),
                    found["ETag"],
                )
                for found in answer.get("Contents", [])
                if not found["Key"].endswith("/")  # a "directory" that some console made
            ]
            below = [requests.own_key(found["Prefix"]) for found in answer.get("CommonPrefixes", [])]
            return objects, below, answer.get("NextContinuationToken", "") if answer.get("IsTruncated") else ""

        return await self._cross("list", prefix, lambda: requests.call("list", prefix, request))

    async def _sweep(self, before_ms: int) -> int:
        requests = self._requests

        async def found(client: S3Client) -> list[tuple[str, str]]:
            uploads: list[tuple[str, str]] = []
            asked: dict[str, Any] = {"Bucket": requests.bucket, "Prefix": requests.full_key("")}
            while True:
                answer = await client.list_multipart_uploads(**asked)
                uploads += [
                    (upload["Key"], upload["UploadId"])
                    for upload in answer.get("Uploads", [])
                    if upload["Initiated"].timestamp() * 1000 < before_ms
                ]
                if not answer.get("IsTruncated"):
                    return uploads
                asked["KeyMarker"] = answer["NextKeyMarker"]
                asked["UploadIdMarker"] = answer["NextUploadIdMarker"]

        async def abort(client: S3Client, full_key: str, upload_id: str) -> None:
            await client.abort_multipart_upload(Bucket=requests.bucket, Key=full_key, UploadId=upload_id)

        removed = 0
        for full_key, upload_id in await requests.call("sweep", "", found):
            with contextlib.suppress(UploadGone):
                request = partial(abort, full_key=full_key, upload_id=upload_id)
                await requests.call("sweep", requests.own_key(full_key), request)
                removed += 1
        return removed

    # listings, last because `list` hides the builtin

    async def list_names(self, prefix: str) -> list[str]:
        check_listing_prefix(prefix)
        names: dict[str, None] = {}
        after = ""
        while True:
            objects, below, after = await self._page(prefix, "", after, "/")
            for found in [*(info.key for info in objects), *below]:
                names[found[len(prefix) :]] = None
            if not after:
                return sorted(name for name in names if name)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        after = ""
        while True:
            objects, _, after = await self._page(prefix, start_after, after, "")
            for info in objects:
                yield info
            if not after:
                return
