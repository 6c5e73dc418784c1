"""Twelve tenants share two cells of three brokers, and the fleet keeps itself fair, fast and level.

A tenant that turns noisy is held to its quota while its neighbours notice nothing; a broker that is slow without being
dead is put aside and returns; one more broker fills by itself. Every act shows the command by which an operator sees
it, and the one that tells why. Ends 0 only if each claim holds; with `--untimed`, claims about how long clients waited
are printed and not judged. `--faults` shows other acts: a tenant that changes cells while its quota holds it, and two
slow brokers at once, of which none is put aside.
"""

from __future__ import annotations

import signal
import sys
import time

from confluent_kafka import KafkaException

from bench import private_hosts
from bench.demo_fleet.acts import Scene, at_work, noisy_tenant, nothing_is_lost, one_more_broker, slow_broker
from bench.demo_fleet.faults import moving_tenant, two_slow_brokers
from bench.demo_fleet.story import ClaimFailed, Story
from bench.demo_fleet.tenants import TENANTS, Tenants
from bench.embedded import EmbeddedCluster
from bench.peers import resident_mb
from bench.tenant_clients import client_of, name_hosts

BROKERS, CELLS, PROXIES, CONTROLLERS = 6, 2, 2, 1
SETTINGS = {
    "tidelog.usage.report.interval.ms": "1000",  # 5 s
    "tidelog.health.slow.score": "8",  # 60: five minutes of patience
    "tidelog.quota.share.interval.ms": "1000",  # 10 s
    "tidelog.quota.lazy.ratio": "0.1",  # 0.8
    "quota.window.num": "3",  # 11 s
    "leader.imbalance.check.interval.seconds": "5",  # 300 s
    "tidelog.tier.export.interval.ms": "1000",  # a minute: until the audit has what happened
}
"""The product's patience, shortened; in comments, how long it is otherwise."""
UNTIMED = "--untimed"
"""Tells how long clients waited, without a verdict."""
FAULTS = "--faults"
ACTS = (at_work, noisy_tenant, slow_broker, one_more_broker, nothing_is_lost)
ACTS_OF_FAULTS = (at_work, moving_tenant, two_slow_brokers, nothing_is_lost)


def main() -> int:
    hosts = private_hosts.enter("bench.demo_fleet", sys.argv[1:])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench.demo_fleet: it was told to end"))
    started = time.monotonic()
    cluster = EmbeddedCluster(BROKERS, SETTINGS, controllers=CONTROLLERS, proxies=PROXIES, tenants=TENANTS, cells=CELLS)
    judges_times = UNTIMED not in sys.argv[1:]
    story = Story(cluster, lambda line: print(line, flush=True), judges_times=judges_times)
    try:
        with cluster:
            clients = {tenant: client_of(cluster, tenant) for tenant in TENANTS}
            name_hosts(hosts, clients.values(), BROKERS + 1)
            cells = {row["tenant"]: row["cell"] for row in story.ask("tenants", "list")}
            with Tenants(clients, cells) as tenants:
                scene = Scene(cluster, tenants, story)
                for act in ACTS_OF_FAULTS if FAULTS in sys.argv[1:] else ACTS:
                    act(scene)
            used_mb = resident_mb([node["pid"] for node in cluster.nodes() if node["pid"]])
    except (ClaimFailed, KafkaException, RuntimeError) as failed:
        print(f"\nSOMETHING IS WRONG: {failed}; {time.monotonic() - started:.0f} s", flush=True)
        return 1
    print(f"\nThe fleet kept itself in order; {time.monotonic() - started:.0f} s, {used_mb:.0f} MB for all nodes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
