"""`ssl.principal.mapping.rules`: map the distinguished name in a client's certificate to its principal's name.

Rules are tried in order: DEFAULT gives the whole name, RULE:pattern/replacement/[LU] the replacement if the pattern
matches the whole name, optionally in lower or upper case. Source: Apache Kafka's documentation of the setting, KIP-371.
"""

from __future__ import annotations

import re

from msgspec import Struct

_FIELD = r"((?:\\.|[^\\/])*)"
_RULE = re.compile(rf"\s*(?:(DEFAULT)|RULE:{_FIELD}/{_FIELD}/([LU]?))\s*(?:,|$)")
_GROUP = re.compile(r"\\(.)|\$([0-9])")


class InvalidRules(ValueError):
    """The text is not a list of rules; the message has the position of the error."""


class NoRuleMatches(Exception):
    """A name that matches no rule: its certificate has no principal."""


class _Rule(Struct, frozen=True):
    pattern: re.Pattern[str]
    template: str  # a Python replacement
    case: str


class PrincipalMapping:
    """Raises InvalidRules."""

    def __init__(self, text: str = "DEFAULT") -> None:
        self._rules = [*_parse(text.strip() or "DEFAULT")]

    def name(self, distinguished_name: str) -> str:
        """Raises NoRuleMatches."""
        for rule in self._rules:
            if rule is None:
                return distinguished_name
            if rule.pattern.fullmatch(distinguished_name):
                found = rule.pattern.sub(rule.template, distinguished_name)
                return {"L": found.lower(), "U": found.upper()}.get(rule.case, found)
        raise NoRuleMatches(f"no rule of ssl.principal.mapping.rules matches {distinguished_name}")


def _parse(text: str) -> list[_Rule | None]:
    rules: list[_Rule | None] = []
    at = 0
    while at < len(text):
        match = _RULE.match(text, at)
        if match is None:
            raise InvalidRules(f"{text[at : at + 40]!r}: this is neither DEFAULT nor RULE:pattern/replacement/[LU]")
        if match[1]:
            rules.append(None)
        else:
            rules.append(_rule(match[2], match[3], match[4]))
        at = match.end()
    return rules


def _rule(pattern: str, replacement: str, case: str) -> _Rule:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise InvalidRules(f"the pattern {pattern!r} is no regular expression: {error}") from error

    def one(match: re.Match[str]) -> str:
        if match[1] is not None:
            return match[1].replace("\\", "\\\\")
        if int(match[2]) <= compiled.groups:
            return rf"\g<{match[2]}>"
        return match[0]

    return _Rule(compiled, _GROUP.sub(one, replacement), case)
