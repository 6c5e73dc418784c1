"""Commands of an installed package."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

LIMIT_S = 120


def tidelog(*words: str, at: Path, text: str = "") -> str:
    """What a command prints; its status must be 0. Nothing leads it to the tree."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TIDELOG"))}
    done = subprocess.run(
        words, input=text, capture_output=True, text=True, cwd=at, env=kept, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
