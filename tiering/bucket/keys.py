"""Names of objects in the store; docs/tier-format.md is their specification.

    <prefix>/<cluster id>/cluster.json
    <prefix>/<cluster id>/verified.json
    <prefix>/<cluster id>/probe-<uuid>
    <prefix>/<cluster id>/metadata/…
    <prefix>/<cluster id>/audit/…
    <prefix>/<cluster id>/proposals/<uuid>[.verdict | .erase | .erase-ready-<partition>]
    <prefix>/<cluster id>/<tenant or _>/<topic>-<topic id>/<partition>/<20-digit base offset>-<uuid>.segment
                                                                      /manifest/<20-digit version>
                                                                      /manifest-pages/<uuid>

Topic ids and uuids are 32 lower-case hex digits, so the last dash of a topic's directory ends its name.
"""

from __future__ import annotations

from typing import NamedTuple

from tiering.bucket.segment import SegmentId, is_uuid

NO_TENANT = "_"
CLUSTER_FILE = "cluster.json"
VERIFIED_FILE = "verified.json"
PROBE_PREFIX = "probe-"
METADATA = "metadata"
AUDIT = "audit"
PROPOSALS = "proposals"
MANIFEST = "manifest"
MANIFEST_PAGES = "manifest-pages"
SEGMENT_SUFFIX = ".segment"
VERDICT_SUFFIX = ".verdict"
ERASE_SUFFIX = ".erase"
ERASE_READY_INFIX = ".erase-ready-"
NUMBER_DIGITS = 20
NOT_TENANTS = frozenset({METADATA, AUDIT, PROPOSALS})
"""Directories of a cluster that hold no topics."""
RESERVED_TENANTS = NOT_TENANTS | {NO_TENANT, CLUSTER_FILE, VERIFIED_FILE}


class PartitionPath(NamedTuple):
    """One partition of one incarnation of a topic. `tenant` is "" without tenants, `topic_id` is 16 bytes."""

    topic: str
    topic_id: bytes
    partition: int
    tenant: str = ""


class SegmentKey(NamedTuple):
    path: PartitionPath
    segment: SegmentId


class ManifestKey(NamedTuple):
    path: PartitionPath
    version: int


class PageKey(NamedTuple):
    path: PartitionPath
    uuid: str


ParsedKey = SegmentKey | ManifestKey | PageKey


class TierRoot:
    """Builds and reads the keys of one cluster. `prefix` may be empty; slashes around it do not matter."""

    __slots__ = ("cluster_id", "prefix")

    def __init__(self, cluster_id: str, prefix: str = "") -> None:
        if not cluster_id or "/" in cluster_id:
            raise ValueError(f"not a cluster id: {cluster_id!r}")
        self.cluster_id = cluster_id
        trimmed = prefix.strip("/")
        self.prefix = f"{trimmed}/{cluster_id}/" if trimmed else f"{cluster_id}/"

    # the cluster -------------------------------------------------------------------------------------------

    @property
    def cluster_file(self) -> str:
        return self.prefix + CLUSTER_FILE

    @property
    def verified_file(self) -> str:
        """The outcomes of the last verifications: `tiering.bucket.verified`."""
        return self.prefix + VERIFIED_FILE

    def probe_key(self, uuid: str) -> str:
        """Of a trial write, which is deleted at once, or by the sweeper."""
        return f"{self.prefix}{PROBE_PREFIX}{uuid}"

    @property
    def metadata_prefix(self) -> str:
        """Exports of the cluster's metadata and of committed group offsets."""
        return f"{self.prefix}{METADATA}/"

    @property
    def audit_prefix(self) -> str:
        """What changed, when, why and by whom: `tiering.exports.audit_reading`."""
        return f"{self.prefix}{AUDIT}/"

    @property
    def proposals_prefix(self) -> str:
        return f"{self.prefix}{PROPOSALS}/"

    def proposal_key(self, uuid: str) -> str:
        return self.proposals_prefix + uuid

    def verdict_key(self, uuid: str) -> str:
        return f"{self.proposals_prefix}{uuid}{VERDICT_SUFFIX}"

    def erase_key(self, uuid: str) -> str:
        return f"{self.proposals_prefix}{uuid}{ERASE_SUFFIX}"

    def erase_ready_key(self, uuid: str, partition: int) -> str:
        return f"{self.proposals_prefix}{uuid}{ERASE_READY_INFIX}{partition}"

    def tenant_prefix(self, tenant: str = "") -> str:
        """Ends with a slash. ValueError for a tenant whose name would be read as something else."""
        if tenant in RESERVED_TENANTS or "/" in tenant:
            raise ValueError(f"a tenant cannot have the name {tenant!r}")
        return f"{self.prefix}{tenant or NO_TENANT}/"

    # a topic -----------------------------------------------------------------------------------------------

    def topic_prefix(self, topic: str, topic_id: bytes, tenant: str = "") -> str:
        return f"{self.tenant_prefix(tenant)}{topic}-{topic_id.hex()}/"

    def partition_prefix(self, path: PartitionPath) -> str:
        return f"{self.topic_prefix(path.topic, path.topic_id, path.tenant)}{path.partition}/"

    def segment_key(self, path: PartitionPath, segment: SegmentId) -> str:
        number = f"{segment.base_offset:0{NUMBER_DIGITS}d}"
        return f"{self.partition_prefix(path)}{number}-{segment.uuid}{SEGMENT_SUFFIX}"

    def manifest_prefix(self, path: PartitionPath) -> str:
        return f"{self.partition_prefix(path)}{MANIFEST}/"

    def manifest_key(self, path: PartitionPath, version: int) -> str:
        """Versions count from 1 without a hole; the highest is the truth."""
        return f"{self.manifest_prefix(path)}{version:0{NUMBER_DIGITS}d}"

    def pages_prefix(self, path: PartitionPath) -> str:
        return f"{self.partition_prefix(path)}{MANIFEST_PAGES}/"

    def page_key(self, path: PartitionPath, uuid: str) -> str:
        return f"{self.pages_prefix(path)}{uuid}"

    # reading names -----------------------------------------------------------------------------------------

    def parse_key(self, key: str) -> ParsedKey | None:
        """What an object below a partition is; None for any other key."""
        if not key.startswith(self.prefix):
            return None
        parts = key[len(self.prefix) :].split("/")
        if len(parts) not in (4, 5) or parts[0] in NOT_TENANTS:
            return None
        topic = parse_topic_directory(parts[1])
        partition = _number(parts[2])
        if topic is None or partition is None:
            return None
        path = PartitionPath(topic[0], topic[1], partition, "" if parts[0] == NO_TENANT else parts[0])
        if len(parts) == 4:
            segment = parse_segment_name(parts[3])
            return None if segment is None else SegmentKey(path, segment)
        if parts[3] == MANIFEST:
            version = _number(parts[4]) if len(parts[4]) == NUMBER_DIGITS else None
            return None if version is None else ManifestKey(path, version)
        if parts[3] == MANIFEST_PAGES and is_uuid(parts[4]):
            return PageKey(path, parts[4])
        return None


def parse_topic_directory(name: str) -> tuple[str, bytes] | None:
    """`<topic>-<topic id>`, with or without a trailing slash, as (topic, topic id)."""
    topic, dash, digits = name.rstrip("/").rpartition("-")
    if not topic or not dash or not is_uuid(digits):
        return None
    return topic, bytes.fromhex(digits)


def parse_segment_name(name: str) -> SegmentId | None:
    """`<20 digits>-<uuid>.segment`."""
    number, dash, rest = name.partition("-")
    uuid = rest.removesuffix(SEGMENT_SUFFIX)
    base_offset = _number(number) if len(number) == NUMBER_DIGITS else None
    if not dash or rest == uuid or base_offset is None or not is_uuid(uuid):
        return None
    return SegmentId(base_offset, uuid)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None
