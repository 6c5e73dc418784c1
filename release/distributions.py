"""`python -m release.distributions [DIR]`: the sdist, and the wheel built from that sdist. `make dist` calls it.

A wheel that comes out of the sdist proves that the sdist is whole. Both carry the time of the last commit, so that two
builds of a commit are the same files.
"""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from release.project import ROOT

SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
WHEEL = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


def build(into: Path) -> tuple[Path, Path]:
    """The sdist and the wheel in `into`. Raises CalledProcessError with what the build said."""
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        sources = _copy(work / "sources")
        sdist = _settled(_run(SDIST, sources, work / "sdist"))
        with tarfile.open(sdist) as archive:
            archive.extractall(work / "unpacked", filter="data")
        (unpacked,) = (work / "unpacked").iterdir()
        wheel = _run(WHEEL, unpacked, work / "wheel")
        return sdist.replace(into / sdist.name), wheel.replace(into / wheel.name)


def commit_time() -> str:
    """Seconds since 1970 of the last commit; of a tree without git, what the environment says, or 1980."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return given
    found = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "315532800"  # the earliest time that a zip file can hold


def tracked(folder: Path = ROOT) -> list[str]:
    """The files below `folder` that git knows of; none of a tree without git."""
    found = subprocess.run(["git", "ls-files", "-z"], cwd=folder, capture_output=True, check=False)
    return [name for name in found.stdout.decode().split("\0") if name and (folder / name).is_file()]


def _copy(sources: Path) -> Path:
    """What git knows of, so that no stray file gets in; without git the whole tree."""
    names = tracked()
    if not names:
        return ROOT
    for name in names:
        origin, copy = ROOT / name, sources / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(origin.read_bytes())
        copy.chmod(0o755 if origin.stat().st_mode & 0o100 else 0o644)
    return sources


def _settled(sdist: Path) -> Path:
    """With the time of the commit on every file, no owner, and one order."""
    moment = int(commit_time())
    packed = io.BytesIO()
    with tarfile.open(sdist) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for entry in sorted(old.getmembers(), key=lambda entry: entry.name):
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname, entry.pax_headers = moment, 0, 0, "", "", {}
            new.addfile(entry, old.extractfile(entry) if entry.isfile() else None)
    sdist.write_bytes(gzip.compress(packed.getvalue(), mtime=moment))
    return sdist


def _run(program: str, where: Path, into: Path) -> Path:
    """The one file that a step of the build makes."""
    into.mkdir()
    environment = os.environ | {"SOURCE_DATE_EPOCH": commit_time()}
    command = [sys.executable, "-c", program, str(into)]
    done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        done.check_returncode()
    (made,) = into.iterdir()
    return made


if __name__ == "__main__":
    for path in build(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist")):
        print(path)
