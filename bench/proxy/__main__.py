"""`python -m bench.proxy`: the rows of `make bench` for the proxy, beside haproxy in one run on one machine.

Both have the same certificate, the same backend and one core each, and are measured in turn. Without haproxy its rows
are skipped, and that is said. The row `kafka-clients` is a Kafka client through the proxy, beside one without it.
"""

from __future__ import annotations

import sys

from bench.proxy.kafka_clients import serving_clients
from bench.proxy.measures import greeting, idling, passing, requests, restarting, storming, terminating
from bench.row_runs import Kind, Suite, run

SUITE = Suite(
    "proxy",
    {
        "terminating": Kind(terminating, 12),
        "passing": Kind(passing, 12),
        "requests": Kind(requests, 12),
        "handshakes": Kind(greeting, 12),
        "idle": Kind(idling, 1),
        "storm": Kind(storming, 3),
        "rolling-restart": Kind(restarting, 1),
        "kafka-clients": Kind(serving_clients, 9),
    },
    goes_on_without_tools=True,
)

if __name__ == "__main__":
    sys.exit(run(SUITE, __doc__))
