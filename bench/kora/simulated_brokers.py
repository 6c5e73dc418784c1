"""Brokers that serve tenants, simulated event by event, for `bench.kora.cells`.

A broker is an event loop in turns, as ours are: a turn takes the frames that have come while the last one ran, one
after another, and answers at its end, once each, the fetches that wait for something. So the busier a broker is, the
more a turn and an answer carry. The frames are producers' requests, fetches, and at a follower its leaders' answers. A
record is for consumers once both followers have fetched beyond it.

A producer sends what it has for a broker when the oldest record has lingered, in one request for all partitions.
Fetches are sessions, so they and their answers name what moved. An exchange is a fetch with its answer: half of its
cost each.
"""

from __future__ import annotations

import heapq
import math
import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from common.loop_load import LoadMeans, LoopCounters, sample
from kraft.balancer.load_shares import WEIGHTS
from wire.loop_meter import LoopMeter

REPLICAS = 3
WARM_S = 0.6  # the meters know what a turn costs after some thousand turns


class Costs(NamedTuple):
    """Seconds of a broker's loop: for a turn, for each request or exchange, for each partition in it, for a byte; and
    cs² of a job's time."""

    turn: float
    produce: float
    produce_partition: float
    fetch: float
    fetch_partition: float
    replicate: float
    replicate_partition: float
    follow: float
    follow_partition: float
    byte_in: float = WEIGHTS.byte_in
    byte_out: float = WEIGHTS.byte_out
    variation: float = 1.0


class Given(NamedTuple):
    """`rate`: records a second of all tenants. `partitions`, `producers`, `consumers`: of each tenant. `away_s`: from
    an answer to the next fetch, network included. `one_each`: a produce request has one partition, as librdkafka's."""

    costs: Costs
    rate: float = 50_000.0
    brokers: int = 24
    tenants: int = 4
    partitions: int = 2 * 24 + 2 * 240
    producers: int = 4
    consumers: int = 4
    linger_s: float = 0.01
    record_bytes: int = 1_000
    away_s: float = 0.001
    seconds: float = 1.0
    one_each: bool = False


class Batch:
    """Records of one partition that were produced at once."""

    __slots__ = ("lacking", "partition", "size")

    def __init__(self, partition: int, size: int) -> None:
        self.partition, self.size = partition, size
        self.lacking = REPLICAS - 1  # followers


class Reader:
    """A follower or consumer at one leader. `news`: what it has not been sent. `waits`: a fetch of it is there."""

    __slots__ = ("follower", "leader", "news", "waits")

    def __init__(self, leader: int, follower: Broker | None = None) -> None:
        self.leader, self.follower = leader, follower
        self.news: list[Batch] = []
        self.waits = True


class Broker:
    """`arrived`: what each frame costs and does. `woken`: fetches to be answered at the end of this turn. `spent_s`: of
    all turns."""

    __slots__ = ("arrived", "frames", "is_busy", "meter", "spent_s", "time", "turns", "woken")

    def __init__(self) -> None:
        self.time = 0.0
        self.meter = LoopMeter(lambda: self.time)
        self.arrived: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []
        self.woken: dict[Reader, None] = {}
        self.is_busy = False
        self.turns = self.frames = 0
        self.spent_s = 0.0

    def wake(self, reader: Reader) -> None:
        if reader.waits and reader.news:
            self.woken[reader] = None


def moved(batches: Sequence[Batch]) -> int:
    """The number of partitions."""
    return len(batches) if len(batches) < 2 else len({batch.partition for batch in batches})


class Run:
    """`cell`: how many brokers serve a tenant. A partition's number is unique at its leader and tenant."""

    def __init__(self, given: Given, cell: int, seed: int) -> None:
        self._given, self._cell = given, cell
        self._rng = random.Random(seed)
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self.brokers = [Broker() for _ in range(given.brokers)]
        self.requests = dict.fromkeys(("produce", "fetch", "follower"), 0)
        self.batches = 0
        self._led = given.partitions // cell  # of a tenant, by one broker
        sigma_squared = math.log1p(given.costs.variation)
        self._mean_log, self._sigma = -sigma_squared / 2, math.sqrt(sigma_squared)
        self._followers = [self._followers_of(leader) for leader in range(given.brokers)]
        self._consumers = [self._consumers_of(tenant) for tenant in range(given.tenants)]

    def _home(self, tenant: int) -> range:
        first = tenant % (self._given.brokers // self._cell) * self._cell
        return range(first, first + self._cell)

    def _followers_of(self, leader: int) -> list[Reader]:
        first = leader // self._cell * self._cell
        others = [first + (leader - first + shift) % self._cell for shift in range(1, self._cell)]
        return [Reader(leader, self.brokers[other]) for other in others]

    def _consumers_of(self, tenant: int) -> list[list[Reader]]:
        """By leader and the partitions that it leads: the reader to which a partition's records go."""
        given, home = self._given, self._home(tenant)
        by_leader: dict[int, dict[int, Reader]] = {leader: {} for leader in home}
        found: list[list[Reader]] = [[] for _ in range(given.brokers)]
        if not given.consumers:
            return found
        owners = [number % given.consumers for number in range(given.partitions)]
        self._rng.shuffle(owners)
        for at, leader in enumerate(home):
            for owner in owners[at * self._led : (at + 1) * self._led]:
                found[leader].append(by_leader[leader].setdefault(owner, Reader(leader)))
        return found

    def _at(self, when: float, act: Callable[..., None], *words: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, act, words))

    # -- the brokers' loops

    def _arrives(self, broker: Broker, cost_s: float, act: Callable[..., None], *words: Any) -> None:
        broker.arrived.append((cost_s * self._rng.lognormvariate(self._mean_log, self._sigma), act, words))
        if not broker.is_busy:
            self._turn(broker)

    def _turn(self, broker: Broker) -> None:
        """A whole turn at once; what it sends leaves at its end."""
        broker.time, broker.is_busy = self._now, True
        arrived, broker.arrived = broker.arrived, []
        broker.meter.begin()
        broker.turns += 1
        broker.frames += len(arrived)
        for cost_s, act, words in arrived:
            broker.time += cost_s
            act(broker, *words)
            broker.meter.job()
        woken, broker.woken = broker.woken, {}
        broker.time += self._given.costs.turn + sum(self._answer_s(reader) for reader in woken)
        for reader in woken:
            self._answer(reader, broker.time)
        broker.meter.end()
        broker.spent_s += broker.time - self._now
        self._at(broker.time, self._turned, broker)

    def _turned(self, broker: Broker) -> None:
        broker.is_busy = False
        if broker.arrived:
            self._turn(broker)

    # -- producers

    def _first_record(self, tenant: int, leader: int, rate: float) -> None:
        self._at(self._now + self._given.linger_s, self._send, tenant, leader, rate)

    def _send(self, tenant: int, leader: int, rate: float) -> None:
        """What has come while the first record lingered, in as many partitions as it hits."""
        given, costs = self._given, self._given.costs
        hits: dict[int, int] = {}
        for _ in range(1 + self._poisson(rate * given.linger_s)):
            number = self._rng.randrange(self._led)
            hits[number] = hits.get(number, 0) + given.record_bytes
        batches = [Batch(number * given.tenants + tenant, size) for number, size in hits.items()]
        self.batches += len(batches)
        for some in [[batch] for batch in batches] if given.one_each else [batches]:
            self.requests["produce"] += 1
            size = sum(batch.size for batch in some)
            cost_s = costs.produce + len(some) * costs.produce_partition + size * costs.byte_in
            self._arrives(self.brokers[leader], cost_s, self._appended, leader, some)
        self._at(self._now + self._rng.expovariate(rate), self._first_record, tenant, leader, rate)

    def _poisson(self, mean: float) -> int:
        if mean > 50:
            return max(0, round(self._rng.gauss(mean, math.sqrt(mean))))
        bound, count, product = math.exp(-mean), 0, self._rng.random()
        while product > bound:
            count += 1
            product *= self._rng.random()
        return count

    def _appended(self, broker: Broker, leader: int, batches: Sequence[Batch]) -> None:
        followers = self._followers[leader]
        for batch in batches:
            at = batch.partition // self._given.tenants
            for shift in range(REPLICAS - 1):
                reader = followers[(at + shift) % len(followers)]
                reader.news.append(batch)
                broker.wake(reader)

    # -- followers and consumers

    def _answer_s(self, reader: Reader) -> float:
        costs, batches = self._given.costs, reader.news
        each, part = (
            (costs.fetch, costs.fetch_partition)
            if reader.follower is None
            else (costs.replicate, costs.replicate_partition)
        )
        return (each + moved(batches) * part) / 2 + sum(batch.size for batch in batches) * costs.byte_out

    def _answer(self, reader: Reader, when: float) -> None:
        batches, reader.news, reader.waits = reader.news, [], False
        self.requests["fetch" if reader.follower is None else "follower"] += 1
        away_s = self._given.away_s
        if reader.follower is None:
            self._at(when + away_s, self._asks, reader, batches)
        else:
            self._at(when + away_s / 2, self._answered, reader, batches)

    def _answered(self, reader: Reader, batches: Sequence[Batch]) -> None:
        """A follower has its leader's answer."""
        costs = self._given.costs
        size = sum(batch.size for batch in batches)
        cost_s = costs.follow + moved(batches) * costs.follow_partition + size * costs.byte_in
        if reader.follower is not None:
            self._arrives(reader.follower, cost_s, self._copied, reader, batches)

    def _copied(self, broker: Broker, reader: Reader, batches: Sequence[Batch]) -> None:
        self._at(broker.time + self._given.away_s / 2, self._asks, reader, batches)

    def _asks(self, reader: Reader, batches: Sequence[Batch]) -> None:
        """The next fetch, which names what came with the last answer."""
        costs = self._given.costs
        each, part = (
            (costs.fetch, costs.fetch_partition)
            if reader.follower is None
            else (costs.replicate, costs.replicate_partition)
        )
        cost_s = (each + moved(batches) * part) / 2
        self._arrives(self.brokers[reader.leader], cost_s, self._fetched, reader, batches)

    def _fetched(self, broker: Broker, reader: Reader, batches: Sequence[Batch]) -> None:
        reader.waits = True
        broker.wake(reader)
        if reader.follower is None:
            return
        tenants = self._given.tenants
        for batch in batches:
            batch.lacking -= 1
            if not batch.lacking and (readers := self._consumers[batch.partition % tenants][reader.leader]):
                consumer = readers[batch.partition // tenants]
                consumer.news.append(batch)
                broker.wake(consumer)

    # -- the whole

    def run(self) -> dict[str, Any]:
        given = self._given
        rate = given.rate / given.tenants / given.producers / self._cell  # of a producer at a broker
        for tenant in range(given.tenants):
            for _ in range(given.producers):
                for leader in self._home(tenant):
                    self._at(self._rng.expovariate(rate), self._first_record, tenant, leader, rate)
        self._until(WARM_S)
        before = [broker.meter.counters for broker in self.brokers]
        counts, batches, turns, frames = dict(self.requests), self.batches, *self._turns()
        self._until(WARM_S + given.seconds)
        loads = [self._load_of(broker.meter.counters, old) for broker, old in zip(self.brokers, before, strict=True)]
        made = {name: (count - counts[name]) / given.seconds for name, count in self.requests.items()}
        turns, frames = (now - old for now, old in zip(self._turns(), (turns, frames), strict=True))
        return {
            "cluster_load": max(load for load, _ in loads),
            "mean_load": statistics.fmean(load for load, _ in loads),
            "busy": statistics.fmean(busy for _, busy in loads),
            "produce_requests": made["produce"],
            "batches_a_request": (self.batches - batches) / given.seconds / made["produce"],
            "consumer_fetches": made["fetch"],
            "follower_fetches": made["follower"],
            "frames_a_turn": frames / turns,
        }

    def _turns(self) -> tuple[int, int]:
        return sum(broker.turns for broker in self.brokers), sum(broker.frames for broker in self.brokers)

    def _load_of(self, counters: LoopCounters, before: LoopCounters) -> tuple[float, float]:
        """A broker's load and busy share."""
        seconds, added = self._given.seconds, counters.since(before)
        one = None if added is None else sample(added, seconds)
        if one is None:
            raise RuntimeError("nothing was simulated")
        return LoadMeans().with_sample(one, seconds).load_where(0.0), one.busy

    def _until(self, end: float) -> None:
        while self._events and self._events[0][0] <= end:
            self._now, _, act, words = heapq.heappop(self._events)
            act(*words)
        self._now = end
