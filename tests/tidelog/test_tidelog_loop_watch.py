"""What counts as a callback that held the loop."""

from __future__ import annotations

import sys
from types import FrameType

from common.metrics import Metrics
from tidelog.nodes.loop_watch import HELD_S, OTHER, OVERLOOKED_S, PLACES_MAX, LoopWatch, Place


def frame_of_a_call() -> FrameType:
    return sys._getframe()


def other_call() -> FrameType:
    return sys._getframe()


def test_a_callback_that_stands_in_two_samples_of_a_turn_is_held() -> None:
    watch, outer, inner = LoopWatch(), frame_of_a_call(), other_call()
    assert watch.sample([outer, inner], turn=1, cpu_s=1.0) is None
    assert watch.sample([outer, inner], turn=1, cpu_s=1.0 + HELD_S) is None  # it goes on
    held = watch.settle()
    assert held is not None
    assert held.what.endswith(":other_call")
    assert held.seconds >= HELD_S
    assert held.samples == 2
    assert [part.split(":")[1] for part in held.stack] == ["frame_of_a_call", "other_call"]


def test_the_frame_that_stands_in_every_sample_is_named() -> None:
    watch, outer = LoopWatch(), frame_of_a_call()
    watch.sample([outer, other_call()], turn=1, cpu_s=1.0)
    watch.sample([outer, other_call()], turn=1, cpu_s=1.5)
    held = watch.settle()
    assert held is not None
    assert held.what.endswith(":frame_of_a_call")


def test_the_same_coroutine_in_another_turn_held_nothing() -> None:
    watch, task = LoopWatch(), frame_of_a_call()
    assert watch.sample([task], turn=1, cpu_s=1.0) is None
    assert watch.sample([task], turn=2, cpu_s=1.0 + LoopWatch().interval_s) is None
    assert watch.settle() is None
    assert not watch.places


def test_one_late_sample_shows_a_call_that_let_nothing_run() -> None:
    watch = LoopWatch()
    watch.sample([other_call()], turn=1, cpu_s=1.0)
    watch.settle()
    watch.sample([frame_of_a_call()], turn=2, cpu_s=1.0 + watch.interval_s + 3 * HELD_S)
    held = watch.settle()
    assert held is not None
    assert held.seconds >= 2 * HELD_S


def test_one_late_sample_of_a_thread_that_waited_meanwhile_shows_nothing_but_a_very_long_call() -> None:
    for late_s, found in ((OVERLOOKED_S / 2, False), (2 * OVERLOOKED_S, True)):
        watch = LoopWatch()
        watch.sample([other_call()], turn=1, cpu_s=1.0)
        watch.settle()
        watch.sample([frame_of_a_call()], turn=2, cpu_s=1.0 + watch.interval_s + late_s, switched=True)
        assert (watch.settle() is not None) is found


def test_a_long_loop_between_callbacks_is_nobodys() -> None:
    watch = LoopWatch()
    watch.sample([frame_of_a_call()], turn=1, cpu_s=1.0)
    watch.sample([], turn=2, cpu_s=1.0 + HELD_S)
    assert watch.settle() is None


def test_places_are_bounded_and_logged_ever_more_seldom() -> None:
    watch, logged = LoopWatch(), 0
    for number in range(PLACES_MAX):
        watch.places[f"place {number}"] = Place()
    for turn in range(16):
        frame = frame_of_a_call()
        watch.sample([frame], turn, 10.0 + turn)
        watch.sample([frame], turn, 10.0 + turn + 2 * HELD_S)
        held = watch.settle()
        assert held is not None
        assert held.what == OTHER
        logged += watch.take_log(held)
    assert logged == 5  # 1, 2, 4, 8, 16
    frame = frame_of_a_call()
    watch.sample([frame], 100, 50.0)
    watch.sample([frame], 100, 50.0 + 4 * HELD_S)
    held = watch.settle()
    assert held is not None
    assert watch.take_log(held)  # much longer than those before


def test_the_summary_counts_and_sums_by_place() -> None:
    watch, metrics = LoopWatch(), Metrics()
    watch.register(metrics)
    frame = frame_of_a_call()
    watch.sample([frame], 1, 1.0)
    watch.sample([frame], 1, 1.5)
    watch.settle()
    text = metrics.text().decode()
    assert 'tidelog_loop_held_seconds_count{what="tests.tidelog.test_tidelog_loop_watch:frame_of_a_call"} 1.0' in text
    assert 'tidelog_loop_held_seconds_sum{what="tests.tidelog.test_tidelog_loop_watch:frame_of_a_call"} 0.5' in text
