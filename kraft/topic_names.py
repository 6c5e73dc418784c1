"""Allowed topic names, and the internal topics. No I/O."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable

from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from kraft.image.key_ranges import IDS_TOPIC
from kraft.image.tenants import local_name

GROUP_TOPIC = "__consumer_offsets"
TRANSACTION_TOPIC = IDS_TOPIC
TIER_TOPIC = "__tier_state"
AUDIT_TOPIC = "__audit"
INTERNAL_TOPICS = frozenset({GROUP_TOPIC, TRANSACTION_TOPIC, TIER_TOPIC, AUDIT_TOPIC})
CLIENT_KEY_TOPICS = (GROUP_TOPIC, TRANSACTION_TOPIC)
"""Internal topics that hold clients' keys: group ids and transactional ids. Each cell has a range of their partitions
for its tenants, whose keys move with them."""
NAME_CHARACTERS_MAX = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")
_PERIODS_TRIED_MAX = 8
NAMES_PER_STEP, NAMES_PER_UNIT, TRIES_PER_UNIT = 200, 4, 1  # names that are looked at, and tried


def check_topic_name(name: str) -> None:
    """Raises INVALID_TOPIC_EXCEPTION unless `name` may name a topic (it becomes part of a directory's name).

    A tenant's topic is checked and reported by the tenant's own name; its prefix counts for the length.
    """
    most = NAME_CHARACTERS_MAX - len(name)
    name = local_name(name)
    most += len(name)
    if not name:
        raise _invalid("the empty string is not allowed")
    if name in (".", ".."):
        raise _invalid("'.' and '..' are not allowed")
    if len(name) > most:
        raise _invalid(f"it has {len(name)} characters, at most {most} are allowed")
    if not _LEGAL.fullmatch(name):
        raise _invalid(f"{name!r} contains characters other than ASCII letters, digits, '.', '_' and '-'")


def can_begin_name(text: str) -> bool:
    """Whether a topic's name may begin with `text`, as far as characters are concerned."""
    return _LEGAL.fullmatch(text) is not None


def colliding_name(
    name: str, exists: Callable[[str], bool], all_names: Callable[[], Iterable[str]]
) -> Work[str | None]:
    """An existing topic that differs from `name` only in '.' and '_': both would have the same metric names.

    `exists` is called for the few possible names; only for a name with very many periods are all names checked.
    """
    places = [i for i, character in enumerate(name) if character in "._"]
    if len(places) > _PERIODS_TRIED_MAX:
        folded = name.replace(".", "_")
        for number, other in enumerate(all_names(), 1):
            if other != name and len(other) == len(name) and other.replace(".", "_") == folded:
                return other
            if number % NAMES_PER_STEP == 0:
                yield NAMES_PER_STEP // NAMES_PER_UNIT
        return None
    letters = list(name)
    for choice in itertools.product("._", repeat=len(places)):
        for place, character in zip(places, choice, strict=True):
            letters[place] = character
        candidate = "".join(letters)
        if candidate != name and exists(candidate):
            return candidate
    yield (1 << len(places)) // TRIES_PER_UNIT
    return None


def _invalid(reason: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}.")
