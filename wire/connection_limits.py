"""What one connection may hold, and for how long."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of one connection; bytes and seconds. The settings that set them stand beside."""

    frame_bytes_max: int = 100 << 20  # socket.request.max.bytes
    replies_pending_max: int = 128  # tidelog.connection.requests.max
    held_bytes_max: int = 128 << 20  # tidelog.connection.request.bytes.max
    unsent_bytes_max: int = 64 << 20  # tidelog.connection.reply.bytes.max
    stall_s: float = 30.0  # tidelog.connection.stall.ms
    idle_s: float = 600.0  # connections.max.idle.ms; 0 for never
