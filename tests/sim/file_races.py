"""Two parts of one program that change the same file at once.

A simulated thread takes effect at one moment, so whatever it does seems to happen in one piece. On a machine it takes
from when the thread begins until its result is there, and anything else may come in between. Within that time nobody
else of the same process, neither another thread nor the loop, may change what it changes.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

Place = tuple[Hashable, str]
"""A directory, whatever its name is by now, and a name in it."""


@dataclass(slots=True)
class _Work:
    name: str
    began_ns: int
    changed: dict[Place, str] = field(default_factory=dict)


class FileRaces:
    """Of one life of a node. `changed` answers with what is wrong, if anything is."""

    def __init__(self) -> None:
        self._thread: _Work | None = None
        self._busy: dict[Place, tuple[int, str]] = {}  # until when which work of a thread changes it
        self._loop_changes: dict[Place, int] = {}  # when the loop last did

    def thread_begins(self, name: str, began_ns: int) -> None:
        self._thread = _Work(name, began_ns)

    def thread_ends(self, end_ns: int) -> None:
        work, self._thread = self._thread, None
        assert work is not None
        for place in work.changed:
            self._busy[place] = (end_ns, work.name)

    def changed(self, place: Place, path: str, now_ns: int) -> str | None:
        """Somebody creates, writes, cuts, renames or removes a file, at `now_ns` of the node's own time."""
        work = self._thread
        until_ns, other = self._busy.get(place, (-1, ""))
        if work is None:
            self._loop_changes[place] = now_ns
            return f"the loop changes {path} while {other} does" if now_ns < until_ns else None
        work.changed[place] = path
        if work.began_ns < until_ns:
            return f"{work.name} and {other} change {path} at once"
        if work.began_ns < self._loop_changes.get(place, -1):
            return f"{work.name} changes {path} while the loop does"
        return None
