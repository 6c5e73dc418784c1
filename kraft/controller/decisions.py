"""The controller's decisions for clients: one row per API that brokers forward in an Envelope.

Each decision is a pure function: image and request to records and reply. UnregisterBroker is forwarded too, but is not
in this table, because `BrokerLiveness` also ends the broker's session.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from kraft.controller.acls import create_acls, delete_acls
from kraft.controller.api_keys import decide_create_api_key, decide_delete_api_key
from kraft.controller.balance_levelling import Inputs
from kraft.controller.balance_requests import alter_balance, describe_balance, list_balance_moves, plan_balance
from kraft.controller.balance_status import BalanceStatus
from kraft.controller.broker_loads import BrokerLoads
from kraft.controller.cells import decide_alter_cell, decide_describe_cells, knowing_tenants
from kraft.controller.client_quotas import alter_client_quotas
from kraft.controller.configs import alter_configs, incremental_alter_configs
from kraft.controller.driver import Decide, Decided
from kraft.controller.features import update_features
from kraft.controller.health_duties import HealthDuties
from kraft.controller.health_requests import alter_broker_health
from kraft.controller.mutation_quotas import UNBOUNDED, MutationQuota
from kraft.controller.policy import ControllerPolicy
from kraft.controller.quota_coordinator import QuotaCoordinator
from kraft.controller.quota_description import describe_shares
from kraft.controller.reassignment_requests import alter_reassignments, list_reassignments
from kraft.controller.reported_usage import ReportedUsage, describe_usage
from kraft.controller.requested_elections import elect_leaders
from kraft.controller.restored_topics import restore_topic
from kraft.controller.scram_credentials import alter_user_scram_credentials
from kraft.controller.tenants import alter_tenant, create_tenant, decide_delete_tenant, move_tenant
from kraft.controller.topics import create_partitions, create_topics, delete_topics
from kraft.image.metadata import MetadataImage
from wire.apis import ApiKey
from wire.messages import Message


class Circumstances(Struct, frozen=True):
    """Inputs of a decision besides image and request. `now_ms`: wall time; `now_s`: the monotonic clock's."""

    policy: ControllerPolicy
    rng: random.Random
    now_ms: int
    loads: BrokerLoads
    usage: ReportedUsage
    balance: BalanceStatus
    now_s: float
    health: HealthDuties
    quotas: QuotaCoordinator
    mutations: MutationQuota = UNBOUNDED


DECISIONS: Mapping[int, Callable[[MetadataImage, Any, Circumstances], Decided[Any]]] = {
    ApiKey.CREATE_TOPICS: lambda image, request, at: create_topics(image, request, at.policy, at.rng, at.mutations),
    ApiKey.DELETE_TOPICS: lambda image, request, at: delete_topics(image, request, at.policy, at.mutations),
    ApiKey.CREATE_ACLS: lambda image, request, at: create_acls(image, request, at.policy, at.rng),
    ApiKey.DELETE_ACLS: lambda image, request, at: delete_acls(image, request),
    ApiKey.ALTER_CONFIGS: lambda image, request, at: alter_configs(image, request, at.policy),
    ApiKey.CREATE_PARTITIONS: lambda image, request, at: create_partitions(
        image, request, at.policy, at.rng, at.mutations
    ),
    ApiKey.ELECT_LEADERS: lambda image, request, at: elect_leaders(image, request, at.policy),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: lambda image, request, at: incremental_alter_configs(image, request, at.policy),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: lambda image, request, at: alter_reassignments(image, request, at.policy),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: lambda image, request, at: list_reassignments(image, request),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: lambda image, request, at: alter_user_scram_credentials(
        image, request, at.policy
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: lambda image, request, at: alter_client_quotas(image, request),
    ApiKey.UPDATE_FEATURES: lambda image, request, at: update_features(image, request),
    ApiKey.RESTORE_TOPIC: lambda image, request, at: restore_topic(image, request, at.policy, at.rng),
    ApiKey.CREATE_TENANT: lambda image, request, at: create_tenant(
        image, request, at.policy, at.rng, at.now_ms, at.loads
    ),
    ApiKey.ALTER_TENANT: lambda image, request, at: alter_tenant(image, request, at.policy),
    ApiKey.DELETE_TENANT: lambda image, request, at: decide_delete_tenant(image, request, at.policy),
    ApiKey.MOVE_TENANT: lambda image, request, at: move_tenant(image, request, at.policy, at.rng, at.loads),
    ApiKey.CREATE_API_KEY: lambda image, request, at: decide_create_api_key(
        image, request, at.policy, at.rng, at.now_ms
    ),
    ApiKey.DELETE_API_KEY: lambda image, request, at: decide_delete_api_key(image, request),
    ApiKey.DESCRIBE_CELLS: lambda image, request, at: knowing_tenants(
        image, lambda living: decide_describe_cells(image, request, at.policy, at.loads, living)
    ),
    ApiKey.ALTER_CELL: lambda image, request, at: decide_alter_cell(image, request, at.policy),
    ApiKey.DESCRIBE_BALANCE: lambda image, request, at: describe_balance(
        image, request, at.policy, at.balance, at.now_s
    ),
    ApiKey.PLAN_BALANCE: lambda image, request, at: plan_balance(
        image, request, Inputs(at.policy, at.usage, at.now_s, at.now_ms), at.loads, at.rng
    ),
    ApiKey.ALTER_BALANCE: lambda image, request, at: alter_balance(image, request, at.now_ms),
    ApiKey.LIST_BALANCE_MOVES: lambda image, request, at: list_balance_moves(image, request),
    ApiKey.ALTER_BROKER_HEALTH: lambda image, request, at: alter_broker_health(
        image, request, at.policy, at.health, at.now_ms
    ),
    ApiKey.DESCRIBE_SHARES: lambda image, request, at: describe_shares(image, request, at.quotas, at.policy, at.now_s),
    ApiKey.DESCRIBE_USAGE: lambda image, request, at: describe_usage(image, request, at.usage, at.now_s),
}


def decision_of(api_key: int, request: Message, at: Circumstances) -> Decide | None:
    """The decision for one request; None for an API that is not in the table."""
    decide = DECISIONS.get(api_key)
    return None if decide is None else lambda image: decide(image, request, at)
