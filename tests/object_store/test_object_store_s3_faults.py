"""S3 that is slow, denies, breaks off, lies or loses its answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from common.machine_disk import MachineDisk
from object_store.errors import (
    ObjectAltered,
    ObjectExists,
    ObjectTruncated,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StoreUnfit,
    VersionConflict,
)
from object_store.limits import MIB
from object_store.opening import open_store
from object_store.probe import probe_conditions
from object_store.store import FileRange, ObjectStore
from tests.object_store.conftest import LIMITS, REAL_ENDPOINT, new_place
from tests.object_store.faulty_proxy import FaultyProxy, Request, Spoil

QUICK = replace(LIMITS, attempts_max=4)
BIG = b"x" * (12 * MIB)


def first(count: int, fate: str, method: str = "", part: str = "") -> Spoil:
    """Spoil the first `count` requests of a method whose target contains `part`."""
    left = [count]

    def spoil(request: Request) -> str | None:
        if left[0] and request.method.startswith(method) and part in request.target:
            left[0] -= 1
            return fate
        return None

    return spoil


def always(fate: str, method: str = "", part: str = "") -> Spoil:
    return first(-1, fate, method, part)


@pytest.fixture(params=["moto", *(["real"] if REAL_ENDPOINT else [])])
async def proxy(request: pytest.FixtureRequest, aws_credentials: None) -> AsyncIterator[FaultyProxy]:
    faulty = FaultyProxy(REAL_ENDPOINT if request.param == "real" else request.getfixturevalue("moto_endpoint"))
    await faulty.start()
    yield faulty
    await faulty.stop()


@pytest.fixture
async def store(proxy: FaultyProxy) -> AsyncIterator[ObjectStore]:
    opened = await open_store(f"{await new_place(proxy.server_url)}?endpoint={proxy.url}", QUICK)
    await opened.put("key", b"0123456789")
    proxy.requests.clear()
    yield opened
    await opened.close()


PASSING = ["503 SlowDown", "500 InternalError", "429 TooManyRequests", "408 RequestTimeout", "drop"]


@pytest.mark.parametrize("fate", PASSING)
async def test_what_passes_is_tried_again(store: ObjectStore, proxy: FaultyProxy, fate: str) -> None:
    proxy.spoil = first(2, fate)
    assert await store.get("key") == b"0123456789"
    proxy.spoil = first(2, fate)
    await store.put("other", b"x")
    proxy.spoil = first(2, fate)
    assert [info.key async for info in store.list("")] == ["key", "other"]
    proxy.spoil = first(2, fate)
    await store.delete(["other"])
    proxy.spoil = first(2, fate)
    await store.copy("key", "copied")
    proxy.spoil = first(2, fate)
    assert (await store.head("copied")).size == 10


async def test_a_store_that_stays_away_is_unavailable_after_bounded_attempts(
    store: ObjectStore, proxy: FaultyProxy
) -> None:
    proxy.spoil = always("503 SlowDown")
    with pytest.raises(StoreUnavailable, match=r"get 'key' in s3://\S+/prefix: 503 SlowDown \(4 attempts\)"):
        await store.get("key")
    assert len(proxy.requests) == 4


async def test_when_the_budget_is_used_up_each_call_asks_once(proxy: FaultyProxy) -> None:
    limits = replace(QUICK, retry_budget=10)
    store = await open_store(f"{await new_place(proxy.server_url)}?endpoint={proxy.url}", limits)
    proxy.spoil = always("503 SlowDown")
    for _ in range(20):
        with pytest.raises(StoreUnavailable):
            await store.head("key")
    assert len(proxy.requests) == 20 + 5
    await store.close()


async def test_silence_ends_within_the_limits(proxy: FaultyProxy) -> None:
    limits = replace(QUICK, silence_timeout_s=0.2, attempts_max=2)
    store = await open_store(f"{await new_place(proxy.server_url)}?endpoint={proxy.url}", limits)
    await store.put("key", b"x")
    proxy.spoil = always("stall")
    async with asyncio.timeout(5):
        with pytest.raises(StoreUnavailable):
            await store.get("key")
    limits = replace(QUICK, attempt_timeout_s=0.2, attempts_max=2)
    slow = await open_store(f"{await new_place(proxy.server_url)}?endpoint={proxy.url}", limits)
    async with asyncio.timeout(5):
        with pytest.raises(StoreUnavailable, match="no answer in time"):
            await slow.head("key")
    await store.close()
    await slow.close()


async def test_nobody_listens(aws_credentials: None, unused_tcp_port: int) -> None:
    store = await open_store(f"s3://bucket?endpoint=http://127.0.0.1:{unused_tcp_port}", replace(QUICK, attempts_max=2))
    with pytest.raises(StoreUnavailable):
        await store.get("key")
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.get("key")


async def test_a_body_that_breaks_off_is_read_again(store: ObjectStore, proxy: FaultyProxy) -> None:
    proxy.spoil = first(2, "cut", "GET")
    assert await store.get("key", 2, 6) == b"234567"
    assert proxy.seen("GET") == ["cut", "cut", None]
    proxy.spoil = always("cut", "GET")
    with pytest.raises(StoreUnavailable):
        await store.get("key")


async def test_a_short_range_is_never_returned(store: ObjectStore, proxy: FaultyProxy) -> None:
    proxy.spoil = always("shorten", "GET")
    with pytest.raises(ObjectTruncated):
        await store.get("key", 2, 6)


async def test_altered_bytes_are_noticed_by_the_stores_checksum(store: ObjectStore, proxy: FaultyProxy) -> None:
    proxy.spoil = first(1, "alter", "GET")
    assert await store.get("key") == b"0123456789"
    proxy.spoil = always("alter", "GET")
    with pytest.raises(ObjectAltered):
        await store.get("key")
    with pytest.raises(ObjectAltered):
        await store.get_with_version("key")


@pytest.mark.parametrize(
    ("fate", "error"),
    [("403 AccessDenied", StoreDenied), ("403 SignatureDoesNotMatch", StoreDenied), ("404 NoSuchBucket", StoreDenied),
     ("507 InsufficientStorage", StoreFull),
     ("400 XMinioAdminBucketQuotaExceeded", StoreFull), ("400 InvalidArgument", StoreError),
     ("501 NotImplemented", StoreError)],
)  # fmt: skip
async def test_a_refusal_is_told_at_once(
    store: ObjectStore, proxy: FaultyProxy, fate: str, error: type[StoreError]
) -> None:
    proxy.spoil = always(fate)
    with pytest.raises(error) as caught:
        await store.put("key", b"x", create_only=True)
    assert type(caught.value) is error
    assert len(proxy.requests) == 1
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__context__ is None


async def test_a_lost_answer_of_a_conditional_write_is_no_conflict(store: ObjectStore, proxy: FaultyProxy) -> None:
    proxy.spoil = first(1, "lose answer", "PUT")
    info = await store.put("manifest/1", b"mine", create_only=True)
    assert info.version == (await store.head("manifest/1")).version
    proxy.spoil = first(1, "lose answer", "PUT")
    second = await store.replace("manifest/1", b"next", info.version)
    assert await store.get_with_version("manifest/1") == (b"next", second.version)
    proxy.spoil = first(1, "lose answer", "PUT")
    with pytest.raises(ObjectExists):
        await store.put("manifest/1", b"next", create_only=True)  # the same bytes are another's all the same
    proxy.spoil = first(1, "lose answer", "PUT")
    with pytest.raises(VersionConflict):
        await store.replace("manifest/1", b"next", info.version)


async def test_a_lost_answer_to_the_end_of_an_upload(store: ObjectStore, proxy: FaultyProxy) -> None:
    proxy.spoil = first(1, "lose answer", "POST", "uploadId")
    await store.put("segment", BIG, create_only=True)
    assert (await store.head("segment")).size == len(BIG)
    assert "lose answer" in proxy.seen("POST")
    with pytest.raises(ObjectExists):
        await store.put("segment", BIG, create_only=True)


async def test_an_upload_that_fails_is_aborted(store: ObjectStore, proxy: FaultyProxy) -> None:
    proxy.spoil = always("503 SlowDown", "PUT", "partNumber=2")
    with pytest.raises(StoreUnavailable):
        await store.put("segment", BIG)
    assert proxy.seen("DELETE") == [None]
    assert await store.sweep_unfinished(2**53) == 0
    proxy.spoil = always("403 AccessDenied", "POST", "uploadId")
    with pytest.raises(StoreDenied):
        await store.put("segment", BIG)
    assert proxy.seen("DELETE") == [None, None]


async def test_what_could_not_be_aborted_is_swept(
    store: ObjectStore, proxy: FaultyProxy, caplog: pytest.LogCaptureFixture
) -> None:
    if proxy.server_url == REAL_ENDPOINT:
        pytest.skip("MinIO lists no unfinished uploads and sweeps them itself")
    proxy.spoil = lambda request: (
        "503 SlowDown" if request.method == "DELETE" or "partNumber" in request.target else None
    )
    with pytest.raises(StoreUnavailable):
        await store.put("segment", BIG)
    assert "until it is swept" in caplog.text
    proxy.spoil = lambda _: None
    assert await store.sweep_unfinished(0) == 0  # it is too young
    assert await store.sweep_unfinished(2**53) == 1
    assert await store.sweep_unfinished(2**53) == 0
    assert [info.key async for info in store.list("")] == ["key"]


async def test_a_cancelled_upload_ends_and_leaves_nothing(
    store: ObjectStore, proxy: FaultyProxy, tmp_path: Path
) -> None:
    file = MachineDisk(tmp_path).open("log", create=True)
    file.pwrite(BIG, 0)
    proxy.spoil = always("stall", "PUT", "partNumber=3")
    upload = asyncio.create_task(store.put("segment", [FileRange(file, 0, len(BIG))]))
    async with asyncio.timeout(10):
        await proxy.stalled.wait()
        upload.cancel()
        with pytest.raises(asyncio.CancelledError):
            await upload
    file.close()
    assert proxy.seen("DELETE") == [None]
    assert await store.sweep_unfinished(2**53) == 0
    assert await store.get("key") == b"0123456789"


async def test_a_file_that_is_shorter_than_it_was_said_is_not_stored(store: ObjectStore, tmp_path: Path) -> None:
    file = MachineDisk(tmp_path).open("log", create=True)
    file.pwrite(b"short", 0)
    with pytest.raises(StoreError, match="ends at 5"):
        await store.put("small", [FileRange(file, 0, 6)])
    with pytest.raises(StoreError, match="ends at 5"):
        await store.put("large", [FileRange(file, 0, len(BIG))])
    file.close()
    assert [info.key async for info in store.list("")] == ["key"]
    assert await store.sweep_unfinished(2**53) == 0


async def test_one_failed_object_fails_the_deletion(store: ObjectStore, proxy: FaultyProxy) -> None:
    proxy.spoil = always("403 AccessDenied", "POST", "delete")
    with pytest.raises(StoreDenied):
        await store.delete(["key"])
    assert await store.get("key") == b"0123456789"


async def test_a_server_that_ignores_conditions_is_found_out(store: ObjectStore, proxy: FaultyProxy) -> None:
    await probe_conditions(store, "probe")
    if proxy.server_url == REAL_ENDPOINT:
        pytest.skip("a real server sees that a signed header is gone")
    assert [info.key async for info in store.list("")] == ["key"]

    def strip(name: str) -> Spoil:
        def spoil(request: Request) -> None:
            request.headers.pop(name, None)

        return spoil

    for name, word in [("if-none-match", "If-None-Match"), ("if-match", "If-Match")]:
        proxy.spoil = strip(name)
        with pytest.raises(StoreUnfit, match=word):
            await probe_conditions(store, "probe")
    if proxy.server_url == REAL_ENDPOINT:
        pytest.skip("a real server sees that a signed header is gone")
    assert [info.key async for info in store.list("")] == ["key"]


@pytest.fixture
def everything_logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.DEBUG):
        yield caplog


async def test_no_credential_is_told(
    store: ObjectStore,
    proxy: FaultyProxy,
    monkeypatch: pytest.MonkeyPatch,
    everything_logged: pytest.LogCaptureFixture,
) -> None:
    secret = "wJalrXUtnFEMIsecret"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    other = await open_store(f"s3://bucket-{secret.lower()[:5]}?endpoint={proxy.url}", QUICK)
    with pytest.raises(StoreError) as caught:
        await other.put("key", b"x")
    await other.close()
    assert secret not in str(caught.value) + repr(caught.value) + everything_logged.text


async def test_without_credentials_the_store_is_denied(
    store: ObjectStore, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    other = await open_store(f"s3://bucket?endpoint={proxy.url}", QUICK)
    with pytest.raises(StoreDenied, match="no usable credentials"):
        await other.get("key")
    await other.close()
