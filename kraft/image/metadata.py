"""All committed metadata at one offset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kraft.image.acls import AclsImage
from kraft.image.balance import NO_BALANCE, BalanceImage
from kraft.image.brokers import BrokerImage
from kraft.image.cells import CellImage
from kraft.image.client_quotas import ClientQuotasImage
from kraft.image.configs import ConfigsImage
from kraft.image.credentials import ApiKeysImage, ScramCredentials
from kraft.image.partitions import PartitionImage
from kraft.image.sharded_map import ShardedMap
from kraft.image.tenants import TenantsImage
from kraft.image.topics import TopicsImage


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """Immutable: a change creates a new image that shares unchanged parts.

    `offset`: of the last record applied (-1: none); `epoch`: controller epoch (the Raft term); `leader_id`: controller
    of that epoch; `sequence`: number of its last batch. `cluster_id`: None until the first controller has created it,
    together with `incarnation`. `next_producer_id`: the first unallocated producer id. `scram`: verifiers of users and
    API keys by name; `cells`: operators' settings of cells by name.
    """

    offset: int = -1
    epoch: int = 0
    leader_id: int = -1
    sequence: int = 0
    cluster_id: str | None = None
    topics: TopicsImage = field(default_factory=TopicsImage)
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    configs: ConfigsImage = field(default_factory=ConfigsImage)
    features: Mapping[str, int] = field(default_factory=dict)
    next_producer_id: int = 0
    incarnation: int = 1
    scram: ShardedMap[str, ScramCredentials] = field(default_factory=ShardedMap)
    acls: AclsImage = field(default_factory=AclsImage)
    tenants: TenantsImage = field(default_factory=TenantsImage)
    keys: ApiKeysImage = field(default_factory=ApiKeysImage)
    cells: Mapping[str, CellImage] = field(default_factory=dict)
    balance: BalanceImage = NO_BALANCE
    client_quotas: ClientQuotasImage = field(default_factory=ClientQuotasImage)

    @property
    def next_offset(self) -> int:
        return self.offset + 1

    @property
    def metadata_version(self) -> int:
        """The finalised level of `metadata.version`; 0 before the cluster was created."""
        return self.features.get("metadata.version", 0)

    def at(self, offset: int, epoch: int, leader_id: int, sequence: int) -> MetadataImage:
        """The same metadata at another position of the log."""
        return replace(self, offset=offset, epoch=epoch, leader_id=leader_id, sequence=sequence)

    def partition(self, topic_id: bytes, partition: int) -> PartitionImage | None:
        return self.topics.partition(topic_id, partition)

    def partition_by_name(self, topic_name: str, partition: int) -> PartitionImage | None:
        topic = self.topics.get(topic_name)
        return topic.partitions.get(partition) if topic is not None else None

    def is_active(self, broker_id: int) -> bool:
        """Whether it is registered, not fenced, not shutting down."""
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.is_active

    def missing_beside(self, broker_id: int) -> list[int]:
        """The other brokers with replicas that are fenced, stopping or unhealthy, by id."""
        others = (broker for broker in self.brokers.values() if broker.broker_id != broker_id)
        missing = [one.broker_id for one in others if not (one.is_active and one.is_healthy)]
        return sorted(one for one in missing if self.topics.index.with_replica(one))

    def unfenced_brokers(self) -> list[BrokerImage]:
        """Brokers that clients may see, by id."""
        return [self.brokers[broker_id] for broker_id in sorted(self.brokers) if not self.brokers[broker_id].fenced]


EMPTY_IMAGE = MetadataImage()
