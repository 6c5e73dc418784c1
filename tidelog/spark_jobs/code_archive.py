"""All of Tidelog's Python code as one zip file for `--py-files`, for clusters where nothing can be installed."""

from __future__ import annotations

import zipfile
from pathlib import Path

PACKAGES = (
    "broker",
    "common",
    "kraft",
    "object_store",
    "proxy",
    "records",
    "spark_offload",
    "storage",
    "tidelog",
    "tiering",
    "wire",
)
SOURCE = "pyspark_tidelog.py"
SUFFIXES = (".py", ".json")  # including the messages' schemas
EPOCH = (1980, 1, 1, 0, 0, 0)  # the same bytes for the same code


def write_archive(target: Path) -> int:
    """Returns the number of files. Raises OSError."""
    root = Path(__file__).resolve().parents[2]
    folders = [root / name for name in PACKAGES]
    files = [file for folder in folders for file in sorted(folder.rglob("*")) if file.suffix in SUFFIXES]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in [*files, root / SOURCE]:
            entry = zipfile.ZipInfo(str(file.relative_to(root)), EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, file.read_bytes())
    return len(files) + 1
