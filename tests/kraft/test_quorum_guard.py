"""Who may start with an empty directory."""

from __future__ import annotations

import dataclasses

import pytest

from common.identifiers import ZERO_UUID
from kraft.quorum.voter_guard import Admission, Replacement, VoterRefused, VoterStatus, judge_new

CLUSTER = b"c" * 16
EMPTY = VoterStatus(False, False, 0, -1, 0, 0, ZERO_UUID)
HEALTHY = VoterStatus(True, True, 7, 2, 50, 50, CLUSTER)


def but(status: VoterStatus, **changes: object) -> VoterStatus:
    return dataclasses.replace(status, **changes)  # type: ignore[arg-type]


def test_statuses_travel() -> None:
    assert VoterStatus.from_map(HEALTHY.to_map()) == HEALTHY
    assert VoterStatus.from_map({}) is None
    assert VoterStatus.from_map({**HEALTHY.to_map(), "term": True}) is None
    assert VoterStatus.from_map({**HEALTHY.to_map(), "cluster_id": b"short"}) is None


def test_a_new_cluster_begins_when_all_have_answered() -> None:
    assert judge_new({}) == Admission(0, ZERO_UUID)
    assert judge_new({2: EMPTY, 3: None}) is None
    assert judge_new({2: EMPTY, 3: EMPTY}) == Admission(0, ZERO_UUID)


def test_a_voter_that_nobody_counted_on_may_come_later() -> None:
    assert judge_new({2: but(HEALTHY, relied_on=False), 3: EMPTY}) == Admission(0, CLUSTER)


def test_a_wiped_voter_is_refused_by_any_that_counted_on_it() -> None:
    for other in (EMPTY, None, HEALTHY):
        with pytest.raises(VoterRefused, match=r"replace\.voter=true"):
            judge_new({2: but(EMPTY, relied_on=True), 3: other})


def test_clusters_are_not_mixed() -> None:
    with pytest.raises(VoterRefused, match="different clusters"):
        judge_new({2: but(HEALTHY, relied_on=False), 3: but(EMPTY, cluster_id=b"d" * 16)})


def test_a_replacement_votes_in_later_terms_only() -> None:
    assert Replacement().judge({2: HEALTHY, 3: HEALTHY}) == Admission(8, CLUSTER)


@pytest.mark.parametrize(
    ("other", "obstacle"),
    [
        (None, "controller 3 does not answer"),
        (EMPTY, "controller 3 has no state either"),
        (but(HEALTHY, term=6), "do not agree on a leader"),
        (but(HEALTHY, leader_id=3), "do not agree on a leader"),
        (but(HEALTHY, commit_index=49), "controller 3 lacks committed entries"),
    ],
)
def test_a_replacement_waits_for_all_others_to_be_healthy(other: VoterStatus | None, obstacle: str) -> None:
    replacement = Replacement()
    assert replacement.judge({2: HEALTHY, 3: other}) is None
    assert obstacle in replacement.obstacle


def test_a_replacement_needs_a_leader_among_the_others() -> None:
    lost = but(HEALTHY, leader_id=1)
    replacement = Replacement()
    assert replacement.judge({2: lost, 3: lost}) is None


def test_a_replacement_asks_for_what_the_leader_had_at_first() -> None:
    replacement = Replacement()
    assert replacement.judge({2: but(HEALTHY, last_index=60), 3: HEALTHY}) is None
    later = but(HEALTHY, last_index=90, commit_index=60)
    assert replacement.judge({2: later, 3: later}) is not None

    replacement = Replacement()
    assert replacement.judge({2: but(HEALTHY, last_index=60), 3: HEALTHY}) is None
    new_term = but(HEALTHY, term=8, last_index=70, commit_index=60)
    assert replacement.judge({2: new_term, 3: new_term}) is None
