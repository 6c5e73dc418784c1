"""The groups of a tenant on their way to the range of the cell where it lives: one step after another. Pure.

CLEARING: each leader of the range where they go removes what an earlier attempt may have left there. COPYING is the
fence: a broker that knows of it no longer serves the tenant's groups, so each leader of the old range, once it knows,
can hand over everything that was ever committed. When all have, the groups are served in the new range. A leader that
is elected later knows of the fence, since it knows of its election, and one that was deposed commits nothing: so what
counts is that each partition's present leader has reported. Until the last step the old range has everything, and a
move may be taken back at any time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec
from msgspec import Struct, field

from kraft.image.key_ranges import range_at, range_for
from kraft.image.metadata import MetadataImage
from kraft.image.tenants import TenantImage
from kraft.image.topics import KeyRange, TopicImage
from kraft.records import KeysPhase, TenantRecord
from kraft.topic_names import GROUP_TOPIC


class Report(NamedTuple):
    """What a broker says of one tenant: in the partitions that it leads, (index, leader epoch), the phase is done."""

    tenant_id: str
    keys_epoch: int
    phase: int
    partitions: tuple[tuple[int, int], ...]


class KeyReports(Struct):
    """What leaders have reported. Soft state of the active controller; brokers say it again and again."""

    _done: dict[tuple[str, int, int], dict[int, None]] = field(default_factory=dict)

    def restart(self) -> None:
        self._done.clear()

    def take(self, image: MetadataImage, broker_id: int, topic_id: bytes, reports: Iterable[Report]) -> None:
        """Only the present leader's word counts, and only for what the tenant is in."""
        for report in reports:
            tenant = image.tenants.get(report.tenant_id)
            if tenant is None or (tenant.keys_epoch, tenant.keys_phase) != (report.keys_epoch, report.phase):
                continue
            done = self._done.setdefault((report.tenant_id, report.keys_epoch, report.phase), {})
            for index, leader_epoch in report.partitions:
                partition = image.partition(topic_id, index)
                if partition is not None and (partition.leader, partition.leader_epoch) == (broker_id, leader_epoch):
                    done[index] = None

    def are_complete(self, tenant: TenantImage, held: KeyRange) -> bool:
        done = self._done.get((tenant.id, tenant.keys_epoch, tenant.keys_phase), {})
        return all(index in done for index in range(held.first, held.end))

    def forget(self, tenant_id: str) -> None:
        for key in [key for key in self._done if key[0] == tenant_id]:
            del self._done[key]


class KeyStep(Struct):
    """`record`: what to commit now. `settled`: the keys are where the tenant lives, nothing is left to do."""

    record: TenantRecord | None = None
    settled: bool = False
    problem: str = ""


def key_step(image: MetadataImage, tenant: TenantImage, reports: KeyReports) -> KeyStep:
    """The next step of a tenant's keys towards the cell where it lives."""
    topic = image.topics.get(GROUP_TOPIC)
    here, there = _places(topic, tenant)
    is_settled = tenant.keys_phase is KeysPhase.SETTLED
    if not is_settled and (tenant.keys_target != tenant.home or here is None or there is None or here == there):
        return KeyStep(_changed(tenant, keys_phase=KeysPhase.SETTLED, keys_target=None))  # back to where they are
    if here == there:
        return KeyStep(settled=True)
    if there is None:
        return KeyStep(problem=f"Cell {tenant.home} has no range of {GROUP_TOPIC} yet.")
    if here is None:  # nowhere yet: its old cell never got a range
        return KeyStep(_changed(tenant, keys_cell=tenant.home))
    if is_settled:
        epoch = tenant.keys_epoch + 1
        record = _changed(tenant, keys_phase=KeysPhase.CLEARING, keys_target=tenant.home, keys_epoch=epoch)
        return KeyStep(record)
    if tenant.keys_phase is KeysPhase.CLEARING:
        if reports.are_complete(tenant, there):
            return KeyStep(_changed(tenant, keys_phase=KeysPhase.COPYING))
    elif reports.are_complete(tenant, here):
        return KeyStep(_changed(tenant, keys_phase=KeysPhase.SETTLED, keys_cell=tenant.keys_target, keys_target=None))
    return KeyStep()


def keys_are_home(image: MetadataImage, tenant: TenantImage) -> bool:
    here, there = _places(image.topics.get(GROUP_TOPIC), tenant)
    return here == there and tenant.keys_phase is KeysPhase.SETTLED


def _places(topic: TopicImage | None, tenant: TenantImage) -> tuple[KeyRange | None, KeyRange | None]:
    """Where the keys are, and where they belong."""
    if topic is None:
        return None, None
    return range_for(topic, tenant), range_at(topic, tenant, tenant.home)


def _changed(tenant: TenantImage, **fields: object) -> TenantRecord:
    return msgspec.structs.replace(tenant.record(), epoch=tenant.epoch + 1, **fields)
