"""When a broker says that clients do not reach it, and when it takes that back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.network_probes import next_brokers, probe_id, probed_listeners
from broker.network_watch import BACK_S, LATE_S, NetworkWatch
from kraft.image.metadata import MetadataImage
from tests.kraft.images import beaten, with_brokers
from wire.listeners import ListenerConfig, ListenerKind, ProxyForm, SecurityProtocol

SILENCE_S, LOOK_S = 30.0, 0.5
PROBE = probe_id(b"s" * 16, 7)
LONG_S = 1e9


class Laboratory:
    def __init__(self, silence_s: float = SILENCE_S, *, is_probed: bool = True) -> None:
        self.now_s, self.frames, self.answered_s = 100.0, 0, LONG_S
        self.watch = NetworkWatch(silence_s, lambda: self.now_s, lambda: self.frames, PROBE)
        if is_probed:
            self.watch.greeted(PROBE)

    def run(self, seconds: float, *, frames_every_s: float = 0.0) -> bool:
        """What the last look says."""
        said = self.watch.is_silent
        for number in range(1, round(seconds / LOOK_S) + 1):
            self.now_s += LOOK_S
            if frames_every_s and number % round(frames_every_s / LOOK_S) == 0:
                self.frames += 1
            said = self.watch.look(self.answered_s)
        return said


def test_silence_counts_once_a_probe_was_seen() -> None:
    laboratory = Laboratory(is_probed=False)
    laboratory.watch.greeted("rdkafka")
    laboratory.watch.greeted(None)
    laboratory.watch.greeted(probe_id(b"s" * 16, 8))
    assert not laboratory.run(1_000)
    laboratory.watch.greeted(PROBE)
    assert laboratory.run(LOOK_S)


def test_it_takes_all_of_the_time() -> None:
    laboratory = Laboratory()
    assert not laboratory.run(SILENCE_S - LOOK_S)
    assert laboratory.run(LOOK_S)


def test_few_frames_are_enough() -> None:
    assert not Laboratory().run(1_000, frames_every_s=SILENCE_S - LOOK_S)


def test_frames_must_come_for_a_while_before_it_is_well() -> None:
    laboratory = Laboratory()
    assert laboratory.run(SILENCE_S)
    assert laboratory.run(BACK_S, frames_every_s=5)
    assert not laboratory.run(6, frames_every_s=5)
    assert not laboratory.run(100, frames_every_s=5)


def test_a_pause_begins_the_while_anew() -> None:
    laboratory = Laboratory()
    laboratory.run(SILENCE_S)
    for _ in range(5):
        assert laboratory.run(BACK_S - 10, frames_every_s=5)
        assert laboratory.run(SILENCE_S / 2)


def test_silence_without_answered_heartbeats_is_the_whole_networks() -> None:
    laboratory = Laboratory()
    laboratory.answered_s = 0.0
    assert not laboratory.run(1_000)
    laboratory.answered_s = SILENCE_S - LOOK_S
    assert not laboratory.run(LOOK_S)
    laboratory.answered_s = SILENCE_S
    assert laboratory.run(LOOK_S)


def test_a_process_that_was_stopped_listens_first() -> None:
    laboratory = Laboratory()
    laboratory.run(SILENCE_S - 2)
    laboratory.now_s += LATE_S + 3_600
    assert not laboratory.run(SILENCE_S - LOOK_S)
    assert laboratory.run(2 * LOOK_S)


def test_a_broker_that_was_silent_begins_so() -> None:
    laboratory = Laboratory(is_probed=False)
    laboratory.watch.begin_silent()
    assert laboratory.run(100)
    assert laboratory.run(BACK_S, frames_every_s=5)
    assert not laboratory.run(6, frames_every_s=5)


def test_it_can_be_turned_off() -> None:
    laboratory = Laboratory(0.0)
    laboratory.watch.begin_silent()
    assert not laboratory.run(1_000)


@given(st.lists(st.tuples(st.integers(1, 200), st.sampled_from((0.0, 1.0, 5.0, 14.0, 29.0))), max_size=8))
def test_it_changes_its_mind_only_after_the_times(phases: list[tuple[int, float]]) -> None:
    laboratory = Laboratory()
    said, changed_s = False, laboratory.now_s
    for looks, frames_every_s in phases:
        for number in range(looks):
            every = round(frames_every_s / LOOK_S)
            laboratory.frames += bool(every) and number % every == 0
            now_said = laboratory.run(LOOK_S)
            if now_said != said:
                least_s = SILENCE_S if now_said else BACK_S
                assert laboratory.now_s - changed_s >= least_s
                said, changed_s = now_said, laboratory.now_s


def ids(image: MetadataImage, broker_id: int) -> list[int]:
    return [broker.broker_id for broker in next_brokers(image, broker_id)]


def test_each_broker_is_probed_by_three_others() -> None:
    image = with_brokers(6)
    assert ids(image, 0) == [1, 2, 3]
    assert ids(image, 4) == [5, 0, 1]
    image, _ = beaten(image, 5, want_fence=True)
    assert ids(image, 4) == [0, 1, 2]
    assert ids(with_brokers(2), 1) == [0]
    assert ids(with_brokers(1), 0) == []


def test_probes_take_listeners_that_all_clients_may_use() -> None:
    def listener(name: str, kind: ListenerKind, protocol: SecurityProtocol, proxies: ProxyForm) -> ListenerConfig:
        return ListenerConfig(name, ("h", 1), None, kind, protocol, None, proxies)

    listeners = [
        listener("INTERNAL", ListenerKind.INTERNAL, SecurityProtocol.PLAINTEXT, ProxyForm.NONE),
        listener("PROXIED", ListenerKind.TENANT, SecurityProtocol.SASL_SSL, ProxyForm.TERMINATED),
        listener("SSL", ListenerKind.OPERATOR, SecurityProtocol.SSL, ProxyForm.NONE),
        listener("TENANTS", ListenerKind.TENANT, SecurityProtocol.SASL_PLAINTEXT, ProxyForm.NONE),
    ]
    assert [one.name for one in probed_listeners(listeners)] == ["TENANTS", "SSL"]
