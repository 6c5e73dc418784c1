"""Reads a small document of an operator from a URL or a file, or sends one, bounded, off the loop."""

from __future__ import annotations

from urllib.parse import urlsplit

WEB_SCHEMES = ("https://", "http://")
SCHEMES = (*WEB_SCHEMES, "file://")
NOT_HTTP = "what answers at {} does not speak HTTP: {}"


def address_of(url: str) -> str:
    """What of a URL may be shown: a user and a query may be secrets. It shows nothing of what is no URL."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an invalid address"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def fault_of(url: str, schemes: tuple[str, ...] = WEB_SCHEMES) -> str:
    """What makes an operator's URL invalid, in words that do not repeat the URL; empty if it is valid."""
    if not url.startswith(schemes):
        return f"it must begin with one of {', '.join(schemes)}"
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme == "file" or (bool(parts.hostname) and parts.port != 0)
    except ValueError:  # of brackets around a host, or of a port
        is_whole = False
    if not is_whole:
        return "its host or its port is not valid"
    if parts.scheme != "file" and (" " in url or not url.isprintable()):
        return "it must have no spaces and no control characters"
    return ""


def read_document(url: str, bytes_max: int, timeout_s: float) -> bytes:
    """Blocks. Raises OSError, and ValueError for another scheme or a document that is too long."""
    if not url.startswith(SCHEMES):
        raise ValueError(f"{address_of(url)} is not valid, it must begin with one of {', '.join(SCHEMES)}")
    import http.client  # noqa: PLC0415  takes a megabyte, which most nodes do not need
    import urllib.request  # noqa: PLC0415

    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            data: bytes = answer.read(bytes_max + 1)
    except http.client.HTTPException as error:
        raise OSError(NOT_HTTP.format(address_of(url), type(error).__name__)) from error
    if len(data) > bytes_max:
        raise ValueError(f"{address_of(url)} has more than {bytes_max} bytes")
    return data


def post_document(url: str, data: bytes, content_type: str, timeout_s: float) -> int:
    """Blocks. Returns the status of the response, of which nothing else is read. Raises OSError, and ValueError for a
    scheme that is not HTTP."""
    if not url.startswith(WEB_SCHEMES):
        raise ValueError(f"{address_of(url)} is not valid, it must begin with one of {', '.join(WEB_SCHEMES)}")
    import http.client  # noqa: PLC0415  see above
    import urllib.error  # noqa: PLC0415
    import urllib.request  # noqa: PLC0415

    request = urllib.request.Request(url, data=data, headers={"Content-Type": content_type}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except http.client.HTTPException as error:
        raise OSError(NOT_HTTP.format(address_of(url), type(error).__name__)) from error
