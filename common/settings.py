"""Settings: declared once, parsed at the door, described from the declaration.

A `Setting` knows its type, default, range and meaning; a `Catalogue` is all settings of one kind of node or of a
topic. Names are Apache Kafka's where Kafka has the setting, else they begin with `tidelog.`. An unknown name, a
value out of its range, or two values that contradict each other raise SettingError with one line for the user.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

ENVIRONMENT_PREFIX = "TIDELOG_"
INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1
_OF_LISTENER = re.compile(r"listener\.name\.([a-z0-9_-]+)\.(.+)")


class SettingError(ValueError):
    """A setting is unknown, out of its range, or contradicts another; the text names it and the range."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One declared setting.

    `type_name` is Kafka's (boolean, int, long, double, string, list); `update` says when a change takes effect:
    "read-only" (restart), "per-broker" or "cluster-wide" (dynamic); `synonyms` are the broker settings that give a
    topic setting its default, nearest first; `pattern` is a regular expression for a string or each item of a list,
    and `pattern_text` says it in words. `per_listener`: `listener.name.<name>.<setting>` is one listener's own value.
    `inert`: it is taken and shown for Apache Kafka's tools, and nothing reads it.
    """

    name: str
    type_name: str
    default: Any
    doc: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    update: str = "read-only"
    sensitive: bool = False
    synonyms: tuple[str, ...] = ()
    pattern: str = ""
    pattern_text: str = ""
    per_listener: bool = False
    inert: bool = False

    @property
    def needs_restart(self) -> bool:
        return self.update == "read-only"

    @property
    def range_text(self) -> str:
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.pattern:
            return self.pattern_text
        if self.type_name == "boolean":
            return "true or false"
        if self.low is not None and self.high is not None:
            return f"{_number(self.low)} to {_number(self.high)}"
        if self.low is not None:
            return f"at least {_number(self.low)}"
        return "any " + self.type_name

    def parse(self, text: str) -> Any:
        """The value that `text` stands for; SettingError when it is not one."""
        try:
            value = _PARSERS[self.type_name](text.strip() if self.type_name != "string" else text)
        except ValueError:
            raise self._error(text) from None
        if self.type_name in ("int", "long", "double"):
            limit = {"int": INT_MAX, "long": LONG_MAX}.get(self.type_name)
            out_of_type = limit is not None and not -limit - 1 <= value <= limit
            too_low = self.low is not None and value < self.low
            too_high = self.high is not None and value > self.high
            if out_of_type or too_low or too_high or value != value:  # noqa: PLR0124  NaN is in no range
                raise self._error(text)
        for item in value if self.type_name == "list" else [value]:
            if self.choices and item not in self.choices:
                raise self._error(text)
            if self.pattern and not re.fullmatch(self.pattern, item):
                raise self._error(text)
        return value

    def text(self, value: Any) -> str:
        """The inverse of `parse`, as DescribeConfigs shows it."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, (list, tuple)):
            return ",".join(value)
        return str(value)

    def _error(self, text: str) -> SettingError:
        shown = "(hidden)" if self.sensitive else repr(text)
        return SettingError(f"{self.name}: {shown} is not valid, it must be {self.range_text}")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _parse_boolean(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError(text)
    return lowered == "true"


def _parse_integer(text: str) -> int:
    if "_" in text or not text.lstrip("+-").isascii() or not text.lstrip("+-").isdigit():
        raise ValueError(text)  # int() takes more than Kafka does
    return int(text)


_PARSERS: dict[str, Callable[[str], Any]] = {
    "boolean": _parse_boolean,
    "int": _parse_integer,
    "long": _parse_integer,
    "double": float,
    "string": str,
    "list": lambda text: tuple(item.strip() for item in text.split(",") if item.strip()),
}


class Catalogue:
    """All settings of one kind, by name, in order of declaration."""

    def __init__(self, settings: Iterable[Setting]) -> None:
        self._by_name: dict[str, Setting] = {}
        for setting in settings:
            if setting.name in self._by_name:
                raise SettingError(f"{setting.name} is declared twice")
            self._by_name[setting.name] = setting

    def __iter__(self) -> Iterator[Setting]:
        return iter(self._by_name.values())

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def __getitem__(self, name: str) -> Setting:
        setting = self.get(name)
        if setting is None:
            near = _nearest(name, self._by_name)
            hint = f"; did you mean {near}?" if near else ""
            raise SettingError(f"{name}: no such setting{hint}")
        return setting

    def get(self, name: str) -> Setting | None:
        """Also one listener's own value of a setting that has one."""
        setting = self._by_name.get(name)
        if setting is None and (match := _OF_LISTENER.fullmatch(name)):
            common = self._by_name.get(match[2])
            if common is not None and common.per_listener:
                return replace(common, name=name)
        return setting

    def values(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Every setting's value: parsed from `given`, else the default; listeners' own values where they are given."""
        own = {name: self[name].parse(given[name]) for name in given if name not in self._by_name}
        return {s.name: s.parse(given[s.name]) if s.name in given else s.default for s in self} | own

    def from_environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Settings that TIDELOG_… variables give, still as text; variables of other meaning are left alone."""
        by_variable = {environment_name(s.name): s.name for s in self}
        found = {by_variable[v]: text for v, text in environment.items() if v in by_variable}
        endings = {"_" + s.name.upper().replace(".", "_"): s.name for s in self if s.per_listener}
        prefix = environment_name("listener.name.")
        for variable, text in environment.items():
            if variable.startswith(prefix):
                fitting = [ending for ending in endings if variable.endswith(ending)]
                listener = variable.removeprefix(prefix).removesuffix(max(fitting, key=len, default=""))
                if fitting and listener:
                    found[f"listener.name.{listener.lower()}.{endings[max(fitting, key=len)]}"] = text
        return found


def listener_of(name: str) -> str | None:
    """The listener, in lower case, whose own value a setting of that name is; None for everybody's."""
    match = _OF_LISTENER.fullmatch(name)
    return match[1] if match is not None else None


def of_listener(values: Mapping[str, Any], listener: str, name: str) -> Any:
    """The value of setting `name` for a listener: its own, else everybody's."""
    return values.get(f"listener.name.{listener.lower()}.{name}", values[name])


def environment_name(name: str) -> str:
    """`log.segment.bytes` → TIDELOG_LOG_SEGMENT_BYTES; a leading `tidelog.` is dropped."""
    return ENVIRONMENT_PREFIX + name.removeprefix("tidelog.").upper().replace(".", "_")


def _nearest(name: str, names: Iterable[str]) -> str | None:
    import difflib  # noqa: PLC0415  only when something is wrong

    found = difflib.get_close_matches(name, list(names), n=1)
    return found[0] if found else None


def read_properties(text: str) -> dict[str, str]:
    """A `server.properties` file: `name=value` lines, `#` and `!` comments, blank lines, `\\` continuations."""
    found: dict[str, str] = {}
    pending = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = pending + raw.strip()
        pending = ""
        if not line or line[0] in "#!":
            continue
        if line.endswith("\\"):
            pending = line[:-1]
            continue
        name, separator, value = line.partition("=")
        if not separator or not name.strip():
            raise SettingError(f"line {number}: {line!r} is not name=value")
        found[name.strip()] = value.strip()
    return found
