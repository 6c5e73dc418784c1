"""Producers of both protocols go on in a random play while their tenant's ids and groups go to another cell.

Brokers lag, die, are deposed and are asked twice."""

from __future__ import annotations

from typing import Any, NamedTuple

from broker.coordination.groups.moving_groups import MovingGroups
from broker.coordination.shard import CoordinatorRecord, Now
from broker.coordination.transactions.config import TransactionConfig, TransactionLimits
from broker.coordination.transactions.coordinator_epochs import coordinator_epoch
from broker.coordination.transactions.moving_ids import MovingIds
from broker.coordination.transactions.records import decode_value
from broker.coordination.transactions.transaction_shard import TransactionShard
from broker.coordination.transactions.values import (
    NEEDS_ID,
    AddPartitions,
    EndTransaction,
    InitProducer,
    MarkersToWrite,
    Producer,
)
from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from kraft.controller.key_fences import FENCED
from kraft.image.key_ranges import range_for
from kraft.records import KeysPhase
from kraft.topic_names import GROUP_TOPIC, TRANSACTION_TOPIC
from records.batch import BatchHeader, read_header, stamp
from records.control import EndMarker, MarkerKind, build_marker
from storage.producers.producer_state import ProducerStates
from tests.broker.moving_world import MovingWorld, Place
from tests.kraft.tenants import created

CONFIG = TransactionConfig()
IDS = [f"t{number}" for number in range(3)]
TOPIC = "flights"
FATAL = (
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED,
)
"""What no client may meet, and no coordinator that leads."""


class Client:
    """The only producer of a transactional id. It repeats what was not answered."""

    def __init__(self, name: str, *, new_protocol: bool) -> None:
        self.name = name
        self.group = f"{name}-group"
        self.new_protocol = new_protocol
        self.producer: Producer | None = None
        self.begun = False  # the coordinator may have its transaction
        self.partitions: dict[Place, None] = {}  # in which it has written
        self.writing: str | None = None  # topic of the partition that it is about to write to
        self.added = False  # an old client's group has joined the transaction
        self.ending: bool | None = None


class Sent(NamedTuple):
    """Markers that a broker carries, as the leader of a coordinator's partition in that epoch."""

    broker: int
    place: Place
    leader_epoch: int
    markers: MarkersToWrite


class IdWorld(MovingWorld):
    kinds = (MovingGroups(), MovingIds())
    topics = (GROUP_TOPIC, TRANSACTION_TOPIC)

    def __init__(self, seed: int) -> None:
        self.logs: dict[Place, list[CoordinatorRecord]] = {}
        self.sent: list[Sent] = []
        self.next_id = 100
        self.given: dict[Producer, str] = {}
        self.decided: dict[Producer, bool] = {}  # producers of transactions whose end was acknowledged
        self.producers: dict[Place, ProducerStates] = {}  # of the partitions that transactions write to
        self.offsets: dict[Place, int] = {}
        super().__init__(seed)
        image, reply = created(self.image, "b", cell="east", seed=7)
        self.images.append(image)
        prefixes = (self.tenant_id, reply.tenant_id)
        names = [f"{prefix}_{name}" for prefix in prefixes for name in IDS]
        self.clients = [Client(name, new_protocol=number % 2 == 0) for number, name in enumerate(names)]

    # coordinators ------------------------------------------------------------------------------------------

    def make_shard(self, topic: str, index: int) -> Any:
        return _NoGroups() if topic == GROUP_TOPIC else self.loaded((topic, index))

    def loaded(self, place: Place) -> TransactionShard:
        limits = TransactionLimits()
        keeping_of = self.keeping_of(*place)
        shard = TransactionShard(
            CONFIG, lambda: 2, lambda _: limits, keeping_of, lambda _, __: None, self.keys_phase_of
        )  # fmt: skip
        log = self.logs.setdefault(place, [])
        assert not shard.replay_all([(record.key, record.value) for record in log])
        shard.loaded(self.now)
        return shard

    def keys_phase_of(self, name: str) -> KeysPhase:
        tenant = self.acting_image().tenants.owner(name)
        return KeysPhase.SETTLED if tenant is None else tenant.keys_phase

    def controller(self) -> None:
        """Some transactions keep their offsets for too long, and some fences last for too long."""
        chance = dict.fromkeys(SLOW, 0.5) | dict.fromkeys(FENCED, 0.1)
        if self.random.random() < chance.get(self.tenant.keys_phase, 0):
            self.pass_s(SLOW_S)
        super().controller()

    def elect(self, place: Place) -> None:
        super().elect(place)
        if place[0] == TRANSACTION_TOPIC:
            self.shards[place] = self.loaded(place)
            self.timers(place)

    def timers(self, place: Place) -> None:
        """The leader's: what is open is taken up, and leftovers are removed."""
        leader = self.partition(place).leader

        def act(shard: TransactionShard, now: Now) -> Decision[CoordinatorRecord, None]:
            records: list[CoordinatorRecord] = []
            for _ in range(20):
                due = shard.next_deadline()
                if records or due is None or due > now.monotonic_s + 0.01:
                    break
                records += shard.expire(now._replace(monotonic_s=due))
            return Decision(None, records)

        if place[0] == TRANSACTION_TOPIC:
            self.append(leader, place, act)
            self.take_acts(place)

    def replay(self, place: Place, records: list[Any]) -> None:
        super().replay(place, records)
        if place[0] == TRANSACTION_TOPIC:
            self.logs[place] += records
            self.take_acts(place)

    def take_acts(self, place: Place) -> None:
        partition = self.partition(place)
        for act in self.shards[place].take_acts():
            assert isinstance(act, MarkersToWrite)
            self.sent.append(Sent(partition.leader, place, partition.leader_epoch, act))

    # clients -----------------------------------------------------------------------------------------------

    def client(self) -> None:
        self.step(self.random.choice(self.clients))
        if self.random.random() < 0.5:
            self.write_markers()
            self.now = self.now._replace(monotonic_s=self.now.monotonic_s + 0.02)

    def step(self, client: Client) -> None:
        """What is not answered, or answered with an error that clients repeat, is repeated."""
        if client.producer is None:
            request = InitProducer(client.name, 60_000)
            reply = self.asked(client, lambda shard, now, fresh: shard.init_producer_id(request, fresh, now))
            if isinstance(reply, Producer):
                self.got(client, reply)
        elif client.writing is not None:
            self.write(client, client.producer)
        elif client.ending is not None:
            self.end(client, client.producer, commit=client.ending)
        elif client.partitions and self.random.random() < 0.4:
            client.ending = self.random.random() < 0.7
        else:
            client.writing = TOPIC if self.random.random() < 0.6 else GROUP_TOPIC

    def write(self, client: Client, producer: Producer) -> None:
        """A partition joins the transaction, and gets a batch. An old client has a group's partition join in a request
        of its own, and then sends the offsets, wherever the group is by then."""
        if client.writing == TOPIC:
            place = TOPIC, self.random.randrange(3)
        else:
            found = self.serving(GROUP_TOPIC, client.group)
            if found is None:
                return
            place = GROUP_TOPIC, found[1]
        client.begun = True
        if place[0] == TOPIC or client.new_protocol or not client.added:
            if place not in client.partitions and not self.joined(client, producer, place):
                return
            if place[0] == GROUP_TOPIC and not client.new_protocol:
                client.added = True
                return
        elif place not in client.partitions and not self.verified(client, producer, place):
            return
        client.partitions[place] = None
        client.writing = None
        self.producers_of(place).update(_batch(self.next_offset(place), producer))

    def joined(self, client: Client, producer: Producer, place: Place) -> bool:
        request = AddPartitions(client.name, *producer, {place[0]: (place[1],)}, client.new_protocol)
        return self.asked(client, lambda shard, now, _: shard.add_partitions(request, now)) is ErrorCode.NONE

    def verified(self, client: Client, producer: Producer, place: Place) -> bool:
        def act(shard: TransactionShard, now: Now, _: int | None) -> Decision[CoordinatorRecord, Any]:
            return Decision(shard.verify_partitions(client.name, *producer, (place,)))

        reply = self.asked(client, act)
        assert reply in (None, (ErrorCode.NONE,)), "a group went while a transaction was to send offsets to it"
        return reply is not None

    def end(self, client: Client, producer: Producer, *, commit: bool) -> None:
        request = EndTransaction(client.name, *producer, commit, client.new_protocol)
        reply = self.asked(client, lambda shard, now, fresh: shard.end(request, fresh, now))
        if isinstance(reply, Producer):
            self.decided[reply if client.new_protocol else producer] = commit
            client.partitions.clear()
            client.begun = client.added = False
            client.ending = None
            if client.new_protocol:
                self.got(client, reply)

    def got(self, client: Client, producer: Producer) -> None:
        assert self.given.setdefault(producer, client.name) == client.name
        last = client.producer
        if last is not None and last.producer_id == producer.producer_id:
            assert producer.producer_epoch > last.producer_epoch
        client.producer = producer

    def asked(self, client: Client, decide: Any) -> Any:
        """The reply; None if there is none."""
        found = self.serving(TRANSACTION_TOPIC, client.name)
        if found is None:
            return None
        broker, index = found

        def act(shard: TransactionShard, now: Now) -> Any:
            decision = decide(shard, now, None)
            if decision.reply is NEEDS_ID:
                self.next_id += 1
                decision = decide(shard, now, self.next_id)
            return decision

        try:
            reply = self.append(broker, (TRANSACTION_TOPIC, index), act)
        except ProtocolError as error:
            if error.code in FATAL:
                raise AssertionError(f"{client.name} fails with {error.code.name}") from error
            return None
        if self.random.random() < 0.1:
            return None  # it is lost
        return ErrorCode.NONE if reply is None else reply

    # partition leaders -------------------------------------------------------------------------------------

    def producers_of(self, place: Place) -> ProducerStates:
        return self.producers.setdefault(place, ProducerStates(2**60, 1_000))

    def next_offset(self, place: Place) -> int:
        self.offsets[place] = self.offsets.get(place, -1) + 1
        return self.offsets[place]

    def write_markers(self) -> None:
        """One transaction's, by the broker that leads its coordinator as far as it knows."""
        if not self.sent:
            return
        sent = self.sent.pop(self.random.randrange(len(self.sent)))
        known = self.partition(sent.place, sent.broker)
        if (known.leader, known.leader_epoch) != (sent.broker, sent.leader_epoch):
            return
        leads = self.partition(sent.place).leader_epoch == sent.leader_epoch
        markers = sent.markers
        epoch = coordinator_epoch(sent.leader_epoch, markers.epoch_floor)
        for topic, indexes in markers.partitions.items():
            for index in indexes:
                try:
                    self.write_marker((topic, index), markers, epoch)
                except ProtocolError as error:
                    if leads:
                        raise AssertionError(f"a marker is refused: {error.code.name}") from error
                    return

        def complete(shard: TransactionShard, now: Now) -> Decision[CoordinatorRecord, None]:
            return shard.complete([markers], now)

        if leads and self.random.random() < 0.9:
            self.append(sent.broker, sent.place, complete)
        elif leads:
            self.sent.append(sent)  # the completion was not recorded; it is repeated

    def write_marker(self, place: Place, markers: MarkersToWrite, epoch: int) -> None:
        producers = self.producers_of(place)
        producer = Producer(markers.producer_id, markers.producer_epoch)
        if markers.new_protocol:  # in the old one, many transactions have the same epoch
            decided = self.decided.get(producer, markers.commit)
            assert decided == markers.commit, "a transaction ended otherwise than was acknowledged"
        if producers.check_marker(*producer, epoch, exceeds=markers.new_protocol):
            kind = MarkerKind.COMMIT if markers.commit else MarkerKind.ABORT
            marker = EndMarker(kind, epoch, 0)
            batch = build_marker(*producer, marker)
            stamp(batch, 0, self.next_offset(place), 0)
            producers.update(read_header(batch, 0), marker)

    # what must be true -------------------------------------------------------------------------------------

    def check(self) -> None:
        """While groups are behind their fence, no transaction has a partition of theirs."""
        if self.tenant.keys_phase is not KeysPhase.COPYING:
            return
        held = range_for(self.image.topics.by_name[TRANSACTION_TOPIC], self.tenant)
        assert held is not None
        for index in range(held.first, held.end):
            shard = self.shards[TRANSACTION_TOPIC, index]
            for name in shard.open.with_prefix(self.tenant.prefix):
                value = decode_value(shard.committed[name])
                assert GROUP_TOPIC not in value.partitions, "a transaction has offsets of a group that moves"

    async def settle(self) -> None:
        await super().settle()
        for _ in range(300):
            for client in self.clients:
                if client.begun and client.ending is None:
                    client.ending = True
                if client.ending is not None:
                    self.step(client)
            for broker in self.brokers:
                while self.seen[broker] < len(self.images) - 1:
                    self.catch_up(broker)
            for _ in range(3):
                self.write_markers()
        assert not any(client.begun for client in self.clients), "a client never ends"
        assert not self.sent
        assert all(states.first_undecided_offset is None for states in self.producers.values())


class _NoGroups:
    """A shard of `__consumer_offsets` without any: what is pending is the transaction coordinators' business here."""

    def __init__(self) -> None:
        self.pending = self

    def groups(self, prefix: str) -> list[str]:
        return []

    def names(self, prefixes: tuple[str, ...]) -> Any:
        return iter(())

    def keeping_changed(self, prefix: str, now: Now) -> list[CoordinatorRecord]:
        return []

    def remove_groups(self, prefixes: tuple[str, ...], most: int, now: Now) -> Decision[CoordinatorRecord, int]:
        return Decision(0)


def _batch(offset: int, producer: Producer) -> BatchHeader:
    transactional = 1 << 4
    return BatchHeader(offset, 100, 0, 2, 0, transactional, 0, 0, 0, *producer, 0, 1)


async def play(seed: int, steps: int, world_of: type[IdWorld] = IdWorld) -> IdWorld:
    world = world_of(seed)
    chance = world.random
    for _ in range(steps):
        act = chance.choice(OFTEN * 3 + RARE if chance.random() < 0.5 else OFTEN)
        broker = chance.randrange(6)
        if act == "client":
            world.client()
        elif act == "markers":
            world.write_markers()
        elif act == "timers":
            world.timers(chance.choice(list(world.shards)))
        else:
            await world.act(act, broker)
        world.check()
    await world.settle()
    return world


SLOW, SLOW_S = (KeysPhase.CLEARING, KeysPhase.DRAINING, KeysPhase.HOLDING), 6.0
OFTEN = [
    "see", "see", "client", "client", "client", "client", "markers", "markers", "work", "work", "report",
    "controller",
]  # fmt: skip
RARE = ["restart", "elect", "move", "timers", "wait"]
