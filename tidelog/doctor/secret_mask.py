"""Takes secrets out of text: those that are known, and what looks like one. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote

MASK = "***"
LENGTH_MIN = 4  # a shorter one is a word like any other, and masking it would leave no text
SECRET_NAME = re.compile(r"(?i)password|passphrase|secret|token|credential|jaas|private|keystore\.key$|(?:^|[._-])key$")
_NOT_SECRET = re.compile(r"(?i)\.(?:file|location|url|type|max|ms|class)$")
_QUOTED = re.compile(r"\"((?:[^\"\\]|\\.)*)\"|'([^']*)'")
_PEM_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S)
_LOOKS = (
    (_PEM_KEY, MASK),
    (re.compile(r"(?i)(jaas[\w.]*[\"']?\s*[=:]\s*)[^\n]+"), rf"\1{MASK}"),
    (
        re.compile(
            r"(?i)((?:password|passphrase|secret|token|credentials?|api[-_]?key|access[-_]?key)[\"']?\s*[=:]\s*)"
            r"(?:\"(?:[^\"\\\n]|\\.)*\"?|'[^'\n]*'?|[^\s,;&}\]]+)"
        ),
        rf"\1{MASK}",
    ),
    (re.compile(r"(?i)\b((?:bearer|basic)\s+)[\w.~+/=-]{8,}"), rf"\1{MASK}"),
    (re.compile(r"(://)[^/\s@\"']+@"), rf"\1{MASK}@"),
)


class SecretMask:
    """Text without `secrets`, in any of the forms in which text has them."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets for form in _forms(secret.strip()) if len(form) >= LENGTH_MIN}
        self._forms = sorted(forms, key=len, reverse=True)

    def applied(self, text: str) -> str:
        for look, instead in _LOOKS:
            text = look.sub(instead, text)
        for form in self._forms:  # last: no pattern then brings a part of one back
            text = text.replace(form, MASK)
        return text


def _forms(secret: str) -> set[str]:
    quoted = json.dumps(secret)[1:-1]
    return {secret, quoted, json.dumps(secret, ensure_ascii=False)[1:-1], quote(secret, safe=""), repr(secret)[1:-1]}


def is_secret(name: str) -> bool:
    """Whether a setting of that name holds a secret, not a place where one lies."""
    return SECRET_NAME.search(name) is not None and _NOT_SECRET.search(name) is None


def secrets_in(text: str) -> Iterator[str]:
    """What a file of configuration, a key file or a PEM file holds of them."""
    for block in _PEM_KEY.findall(text):
        yield from (line for line in block.splitlines() if line and not line.startswith("-----"))
    for line in text.replace("\\\n", "").splitlines():
        name, equals, value = line.partition("=")
        if not equals or not is_secret(name.strip()):
            continue
        yield value.strip()
        yield from (one or other for one, other in _QUOTED.findall(value))
