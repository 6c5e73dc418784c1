"""The small text files of a log directory, encoded and decoded.

Formats are Apache Kafka's: offset checkpoints (version 0, count, "topic partition offset" lines), `meta.properties`
(version 1), `partition.metadata` (version 0) and the clean-stop marker `.kafka_cleanshutdown` (version 0, JSON).
Decoders raise ValueError on anything that is not such a file.
"""

import json
from collections.abc import Mapping
from typing import NamedTuple

from common.identifiers import ZERO_UUID, parse_uuid, uuid_text

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
META_PROPERTIES = "meta.properties"
CLEAN_STOP = ".kafka_cleanshutdown"
RUN = ".tidelog_run"
RUN_BYTES = 256
PARTITION_METADATA = "partition.metadata"
LEADER_EPOCHS = "leader-epoch-checkpoint"

TopicPartition = tuple[str, int]


class MetaProperties(NamedTuple):
    """The cluster and node that own the directory."""

    cluster_id: str
    node_id: int
    directory_id: bytes


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    lines = ["0", str(len(offsets))]
    lines += [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    return ("\n".join(lines) + "\n").encode()


def decode_offsets(data: bytes) -> dict[TopicPartition, int]:
    lines = data.decode().splitlines()
    if len(lines) < 2 or lines[0].strip() != "0" or int(lines[1]) != len(lines) - 2:
        raise ValueError("not an offset checkpoint of version 0")
    offsets = {}
    for line in lines[2:]:
        topic, partition, offset = line.split()
        offsets[topic, int(partition)] = int(offset)
    return offsets


def encode_meta_properties(meta: MetaProperties) -> bytes:
    return (
        f"#\ncluster.id={meta.cluster_id}\nversion=1\n"
        f"directory.id={uuid_text(meta.directory_id)}\nnode.id={meta.node_id}\n"
    ).encode()


def decode_meta_properties(data: bytes) -> MetaProperties:
    values = {}
    for line in data.decode().splitlines():
        name, separator, value = line.partition("=")
        if separator and not line.startswith("#"):
            values[name.strip()] = value.strip()
    if values.get("version") != "1" or not {"cluster.id", "node.id", "directory.id"} <= values.keys():
        raise ValueError("not a meta.properties of version 1")
    return MetaProperties(values["cluster.id"], int(values["node.id"]), parse_uuid(values["directory.id"]))


def encode_partition_metadata(topic_id: bytes) -> bytes:
    return f"version: 0\ntopic_id: {uuid_text(topic_id)}".encode()


def decode_partition_metadata(data: bytes) -> bytes:
    """The topic id."""
    lines = data.decode().splitlines()
    if len(lines) != 2 or lines[0] != "version: 0" or not lines[1].startswith("topic_id: "):
        raise ValueError("not a partition.metadata of version 0")
    return parse_uuid(lines[1].removeprefix("topic_id: ").strip())


def encode_clean_stop(broker_epoch: int) -> bytes:
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()


def decode_clean_stop(data: bytes) -> int:
    """The broker epoch of the run that stopped; -1 if its writer recorded none."""
    marker = json.loads(data)
    if not isinstance(marker, dict) or marker.get("version") != 0:
        raise ValueError("not a clean-stop marker of version 0")
    epoch = marker.get("brokerEpoch", -1)
    if not isinstance(epoch, int):
        raise ValueError("no broker epoch in the clean-stop marker")
    return epoch


class RunNote(NamedTuple):
    """The run that appended, its page cache, and the inode of this file, so that a copy of the file is recognized as
    invalid. `start_id`: of a start that goes on with that run and does not know its own broker epoch yet, else
    ZERO_UUID."""

    cache: str
    inode: int
    broker_epoch: int
    start_id: bytes = ZERO_UUID


def encode_run(note: RunNote) -> bytes:
    """Always of `RUN_BYTES`: so a note replaces another in place, by one write that needs no room."""
    fields = {"version": 1, "cache": note.cache, "inode": note.inode, "brokerEpoch": note.broker_epoch}
    if note.start_id != ZERO_UUID:
        fields["startId"] = uuid_text(note.start_id)
    return json.dumps(fields, separators=(",", ":")).encode().ljust(RUN_BYTES - 1) + b"\n"


def decode_run(data: bytes) -> RunNote | None:
    """None if the note is torn or invalid."""
    try:
        fields = json.loads(data)
        start_id = parse_uuid(fields["startId"]) if "startId" in fields else ZERO_UUID
        note = RunNote(fields["cache"], fields["inode"], fields["brokerEpoch"], start_id)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    is_sound = isinstance(note.cache, str) and isinstance(note.inode, int) and isinstance(note.broker_epoch, int)
    return note if is_sound else None
