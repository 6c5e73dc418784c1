"""Settings: declared once, parsed on input, described from the declaration, read as attributes.

A group is a frozen dataclass, and `setting` declares one of its fields: name, type, default, meaning, range, when it
may change. Readers hold the group and read the field. A `Catalogue` is all settings of nodes or of topics, made of the
groups. Names are Apache Kafka's where Kafka has the setting, else they begin with `tidelog.`. An unknown name, a value
out of its range, or two contradictory values raise SettingError with one line for the user.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple, TypeVar, overload

ENVIRONMENT_PREFIX = "TIDELOG_"
SHORT_MAX = (1 << 15) - 1
INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

READ_ONLY = "read-only"
"""A change takes effect when the node restarts."""
PER_BROKER = "per-broker"
"""May change while brokers run, for one broker at a time."""
CLUSTER_WIDE = "cluster-wide"
"""May change while brokers run, for one broker or for all. Its readers get a new group, made by `overridden`."""

Group = TypeVar("Group")
Given = TypeVar("Given")
Read = TypeVar("Read")
_DECLARED = "setting"
_OF_LISTENER = re.compile(r"listener\.name\.([a-z0-9_-]+)\.(.+)")


class SettingError(ValueError):
    """A setting is unknown, out of its range, or contradicts another; the text names it and the range."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One declared setting.

    `type_name` is Kafka's (boolean, int, long, double, string, list); the name ends with the unit of a number.
    `update` is when a change takes effect: READ_ONLY, PER_BROKER or CLUSTER_WIDE. `synonyms` are the broker settings
    that give a topic setting its default, nearest first. `pattern` is a regular expression for a string or each item of
    a list, which `pattern_text` describes. `per_listener`: `listener.name.<name>.<setting>` is one listener's own
    value. `inert`: accepted and shown for Apache Kafka's tools, and read by no code.
    """

    name: str
    type_name: str
    default: Any
    doc: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    update: str = READ_ONLY
    sensitive: bool = False
    synonyms: tuple[str, ...] = ()
    pattern: str = ""
    pattern_text: str = ""
    per_listener: bool = False
    inert: bool = False

    @property
    def needs_restart(self) -> bool:
        return self.update == READ_ONLY

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
        """The value of `text`. Raises SettingError."""
        try:
            value = _PARSERS[self.type_name](text.strip() if self.type_name != "string" else text)
        except ValueError:
            raise self.error(text) from None
        if self.type_name in ("int", "long", "double"):
            limit = {"int": INT_MAX, "long": LONG_MAX}.get(self.type_name)
            out_of_type = limit is not None and not -limit - 1 <= value <= limit
            too_low = self.low is not None and value < self.low
            too_high = self.high is not None and value > self.high
            if out_of_type or too_low or too_high or value != value:  # noqa: PLR0124  NaN is in no range
                raise self.error(text)
        for item in value if self.type_name == "list" else [value]:
            if self.choices and item not in self.choices:
                raise self.error(text)
            if self.pattern and not re.fullmatch(self.pattern, item):
                raise self.error(text)
        return value

    def text(self, value: Any) -> str:
        """The inverse of `parse`, as DescribeConfigs shows it."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, (list, tuple)):
            return ",".join(value)
        return str(value)

    def error(self, text: str) -> SettingError:
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
        raise ValueError(text)  # int() accepts more than Kafka
    return int(text)


_PARSERS: dict[str, Callable[[str], Any]] = {
    "boolean": _parse_boolean,
    "int": _parse_integer,
    "long": _parse_integer,
    "double": float,
    "string": str,
    "list": lambda text: tuple(item.strip() for item in text.split(",") if item.strip()),
}


class Declared(NamedTuple):
    """A field of a group that is a setting. `read_as` converts the setting's value for the field; it raises ValueError
    with the unreadable part."""

    setting: Setting
    read_as: Callable[[Any], Any] | None

    def held(self, value: Any) -> Any:
        """The field's content for a value of the setting. Raises SettingError."""
        if self.read_as is None:
            return value
        try:
            return self.read_as(value)
        except ValueError as error:
            raise self.setting.error(str(error)) from None


@overload
def setting(
    name: str, type_name: str, default: Given, doc: str, low: float | None = None, high: float | None = None, *,
    choices: tuple[str, ...] = (), update: str = READ_ONLY, sensitive: bool = False, synonyms: tuple[str, ...] = (),
    pattern: str = "", pattern_text: str = "", per_listener: bool = False, inert: bool = False,
) -> Given: ...  # fmt: skip
@overload
def setting(
    name: str, type_name: str, default: Given, doc: str, low: float | None = None, high: float | None = None, *,
    choices: tuple[str, ...] = (), update: str = READ_ONLY, sensitive: bool = False, synonyms: tuple[str, ...] = (),
    pattern: str = "", pattern_text: str = "", per_listener: bool = False, inert: bool = False,
    read_as: Callable[[Given], Read],
) -> Read: ...  # fmt: skip
def setting(
    name: str, type_name: str, default: Any, doc: str, low: float | None = None, high: float | None = None, *,
    read_as: Callable[[Any], Any] | None = None, **more: Any,
) -> Any:  # fmt: skip
    """A field of a group: one declared setting. The parameters are `Setting`'s.

    `read_as` converts the value into the unit or form that its reader wants.
    """
    return field_of(Declared(Setting(name, type_name, default, doc, low, high, **more), read_as))


def field_of(declared: Declared) -> Any:
    """A dataclass field with the declared default. A secret stays out of the group's repr."""
    default, metadata = declared.held(declared.setting.default), {_DECLARED: declared}
    shown = not declared.setting.sensitive
    if isinstance(default, Mapping):
        return dataclasses.field(default_factory=lambda: default, repr=shown, metadata=metadata)
    return dataclasses.field(default=default, repr=shown, metadata=metadata)


def same(group: type, field: str, read_as: Callable[[Any], Any] | None = None) -> Any:
    """A field that is the setting declared as `field` of another group, for a reader that needs little else of it."""
    declared = settings_of(group)[field]
    return field_of(declared if read_as is None else Declared(declared.setting, read_as))


def settings_of(group: type) -> Mapping[str, Declared]:
    """The group's settings by field, inherited ones first."""
    return _settings_of(group)


@cache
def _settings_of(group: type) -> Mapping[str, Declared]:
    return {f.name: f.metadata[_DECLARED] for f in dataclasses.fields(group) if _DECLARED in f.metadata}


def declared(group: type, field: str) -> Setting:
    """The setting declared as `field`."""
    return settings_of(group)[field].setting


def overridden(group: Group, *overrides: Mapping[str, str], listener: str = "") -> Group:
    """`group` with the values, as text, of `overrides` for settings that may change at run time. The first override
    that has a setting counts. With `listener`, only that listener's own values count."""
    prefix = f"listener.name.{listener.lower()}." if listener else ""
    changes: dict[str, Any] = {}
    for field, one in settings_of(type(group)).items():
        name = prefix + one.setting.name
        text = next((given[name] for given in overrides if name in given), None)
        if text is not None and not one.setting.needs_restart:
            changes[field] = one.held(one.setting.parse(text))
    return replace(group, **changes) if changes else group  # type: ignore[type-var]


class SettingValues:
    """A node's configured values, parsed, by name. All other settings have their default."""

    __slots__ = ("given",)

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given

    def group(self, kind: type[Group], listener: str = "") -> Group:
        """A group of these values; with `listener`, that listener's own values take precedence."""
        return self._filled(kind, [f"listener.name.{listener.lower()}.", ""] if listener else [""])

    def own_group(self, kind: type[Group], listener: str) -> Group:
        """A group of the listener's own values, else defaults."""
        return self._filled(kind, [f"listener.name.{listener.lower()}."])

    def _filled(self, kind: type[Group], prefixes: list[str]) -> Group:
        found: dict[str, Any] = {}
        for field, one in settings_of(kind).items():
            name = next((p + one.setting.name for p in prefixes if p + one.setting.name in self.given), None)
            if name is not None:
                found[field] = one.held(self.given[name])
        return kind(**found)


def seconds(milliseconds: int) -> float:
    return milliseconds / 1000


class Catalogue:
    """All settings of one kind, by name, in order of declaration."""

    def __init__(self, parts: Iterable[type | Setting]) -> None:
        """`parts`: groups, and settings without a group, which no code reads."""
        self._by_name: dict[str, Setting] = {}
        parts = list(parts)
        self.groups = [part for part in parts if isinstance(part, type)]
        for part in parts:
            for one in [part] if isinstance(part, Setting) else [each.setting for each in settings_of(part).values()]:
                if one.name in self._by_name:
                    raise SettingError(f"{one.name} is declared twice")
                self._by_name[one.name] = one

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
        """The setting of that name, which may be one listener's own."""
        setting = self._by_name.get(name)
        if setting is None and (match := _OF_LISTENER.fullmatch(name)):
            common = self._by_name.get(match[2])
            if common is not None and common.per_listener:
                return replace(common, name=name)
        return setting

    def values(self, given: Mapping[str, str]) -> SettingValues:
        """The parsed values of `given`. Raises SettingError for an unknown name or an invalid value."""
        unlisted = [name for name in given if name not in self._by_name]
        names = [*unlisted, *(one.name for one in self if one.name in given)]
        return SettingValues({name: self[name].parse(given[name]) for name in names})

    def from_environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Settings from TIDELOG_… variables, as text. Other variables are ignored."""
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
    """The listener, in lower case, whose own setting has that name; None for a common setting."""
    match = _OF_LISTENER.fullmatch(name)
    return match[1] if match is not None else None


def environment_name(name: str) -> str:
    """`log.segment.bytes` → TIDELOG_LOG_SEGMENT_BYTES; a leading `tidelog.` is dropped."""
    return ENVIRONMENT_PREFIX + name.removeprefix("tidelog.").upper().replace(".", "_")


def _nearest(name: str, names: Iterable[str]) -> str | None:
    import difflib  # noqa: PLC0415  only for errors

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
