"""What each string, uuid and blob in the messages of tenants' APIs can be.

Fields with an `entityType` in their schema classify themselves, some have one meaning wherever their name stands, and
all others are classified by the row of their API (`broker.apis`), by path. A field that has no class ends the start of
a broker (`compiler.py`), as a path that fits no field fails a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto


class FieldClass(Enum):
    """What happens to a field on its way in and out."""

    TOPIC_NAME = auto()  # in: the tenant's prefix before it; out: without it, and gone where it has another one
    GROUP_ID = auto()  # likewise
    TRANSACTIONAL_ID = auto()  # likewise
    COORDINATOR_KEY = auto()  # likewise: a group or transactional id, as the key type beside it says
    TOPIC_ID = auto()  # in: another tenant's becomes one that no topic has; out: back to what the client sent
    CONFIG_RESOURCE = auto()  # as a name, where the type beside it is a topic or a group
    ACL_RESOURCE = auto()  # as a name, and the wildcard is the prefix alone, with the pattern type PREFIXED
    PRINCIPAL = auto()  # the prefix goes behind the type: User:<prefix>key
    HOST = auto()  # out: the broker's name below the proxies' domain, and their port beside it
    CLUSTER_ID = auto()  # out: the tenant's id
    LOG_DIRECTORY = auto()  # out: one path for all
    TEXT = auto()  # out: without the prefix, or the error code's own sentence where another tenant's could be in it
    FILTER = auto()  # not touched: the handler compares it with what the tenant sees (`tenant_acls.py`)
    OPAQUE = auto()  # a client's own bytes, which no broker ever gives to another tenant
    COMMON = auto()  # the same for everybody: settings, features, states, racks


TEXT, KEY, RES = FieldClass.TEXT, FieldClass.COORDINATOR_KEY, FieldClass.CONFIG_RESOURCE
ACL, WHO, HOST, FILTER = FieldClass.ACL_RESOURCE, FieldClass.PRINCIPAL, FieldClass.HOST, FieldClass.FILTER
OWN, ALL = FieldClass.OPAQUE, FieldClass.COMMON
CLUSTER_ID, LOG_DIRECTORY = FieldClass.CLUSTER_ID, FieldClass.LOG_DIRECTORY

ENTITIES: Mapping[str, FieldClass | None] = {
    "topicName": FieldClass.TOPIC_NAME,
    "groupId": FieldClass.GROUP_ID,
    "transactionalId": FieldClass.TRANSACTIONAL_ID,
    "brokerId": None,  # numbers: lists of brokers hold only those that concern the tenant
    "producerId": None,
}
"""By `entityType`; None is left as it is."""

NAMES: Mapping[str, FieldClass] = {
    "error_message": TEXT,
    "topic_id": FieldClass.TOPIC_ID,
    "member_id": OWN,
    "group_instance_id": OWN,
    "rack": ALL,
}
"""By the field's name, in every message."""
