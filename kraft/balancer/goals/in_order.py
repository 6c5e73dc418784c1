"""All goals in their order of precedence."""

from __future__ import annotations

from kraft.balancer.goal import Goal
from kraft.balancer.goals.cell import CellGoal
from kraft.balancer.goals.disk import DiskGoal
from kraft.balancer.goals.disk_capacity import DiskCapacityGoal
from kraft.balancer.goals.drain import DrainGoal
from kraft.balancer.goals.leader_bytes import LeaderBytesGoal
from kraft.balancer.goals.leaders import LeadersGoal
from kraft.balancer.goals.load import LoadGoal
from kraft.balancer.goals.load_capacity import LoadCapacityGoal
from kraft.balancer.goals.network_in import NetworkInGoal
from kraft.balancer.goals.network_in_capacity import NetworkInCapacityGoal
from kraft.balancer.goals.network_out import NetworkOutGoal
from kraft.balancer.goals.network_out_capacity import NetworkOutCapacityGoal
from kraft.balancer.goals.racks import RacksGoal
from kraft.balancer.goals.replica_capacity import ReplicaCapacityGoal
from kraft.balancer.goals.replicas import ReplicasGoal
from kraft.balancer.goals.topic_replicas import TopicReplicasGoal

GOALS: tuple[type[Goal], ...] = (
    CellGoal,
    RacksGoal,
    ReplicaCapacityGoal,
    DiskCapacityGoal,
    NetworkInCapacityGoal,
    NetworkOutCapacityGoal,
    LoadCapacityGoal,
    DrainGoal,
    ReplicasGoal,
    DiskGoal,
    NetworkInGoal,
    NetworkOutGoal,
    LoadGoal,
    TopicReplicasGoal,
    LeadersGoal,
    LeaderBytesGoal,
)


def goals() -> list[Goal]:
    """Each for one plan."""
    return [goal() for goal in GOALS]
