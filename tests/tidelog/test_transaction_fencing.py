"""An operator's fencing of a transactional id: what it says became of the transaction."""

from __future__ import annotations

from typing import cast

import pytest

from tests.tidelog.transaction_world import Happening, World
from tidelog.admin.library_client import AdminClient
from tidelog.admin.replica_moves import Refused
from tidelog.admin.transaction_admin import Fenced, described, fence


@pytest.mark.parametrize(
    ("happens", "outcome"),
    [
        ([], Fenced.ABORTED),
        ([Happening("decide", 0, 1)], Fenced.ABORTED),
        ([Happening("decide", 0, 0)], Fenced.COMMITTED),
        ([Happening("decide", 0, 0), Happening("mark", 0)], Fenced.NOTHING_OPEN),
        ([Happening("decide", 0, 1), Happening("mark", 0)], Fenced.NOTHING_OPEN),
    ],
)
def test_fencing_says_whether_it_aborted_anything(happens: list[Happening], outcome: Fenced) -> None:
    """What happens between the description, from which a person decided, and the fencing."""
    world = World([[Happening("begin", 0, 0)], [], happens])
    client = cast("AdminClient", world)
    assert described(client, "a").state == "Ongoing"
    assert fence(client, "a") is outcome


def test_fencing_a_transaction_whose_next_one_has_begun_does_not_claim_an_abort() -> None:
    """Its producer commits; before the outcome is read it goes on."""
    goes_on = [Happening("mark", 0), Happening("begin", 0, 0)]
    world = World([[Happening("begin", 0, 0), Happening("decide", 0, 0)], [], goes_on])
    assert fence(cast("AdminClient", world), "a") is Fenced.UNKNOWN


def test_a_coordinator_that_cannot_write_is_named_with_what_to_look_at() -> None:
    world = World([[Happening("begin", 0, 0), Happening("lose_replicas")]])
    with pytest.raises(
        Refused, match=r"^broker 1 coordinates a, and cannot write __transaction_state now\. .*in sync.*disk"
    ):
        fence(cast("AdminClient", world), "a")
