"""Limits of a store: time, memory, connections, threads."""

from __future__ import annotations

from dataclasses import dataclass

from common.backoff import FULL, Backoff

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """The defaults suit a broker. A put to S3 uses at most `part_bytes` times `parallel_parts` of memory."""

    part_bytes: int = 8 * MIB
    """Larger bodies are uploaded in parts of this size; S3 requires at least 5 MiB."""
    parallel_parts: int = 4
    connections_max: int = 32
    connect_timeout_s: float = 5.0
    silence_timeout_s: float = 15.0
    """How long a connection may deliver nothing."""
    attempt_timeout_s: float = 30.0
    """For one request; its body adds the time that it takes at `slowest_bytes_per_s`."""
    slowest_bytes_per_s: int = 256 * 1024
    attempts_max: int = 5
    backoff_first_s: float = 0.1
    backoff_max_s: float = 5.0
    retry_budget: float = 50.0
    """Retries of all calls together: see `object_store.retries.RetryBudget`."""
    page_keys: int = 1000
    """Keys of a listing held at once; S3 returns no more per request."""
    file_threads: int = 4
    """Threads of a directory store."""
    file_timeout_s: float = 60.0
    """How long a directory may take for a read."""
    file_silence_s: float = 180.0
    """How long a write to a directory may make no progress, such as during the fsync of a whole object."""
    file_close_s: float = 10.0
    """How long closing a directory store waits for hanging calls."""
    own_directory: str = ""
    """A directory of the caller. Objects on its device may be lent as open files."""
    lock_timeout_s: float = 10.0
    """How long a replace in a directory waits for another process's replace."""

    @property
    def backoff(self) -> Backoff:
        return Backoff(self.backoff_first_s, self.backoff_max_s, FULL)

    @property
    def s3_call_s(self) -> float:
        """How long a call without a body may take at S3, with all attempts and the pauses between them."""
        pauses = (self.backoff.pause_s(failures) for failures in range(1, self.attempts_max))
        return self.attempts_max * self.attempt_timeout_s + sum(pauses)
