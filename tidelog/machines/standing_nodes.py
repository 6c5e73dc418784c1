"""Nodes of which a tree has files already: a plan must leave each where it is. No I/O.

Ids follow from the order of the machines and from the brokers on each, so other options would give a broker's id to a
machine without its data, and other voters would make a second quorum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tidelog.machines.host_plan import BadPlan, Plan

ID_DIGITS_MAX = 10
SAME = "give the machines in the order that they had, new ones last, and --brokers as it was"


class Standing(NamedTuple):
    """`voters` are like `1000@host`, empty where a file names none."""

    host: str
    node_id: int
    voters: frozenset[str]


def standing(host: str, settings: Mapping[str, str]) -> Standing | None:
    """By the properties in a file of that machine; None if it has no node's id."""
    node_id = settings.get("node.id", "")
    if not (node_id.isascii() and node_id.isdigit() and len(node_id) <= ID_DIGITS_MAX):
        return None
    voters = filter(None, (one.strip() for one in settings.get("controller.quorum.voters", "").split(",")))
    return Standing(host, int(node_id), frozenset(one.rpartition(":")[0] for one in voters))


def check_standing(wanted: Plan, found: Iterable[Standing]) -> None:
    """Raises BadPlan, which names the machine and the id."""
    nodes = {node.node_id: node for node in wanted.nodes}
    voters = frozenset(f"{node.node_id}@{node.host}" for node in wanted.controllers)
    for one in sorted(found, key=lambda one: (one.node_id, one.host)):
        node = nodes.get(one.node_id)
        if node is not None and node.host != one.host:
            raise BadPlan(f"{node.role} {one.node_id} is on {one.host} already, and would be on {node.host}: {SAME}")
        if one.voters and one.voters != voters:
            raise BadPlan(
                f"node {one.node_id} of {one.host} has the voters {_listed(one.voters)}, and would have "
                f"{_listed(voters)}: give --controllers {len(one.voters)}, and the machines in the order that they had"
            )


def _listed(voters: frozenset[str]) -> str:
    return ",".join(sorted(voters))
