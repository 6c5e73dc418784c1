"""What one seed runs: its cluster, its load and its faults, as plain values."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from broker.coordination.transactions.values import LAST_EPOCH
from kraft.topic_names import GROUP_TOPIC, TIER_TOPIC, TRANSACTION_TOPIC
from tests.sim import nemesis
from tests.sim.cluster_settings import CONTROLLER_COUNT, MIN_INSYNC, broker_name, controller_name
from tests.sim.history import TopicPartition
from tests.sim.nemesis import Fault, Targets
from tests.sim.tenants import BROKERS as TENANTS_BROKERS
from tests.sim.tenants import GROUP as TENANTS_GROUP
from tests.sim.tenants import TENANT
from tests.sim.tenants import TOPIC as TENANTS_TOPIC
from tests.sim.transaction_history import Names
from tests.sim.world import World

TOPIC, GROUP = "t", "g"
MOVES_SHARE = 0.3
TENANT_SHARE = 0.25  # of those with neither moves nor a tier
TRANSACTIONS_SHARE = 0.2
LEAVES_SHARE = 0.5  # of those where nothing else takes records
TIER_SHARE = 0.5
PEEKS_SHARE = 0.25
DEATHS_SHARE = 0.3
HEALTH_SHARE = 0.2
STUCK_SHARE = 0.1
PASSING_SHARE = 0.3
RAISED_SHARE = 0.2
LONG_PAUSE_S = 0.4  # a run that lasts a minute, or has transactions, has no more records than others
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
class TransactionsPlan:
    """Who has transactions, by transactional id; its end names the protocol. `last_epoch`: the highest one that a
    client gets of a producer id."""

    writers: tuple[str, ...] = ("w-old", "w-new", "w-mixed")
    copiers: tuple[str, ...] = ("c-old", "c-new")
    last_epoch: int = LAST_EPOCH
    pause_s: float = 0.2  # of writers
    from_followers: bool = True  # one reader's rack has followers
    begins_with: int | None = None  # `transaction.version`, raised to 2 amid the run; None: it is 2
    passing_topics: bool = False  # topics are deleted while transactions write to them


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
    deaths_in_registration: bool = False  # brokers that come back die as they register
    moves: bool = False  # an operator moves replicas about
    tier: TierPlan | None = None
    peeks: bool = False  # a client that is no member reads the group's offsets
    health: bool = False  # the controllers look after sick brokers, and find them soon
    watched: bool = False  # each broker has a storage watchdog
    transactions: TransactionsPlan | None = None  # in place of the members of a group
    tenant: bool = False  # topics, groups and ids are a tenant's, who moves from one cell of three brokers to another

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
    def topics(self) -> list[str]:
        return [self.topic] if self.transactions is None else [self.names.input, self.names.output]

    @property
    def begins_with(self) -> int | None:
        """`transaction.version`, where that is raised amid the run."""
        return None if self.transactions is None else self.transactions.begins_with

    @property
    def names(self) -> Names:
        """Of what has to do with transactions."""
        return Names(f"{TENANT}_" if self.tenant else "")

    @property
    def plain_partitions(self) -> list[TopicPartition]:
        """To which a producer writes outside of transactions."""
        return [(self.topic, index) for index in range(self.partitions)]

    @property
    def topic_partitions(self) -> list[TopicPartition]:
        return [(topic, index) for topic in self.topics for index in range(self.partitions)]

    @property
    def moved_partitions(self) -> list[TopicPartition]:
        tier = [(TIER_TOPIC, 0)] if self.tier is not None else []
        transactions = [(TRANSACTION_TOPIC, 0), (TRANSACTION_TOPIC, 1)] if self.transactions is not None else []
        return [*self.topic_partitions, (GROUP_TOPIC, 0), *tier, *transactions]


def draw_plan(seed: int, *, transactions: bool | None = None) -> Plan:
    """`transactions`: whether there are, whatever the seed says."""
    rng = World(seed).stream("plan")
    moves = World(seed).stream("moves").random() < MOVES_SHARE
    tier = draw_tier(World(seed).stream("tier"))
    tenant = not moves and tier is None and World(seed).stream("tenants").random() < TENANT_SHARE
    drawn = draw_transactions(World(seed).stream("transactions"), wanted=transactions)
    if drawn is not None:
        tier = keeping_all(tier)
    brokers = 4 if rng.random() < 0.15 or moves else 3
    brokers = TENANTS_BROKERS if tenant else brokers
    names = [broker_name(broker) for broker in range(brokers)]
    targets = draw_targets(names, has_transactions=drawn is not None)
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
    is_watched = stuck.random() < STUCK_SHARE and drawn is None
    if is_watched:
        faults = sorted(faults + nemesis.draw_stuck(stuck, names, FAULTS_MS))
    if is_watched or drawn is not None:
        pause_s = LONG_PAUSE_S
    return Plan(
        seed,
        brokers,
        2,
        flushes_each,
        segment_bytes,
        racks or (drawn is not None and drawn.from_followers),
        snapshots,
        pause_s,
        tuple(faults),
        moves=moves,
        tier=tier,
        deaths_in_registration=World(seed).stream("registrations").random() < DEATHS_SHARE,
        peeks=peeks,
        health=is_cared_for,
        watched=is_watched,
        tenant=tenant,
        transactions=drawn,
    )


def draw_targets(brokers: Sequence[str], *, has_transactions: bool) -> Targets:
    controllers = [controller_name(number) for number in range(CONTROLLER_COUNT)]
    if has_transactions:
        clients = ["writers", "copiers", "readers"]
        return Targets(
            crashable=[*brokers, *brokers, *brokers, *controllers, "writers", "copiers"],
            linked=[*brokers, *brokers, *controllers, "producer", *clients],
        )
    return Targets(
        crashable=[*brokers, *brokers, *controllers],
        linked=[*brokers, *brokers, *controllers, "producer", "consumer", "members"],
    )


def draw_transactions(rng: random.Random, *, wanted: bool | None) -> TransactionsPlan | None:
    has = rng.random() < TRANSACTIONS_SHARE
    if not (has if wanted is None else wanted):
        return None
    return TransactionsPlan(
        writers=rng.choice(
            (("w-old", "w-new"), ("w-mixed", "w-new"), ("w-mixed", "w-old"), ("w-old", "w-new", "w-mixed"))
        ),
        copiers=rng.choice((("c-old", "c-new"), ("c-new",), ("c-old",), ("c-mixed", "c-new"))),
        last_epoch=rng.choice((LAST_EPOCH, LAST_EPOCH, 3, 6)),
        pause_s=rng.choice((0.15, 0.3, 0.6)),
        from_followers=rng.random() < 0.5,
        passing_topics=rng.random() < PASSING_SHARE,
        begins_with=rng.choice((0, 1)) if rng.random() < RAISED_SHARE else None,
    )


def keeping_all(tier: TierPlan | None) -> TierPlan | None:
    """The same without what takes records, which every reader is to see."""
    if tier is None:
        return None
    return replace(tier, total_bytes=-1, doomed_topic=False, deletes_records=False, rewrites=False, leaves=False)


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
