"""Schemas from a registry that speaks Confluent's API: by the id that a value begins with, or all of a subject."""

from __future__ import annotations

import http.client
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple

ANSWER_BYTES_MAX = 4 << 20
TIMEOUT_S = 10.0
BODY_S = 30.0
BODY_PART_BYTES = 1 << 16
SCHEMAS_MAX = 1_000
REFERENCES_MAX, REFERENCES_DEEP = 64, 8
VERSIONS_MAX = 1_000
MISSED_AGAIN_S = 5.0
"""A schema that was not there may have been registered since; a flood of such ids asks seldom all the same."""


class RegistryFailure(Exception):
    """The registry does not answer, or not as one; the text says so."""


class NoSchema(Exception):
    """There is none, or none that can be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Schema:
    """An Avro schema, and those that it names by reference: the referenced ones stand before who refers to them."""

    number: int
    text: str
    referenced: tuple[str, ...] = ()


class Answer(NamedTuple):
    status: int
    body: bytes


Ask = Callable[[str], Answer]
"""A GET of a path of the registry. Raises RegistryFailure."""


def http_ask(url: str, login: Mapping[str, str], trusted: str = "") -> Ask:
    """`login` are headers; `trusted` is a PEM file, or the machine's authorities. RegistryFailure for a wrong file."""
    base = url.rstrip("/")
    try:
        context = ssl.create_default_context(cafile=trusted or None) if base.startswith("https:") else None
    except (OSError, ssl.SSLError) as error:
        raise RegistryFailure(f"{trusted} cannot be used: {error}") from None
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirects())

    def ask(path: str) -> Answer:
        request = urllib.request.Request(base + path, headers={"Accept": "application/json", **login})
        try:
            with opener.open(request, timeout=TIMEOUT_S) as response:
                body = _read(response, time.monotonic() + BODY_S)
                status = response.status
        except urllib.error.HTTPError as error:
            error.close()
            return Answer(error.code, b"")
        except (OSError, ValueError, http.client.HTTPException) as error:  # the last one of what does not speak HTTP
            raise RegistryFailure(f"the schema registry {base} does not answer: {_reason(error)}") from None
        if len(body) > ANSWER_BYTES_MAX:
            raise RegistryFailure(f"the schema registry {base} answers with more than {ANSWER_BYTES_MAX >> 20} MiB")
        return Answer(status, body)

    return ask


def _read(response: http.client.HTTPResponse, ends_s: float) -> bytes:
    """Its body, or one byte more than an answer may have. Raises TimeoutError for one that comes too slowly."""
    body = bytearray()
    while len(body) <= ANSWER_BYTES_MAX and (part := response.read1(BODY_PART_BYTES)):
        body += part
        if time.monotonic() > ends_s:
            raise TimeoutError(f"its answer takes longer than {BODY_S:g} s")
    return bytes(body[: ANSWER_BYTES_MAX + 1])


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would take the login to another server."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", "") or error or type(error).__name__)


def basic_login(user_and_password: str) -> Mapping[str, str]:
    return {"Authorization": "Basic " + b64encode(user_and_password.encode()).decode()}


class SchemaRegistry:
    """Remembers schemas, which never change, and for a moment which ids have none. Of one thread."""

    def __init__(self, ask: Ask, now: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._now = now
        self._known: dict[int, Schema] = {}
        self._missed: dict[int, tuple[float, str]] = {}

    def schema(self, number: int) -> Schema:
        """Raises NoSchema and RegistryFailure."""
        if found := self._known.get(number):
            return found
        if (missed := self._missed.get(number)) and self._now() < missed[0]:
            raise NoSchema(missed[1])
        try:
            found = self._schema_of(number, self._asked(f"/schemas/ids/{number}"))
        except NoSchema as error:
            if len(self._missed) >= SCHEMAS_MAX:
                self._missed.clear()
            self._missed[number] = self._now() + MISSED_AGAIN_S, str(error)
            raise
        if len(self._known) >= SCHEMAS_MAX:
            self._known.pop(next(iter(self._known)))
        self._known[number] = found
        return found

    def versions(self, subject: str) -> list[Schema]:
        """All of a subject, also deleted ones, which records may still have; the newest last. Raises NoSchema and
        RegistryFailure."""
        place = f"/subjects/{urllib.parse.quote(subject, safe='')}/versions"
        numbers = self._asked(f"{place}?deleted=true")
        if not isinstance(numbers, list) or not all(type(one) is int for one in numbers):
            raise RegistryFailure("the schema registry answers a list of versions with something else")
        if len(numbers) > VERSIONS_MAX:
            raise NoSchema(f"{subject} has more than {VERSIONS_MAX} versions")
        found = []
        for version in sorted(numbers):
            row = self._asked(f"{place}/{version}?deleted=true")
            found.append(self._schema_of(_number(row, "id"), row))
        return found

    def _schema_of(self, number: int, row: Any) -> Schema:
        text = _schema_text(row)
        if (kind := row.get("schemaType", "AVRO")) != "AVRO":
            raise NoSchema(f"schema {number} is {kind}, not Avro")
        referenced: dict[tuple[str, int], str] = {}
        self._collect(row, referenced, REFERENCES_DEEP)
        return Schema(number, text, tuple(referenced.values()))

    def _collect(self, row: Mapping[str, Any], into: dict[tuple[str, int], str], deep: int) -> None:
        references = row.get("references") or []
        if not isinstance(references, list) or not all(isinstance(one, dict) for one in references):
            raise RegistryFailure("the schema registry answers with references that are none")
        if not deep or len(into) + len(references) > REFERENCES_MAX:
            raise NoSchema("a schema refers to too many others")
        for reference in references:
            subject, version = str(reference.get("subject")), _number(reference, "version")
            if (subject, version) not in into:
                found = self._asked(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/{version}?deleted=true")
                text = _schema_text(found)
                if sum(map(len, into.values())) + len(text) > ANSWER_BYTES_MAX:
                    raise NoSchema("a schema refers to others that are too large together")
                self._collect(found, into, deep - 1)
                into[subject, version] = text

    def _asked(self, path: str) -> Any:
        answer, what = self._ask(path), path.partition("?")[0]
        if answer.status == HTTPStatus.NOT_FOUND:
            raise NoSchema(f"the schema registry has no {what.strip('/')}")
        if answer.status != HTTPStatus.OK:
            raise RegistryFailure(f"the schema registry answers {what} with status {answer.status}")
        try:
            return json.loads(answer.body)
        except (ValueError, RecursionError):
            raise RegistryFailure("the schema registry answers with what is no JSON") from None


def _schema_text(row: Any) -> str:
    found = row.get("schema") if isinstance(row, dict) else None
    if not isinstance(found, str):
        raise RegistryFailure("the schema registry answers without a schema")
    return found


def _number(row: Any, name: str) -> int:
    found = row.get(name) if isinstance(row, dict) else None
    if type(found) is not int:
        raise RegistryFailure(f"the schema registry answers without a number for {name}")
    return found
