"""Every API and version that is served, asked as principals with other rights each, against Apache Kafka's answers
(`gate_oracle/generate.py`): error codes, where they stand, and what is hidden."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from broker.apis import ROWS
from broker.gates.cluster_gates import create_delegation_token
from broker.gates.gating import CREATE_TOKENS, USER, free
from broker.handlers.delegation_tokens import DelegationTokens
from broker.security.authorizer import AuthorizerConfig
from broker.security.config import SecurityConfig
from broker.tenancy.scope import ProxyAddress, TenantScope
from common.errors import ErrorCode
from kraft.image.topics import TopicsImage
from kraft.records import AclPattern
from tests.broker.gate_oracle.answers import ask_all
from tests.broker.gate_oracle.answers import read as read_answers
from tests.broker.gate_oracle.differences import comparable, expected
from tests.broker.gate_oracle.node import GatedNode
from tests.broker.gate_oracle.own_rights import markdown as own_markdown
from tests.broker.gate_oracle.own_rights import own_rights
from tests.broker.gate_oracle.questions import QUESTIONS
from tests.broker.gate_oracle.rights import ALL, NONE, RIGHTS
from tests.broker.gate_oracle.scene import restorer
from tests.broker.gate_oracle.table import ANSWERS, markdown
from tests.broker.tenant_requests import request
from tests.broker.test_transactions_gates import Rights
from wire.apis import APIS
from wire.codec import decode_response
from wire.listeners import ListenerKind
from wire.messages import CreateDelegationTokenRequest

KAFKAS = read_answers(ANSWERS)
OURS = {
    "DescribeTier": "DESCRIBE", "RestoreTopic": "ALTER", "CreateTenant": "ALTER", "DescribeTenants": "DESCRIBE",
    "AlterTenant": "ALTER", "DeleteTenant": "ALTER", "MoveTenant": "ALTER", "CreateApiKey": "ALTER",
    "DeleteApiKey": "ALTER", "DescribeApiKeys": "DESCRIBE", "DescribeCells": "DESCRIBE", "AlterCell": "ALTER",
    "DescribeUsage": "DESCRIBE", "DescribeBalance": "DESCRIBE", "PlanBalance": "DESCRIBE",
    "AlterBalance": "ALTER", "ListBalanceMoves": "DESCRIBE",
    "AlterBrokerHealth": "ALTER",
    "DescribeShares": "DESCRIBE", "DescribeTransactionClients": "DESCRIBE",
}  # fmt: skip
"""APIs that Apache Kafka has not, with what they ask for of the cluster."""
EXEMPT = {"SaslHandshake": "comes before there is a principal", "SaslAuthenticate": "comes before there is a principal"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatedNode]:
    security = SecurityConfig(
        authorizer=AuthorizerConfig(frozenset({"User:ANONYMOUS"})), queue_max=len(RIGHTS), per_address_max=len(RIGHTS)
    )
    async with GatedNode(tmp_path_factory.mktemp("gates"), security) as made:
        await made.furnish()
        yield made


def test_every_api_and_version_that_clients_are_served_is_asked() -> None:
    asked = {(question.api, version) for question in QUESTIONS for version in question.versions}
    served = {
        (api.name, version)
        for api in APIS.values()
        if api.kinds & {ListenerKind.OPERATOR, ListenerKind.TENANT} and api.name not in OURS and api.name not in EXEMPT
        for version in range(api.min_version, api.max_version + 1)
    }
    assert asked == served
    assert {(api, label, version) for api, label, version in KAFKAS} == {
        (question.api, question.label, version) for question in QUESTIONS for version in question.versions
    }
    assert all(set(by_right) == set(RIGHTS) for by_right in KAFKAS.values())


def test_the_answers_can_tell_a_gate_from_none() -> None:
    """Each API that asks for a right is answered otherwise to who has all than to who has none."""
    silent = {question.api for question in QUESTIONS}
    for (api, _, _), by_right in KAFKAS.items():
        if by_right[NONE] != by_right[ALL]:
            silent.discard(api)
    tokens = {f"{verb}DelegationToken" for verb in ("Renew", "Expire", "Describe")}
    telemetry = {"GetTelemetrySubscriptions", "PushTelemetry"}
    assert silent == {"ApiVersions", *tokens, *telemetry}
    assert {row.key.api_name for row in ROWS if row.gate is free} == {"ApiVersions", *tokens, *telemetry, *EXEMPT}


def test_a_tenants_right_to_tokens_for_a_user_is_that_of_its_acl() -> None:
    scope = TenantScope("lkc-aaaaaa", "lkc-aaaaaa_", TopicsImage(), ProxyAddress())
    resource, _ = scope.resource_in("User:bob", AclPattern.LITERAL)
    owner = scope.principal_in("User:bob").removeprefix("User:")
    message = CreateDelegationTokenRequest(owner_principal_type="User", owner_principal_name=owner, renewers=[])
    context: Any = SimpleNamespace(principal=scope.principal_in("User:KEY"), tenant=scope.tenant)
    codes = []
    for rights in (Rights(), Rights((CREATE_TOKENS, USER, resource))):
        access: Any = rights
        codes.append(create_delegation_token(context, access, message, DelegationTokens().create).error_code)
    assert codes == [ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED, ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED]


def test_the_table_in_the_documentation_is_that_of_the_answers() -> None:
    page = Path(__file__).parents[2] / "docs" / "authorization.md"
    assert markdown() in page.read_text(), "python -m tests.broker.gate_oracle.table prints it"


def test_the_table_of_our_own_apis_is_that_of_their_rows() -> None:
    page = Path(__file__).parents[2] / "docs" / "authorization.md"
    assert own_rights() == OURS
    assert own_markdown() in page.read_text(), "python -m tests.broker.gate_oracle.own_rights prints it"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("api", list(dict.fromkeys(question.api for question in QUESTIONS)))
async def test_answers_are_apache_kafkas(node: GatedNode, api: str) -> None:
    questions = [question for question in QUESTIONS if question.api == api]
    found = await ask_all(questions, node.login, node.ids, restorer(node.anonymous, node.ids), node.wires)
    wrong = [
        f"{key} {right}:\n  ours  {answer}\n  Kafka {expected(KAFKAS, key, right)}"
        for key, by_right in found.items()
        for right, answer in by_right.items()
        if comparable(key, answer) != expected(KAFKAS, key, right)
    ]
    assert not wrong, f"{len(wrong)} differ:\n" + "\n".join(wrong[:5])


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("api", OURS)
async def test_apis_of_our_own_ask_for_a_right_over_the_cluster(node: GatedNode, api: str) -> None:
    row = next(row for row in APIS.values() if row.name == api)
    refused = []
    for right in RIGHTS:
        wire = node.wires.get(right) or await node.login(right)
        payload = await wire.exchange(request(row, 0, {}), 0)
        assert payload is not None
        answer = decode_response(row.key, 0, payload)[1]
        if answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            refused.append(right)
    allowing = {f"cluster:{OURS[api]}", *(["cluster:ALTER"] if OURS[api] == "DESCRIBE" else [])}
    denied = f"-cluster:{OURS[api]}"
    assert refused == [
        right for right in RIGHTS if right == denied or (right != ALL and right[0] != "-" and right not in allowing)
    ]
