"""Settings of topics and brokers: what is in effect and why, what a change would do, and changing them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from common.node_settings.catalogue import NODE_SETTINGS
from common.settings import CLUSTER_WIDE, PER_BROKER, Setting
from common.topic_settings import TOPIC_SETTINGS
from tidelog.admin.admin_client import error_text
from tidelog.admin.library_client import AdminClient
from tidelog.admin.replica_moves import Refused
from wire.messages import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
)

SET, DELETE = 0, 1
SOURCES = {
    1: "set for this topic",
    2: "set for this broker",
    3: "set for all brokers",
    4: "from the broker's file",
    5: "default",
    6: "set for the cluster",
}
ALL_BROKERS = ""


class Kind(IntEnum):
    """Of a resource that has settings; the numbers are the protocol's."""

    TOPIC = 2
    BROKER = 4


class Resource(NamedTuple):
    """`name`: a topic's, or a broker's id, or ALL_BROKERS."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        if self.kind is Kind.TOPIC:
            return f"topic {self.name}"
        return f"broker {self.name}" if self.name else "all brokers"


class Effective(NamedTuple):
    """A setting of a resource. `synonyms`: values that would hold if this one were removed, each with its source.
    `value` is None for a secret."""

    name: str
    value: str | None
    source: str
    is_own: bool
    is_secret: bool
    is_fixed: bool
    synonyms: Sequence[tuple[str, str | None]]

    @property
    def declared(self) -> Setting | None:
        return TOPIC_SETTINGS.get(self.name) or NODE_SETTINGS.get(self.name)

    @property
    def default(self) -> str:
        found = self.declared
        return "" if found is None else found.text(found.default)


class Change(NamedTuple):
    """`value` is None to remove the resource's own value."""

    resource: Resource
    setting: str
    value: str | None


def effective(client: AdminClient, resource: Resource, names: Sequence[str] | None = None) -> list[Effective]:
    """All settings of a resource, or these. Raises Refused and KafkaError."""
    kind, name = resource
    asked = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=int(kind),
        resource_name=name,
        configuration_keys=None if names is None else list(names),
    )
    broker = int(name) if kind is Kind.BROKER and name else None
    request = DescribeConfigsRequest(resources=[asked], include_synonyms=True, include_documentation=False)
    (result,) = client.send(request, broker).results
    if problem := error_text({"error_code": result.error_code, "error_message": result.error_message}):
        raise Refused(problem)
    own = 1 if kind is Kind.TOPIC else 2 if name else 3
    return sorted(_effective(row, own) for row in result.configs)


_Row = DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult


def _effective(row: _Row, own: int) -> Effective:
    return Effective(
        row.name,
        row.value,
        SOURCES.get(row.config_source, "unknown"),
        row.config_source == own,
        bool(row.is_sensitive),
        bool(row.read_only),
        tuple((SOURCES.get(one.source, "unknown"), one.value) for one in row.synonyms if one.source != own),
    )


def alter(client: AdminClient, changes: Sequence[Change], *, only_checked: bool = False) -> None:
    """Make changes, or only have them checked by the cluster. Raises Refused and KafkaError."""
    row = IncrementalAlterConfigsRequest.AlterConfigsResource
    resources = [
        row(
            resource_type=int(resource.kind),
            resource_name=resource.name,
            configs=[
                row.AlterableConfig(
                    name=one.setting, config_operation=DELETE if one.value is None else SET, value=one.value
                )
                for one in changes
                if one.resource == resource
            ],
        )
        for resource in dict.fromkeys(one.resource for one in changes)
    ]
    request = IncrementalAlterConfigsRequest(resources=resources, validate_only=only_checked)
    for result in client.send(request).responses:
        if problem := error_text({"error_code": result.error_code, "error_message": result.error_message}):
            raise Refused(problem)


def may_change(setting: Setting | None, resource: Resource) -> bool:
    """Whether a value can be given to this resource while its brokers run."""
    if setting is None or resource.kind is Kind.TOPIC:
        return True
    return setting.update == CLUSTER_WIDE or (setting.update == PER_BROKER and bool(resource.name))
