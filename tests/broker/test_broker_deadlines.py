"""The heap of what is due and the queue by key over it, beside models of them."""

from hypothesis import given
from hypothesis import strategies as st

from broker.deadlines import DeadlineQueue, DueHeap
from tests.common.call_count import counted_calls

MOMENTS = st.integers(0, 20).map(float)


@given(st.lists(st.one_of(st.tuples(st.just("add"), MOMENTS), st.tuples(st.just("pop"), MOMENTS)), max_size=80))
def test_items_are_due_by_time_and_then_in_the_order_they_came(steps: list[tuple[str, float]]) -> None:
    heap, model = DueHeap[int](), list[tuple[float, int]]()
    for number, (step, when) in enumerate(steps):
        if step == "add":
            heap.add(when, number)
            model.append((when, number))
        else:
            model.sort()
            expected = model.pop(0) if model and model[0][0] <= when else None
            entry = heap.pop_due(when)
            assert (entry and (entry[0], entry[2])) == expected
        first = heap.first()
        assert (first and (first[0], first[2])) == min(model, default=None)
        assert len(heap) == len(model)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("set"), st.sampled_from("abcd"), MOMENTS),
            st.tuples(st.just("cancel"), st.sampled_from("abcd"), st.just(0.0)),
            st.tuples(st.just("take"), st.just(""), MOMENTS),
        ),
        max_size=80,
    ),
    st.integers(1, 5),
)
def test_a_key_has_the_deadline_that_was_set_last(steps: list[tuple[str, str, float]], looks: int) -> None:
    queue, model = DeadlineQueue[str](), dict[str, float]()
    for step, key, when in steps:
        if step == "set":
            queue.set(key, when)
            model[key] = when
        elif step == "cancel":
            queue.cancel(key)
            model.pop(key, None)
        else:
            found = set[str]()
            while queue.has_due(when):
                some = list(queue.take_due(when, looks))
                assert len(some) <= looks
                found.update(some)
            assert found == {one for one, deadline in model.items() if deadline <= when}
            model = {one: deadline for one, deadline in model.items() if deadline > when}
        first = queue.first()
        assert (first is None) == (not model)
        assert first is None or first <= min(model.values())
        assert len(queue) == len(model)
        assert all(one in queue for one in model)


def test_a_deadline_that_moves_later_costs_no_entry() -> None:
    queue = DeadlineQueue[str]()
    for second in range(1000):
        queue.set("member", float(second))
    assert queue.first() == 0.0
    assert not list(queue.take_due(998.0, 1))
    assert queue.first() == 999.0
    assert list(queue.take_due(999.0, 1)) == ["member"]
    assert queue.first() is None


def test_cancelled_deadlines_are_passed_over_some_at_a_time() -> None:
    queue = DeadlineQueue[int]()
    for key in range(10_000):
        queue.set(key, float(key < 9_999))
    for key in range(9_998):
        queue.cancel(key)
    rounds = 0
    found: list[int] = []
    while queue.has_due(1.0):
        with counted_calls(of=DueHeap.pop_due) as looks:
            found += queue.take_due(1.0, 100)
        assert looks.calls <= 100
        rounds += 1
    assert (found, rounds) == ([9_999, 9_998], 100)


def test_the_first_deadline_is_found_behind_cancelled_ones_some_at_a_time() -> None:
    queue = DeadlineQueue[int]()
    for key in range(10_000):
        queue.set(key, float(key))
    for key in range(9_999):
        queue.cancel(key)
    with counted_calls(of=DueHeap.pop_first) as looks:
        first = queue.first()
    assert looks.calls < 1_000 and first is not None and first <= 9_999.0
