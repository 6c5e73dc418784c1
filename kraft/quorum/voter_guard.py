"""Whether a voter with an empty directory may join.

It may if no other voter has ever counted a vote or an acknowledgement of it: then it has nothing to forget. All others
must confirm this, because a silent one may have relied on it. A new cluster starts in this way: its voters wait until
each has answered every other.

A voter that others relied on has lost its promises. It stays out until an operator replaces it deliberately. That is
safe if all other voters hold every entry that it may have acknowledged, and if it votes in no term in which it may have
voted before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from common.backoff import Backoff
from common.identifiers import UUID_BYTES, ZERO_UUID

ASK_INTERVAL = Backoff(0.03, 0.2)  # short at first: the voters of a new cluster start within milliseconds
ASK_TIMEOUT_S = 1.0
REMIND_INTERVAL_S = 10.0

_log = logging.getLogger(__name__)


class VoterRefused(Exception):
    """This voter must not start; the message is for the operator."""


@dataclass(slots=True)
class VoterStatus:
    """A voter's status for another one; `relied_on` is about the one that asks."""

    has_state: bool
    relied_on: bool
    term: int
    leader_id: int  # or -1
    last_index: int
    commit_index: int
    cluster_id: bytes

    def to_map(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_map(cls, value: Mapping[str, Any]) -> VoterStatus | None:
        """None if the map is not a status."""
        shapes: dict[str, type] = {"has_state": bool, "relied_on": bool, "cluster_id": bytes}
        shapes |= dict.fromkeys(("term", "leader_id", "last_index", "commit_index"), int)
        if value.keys() != shapes.keys() or any(type(value[name]) is not shape for name, shape in shapes.items()):
            return None
        return cls(**value) if len(value["cluster_id"]) == UUID_BYTES else None


class Admission(NamedTuple):
    """The new journal's term, and the cluster's id or zeros."""

    term: int
    cluster_id: bytes


Statuses = Mapping[int, VoterStatus | None]


def judge_new(statuses: Statuses) -> Admission | None:
    """The decision for a voter that claims to be new. None while an answer is missing; raises VoterRefused."""
    relying = [peer for peer, status in statuses.items() if status is not None and status.relied_on]
    if relying:
        raise VoterRefused(
            f"this controller's directory is empty, but controller {relying[0]} has counted on its votes: it has lost "
            "its state. If it cannot be restored, and all other controllers are healthy, start it with "
            "tidelog.controllers.replace.voter=true"
        )
    if any(status is None for status in statuses.values()):
        return None
    return Admission(0, _cluster_of(statuses))


class Replacement:
    """The decision for a voter that an operator replaces: takes rounds of statuses until one shows that nothing is
    missing."""

    def __init__(self) -> None:
        self._term = -1
        self._target = 0  # what the leader had when it was first asked, while this voter was already silent
        self.obstacle = "no controller has answered"

    def judge(self, statuses: Statuses) -> Admission | None:
        known = {peer: status for peer, status in statuses.items() if status is not None}
        if len(known) < len(statuses):
            silent = next(peer for peer, status in statuses.items() if status is None)
            self.obstacle = f"controller {silent} does not answer"
            return None
        for peer, status in known.items():
            if not status.has_state:
                self.obstacle = f"controller {peer} has no state either"
                return None
        term = max(status.term for status in known.values())
        leaders = {status.leader_id: None for status in known.values()}
        leader = known.get(next(iter(leaders)))
        if len(leaders) > 1 or leader is None or any(status.term != term for status in known.values()):
            self.obstacle = "the other controllers do not agree on a leader"
            return None
        if term != self._term:
            self._term, self._target = term, leader.last_index
        behind = next((peer for peer, status in known.items() if status.commit_index < self._target), None)
        if behind is not None:
            self.obstacle = f"controller {behind} lacks committed entries"
            return None
        return Admission(term + 1, _cluster_of(statuses))


def _cluster_of(statuses: Statuses) -> bytes:
    ids = {status.cluster_id: None for status in statuses.values() if status and status.cluster_id != ZERO_UUID}
    if len(ids) > 1:
        raise VoterRefused("the other controllers belong to different clusters")
    return next(iter(ids), ZERO_UUID)


async def admit(
    peers: list[int],
    ask: Callable[[int, float], Awaitable[dict[str, Any] | None]],
    replace_s: float | None,
) -> Admission:
    """Ask until there is a decision; `ask(peer, timeout_s)` returns a status as a map, or None.

    A new voter (`replace_s` None) waits for the others without limit, a replaced one for so many seconds. Raises
    VoterRefused.
    """
    loop = asyncio.get_running_loop()
    began = reminded = loop.time()
    replacement = Replacement()
    rounds = 0
    while True:
        answers = await asyncio.gather(*(ask(peer, ASK_TIMEOUT_S) for peer in peers))
        statuses = {
            peer: None if answer is None else VoterStatus.from_map(answer)
            for peer, answer in zip(peers, answers, strict=True)
        }
        admission = judge_new(statuses) if replace_s is None else replacement.judge(statuses)
        if admission is not None:
            return admission
        if replace_s is not None and loop.time() - began > replace_s:
            raise VoterRefused(f"this controller cannot be replaced now: {replacement.obstacle}")
        if loop.time() - reminded > REMIND_INTERVAL_S:
            reminded = loop.time()
            silent = [peer for peer, status in statuses.items() if status is None]
            _log.warning("a new controller waits for the others to answer", extra={"silent": silent})
        rounds += 1
        await asyncio.sleep(ASK_INTERVAL.pause_s(rounds))
