"""Conditions on JSON values: `$.carrier == "UA" && $.dep_delay > 60`, `$.legs[*].to == "JFK"`, `$.error`. No I/O.

A path begins with `$`; `.name`, `["any name"]`, `[0]`, `[-1]` and `[*]` lead on. A condition is a path alone (it is
there and not null) or a path, one of == != < <= > >= ~ (contains) and a JSON value. `&&` joins conditions. A path with
`[*]` holds if it does for one element.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

TEXT_MAX, STEPS_MAX = 2_000, 32
Step = str | int | None
"""A member, an element, or None for every element."""
Holds = Callable[[Any], bool]

_STEP = re.compile(r"""\s*(?:\.\s*([^\s.\[\]=!<>~&"']+)|\[\s*(-?\d{1,9}|\*)\s*\]|\[\s*("(?:[^"\\]|\\.)*")\s*\])""")
_OPERATOR = re.compile(r"\s*(==|!=|<=|>=|<|>|~|=)\s*")
_AND = re.compile(r"\s*&&\s*")


class BadPath(ValueError):
    """This is no condition; the text says where it stops making sense."""


class Criterion(NamedTuple):
    """`text`: what is in every text that holds it; None for what is not about texts."""

    steps: tuple[Step, ...]
    holds: Holds
    text: str | None = None

    def holds_in(self, value: Any) -> bool:
        """Whether it holds for what the path leads to."""
        return any(map(self.holds, reached(value, self.steps)))

    @property
    def behind_first(self) -> Holds:
        """The same for where the first step has led to."""
        return self.holds if len(self.steps) == 1 else self._replace(steps=self.steps[1:]).holds_in


def parse_condition(text: str) -> list[Criterion]:
    """A value must hold all of them. Raises BadPath."""
    if len(text) > TEXT_MAX:
        raise BadPath(f"a condition has at most {TEXT_MAX} characters")
    criteria, at = list[Criterion](), 0
    while True:
        criterion, at = _criterion(text, at)
        criteria.append(criterion)
        if not text[at:].strip():
            return criteria
        found = _AND.match(text, at)
        if found is None:
            raise BadPath(f"at {text[at : at + 20]!r}: && or nothing must follow")
        at = found.end()


def reached(value: Any, steps: tuple[Step, ...]) -> Iterator[Any]:
    """What a path leads to: nothing, one value, or more by `[*]`."""
    for at, step in enumerate(steps):
        if step is None:
            if isinstance(value, list):
                for one in value:
                    yield from reached(one, steps[at + 1 :])
            return
        if isinstance(step, str):
            if not isinstance(value, dict) or step not in value:
                return
            value = value[step]
        else:
            if not isinstance(value, list) or not -len(value) <= step < len(value):
                return
            value = value[step]
    yield value


def _criterion(text: str, at: int) -> tuple[Criterion, int]:
    steps, at = _path(text, at)
    found = _OPERATOR.match(text, at)
    if found is None:
        return Criterion(steps, _is_there), at
    wanted, end = _value(text, found.end())
    is_said = isinstance(wanted, str) and found[1] in ("==", "=", "~")
    return Criterion(steps, _comparison(found[1], wanted), wanted if is_said else None), end


def _path(text: str, at: int) -> tuple[tuple[Step, ...], int]:
    begin = re.compile(r"\s*\$").match(text, at)
    if begin is None:
        raise BadPath(f"at {text[at : at + 20]!r}: a path begins with $, like $.name or $.list[0].name")
    at, steps = begin.end(), list[Step]()
    while (found := _STEP.match(text, at)) is not None:
        name, index, quoted = found.groups()
        steps.append(name if name is not None else _member(quoted) if quoted else None if index == "*" else int(index))
        at = found.end()
        if len(steps) > STEPS_MAX:
            raise BadPath(f"a path has at most {STEPS_MAX} steps")
    return tuple(steps), at


def _member(quoted: str) -> str:
    try:
        return str(json.loads(quoted))
    except ValueError:
        raise BadPath(f"{quoted}: this is no name in quotes") from None


def _value(text: str, at: int) -> tuple[Any, int]:
    try:
        return json.JSONDecoder().raw_decode(text, at)
    except (ValueError, RecursionError):
        pass
    single = re.compile(r"'([^']*)'").match(text, at)
    if single is not None:
        return single[1], single.end()
    bare = re.compile(r"[^\s&'\"]+").match(text, at)
    if bare is None:
        raise BadPath(f"at {text[at : at + 20]!r}: a value must follow")
    return bare[0], bare.end()


def _comparison(sign: str, wanted: Any) -> Holds:
    if sign in ("==", "="):
        return lambda value: value == wanted and isinstance(value, bool) == isinstance(wanted, bool)
    if sign == "!=":
        return lambda value: value != wanted
    if sign == "~":
        part = wanted if isinstance(wanted, str) else json.dumps(wanted)
        return lambda value: part in value if isinstance(value, str) else isinstance(value, list) and wanted in value
    compare = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}[sign]
    kinds = (int, float) if isinstance(wanted, int | float) and not isinstance(wanted, bool) else (str,)
    if not isinstance(wanted, (int, float, str)) or isinstance(wanted, bool):
        raise BadPath(f"{sign} compares numbers or texts")
    return lambda value: isinstance(value, kinds) and not isinstance(value, bool) and bool(compare(value, wanted))


def _is_there(value: Any) -> bool:
    return value is not None
