"""What all brokers have reported of their clients' use: soft state of the active controller.

A controller that has just become active knows nothing, and says so until every live broker has reported or had the time
to. It keeps one row for each tenant that a broker has named, and of the busiest partitions those of the last round.
"""

from __future__ import annotations

from collections import Counter

from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from common.identifiers import ZERO_UUID
from common.loop_load import LoadMeans
from common.pacing import Work
from kraft.balancer.load_shares import Traffic, replica_load, tenant_load
from kraft.batches import MetadataRecord
from kraft.controller.usage_rates import BrokerUse, Head, PartitionUse, Rates, TenantUse, Verdict
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage
from wire.messages import DescribeUsageRequest, DescribeUsageResponse, ReportUsageRequest

ROUNDS_WAITED = 3  # for a broker that is silent; then what it said before counts no longer
ROWS_AT_ONCE, ROW_COST = 50, 8  # described in one go, and units of `common.pacing` of each
UNKNOWN = -1.0
NO_RATES = Rates(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)

_Broker = DescribeUsageResponse.DescribedBrokerUsage
_Tenant = _Broker.DescribedTenantUsage


class ReportedUsage:
    """Times are seconds of one monotonic clock; `interval_s` is how often brokers report."""

    def __init__(self, interval_s: float = 5.0) -> None:
        self._waited_s = ROUNDS_WAITED * interval_s
        self._since_s = 0.0
        self._brokers: dict[int, BrokerUse] = {}
        self.verdicts: Counter[str] = Counter({verdict.value: 0 for verdict in Verdict})
        """Of all requests so far."""

    def restart(self, now: float) -> None:
        """This controller becomes active, or is so no longer."""
        self._since_s = now
        self._brokers.clear()

    def applied(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Forget brokers and tenants that are gone."""
        if not self._brokers:  # of a controller that is not active
            return
        for broker_id in delta.brokers_changed:
            use, broker = self._brokers.get(broker_id), image.brokers.get(broker_id)
            if use is not None and (broker is None or broker.epoch != use.broker_epoch):
                del self._brokers[broker_id]
        for tenant in delta.access.tenants.changed:
            if tenant not in image.tenants:
                for use in self._brokers.values():
                    use.tenants.pop(tenant, None)

    def take(self, image: MetadataImage, request: ReportUsageRequest, now: float) -> Verdict:
        """TAKEN, or REPEATED. Raises STALE_BROKER_EPOCH, and INVALID_REQUEST for what cannot be taken."""
        broker = image.brokers.get(request.broker_id)
        if broker is None or broker.epoch != request.broker_epoch:
            raise ProtocolError(ErrorCode.STALE_BROKER_EPOCH)
        use = self._brokers.get(request.broker_id)
        if use is None or use.broker_epoch != request.broker_epoch or now - use.heard_s > self._waited_s:
            # Also after a long silence: what was absurdly far ahead before does not keep the broker out for good.
            use = BrokerUse(request.broker_epoch, now)
        verdict = use.take(image, request, now)
        self.verdicts[verdict.value] += 1
        if verdict is Verdict.TAKEN:
            self._brokers[request.broker_id] = use
        elif verdict is not Verdict.REPEATED:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, verdict.value)
        return verdict

    def heard(self, broker_id: int) -> BrokerUse | None:
        """What a broker has reported, also if no round is whole yet or the last one is long ago."""
        return self._brokers.get(broker_id)

    def of_broker(self, broker_id: int, now: float) -> BrokerUse | None:
        """What a broker has reported in whole rounds, unless that is too long ago."""
        use = self._brokers.get(broker_id)
        if use is None or not use.round or now - use.heard_s > self._waited_s:
            return None
        return use

    def rates_of(self, broker_id: int, now: float) -> Rates | None:
        """A broker's own; None while they are unknown."""
        use = self.of_broker(broker_id, now)
        return None if use is None or use.head is None else use.head.rates

    def load_of(self, broker_id: int, now: float) -> float | None:
        """A broker's load, from 0 to 1; see `common.loop_load`. None while it is unknown.

        That is for the whole time that brokers have to report to a new controller, also for those that did: a mean
        over a few seconds would move tenants and leaders for a moment's peak.
        """
        means = self.means_of(broker_id, now)
        return None if means is None else means.load

    def means_of(self, broker_id: int, now: float) -> LoadMeans | None:
        """What a broker's load follows from; None while it is unknown."""
        use = None if now - self._since_s < self._waited_s else self.of_broker(broker_id, now)
        if use is None or use.head is None or not use.head.means.weight:
            return None
        return use.head.means

    def loads(self, image: MetadataImage, now: float) -> dict[int, float | None]:
        """The load of each live broker, None where it is unknown: what needs them all waits until none is."""
        return {broker.broker_id: self.load_of(broker.broker_id, now) for broker in image.unfenced_brokers()}

    def is_known(self, image: MetadataImage, now: float) -> bool:
        """Whether every live broker's rates are known, or it had the time to tell them."""
        if now - self._since_s >= self._waited_s:
            return True
        return all(self.rates_of(broker.broker_id, now) is not None for broker in image.unfenced_brokers())

    def described(self, request: DescribeUsageRequest, image: MetadataImage, now: float) -> Work[list[_Broker]]:
        """The rows of DescribeUsage, of brokers that are registered."""
        wanted = image.brokers if request.brokers is None else dict.fromkeys(request.brokers)
        rows = []
        for broker_id in wanted:
            use = self.of_broker(broker_id, now)
            if use is None or use.head is None:
                if broker_id in image.brokers:
                    rows.append(_unheard(broker_id, image.brokers[broker_id].epoch))
                continue
            means = self.means_of(broker_id, now)
            tenants: list[_Tenant] = []
            if request.include_tenants:
                tenants = yield from _tenants(use, image, means)
            partitions, topics = (use.partitions, use.topics) if request.include_partitions else ([], [])
            rows.append(_described(broker_id, use, use.head, means, now, tenants, (partitions, topics), image))
            yield (len(partitions) + len(topics)) * ROW_COST
        return rows


def describe_usage(
    image: MetadataImage, request: DescribeUsageRequest, usage: ReportedUsage, now: float
) -> Work[Decision[MetadataRecord, DescribeUsageResponse]]:
    """DescribeUsage (10018), from the active controller, whom brokers report to."""
    rows = yield from usage.described(request, image, now)
    return Decision(
        DescribeUsageResponse(error_code=0, error_message=None, is_known=usage.is_known(image, now), brokers=rows)
    )


def _unheard(broker_id: int, broker_epoch: int) -> _Broker:
    """A broker that has not reported, or not of late."""
    return _Broker(
        broker_id=broker_id,
        broker_epoch=broker_epoch,
        age_ms=-1,
        cpu_share=UNKNOWN,
        moved_rate=UNKNOWN,
        disk_used_bytes=-1,
        disk_size_bytes=-1,
        in_rate=NO_RATES.bytes_in,
        out_rate=NO_RATES.bytes_out,
        request_rate=NO_RATES.requests,
        busy_share=NO_RATES.busy,
        load=UNKNOWN,
        queue_wait=UNKNOWN,
        loop_busy=UNKNOWN,
        tenants=[],
        partitions=[],
        topics=[],
    )


def _described(
    broker_id: int,
    use: BrokerUse,
    head: Head,
    means: LoadMeans | None,
    now: float,
    tenants: list[_Tenant],
    busiest: tuple[list[PartitionUse], list[PartitionUse]],
    image: MetadataImage,
) -> _Broker:
    partitions, topics = busiest
    rates = head.rates or NO_RATES
    all_of_it = Traffic(rates.bytes_in, rates.bytes_out, rates.requests)
    return _Broker(
        broker_id=broker_id,
        broker_epoch=use.broker_epoch,
        is_known=head.rates is not None,
        round=use.round,
        age_ms=int((now - use.heard_s) * 1000),
        uptime_ms=use.uptime_ms,
        cpu_ms=head.cpu_ms,
        cpu_share=UNKNOWN if head.cpu_share is None else head.cpu_share,
        moved_bytes=head.moved_bytes,
        moved_rate=UNKNOWN if head.moved_rate is None else head.moved_rate,
        disk_used_bytes=head.disk_used_bytes,
        disk_size_bytes=head.disk_size_bytes,
        bytes_in=head.counters.bytes_in,
        bytes_out=head.counters.bytes_out,
        requests=head.counters.requests,
        busy_ns=head.counters.busy_ns,
        connections=head.connections,
        in_rate=rates.bytes_in,
        out_rate=rates.bytes_out,
        request_rate=rates.requests,
        busy_share=rates.busy,
        load=UNKNOWN if means is None else means.load,
        queue_wait=UNKNOWN if means is None else means.wait_s,
        loop_busy=UNKNOWN if means is None else means.busy,
        tenants=tenants,
        partitions=[
            _Broker.DescribedPartitionUsage(
                topic=topic.name,
                partition_index=one.partition,
                in_rate=one.rate_in,
                out_rate=one.rate_out,
                load=UNKNOWN
                if means is None
                else replica_load(means.load, Traffic(one.rate_in, one.rate_out), all_of_it),
            )
            for one in partitions
            if (topic := image.topics.get_by_id(one.topic_id)) is not None
        ],
        topics=[
            _Broker.DescribedTopicUsage(topic=name, in_rate=one.rate_in, out_rate=one.rate_out)
            for one in topics
            if (name := _name_of(one.topic_id, image)) is not None
        ],
    )


def _name_of(topic_id: bytes, image: MetadataImage) -> str | None:
    """Empty for all that a report has no room to name; None for a topic that is gone."""
    if topic_id == ZERO_UUID:
        return ""
    topic = image.topics.get_by_id(topic_id)
    return None if topic is None else topic.name


def _tenants(use: BrokerUse, image: MetadataImage, means: LoadMeans | None) -> Work[list[_Tenant]]:
    rows: list[_Tenant] = []
    busy = 0.0 if use.head is None or use.head.rates is None else use.head.rates.busy
    for number, tenant in enumerate(list(use.tenants), 1):
        one = use.tenants.get(tenant)  # a tenant may be deleted between two slices
        if one is not None:
            rates = use.rates_of(one)
            load = UNKNOWN if means is None or rates is None else tenant_load(means.load, rates.busy, busy)
            rows.append(_tenant(tenant, one, rates, load, image))
        if number % ROWS_AT_ONCE == 0:
            yield ROWS_AT_ONCE * ROW_COST
    return rows


def _tenant(tenant: str, use: TenantUse, rates: Rates | None, load: float, image: MetadataImage) -> _Tenant:
    known, found = image.tenants.get(tenant), rates or NO_RATES
    return _Tenant(
        tenant=tenant,
        tenant_name="" if known is None else known.name,
        bytes_in=use.counters.bytes_in,
        bytes_out=use.counters.bytes_out,
        requests=use.counters.requests,
        busy_ns=use.counters.busy_ns,
        attempts=use.attempts,
        connections=use.connections,
        throttled=[_Tenant.DescribedThrottledTime(reason=reason, ms=ms) for reason, ms in use.throttled],
        in_rate=found.bytes_in,
        out_rate=found.bytes_out,
        request_rate=found.requests,
        busy_share=found.busy,
        load=load,
    )
