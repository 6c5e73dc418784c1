"""The tables of who answers an API: each that is served stands in one, and the rows agree with each other."""

from __future__ import annotations

import pytest

from broker.apis import ROWS, routes
from broker.gates.gating import ClusterRight
from broker.handlers.elections import ElectLeaders
from broker.handlers.groups import GroupHandlers
from broker.requests.failures import failing
from broker.requests.forwarding import Forwarder
from common.errors import ErrorCode, ProtocolError
from common.pacing import at_once
from kraft.controller.decisions import DECISIONS
from kraft.controller.requests import ANSWERS
from tests.broker.gate_oracle.own_rights import own_rights
from wire.apis import APIS, NODES, ApiKey
from wire.codec import encode_response
from wire.listeners import ListenerKind
from wire.messages import AlterClientQuotasRequest, AlterUserScramCredentialsRequest

BROKERS = {row.key for row in ROWS}
HANDLED_FIRST = {
    ApiKey.DELETE_TOPICS,
    ApiKey.CREATE_ACLS,
    ApiKey.DELETE_ACLS,
    ApiKey.ALTER_CONFIGS,
    ApiKey.ALTER_CLIENT_QUOTAS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.ELECT_LEADERS,
}
"""What the controller decides after a broker's own handler has had a part in it."""


def test_every_served_api_is_answered_by_brokers_or_by_the_controller() -> None:
    assert set(APIS) == BROKERS | set(ANSWERS) | {ApiKey.API_VERSIONS}
    assert BROKERS & set(ANSWERS) == {ApiKey.FETCH, ApiKey.DESCRIBE_QUORUM, ApiKey.UNREGISTER_BROKER}
    assert all(key.listeners == NODES for key in ApiKey if key in set(ANSWERS) - BROKERS)


def test_rows_stand_in_order_of_their_keys() -> None:
    keys = [row.key for row in ROWS]
    assert keys == sorted(set(keys))


def test_what_the_controller_decides_for_clients_comes_over_a_broker() -> None:
    assert set(DECISIONS) <= BROKERS


def test_what_is_only_forwarded_is_the_controllers_to_decide() -> None:
    forwarded = {row.key for row in ROWS if row.handler is Forwarder.serve}
    assert forwarded <= set(DECISIONS) | {ApiKey.UNREGISTER_BROKER}
    assert set(DECISIONS) - forwarded == HANDLED_FIRST


@pytest.mark.parametrize("key", sorted(DECISIONS), ids=lambda key: key.api_name)
def test_a_request_that_no_controller_decides_has_an_answer(key: ApiKey) -> None:
    """Every version can be encoded; the error stands in the whole, or in the rows, of which there are none here."""
    api = APIS[key]
    answer = at_once(failing(api.request(), ProtocolError(ErrorCode.NOT_CONTROLLER, "away")))
    assert getattr(answer, "error_code", ErrorCode.NOT_CONTROLLER) == ErrorCode.NOT_CONTROLLER
    assert getattr(answer, "error_message", "away") == "away"
    for version in range(api.min_version, api.max_version + 1):
        assert encode_response(key, version, 1, answer)


def test_a_request_of_many_elements_fails_in_slices() -> None:
    """These are not cut into portions."""
    error = ProtocolError(ErrorCode.REQUEST_TIMED_OUT, "late")
    deletions = [
        AlterUserScramCredentialsRequest.ScramCredentialDeletion(name=f"u{at}", mechanism=1) for at in range(9)
    ]
    entity = AlterClientQuotasRequest.EntryData.EntityData(entity_type="user", entity_name="u")
    entries = [AlterClientQuotasRequest.EntryData(entity=[entity], ops=[])] * 9
    for request, rows in (
        (AlterUserScramCredentialsRequest(deletions=deletions, upsertions=[]), "results"),
        (AlterClientQuotasRequest(entries=entries, validate_only=False), "entries"),
    ):
        assert len(list(failing(request, error))) >= 9
        answer = at_once(failing(request, error))
        assert [(row.error_code, row.error_message) for row in getattr(answer, rows)] == [(error.code, "late")] * 9


def test_an_entry_of_many_entities_fails_in_slices() -> None:
    row = AlterClientQuotasRequest.EntryData
    entities = [row.EntityData(entity_type=f"t{at}", entity_name="u") for at in range(99)]
    request = AlterClientQuotasRequest(entries=[row(entity=entities, ops=[])], validate_only=False)
    error = ProtocolError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert len(list(failing(request, error))) >= 99
    (entry,) = at_once(failing(request, error)).entries
    assert [one.entity_type for one in entry.entity] == [one.entity_type for one in entities]


def test_produce_and_fetch_alone_have_no_gate() -> None:
    assert {row.key for row in ROWS if row.gate is None} == {ApiKey.PRODUCE, ApiKey.FETCH}


def test_fields_are_classified_for_apis_that_tenants_are_served() -> None:
    for row in ROWS:
        assert ListenerKind.TENANT in row.key.listeners or not (row.request or row.response), row.key


def test_routes_are_bound_to_the_handlers_that_are_given() -> None:
    groups = object.__new__(GroupHandlers)
    elections = object.__new__(ElectLeaders)
    found = routes([groups, elections])
    assert found[ApiKey.HEARTBEAT].handler == groups.heartbeat
    assert found[ApiKey.ELECT_LEADERS].handler == elections.handle
    assert set(found) == {
        row.key
        for row in ROWS
        if row.handler.__qualname__.split(".")[0]
        in (
            "GroupHandlers",
            "ElectLeaders",
        )
    }


def test_apis_of_our_own_for_operators_need_a_right_over_the_cluster() -> None:
    own = [row for row in ROWS if row.key >= ApiKey.TIER_STATE]
    assert all(isinstance(row.gate, ClusterRight) for row in own)
    assert {row.key.api_name for row in own if row.key.listeners != NODES} == set(own_rights())
