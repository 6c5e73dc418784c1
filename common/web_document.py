"""Reads a small document of an operator from a URL or a file, bounded, off the loop."""

from __future__ import annotations

SCHEMES = ("https://", "http://", "file://")


def read_document(url: str, bytes_max: int, timeout_s: float) -> bytes:
    """Blocks. Raises OSError, and ValueError for another scheme or a document that is too long."""
    if not url.startswith(SCHEMES):
        raise ValueError(f"{url} is not valid, it must begin with one of {', '.join(SCHEMES)}")
    import urllib.request  # noqa: PLC0415  takes a megabyte, which most nodes do not need

    with urllib.request.urlopen(url, timeout=timeout_s) as answer:
        data: bytes = answer.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise ValueError(f"{url} has more than {bytes_max} bytes")
    return data
