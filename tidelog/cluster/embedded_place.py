"""Where commands look for an embedded cluster."""

from __future__ import annotations

from pathlib import Path

DEFAULT_DATA = Path("tidelog-data")  # without --data
HOST = "127.0.0.1"
