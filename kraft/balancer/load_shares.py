"""Which part of a broker's load is whose. Pure.

A tenant's part follows from the time of the event loop that its requests took, which is measured. That of a replica is
not: it would cost a clock for each partition of each request. It is estimated from the partition's bytes, which are
counted, with fitted weights. What the broker's requests cost beside their bytes is spread by bytes.
"""

from __future__ import annotations

from typing import NamedTuple


class Weights(NamedTuple):
    """Seconds of a leader's event loop for what is done for clients. Only their ratios matter."""

    byte_in: float
    byte_out: float
    request: float


# From measurements on one machine (docs/performance.md): small and 1 MB batches of `bench/kora/load.py` at little load,
# and the consume row of `python -m bench`.
WEIGHTS = Weights(byte_in=4.0e-9, byte_out=0.8e-9, request=70e-6)


class Traffic(NamedTuple):
    """Of a broker's clients or of one partition, per second."""

    bytes_in: float
    bytes_out: float
    requests: float = 0.0


def tenant_load(load: float, busy: float, all_busy: float) -> float:
    """The part of a tenant whose requests keep the loop busy for `busy` of the `all_busy` that all clients' do."""
    return load * min(busy / all_busy, 1.0) if busy > 0 and all_busy > 0 else 0.0


def replica_load(load: float, partition: Traffic, broker: Traffic, weights: Weights = WEIGHTS) -> float:
    """The part of the leader of a partition; the parts of all partitions together are at most `load`."""
    moved = broker.bytes_in + broker.bytes_out
    cost = _cost(broker, weights)
    if not moved > 0 or not cost > 0:
        return 0.0
    requests = broker.requests * (partition.bytes_in + partition.bytes_out) / moved
    return load * min(_cost(partition._replace(requests=requests), weights) / cost, 1.0)


def _cost(traffic: Traffic, weights: Weights) -> float:
    return sum(amount * weight for amount, weight in zip(traffic, weights, strict=True))
