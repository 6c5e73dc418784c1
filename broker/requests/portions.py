"""Cuts long lists in requests into portions that are served one after another, so that none holds the event loop.

Each portion is a request of its own. It passes rewriter, gate and handler like a short request, and its rows are
appended to those of the earlier portions. An element whose own list is too long is cut as well, and its rows are joined
again. The result is that of one request, with these exceptions: if the table has a `kind`, repeated elements are
answered once; ListOffsets may not find partitions that are named twice; and a change of many elements is not atomic
(its response has an error per element anyway).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

from msgspec import Struct

from common.pacing import Work
from wire.messages import Message, changed

LEAVES_MAX = 50  # leaves per portion, unless the table gives another number
NEVER = 1 << 15


class Listing(Struct, frozen=True):
    """The list in an API's requests that may be long, and the list of rows in its responses.

    `asked` and `answered` are paths: a list, the list within each of its elements, and so on. `kind` returns an
    element's identity; at most `repeats` elements with the same identity are served, because more would not change the
    response.
    """

    asked: tuple[str, ...]
    answered: tuple[str, ...]
    leaves_max: int = LEAVES_MAX
    kind: Callable[[Any], Hashable] | None = None
    repeats: int = 1
    since: int = 0
    until: int = NEVER
    around: int = 0  # number of lists in `answered` outside the rows, with one element each


class Portion(NamedTuple):
    """`request` has a part of the list. At `joined` levels, its first element continues the portion before."""

    request: Message
    joined: int


def by_name(element: Any) -> Hashable:
    name: str = element.name
    return name


def by_value(element: Hashable) -> Hashable:
    return element


def by_resource(element: Any) -> Hashable:
    return element.resource_type, element.resource_name


def by_resource_and_keys(element: Any) -> Hashable:
    keys = element.configuration_keys
    return element.resource_type, element.resource_name, None if keys is None else tuple(keys)


def by_name_or_id(element: Any) -> Hashable:
    return element.name, element.topic_id


def cut(
    asked: str,
    answered: str = "",
    *,
    most: int = LEAVES_MAX,
    kind: Callable[[Any], Hashable] | None = None,
    repeats: int = 1,
    since: int = 0,
    until: int = NEVER,
    around: int = 0,
) -> Listing:
    """A listing from dotted paths. Without `answered`, the response has the same path as the request."""
    return Listing(
        tuple(asked.split(".")), tuple((answered or asked).split(".")), most, kind, repeats, since, until, around
    )


def is_long(listing: Listing, request: Message) -> bool:
    """Whether a request must be cut."""
    elements = getattr(request, listing.asked[0])
    return bool(elements) and _leaves(elements, listing.asked[1:], listing.leaves_max) > listing.leaves_max


def distinct(listing: Listing, request: Message) -> Work[list[Any]]:
    """The request's elements, with at most `repeats` of each kind, those of a kind together, kinds in order of first
    use."""
    elements: list[Any] = getattr(request, listing.asked[0])
    if listing.kind is None:
        return elements
    kinds: dict[Hashable, list[Any]] = {}
    for number, element in enumerate(elements):
        known = kinds.setdefault(listing.kind(element), [])
        if len(known) < listing.repeats:
            known.append(element)
        if number % LEAVES_MAX == 0:
            yield LEAVES_MAX
    return [element for known in kinds.values() for element in known]


def portions(listing: Listing, request: Message, elements: list[Any]) -> Iterator[Portion]:
    """The portions of a long request with `elements`."""
    first, *inner = listing.asked
    for part, joined in _cut(elements, tuple(inner), listing.leaves_max):
        yield Portion(changed(request, **{first: part}), joined)


def join(rows: list[Any], more: list[Any], answered: tuple[str, ...], joined: int) -> None:
    """Append `more` to `rows`. At `joined` levels, the first of `more` continues the last of `rows`.

    `answered`: the lists below the rows.
    """
    if joined and rows and more:
        join(getattr(rows[-1], answered[0]), getattr(more[0], answered[0]), answered[1:], joined - 1)
        more = more[1:]
    rows += more


def _leaves(elements: list[Any] | None, inner: tuple[str, ...], enough: int) -> int:
    """Number of elements at the innermost level, where an empty list counts as one; stops counting at `enough`."""
    if not elements:
        return 1
    if not inner or len(elements) > enough:
        return len(elements)
    total = 0
    for element in elements:
        total += _leaves(getattr(element, inner[0]), inner[1:], enough - total)
        if total > enough:
            break
    return total


def _cut(elements: list[Any], inner: tuple[str, ...], most: int) -> Iterator[tuple[list[Any], int]]:
    """Parts of at most `most` leaves, with the number of levels at which each part's first element continues the part
    before."""
    if not inner:
        for begin in range(0, len(elements), most):
            yield elements[begin : begin + most], 0
        return
    part: list[Any] = []
    room = most
    for element in elements:
        leaves = _leaves(getattr(element, inner[0]), inner[1:], most)
        if leaves > room and part:
            yield part, 0
            part, room = [], most
        if leaves <= room:
            part.append(element)
            room -= leaves
            continue
        is_first = True
        for below, joined in _cut(getattr(element, inner[0]), inner[1:], most):
            yield [changed(element, **{inner[0]: below})], 0 if is_first else joined + 1
            is_first = False
    if part:
        yield part, 0
