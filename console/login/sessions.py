"""Who is logged in. Sessions are bounded in number, in idle time and in age; a cookie names one, and holds no more."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Any

from console.access.caller import Caller
from console.login.credentials import Entry

SESSIONS_MAX = 64
IDLE_S = 30 * 60.0
YIELDS_S = 5 * 60.0
OF_AN_OWNER_MAX = 16
AGE_S = 12 * 3600.0
NOTICES_MAX = 5


class Session:
    """One login. `token` is what forms must send back; `name` is what pages call the person."""

    def __init__(self, entry: Entry, caller: Caller, token: str, began_s: float) -> None:
        self.entry = entry
        self.name = entry.name
        self.caller = caller
        self.token = token
        self.began_s = began_s
        self._used_s = began_s
        self._notices: list[str] = []
        self.remembered: dict[str, Any] = {}

    def is_over(self, now_s: float) -> bool:
        return now_s - self._used_s > IDLE_S or now_s - self.began_s > AGE_S

    def use(self, now_s: float) -> None:
        self._used_s = now_s

    @property
    def used_s(self) -> float:
        return self._used_s

    def is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())

    def notice(self, text: str) -> None:
        """To be shown on the next page."""
        self._notices = [*self._notices[-NOTICES_MAX + 1 :], text]

    def take_notices(self) -> list[str]:
        taken, self._notices = self._notices, []
        return taken


class Full(Exception):
    """As many sessions as there may be were used of late."""


class Sessions:
    """By the hash of their cookie, so that a dump of this table opens nothing."""

    def __init__(self, now: Callable[[], float], draw: Callable[[], str], most: int = SESSIONS_MAX) -> None:
        self._now = now
        self._draw = draw
        self._most = most
        self._sessions: dict[str, Session] = {}

    def begin(self, entry: Entry, caller: Caller) -> tuple[str, Session]:
        """The cookie and the session. When its user or tenant has enough, the least recently used of theirs ends; when
        the table is full, the least recently used of all, if it rested for `YIELDS_S`. Raises Full."""
        self.end_old()
        of_owner = [key for key, one in self._sessions.items() if one.entry.owner == entry.owner]
        if entry.owner and len(of_owner) >= OF_AN_OWNER_MAX:
            self._end_key(min(of_owner, key=lambda key: self._sessions[key].used_s))
        if len(self._sessions) >= self._most:
            oldest = min(self._sessions, key=lambda key: self._sessions[key].used_s)
            if self._now() - self._sessions[oldest].used_s < YIELDS_S:
                raise Full
            self._end_key(oldest)
        cookie = self._draw()
        session = Session(entry, caller, self._draw(), self._now())
        self._sessions[_hashed(cookie)] = session
        return cookie, session

    def drawn(self) -> str:
        """A random word that no one can guess."""
        return self._draw()

    def of(self, cookie: str | None, *, is_use: bool = False) -> Session | None:
        """The session of a cookie; None if it has ended. `is_use`: a person has done something with it."""
        found = self._sessions.get(_hashed(cookie)) if cookie else None
        if found is None or cookie is None:
            return None
        if found.is_over(self._now()):
            self.end(cookie)
            return None
        if is_use:
            found.use(self._now())
        return found

    def end(self, cookie: str) -> None:
        self._end_key(_hashed(cookie))

    def _end_key(self, key: str) -> None:
        if (ended := self._sessions.pop(key, None)) is not None:
            ended.caller.close()

    def end_old(self) -> None:
        now = self._now()
        for key in [key for key, one in self._sessions.items() if one.is_over(now)]:
            self._sessions.pop(key).caller.close()

    def drop_old_answers(self) -> None:
        for session in self._sessions.values():
            session.caller.answers.drop_old()

    def end_all(self) -> None:
        for session in self._sessions.values():
            session.caller.close()
        self._sessions.clear()

    def __len__(self) -> int:
        return len(self._sessions)


def _hashed(cookie: str) -> str:
    return hashlib.sha256(cookie.encode(errors="replace")).hexdigest()
