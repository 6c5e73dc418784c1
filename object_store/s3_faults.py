"""The StoreErrors for S3's responses and failures. Only the error code of the store's own text is kept."""

from __future__ import annotations

import re
from typing import NamedTuple

import aiohttp
from botocore import exceptions as aws

from object_store.errors import (
    ObjectAltered,
    ObjectExists,
    ObjectMissing,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
)

CODE = re.compile(r"[A-Za-z0-9._-]{1,64}")
MISSING = {"NoSuchKey", "NotFound", "404"}
DENIED = {
    "ExpiredToken": "the credentials have expired",
    "InvalidAccessKeyId": "the access key is not known",
    "InvalidToken": "the credentials are not known",
    "NoSuchBucket": "there is no such bucket",
    "PermanentRedirect": "the bucket is in another region; give it in the URI",
    "AuthorizationHeaderMalformed": "the bucket is in another region; give it in the URI",
    "RequestTimeTooSkewed": "the clock of this machine is wrong",
    "SignatureDoesNotMatch": "the secret key does not fit the access key",
}
FULL = {"XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "QuotaExceeded", "InsufficientStorage"}
LATER = {
    "BadDigest",  # altered in transit
    "ConditionalRequestConflict",
    "IncompleteBody",
    "InternalError",
    "OperationAborted",
    "RequestTimeout",
    "SlowDown",
    "SlowDownRead",
    "SlowDownWrite",
    "Throttling",
    "ThrottlingException",
    "XAmzContentChecksumMismatch",
    "XAmzContentSHA256Mismatch",
    "XMinioServerNotInitialized",
}
NO_CREDENTIALS = (
    aws.NoCredentialsError,
    aws.PartialCredentialsError,
    aws.CredentialRetrievalError,
    aws.NoAuthTokenError,
    aws.TokenRetrievalError,
    aws.ProfileNotFound,
    aws.ConfigNotFound,
    aws.ConfigParseError,
)
NO_CONNECTION = (
    aws.ConnectionError,  # refused, timed out, an invalid certificate
    aws.HTTPClientError,
    aws.IncompleteReadError,
    aws.ResponseStreamingError,
    aiohttp.ClientError,
    OSError,
    EOFError,
)


class RangeBeyondEnd(StoreError):
    """416: the range begins at or after the end of the object."""


class UploadGone(StoreError):
    """A multipart upload has ended: an earlier attempt completed it, or it was aborted."""


class BodyCut(Exception):
    """A body ended before its announced length."""


class BodyAltered(Exception):
    """A body does not match its checksum."""


class Fault(NamedTuple):
    error: StoreError
    retriable: bool


def fault_of(error: Exception, store: str, operation: str, key: str) -> Fault:
    """The error to raise, and whether to retry first. 412 becomes ObjectExists, also for a replace."""
    if isinstance(error, StoreError):
        return Fault(error, False)
    if isinstance(error, aws.ClientError):
        return _of_answer(error, store, operation, key)
    if isinstance(error, TimeoutError):
        return Fault(StoreUnavailable(store, operation, key, "no answer in time"), True)
    if isinstance(error, BodyCut):
        return Fault(StoreUnavailable(store, operation, key, str(error)), True)
    if isinstance(error, BodyAltered):
        return Fault(ObjectAltered(store, operation, key, str(error)), True)
    if isinstance(error, NO_CREDENTIALS):
        return Fault(StoreDenied(store, operation, key, f"no usable credentials ({type(error).__name__})"), False)
    if isinstance(error, NO_CONNECTION):
        return Fault(StoreUnavailable(store, operation, key, type(error).__name__), True)
    return Fault(StoreError(store, operation, key, type(error).__name__), False)


def answer_code(error: Exception) -> tuple[int, str]:
    """(HTTP status, error code) of an answer, (0, "") of anything else."""
    if not isinstance(error, aws.ClientError):
        return 0, ""
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    code = str(error.response.get("Error", {}).get("Code", ""))
    return status, code if CODE.fullmatch(code) else ""


def of_code(code: str, store: str, operation: str, key: str) -> StoreError:
    """The error of one object in a larger request; `code` is S3's."""
    return _of_code(0, code if CODE.fullmatch(code) else "", store, operation, key).error


def _of_answer(error: aws.ClientError, store: str, operation: str, key: str) -> Fault:
    status, code = answer_code(error)
    return _of_code(status, code, store, operation, key)


def _of_code(status: int, code: str, store: str, operation: str, key: str) -> Fault:
    reason = f"{status} {code}".strip() if code != str(status) else code  # answers to HEAD have no other code
    if code in DENIED:
        return Fault(StoreDenied(store, operation, key, DENIED[code]), False)
    if code in FULL or status == 507:
        return Fault(StoreFull(store, operation, key, reason), False)
    if code in LATER or status in {408, 429, 500, 502, 503, 504}:
        return Fault(StoreUnavailable(store, operation, key, reason), True)
    if code == "PreconditionFailed" or status == 412:
        return Fault(ObjectExists(store, operation, key, "the object exists"), False)
    if status == 416 or code == "InvalidRange":
        return Fault(RangeBeyondEnd(store, operation, key, "the range begins at the end or after it"), False)
    if code == "NoSuchUpload":
        return Fault(UploadGone(store, operation, key, "the upload has ended"), False)
    if code in MISSING or status == 404:
        return Fault(ObjectMissing(store, operation, key, "there is no such object"), False)
    if status in {401, 403} or code == "AccessDenied":
        return Fault(StoreDenied(store, operation, key, reason), False)
    if status == 501 or code == "NotImplemented":
        return Fault(StoreError(store, operation, key, f"the store cannot do this ({reason})"), False)
    return Fault(StoreError(store, operation, key, reason), False)
