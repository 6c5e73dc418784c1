"""DescribeQuorum 0-2 of the active controller: voters with their true ends and times, and brokers as observers.

The quorum's log has entries, the metadata has offsets; an entry gets its offsets when it is committed. So a voter's end
is that of the committed metadata that it has acknowledged, and the leader's end is the high watermark. Brokers are
known by their heartbeats: an observer's last fetch is the heartbeat that reported its offset. Sources: KIP-595,
KIP-836, KIP-853.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from common.errors import ErrorCode
from common.ports import Address
from kraft.controller.sessions import Session
from kraft.image.metadata import MetadataImage
from kraft.metadata_log import MetadataLog
from kraft.quorum.follower_progress import FollowerState
from kraft.records import METADATA_TOPIC
from wire.messages import DescribeQuorumRequest, DescribeQuorumResponse

UNKNOWN = -1
LISTENER = "CONTROLLER"
_Topic = DescribeQuorumResponse.TopicData
_Partition = _Topic.PartitionData
_Replica = _Partition.ReplicaState
_Node = DescribeQuorumResponse.Node


class QuorumView(Struct, frozen=True):
    """What the active controller knows. `wall_ms` and `now_s` are one moment on the clocks of answers and sessions."""

    image: MetadataImage
    log: MetadataLog
    voters: Mapping[int, Address]
    followers: Mapping[int, FollowerState]
    brokers: Sequence[tuple[int, Session]]
    wall_ms: int
    now_s: float


def describe_quorum(view: QuorumView, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
    """Of anything but the one partition of the metadata: UNKNOWN_TOPIC_OR_PARTITION for each that is asked for."""
    asked = [(topic.topic_name, one.partition_index) for topic in request.topics for one in topic.partitions]
    if asked != [(METADATA_TOPIC, 0)]:
        return DescribeQuorumResponse(error_code=0, topics=[_refused(topic) for topic in request.topics], nodes=[])
    image = view.image
    partition = _Partition(
        partition_index=0,
        error_code=0,
        leader_id=image.leader_id,
        leader_epoch=image.epoch,
        high_watermark=image.next_offset,
        current_voters=[_voter(view, voter) for voter in sorted(view.voters)],
        observers=[_observer(view, broker_id, session) for broker_id, session in view.brokers],
    )
    nodes = [
        _Node(node_id=voter, listeners=[_Node.Listener(name=LISTENER, host=host, port=port)])
        for voter, (host, port) in sorted(view.voters.items())
    ]
    return DescribeQuorumResponse(
        error_code=0, topics=[_Topic(topic_name=METADATA_TOPIC, partitions=[partition])], nodes=nodes
    )


def _refused(topic: DescribeQuorumRequest.TopicData) -> _Topic:
    code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    rows = [
        _Partition(
            partition_index=one.partition_index,
            error_code=code,
            leader_id=0,
            leader_epoch=0,
            high_watermark=0,
            current_voters=[],
            observers=[],
        )
        for one in topic.partitions
    ]
    return _Topic(topic_name=topic.topic_name, partitions=rows)


def _voter(view: QuorumView, voter: int) -> _Replica:
    if voter == view.image.leader_id:
        return _replica(voter, view.image.next_offset, view.wall_ms, view.wall_ms)
    state = view.followers.get(voter)
    if state is None or state.answered_s is None:
        return _replica(voter, UNKNOWN, UNKNOWN, UNKNOWN)
    end = view.log.end_offset_at(state.match_index)
    return _replica(voter, UNKNOWN if end is None else end, _ago(view, state.answered_s), _ago(view, state.caught_up_s))


def _observer(view: QuorumView, broker_id: int, session: Session) -> _Replica:
    caught_up_s = view.now_s - session.caught_up_at if session.caught_up_at >= 0 else None
    return _replica(
        broker_id, session.metadata_offset + 1, _ago(view, view.now_s - session.heard_at), _ago(view, caught_up_s)
    )


def _ago(view: QuorumView, seconds: float | None) -> int:
    """The wall time in milliseconds."""
    return UNKNOWN if seconds is None else view.wall_ms - round(seconds * 1000)


def _replica(number: int, end_offset: int, answered_ms: int, caught_up_ms: int) -> _Replica:
    return _Replica(
        replica_id=number,
        log_end_offset=end_offset,
        last_fetch_timestamp=answered_ms,
        last_caught_up_timestamp=caught_up_ms,
    )
