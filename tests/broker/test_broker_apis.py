"""The tables of who answers an API: each that is served stands in one, and the rows agree with each other."""

from __future__ import annotations

from broker.apis import ROWS, routes
from broker.gates.gating import ClusterRight
from broker.handlers.groups import GroupHandlers
from broker.handlers.reassignments import ReassignmentHandlers
from kraft.controller.decisions import DECISIONS
from kraft.controller.requests import ANSWERS
from tests.broker.gate_oracle.own_rights import own_rights
from wire.apis import APIS, NODES, ApiKey
from wire.listeners import ListenerKind

BROKERS = {row.key for row in ROWS}


def test_every_served_api_is_answered_by_brokers_or_by_the_controller() -> None:
    assert set(APIS) == BROKERS | set(ANSWERS) | {ApiKey.API_VERSIONS}
    assert BROKERS & set(ANSWERS) == {ApiKey.FETCH, ApiKey.UNREGISTER_BROKER}
    assert all(key.listeners == NODES for key in ApiKey if key in set(ANSWERS) - BROKERS)


def test_rows_stand_in_order_of_their_keys() -> None:
    keys = [row.key for row in ROWS]
    assert keys == sorted(set(keys))


def test_what_the_controller_decides_for_clients_comes_over_a_broker() -> None:
    assert set(DECISIONS) <= BROKERS


def test_produce_and_fetch_alone_have_no_gate() -> None:
    assert {row.key for row in ROWS if row.gate is None} == {ApiKey.PRODUCE, ApiKey.FETCH}


def test_fields_are_classified_for_apis_that_tenants_are_served() -> None:
    for row in ROWS:
        assert ListenerKind.TENANT in row.key.listeners or not (row.request or row.response), row.key


def test_routes_are_bound_to_the_handlers_that_are_given() -> None:
    groups = object.__new__(GroupHandlers)
    moves = object.__new__(ReassignmentHandlers)
    found = routes([groups, moves])
    assert found[ApiKey.HEARTBEAT].handler == groups.heartbeat
    assert found[ApiKey.ELECT_LEADERS].handler == moves.elect_leaders
    assert set(found) == {
        row.key
        for row in ROWS
        if row.handler.__qualname__.split(".")[0]
        in (
            "GroupHandlers",
            "ReassignmentHandlers",
        )
    }


def test_apis_of_our_own_for_operators_need_a_right_over_the_cluster() -> None:
    own = [row for row in ROWS if row.key >= ApiKey.TIER_STATE]
    assert all(isinstance(row.gate, ClusterRight) for row in own)
    assert {row.key.api_name for row in own if row.key.listeners != NODES} == set(own_rights())
