"""Whether clients reach this broker, as reported in heartbeats.

A broker may be cut off from clients while its heartbeats arrive, because they take another network or interface.
Silence alone shows nothing, as a cluster may be idle; so other brokers probe it where its clients connect
(`broker/network_probes.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

BACK_S = 60.0
LATE_S = 5.0  # between two looks: then this process did not run, and hears soon what it missed

_logger = logging.getLogger(__name__)


class NetworkWatch:
    """`silence_s`: how long clients and probes must be silent, 0 turns the watch off. `now` is in seconds; `frames`
    counts the frames of clients and probes. `probe_id` is the client id of probes of this broker.

    The watch does nothing until a probe was seen in this life: without one, silence may be the usual state. It counts
    only silence during which heartbeats were answered, because otherwise the whole network may have failed. A silent
    broker is well again after frames have come for BACK_S without a pause of half of `silence_s`.
    """

    __slots__ = (
        "_back_s",
        "_counted",
        "_frames",
        "_heard_s",
        "_looked_s",
        "_now",
        "_probe_id",
        "_silence_s",
        "is_probed",
        "is_silent",
    )

    def __init__(self, silence_s: float, now: Callable[[], float], frames: Callable[[], int], probe_id: str) -> None:
        self.is_probed = False
        self.is_silent = False
        self._silence_s = silence_s
        self._now = now
        self._frames = frames
        self._probe_id = probe_id
        self._counted = 0
        self._heard_s = self._looked_s = now()
        self._back_s: float | None = None  # while silent: since when frames come again

    def greeted(self, client_id: str | None) -> None:
        """A client with this id has asked for ApiVersions."""
        if client_id == self._probe_id:
            self.is_probed = True

    def begin_silent(self) -> None:
        """The broker was silent when it ended last, and other brokers lead in its place: it has yet to be heard."""
        self.is_silent = self._silence_s > 0

    def look(self, answered_s: float) -> bool:
        """Whether clients do not reach this broker; call it before each heartbeat.

        `answered_s`: for how long all heartbeats have been answered.
        """
        now = self._now()
        if now - self._looked_s > LATE_S:
            self._heard_s = now
        self._looked_s = now
        frames = self._frames()
        if frames != self._counted:
            self._counted, self._heard_s = frames, now
            if self._back_s is None:
                self._back_s = now
        silent_s = now - self._heard_s
        if not self.is_silent:
            if self.is_probed and 0 < self._silence_s <= min(silent_s, answered_s):
                self.is_silent, self._back_s = True, None
                _logger.warning("neither clients nor probes reach this broker", extra={"silent_s": round(silent_s, 1)})
        elif silent_s >= self._silence_s / 2:
            self._back_s = None
        elif self._back_s is not None and self._heard_s - self._back_s >= BACK_S:
            self.is_silent = False
            _logger.info("clients or probes reach this broker again")
        return self.is_silent
