"""Schemas that exist and are not served, each with the reason; with `wire.apis` they are all that there are."""

from __future__ import annotations

from collections.abc import Mapping

_TRANSACTIONS = "transactions are not served yet"
_QUOTAS = "client quotas are not served yet"

# API names, without Request and Response.
REFUSED_APIS: Mapping[str, str] = {
    "AddOffsetsToTxn": _TRANSACTIONS,
    "AddPartitionsToTxn": _TRANSACTIONS,
    "AlterClientQuotas": _QUOTAS,
    "AlterReplicaLogDirs": "a broker has one log directory",
    "DescribeClientQuotas": _QUOTAS,
    "DescribeTransactions": _TRANSACTIONS,
    "EndTxn": _TRANSACTIONS,
    "ListConfigResources": "it names client metrics and group configs, which are not served",
    "ListTransactions": _TRANSACTIONS,
    "TxnOffsetCommit": _TRANSACTIONS,
    "WriteTxnMarkers": _TRANSACTIONS,
}

# Schemas that are no API.
REFUSED_SCHEMAS: Mapping[str, str] = {
    "ConsumerProtocolAssignment": "the clients' business: group members' bytes pass through unread",
    "ConsumerProtocolSubscription": "the clients' business: group members' bytes pass through unread",
    "RequestHeader": "read by hand in wire.primitives",
    "ResponseHeader": "written by hand in wire.codec",
}
