"""Moves replicas from the command line: reassignments in small numbers, throttled, watched to their end.

The throttles are Kafka's settings, set as Kafka's own tool does: a rate for all brokers, and for each topic the
throttled replicas. They stay while moves run, even if the command is interrupted; the run that sees the last move end
removes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from common.node_settings.catalogue import NODE_SETTINGS
from kraft.balancer.evacuation import PlacedPartition
from tidelog.admin.admin_client import error_text, topic_error_text

if TYPE_CHECKING:
    from tidelog.admin.library_client import AdminClient

BROKER, TOPIC = 4, 2
SET, DELETE = 0, 1
ALL_BROKERS = ""
LEADER_RATE, FOLLOWER_RATE = "leader.replication.throttled.rate", "follower.replication.throttled.rate"
LEADER_REPLICAS, FOLLOWER_REPLICAS = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"
RESOURCES_PER_REQUEST = 500

Key = tuple[str, int]
Changes = dict[str, str | None]


class Refused(Exception):
    """The cluster rejected a request; the text says which and why."""


class Moving(NamedTuple):
    """A running reassignment: `replicas` are the old and the new ones together."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class ReplicaMoves:
    """A cluster's reassignments over one admin client."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client

    def partitions(self, topics: Sequence[str] | None = None) -> list[PlacedPartition]:
        """The replicas of these topics, or of all. Raises Refused for a topic that does not exist."""
        found = []
        for topic in self._client.describe_topics(None if topics is None else list(topics)):
            if problem := topic_error_text(topic["name"], topic):
                raise Refused(problem)
            found += [
                PlacedPartition(topic["name"], row["partition_index"], tuple(row["replica_nodes"]))
                for row in topic["partitions"]
            ]
        return sorted(found)

    def running(self) -> dict[Key, Moving]:
        """All running reassignments."""
        listed = self._client.list_partition_reassignments()
        return {
            (key.topic, key.partition): Moving(
                tuple(row["replicas"]), tuple(row["adding_replicas"]), tuple(row["removing_replicas"])
            )
            for key, row in listed.items()
        }

    def begin(self, moves: Iterable[PlacedPartition]) -> None:
        """Raises Refused for the first partition that cannot be moved; the other moves have begun."""
        self._alter([(move.topic, move.partition, list(move.replicas)) for move in moves])

    def cancel(self, keys: Iterable[Key]) -> None:
        """Cancel reassignments: the replicas return to their old brokers. Raises Refused."""
        self._alter([(topic, partition, None) for topic, partition in keys])

    def _alter(self, wanted: list[tuple[str, int, list[int] | None]]) -> None:
        from wire.messages import AlterPartitionReassignmentsRequest  # noqa: PLC0415

        topic_class = AlterPartitionReassignmentsRequest.ReassignableTopic
        topics: dict[str, list[Any]] = {}
        for topic, partition, replicas in wanted:
            row = topic_class.ReassignablePartition(partition_index=partition, replicas=replicas)
            topics.setdefault(topic, []).append(row)
        if not topics:
            return
        request = AlterPartitionReassignmentsRequest(
            topics=[topic_class(name=name, partitions=rows) for name, rows in topics.items()], timeout_ms=30_000
        )
        response = self._client.send(request)
        _check("reassignment", response)
        for answer in response.responses:
            for result in answer.partitions:
                _check(f"{answer.name}-{result.partition_index}", result)

    # settings ----------------------------------------------------------------------------------------------

    def throttle(self, bytes_per_second: int, moves: Mapping[Key, Moving]) -> None:
        """Throttle these moves, and no others of their topics. Raises Refused."""
        leaders: dict[str, list[str]] = {}
        followers: dict[str, list[str]] = {}
        for (topic, partition), move in moves.items():
            for replica in move.replicas:
                side = followers if replica in move.adding else leaders
                side.setdefault(topic, []).append(f"{partition}:{replica}")
        rates: Changes = dict.fromkeys((LEADER_RATE, FOLLOWER_RATE), str(bytes_per_second))
        changes: dict[tuple[int, str], Changes] = {(BROKER, ALL_BROKERS): rates}
        for setting, side in ((LEADER_REPLICAS, leaders), (FOLLOWER_REPLICAS, followers)):
            for topic, entries in side.items():
                changes.setdefault((TOPIC, topic), {})[setting] = ",".join(entries)
        self.configure(changes)

    def lift_throttles(self, topics: Iterable[str]) -> None:
        """Remove the rate, and the throttled replicas of these topics if set. Raises Refused."""
        from kafka.admin import ConfigResource, ConfigResourceType  # noqa: PLC0415

        names = list(topics)
        changes: dict[tuple[int, str], Changes] = {
            (BROKER, ALL_BROKERS): dict.fromkeys((LEADER_RATE, FOLLOWER_RATE), None)
        }
        for start in range(0, len(names), RESOURCES_PER_REQUEST):
            some = names[start : start + RESOURCES_PER_REQUEST]
            asked = [ConfigResource(ConfigResourceType.TOPIC, name) for name in some]
            found = self._client.describe_configs(asked, config_filter="modified").get("topic", {})
            for name in some:
                given = [s for s in (LEADER_REPLICAS, FOLLOWER_REPLICAS) if s in found.get(name, {})]
                if given:
                    changes[TOPIC, name] = dict.fromkeys(given, None)
        self.configure(changes)

    def cordon(self, broker: int, cordoned: bool) -> None:
        """Keep new replicas away from that broker, or allow them again. Raises Refused."""
        name = "tidelog.broker.cordoned"
        self.configure({(BROKER, str(broker)): {name: NODE_SETTINGS[name].text(True) if cordoned else None}})

    def configure(self, changes: dict[tuple[int, str], Changes]) -> None:
        """Set or (None) delete settings by (resource type, resource name). Raises Refused."""
        from wire.messages import IncrementalAlterConfigsRequest  # noqa: PLC0415

        resource = IncrementalAlterConfigsRequest.AlterConfigsResource
        resources = [
            resource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    resource.AlterableConfig(
                        name=setting, config_operation=DELETE if value is None else SET, value=value
                    )
                    for setting, value in settings.items()
                ],
            )
            for (kind, name), settings in changes.items()
        ]
        for start in range(0, len(resources), RESOURCES_PER_REQUEST):
            some = resources[start : start + RESOURCES_PER_REQUEST]
            response = self._client.send(IncrementalAlterConfigsRequest(resources=some, validate_only=False))
            for row in response.responses:
                _check(row.resource_name or "all brokers", row)

    def cordoned(self, brokers: Iterable[int]) -> list[int]:
        """The brokers, all alive, that are being emptied."""
        from kafka.admin import ConfigResource, ConfigResourceType  # noqa: PLC0415

        name = "tidelog.broker.cordoned"
        asked = [ConfigResource(ConfigResourceType.BROKER, str(broker), {name: None}) for broker in brokers]
        found = self._client.describe_configs(asked, config_filter="all").get("broker", {}) if asked else {}
        return sorted(int(broker) for broker, configs in found.items() if configs[name]["value"] == "true")


class Rounds:
    """Works through many moves, `at_once` at a time, including those that run already."""

    def __init__(
        self,
        moves: ReplicaMoves,
        at_once: int,
        bytes_per_second: int,
        pause: Callable[[], None],
        progress: Callable[[int, int], None],
    ) -> None:
        """`bytes_per_second` 0: no throttle. `progress` is called with the numbers of remaining and running moves."""
        self._moves = moves
        self._at_once = at_once
        self._rate = bytes_per_second
        self._pause = pause
        self._progress = progress

    def run(self, waiting: Sequence[PlacedPartition], mine: Callable[[Key, Moving], bool]) -> None:
        """Move all of `waiting`, and wait for the end of every reassignment that is `mine`. Raises Refused."""
        left = list(waiting)
        reported = (-1, -1)
        while True:
            running = {key: moving for key, moving in self._moves.running().items() if mine(key, moving)}
            if left and len(running) <= self._at_once // 2:
                some, left = left[: self._at_once - len(running)], left[self._at_once - len(running) :]
                self._begin(some, running)
                continue
            if reported != (reported := (len(left) + len(running), len(running))):
                self._progress(*reported)
            if not running and not left:
                return
            self._pause()

    def _begin(self, some: list[PlacedPartition], running: dict[Key, Moving]) -> None:
        if self._rate:
            topics = list(dict.fromkeys(move.topic for move in some))
            present = {(p.topic, p.partition): p for p in self._moves.partitions(topics)}
            planned = dict(running)
            for move in some:
                key = (move.topic, move.partition)
                before = present[key].replicas
                adding = tuple(replica for replica in move.replicas if replica not in before)
                removing = tuple(replica for replica in before if replica not in move.replicas)
                planned[key] = Moving(move.replicas + removing, adding, removing)
            self._moves.throttle(self._rate, planned)
        self._moves.begin(some)


def _check(what: str, row: Any) -> None:
    if row.error_code:
        raise Refused(f"{what}: {error_text({'error_code': row.error_code, 'error_message': row.error_message})}")
