"""Connections and the memory of their requests and replies."""

from dataclasses import dataclass

from common.settings import KIB, MIB, seconds, setting


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Limits on requests and replies of one connection and of a node."""

    # fmt: off
    frame_bytes_max: int = setting("socket.request.max.bytes", "int", 100 * MIB, "The longest request frame.", 1024)
    idle_s: float = setting("connections.max.idle.ms", "long", 600_000,
        "How long a silent connection is kept.", 0, read_as=seconds)
    queued_max_request_bytes: int = setting("queued.max.request.bytes", "long", 256 * MIB,
        "Bytes of requests in progress, over all connections.", 1 * MIB)
    held_bytes_max: int = setting("tidelog.connection.request.bytes.max", "long", 128 * MIB,
        "Bytes of requests in progress on one connection.", 1 * MIB)
    replies_pending_max: int = setting("tidelog.connection.requests.max", "int", 128,
        "Requests in progress on one connection.", 1, 100_000)
    unsent_bytes_max: int = setting("tidelog.connection.reply.bytes.max", "long", 64 * MIB,
        "Unsent reply bytes of one connection at which reading its requests pauses.", 64 * KIB)
    answer_bytes_max: int = setting("tidelog.answer.bytes.max", "long", 128 * MIB,
        "The longest response except Fetch; a longer one closes its connection.", 64 * KIB)
    metadata_cache_bytes_max: int = setting("tidelog.metadata.cache.bytes.max", "long", 64 * MIB,
        "Bytes of encoded Metadata responses kept for equal requests.", 0)
    reply_bytes_max: int = setting("tidelog.reply.bytes.max", "long", 512 * MIB,
        "Unsent reply bytes over all connections.", 1 * MIB)
    stall_s: float = setting("tidelog.connection.stall.ms", "long", 30_000,
        "How long a client may take none of its pending replies before its connection is closed.", 100, read_as=seconds)
    violation_lines_max: int = setting("tidelog.peer.log.lines.max", "int", 10,
        "Log lines per minute about connections from one address that were closed because they broke the protocol; "
        "more are counted.", 0)
    request_timeout_ms: int = setting("request.timeout.ms", "int", 30_000,
        "How long a node waits for another's response.", 1)
    # fmt: on
