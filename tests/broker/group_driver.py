"""Drives a group shard in tests: virtual time, a list for a log, and replies by ticket."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from broker.coordination.groups.config import GroupConfig
from broker.coordination.groups.group_shard import GroupShard
from broker.coordination.groups.values import (
    CommitRequest,
    JoinReply,
    JoinRequest,
    MemberHeartbeat,
    MemberIdentity,
    OffsetToCommit,
    SyncReply,
    SyncRequest,
)
from broker.coordination.shard import PARKED, CoordinatorRecord, Now
from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from common.identifiers import ZERO_UUID
from kraft.image.key_ranges import Keeping
from wire.messages import SyncGroupRequest

GROUP = "flights"
WALL_0 = 1_700_000_000_000
RANGE = (("range", b"\x00\x00\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x00"),)


def subscription(topics: list[str]) -> bytes:
    """ConsumerProtocolSubscription 0, as a client writes it."""
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


class GroupDriver:
    """`replies` has everything that was answered, by ticket; `log` every record in order. `keeping`: what the
    partition is to its groups."""

    def __init__(
        self,
        config: GroupConfig | None = None,
        log: list[CoordinatorRecord] | None = None,
        keeping: Keeping = Keeping.SERVED,
    ) -> None:
        self.config = config or GroupConfig()
        self.now_s = 100.0
        self.log: list[CoordinatorRecord] = list(log or [])
        self.replies: dict[int, Any] = {}
        self.asked: dict[int, Any] = {}
        self.topics = {"t": bytes([1] * 16), "u": bytes([2] * 16)}
        self.keeping = keeping
        rng = random.Random(f"coordinator {len(self.log)}")
        self.shard = GroupShard(self.config, rng, self.topics.get, lambda _: self.keeping)
        for record in self.log:
            self.shard.replay(record.key, record.value)
        self.append(self.shard.loaded(self.now))
        self.advance(0.0)

    @property
    def now(self) -> Now:
        return Now(self.now_s, WALL_0 + int(self.now_s * 1000))

    def append(self, records: list[CoordinatorRecord]) -> None:
        for record in records:
            self.shard.replay(record.key, record.value)
            self.log.append(record)

    def collect(self) -> None:
        for ticket, reply in self.shard.take_answers():
            assert ticket not in self.replies, "a request is answered once"
            self.replies[ticket] = reply

    def ask(self, request: Any, decide: Callable[[Now, int], Decision[CoordinatorRecord, Any]]) -> int:
        ticket = len(self.asked) + 1
        self.asked[ticket] = request
        try:
            decision = decide(self.now, ticket)
        except ProtocolError as error:
            self.replies[ticket] = error.code
        else:
            self.append(decision.records)
            if decision.reply is not PARKED:
                self.replies[ticket] = decision.reply
        self.collect()
        return ticket

    def advance(self, seconds: float) -> None:
        """Let time pass, stopping at each deadline on the way."""
        end = self.now_s + seconds
        while True:
            deadline = self.shard.next_deadline()
            if deadline is None or deadline > end:
                break
            self.now_s = max(self.now_s, deadline)
            self.append(self.shard.expire(self.now))
            self.collect()
        self.now_s = end

    # requests; each returns its ticket -----------------------------------------------------------------------

    def join(
        self,
        member_id: str = "",
        *,
        instance: str | None = None,
        protocols: tuple[tuple[str, bytes], ...] = RANGE,
        group: str = GROUP,
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        known: bool = True,
        skips: bool = True,
        protocol_type: str = "consumer",
    ) -> int:
        request = JoinRequest(
            group,
            member_id,
            instance,
            "client",
            "/127.0.0.1",
            session_ms,
            rebalance_ms,
            protocol_type,
            protocols,
            known,
            skips,
        )
        return self.ask(request, lambda now, ticket: self.shard.join(request, now, ticket))

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance: str | None = None,
        group: str = GROUP,
    ) -> int:
        row = SyncGroupRequest.SyncGroupRequestAssignment
        given = [row(member_id=one, assignment=data) for one, data in (assignments or {}).items()]
        request = SyncRequest(group, member_id, instance, generation, None, None, given)
        return self.ask(request, lambda now, ticket: self.shard.sync(request, now, ticket))

    def heartbeat(self, member_id: str, generation: int, *, instance: str | None = None, group: str = GROUP) -> Any:
        request = MemberHeartbeat(group, member_id, instance, generation)
        return self.replies[self.ask(request, lambda now, _: self.shard.heartbeat(request, now))]

    def leave(self, *members: MemberIdentity | str, group: str = GROUP) -> Any:
        leaving = tuple(MemberIdentity(m, None) if isinstance(m, str) else m for m in members)
        return self.replies[self.ask(leaving, lambda now, _: self.shard.leave(group, leaving, now))]

    def commit(
        self,
        offsets: dict[tuple[str, int], int],
        member_id: str = "",
        generation: int = -1,
        *,
        instance: str | None = None,
        metadata: str = "",
        retention_ms: int = -1,
        group: str = GROUP,
    ) -> Any:
        items = tuple(
            OffsetToCommit(t, p, offset, 3, metadata, self.topics.get(t, ZERO_UUID))
            for (t, p), offset in offsets.items()
        )
        request = CommitRequest(group, member_id, instance, generation, items, retention_ms)
        return self.replies[self.ask(request, lambda now, _: self.shard.commit(request, now))]

    # stories -------------------------------------------------------------------------------------------------

    def joined(self, ticket: int) -> JoinReply:
        reply = self.replies[ticket]
        assert isinstance(reply, JoinReply)
        assert reply.error is ErrorCode.NONE
        return reply

    def synced(self, ticket: int) -> SyncReply:
        reply = self.replies[ticket]
        assert isinstance(reply, SyncReply)
        assert reply.error is ErrorCode.NONE
        return reply

    def new_member_id(self, **join: Any) -> str:
        """The member id that the first JoinGroup of a dynamic member is answered with."""
        reply = self.replies[self.join(**join)]
        assert reply.error is ErrorCode.MEMBER_ID_REQUIRED
        return str(reply.member_id)

    def stable_group(self, count: int, **join: Any) -> tuple[int, list[str]]:
        """A stable group of `count` new dynamic members: its generation, and their ids with the leader first."""
        ids = [self.new_member_id(**join) for _ in range(count)]
        tickets = [self.join(member_id, **join) for member_id in ids]
        self.advance(0.01 + 3 * self.config.group_initial_rebalance_delay_ms / 1000)
        replies = [self.joined(ticket) for ticket in tickets]
        leader = replies[0].leader
        ids.sort(key=lambda member_id: member_id != leader)
        generation = replies[0].generation
        group = join.get("group", GROUP)
        for member_id in ids[1:]:
            self.sync(member_id, generation, group=group)
        self.sync(leader, generation, {member_id: member_id.encode() for member_id in ids}, group=group)
        return generation, ids
