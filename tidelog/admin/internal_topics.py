"""The cluster's internal topics in listings: hidden unless requested."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import typer

T = TypeVar("T")

Internal = Annotated[
    bool, typer.Option("--internal", help="With what is about the cluster's internal topics; --json has it always.")
]


def is_internal(topic: str | None) -> bool:
    from kraft.topic_names import INTERNAL_TOPICS  # noqa: PLC0415  only listings need it

    return topic in INTERNAL_TOPICS


def without_internal(rows: Sequence[T], topic_of: Callable[[T], str | None]) -> tuple[list[T], int]:
    """The rows that do not concern internal topics, and the number of the others."""
    shown = [row for row in rows if not is_internal(topic_of(row))]
    return shown, len(rows) - len(shown)


def say_hidden(count: int, singular: str, plural: str) -> None:
    """Print one line if a table leaves anything out."""
    if count:
        print(f"{count:,} {singular if count == 1 else plural} not shown; --internal shows them")
