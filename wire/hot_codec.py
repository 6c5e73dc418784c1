"""Produce and Fetch by hand, on positions of the receive buffer: the one import place of the hot codec.

Requests are read where they lie and records stay there: what comes out are (start, end) positions. Topics are
looked up by the bytes that the wire carries: a UTF-8 name, or a 16-byte id from Produce v13 and Fetch v13 on.
"""

from wire.fetch_codec import (
    FETCH,
    FETCH_VERSIONS,
    NO_TIER_END,
    FetchCall,
    FetchedRow,
    FetchPart,
    decode_fetch,
    encode_fetch_response,
    fetch_decoding,
    fetch_encoding,
)
from wire.primitives import Endpoint, LeaderHint, RequestHead, request_head
from wire.produce_codec import (
    PRODUCE,
    PRODUCE_VERSIONS,
    ProduceCall,
    ProducedPart,
    ProducedRow,
    RecordError,
    decode_produce,
    encode_produce_response,
    produce_decoding,
    produce_encoding,
)
from wire.replica_codec import (
    REPLICA_FETCH_VERSION,
    ReplicaFetched,
    ReplicaPart,
    ReplicatedRow,
    decode_replica_fetch,
    encode_replica_fetch,
)
from wire.topic_lists import PARTS_AT_ONCE, ManyParts

__all__ = [
    "FETCH",
    "FETCH_VERSIONS",
    "NO_TIER_END",
    "PARTS_AT_ONCE",
    "PRODUCE",
    "PRODUCE_VERSIONS",
    "REPLICA_FETCH_VERSION",
    "Endpoint",
    "FetchCall",
    "FetchPart",
    "FetchedRow",
    "LeaderHint",
    "ManyParts",
    "ProduceCall",
    "ProducedPart",
    "ProducedRow",
    "RecordError",
    "ReplicaFetched",
    "ReplicaPart",
    "ReplicatedRow",
    "RequestHead",
    "decode_fetch",
    "decode_produce",
    "decode_replica_fetch",
    "encode_fetch_response",
    "encode_produce_response",
    "encode_replica_fetch",
    "fetch_decoding",
    "fetch_encoding",
    "produce_decoding",
    "produce_encoding",
    "request_head",
]
