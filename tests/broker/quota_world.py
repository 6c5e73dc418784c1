"""Brokers of one cell that report their tenants' use to a controller, and act on the shares that it answers.

There is no network: a report is handled at once, unless a test says that it or its response is lost. Time is the
world's own. A broker holds clients exactly to the tenant's bound, and counts those seconds as waited in which it does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from broker.quotas.tenant_bounds import NO_BOUND, TenantBound
from broker.quotas.tenant_shares import TenantShares
from common.errors import ProtocolError
from common.node_settings.shares import ShareSettings
from common.node_settings.tenants import TenantSettings
from common.pacing import at_once
from kraft.batches import MetadataRecord
from kraft.controller.quota_coordinator import SWITCH, QuotaCoordinator
from kraft.controller.reported_usage import ReportedUsage
from kraft.controller.usage_rates import Verdict
from kraft.image.configs import CLUSTER_DEFAULT
from kraft.image.delta import MetadataDelta, replayed
from kraft.image.metadata import MetadataImage
from kraft.image.tenants import CONNECTIONS_MAX, INGRESS
from kraft.records import BrokerRegistrationChangeRecord, ConfigRecord, ResourceType, TenantRecord, TenantState
from storage.audit.audit_trail import Act
from tests.kraft.images import POLICY
from tests.kraft.tenants import cells_of_three
from tests.kraft.usage_reports import report, tenant_row
from wire.messages import ReportUsageResponse

A, B = "lkc-aaaaaa", "lkc-bbbbbb"
QUOTA = 9_000_000
CONNECTIONS = 9
INTERVAL_S = 5.0
RULES = ShareSettings()


class Trail:
    """Events are durable at once."""

    def __init__(self) -> None:
        self.acts: list[Act] = []

    def note(self, event: str, /, **fields: object) -> None: ...

    def announce(self, act: Act) -> None:
        self.acts.append(act)

    def permits(self, act: Act) -> bool:
        return act in self.acts

    def when_durable(self, callback: Any) -> None:
        callback()


class WorldBroker:
    """One broker: what its tenants' clients want to send per second, and what has been sent since its start."""

    def __init__(self, world: QuotaWorld, broker_id: int) -> None:
        self.world = world
        self.broker_id = broker_id
        self.offered: dict[str, int] = {}
        self.sent: dict[str, int] = {}
        self.waited_ms: dict[str, int] = {}
        self.connections: dict[str, int] = {}
        self.bounds: dict[str, TenantBound] = {}
        self.round = 0
        self.trail = Trail()
        self.began_s = world.now - INTERVAL_S
        self.shares = TenantShares(
            self, lambda: world.image, lambda: world.now, RULES, TenantSettings(), self.trail, broker_id
        )

    def bound_tenant(self, tenant: str, reason: str, bound: TenantBound) -> None:
        self.bounds[tenant] = bound

    def served(self, tenant: str) -> int:
        """Bytes per second that get through."""
        bound = self.bounds.get(tenant, NO_BOUND).ingress
        return self.offered.get(tenant, 0) if bound is None else min(self.offered.get(tenant, 0), int(bound))

    def serve(self, seconds: float) -> None:
        for tenant, offered in self.offered.items():
            served = self.served(tenant)
            self.sent[tenant] = self.sent.get(tenant, 0) + int(served * seconds)
            if served < offered:
                self.waited_ms[tenant] = self.waited_ms.get(tenant, 0) + int(seconds * 1000)

    def report(self, *, heard: bool = True, answered: bool = True, doubled: bool = False) -> None:
        """A round of one piece; `heard` by the controller, `answered` to the broker."""
        world, sent_s = self.world, self.world.now
        self.round += 1
        named = list(dict.fromkeys((*self.offered, *self.connections, *self.shares.held())))
        rows = []
        for tenant in named:
            held, waited = self.shares.of(tenant), self.waited_ms.get(tenant, 0)
            row = tenant_row(tenant, self.sent.get(tenant, 0), connections=self.connections.get(tenant, 0))
            row.ingress_share, row.egress_share, row.busy_share = held[:3]
            row.throttled = [row.ThrottledTime(reason="share", ms=waited)] if waited else []
            rows.append(row)
        epoch = world.image.brokers[self.broker_id].epoch
        uptime_ms = int((sent_s - self.began_s) * 1000)
        request = report(self.broker_id, epoch, self.round, uptime_ms, bytes_in=sum(self.sent.values()), tenants=rows)
        answers = [world.answer(request) for _ in range(1 + doubled)] if heard else [None]
        if doubled:  # the response that arrives is the second one
            assert answers[1] is not None and answers[1].keep
        if answers[-1] is not None and answered:
            self.shares.take(named, answers[-1])
        is_taken = answers[-1] is not None and answered
        at_once(self.shares.answered(sent_s if is_taken else -1.0, () if is_taken else named))


class QuotaWorld:
    def __init__(self, **limits: int) -> None:
        tenants = [TenantRecord(A, "a", "east", 0, limits or {INGRESS: QUOTA}), TenantRecord(B, "b", "east", 0)]
        self.image: MetadataImage = replayed(cells_of_three(), tenants)
        self.now = 1_000.0
        self.usage = ReportedUsage(INTERVAL_S)
        self.coordinator = QuotaCoordinator(self.usage, POLICY, RULES)
        self.coordinator.restart(self.now - 1_000)
        self.brokers = {broker: WorldBroker(self, broker) for broker in range(6)}
        self.silent: set[int] = set()

    @property
    def east(self) -> list[WorldBroker]:
        return [self.brokers[broker] for broker in (0, 1, 2)]

    def answer(self, request: object) -> ReportUsageResponse | None:
        try:
            verdict = self.usage.take(self.image, request, self.now)  # type: ignore[arg-type]
        except ProtocolError:
            return None
        if verdict is Verdict.REPEATED:
            return self.coordinator.kept(self.image)
        answer: ReportUsageResponse = at_once(self.coordinator.answer(self.image, request, self.now))  # type: ignore[arg-type]
        return answer

    def pass_time(self, seconds: float) -> None:
        """Every broker serves, and reports at its own moment of each interval."""
        for _ in range(int(seconds / INTERVAL_S)):
            for broker in self.brokers.values():
                broker.serve(INTERVAL_S)
            self.now += INTERVAL_S
            for broker in self.brokers.values():
                if broker.broker_id not in self.silent:
                    broker.report()

    def fail_over(self) -> None:
        """Another controller becomes active."""
        self.usage = ReportedUsage(INTERVAL_S)
        self.usage.restart(self.now)
        self.coordinator = QuotaCoordinator(self.usage, POLICY, RULES)
        self.coordinator.restart(self.now)

    def fence(self, broker: int) -> None:
        record = BrokerRegistrationChangeRecord(broker, self.image.brokers[broker].epoch, fenced=True)
        self.replay(record)
        self.silent.add(broker)

    def change_tenant(self, **changes: object) -> None:
        tenant = self.image.tenants[A]
        self.replay(replace(tenant, **changes).record())  # type: ignore[arg-type]

    def switch(self, mode: str) -> None:
        """An operator sets tidelog.quota.shares."""
        self.replay(ConfigRecord(ResourceType.BROKER, CLUSTER_DEFAULT, SWITCH, mode))

    def move(self, cell: str) -> None:
        self.change_tenant(state=TenantState.MOVING, target_cell=cell)

    def replay(self, record: MetadataRecord) -> None:
        delta = MetadataDelta(self.image)
        delta.replay_all([record])
        self.image = delta.image()
        self.usage.applied(delta, self.image)
        self.coordinator.applied(delta, self.image)
        for broker in self.brokers.values():
            broker.shares.metadata_changed(delta, self.image)

    def shares(self, tenant: str = A) -> dict[int, int]:
        """The shares of bytes in that brokers act on."""
        found = {broker.broker_id: broker.shares.of(tenant).ingress for broker in self.brokers.values()}
        return {broker: share for broker, share in found.items() if share >= 0}

    def waited_ms(self, tenant: str = A) -> int:
        return sum(broker.waited_ms.get(tenant, 0) for broker in self.brokers.values())

    def served(self, tenant: str = A) -> int:
        return sum(broker.served(tenant) for broker in self.brokers.values())


def overloaded() -> QuotaWorld:
    """Three brokers whose tenant wants all of its quota at each of them."""
    world = QuotaWorld(**{INGRESS: QUOTA, CONNECTIONS_MAX: CONNECTIONS})
    for broker in world.east:
        broker.offered[A] = QUOTA
    world.pass_time(60)
    assert sum(world.shares().values()) == QUOTA
    return world
