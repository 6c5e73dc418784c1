"""`tidelog bundle`: what a developer needs to find a fault, in one archive, without secrets and without records.

A part that cannot be had is named in the manifest with the reason, and the rest goes in.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError

from tidelog.admin import broker_health
from tidelog.admin.admin_client import Reach, outcome_text
from tidelog.admin.balance_admin import BalanceAdmin
from tidelog.admin.group_lag import lags
from tidelog.admin.library_client import AdminClient
from tidelog.admin.replica_moves import Refused
from tidelog.admin.transaction_admin import listed
from tidelog.admin.usage_admin import described
from tidelog.doctor.examination import Examination
from tidelog.doctor.secret_mask import SecretMask, secrets_in

LOG_BYTES, LOGS_MAX = 1 << 20, 500
METRICS_BYTES_MAX, METRICS_TIMEOUT_S = 16 << 20, 10.0
SECRET_FILE_BYTES = 1 << 20
PRIVATE = 0o600
SECRET_SUFFIXES = (".secret", ".key", ".pem", ".properties", ".kcat")
SECRET_VARIABLES = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


class DebugArchive:
    """Parts are added one after another; all text goes through the mask."""

    def __init__(self, mask: SecretMask) -> None:
        self._mask = mask
        self._parts: dict[str, bytes] = {}
        self._missing: dict[str, str] = {}

    def add(self, name: str, get: Callable[[], Any]) -> None:
        """Text as it is, anything else as JSON."""
        try:
            found = get()
        except Refused as error:
            self._missing[name] = self._mask.applied(str(error))
            return
        except KafkaError as error:
            self._missing[name] = self._mask.applied(outcome_text(str(error)))
            return
        except (OSError, ValueError, http.client.HTTPException) as error:
            self._missing[name] = self._mask.applied(str(error)) or "no broker answers"
            return
        text = found if isinstance(found, str) else json.dumps(found, indent=1, default=str) + "\n"
        self._parts[name] = self._mask.applied(text).encode(errors="replace")

    @property
    def missing(self) -> Mapping[str, str]:
        return self._missing

    def write(self, path: Path, folder: str, manifest: Mapping[str, Any]) -> None:
        """All at once, for its owner alone. Raises OSError, for example FileExistsError."""
        contents = dict(manifest) | {"parts": sorted(self._parts), "missing": self._missing}
        manifest_text = self._mask.applied(json.dumps(contents, indent=1)) + "\n"
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w:gz") as archive:
            for name, content in [("manifest.json", manifest_text.encode()), *sorted(self._parts.items())]:
                entry = tarfile.TarInfo(f"{folder}/{name}")
                entry.size, entry.mode, entry.mtime = len(content), PRIVATE, int(time.time())
                archive.addfile(entry, io.BytesIO(content))
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data.getvalue())


def add_cluster(archive: DebugArchive, client: AdminClient, where: Reach, certificates: Path | None) -> None:
    """What brokers and controllers answer."""
    archive.add("cluster.json", client.describe_cluster)
    archive.add("quorum.json", client.describe_metadata_quorum)
    archive.add("features.json", client.describe_features)
    archive.add("topics.json", client.describe_topics)
    archive.add("groups.json", client.list_groups)
    archive.add("lag.json", lambda: _lags(client))
    archive.add("transactions.json", lambda: [row._asdict() for row in listed(client)])
    archive.add("health.json", lambda: broker_health.described(client).as_json())
    archive.add("balance.json", lambda: BalanceAdmin(client).status())
    archive.add("usage.json", lambda: described(client, tenants=True, partitions=True)[1])
    archive.add("log-dirs.json", client.describe_log_dirs)
    archive.add("configs/topics.json", lambda: _configs(client, ConfigResourceType.TOPIC, "modified"))
    archive.add("configs/brokers.json", lambda: _configs(client, ConfigResourceType.BROKER, "all"))
    archive.add(
        "doctor.json", lambda: [one._asdict() for one in Examination(client, where, certificates, apart_s=2.0).run()]
    )


def _lags(client: AdminClient) -> list[dict[str, Any]]:
    names = sorted(row["group_id"] for row in client.list_groups())
    return [row._asdict() | {"lag": row.lag} for row in lags(client, names)]


def _configs(client: AdminClient, kind: ConfigResourceType, which: str) -> Any:
    """What brokers tell; they send no value of a sensitive setting."""
    if kind is ConfigResourceType.TOPIC:
        names = sorted(row["name"] for row in client.describe_topics())
    else:
        names = [str(row["broker_id"]) for row in client.describe_cluster()["brokers"] if not row["is_fenced"]]
    found: dict[str, Any] = {}
    for name in names:
        for rows in client.describe_configs([ConfigResource(kind, name)], config_filter=which).values():
            found |= {one: {key: row["value"] for key, row in of.items()} for one, of in rows.items()}
    return found


def add_logs(archive: DebugArchive, directory: Path) -> None:
    """The ends of the newest logs."""
    try:
        logs = sorted(directory.glob("*.log"), key=lambda path: -path.stat().st_mtime)[:LOGS_MAX]
    except OSError:
        logs = []
    if not logs:
        archive.add("logs", lambda: _nothing(directory))
    for path in logs:
        archive.add(f"logs/{path.name}", lambda path=path: _tail(path))  # type: ignore[misc]


def _nothing(directory: Path) -> None:
    raise FileNotFoundError(f"no *.log in {directory}")


def _tail(path: Path) -> str:
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_BYTES))
        text = file.read(LOG_BYTES).decode(errors="replace")
    return text if size <= LOG_BYTES else text.partition("\n")[2]  # half a line may hide from the mask


def add_metrics(archive: DebugArchive, addresses: Mapping[str, str]) -> None:
    """The metrics of nodes, by their names."""
    for name, address in addresses.items():
        archive.add(f"metrics/{name}.txt", lambda address=address: _metrics(address))  # type: ignore[misc]


def _metrics(address: str) -> str:
    with contextlib.closing(http.client.HTTPConnection(address, timeout=METRICS_TIMEOUT_S)) as connection:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        if answer.status != http.HTTPStatus.OK:
            raise ValueError(f"{address} answers {answer.status}")
        return answer.read(METRICS_BYTES_MAX).decode(errors="replace")


def known_secrets(files: Iterable[Path], settings: Mapping[str, str], environment: Mapping[str, str]) -> Iterator[str]:
    """The secrets of key files and configurations, of settings, and of this process."""
    for path in files:
        with contextlib.suppress(OSError):
            text = path.read_bytes()[:SECRET_FILE_BYTES].decode(errors="replace")
            yield from secrets_in(text)
            if path.suffix == ".secret" or (path.suffix == ".key" and "=" not in text.partition("\n")[0]):
                yield from text.splitlines()
    yield from secrets_in("\n".join(f"{name}={value}" for name, value in settings.items()))
    given = "\n".join(f"{name}={value}" for name, value in environment.items() if name.startswith("TIDELOG_"))
    yield from secrets_in(given)
    yield from (environment[name] for name in SECRET_VARIABLES if name in environment)


def secret_files(root: Path) -> list[Path]:
    """Where an embedded cluster keeps its secrets and those of its tenants."""
    found: list[Path] = []
    for directory in (root, root / "tls", root / "tenants"):
        with contextlib.suppress(OSError):
            found += [path for path in sorted(directory.iterdir()) if path.suffix in SECRET_SUFFIXES]
    return found
