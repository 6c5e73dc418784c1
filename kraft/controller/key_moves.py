"""The move of a tenant's groups to the range of its new cell, step by step. No I/O.

In CLEARING, each leader of the target range removes what an earlier attempt may have left. COPYING is the fence: a
broker that knows of it no longer serves the tenant's groups, so each leader of the old range can then hand over
everything that was ever committed. When all have done so, the groups are served in the new range. A leader that is
elected later knows of the fence, because it knows of its election, and a deposed leader commits nothing; so the step
ends when each partition's current leader has reported. Until the last step the old range has everything, and a move may
be cancelled at any time.
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
    """A broker's report on one tenant: the phase is done in the partitions (index, leader epoch) that it leads."""

    tenant_id: str
    keys_epoch: int
    phase: int
    partitions: tuple[tuple[int, int], ...]


class KeyReports(Struct):
    """The leaders' reports. Soft state of the active controller; brokers repeat them."""

    _done: dict[tuple[str, int, int], dict[int, None]] = field(default_factory=dict)

    def restart(self) -> None:
        self._done.clear()

    def take(self, image: MetadataImage, broker_id: int, topic_id: bytes, reports: Iterable[Report]) -> None:
        """Accept reports only from current leaders, and only for the tenant's current phase."""
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
    """`record`: what to commit now. `settled`: the groups are in the tenant's cell, nothing is left to do."""

    record: TenantRecord | None = None
    settled: bool = False
    problem: str = ""


def key_step(image: MetadataImage, tenant: TenantImage, reports: KeyReports) -> KeyStep:
    """The next step of a tenant's groups towards the cell where it lives."""
    topic = image.topics.get(GROUP_TOPIC)
    here, there = _places(topic, tenant)
    is_settled = tenant.keys_phase is KeysPhase.SETTLED
    if not is_settled and (tenant.keys_target != tenant.home or here is None or there is None or here == there):
        return KeyStep(_changed(tenant, keys_phase=KeysPhase.SETTLED, keys_target=None))  # the move was cancelled
    if here == there:
        return KeyStep(settled=True)
    if there is None:
        return KeyStep(problem=f"Cell {tenant.home} has no range of {GROUP_TOPIC} yet.")
    if here is None:  # nowhere yet: the old cell never got a range
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
    """The current range of the groups, and the one where they belong."""
    if topic is None:
        return None, None
    return range_for(topic, tenant), range_at(topic, tenant, tenant.home)


def _changed(tenant: TenantImage, **fields: object) -> TenantRecord:
    return msgspec.structs.replace(tenant.record(), epoch=tenant.epoch + 1, **fields)
