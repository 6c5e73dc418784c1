"""The page docs/apis.md: `python -m tests.wire.api_page` writes it, a test compares it.

Every API of Apache Kafka 4.2 from the table of APIs (`wire.apis`), with the versions that Apache Kafka offers
(`kafka_api_versions.txt`) and those served here.
"""

from __future__ import annotations

from pathlib import Path

from tests.wire.kafka_api_versions import offered
from wire.apis import CLIENTS, EVERYONE, NODES, OPERATORS, ApiKey

PAGE = Path(__file__).parents[2] / "docs" / "apis.md"
OWN_KEYS = 10_000
HEAD = """# APIs

Every API of Apache Kafka 4.2.0, the versions that it offers with its default settings, and what Tidelog does. Clients
find their listener's versions by ApiVersions. A request of another version closes the connection; only ApiVersions
itself is then answered, with UNSUPPORTED_VERSION (35) and its own versions, as by Apache Kafka. Listeners are explained
in [security](security.md).

<!-- made by `python -m tests.wire.api_page` -->

| key | API | Apache Kafka 4.2 | Tidelog | where, or why not |
|---|---|---|---|---|
"""
WHERE = {
    EVERYONE: "all listeners",
    CLIENTS: "operator and tenant listeners",
    OPERATORS: "operator listeners, nodes",
    NODES: "nodes alone",
}
NOTES = {
    ApiKey.FETCH: "replicas fetch on internal listeners alone",
    ApiKey.ALTER_REPLICA_LOG_DIRS: "a broker has one directory: its own is a success that changes nothing, another one "
    "LOG_DIR_NOT_FOUND",
    ApiKey.CREATE_DELEGATION_TOKEN: "DELEGATION_TOKEN_AUTH_DISABLED, as without a secret key for tokens; without "
    "authentication DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
    ApiKey.RENEW_DELEGATION_TOKEN: "as CreateDelegationToken",
    ApiKey.EXPIRE_DELEGATION_TOKEN: "as CreateDelegationToken",
    ApiKey.DESCRIBE_DELEGATION_TOKEN: "as CreateDelegationToken",
    ApiKey.DESCRIBE_QUORUM: "a voter's end is that of the committed metadata that it has acknowledged",
}
"""What a row says besides its listeners."""


def page() -> str:
    return HEAD + "".join(f"{_row(key)}\n" for key in sorted(ApiKey) if key < OWN_KEYS)


def _row(key: ApiKey) -> str:
    kafkas = offered().get(int(key))
    theirs = "not by default" if kafkas is None else _span(*kafkas)
    if key.unserved is not None:
        ours, why = "-", f"{key.unserved.what}: {key.unserved.seen}"
    else:
        ours, why = _span(key.announced_min, key.max_version), WHERE[key.listeners]
        if key in NOTES:
            why += f"; {NOTES[key]}"
    return f"| {int(key)} | {key.api_name} | {theirs} | {ours} | {why} |"


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"


if __name__ == "__main__":
    PAGE.write_text(page())
