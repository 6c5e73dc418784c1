"""Long lists in requests, cut into portions that are served one after another, so that none holds the event loop.

Each portion is a request of its own: it passes rewriters, gates and handler as a short request does, and its rows are
put behind those of the portions before. An element whose own list is too long for a portion is cut as well, and its
rows are joined again. Behaviour is that of one request, with these exceptions: what is asked for twice is answered once
where the table has a `kind`; ListOffsets does not find every partition that is named twice; and a change of many
elements is not atomic, as its answer says anyway, which has an error for each.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

from msgspec import Struct

from common.pacing import Work
from wire.messages import Message, changed

LEAVES_MAX = 50  # of one portion, where the table names no other number
NEVER = 1 << 15


class Listing(Struct, frozen=True):
    """Where an API's request lists what it asks for, and where its answer lists the rows, one for each.

    `asked` and `answered` name a list, the list within each of its elements, and so on. `kind` tells what an element is
    about; at most `repeats` elements of one kind are looked at, because more would change no answer.
    """

    asked: tuple[str, ...]
    answered: tuple[str, ...]
    leaves_max: int = LEAVES_MAX
    kind: Callable[[Any], Hashable] | None = None
    repeats: int = 1
    since: int = 0
    until: int = NEVER
    around: int = 0  # lists in `answered` around the rows, which hold one element each


class Portion(NamedTuple):
    """`request` asks for a part. `joined` levels of its first element continue the portion before."""

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
    """A listing by dotted paths; the answer lists its rows as the request does unless `answered` is given."""
    return Listing(
        tuple(asked.split(".")), tuple((answered or asked).split(".")), most, kind, repeats, since, until, around
    )


def is_long(listing: Listing, request: Message) -> bool:
    """Whether a request has to be cut."""
    elements = getattr(request, listing.asked[0])
    return bool(elements) and _leaves(elements, listing.asked[1:], listing.leaves_max) > listing.leaves_max


def distinct(listing: Listing, request: Message) -> Work[list[Any]]:
    """What a request lists, with at most `repeats` elements of each kind, side by side, the first of each in order."""
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
    """The parts of a long request that lists `elements`."""
    first, *inner = listing.asked
    for part, joined in _cut(elements, tuple(inner), listing.leaves_max):
        yield Portion(changed(request, **{first: part}), joined)


def join(rows: list[Any], more: list[Any], answered: tuple[str, ...], joined: int) -> None:
    """Put `more` rows behind `rows`; the first of them continues the last row, at as many levels as `joined` says.

    `answered` are the lists below the rows.
    """
    if joined and rows and more:
        join(getattr(rows[-1], answered[0]), getattr(more[0], answered[0]), answered[1:], joined - 1)
        more = more[1:]
    rows += more


def _leaves(elements: list[Any] | None, inner: tuple[str, ...], enough: int) -> int:
    """How many elements there are at the innermost level, an element without any counting as one; stops at `enough`."""
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
    """Parts of at most `most` leaves, and how many levels of the first element of each continue the part before."""
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
