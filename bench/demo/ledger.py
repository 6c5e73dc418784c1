"""What was sent, acknowledged and read, by carrier and row by row."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from bench.demo.flights import CarrierFigures


@dataclass
class Ledger:
    """`rows_sent` holds a checksum of each row's bytes; `places` the partition and offset of what was read."""

    sent: Counter[str] = field(default_factory=Counter)
    acknowledged: Counter[str] = field(default_factory=Counter)
    read: Counter[str] = field(default_factory=Counter)
    delays: dict[str, list[int]] = field(default_factory=dict)
    rows_sent: dict[int, int] = field(default_factory=dict)
    rows_read: Counter[int] = field(default_factory=Counter)
    places: set[tuple[int, int]] = field(default_factory=set)
    changed: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def note_read(self, place: tuple[int, int], flight: dict[str, Any], checksum: int) -> None:
        """A record of the topic; given again after a rebalance it is the same record, not a second one."""
        if place in self.places:
            return
        self.places.add(place)
        carrier = flight["carrier"]
        self.read[carrier] += 1
        self.rows_read[flight["row"]] += 1
        if flight["dep_delay"].lstrip("-").isdigit():
            self.delays.setdefault(carrier, []).append(int(flight["dep_delay"]))
        if self.rows_sent.get(flight["row"]) != checksum:
            self.changed += 1

    def figures_read(self) -> dict[str, CarrierFigures]:
        found = {}
        for carrier, count in self.read.items():
            delays = self.delays.get(carrier, [])
            found[carrier] = CarrierFigures(count, len(delays), sum(delays) / max(1, len(delays)))
        return found

    @property
    def missing(self) -> int:
        return len(self.rows_sent) - len(self.rows_read)

    @property
    def doubled(self) -> int:
        return sum(1 for count in self.rows_read.values() if count > 1)

    @property
    def is_whole(self) -> bool:
        """Every row acknowledged, and read exactly once, with its bytes."""
        wrong = self.missing or self.doubled or self.changed or self.errors
        return not wrong and self.sent == self.acknowledged == self.read
