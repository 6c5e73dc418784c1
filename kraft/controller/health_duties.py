"""The active controller's care for sick brokers: one is put aside at a time, and taken back when it is well.

What the brokers report is soft state; what was decided is in the metadata. So a new controller keeps what another one
has put aside, and takes it back only by what it has seen itself.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from common.node_settings.controllers import ControllerSettings
from common.pacing import Work
from common.ports import Clock
from common.settings import same, seconds
from kraft.controller.broker_health import allows_health, endangered, health_records, held_up
from kraft.controller.policy import ControllerPolicy
from kraft.controller.stepper import Act, Step
from kraft.health.judgement import Judgement, Suspect, judge
from kraft.health.slowness import AckDelay, SlowLimits, Slowness
from kraft.image.brokers import BrokerImage
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage
from kraft.records import Cause, Health, HealthState

log = logging.getLogger(__name__)

SETTLE_LOOKS = 2
"""A broker that seems sick is left alone for so many looks: another one may be about to seem so too."""
MITIGATIONS = (HealthState.DEMOTED, HealthState.SLOW)
NOTHING = Judgement()


@dataclass(frozen=True, slots=True)
class HealthConfig:
    """`effect_s`: within this time a broker that was put aside must have handed over what others can take."""

    enabled: bool = same(ControllerSettings, "health_enable")
    dry_run: bool = same(ControllerSettings, "health_dry_run")
    effect_s: float = same(ControllerSettings, "health_effect_ms", seconds)
    slow_score: int = same(ControllerSettings, "health_slow_score")
    slow_floor_ms: int = same(ControllerSettings, "health_slow_floor_ms")
    slow_ratio: float = same(ControllerSettings, "health_slow_ratio")
    samples_min: int = 5


@dataclass(frozen=True, slots=True)
class HealthStep(Step):
    """`judgement`: what the step follows from, with the trouble that kept it from more."""

    judgement: Judgement = NOTHING


class HealthDuties(Act[HealthStep]):
    """`interval_s`: how often brokers report, and reports are looked at."""

    name, pause_s = "health", 0.1

    def __init__(self, policy: ControllerPolicy, clock: Clock, config: HealthConfig, interval_s: float) -> None:
        super().__init__()
        self._policy = policy
        self._clock = clock
        self._config = config
        self._interval_s = interval_s
        limits = SlowLimits(
            config.slow_ratio, config.slow_ratio, float(config.slow_floor_ms), config.slow_score, config.samples_min
        )
        self.slowness = Slowness(limits, interval_s)
        self._silent: dict[int, float] = {}  # broker that hears no client → since when
        self._heard: dict[int, bool] = {}  # what each broker said last, under this leadership
        self._dismissed: dict[int, None] = {}  # silent ones that an operator has promoted
        self._sure_since: dict[int, float] = {}
        self._aside_since: dict[int, float] = {}
        self._look_due_s = 0.0
        self._is_due = False
        self.fail_safe = ""
        """Why nothing is done about a sick broker, for operators; "" if all is well."""
        self._logged: tuple[str, ...] = ()
        self.mitigations: Counter[str] = Counter({state.name.lower(): 0 for state in MITIGATIONS})
        """Of this controller, by state."""

    # what is heard -----------------------------------------------------------------------------------------

    def heard(self, broker_id: int, is_silent: bool) -> None:
        """A heartbeat of a present registration: whether clients have been silent there for long."""
        before = self._heard.get(broker_id)
        self._heard[broker_id] = is_silent
        if is_silent:
            self._silent.setdefault(broker_id, self._clock.monotonic())
        else:
            self._silent.pop(broker_id, None)
            self._dismissed.pop(broker_id, None)
        if before is not is_silent:
            self.changed.set()

    def reported(self, leader: int, delays: Mapping[int, AckDelay]) -> None:
        """A usage report of a present registration: what this leader measured of its followers."""
        self.slowness.reported(leader, delays, self._clock.monotonic())

    def applied(self, delta: MetadataDelta, image: MetadataImage) -> None:
        for broker_id, before in delta.brokers_changed.items():
            broker = image.brokers.get(broker_id)
            if broker is None or (before is not None and before.epoch != broker.epoch):
                self._forget(broker_id)
            if broker is None or broker.is_healthy:
                self._aside_since.pop(broker_id, None)
            elif before is None or before.health != broker.health:
                self._aside_since[broker_id] = self._clock.monotonic()
            promoted = broker is not None and broker.health.cause is Cause.HEALTH_CHANGED_BY_OPERATOR
            if broker is not None and promoted and broker.is_healthy and (before is None or not before.is_healthy):
                self.slowness.pardon(broker_id)
                if broker_id in self._silent:
                    self._dismissed[broker_id] = None
        if delta.brokers_changed:
            self.changed.set()

    def _forget(self, broker_id: int) -> None:
        self.slowness.forget(broker_id)
        for known in (self._silent, self._heard, self._dismissed, self._sure_since):
            known.pop(broker_id, None)

    def became_active(self, image: MetadataImage) -> None:
        now = self._clock.monotonic()
        self.slowness.restart([b.broker_id for b in image.brokers.values() if b.health.state is HealthState.SLOW])
        for known in (self._silent, self._heard, self._dismissed, self._sure_since):
            known.clear()
        self._aside_since = {b.broker_id: now for b in image.brokers.values() if not b.is_healthy}
        self._look_due_s = now + self._interval_s
        self.fail_safe, self._logged = "", ()

    @property
    def is_automatic(self) -> bool:
        return self._config.enabled

    @property
    def is_dry_run(self) -> bool:
        return self._config.dry_run

    def is_silent(self, broker_id: int) -> bool:
        return broker_id in self._silent

    # what is decided ---------------------------------------------------------------------------------------

    def due(self, image: MetadataImage) -> Sequence[str]:
        if not (self._config.enabled and allows_health(image)):
            return ()
        now = self._clock.monotonic()
        if now >= self._look_due_s:
            self._look_due_s = now + self._interval_s
            live = [broker.broker_id for broker in image.brokers.values() if broker.is_active]
            slow = [broker.broker_id for broker in image.brokers.values() if broker.health.state is HealthState.SLOW]
            self.slowness.look(live, slow, now)
        sure = [suspect.broker_id for suspect in self._suspects() if suspect.is_sure]
        self._sure_since = {broker_id: self._sure_since.get(broker_id, now) for broker_id in sure}
        return ("",)

    def _suspects(self) -> list[Suspect]:
        now, slowness = self._clock.monotonic(), self.slowness
        found = [
            Suspect(broker_id, HealthState.SLOW, Cause.SLOWER_THAN_PEERS, slowness.evidence(broker_id), is_sure)
            for known, is_sure in ((slowness.slow(), True), (slowness.doubtful(), False))
            for broker_id in known
        ]
        for broker_id, since in sorted(self._silent.items()):
            if broker_id not in self._dismissed:
                text = f"it hears neither clients nor probes, as it has said for {now - since:.0f} s"
                found.append(Suspect(broker_id, HealthState.DEMOTED, Cause.NO_CLIENT_TRAFFIC, text))
        return found

    def _well(self, image: MetadataImage) -> list[int]:
        """Brokers put aside of which this controller has seen that they are well."""
        found = []
        for broker in image.brokers.values():
            by_network = broker.health.cause is Cause.NO_CLIENT_TRAFFIC
            is_well = self._heard.get(broker.broker_id) is False if by_network else self._acknowledges(broker)
            if is_well and not broker.is_healthy:
                found.append(broker.broker_id)
        return found

    def _acknowledges(self, broker: BrokerImage) -> bool:
        return broker.is_active and self.slowness.is_well(broker.broker_id)

    def step(self, image: MetadataImage, subject: str) -> Work[HealthStep]:
        judgement = judge(image.brokers, self._suspects(), self._well(image))
        suspect = judgement.put_aside
        if judgement.take_back is not None:
            if self._config.dry_run:
                return HealthStep(judgement=judgement)
            health = Health(cause=Cause.HEALTH_IS_BACK, since_ms=self._clock.wall_ms())
            broker = image.brokers[judgement.take_back]
            return HealthStep(list(health_records(image, broker, self._policy, health)), judgement=judgement)
        if suspect is not None:
            since = self._sure_since.get(suspect.broker_id, self._clock.monotonic())
            if self._clock.monotonic() - since < SETTLE_LOOKS * self._interval_s:
                return HealthStep()
            place = yield from endangered(image, self._policy, suspect.broker_id)
            if place:
                text = f"{suspect} is not put aside: {place} could not commit without it, others are out of sync"
                return HealthStep(judgement=Judgement(trouble=text, about=("endangered", str(suspect.broker_id))))
            if self._config.dry_run:
                return HealthStep(judgement=judgement)
            health = Health(suspect.state, suspect.cause, self._clock.wall_ms(), suspect.evidence)
            broker = image.brokers[suspect.broker_id]
            return HealthStep(list(health_records(image, broker, self._policy, health)), judgement=judgement)
        if not judgement.trouble:
            judgement = yield from self._without_effect(image)
        return HealthStep(judgement=judgement)

    def _without_effect(self, image: MetadataImage) -> Work[Judgement]:
        """Whether a broker that was put aside long ago still holds what others could take."""
        for broker_id, since in sorted(self._aside_since.items()):
            broker = image.brokers.get(broker_id)
            if broker is None or not broker.is_active or self._clock.monotonic() - since < self._config.effect_s:
                continue
            held = yield from held_up(image, broker)
            if held:
                text = (
                    f"putting broker {broker_id} aside ({broker.health.cause.name.lower()}: {broker.health.evidence}) "
                    f"has no effect: {held} partitions still wait for it"
                )
                return Judgement(trouble=text, about=("no effect", str(broker_id)))
        return Judgement()

    def committed(self, subject: str, step: HealthStep) -> None:
        suspect, back = step.judgement.put_aside, step.judgement.take_back
        if (suspect is not None or back is not None) and not step.records:  # a dry run
            would = f"put aside {suspect}" if suspect is not None else f"take back broker {back}"
            of = back if suspect is None else suspect.broker_id
            self._say(("dry run", str(of)), f"would {would}: tidelog.health.dry.run is set")
            self.fail_safe = ""
            return
        if suspect is not None:
            self.mitigations[suspect.state.name.lower()] += 1
            extra = {"broker": suspect.broker_id, "state": suspect.state.name.lower(), "reason": suspect.cause.name}
            log.warning("a sick broker is put aside", extra=extra | {"evidence": suspect.evidence})
        if back is not None:
            log.info("a broker is well again and taken back", extra={"broker": back})
        self.fail_safe = step.judgement.trouble
        self._say(step.judgement.about, step.judgement.trouble)

    def _say(self, about: tuple[str, ...], text: str) -> None:
        """One line for each trouble, when it begins, and one at its end."""
        if about == self._logged:
            return
        if self._logged and not about:
            log.info("the trouble with brokers' health is over")
        self._logged = about
        if about and about[0] == "dry run":
            log.warning(text)
        elif about:
            log.error("nothing is done about sick brokers: see to them by hand", extra={"reason": text})

    def look_s(self, image: MetadataImage) -> float | None:
        if not (self._config.enabled and allows_health(image)):
            return None
        return max(0.0, self._look_due_s - self._clock.monotonic())
