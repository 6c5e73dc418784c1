"""Asks Apache Kafka which versions it offers: `python -m tests.wire.kafka_api_versions JARS`.

JARS as for `tests.broker.gate_oracle.generate`. Runs one node with its default settings, asks its broker and its
controller, and writes `kafka_api_versions.txt` beside this file: key, lowest and highest version.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.broker.gate_oracle.generate import connected, kafka
from wire.messages import ApiVersionsRequest

ANSWERS = Path(__file__).with_suffix(".txt")


def offered() -> dict[int, tuple[int, int]]:
    """By key, as Apache Kafka answered."""
    rows = [tuple(map(int, line.split())) for line in ANSWERS.read_text().splitlines()]
    return {key: (low, high) for key, low, high in rows}


async def ask(ports: dict[str, int]) -> None:
    found: dict[int, tuple[int, int]] = {}
    for listener in ("CONTROLLER", "PLAINTEXT"):
        wire = await connected(ports[listener])
        request = ApiVersionsRequest(client_software_name="oracle", client_software_version="1")
        for row in (await wire.call(request, 4)).api_keys:
            found[row.api_key] = (row.min_version, row.max_version)
        wire.close()
    ANSWERS.write_text("".join(f"{key} {low} {high}\n" for key, (low, high) in sorted(found.items())))


def main(jars: str) -> None:
    with tempfile.TemporaryDirectory(prefix="tidelog-versions-") as folder, kafka(jars, Path(folder)) as ports:
        asyncio.run(ask(ports))


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).resolve()))
