"""Applies committed entries with a limit per step; a large entry takes several steps. No I/O."""

from __future__ import annotations

from typing import NamedTuple

from common.pacing import Work
from kraft.quorum.message_filter import COMMAND
from kraft.quorum.state_machine import StateMachine

STEP_COST = 4_000
"""Cost limit of one step, in units of `common.pacing`: some twenty small entries, or a part of a large one."""
ENTRY_COST = 200
COPIED_BYTES_MAX = 64 << 10
"""A larger command is not copied out of its entry."""


class Done(NamedTuple):
    """`result`: of the state machine."""

    result: object


class Application:
    """The rest of this step's limit, and the entry that an earlier step began. An entry counts as applied, and its
    changes are visible, only at its end."""

    def __init__(self, state_machine: StateMachine) -> None:
        self._state_machine = state_machine
        self._left = 0
        self._begun: Work[object] | None = None

    def begin_step(self) -> None:
        self._left = STEP_COST

    def apply(self, index: int, command: bytes) -> Done | None:
        """None if the limit is used up before the entry is applied; the next step continues with the same entry."""
        if self._left <= 0:
            return None
        work = self._begun
        if work is None:
            self._left -= ENTRY_COST
            if command[0] != COMMAND:
                return Done(None)
            data = memoryview(command)[1:] if len(command) > COPIED_BYTES_MAX else command[1:]
            work = self._state_machine.applying(index, data)
        while self._left > 0:
            try:
                self._left -= next(work)
            except StopIteration as end:
                self._begun = None
                return Done(end.value)
        self._begun = work
        return None

    def forget(self) -> None:
        """A snapshot that contains the entry has replaced the state."""
        if self._begun is not None:
            self._begun.close()
            self._begun = None
