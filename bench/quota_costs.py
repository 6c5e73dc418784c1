"""`python -m bench.quota_costs`: what quotas cost a broker, for each produce request and at rest.

One broker, on a processor of its own. Two clients send it the same requests by turns of a second,
one without quotas and one whose quotas are never reached: two client ids, then two tenants over TLS, of 1,000 that have
quotas but for one. Equal seconds differ by a tenth, so the ratio is the median over rounds of four. Beside it the
processor time of all nodes at rest, before the 1,000 tenants have been created and after.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from bench import private_hosts
from bench.embedded import EmbeddedCluster
from bench.kora.lone_broker import apart
from bench.peers import cpu_seconds
from bench.tenant_clients import client_of, name_hosts
from tidelog.admin.admin_client import ClusterOptions
from tidelog.admin.tenant_admin import TenantAdmin, tenant_admin

TENANTS = 1_000
FREE, HELD = "free", "held"
LIMITS = {"ingress.bytes.per.second": 10**9, "egress.bytes.per.second": 10**9, "request.percentage": 10_000}
SIZES = (200, 16_000)
ROUNDS, TURN_S, REST_S = 10, 1.0, 30.0
PRODUCER = {
    "acks": 1, "linger.ms": 0, "batch.num.messages": 1, "enable.metrics.push": False, "compression.type": "none",
    "queue.buffering.max.messages": 100,
}  # fmt: skip


class Turns:
    """Produce requests of one client, a record in each, and what they take of the broker's processor."""

    def __init__(self, client: Mapping[str, str], topic: str, size: int, broker: int) -> None:
        self._producer = Producer({**client, **PRODUCER})
        self._topic = topic
        self._value = os.urandom(size)
        self._broker = broker

    def turn(self) -> float:
        """Microseconds for a request, over one turn."""
        began, spent_s, sent = time.monotonic(), _processor_s(self._broker), 0
        while time.monotonic() < began + TURN_S:
            try:
                self._producer.produce(self._topic, self._value)
            except BufferError:
                self._producer.poll(0.01)
            else:
                sent += 1
        if self._producer.flush(30):
            raise RuntimeError("not all records were written")
        return 1e6 * (_processor_s(self._broker) - spent_s) / sent


def _processor_s(pid: int) -> float:
    """Of all threads of a process, more finely than in ticks. A broker's threads live as long as it does."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e9


def compared(free: Turns, held: Turns) -> tuple[float, list[float]]:
    """Microseconds for a request without quotas, and the ratios with them to it."""
    free.turn(), held.turn()
    without, ratios = list[float](), list[float]()
    for _ in range(ROUNDS):
        first, second, third, last = free.turn(), held.turn(), held.turn(), free.turn()
        without += [first, last]
        ratios.append((second + third) / (first + last))
    return statistics.median(without), ratios


def rest(pids: Sequence[int]) -> float:
    """The share of a processor that nodes take of which nothing is asked."""
    time.sleep(5.0)
    before = cpu_seconds(list(pids))
    time.sleep(REST_S)
    return (cpu_seconds(list(pids)) - before) / REST_S


def limit_tenants(admin: TenantAdmin) -> None:
    """All but one have quotas."""
    admin.alter_tenant(HELD, LIMITS, None, None)
    for number in range(TENANTS - 2):
        admin.create_tenant(f"other-{number}", None, LIMITS, (), ())


def measure(cluster: EmbeddedCluster, hosts: Path | None, table: Table) -> tuple[float, float]:
    """Add the rows to the table. Returns the shares at rest."""
    nodes = [(row["pid"], row["role"] == "broker") for row in cluster.nodes() if row["pid"]]
    tenants = {name: client_of(cluster, name) for name in (FREE, HELD)}
    name_hosts(hosts, tenants.values(), 1)
    before = rest([pid for pid, _ in nodes])
    with tenant_admin(ClusterOptions(cluster.bootstrap)) as admin:
        limit_tenants(admin)
    cluster.command_of(
        "quotas", "alter", "--client-id", HELD, "producer_byte_rate=1000000000", "request_percentage=10000"
    )
    plain = {name: {"bootstrap.servers": cluster.bootstrap, "client.id": name} for name in (FREE, HELD)}
    for client in (plain[FREE], *tenants.values()):
        admin_client = AdminClient(dict(client))  # named: what is collected cancels its requests
        admin_client.create_topics([NewTopic("load", 1, 1)])["load"].result(30)
    after = rest([pid for pid, _ in nodes])
    broker = next(pid for pid, is_broker in nodes if is_broker)
    others, own = sorted(os.sched_getaffinity(0))[:2]
    with apart(nodes, others, own):
        for what, clients in (("a client id", plain), ("a tenant among 1,000, over TLS", tenants)):
            for size in SIZES:
                free, held = (Turns(clients[name], "load", size, broker) for name in (FREE, HELD))
                cost_us, ratios = compared(free, held)
                low, middle, high = statistics.quantiles(ratios, n=4)
                table.add_row(what, f"{size:,}", f"{cost_us:.0f}", f"{middle:.3f}", f"{low:.3f} to {high:.3f}")
    return before, after


def main() -> int:
    hosts = private_hosts.enter("bench.quota_costs", sys.argv[1:])
    if len(os.sched_getaffinity(0)) < 2:
        print("bench.quota_costs: the broker and its client need a processor each", file=sys.stderr)
        return 1
    table = Table("quotas of", "bytes", "µs of a request without", "with them", "quartiles")
    settings = {"log.dir.free.bytes.min": "0"}
    with EmbeddedCluster(1, settings, controllers=1, tls=True, proxies=1, tenants=(FREE, HELD)) as cluster:
        before, after = measure(cluster, hosts, table)
    console = Console(width=100)
    console.print(table)
    console.print(f"All nodes at rest: {before:.2%} of a core, and {after:.2%} with {TENANTS:,} tenants")
    return 0


if __name__ == "__main__":
    sys.exit(main())
