"""Which tenants leave an overloaded cell: few, to where there is room, and with an end."""

from __future__ import annotations

import random
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from common.pacing import at_once
from kraft.balancer.cell_relief import AIM, OVERLOADED, CellSeen, Relief, TenantSeen, Use, relieving

CAPACITY = Use(6.0, 1_000.0, 100.0)
ROUNDING = 1e-9


def cell(name: str, load: float, **fields: object) -> CellSeen:
    return CellSeen(name, Use(load * CAPACITY.load, 0.0, 0.0), CAPACITY, live=6, slots=100, **fields)  # type: ignore[arg-type]


def tenants(*loads: float) -> list[TenantSeen]:
    """`loads`: parts of a cell's load."""
    return [TenantSeen(f"t{number}", Use(load * CAPACITY.load)) for number, load in enumerate(loads)]


def relieved(hot: CellSeen, some: list[TenantSeen], *others: CellSeen, moves_max: int = 50, seed: int = 1) -> Relief:
    return at_once(relieving(hot, some, others, random.Random(seed), moves_max))


def test_one_tenant_that_suffices_leaves_and_it_is_the_lightest_such() -> None:
    relief = relieved(cell("hot", 0.9), tenants(0.3, 0.21, 0.19, 0.05), cell("cold", 0.1))
    assert [(move.tenant, move.target) for move in relief.moves] == [("t1", "cold")]
    assert not relief.is_exhausted


def test_no_cell_is_overloaded_by_what_another_is_relieved_of() -> None:
    relief = relieved(cell("hot", 0.95), tenants(0.4, 0.3, 0.25), cell("almost", 0.5), cell("full", 0.69))
    assert relief.moves == ()
    assert relief.is_exhausted


def test_a_tenant_goes_only_where_there_are_brokers_slots_and_bandwidth_for_it() -> None:
    some = [TenantSeen("t0", Use(0.3 * CAPACITY.load), factor=3, reserved=50.0)]
    hot = cell("hot", 0.9)
    closed = cell("closed", 0.1, is_open=False)
    few = CellSeen("few", Use(), CAPACITY, live=2, slots=1)
    full = CellSeen("full", Use(), CAPACITY, live=6, slots=0)
    promised = CellSeen("promised", Use(), CAPACITY, live=6, slots=1, reservable=49.0)
    assert relieved(hot, some, closed, few, full, promised).is_exhausted
    good = CellSeen("good", Use(), CAPACITY, live=3, slots=1, reservable=50.0)
    assert [move.target for move in relieved(hot, some, closed, few, full, promised, good).moves] == ["good"]


def test_a_cell_is_relieved_of_what_it_has_too_much_of() -> None:
    """One tenant has the load, another the replicas."""
    hot = CellSeen("hot", Use(0.3 * 6, 900.0, 0.0), CAPACITY, live=6)
    some = [TenantSeen("busy", Use(0.2 * 6, 10.0)), TenantSeen("wide", Use(0.0, 300.0))]
    assert [move.tenant for move in relieved(hot, some, cell("cold", 0.0)).moves] == ["wide"]


def test_no_more_than_allowed_begins_and_that_is_no_exhaustion() -> None:
    relief = relieved(cell("hot", 0.95), tenants(*[0.05] * 19), cell("cold", 0.0), moves_max=2)
    assert len(relief.moves) == 2
    assert not relief.is_exhausted


@st.composite
def hot_cells(draw: st.DrawFn) -> tuple[CellSeen, list[TenantSeen], list[CellSeen]]:
    parts = draw(st.lists(st.floats(0.0, 0.3), min_size=1, max_size=8))
    hot = cell("hot", sum(parts) + draw(st.floats(0.0, 0.2)))
    others = [cell(f"c{n}", load) for n, load in enumerate(draw(st.lists(st.floats(0.0, 1.0), max_size=4)))]
    return hot, tenants(*parts), others


@settings(max_examples=200, deadline=None)
@given(hot_cells(), st.integers(0, 1000))
def test_every_move_helps_and_the_cells_that_take_stay_below_the_aim(
    given_cells: tuple[CellSeen, list[TenantSeen], list[CellSeen]], seed: int
) -> None:
    hot, some, others = given_cells
    relief = relieved(hot, some, *others, seed=seed)
    assert len({move.tenant for move in relief.moves}) == len(relief.moves)
    loads = {one.name: one.load for one in others}
    load = hot.load
    for move in relief.moves:
        assert load > AIM, "nothing leaves a cell that is relieved"
        assert move.before == load
        assert move.after < load
        assert move.target_before == loads[move.target]
        assert move.target_after <= AIM + ROUNDING
        load, loads[move.target] = move.after, move.target_after
    assert relief.is_exhausted == (load > OVERLOADED)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.01, 0.3), min_size=1, max_size=7))
def test_with_one_measure_no_smaller_set_suffices(parts: list[float]) -> None:
    hot = cell("hot", sum(parts))
    relief = relieved(hot, tenants(*parts), *(cell(f"c{n}", 0.0) for n in range(8)))
    excess = hot.load - AIM
    sizes = [
        size for size in range(len(parts) + 1) if any(sum(s) >= excess + ROUNDING for s in combinations(parts, size))
    ]
    if excess > 0 and sizes:
        assert len(relief.moves) <= sizes[0]
