"""Structured logs: one line per event, `key=value` pairs, on standard error.

Rooms log through the standard library (`logging.getLogger(__name__)`) and pass fields as `extra={"topic": …}`. A
processor library would cost each idle node several megabytes, so this formatter is all.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_LIBRARIES = {"aiobotocore": logging.INFO, "botocore": logging.INFO, "kafka": logging.WARNING}
"""The lowest level of libraries that log too much below it: headers with credentials, each connection."""
_QUOTED = frozenset(' ="\n\r\t')


class KeyValueFormatter(logging.Formatter):
    """`time=… level=… logger=… event="…" key=value …`; an exception's traceback follows as one quoted value."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        pairs = [
            f"time={moment}.{int(record.msecs):03d}Z",
            f"level={record.levelname.lower()}",
            f"logger={record.name}",
            f"event={quoted(record.getMessage())}",
        ]
        for name, value in vars(record).items():
            if name not in _STANDARD and not name.startswith("_"):
                pairs.append(f"{name}={quoted(str(value))}")
        if record.exc_info:
            pairs.append(f"exception={quoted(self.formatException(record.exc_info))}")
        return " ".join(pairs)


def quoted(text: str) -> str:
    """`text` as a value of a line, quoted when it holds a space, a quote, an equals sign or a control character."""
    if text and not _QUOTED.intersection(text) and text.isprintable():
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return '"' + "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in escaped) + '"'


def configure_logs(level: str, node: str) -> None:
    """Send the process's logs to standard error, one line per event, each with `node`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(KeyValueFormatter())

    def with_node(record: logging.LogRecord) -> bool:
        record.node = node
        return True

    handler.addFilter(with_node)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for library, lowest in _LIBRARIES.items():
        logging.getLogger(library).setLevel(max(lowest, root.level))


def flush_streams() -> None:
    """Flush standard output and error, ignoring a full disk, so that unwritten messages fail no node."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
