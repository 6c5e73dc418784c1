"""The first client makes the topics of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from common.errors import ErrorCode
from tests.sim.client_links import ClusterLinks, Unreachable
from tests.sim.cluster_settings import REPLICATION_FACTOR
from tests.sim.plan import Plan
from wire.messages import CreateTopicsRequest


async def make_topics(links: ClusterLinks, brokers: Sequence[int], plan: Plan) -> None:
    for name in plan.topics:
        await make_topic(links, brokers, name, plan.partitions, plan.topic_configs)


async def make_topic(
    links: ClusterLinks, brokers: Sequence[int], name: str, partitions: int, configs: Mapping[str, str]
) -> None:
    config = CreateTopicsRequest.CreatableTopic.CreatableTopicConfig
    topic = CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=REPLICATION_FACTOR,
        assignments=[],
        configs=[config(name=key, value=value) for key, value in configs.items()],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=1_000, validate_only=False)
    while True:
        try:
            response = await links.call(links.ports.random.choice(brokers), request, 5)
        except Unreachable:
            await links.pause()
            continue
        code = ErrorCode(response.topics[0].error_code)
        if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            return
        links.history.counts[f"create topic: {code.name}"] += 1
        await links.pause()
