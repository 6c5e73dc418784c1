"""The classes of the string, uuid and blob fields in the messages of tenants' APIs.

A field with an `entityType` in its schema is classified by it, some names have one meaning in every message, and all
other fields are classified by path in the row of their API (`broker.apis`). A broker does not start if a field has no
class (`compiler.py`); a path that matches no field fails a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto


class FieldClass(Enum):
    """How a field is rewritten in requests (in) and responses (out)."""

    TOPIC_NAME = auto()  # in: add the tenant's prefix; out: strip it, or leave the element out if it has another prefix
    GROUP_ID = auto()  # as TOPIC_NAME
    TRANSACTIONAL_ID = auto()  # as TOPIC_NAME
    COORDINATOR_KEY = auto()  # as TOPIC_NAME: a group or transactional id, according to the key type beside it
    TOPIC_ID = auto()  # in: another tenant's id becomes one that no topic has; out: back to what the client sent
    CONFIG_RESOURCE = auto()  # as a name, if the type beside it is a topic or a group
    ACL_RESOURCE = auto()  # as a name; the wildcard becomes the prefix alone, with the pattern type PREFIXED
    PRINCIPAL = auto()  # the prefix goes after the type: User:<prefix>key
    PRINCIPAL_NAME = auto()  # as TOPIC_NAME: a principal's name whose type stands beside it; "" stays as it is
    HOST = auto()  # out: the broker's name below the proxies' domain, and their port
    CLUSTER_ID = auto()  # out: the tenant's id
    LOG_DIRECTORY = auto()  # out: one path for all tenants
    TEXT = auto()  # out: without the prefix, or the error code's standard message if another tenant's name may remain
    FILTER = auto()  # unchanged: the handler compares it with what the tenant sees (`tenant_acls.py`)
    OPAQUE = auto()  # a client's own bytes, which no broker returns to another tenant
    COMMON = auto()  # the same for all tenants: settings, features, states, racks


TEXT, KEY, RES = FieldClass.TEXT, FieldClass.COORDINATOR_KEY, FieldClass.CONFIG_RESOURCE
ACL, WHO, HOST, FILTER = FieldClass.ACL_RESOURCE, FieldClass.PRINCIPAL, FieldClass.HOST, FieldClass.FILTER
OWN, ALL = FieldClass.OPAQUE, FieldClass.COMMON
NAMED, CLUSTER_ID, LOG_DIRECTORY = FieldClass.PRINCIPAL_NAME, FieldClass.CLUSTER_ID, FieldClass.LOG_DIRECTORY

ENTITIES: Mapping[str, FieldClass | None] = {
    "topicName": FieldClass.TOPIC_NAME,
    "groupId": FieldClass.GROUP_ID,
    "transactionalId": FieldClass.TRANSACTIONAL_ID,
    "brokerId": None,  # numbers: lists of brokers only have those that concern the tenant
    "producerId": None,
}
"""By `entityType`; fields with None are not rewritten."""

NAMES: Mapping[str, FieldClass] = {
    "error_message": TEXT,
    "topic_id": FieldClass.TOPIC_ID,
    "member_id": OWN,
    "group_instance_id": OWN,
    "rack": ALL,
}
"""By field name, in every message."""
