"""A thousand clients that ask for all topics at once, as after a restart: `python -m bench.metadata_storm`.

Three brokers, 10,000 partitions. Each client has a connection before the clock starts. Printed: how long until all have
their answers, and the CPU seconds of each broker, for the first storm and for one that finds everything written.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from confluent_kafka.admin import AdminClient, NewTopic

from bench.embedded import EmbeddedCluster
from bench.peers import cpu_seconds, wait_serving
from wire.codec import encode_request
from wire.messages import MetadataRequest

VERSION = 12
ANSWERED_S_MAX, CPU_S_MAX = 5.0, 2.0


async def storm(ports: list[int], clients: int, frame: bytes) -> tuple[float, int]:
    """(seconds until all have their answers, bytes of one answer)."""
    streams = [
        await asyncio.open_connection("127.0.0.1", ports[n % len(ports)], limit=1 << 20) for n in range(clients)
    ]  # fmt: skip
    begin = time.monotonic()

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        writer.write(frame)
        size = int.from_bytes(await reader.readexactly(4), "big")
        left = size
        while left:
            left -= len(await reader.read(min(left, 1 << 18)))
        writer.close()
        return size

    sizes = await asyncio.gather(*(ask(*stream) for stream in streams))
    return time.monotonic() - begin, max(sizes)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.metadata_storm", description=__doc__)
    parser.add_argument("--clients", type=int, default=1_000)
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=10_000, help="over all topics")
    options = parser.parse_args()
    with EmbeddedCluster(3) as cluster:
        wait_serving(cluster.bootstrap)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        topics = [
            NewTopic(f"topic-{n}", options.partitions // options.topics, 1) for n in range(options.topics)
        ]  # fmt: skip
        for begin in range(0, len(topics), 100):
            for made in admin.create_topics(topics[begin : begin + 100], request_timeout=120).values():
                made.result(120)
        request = MetadataRequest(
            topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )  # fmt: skip
        frame = encode_request(request, VERSION, 1, "storm")
        ports = [int(address.rsplit(":", 1)[1]) for address in cluster.bootstrap.split(",")]
        pids = [node["pid"] for node in cluster.nodes() if node["role"] == "broker"]
        is_met = True
        for name in ("first", "again"):
            before = [cpu_seconds([pid]) for pid in pids]
            seconds, size = asyncio.run(storm(ports, options.clients, frame))
            spent = [cpu_seconds([pid]) - base for pid, base in zip(pids, before, strict=True)]
            is_met = is_met and seconds < ANSWERED_S_MAX and max(spent) < CPU_S_MAX
            shown = ", ".join(f"{one:.2f}" for one in spent)
            print(f"{name}: {options.clients} answers of {size} bytes in {seconds:.2f} s; CPU s per broker: {shown}")
    return int(not is_met)


if __name__ == "__main__":
    raise SystemExit(main())
