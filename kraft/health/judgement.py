"""What to do about brokers that seem sick. No I/O.

One broker at a time: two that seem sick at once are more likely a sick network, or a wrong measurement, and to put both
aside would take away more than they do. Then nothing is done, and an operator is called.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from kraft.image.brokers import BrokerImage
from kraft.records import Cause, HealthState

_DETECTED = (Cause.NO_CLIENT_TRAFFIC, Cause.SLOWER_THAN_PEERS)


class Suspect(NamedTuple):
    """A broker that seems sick. `is_sure`: enough to act; otherwise only to leave others alone."""

    broker_id: int
    state: HealthState
    cause: Cause
    evidence: str
    is_sure: bool = True

    def __str__(self) -> str:
        return f"broker {self.broker_id} ({self.cause.name.lower()}: {self.evidence})"


class Judgement(NamedTuple):
    """At most one broker is put aside or taken back. `trouble`: why nothing is done about a sick broker; "" if all is
    well. `about`: what the trouble is, without what changes from look to look."""

    put_aside: Suspect | None = None
    take_back: int | None = None
    trouble: str = ""
    about: tuple[str, ...] = ()


def judge(brokers: Mapping[int, BrokerImage], suspects: Sequence[Suspect], well: Collection[int]) -> Judgement:
    """`suspects`: what detectors say now; `well`: brokers of which they are sure that nothing is wrong with them any
    more. What an operator has put aside only an operator takes back."""
    aside = sorted(broker.broker_id for broker in brokers.values() if not broker.is_healthy)
    for broker_id in aside:
        if broker_id in well and brokers[broker_id].health.cause in _DETECTED:
            return Judgement(take_back=broker_id)
    fresh = {s.broker_id: s for s in suspects if s.broker_id in brokers and brokers[s.broker_id].is_fit}
    sure = [suspect for suspect in fresh.values() if suspect.is_sure]
    if not sure:
        return Judgement()
    if len(fresh) == 1 and not aside:
        return Judgement(put_aside=sure[0])
    names = ", ".join(str(suspect) for suspect in fresh.values())
    held = ", ".join(f"broker {b} ({brokers[b].health.state.name.lower()})" for b in aside)
    beside = f"; put aside already: {held}" if held else ""
    about = ("several", *(str(broker_id) for broker_id in sorted(fresh)), *map(str, aside))
    return Judgement(trouble=f"more than one broker seems sick: {names}{beside}", about=about)
