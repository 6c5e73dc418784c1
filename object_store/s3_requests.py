"""Single requests to S3, on the private event loop: time limits, retries, checksums, exact bodies.

The client library's own retries are off, because they know neither the deadline nor the budget. Its HTTP layer may
still repeat a PUT once on a connection that the server has just closed, so "the object exists" may be the answer to a
repeated write (see `object_store.s3_uploads`).
"""

from __future__ import annotations

import asyncio
import contextlib
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from email.utils import parsedate_to_datetime
from random import Random
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from common.checksum import crc32c
from object_store.errors import ObjectTruncated, StoreUnavailable
from object_store.limits import StoreLimits
from object_store.retries import RetryBudget
from object_store.s3_faults import BodyAltered, BodyCut, fault_of
from object_store.store import ObjectInfo
from object_store.uri import StoreUri

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client

T = TypeVar("T")
CHUNK_BYTES = 256 * 1024
DEFAULT_REGION = "us-east-1"  # the default of self-hosted servers


class S3Requests:
    """All but the constructor belongs to one event loop."""

    def __init__(self, place: StoreUri, limits: StoreLimits, chance: Random) -> None:
        self.name = place.name
        self.bucket = place.bucket
        self.limits = limits
        self._place = place
        self._chance = chance
        self._backoff = limits.backoff
        self._budget = RetryBudget(limits.retry_budget)
        self._resources = contextlib.AsyncExitStack()
        self._client: S3Client | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    def full_key(self, key: str) -> str:
        """The key with the URI's prefix, as in the bucket."""
        return f"{self._place.prefix}/{key}" if self._place.prefix else key

    def own_key(self, full_key: str) -> str:
        """The key without the URI's prefix."""
        return full_key[len(self._place.prefix) + 1 :] if self._place.prefix else full_key

    def new_token(self) -> str:
        """A random mark that identifies a write."""
        return f"{self._chance.getrandbits(128):032x}"

    async def call(
        self, operation: str, key: str, request: Callable[[S3Client], Awaitable[T]], *, moved_bytes: int = 0
    ) -> T:
        """The outcome of `request`, retried after retriable faults. Raises StoreErrors.

        `moved_bytes`, at `slowest_bytes_per_s`, add to the time of one attempt.
        """
        attempt_s = self.limits.attempt_timeout_s + moved_bytes / self.limits.slowest_bytes_per_s
        attempt = 0
        while True:
            attempt += 1
            if self._closed:
                raise StoreUnavailable(self.name, operation, key, "the store is closed")
            try:
                async with asyncio.timeout(attempt_s):
                    outcome = await request(await self._opened())
            except Exception as error:
                fault = fault_of(error, self.name, operation, key)
            else:
                self._budget.succeeded()
                return outcome
            if not fault.retriable:
                raise fault.error
            if attempt >= self.limits.attempts_max or not self._budget.take():
                fault.error.args = (f"{fault.error} ({attempt} attempts)",)
                raise fault.error
            await asyncio.sleep(self._backoff.jittered_s(attempt, self._chance))

    async def read(self, operation: str, key: str, start: int, length: int | None) -> tuple[bytes, str]:
        """(exactly the requested bytes, version). Raises ObjectMissing, ObjectTruncated, ObjectAltered."""
        whole = start == 0 and length is None

        async def request(client: S3Client) -> tuple[bytes, str]:
            asked: dict[str, Any] = {"ChecksumMode": "ENABLED"}
            if not whole:
                asked = {"Range": f"bytes={start}-" + ("" if length is None else str(start + length - 1))}
            answer = await client.get_object(Bucket=self.bucket, Key=self.full_key(key), **asked)
            async with answer["Body"] as body:
                announced = answer["ContentLength"]
                if not whole:
                    first, total = _content_range(answer.get("ContentRange", ""))
                    if first != start or (length is not None and announced > length):
                        raise BodyAltered("the store sent another range than was asked for")
                    if length is not None and announced < length:
                        reason = f"it ends at {total}, not {start + length}"
                        raise ObjectTruncated(self.name, operation, key, reason)
                data = await _read_exactly(body, announced)
            kept = answer.get("ChecksumCRC32C", "")
            if kept and "-" not in kept and kept != checksum(data):  # "-": a checksum of the parts' checksums
                raise BodyAltered("it does not fit the checksum that the store keeps")
            return data, answer["ETag"]

        return await self.call(operation, key, request, moved_bytes=length or 64 * 1024 * 1024)

    async def head(self, operation: str, key: str) -> tuple[ObjectInfo, Mapping[str, str]]:
        """(what a listing shows, the metadata that the writer set). Raises ObjectMissing."""

        async def request(client: S3Client) -> tuple[ObjectInfo, Mapping[str, str]]:
            answer = await client.head_object(Bucket=self.bucket, Key=self.full_key(key))
            modified_ms = int(answer["LastModified"].timestamp() * 1000)
            return ObjectInfo(key, answer["ContentLength"], modified_ms, answer["ETag"]), answer.get("Metadata", {})

        return await self.call(operation, key, request)

    async def close(self) -> None:
        self._closed = True
        self._client = None
        await self._resources.aclose()

    async def _opened(self) -> S3Client:
        async with self._opening:
            if self._client is None:
                self._client = await self._resources.enter_async_context(self._new_client())
            return self._client

    def _new_client(self) -> AbstractAsyncContextManager[S3Client]:
        place, limits = self._place, self.limits
        addressing: Literal["path", "virtual"] = "path" if place.addressing == "path" else "virtual"
        session = get_session()
        region = place.region or session.get_config_variable("region") or DEFAULT_REGION
        is_encrypted = place.endpoint is None or place.endpoint.startswith("https:")  # then a body needs no signature
        config = AioConfig(
            connect_timeout=limits.connect_timeout_s,
            read_timeout=limits.silence_timeout_s,
            max_pool_connections=limits.connections_max,
            retries={"total_max_attempts": 1},
            tcp_keepalive=True,
            # Requests carry a CRC32C computed here: the library's makes bodies chunked, which some servers reject.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": addressing, "payload_signing_enabled": not is_encrypted},
        )
        client: AbstractAsyncContextManager[S3Client] = session.create_client(
            "s3", region_name=region, endpoint_url=place.endpoint, config=config
        )
        return client


def checksum(data: bytes) -> str:
    """CRC32C in S3's notation."""
    return b64encode(crc32c(data).to_bytes(4, "big")).decode()


def answered_ms(answer: Any) -> int:
    """The store's time of the response: milliseconds, exact to the second, 0 if unknown."""
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date", "")
    try:
        return int(parsedate_to_datetime(date).timestamp() * 1000)
    except ValueError:
        return 0


async def _read_exactly(body: Any, length: int) -> bytes:
    parts: list[bytes] = []
    left = length
    while left:
        part: bytes = await body.read(min(left, CHUNK_BYTES))
        if not part:
            raise BodyCut(f"the body ended {left} bytes early")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _content_range(text: str) -> tuple[int, int]:
    """(first byte, size of the object) of a Content-Range header; (-1, -1) without a valid one."""
    try:
        span, _, total = text.removeprefix("bytes ").partition("/")
        return int(span.partition("-")[0]), int(total)
    except ValueError:
        return -1, -1
