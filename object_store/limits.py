"""What a store may use: time, memory, connections, threads."""

from __future__ import annotations

from dataclasses import dataclass

from common.backoff import FULL, Backoff

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """The defaults suit a broker. Bytes are bytes, times are seconds.

    Memory of one put to S3 is at most `part_bytes` times `parallel_parts`, retries included.
    """

    part_bytes: int = 8 * MIB
    """Larger bodies go up in parts of this size; S3 wants at least 5 MiB."""
    parallel_parts: int = 4
    connections_max: int = 32
    connect_timeout_s: float = 5.0
    silence_timeout_s: float = 15.0
    """How long a connection may bring nothing."""
    attempt_timeout_s: float = 30.0
    """One request; for bodies the time at `slowest_bytes_per_s` is added."""
    slowest_bytes_per_s: int = 256 * 1024
    attempts_max: int = 5
    backoff_first_s: float = 0.1
    backoff_max_s: float = 5.0
    retry_budget: float = 50.0
    """Retries that may be outstanding in all; see `object_store.retries.RetryBudget`."""
    page_keys: int = 1000
    """Of a listing that is held at once; S3 gives no more."""
    file_threads: int = 4
    """Threads of a directory store."""
    file_timeout_s: float = 60.0
    """How long a directory may take for a read."""
    file_silence_s: float = 180.0
    """How long a write to a directory may show no progress; within it lies the fsync of a whole object."""
    file_close_s: float = 10.0
    """How long the end of a directory store waits for calls that hang."""
    own_directory: str = ""
    """A directory of the caller's: objects on the same device are as near as that, and may be lent."""
    lock_timeout_s: float = 10.0
    """How long a replace in a directory waits for that of another process."""

    @property
    def backoff(self) -> Backoff:
        return Backoff(self.backoff_first_s, self.backoff_max_s, FULL)

    @property
    def s3_call_s(self) -> float:
        """For how long a call without a body may ask S3, with all attempts and the pauses between them."""
        pauses = (self.backoff.pause_s(failures) for failures in range(1, self.attempts_max))
        return self.attempts_max * self.attempt_timeout_s + sum(pauses)
