"""`python -m bench.tier`: the rows of `make bench` for the tier, each a ratio within one run on one machine.

Rows run one after the other, each with a cluster of its own.
"""

from __future__ import annotations

import sys

from bench.row_runs import Kind, Suite, run
from bench.tier.cold_read import cold_read
from bench.tier.cold_readers import cold_readers
from bench.tier.copying import beside_kafka, copying
from bench.tier.moving import moving
from bench.tier.store_down import store_down

SUITE = Suite(
    "tier",
    {
        "store-down": Kind(store_down, 4),
        "cold-readers": Kind(cold_readers, 3),
        "cold-read": Kind(cold_read, 3),
        "moving": Kind(moving, 1),
        "copying": Kind(copying, 3),
        "kafka": Kind(beside_kafka, 2),
    },
)

if __name__ == "__main__":
    sys.exit(run(SUITE, __doc__))
