"""An operator who moves replicas about while everything else goes on: begins, throttles, overrides and cancels
reassignments and asks for elections, and in the end says where each partition shall be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common.errors import ErrorCode
from tests.sim.client_links import ClusterLinks, Unreachable
from tests.sim.history import TopicPartition
from wire.messages import AlterPartitionReassignmentsRequest, ElectLeadersRequest, IncrementalAlterConfigsRequest

PAUSE_S = 0.5
REPLICAS_LEAST, REPLICAS_MOST = 2, 3  # never below min.insync.replicas: one loss of power must stay harmless
CALL_TIMEOUT_S = 3.0
HESITATION_S = (0.002, 0.02, 0.2)  # before a change of mind
RATES = (1_000, 10_000, None)
BROKER, TOPIC = 4, 2


class Operator:
    """`brokers` are all that may hold replicas."""

    def __init__(self, links: ClusterLinks, partitions: Sequence[TopicPartition], brokers: Sequence[int]) -> None:
        self._links, self._partitions, self._brokers = links, list(partitions), list(brokers)
        self._history = links.history
        self._unanswered: dict[TopicPartition, None] = {}
        self._throttle_unanswered = False

    async def run(self) -> None:
        rng = self._links.ports.random
        while not self._history.all_healed:  # a throttle may keep replicas from coming back into the ISR
            await self._links.pause(PAUSE_S)
            partition, chance = rng.choice(self._partitions), rng.random()
            if chance < 0.75:
                await self._reassign(partition, self._drawn(rng.randint(REPLICAS_LEAST, REPLICAS_MOST)))
                if rng.random() < 0.4:
                    await self._links.pause(rng.choice(HESITATION_S))
                    await self._reassign(partition, None)
            elif chance < 0.9:
                await self._throttle(rng.choice(RATES))
            else:
                await self._elect()
        while not await self._throttle(None):
            await self._links.pause()
        await self._say_last_word()

    async def _say_last_word(self) -> None:
        for partition in self._partitions:
            wanted = self._drawn(REPLICAS_MOST)
            while not await self._reassign(partition, wanted):
                await self._links.pause()
            self._history.moved_to[partition] = tuple(wanted)
        while self._unanswered or self._throttle_unanswered:  # they may still arrive, and undo the last word
            await self._links.pause(PAUSE_S)
            if self._throttle_unanswered:
                await self._throttle(None)
            for partition in list(self._unanswered):
                await self._reassign(partition, list(self._history.moved_to[partition]))

    def _drawn(self, count: int) -> list[int]:
        return self._links.ports.random.sample(self._brokers, count)

    async def _reassign(self, partition: TopicPartition, replicas: list[int] | None) -> bool:
        """Whether the cluster said yes."""
        topic = AlterPartitionReassignmentsRequest.ReassignableTopic
        row = topic.ReassignablePartition(partition_index=partition[1], replicas=replicas)
        request = AlterPartitionReassignmentsRequest(
            topics=[topic(name=partition[0], partitions=[row])], timeout_ms=1_000
        )
        response = await self._call(request, 1)
        if response is None:
            self._unanswered[partition] = None
        if response is None or response.error_code:
            return False
        code = ErrorCode(response.responses[0].partitions[0].error_code)
        self._history.counts[f"{'moves cancelled' if replicas is None else 'moves begun'}: {code.name}"] += 1
        return code is ErrorCode.NONE

    async def _throttle(self, bytes_per_second: int | None) -> bool:
        """Hold all replicas that are not in sync to this rate, or (None) none; whether the cluster said yes."""
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource
        changes: dict[tuple[int, str], dict[str, str]] = {(BROKER, ""): {}}
        for side in ("leader", "follower"):
            changes[BROKER, ""][f"{side}.replication.throttled.rate"] = str(bytes_per_second)
            for topic in dict.fromkeys(topic for topic, _ in self._partitions):
                changes.setdefault((TOPIC, topic), {})[f"{side}.replication.throttled.replicas"] = "*"
        resources = [
            resource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    resource.AlterableConfig(name=setting, config_operation=int(bytes_per_second is None), value=value)
                    for setting, value in settings.items()
                ],
            )
            for (kind, name), settings in changes.items()
        ]
        response = await self._call(IncrementalAlterConfigsRequest(resources=resources, validate_only=False), 1)
        self._throttle_unanswered |= response is None
        if response is None or any(row.error_code for row in response.responses):
            return False
        self._history.counts["throttles lifted" if bytes_per_second is None else "throttles set"] += 1
        return True

    async def _elect(self) -> None:
        response = await self._call(ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=1_000), 2)
        if response is not None and not response.error_code:
            self._history.counts["elections asked for"] += 1

    async def _call(self, request: Any, version: int) -> Any:
        try:
            return await self._links.call(
                self._links.ports.random.choice(self._brokers), request, version, CALL_TIMEOUT_S
            )
        except Unreachable:
            return None
