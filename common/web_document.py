"""A small document of an operator's, from an address or a file on the machine: read whole, bounded, off the loop."""

from __future__ import annotations

SCHEMES = ("https://", "http://", "file://")


def read_document(url: str, bytes_max: int, timeout_s: float) -> bytes:
    """Blocks. Raises OSError, and ValueError for a url that is none of SCHEMES or a document that is too long."""
    if not url.startswith(SCHEMES):
        raise ValueError(f"{url} is not valid, it must begin with one of {', '.join(SCHEMES)}")
    import urllib.request  # noqa: PLC0415  a node that reads no document does without a megabyte of mail and HTTP

    with urllib.request.urlopen(url, timeout=timeout_s) as answer:
        data: bytes = answer.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise ValueError(f"{url} has more than {bytes_max} bytes")
    return data
