"""What the keeping of a broker's logs runs with."""

from __future__ import annotations

from dataclasses import dataclass

from common.directory_config import DirectoryConfig
from common.settings import MIB


@dataclass(slots=True, frozen=True)
class LogDuties(DirectoryConfig):
    """How a broker keeps its logs and looks into what is written to them."""

    recompressions_at_once_max: int = 2
    recompression_bytes_queued_max: int = 64 * MIB
