"""Retries, bandwidth, URIs, the plan of an upload: what needs no store."""

from __future__ import annotations

from itertools import pairwise

import pytest
from botocore import exceptions as aws
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from common.ports import FileIdentity
from object_store.errors import (
    ObjectExists,
    ObjectMissing,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from object_store.limits import MIB
from object_store.retries import RetryBudget
from object_store.s3_faults import RangeBeyondEnd, UploadGone, fault_of
from object_store.s3_uploads import PARTS_MAX, cut_body, plan_parts
from object_store.store import FileRange, body_size
from object_store.uri import InvalidStoreUri, StoreUri, parse_uri


class Bytes:
    """A file of `common.ports` over bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def pread(self, size: int, position: int) -> bytes:
        return self.data[position : position + size]

    def pread_into(self, view: memoryview, position: int) -> int:
        raise NotImplementedError

    def pread_now(self, size: int, position: int) -> bytes | None:
        return self.pread(size, position)

    def in_memory(self, size: int, position: int) -> int:
        return size

    def pwrite(self, data: object, position: int) -> int:
        raise NotImplementedError

    def truncate(self, size: int) -> None:
        raise NotImplementedError

    def size(self) -> int:
        return len(self.data)

    def identity(self) -> FileIdentity:
        raise NotImplementedError

    def fsync(self) -> None: ...

    def close(self) -> None: ...


def test_a_store_that_is_down_uses_the_budget_up_and_success_gives_it_back() -> None:
    budget = RetryBudget(10)
    assert [budget.take() for _ in range(7)] == [True] * 5 + [False] * 2
    for _ in range(20):
        budget.succeeded()
    assert [budget.take() for _ in range(3)] == [True, True, False]
    for _ in range(1000):
        budget.succeeded()
    assert budget.tokens == 10


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("file:///srv/tier", StoreUri("file", path="/srv/tier")),
        ("file:///srv//tier%20two/", StoreUri("file", path="/srv/tier two")),
        ("file://localhost/srv", StoreUri("file", path="/srv")),
        ("s3://bucket", StoreUri("s3", bucket="bucket")),
        ("s3://bucket/", StoreUri("s3", bucket="bucket")),
        ("s3://bucket/a/b/?region=eu-central-1", StoreUri("s3", bucket="bucket", prefix="a/b", region="eu-central-1")),
        (
            "s3://my.bucket/t?endpoint=http://minio:9000&region=x&addressing=virtual",
            StoreUri("s3", bucket="my.bucket", prefix="t", endpoint="http://minio:9000", region="x"),
        ),
        (
            "s3://bucket/t?endpoint=https%3A%2F%2F10.0.0.1%3A9000/",
            StoreUri("s3", bucket="bucket", prefix="t", endpoint="https://10.0.0.1:9000", addressing="path"),
        ),
    ],
)
def test_a_uri_is_understood(text: str, uri: StoreUri) -> None:
    assert parse_uri(text) == uri


@pytest.mark.parametrize(
    "text",
    ["", "tier", "/srv/tier", "http://bucket/x", "file://", "file:///", "file://host/srv", "file:///a/../b", "file:a",
     "file:///a?x=1", "s3://", "s3:///x", "s3://B", "s3://ab", "s3://a..b.c", "s3://bucket/../x", "s3://bucket/a//b",
     "s3://bucket?secret=x", "s3://bucket?region=a&region=b", "s3://bucket?region=A%20B", "s3://bucket?region",
     "s3://bucket?endpoint=minio:9000", "s3://bucket?endpoint=http://h:99999", "s3://bucket?endpoint=http://h/path",
     "s3://bucket?addressing=other", "s3://bucket/x#y", "s3://bucket/" + "p" * 101, "file:///a%00b", "s3://[",
     "s3://bucket?endpoint=http://[", "s3://bucket/.unfinished"],
)  # fmt: skip
def test_what_is_no_uri_of_a_store_is_refused(text: str) -> None:
    with pytest.raises(InvalidStoreUri):
        parse_uri(text)


@pytest.mark.parametrize(
    "text",
    ["s3://AKIAIOSFODNN7:hunter2@bucket/x", "s3://bucket?endpoint=http://me:hunter2@minio:9000", "s3://b?key=hunter2",
     "s3://bucket?hunter2=1", "hunter2://bucket", "s3://bucket?endpoint=hunter2", "s3://bucket?addressing=hunter2"],
)  # fmt: skip
def test_a_refusal_repeats_nothing_that_may_be_secret(text: str) -> None:
    with pytest.raises(InvalidStoreUri) as caught:
        parse_uri(text)
    assert "hunter2" not in str(caught.value)


@given(size=st.integers(1, 6 * 1024**4), part_bytes=st.integers(5 * MIB, 64 * MIB))
def test_parts_cover_the_body_and_are_not_too_many(size: int, part_bytes: int) -> None:
    size = min(size, part_bytes * PARTS_MAX * 3)
    spans = plan_parts(size, part_bytes)
    assert spans[0].start == 0 and spans[-1].start + spans[-1].length == size
    assert [span.number for span in spans] == list(range(1, len(spans) + 1))
    assert all(left.start + left.length == right.start for left, right in pairwise(spans))
    assert len({span.length for span in spans[:-1]}) <= 1 and all(span.length >= part_bytes for span in spans[:-1])
    assert len(spans) <= PARTS_MAX + 1


@given(st.data())
def test_a_cut_of_a_body_is_that_part_of_its_bytes(data: st.DataObject) -> None:
    drawn = data.draw(st.lists(st.one_of(st.binary(max_size=20), st.tuples(st.integers(0, 30), st.integers(0, 30)))))
    file = Bytes(bytes(range(100)))
    body = [part if isinstance(part, bytes) else FileRange(file, *part) for part in drawn]
    whole = b"".join(part if isinstance(part, bytes) else file.pread(part.length, part.position) for part in body)
    start = data.draw(st.integers(0, len(whole)))
    length = data.draw(st.integers(0, len(whole) - start))
    pieces = [*cut_body(body, start, length)]
    assert body_size(body) == len(whole)
    cut = b"".join(part if isinstance(part, bytes) else file.pread(part.length, part.position) for part in pieces)
    assert cut == whole[start : start + length]


def answer(status: int, code: str) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": "hunter2"}, "ResponseMetadata": {"HTTPStatusCode": status}}, "GetObject"
    )


@pytest.mark.parametrize(
    ("error", "kind", "retriable"),
    [
        (answer(503, "SlowDown"), StoreUnavailable, True),
        (answer(500, "InternalError"), StoreUnavailable, True),
        (answer(502, "502"), StoreUnavailable, True),
        (answer(409, "ConditionalRequestConflict"), StoreUnavailable, True),
        (answer(400, "BadDigest"), StoreUnavailable, True),
        (answer(400, "RequestTimeout"), StoreUnavailable, True),
        (answer(412, "PreconditionFailed"), ObjectExists, False),
        (answer(404, "NoSuchKey"), ObjectMissing, False),
        (answer(404, "404"), ObjectMissing, False),
        (answer(404, "NoSuchBucket"), StoreDenied, False),
        (answer(404, "NoSuchUpload"), UploadGone, False),
        (answer(416, "InvalidRange"), RangeBeyondEnd, False),
        (answer(403, "AccessDenied"), StoreDenied, False),
        (answer(400, "ExpiredToken"), StoreDenied, False),
        (answer(400, "InvalidToken"), StoreDenied, False),
        (answer(403, "InvalidAccessKeyId"), StoreDenied, False),
        (answer(403, "SignatureDoesNotMatch"), StoreDenied, False),
        (answer(403, "403"), StoreDenied, False),
        (answer(301, "PermanentRedirect"), StoreDenied, False),
        (answer(400, "AuthorizationHeaderMalformed"), StoreDenied, False),
        (answer(507, "XMinioStorageFull"), StoreFull, False),
        (answer(501, "NotImplemented"), StoreError, False),
        (answer(400, "hunter2 with spaces"), StoreError, False),
        (TimeoutError("hunter2"), StoreUnavailable, True),
        (ConnectionResetError("hunter2"), StoreUnavailable, True),
        (aws.EndpointConnectionError(endpoint_url="http://hunter2"), StoreUnavailable, True),
        (aws.NoCredentialsError(), StoreDenied, False),
        (aws.CredentialRetrievalError(provider="process", error_msg="hunter2"), StoreDenied, False),
        (ValueError("hunter2"), StoreError, False),
    ],
)
def test_what_an_answer_means(error: Exception, kind: type[StoreError], retriable: bool) -> None:
    fault = fault_of(error, "s3://bucket", "get", "key")
    assert type(fault.error) is kind and fault.retriable is retriable
    assert str(fault.error).startswith("get 'key' in s3://bucket: ")
    assert "hunter2" not in str(fault.error)
    assert "403 403" not in str(fault.error)
