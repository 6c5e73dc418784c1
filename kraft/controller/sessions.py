"""Sessions of brokers: soft state of the active controller, new with each leadership. No I/O.

Silence ends a session after `timeout_s`. A closed heartbeat connection makes it suspect: the session ends after
`suspicion_s` unless the broker is heard again, and at once if nothing listens at the broker's address any more.
Connections are identified by numbers.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from kraft.records import Cause


class Session(Struct):
    broker_epoch: int
    deadline: float
    connection: int = -1
    metadata_offset: int = -1
    suspect: bool = False
    heard: bool = False
    gone: bool = False  # nothing listens at its address any more
    was_extended: bool = False
    heard_at: float = -1.0  # the last heartbeat
    caught_up_at: float = -1.0  # the last time when its metadata reached the end, as far as heartbeats tell

    def fall_under_suspicion(self, until: float) -> None:
        """Its connection has closed: end at `until`, unless it ends earlier anyway."""
        self.suspect = True
        self.deadline = min(self.deadline, until)

    def extend(self, until: float) -> None:
        """Extend a session that seems to be over, once until the broker is heard again."""
        if not self.was_extended and not self.gone:
            self.deadline, self.was_extended = until, True

    def end(self, now: float) -> None:
        """The broker's process no longer exists."""
        self.deadline, self.gone = now, True


class BrokerSessions:
    """Times are seconds of one monotonic clock."""

    def __init__(self, timeout_s: float, suspicion_s: float) -> None:
        self._timeout_s = timeout_s
        self._suspicion_s = suspicion_s
        self._sessions: dict[int, Session] = {}

    def restart(self, unfenced: Iterable[tuple[int, int]], now: float) -> None:
        """Give every unfenced broker, as (id, epoch), a whole timeout; none counts as heard yet."""
        self._sessions = {
            broker_id: Session(broker_epoch, now + self._timeout_s) for broker_id, broker_epoch in unfenced
        }

    def heard(
        self, broker_id: int, broker_epoch: int, metadata_offset: int, connection: int, now: float, end_offset: int = 0
    ) -> None:
        """`metadata_offset`: the last that the broker has, of metadata that ends before `end_offset`."""
        before = self._sessions.get(broker_id)
        if metadata_offset + 1 >= end_offset:
            caught_up_at = now
        else:
            caught_up_at = -1.0 if before is None or before.broker_epoch != broker_epoch else before.caught_up_at
        self._sessions[broker_id] = Session(
            broker_epoch,
            now + self._timeout_s,
            connection,
            metadata_offset,
            suspect=False,
            heard=True,
            heard_at=now,
            caught_up_at=caught_up_at,
        )

    def of_heard(self) -> list[tuple[int, Session]]:
        """The brokers, by id, that have been heard in this leadership."""
        ordered = sorted(self._sessions.items(), key=lambda row: row[0])
        return [(broker_id, session) for broker_id, session in ordered if session.heard]

    def connection_closed(self, connection: int, now: float) -> list[tuple[int, int]]:
        """(broker id, broker epoch) of the broker that became suspect, at most one."""
        fallen = []
        for broker_id, session in self._sessions.items():
            if session.connection == connection and not session.suspect:
                session.fall_under_suspicion(now + self._suspicion_s)
                fallen.append((broker_id, session.broker_epoch))
        return fallen

    def is_suspected(self, broker_id: int, broker_epoch: int, now: float) -> bool:
        """Whether its state is unknown: not heard since its connection closed, or not heard in this leadership, and not
        expired."""
        session = self._sessions.get(broker_id)
        return (
            session is not None
            and session.broker_epoch == broker_epoch
            and (session.suspect or not session.heard)
            and session.deadline > now
        )

    def forgive_stall(self, late_s: float, now: float) -> None:
        """This process was stalled for `late_s`, so heartbeats may be unread. Extend sessions that seem to be over,
        once until the broker is heard again."""
        for session in self._sessions.values():
            if session.deadline <= now:
                session.extend(now + late_s)

    def found_gone(self, broker_id: int, broker_epoch: int, now: float) -> None:
        """A suspected broker's process no longer exists."""
        session = self._sessions.get(broker_id)
        if session is not None and self.is_suspected(broker_id, broker_epoch, now):
            session.end(now)

    def forget(self, broker_id: int) -> None:
        self._sessions.pop(broker_id, None)

    def is_live(self, broker_id: int, now: float) -> bool:
        """Heard in this leadership, not suspect, not expired: another process must not take its id."""
        session = self._sessions.get(broker_id)
        return session is not None and session.heard and not session.suspect and session.deadline > now

    def expired(self, now: float) -> list[tuple[int, int, Cause]]:
        """(broker id, broker epoch, cause) of the expired sessions, which stay until `forget`."""
        return [
            (broker_id, s.broker_epoch, Cause.CONNECTION_LOST if s.suspect or s.gone else Cause.SESSION_EXPIRED)
            for broker_id, s in self._sessions.items()
            if s.deadline <= now
        ]

    def is_expired(self, broker_id: int, broker_epoch: int, now: float) -> bool:
        session = self._sessions.get(broker_id)
        return session is not None and session.broker_epoch == broker_epoch and session.deadline <= now

    def next_deadline(self) -> float | None:
        return min((session.deadline for session in self._sessions.values()), default=None)

    def all_have_seen(self, offset: int, among: Iterable[int]) -> bool:
        """Whether each of these brokers with a session has reported that its metadata reaches `offset`."""
        sessions = (self._sessions.get(broker_id) for broker_id in among)
        return all(session.metadata_offset >= offset for session in sessions if session is not None)
