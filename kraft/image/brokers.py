"""One registered broker in the committed metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from common.identifiers import ZERO_UUID
from kraft.records import HEALTHY, Endpoint, Health, HealthState

_OUT_OF_ISR = (HealthState.SLOW, HealthState.STORAGE)


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """`epoch`: offset of the registration's record, which distinguishes the runs of a broker.

    `endpoints` by listener name; `features` by name, as (lowest, highest) supported level. A fenced broker leads
    nothing and joins no ISR; clients may see its name for a session timeout. A broker that `lacks_room` on its disk
    appends nothing: it joins no ISR, and other brokers lead where enough of them have room. `health`: a broker that is
    not healthy leads only where no other can; a slow one is in the ISR only where it is needed. `is_unclean`: from a
    registration or disk failure after which it may lack acknowledged records, until it is unfenced; an ISR or ELR that
    lists it is from before that.
    """

    broker_id: int
    epoch: int
    incarnation: bytes
    endpoints: Mapping[str, Endpoint]
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    log_dirs: tuple[bytes, ...] = ()
    features: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    cell: str | None = None
    lacks_room: bool = False
    is_unclean: bool = False
    health: Health = HEALTHY
    start_id: bytes = ZERO_UUID  # of the start that registered; zero if it went on with no earlier run

    @property
    def is_active(self) -> bool:
        """Whether it may lead."""
        return not self.fenced and not self.in_controlled_shutdown

    @property
    def may_join(self) -> bool:
        """Whether it may join an ISR."""
        return self.is_active and not self.lacks_room and self.health.state not in _OUT_OF_ISR

    @property
    def may_join_in_need(self) -> bool:
        """Whether it may join an ISR that is too small to commit anything: a slow replica is better than none."""
        return self.is_active and not self.lacks_room and self.health.state is not HealthState.STORAGE

    @property
    def is_healthy(self) -> bool:
        return self.health.state is HealthState.HEALTHY

    @property
    def is_fit(self) -> bool:
        """Whether it may lead, and no other broker had better do so."""
        return self.is_active and not self.lacks_room and self.is_healthy

    @property
    def should_leave_isr(self) -> bool:
        """Whether it leaves each ISR that can commit without it."""
        return self.lacks_room or self.health.state in _OUT_OF_ISR

    def address(self, listener_name: str) -> tuple[str, int] | None:
        """(host, port) of the broker on that listener."""
        endpoint = self.endpoints.get(listener_name)
        return (endpoint.host, endpoint.port) if endpoint is not None else None
