"""The balancer's model of the cluster, from the image and from what brokers have reported. No I/O."""

from __future__ import annotations

from common.pacing import Work
from kraft.balancer.model import ClusterModel, ModelBroker, Standing
from kraft.balancer.observed import BrokerReport, building
from kraft.controller.policy import ControllerPolicy, cell_limit, is_cordoned
from kraft.controller.reported_usage import ReportedUsage
from kraft.image.brokers import BrokerImage
from kraft.image.cells import BANDWIDTH_PER_BROKER, REPLICAS_PER_BROKER_MAX, CellImage, cell_of
from kraft.image.metadata import MetadataImage

REPORT_COST = 300  # units of `common.pacing`, of a broker with all that it reports


def modelling(image: MetadataImage, policy: ControllerPolicy, usage: ReportedUsage, now_s: float) -> Work[ClusterModel]:
    """The cluster as it will be when the moves that run have ended."""
    reports: dict[int, BrokerReport] = {}
    for broker_id in image.brokers:
        use = usage.of_broker(broker_id, now_s)
        if use is not None:
            reports[broker_id] = BrokerReport(use.partitions, use.topics, use.sizes, use.others_bytes)
        yield REPORT_COST
    brokers = [_broker(image, policy, usage, broker, now_s) for broker in image.brokers.values()]
    return (yield from building(image, brokers, reports))


def _broker(
    image: MetadataImage, policy: ControllerPolicy, usage: ReportedUsage, broker: BrokerImage, now_s: float
) -> ModelBroker:
    name = cell_of(broker)
    cell = image.cells.get(name) or CellImage(name)
    bandwidth = float(cell_limit(cell, BANDWIDTH_PER_BROKER, policy))
    use = usage.of_broker(broker.broker_id, now_s)
    head = None if use is None else use.head
    return ModelBroker(
        broker.broker_id,
        name,
        broker.rack,
        _standing(image, broker),
        disk_size=max(head.disk_size_bytes, 0) if head is not None else 0,
        disk_used=max(head.disk_used_bytes, 0) if head is not None else 0,
        in_capacity=bandwidth,
        out_capacity=bandwidth,
        replicas_max=cell_limit(cell, REPLICAS_PER_BROKER_MAX, policy),
        load=usage.load_of(broker.broker_id, now_s),
    )


def _standing(image: MetadataImage, broker: BrokerImage) -> Standing:
    if not broker.is_active or not broker.is_healthy:
        return Standing.APART
    return Standing.CLOSED if broker.lacks_room or is_cordoned(image, broker.broker_id) else Standing.LIVE
