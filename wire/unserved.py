"""What clients of Apache Kafka may ask for and do not get here. README shows it as a table."""

from __future__ import annotations

from dataclasses import dataclass

NOT_ANNOUNCED = "ApiVersions does not name these APIs: the client itself says UNSUPPORTED_VERSION"


@dataclass(frozen=True, slots=True)
class Unserved:
    """One feature: the APIs of Apache Kafka 4.1 by name and key, and what a client sees that wants it."""

    what: str
    apis: dict[str, int]
    seen: str


UNSERVED = (
    Unserved(
        "Transactions",
        {"AddPartitionsToTxn": 24, "AddOffsetsToTxn": 25, "EndTxn": 26, "WriteTxnMarkers": 27, "TxnOffsetCommit": 28,
         "DescribeTransactions": 65, "ListTransactions": 66},
        "a producer with a `transactional.id` ends with a fatal error at its first call, INVALID_TRANSACTION_TIMEOUT. "
        "Idempotent producers are served",
    ),
    Unserved(
        "The consumer protocol of KIP-848 (`group.protocol=consumer`)",
        {"ConsumerGroupHeartbeat": 68, "ConsumerGroupDescribe": 69},
        f"{NOT_ANNOUNCED}. The classic protocol, which is the default of every client, is served",
    ),
    Unserved(
        "Share groups (KIP-932)",
        {"ShareGroupHeartbeat": 76, "ShareGroupDescribe": 77, "ShareFetch": 78, "ShareAcknowledge": 79,
         "InitializeShareGroupState": 83, "ReadShareGroupState": 84, "WriteShareGroupState": 85,
         "DeleteShareGroupState": 86, "ReadShareGroupStateSummary": 87, "DescribeShareGroupOffsets": 90,
         "AlterShareGroupOffsets": 91, "DeleteShareGroupOffsets": 92},
        NOT_ANNOUNCED,
    ),
    Unserved(
        "The streams protocol of KIP-1071",
        {"StreamsGroupHeartbeat": 88, "StreamsGroupDescribe": 89},
        f"{NOT_ANNOUNCED}. Kafka Streams takes classic groups unless it is told otherwise",
    ),
    Unserved(
        "Delegation tokens",
        {"CreateDelegationToken": 38, "RenewDelegationToken": 39, "ExpireDelegationToken": 40,
         "DescribeDelegationToken": 41},
        NOT_ANNOUNCED,
    ),
    Unserved(
        "Client telemetry (KIP-714)",
        {"GetTelemetrySubscriptions": 71, "PushTelemetry": 72},
        "nothing: clients send none where a broker does not ask for it",
    ),
    Unserved(
        "Quotas of clients and users, client metrics, group configs",
        {"DescribeClientQuotas": 48, "AlterClientQuotas": 49, "ListConfigResources": 74},
        f"{NOT_ANNOUNCED}. Tenants have limits of their own",
    ),
    Unserved(
        "Several log directories in a broker",
        {"AlterReplicaLogDirs": 34, "AssignReplicasToDirs": 73},
        NOT_ANNOUNCED,
    ),
    Unserved(
        "Apache Kafka's own controllers beside Tidelog's",
        {"Vote": 52, "BeginQuorumEpoch": 53, "EndQuorumEpoch": 54, "ControllerRegistration": 70, "AddRaftVoter": 80,
         "RemoveRaftVoter": 81, "UpdateRaftVoter": 82},
        "controllers have a quorum protocol of their own; no client uses these",
    ),
)  # fmt: skip


def table() -> str:
    """As README has it."""
    rows = [f"| {one.what} | {', '.join(one.apis)} | {one.seen} |" for one in UNSERVED]
    return "\n".join(["| what | APIs | what clients see |", "|---|---|---|", *rows])
