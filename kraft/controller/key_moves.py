"""The move of a tenant's keys, its transactional ids and then its groups, to the ranges of its new cell. No I/O.

Each of the two moves by itself, under a fence of its own. In (IDS_)CLEARING, each leader of a target range removes what
an earlier attempt may have left. (IDS_)COPYING is the fence: a broker that knows of it no longer serves the tenant's
keys, so each leader of an old range can then hand over everything that was ever committed. When all have done so, the
keys are served in the new range. A leader that is elected later knows of the fence, because it knows of its election,
and a deposed leader commits nothing; so the step ends when each partition's current leader has reported. Until the last
step the old range has everything, and a move may be cancelled at any time. A fence behind which nothing goes on is
taken back: to (IDS_)CLEARING, in the next `keys_epoch` (`kraft.controller.key_fences`).

Ids go first, because nothing that their fence waits for waits for them: a prepared transaction ends by markers, which
partitions take whatever is fenced, and an ongoing one goes along. Markers are late where a partition has no leader, or
too few replicas. So in IDS_CLEARING the leaders of the old range report, too: when no transaction has lacked markers
for long. Behind a fence of groups, producers could neither send their offsets nor end their transactions in time. So
groups are fenced only when no transaction has offsets of a group: in DRAINING the tenant's transaction coordinators let
those that have some add more and end, the others wait with their first ones, and each coordinator reports when there
are none.

A transaction may keep its offsets for longer than `DRAIN_S`. The others then run towards their timeouts as they wait,
so the groups go to HOLDING instead: ongoing transactions do what they like, and end, but none begins. One that has not
begun has no timeout. When no transaction has offsets, DRAINING makes sure of it. If that takes too long, producers go
on, and each further attempt waits twice as long: in the end longer than the tenant's longest transaction, unless its
timeout is above `HOLD_MAX_S`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct, field

from kraft.controller.key_fences import FENCED, Fences
from kraft.controller.key_ranges import keyed_topics
from kraft.features import IDS_LEVEL, TIDELOG_VERSION
from kraft.image.key_ranges import range_at, range_for
from kraft.image.metadata import MetadataImage
from kraft.image.tenants import TenantImage
from kraft.image.topics import KeyRange, TopicImage
from kraft.records import KeysPhase, TenantRecord
from kraft.topic_names import GROUP_TOPIC, TRANSACTION_TOPIC

DRAIN_S = 3.0
"""How long producers may wait with their first offsets, well below their timeouts."""
HOLD_S = 5.0
"""How long producers may wait to begin transactions in the first attempt; twice as long in each further one."""
HOLD_MAX_S = 1_000.0
"""A transaction has ended then: by default its timeout is at most 900 s, and an overdue one is aborted within 10 s."""
DRAIN_AGAIN_S = 10.0
"""Least pause before the next attempt. It is as long as producers have just waited, if that was longer."""

NAMED_MAX = 10  # partitions in a problem's text

_DRAINS = (KeysPhase.DRAINING, KeysPhase.HOLDING)


class Report(NamedTuple):
    """A broker's report on one tenant: the phase is done in the partitions (index, leader epoch) that it leads."""

    tenant_id: str
    keys_epoch: int
    phase: int
    partitions: tuple[tuple[int, int], ...]


class Drain(Struct):
    """How long a tenant's groups drain. `since`: of its present phase. `hold_s`: how long this attempt may keep
    transactions from beginning. `has_held`: it was in HOLDING. `again_at`: the next attempt does not begin before."""

    since: float = 0.0
    hold_s: float = HOLD_S
    has_held: bool = False
    again_at: float = float("-inf")

    def entered(self, phase: KeysPhase, now_s: float) -> None:
        self.since = now_s
        self.has_held = self.has_held or phase is KeysPhase.HOLDING

    def gave_up(self, now_s: float) -> None:
        self.again_at = now_s + max(DRAIN_AGAIN_S, self.hold_s)
        self.hold_s = min(2 * self.hold_s, HOLD_MAX_S)
        self.ended()

    def ended(self) -> None:
        self.has_held = False


class Drains(Struct):
    """The tenants whose groups drain. Soft state of each controller, which follows the metadata; one that has just
    started begins with short attempts again. Times are monotonic seconds."""

    _by_tenant: dict[str, Drain] = field(default_factory=dict)

    def applied(self, old: TenantImage | None, tenant: TenantImage, now_s: float) -> None:
        """The tenant has changed."""
        before, phase = None if old is None else old.keys_phase, tenant.keys_phase
        if before is phase:
            return
        if phase in _DRAINS:
            self._by_tenant.setdefault(tenant.id, Drain()).entered(phase, now_s)
        elif phase is KeysPhase.CLEARING and before in _DRAINS and tenant.id in self._by_tenant:
            self._by_tenant[tenant.id].gave_up(now_s)
        elif phase is KeysPhase.CLEARING and before in FENCED and tenant.id in self._by_tenant:
            self._by_tenant[tenant.id].ended()
        elif phase is KeysPhase.SETTLED:
            self.forget(tenant.id)

    def is_overdue(self, tenant: TenantImage, now_s: float) -> bool:
        """Whether the tenant's transactions have waited long enough for one that keeps its offsets."""
        drain = self._by_tenant.get(tenant.id)
        if drain is None:
            return False
        return now_s - drain.since >= (drain.hold_s if tenant.keys_phase is KeysPhase.HOLDING else DRAIN_S)

    def has_held(self, tenant: TenantImage) -> bool:
        """Whether this attempt has kept transactions from beginning already."""
        drain = self._by_tenant.get(tenant.id)
        return drain is not None and drain.has_held

    def may_begin(self, tenant: TenantImage, now_s: float) -> bool:
        drain = self._by_tenant.get(tenant.id)
        return drain is None or now_s >= drain.again_at

    def forget(self, tenant_id: str) -> None:
        self._by_tenant.pop(tenant_id, None)


class KeyReports(Struct):
    """The leaders' reports. Soft state of the active controller; brokers repeat them."""

    drains: Drains = field(default_factory=Drains)
    fences: Fences = field(default_factory=Fences)
    _done: dict[tuple[str, int, int], dict[tuple[bytes, int], None]] = field(default_factory=dict)

    def restart(self, now_s: float) -> None:
        self._done.clear()
        self.fences.restart(now_s)

    def applied(self, old: TenantImage | None, tenant: TenantImage, now_s: float) -> None:
        """The tenant has changed."""
        self.drains.applied(old, tenant, now_s)
        self.fences.applied(old, tenant, now_s)

    def take(
        self, image: MetadataImage, broker_id: int, topic_id: bytes, reports: Iterable[Report], now_s: float
    ) -> None:
        """Accept reports only from current leaders, and only for the tenant's current phase. One without partitions
        says that the fence goes on: keys of a partition were taken that has more."""
        for report in reports:
            tenant = image.tenants.get(report.tenant_id)
            if tenant is None or (tenant.keys_epoch, tenant.keys_phase) != (report.keys_epoch, report.phase):
                continue
            if not report.partitions:
                self.fences.reported(report.tenant_id, now_s)
            done = self._done.setdefault((report.tenant_id, report.keys_epoch, report.phase), {})
            for index, leader_epoch in report.partitions:
                partition = image.partition(topic_id, index)
                if partition is None or (partition.leader, partition.leader_epoch) != (broker_id, leader_epoch):
                    continue
                if (topic_id, index) not in done:
                    done[topic_id, index] = None
                    self.fences.reported(report.tenant_id, now_s)

    def missing(self, tenant: TenantImage, topic_id: bytes, partitions: Iterable[int]) -> list[int]:
        """Those of the partitions in which the tenant's phase is not done."""
        done = self._done.get((tenant.id, tenant.keys_epoch, tenant.keys_phase), {})
        return [index for index in partitions if (topic_id, index) not in done]

    def forget(self, tenant_id: str) -> None:
        self.drains.forget(tenant_id)
        self.fences.forget(tenant_id)
        for key in [key for key in self._done if key[0] == tenant_id]:
            del self._done[key]


class KeyStep(Struct):
    """`record`: what to commit now. `settled`: the keys are in the tenant's cell, nothing is left to do."""

    record: TenantRecord | None = None
    settled: bool = False
    problem: str = ""


class _Kind(NamedTuple):
    """Keys that move together. `keys`: what they are, `hint`: to an operator, why they may wait. `cell_field`: of the
    record, where they are."""

    topic: str
    cell_field: str
    clearing: KeysPhase
    copying: KeysPhase
    phases: tuple[KeysPhase, ...]
    keys: str
    hint: str = ""


_IDS = _Kind(
    TRANSACTION_TOPIC,
    "ids_cell",
    KeysPhase.IDS_CLEARING,
    KeysPhase.IDS_COPYING,
    (KeysPhase.IDS_CLEARING, KeysPhase.IDS_COPYING),
    "transactional ids",
    "; `tidelog transactions doctor` shows transactions that lack markers",
)
_GROUPS = _Kind(
    GROUP_TOPIC,
    "keys_cell",
    KeysPhase.CLEARING,
    KeysPhase.COPYING,
    (KeysPhase.CLEARING, KeysPhase.DRAINING, KeysPhase.HOLDING, KeysPhase.COPYING),
    "groups",
)
_IN_ORDER = (_IDS, _GROUPS)


class _Place(NamedTuple):
    """Where a topic has a tenant's keys, and where they belong; None: that cell has no range yet."""

    kind: _Kind
    topic: TopicImage
    here: KeyRange | None
    there: KeyRange | None


def key_step(image: MetadataImage, tenant: TenantImage, reports: KeyReports, now_s: float) -> KeyStep:
    """The next step of a tenant's keys towards the cell where it lives."""
    away = [place for place in _places(image, tenant) if place.here != place.there]
    if tenant.keys_phase is not KeysPhase.SETTLED:
        place = next((place for place in away if tenant.keys_phase in place.kind.phases), None)
        if tenant.keys_target != tenant.home or place is None or place.here is None or place.there is None:
            return _changed(tenant, keys_phase=KeysPhase.SETTLED, keys_target=None)  # the move was cancelled
        if tenant.keys_phase in _DRAINS:
            return _drained(image, tenant, reports, now_s)
        follow = _cleared if tenant.keys_phase is place.kind.clearing else _copied
        return follow(image, tenant, place, reports, now_s)
    if not away:
        return KeyStep(settled=True)
    first = away[0]
    if first.there is None:
        return KeyStep(problem=f"Cell {tenant.home} has no range of {first.topic.name} yet.")
    if first.here is None:  # nowhere yet: the old cell never got a range
        return _changed(tenant, **{first.kind.cell_field: tenant.home})
    epoch = tenant.keys_epoch + 1
    return _changed(tenant, keys_phase=first.kind.clearing, keys_target=tenant.home, keys_epoch=epoch)


def _cleared(image: MetadataImage, tenant: TenantImage, place: _Place, reports: KeyReports, now_s: float) -> KeyStep:
    """What follows CLEARING. Before `IDS_LEVEL` there may be brokers that know neither DRAINING nor HOLDING."""
    kind, topic = place.kind, place.topic
    partitions = [*_indexes(place.there), *_indexes(place.here)]
    leaderless = [index for index in partitions if topic.partitions[index].leader < 0]
    if leaderless:
        return KeyStep(problem=f"{_named(topic, leaderless)}, which its {kind.keys} need, have no leader.")
    missing = reports.missing(tenant, topic.topic_id, partitions if kind is _IDS else _indexes(place.there))
    if missing:
        problem = f"{_named(topic, missing)} are not ready for its {kind.keys}{kind.hint}."
        return KeyStep(problem=problem if reports.fences.is_late(tenant, now_s) else "")
    if not reports.fences.may_begin(tenant, now_s):
        return KeyStep(problem=f"Its {kind.keys} are handed over later: the last attempt took too long.")
    if kind is _IDS or image.features.get(TIDELOG_VERSION, 0) < IDS_LEVEL:
        return _changed(tenant, keys_phase=kind.copying)
    if reports.drains.may_begin(tenant, now_s):
        return _changed(tenant, keys_phase=KeysPhase.DRAINING)
    return KeyStep(problem="Its groups wait for a transaction that keeps a group's offsets for long.")


def _copied(image: MetadataImage, tenant: TenantImage, place: _Place, reports: KeyReports, now_s: float) -> KeyStep:
    """What follows COPYING: the new range serves, or after a while the old one again. Brokers then clear the new range
    in the next attempt's epoch, and take nothing more of this one's."""
    kind, topic = place.kind, place.topic
    missing = reports.missing(tenant, topic.topic_id, _indexes(place.here))
    if not missing:
        cells = {kind.cell_field: tenant.keys_target}
        return _changed(tenant, keys_phase=KeysPhase.SETTLED, keys_target=None, **cells)
    problem = f"{_named(topic, missing)} have not handed its {kind.keys} over{kind.hint}."
    if reports.fences.is_overdue(tenant, now_s):
        step = _changed(tenant, keys_phase=kind.clearing, keys_epoch=tenant.keys_epoch + 1)
        return msgspec.structs.replace(step, problem=problem)
    return KeyStep(problem=problem if reports.fences.is_late(tenant, now_s) else "")


def _indexes(held: KeyRange | None) -> range:
    return range(0) if held is None else range(held.first, held.end)


def _named(topic: TopicImage, indexes: Sequence[int]) -> str:
    some = ", ".join(map(str, indexes[:NAMED_MAX]))
    return f"Partitions {some}{', …' if len(indexes) > NAMED_MAX else ''} of {topic.name}"


def _drained(image: MetadataImage, tenant: TenantImage, reports: KeyReports, now_s: float) -> KeyStep:
    """What follows DRAINING or HOLDING: the fence, or another attempt. Reports of an earlier phase count no more."""
    ids = image.topics.get(TRANSACTION_TOPIC)
    held = None if ids is None else range_for(ids, tenant)
    is_draining, drains = tenant.keys_phase is KeysPhase.DRAINING, reports.drains
    next_phase = None
    if ids is None or held is None or not reports.missing(tenant, ids.topic_id, _indexes(held)):
        if is_draining:
            return _changed(tenant, keys_phase=KeysPhase.COPYING)
        next_phase = KeysPhase.DRAINING
    elif drains.is_overdue(tenant, now_s):
        next_phase = KeysPhase.HOLDING if is_draining and not drains.has_held(tenant) else KeysPhase.CLEARING
    if next_phase is None:
        return KeyStep()
    return _changed(tenant, keys_phase=next_phase, keys_epoch=tenant.keys_epoch + 1)


def keys_are_home(image: MetadataImage, tenant: TenantImage) -> bool:
    places = _places(image, tenant)
    return tenant.keys_phase is KeysPhase.SETTLED and all(place.here == place.there for place in places)


def _places(image: MetadataImage, tenant: TenantImage) -> list[_Place]:
    names = keyed_topics(image)
    kinds = [(kind, image.topics.get(kind.topic)) for kind in _IN_ORDER if kind.topic in names]
    return [
        _Place(kind, topic, range_for(topic, tenant), range_at(topic, tenant, tenant.home))
        for kind, topic in kinds
        if topic is not None
    ]


def _changed(tenant: TenantImage, **fields: object) -> KeyStep:
    return KeyStep(msgspec.structs.replace(tenant.record(), epoch=tenant.epoch + 1, **fields))
