"""Sick brokers are put aside one at a time, taken back when they are well, and left alone when in doubt."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.pacing import at_once
from kraft.controller.broker_health import health_records
from kraft.controller.health_duties import SETTLE_LOOKS, HealthConfig, HealthDuties
from kraft.controller.health_requests import alter_broker_health
from kraft.health.judgement import Suspect, judge
from kraft.health.slowness import AckDelay
from kraft.image.delta import replayed
from kraft.image.difference import differing
from kraft.image.metadata import MetadataImage
from kraft.records import Cause, FeatureLevelRecord, Health, HealthState, PartitionChangeRecord
from tests.kraft.images import POLICY, beaten, heartbeat, partition_of, with_topic
from wire.messages import AlterBrokerHealthRequest, AlterBrokerHealthResponse

LOOK_S = 5.0
SCORE = 4


class HandClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return int(self.now * 1000)


class Care:
    """A controller's care for three brokers: each look is a heartbeat and a report of each, and what is decided."""

    def __init__(self, image: MetadataImage | None = None, **config: object) -> None:
        self.clock = HandClock()
        self.image = with_topic() if image is None else image
        self.duties = self._made(HealthConfig(slow_score=SCORE, **config))  # type: ignore[arg-type]
        self.silent: set[int] = set()
        self.delays: dict[int, float] = {}
        self.decided = 0

    def _made(self, config: HealthConfig) -> HealthDuties:
        self.config = config
        duties = HealthDuties(POLICY, self.clock, config, LOOK_S)
        duties.became_active(self.image)
        return duties

    def failover(self) -> None:
        """Another controller becomes active; it has seen the metadata alone."""
        self.duties = self._made(self.config)

    def replay(self, records: list) -> None:  # type: ignore[type-arg]
        before, self.image = self.image, replayed(self.image, records)
        self.duties.applied(at_once(differing(before, self.image)), self.image)

    def look(self, times: int = 1, heard: bool = True) -> None:
        for _ in range(times):
            self.clock.now += LOOK_S
            for broker_id in self.image.brokers if heard else ():
                self.duties.heard(broker_id, broker_id in self.silent)
                delays = {f: AckDelay(50, self.delays.get(f, 2.0)) for f in self.image.brokers if f != broker_id}
                if self.image.topics.index.led_by(broker_id) or broker_id not in self.delays:
                    self.duties.reported(broker_id, delays)
            for subject in self.duties.due(self.image):
                step = at_once(self.duties.step(self.image, subject))
                self.decided += len(step.records)
                if step.records:
                    self.replay(step.records)
                self.duties.committed(subject, step)

    def asked(self, action: int, broker_id: int, force: bool = False) -> AlterBrokerHealthResponse:
        request = AlterBrokerHealthRequest(action=action, broker_id=broker_id, force=force)
        decision = alter_broker_health(self.image, request, POLICY, self.duties, self.clock.wall_ms())
        self.replay(decision.records)
        return decision.reply

    def states(self) -> dict[int, HealthState]:
        return {b.broker_id: b.health.state for b in self.image.brokers.values() if not b.is_healthy}


def test_a_broker_without_clients_is_demoted_after_a_while_and_taken_back() -> None:
    care = Care()
    care.look()
    care.silent = {0}
    care.look(SETTLE_LOOKS)
    assert care.states() == {}
    care.look()
    assert care.states() == {0: HealthState.DEMOTED}
    assert partition_of(care.image).leader == 1
    assert care.duties.mitigations["demoted"] == 1
    care.look(50)
    assert care.states() == {0: HealthState.DEMOTED}
    care.silent = set()
    care.look()
    assert care.states() == {}


def test_a_slow_broker_is_put_aside_by_its_score_and_back_at_none() -> None:
    care = Care()
    care.look(SCORE)
    care.delays = {2: 400.0}
    care.look(SCORE + SETTLE_LOOKS)
    assert care.states() == {2: HealthState.SLOW}
    assert partition_of(care.image).isr == (0, 1)
    assert "400 ms" in care.image.brokers[2].health.evidence
    care.look(20)
    assert care.states() == {2: HealthState.SLOW}
    care.delays = {}
    care.look(SCORE - 1)
    assert care.states() == {2: HealthState.SLOW}
    care.look()
    assert care.states() == {}


def test_two_that_seem_sick_are_left_alone_and_an_operator_is_called_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    care = Care()
    care.silent = {0, 2}
    care.look(10)
    assert care.states() == {}
    assert "broker 0" in care.duties.fail_safe
    assert "broker 2" in care.duties.fail_safe
    assert [r.levelname for r in caplog.records] == ["ERROR"]
    care.silent = {0}
    care.look()
    assert care.states() == {0: HealthState.DEMOTED}
    assert care.duties.fail_safe == ""


def test_a_second_one_is_left_alone_while_the_first_is_put_aside() -> None:
    care = Care()
    care.look(SCORE)
    care.silent = {0}
    care.look(SETTLE_LOOKS + 1)
    care.delays = {2: 400.0}
    care.look(10 * SCORE)
    assert care.states() == {0: HealthState.DEMOTED}
    assert "broker 2" in care.duties.fail_safe


def test_one_that_only_begins_to_seem_slow_makes_it_leave_the_other_alone() -> None:
    care = Care()
    care.look(SCORE)
    care.delays = {2: 400.0}
    care.look(SCORE - 1)
    care.silent = {0}
    care.look()
    assert care.duties.fail_safe
    assert care.states() == {}


def test_nothing_is_done_where_others_are_out_of_sync() -> None:
    care = Care()
    topic_id = partition_of(care.image).topic_id
    care.replay([PartitionChangeRecord(topic_id, 0, isr=(0, 1))])
    care.silent = {0}
    care.look(10)
    assert care.states() == {}
    assert "t-0" in care.duties.fail_safe
    care.replay([PartitionChangeRecord(topic_id, 0, isr=(0, 1, 2))])
    care.look()
    assert care.states() == {0: HealthState.DEMOTED}


def test_a_mitigation_without_effect_calls_an_operator() -> None:
    care = Care(effect_s=60.0)
    care.silent = {0}
    care.look(SETTLE_LOOKS + 1)
    care.replay([PartitionChangeRecord(partition_of(care.image).topic_id, 0, leader=0)])  # it does not let go
    care.look(10)
    assert care.duties.fail_safe == ""
    care.look(3)
    assert "no effect" in care.duties.fail_safe
    assert care.states() == {0: HealthState.DEMOTED}


def test_a_new_controller_keeps_what_was_put_aside_until_it_has_heard_itself() -> None:
    care = Care()
    care.silent = {0}
    care.look(SETTLE_LOOKS + 1)
    care.failover()
    care.look(5, heard=False)
    assert care.states() == {0: HealthState.DEMOTED}
    care.look(5)
    assert care.states() == {0: HealthState.DEMOTED}
    care.silent = set()
    care.look()
    assert care.states() == {}


def test_a_new_controller_takes_a_slow_broker_back_only_after_as_many_good_looks() -> None:
    care = Care()
    care.look(SCORE)
    care.delays = {2: 400.0}
    care.look(SCORE + SETTLE_LOOKS)
    care.delays = {}
    care.failover()
    care.look(SCORE - 1)
    assert care.states() == {2: HealthState.SLOW}
    care.look()
    assert care.states() == {}


def test_a_dry_run_says_what_it_would_do(caplog: pytest.LogCaptureFixture) -> None:
    care = Care(dry_run=True)
    care.silent = {0}
    care.look(10)
    assert care.states() == {}
    assert sum("would put aside broker 0" in record.message for record in caplog.records) == 1
    assert care.duties.fail_safe == ""


def test_a_dry_run_takes_no_broker_back_either(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    care = Care()
    care.silent = {0}
    care.look(10)
    careful = Care(care.image, dry_run=True)
    careful.look(10)
    assert careful.states() == {0: HealthState.DEMOTED}
    assert careful.decided == 0
    assert sum("would take back broker 0" in record.message for record in caplog.records) == 1
    assert not any("taken back" in record.message for record in caplog.records)


@pytest.mark.parametrize("reason", ["switched off", "older nodes"])
def test_nothing_happens_by_itself(reason: str) -> None:
    image = with_topic()
    if reason == "older nodes":
        image = replayed(image, [FeatureLevelRecord("tidelog.version", 2)])
    care = Care(image, enabled=reason != "switched off")
    care.silent = {0}
    care.look(10)
    assert care.states() == {}
    assert care.duties.look_s(care.image) is None


def test_what_an_operator_demotes_only_an_operator_promotes() -> None:
    care = Care()
    assert care.asked(1, 0).error_code == 0
    assert care.states() == {0: HealthState.DEMOTED}
    assert partition_of(care.image).leader == 1
    care.look(20)
    care.failover()
    care.look(20)
    assert care.states() == {0: HealthState.DEMOTED}
    refused = care.asked(1, 1)
    assert "broker 0" in (refused.error_message or "")
    assert care.asked(1, 1, force=True).error_code == 0
    assert care.asked(1, 2, force=True).error_code, "the only one that can lead"
    for broker_id in (0, 1):
        assert care.asked(2, broker_id).error_code == 0
    assert care.states() == {}
    assert care.asked(2, 9).error_code
    assert care.asked(7, 0).error_code


def test_a_silent_broker_that_an_operator_promotes_stays_so_until_it_is_silent_again() -> None:
    care = Care()
    care.silent = {0}
    care.look(SETTLE_LOOKS + 1)
    care.asked(2, 0)
    care.look(20)
    assert care.states() == {}
    care.silent = set()
    care.look()
    care.silent = {0}
    care.look(SETTLE_LOOKS + 1)
    assert care.states() == {0: HealthState.DEMOTED}


def test_operators_see_what_is_known_of_each_broker() -> None:
    care = Care()
    care.look(SCORE)
    care.delays = {2: 400.0}
    care.silent = {0}
    care.look()
    reply = care.asked(0, -1)
    rows = {row.broker_id: row for row in reply.brokers}
    assert (rows[2].score, rows[2].score_max, rows[2].ack_delay_us) == (1, SCORE, 400_000)
    assert [row.is_silent for row in reply.brokers] == [True, False, False]
    assert (rows[0].leads, rows[0].state, rows[0].is_active) == (1, "healthy", True)


def test_the_flag_of_a_heartbeat_alone_decides_nothing() -> None:
    image = with_topic()
    after, _reply = beaten(image, 0, no_client_traffic=True)
    assert after == image
    assert heartbeat(image, 0, no_client_traffic=True).no_client_traffic


STATES = st.sampled_from(list(HealthState))
CAUSES = st.sampled_from([Cause.NO_CLIENT_TRAFFIC, Cause.SLOWER_THAN_PEERS, Cause.HEALTH_CHANGED_BY_OPERATOR])


@given(
    st.dictionaries(st.integers(0, 3), st.tuples(STATES, CAUSES), max_size=4),
    st.dictionaries(st.integers(0, 5), st.tuples(STATES, CAUSES, st.booleans()), max_size=5),
    st.sets(st.integers(0, 3)),
)
def test_never_two_at_a_time_whatever_is_suspected(
    aside: dict[int, tuple[HealthState, Cause]],
    seem: dict[int, tuple[HealthState, Cause, bool]],
    well: set[int],
) -> None:
    image = with_topic([0, 1, 2, 3], brokers=4)
    for broker_id, (state, cause) in aside.items():
        image = replayed(image, health_records(image, image.brokers[broker_id], POLICY, Health(state, cause)))
    suspects = [Suspect(b, state, cause, "seen", sure) for b, (state, cause, sure) in seem.items()]
    found = judge(image.brokers, suspects, well)
    sick = [b for b in image.brokers.values() if not b.is_healthy]
    if found.put_aside is not None:
        assert not sick
        assert sum(b in image.brokers for b in seem) == 1
        assert found.put_aside.is_sure
    if found.take_back is not None:
        assert found.take_back in well
        assert image.brokers[found.take_back].health.cause is not Cause.HEALTH_CHANGED_BY_OPERATOR
    assert sum((found.put_aside is not None, found.take_back is not None, bool(found.trouble))) <= 1
