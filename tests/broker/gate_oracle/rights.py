"""Principals, each with other rights: none, one operation on one type of resource, everything, everything but one.

What they have rights to is named with the prefixes below; `hidden` topics and groups are nobody's.
"""

from __future__ import annotations

from wire.messages import CreateAclsRequest

TOPIC_PREFIX, GROUP_PREFIX, TRANSACTION_PREFIX, CLUSTER = "t-", "g-", "x-", "kafka-cluster"
USER_PREFIX = "o-"
RESOURCES = {
    "topic": (2, TOPIC_PREFIX),
    "group": (3, GROUP_PREFIX),
    "cluster": (4, CLUSTER),
    "transaction": (5, TRANSACTION_PREFIX),
    "user": (7, f"User:{USER_PREFIX}"),
}
OPERATIONS = {
    "READ": 3, "WRITE": 4, "CREATE": 5, "DELETE": 6, "ALTER": 7, "DESCRIBE": 8, "CLUSTER_ACTION": 9,
    "DESCRIBE_CONFIGS": 10, "ALTER_CONFIGS": 11, "IDEMPOTENT_WRITE": 12, "CREATE_TOKENS": 13,
}  # fmt: skip
OF_RESOURCE = {
    "topic": ("READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
    "group": ("READ", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
    "cluster": (
        "CREATE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "IDEMPOTENT_WRITE",
    ),
    "transaction": ("WRITE", "DESCRIBE"),
    "user": ("CREATE_TOKENS",),
}  # fmt: skip
SINGLE = tuple(f"{resource}:{operation}" for resource, operations in OF_RESOURCE.items() for operation in operations)
NONE, ALL = "none", "all"
RIGHTS = (NONE, ALL, *SINGLE, *(f"-{right}" for right in SINGLE))

_ANY_OPERATION, _DENY, _ALLOW, _LITERAL, _PREFIXED = 2, 2, 3, 3, 4


def user_of(right: str) -> str:
    """The name of the principal with that right, of letters that every login takes."""
    return f"u{RIGHTS.index(right)}"


def bindings() -> list[CreateAclsRequest.AclCreation]:
    """The ACLs of all of them."""
    found = []
    for right in RIGHTS:
        if right == NONE:
            continue
        if right == ALL or right.startswith("-"):
            found += [_acl(right, resource, _ANY_OPERATION, _ALLOW) for resource in RESOURCES if resource != "cluster"]
            found += [_acl(right, "cluster", OPERATIONS[operation], _ALLOW) for operation in OF_RESOURCE["cluster"]]
        if right != ALL:
            resource, operation = right.removeprefix("-").split(":")
            found.append(_acl(right, resource, OPERATIONS[operation], _DENY if right.startswith("-") else _ALLOW))
    return found


def _acl(right: str, resource: str, operation: int, permission: int) -> CreateAclsRequest.AclCreation:
    kind, name = RESOURCES[resource]
    return CreateAclsRequest.AclCreation(
        resource_type=kind,
        resource_name=name,
        resource_pattern_type=_LITERAL if resource == "cluster" else _PREFIXED,
        principal=f"User:{user_of(right)}",
        host="*",
        operation=operation,
        permission_type=permission,
    )
