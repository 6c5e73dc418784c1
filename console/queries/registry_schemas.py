"""Schemas of a registry by their ids, for questions that decode records by them.

A registry that is slow, silent or hostile costs a question a few seconds and the console a few threads. Each schema is
fetched once; what is kept is bounded in number and in bytes.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from tidelog.streams.avro_schemas import BadSchema, NoAnswer, Schema, Unfitting, parse_schema
from tidelog.streams.schema_registry import NoSchema, RegistryFailure
from tidelog.streams.schema_registry import Schema as Registered

FETCHES_AT_ONCE_MAX = 4
WAIT_S = 5.0
KEPT_MAX, KEPT_BYTES_MAX = 200, 2 << 20
AGAIN_S = 5.0
"""An id that had no schema may have one by now, and a registry that was silent may answer."""

Fetch = Callable[[int], Registered]
"""Blocks; raises NoSchema and RegistryFailure. Called in several threads."""


class _Kept(NamedTuple):
    """`found` is a schema, or why there is none. Good until `ends_s` if that is given."""

    found: Schema | str
    size: int
    ends_s: float | None


class RegistrySchemas:
    """Of all sessions."""

    def __init__(self, fetch: Fetch, now: Callable[[], float] = time.monotonic) -> None:
        self._fetch = fetch
        self._now = now
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        self._kept_bytes = 0
        self._running: dict[int, Future[Schema | str]] = {}
        self._silent_until_s, self._silent_why = 0.0, ""

    def of_question(self, wait_s: float = WAIT_S) -> QuestionSchemas:
        """For one question, which waits for the registry so long in all."""
        return QuestionSchemas(self, wait_s, self._now)

    @property
    def kept(self) -> tuple[int, int]:
        """How many are kept, and their bytes."""
        return len(self._kept), self._kept_bytes

    def asked(self, number: int) -> Schema | str | Future[Schema | str]:
        """What is kept, or what is on its way. Raises NoAnswer."""
        with self._lock:
            kept = self._kept.get(number)
            if kept is not None and (kept.ends_s is None or self._now() < kept.ends_s):
                self._kept.move_to_end(number)
                return kept.found
            if (running := self._running.get(number)) is not None:
                return running
            if self._now() < self._silent_until_s:
                raise NoAnswer(self._silent_why)
            if len(self._running) >= FETCHES_AT_ONCE_MAX:
                raise NoAnswer("the schema registry is asked for others' schemas; search again")
            running = self._running[number] = Future()
        threading.Thread(target=self._run, args=(number, running), name="console-schema", daemon=True).start()
        return running

    def _run(self, number: int, running: Future[Schema | str]) -> None:
        """In a thread of its own, which no end of the console waits for."""
        try:
            found, size, is_lasting = self._parsed(number)
        except Exception as error:  # whatever it is, the questions that wait hear of it
            with self._lock:
                del self._running[number]
                self._silent_until_s, self._silent_why = self._now() + AGAIN_S, str(error)
            running.set_exception(NoAnswer(str(error)) if isinstance(error, RegistryFailure) else error)
            return
        with self._lock:
            del self._running[number]
            self._keep(number, _Kept(found, size, None if is_lasting else self._now() + AGAIN_S))
        running.set_result(found)

    def _parsed(self, number: int) -> tuple[Schema | str, int, bool]:
        """The schema or why there is none, its size, and whether this stays so. Raises RegistryFailure."""
        try:
            given = self._fetch(number)
        except NoSchema as error:
            return str(error), len(str(error)), False
        size = len(given.text) + sum(map(len, given.referenced))
        try:
            return parse_schema(given.text, given.referenced), size, True
        except BadSchema as error:
            return f"schema {number}: {error}", len(str(error)), True

    def _keep(self, number: int, kept: _Kept) -> None:
        if (old := self._kept.pop(number, None)) is not None:
            self._kept_bytes -= old.size
        self._kept[number] = kept
        self._kept_bytes += kept.size
        while len(self._kept) > KEPT_MAX or (self._kept_bytes > KEPT_BYTES_MAX and len(self._kept) > 1):
            self._kept_bytes -= self._kept.popitem(last=False)[1].size


class QuestionSchemas:
    """What one question asks, in its thread. It blocks, so it is never called on the console's loop."""

    def __init__(self, schemas: RegistrySchemas, wait_s: float, now: Callable[[], float]) -> None:
        self._schemas = schemas
        self._left_s = wait_s
        self._now = now

    def __call__(self, number: int) -> Schema:
        """Raises Unfitting for an id without a schema that can be used, and NoAnswer."""
        asked = self._schemas.asked(number)
        found = self._waited(asked) if isinstance(asked, Future) else asked
        if isinstance(found, str):
            raise Unfitting(found)
        return found

    def _waited(self, asked: Future[Schema | str]) -> Schema | str:
        began_s = self._now()
        try:
            return asked.result(max(0.0, self._left_s))
        except TimeoutError:
            raise NoAnswer("the schema registry has not answered in time; search again") from None
        finally:
            self._left_s -= self._now() - began_s
