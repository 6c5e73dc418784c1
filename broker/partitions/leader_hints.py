"""The current leader of a partition, for responses that redirect a client (KIP-951)."""

from __future__ import annotations

from collections.abc import Iterable

from broker.partitions.hosted import HostedPartitions
from broker.partitions.partition import Partition
from broker.partitions.replica import NO_LEADER
from broker.tenancy.scope import ProxyAddress
from kraft.image.partitions import PartitionImage
from wire.hot_codec import Endpoint, LeaderHint

_OWN_ADDRESSES = ProxyAddress()


class LeaderHints:
    """Leaders as the metadata image has them."""

    def __init__(self, hosted: HostedPartitions, proxies: ProxyAddress = _OWN_ADDRESSES) -> None:
        """`proxies`: the address to which tenants are sent."""
        self._hosted = hosted
        self._proxies = proxies

    def of(self, partition: Partition) -> LeaderHint | None:
        return self._of_image(self._hosted.image.partition(partition.topic_id, partition.index))

    def by_name(self, topic: bytes, index: int) -> LeaderHint | None:
        return self._of_image(self._hosted.image.partition_by_name(topic.decode(errors="replace"), index))

    def by_id(self, topic_id: bytes, index: int) -> LeaderHint | None:
        return self._of_image(self._hosted.image.partition(topic_id, index))

    def endpoints(self, hints: Iterable[LeaderHint | None], listener: str, tenant: str | None = None) -> list[Endpoint]:
        """Addresses of the hinted leaders on `listener`, without duplicates and unknown brokers."""
        found: dict[int, Endpoint] = {}
        for hint in hints:
            if hint is None or hint.leader in found:
                continue
            broker = self._hosted.image.brokers.get(hint.leader)
            address = broker.address(listener) if broker is not None else None
            if broker is not None and address is not None:
                if tenant is not None:
                    address = self._proxies.of(hint.leader, tenant) or address
                rack = broker.rack.encode() if broker.rack else None
                found[hint.leader] = Endpoint(hint.leader, address[0].encode(), address[1], rack)
        return list(found.values())

    @staticmethod
    def _of_image(image: PartitionImage | None) -> LeaderHint | None:
        if image is None or image.leader == NO_LEADER:
            return None
        return LeaderHint(image.leader, image.leader_epoch)
