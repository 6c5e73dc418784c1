"""Writes to S3, on the private event loop: single puts, multipart uploads, conditions, copies.

Every write carries a random token as metadata. When a conditional write is answered "the object exists" and that object
has its token, an earlier attempt had succeeded and its answer was lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from common.outlasting import outlast
from object_store.errors import ObjectExists, ObjectMissing, StoreError, VersionConflict
from object_store.file_copying import SourceEnded
from object_store.limits import MIB, StoreLimits
from object_store.s3_faults import UploadGone
from object_store.s3_requests import S3Requests, answered_ms, checksum
from object_store.store import Body, FileRange, ObjectInfo, body_parts, body_size, part_size

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client
    from types_aiobotocore_s3.type_defs import CompletedPartTypeDef

TOKEN = "tidelog-write"
PARTS_MAX = 9_000  # S3 allows 10,000
COPY_WHOLE_MAX = 256 * MIB
COPY_PART_BYTES = 256 * MIB
COPIED_BYTES_PER_READ = 16  # for time limits: a copy inside the store is so much faster than a transfer
ABORT_TIMEOUT_S = 10.0
log = logging.getLogger("tidelog.object_store")


class Span(NamedTuple):
    """A part of an upload: its number from 1, and its position in the body."""

    number: int
    start: int
    length: int


class S3Uploads:
    def __init__(self, requests: S3Requests) -> None:
        self._requests = requests
        self._limits: StoreLimits = requests.limits

    async def put(self, key: str, body: Body, create_only: bool) -> ObjectInfo:
        """Raises ObjectExists."""
        size = body_size(body)
        if size <= self._limits.part_bytes:
            conditions = {"IfNoneMatch": "*"} if create_only else {}
            return await self._put_whole("put", key, await self._bytes("put", key, body), conditions)
        if create_only:
            await self._refuse_existing(key)  # saves the upload; the condition at its end decides
        return await self._put_parts(key, body, size, create_only)

    async def replace(self, key: str, body: bytes, expected: str | None) -> ObjectInfo:
        """Raises VersionConflict."""
        conditions = {"IfNoneMatch": "*"} if expected is None else {"IfMatch": expected}
        try:
            return await self._put_whole("replace", key, body, conditions)
        except (ObjectExists, ObjectMissing):
            raise VersionConflict(self._requests.name, "replace", key, "the object has another version") from None

    async def copy(self, source: str, target: str) -> None:
        """Raises ObjectMissing."""
        requests = self._requests
        info, _ = await requests.head("copy", source)
        origin: Any = {"Bucket": requests.bucket, "Key": requests.full_key(source)}
        if info.size <= COPY_WHOLE_MAX:

            async def request(client: S3Client) -> Any:
                return await client.copy_object(
                    Bucket=requests.bucket,
                    Key=requests.full_key(target),
                    CopySource=origin,
                    ChecksumAlgorithm="CRC32C",  # computed again: a multipart upload's does not fit a single copy
                )

            await requests.call("copy", source, request, moved_bytes=info.size // COPIED_BYTES_PER_READ)
            return

        async def copy_part(client: S3Client, upload: str, span: Span) -> CompletedPartTypeDef:
            answer = await client.upload_part_copy(
                Bucket=requests.bucket,
                Key=requests.full_key(target),
                UploadId=upload,
                PartNumber=span.number,
                CopySource=origin,
                CopySourceIfMatch=info.version,
                CopySourceRange=f"bytes={span.start}-{span.start + span.length - 1}",
            )
            return {"PartNumber": span.number, "ETag": answer["CopyPartResult"]["ETag"]}

        async def move(upload: str, span: Span) -> CompletedPartTypeDef:
            return await requests.call(
                "copy",
                source,
                lambda client: copy_part(client, upload, span),
                moved_bytes=span.length // COPIED_BYTES_PER_READ,
            )

        await self._in_parts("copy", target, plan_parts(info.size, COPY_PART_BYTES), move, {}, {})

    async def _bytes(self, operation: str, key: str, body: Body) -> bytes:
        """The bytes of a body or of a part of one; files are read in a thread."""
        parts = body_parts(body)
        if not any(isinstance(part, FileRange) for part in parts):
            return b"".join(part for part in parts if isinstance(part, bytes))
        try:
            return await outlast(asyncio.ensure_future(asyncio.to_thread(_read_parts, parts)))
        except SourceEnded as ended:
            raise StoreError(self._requests.name, operation, key, str(ended)) from None
        except OSError as error:
            reason = f"the file to be stored cannot be read: {error.strerror}"
            raise StoreError(self._requests.name, operation, key, reason) from None

    # -- one request

    async def _put_whole(self, operation: str, key: str, data: bytes, conditions: dict[str, Any]) -> ObjectInfo:
        requests = self._requests
        token = requests.new_token()

        async def request(client: S3Client) -> ObjectInfo:
            answer = await client.put_object(
                Bucket=requests.bucket,
                Key=requests.full_key(key),
                Body=data,
                Metadata={TOKEN: token},
                ChecksumAlgorithm="CRC32C",
                ChecksumCRC32C=checksum(data),
                **conditions,
            )
            return ObjectInfo(key, len(data), answered_ms(answer), answer["ETag"])

        try:
            return await requests.call(operation, key, request, moved_bytes=len(data))
        except ObjectExists as exists:
            return await self._own_object(operation, key, token, exists)

    async def _own_object(self, operation: str, key: str, token: str, otherwise: StoreError) -> ObjectInfo:
        try:
            info, metadata = await self._requests.head(operation, key)
        except ObjectMissing:
            raise otherwise from None
        if metadata.get(TOKEN) != token:
            raise otherwise from None
        return info

    async def _refuse_existing(self, key: str) -> None:
        try:
            await self._requests.head("put", key)
        except ObjectMissing:
            return
        raise ObjectExists(self._requests.name, "put", key, "the object exists")

    # -- many requests

    async def _put_parts(self, key: str, body: Body, size: int, create_only: bool) -> ObjectInfo:
        requests = self._requests
        token = requests.new_token()

        async def upload_part(upload: str, span: Span) -> CompletedPartTypeDef:
            data = await self._bytes("put", key, [*cut_body(body, span.start, span.length)])
            code = checksum(data)

            async def request(client: S3Client) -> CompletedPartTypeDef:
                answer = await client.upload_part(
                    Bucket=requests.bucket,
                    Key=requests.full_key(key),
                    UploadId=upload,
                    PartNumber=span.number,
                    Body=data,
                    ChecksumAlgorithm="CRC32C",
                    ChecksumCRC32C=code,
                )
                return {"PartNumber": span.number, "ETag": answer["ETag"], "ChecksumCRC32C": code}

            return await requests.call("put", key, request, moved_bytes=len(data))

        options = {"Metadata": {TOKEN: token}, "ChecksumAlgorithm": "CRC32C"}
        conditions = {"IfNoneMatch": "*"} if create_only else {}
        spans = plan_parts(size, self._limits.part_bytes)
        try:
            answer = await self._in_parts("put", key, spans, upload_part, options, conditions)
        except (ObjectExists, UploadGone) as error:
            return await self._own_object("put", key, token, error)
        return ObjectInfo(key, size, answered_ms(answer), answer["ETag"])

    async def _in_parts(
        self,
        operation: str,
        key: str,
        spans: Sequence[Span],
        move: Callable[[str, Span], Awaitable[CompletedPartTypeDef]],
        options: dict[str, Any],
        conditions: dict[str, Any],
    ) -> Any:
        """Begin an upload, move its parts with bounded parallelism, and complete it, or abort it after any failure."""
        requests = self._requests
        place: dict[str, Any] = {"Bucket": requests.bucket, "Key": requests.full_key(key)}

        async def begin(client: S3Client) -> str:
            return (await client.create_multipart_upload(**place, **options))["UploadId"]

        upload = await requests.call(operation, key, begin)
        try:
            parts = await self._move_all(upload, spans, move)

            async def complete(client: S3Client) -> Any:
                return await client.complete_multipart_upload(
                    **place, UploadId=upload, MultipartUpload={"Parts": parts}, **conditions
                )

            total = spans[-1].start + spans[-1].length
            return await requests.call(operation, key, complete, moved_bytes=total // COPIED_BYTES_PER_READ)
        except BaseException:
            await self._abort(key, upload)
            raise

    async def _move_all(
        self, upload: str, spans: Sequence[Span], move: Callable[[str, Span], Awaitable[CompletedPartTypeDef]]
    ) -> list[CompletedPartTypeDef]:
        waiting = iter(spans)
        moved: list[CompletedPartTypeDef] = []

        async def work() -> None:
            for span in waiting:
                moved.append(await move(upload, span))  # noqa: PERF401 (several workers fill it)

        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(min(self._limits.parallel_parts, len(spans))):
                    workers.create_task(work())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return sorted(moved, key=lambda part: part["PartNumber"])

    async def _abort(self, key: str, upload: str) -> None:
        requests = self._requests

        async def request(client: S3Client) -> None:
            await client.abort_multipart_upload(Bucket=requests.bucket, Key=requests.full_key(key), UploadId=upload)

        try:
            async with asyncio.timeout(ABORT_TIMEOUT_S):
                await requests.call("abort", key, request)
        except (UploadGone, ObjectMissing):
            pass
        except (StoreError, TimeoutError) as error:
            log.warning("an unfinished upload stays until it is swept key=%s error=%s", key, error)


def plan_parts(size: int, part_bytes: int) -> list[Span]:
    """Parts of equal length except the last; larger than `part_bytes` where they would exceed `PARTS_MAX`."""
    length = max(part_bytes, -(-size // PARTS_MAX))
    return [Span(number + 1, start, min(length, size - start)) for number, start in enumerate(range(0, size, length))]


def cut_body(body: Body, start: int, length: int) -> Iterator[bytes | FileRange]:
    """The pieces of `body` between `start` and `start + length`."""
    end = start + length
    position = 0
    for part in body_parts(body):
        size = part_size(part)
        first, last = max(start, position) - position, min(end, position + size) - position
        if first < last:
            if isinstance(part, FileRange):
                yield FileRange(part.file, part.position + first, last - first)
            else:
                yield part[first:last]
        position += size


def _read_parts(parts: Sequence[bytes | FileRange]) -> bytes:
    pieces: list[bytes] = []
    for part in parts:
        if isinstance(part, bytes):
            pieces.append(part)
            continue
        position, end = part.position, part.position + part.length
        while position < end:
            piece = part.file.pread(end - position, position)
            if not piece:
                raise SourceEnded(f"the file to be stored ends at {position}, not {end}")
            pieces.append(piece)
            position += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
