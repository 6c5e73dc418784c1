"""What is left to happen after all is healed, in words; "" when nothing is. A run waits for it within a bound."""

from __future__ import annotations

from kraft.topic_names import AUDIT_TOPIC
from tests.sim.cluster_settings import CONTROLLER_COUNT, broker_name, controller_name
from tests.sim.cluster_watch import ClusterWatch
from tests.sim.history import History
from tests.sim.plan import Plan
from tests.sim.world import World


class Settling:
    def __init__(self, plan: Plan, world: World, watch: ClusterWatch, history: History) -> None:
        self._plan, self._world, self._watch, self._history = plan, world, watch, history

    def not_reported(self) -> str:
        """Until the active controller knows what each live broker's clients use."""
        programs = [self._world.nodes[controller_name(number)].program for number in range(CONTROLLER_COUNT)]
        for active in [program for program in programs if program is not None and program.driver.is_active]:
            for broker in active.image.unfenced_brokers():
                if active.usage.rates_of(broker.broker_id, active.now_s()) is None:
                    return f"broker {broker.broker_id} has not reported its clients' use"
            return ""
        return "no controller is active"

    def unsettled(self) -> str:
        watch, history = self._watch, self._history
        if left := sum(history.unacknowledged.values()):
            return f"{left} batches are not acknowledged"
        for topic in watch.newest.topics.by_id.values():
            for index, image in topic.partitions.items():
                if len(image.isr) < len(image.replicas):
                    return f"the ISR of {topic.name}-{index} is {image.isr}"
                moves = self._plan.moves and topic.name != AUDIT_TOPIC  # which comes with its first event
                if moves and history.moved_to.get((topic.name, index)) != image.replicas:
                    return f"the replicas of {topic.name}-{index} are {image.replicas}"
        for partition in self._plan.topic_partitions if self._plan.transactions is None else ():
            end = watch.committed.end(partition)
            if (position := history.positions.get(("consumer", partition), 0)) < end:
                return f"the consumer of {partition[0]}-{partition[1]} is at {position} of {end}"
        return ""

    def tier_unsettled(self) -> str:
        """Until all that is closed is in the tier, and state, manifests and bucket agree."""
        watch, tiers = self._watch, self._watch.tier
        assert tiers is not None
        for key in self._plan.topic_partitions:
            image = watch.newest.partition_by_name(*key)
            node = self._world.nodes[broker_name(image.leader)] if image is not None and image.leader >= 0 else None
            partition = node.program.partitions.get(*key) if node is not None and node.program is not None else None
            tier = tiers.tier_of(key)
            if partition is None or tier is None or not partition.is_leader:
                return f"{key[0]}-{key[1]} has no leader with a tier"
            if tier.tier_end < partition.log.active.base_offset:
                return f"the tier of {key[0]}-{key[1]} ends at {tier.tier_end} of {partition.log.active.base_offset}"
            if partition.log.log_start_offset != tier.log_start:
                return f"{key[0]}-{key[1]} begins at {partition.log.log_start_offset}, the tier says {tier.log_start}"
        return tiers.unsettled()

    def history_unread(self) -> str:
        """Until a reader has got all there is, from the log start to the end, after all was settled."""
        for partition in self._plan.topic_partitions:
            read, begin = self._history.passes.get(partition), self._watch.log_start(partition)
            if read is None or not read.settled:
                return f"nobody has read the history of {partition[0]}-{partition[1]}"
            end = self._watch.committed.end(partition)
            if (read.begin, read.end) != (begin, end):  # retention may have gone on
                return f"[{read.begin}, {read.end}) of {partition[0]}-{partition[1]} was read, it is [{begin}, {end})"
        return ""
