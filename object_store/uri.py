"""A store's URI: `file:///directory` or `s3://bucket/prefix?endpoint=https://host:9000&region=eu-central-1`.

A URI never holds a credential. S3 credentials come by AWS's usual chain (environment, profile files, web identity,
container, instance).
"""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from msgspec import Struct

from object_store.store import check_key

BUCKET = re.compile(r"[a-z0-9][a-z0-9.\-_]{1,61}[a-z0-9]")
REGION = re.compile(r"[a-z0-9-]{1,64}")
ADDRESSING = ("path", "virtual")
S3_OPTIONS = ("endpoint", "region", "addressing")


class InvalidStoreUri(ValueError):
    """The text says what is wrong, without parts that may be secret."""


class StoreUri(Struct, frozen=True):
    """A checked URI. `file` has `path` (absolute, normalized), `s3` the rest. `prefix` has no slash at either end."""

    kind: Literal["file", "s3"]
    path: str = ""
    bucket: str = ""
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    addressing: str = "virtual"

    @property
    def name(self) -> str:
        """The URI without options, for messages."""
        if self.kind == "file":
            return f"file://{self.path}"
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


def parse_uri(text: str) -> StoreUri:
    """Raises InvalidStoreUri."""
    try:
        parts = urlsplit(text)
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query), max_num_fields=16)
    except ValueError:
        raise InvalidStoreUri("the URI of the object store cannot be read") from None
    if parts.fragment or "#" in text:
        raise InvalidStoreUri("a store's URI has no #fragment")
    if parts.scheme == "file":
        if options:
            raise InvalidStoreUri("a file:// URI takes no options")
        return _parse_file(parts.netloc, unquote(parts.path))
    if parts.scheme == "s3":
        return _parse_s3(parts.netloc, unquote(parts.path), options)
    raise InvalidStoreUri("a store's URI begins with file:///directory or s3://bucket")


def _parse_file(host: str, path: str) -> StoreUri:
    if host not in {"", "localhost"}:
        raise InvalidStoreUri("a file:// URI names no host: write file:///directory")
    names = [name for name in path.split("/") if name]
    if not path.startswith("/") or not names:
        raise InvalidStoreUri("a file:// URI needs an absolute path of a directory other than /")
    if ".." in names or "." in names or "\0" in path:
        raise InvalidStoreUri('the path of a file:// URI has no "." or ".."')
    return StoreUri("file", path="/" + "/".join(names))


def _parse_s3(host: str, path: str, options: list[tuple[str, str]]) -> StoreUri:
    if "@" in host or ":" in host:
        raise InvalidStoreUri("an s3:// URI holds a bucket and no credentials, which come by the usual chain of AWS")
    if not BUCKET.fullmatch(host) or ".." in host:
        raise InvalidStoreUri(f"{quote(host)!r} is no name of a bucket")
    prefix = path.strip("/")
    if prefix:
        try:
            check_key("", "", prefix)
        except Exception as error:
            raise InvalidStoreUri(f"the prefix {quote(prefix)!r} cannot begin a key") from error
        if len(prefix.encode()) > 100:
            raise InvalidStoreUri("the prefix is longer than 100 bytes")
    found: dict[str, str] = {}
    for name, value in options:
        if name not in S3_OPTIONS:
            raise InvalidStoreUri(f"an s3:// URI takes the options {', '.join(S3_OPTIONS)} and no other")
        if name in found:
            raise InvalidStoreUri(f"the option {name} is given twice")
        found[name] = value
    endpoint, region = found.get("endpoint"), found.get("region")
    if endpoint is not None:
        endpoint = _checked_endpoint(endpoint)
    if region is not None and not REGION.fullmatch(region):
        raise InvalidStoreUri("the option region is no name of a region")
    # A self-hosted server seldom has a host name per bucket.
    addressing = found.get("addressing", "path" if endpoint else "virtual")
    if addressing not in ADDRESSING:
        raise InvalidStoreUri(f"the option addressing is one of {', '.join(ADDRESSING)}")
    return StoreUri("s3", bucket=host, prefix=prefix, endpoint=endpoint, region=region, addressing=addressing)


def _checked_endpoint(text: str) -> str:
    try:
        parts = urlsplit(text)
        port_is_wrong = parts.port == 0
    except ValueError:
        port_is_wrong, parts = True, urlsplit("")
    if port_is_wrong or parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InvalidStoreUri("the option endpoint is a URL like https://host:9000")
    if "@" in parts.netloc:
        raise InvalidStoreUri("the option endpoint holds no credentials: they come by the usual chain of AWS")
    if parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise InvalidStoreUri("the option endpoint has no path")
    return f"{parts.scheme}://{parts.netloc}"
