"""What one seed runs: its cluster, its load and its faults, as plain values."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from kraft.topic_names import GROUP_TOPIC, TIER_TOPIC
from tests.sim import nemesis
from tests.sim.cluster_settings import CONTROLLER_COUNT, MIN_INSYNC, broker_name, controller_name
from tests.sim.history import TopicPartition
from tests.sim.nemesis import Fault, Targets
from tests.sim.tenants import BROKERS as TENANTS_BROKERS
from tests.sim.tenants import GROUP as TENANTS_GROUP
from tests.sim.tenants import TOPIC as TENANTS_TOPIC
from tests.sim.world import World

TOPIC, GROUP = "t", "g"
MOVES_SHARE = 0.3
TENANT_SHARE = 0.25  # of those with neither moves nor a tier
LEAVES_SHARE = 0.5  # of those where nothing else takes records
TIER_SHARE = 0.5
PEEKS_SHARE = 0.25
HEALTH_SHARE = 0.2
STUCK_SHARE = 0.1
LONG_PAUSE_S = 0.4  # a run that lasts a minute has no more records than others
FAULTS_MS = 4_500
SMALL_CHUNK_BYTES = 700


@dataclass(frozen=True, slots=True)
class TierPlan:
    """How the topic is tiered. `unclean`: replicas that lost what was acknowledged may lead it all the same."""

    segment_bytes: int
    local_bytes: int
    total_bytes: int  # -1: all is kept
    chunk_bytes: int
    doomed_topic: bool = False
    deletes_records: bool = False
    rewrites: bool = False  # a job replaces segments
    unclean: bool = False
    switches: bool = False  # copying is disabled and enabled again
    leaves: bool = False  # tiering is; then no record goes but with the tier

    @property
    def topic_configs(self) -> dict[str, str]:
        configs = {
            "remote.storage.enable": "true",
            "segment.bytes": str(self.segment_bytes),
            "index.interval.bytes": "256",
            "local.retention.bytes": str(self.local_bytes),
            "retention.bytes": str(self.total_bytes),
        }
        if self.unclean:
            configs |= {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
        return configs


@dataclass(frozen=True, slots=True)
class Plan:
    """One seed's cluster, load and faults."""

    seed: int
    brokers: int
    partitions: int
    flushes_each: bool
    segment_bytes: int
    racks: bool
    snapshots: bool
    pause_s: float  # of producers, between two rounds
    faults: tuple[Fault, ...]
    ambush: bool = False
    moves: bool = False  # an operator moves replicas about
    tier: TierPlan | None = None
    peeks: bool = False  # a client that is no member reads the group's offsets
    health: bool = False  # the controllers look after sick brokers, and find them soon
    watched: bool = False  # each broker has a storage watchdog
    tenant: bool = False  # topic and group are a tenant's, who moves from one cell of three brokers to another

    @property
    def piece(self) -> int:
        """How many partitions the controllers change in one commit: one, two or all that an event concerns."""
        return (1, 2, 500)[self.seed % 3]

    @property
    def topic(self) -> str:
        return TENANTS_TOPIC if self.tenant else TOPIC

    @property
    def group(self) -> str:
        return TENANTS_GROUP if self.tenant else GROUP

    @property
    def broker_names(self) -> list[str]:
        return [broker_name(broker) for broker in range(self.brokers)]

    @property
    def topic_configs(self) -> dict[str, str]:
        configs = {"min.insync.replicas": str(MIN_INSYNC), "segment.bytes": str(self.segment_bytes)}
        configs |= {"flush.messages": "1"} if self.flushes_each else {}
        return configs | (self.tier.topic_configs if self.tier is not None else {})

    @property
    def lasting(self) -> list[Fault]:
        """The faults that go on when all others are healed."""
        return [fault for fault in self.faults if fault.at_ms + fault.duration_ms > FAULTS_MS]

    @property
    def loses_data(self) -> bool:
        return self.tier is not None and self.tier.unclean

    @property
    def topic_partitions(self) -> list[TopicPartition]:
        return [(self.topic, index) for index in range(self.partitions)]

    @property
    def moved_partitions(self) -> list[TopicPartition]:
        tier = [(TIER_TOPIC, 0)] if self.tier is not None else []
        return [*self.topic_partitions, (GROUP_TOPIC, 0), *tier]


def draw_plan(seed: int) -> Plan:
    rng = World(seed).stream("plan")
    moves = World(seed).stream("moves").random() < MOVES_SHARE
    tier = draw_tier(World(seed).stream("tier"))
    tenant = not moves and tier is None and World(seed).stream("tenants").random() < TENANT_SHARE
    brokers = 4 if rng.random() < 0.15 or moves else 3
    brokers = TENANTS_BROKERS if tenant else brokers
    names = [broker_name(broker) for broker in range(brokers)]
    controllers = [controller_name(number) for number in range(CONTROLLER_COUNT)]
    targets = Targets(
        crashable=[*names, *names, *controllers],
        linked=[*names, *names, *controllers, "producer", "consumer", "members"],
    )
    peeks = World(seed).stream("peeks").random() < PEEKS_SHARE
    flushes_each = rng.random() < 0.15
    segment_bytes = rng.choice((4_096, 16_384, 1 << 20))
    racks, snapshots = rng.random() < 0.3, rng.random() < 0.3
    pause_s = rng.choice((0.06, 0.12, 0.2))
    faults = nemesis.draw(rng, targets, 0, FAULTS_MS)
    if tier is not None:
        pause_s = min(pause_s, 0.12)
        faults = sorted(faults + nemesis.draw_store(World(seed).stream("store faults"), 0, FAULTS_MS))
    health = World(seed).stream("health")
    is_cared_for = health.random() < HEALTH_SHARE
    if is_cared_for:
        faults = sorted(faults + nemesis.draw_health(health, names, FAULTS_MS))
    stuck = World(seed).stream("stuck disk")
    is_watched = stuck.random() < STUCK_SHARE
    if is_watched:
        pause_s = LONG_PAUSE_S
        faults = sorted(faults + nemesis.draw_stuck(stuck, names, FAULTS_MS))
    return Plan(
        seed,
        brokers,
        2,
        flushes_each,
        segment_bytes,
        racks,
        snapshots,
        pause_s,
        tuple(faults),
        moves=moves,
        tier=tier,
        peeks=peeks,
        health=is_cared_for,
        watched=is_watched,
        tenant=tenant,
    )


def draw_tier(rng: random.Random) -> TierPlan | None:
    """Half of the seeds have a tier."""
    if rng.random() >= TIER_SHARE:
        return None
    local_bytes = rng.choice((1_024, 2_048, 6_000))
    tier = TierPlan(
        segment_bytes=rng.choice((1_024, 2_048)),
        local_bytes=local_bytes,
        total_bytes=rng.choice((-1, -1, local_bytes + 6_000, local_bytes + 12_000)),
        chunk_bytes=rng.choice((SMALL_CHUNK_BYTES, 1 << 16)),
        doomed_topic=rng.random() < 0.4,
        deletes_records=rng.random() < 0.4,
        rewrites=rng.random() < 0.5,
    )
    keeps_all = tier.total_bytes == -1 and not tier.deletes_records
    return replace(tier, leaves=keeps_all and rng.random() < LEAVES_SHARE)
