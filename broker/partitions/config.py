"""Settings for maintaining a broker's logs."""

from __future__ import annotations

from dataclasses import dataclass

from common.directory_config import DirectoryConfig
from common.settings import MIB


@dataclass(slots=True, frozen=True)
class LogDuties(DirectoryConfig):
    """Settings for log maintenance and for the checks of produced records."""

    recompressions_at_once_max: int = 2
    recompression_bytes_queued_max: int = 64 * MIB
