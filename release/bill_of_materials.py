"""What is in a release, as CycloneDX 1.6, from the lock files.

A component is a locked package; its `distribution` has the hashes of all files of that version that may be installed.
Nothing in it depends on when and where it is made: two runs on a commit give the same bytes.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from release.distributions import commit_time
from release.lock_files import Pinned, read_lock
from release.project import ROOT, declared, project, version

EXTRAS = {"": "base", "s3": "s3", "spark": "spark", "java": "java"}
"""Each with the lock file that has what it installs; `export` is in that of Spark."""
NAMESPACE = uuid.UUID("4d2c0d7c-6f0e-5b0e-9a37-6e1c4d0f2b11")


def bill(files: Sequence[Path]) -> dict[str, Any]:
    """Of the project, whose own packages are `files`."""
    own = project()
    locks = {extra: read_lock(ROOT / "requirements" / f"{name}.lock") for extra, name in EXTRAS.items()}
    needed = locks[""]
    optional = {name: pinned for lock in locks.values() for name, pinned in lock.items() if name not in needed}
    whole = {**optional, **needed}
    reference = f"pkg:pypi/{own['name']}@{version()}"
    content = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.datetime.fromtimestamp(int(commit_time()), datetime.UTC).isoformat(),
            "component": {
                "type": "application",
                "bom-ref": reference,
                "name": own["name"],
                "version": version(),
                "description": own["description"],
                "licenses": [{"license": {"id": own["license"]}}],
                "purl": reference,
                "externalReferences": [_own_file(file) for file in files],
            },
        },
        "components": [
            _component(
                pinned, [extra for extra in EXTRAS if extra and pinned.name in locks[extra]], pinned.name in needed
            )
            for pinned in sorted(whole.values())
        ],
        "dependencies": _direct(reference, whole),
        "compositions": [
            {"aggregate": "complete", "assemblies": [reference]},
            {"aggregate": "unknown", "dependencies": [purl(pinned) for pinned in sorted(whole.values())]},
        ],
    }
    serial = uuid.uuid5(NAMESPACE, json.dumps(content, sort_keys=True))
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "serialNumber": f"urn:uuid:{serial}",
        **content,
    }


def _component(pinned: Pinned, extras: Sequence[str], is_needed: bool) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl(pinned),
        "name": pinned.name,
        "version": pinned.version,
        "scope": "required" if is_needed else "optional",
        "purl": purl(pinned),
        "externalReferences": [
            {
                "type": "distribution",
                "url": purl(pinned),
                "hashes": [{"alg": "SHA-256", "content": content} for content in pinned.hashes],
            }
        ],
    }
    if not is_needed:
        component["properties"] = [{"name": "tidelog:extra", "value": extra} for extra in extras]
    return component


def _direct(reference: str, whole: Mapping[str, Pinned]) -> list[dict[str, Any]]:
    """The lock files say what is needed, and not by whom: of others nothing is claimed."""
    names = declared().union(*(declared(extra) for extra in ("s3", "spark", "export", "java", "console")))
    return [{"ref": reference, "dependsOn": [purl(whole[name]) for name in sorted(names)]}]


def _own_file(file: Path) -> dict[str, Any]:
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return {"type": "distribution", "url": file.name, "hashes": [{"alg": "SHA-256", "content": digest}]}


def purl(pinned: Pinned) -> str:
    return f"pkg:pypi/{pinned.name}@{pinned.version}"


def write(into: Path, files: Sequence[Path]) -> Path:
    path = into / f"tidelog-{version()}.cdx.json"
    path.write_text(json.dumps(bill(files), indent=1) + "\n")
    return path
