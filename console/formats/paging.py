"""A long list as pages show it: searched, and a page of it at a time. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

PER_PAGE = 50

T = TypeVar("T")


class Paged(NamedTuple, Generic[T]):
    """`at` counts from 1; `total` is of all that were found."""

    rows: Sequence[T]
    at: int
    total: int
    per_page: int


def paged(rows: Sequence[T], at: int, per_page: int = PER_PAGE) -> Paged[T]:
    """A page beyond the last is the last."""
    last = max(0, len(rows) - 1) // per_page + 1
    at = min(max(at, 1), last)
    return Paged(rows[(at - 1) * per_page : at * per_page], at, len(rows), per_page)


def found(rows: Sequence[T], words: str, text: Callable[[T], str]) -> list[T]:
    """Rows that have all words, in any case, anywhere in their text."""
    wanted = words.lower().split()
    return [row for row in rows if all(word in text(row).lower() for word in wanted)] if wanted else list(rows)
