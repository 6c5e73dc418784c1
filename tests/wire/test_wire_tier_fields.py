"""What leaders and followers tell each other of the tier, in tagged fields of their fetches."""

from __future__ import annotations

import pytest
from msgspec.structs import astuple, replace

from common.errors import MalformedFrame
from wire import hot_codec as hot
from wire.fetch_codec import HELD
from wire.primitives import request_head


def test_a_follower_hears_of_the_tier() -> None:
    row = hot.FetchedRow(bytes(16), 3, 0, 7, tier_end=5_000_000_000, erased_end=6_000_000_000)
    rows = [row, replace(row, tier_end=-1), replace(row, erased_end=0), replace(row, tier_generation=1 << 30)]
    parts = hot.encode_fetch_response(hot.REPLICA_FETCH_VERSION, 9, 0, 1, rows)
    buffer = bytearray(b"".join(part for part in parts if isinstance(part, bytes | bytearray)))
    heard = hot.decode_replica_fetch(buffer, 4, len(buffer)).rows
    assert [astuple(row)[-3:] for row in heard] == [astuple(row)[-3:] for row in rows]


def test_a_leader_hears_what_a_follower_holds() -> None:
    parts = [hot.ReplicaPart(0, 1, 2, 3, 4, 5), hot.ReplicaPart(1, 1, 2, 3, 4, 5, 1 << 30, 5_000_000_000)]
    frame = hot.encode_replica_fetch(9, 2, 7, 0, 0, 500, 1, 100, {bytes(16): parts}, {})
    head = request_head(bytearray(frame), 4, len(frame), True)
    call = hot.decode_fetch(bytearray(frame), head.body, len(frame), hot.REPLICA_FETCH_VERSION)
    assert [(part.partition, part.tier_generation, part.lacks_below) for part in call.parts] == [
        (0, 0, 0),
        (1, 1 << 30, 5_000_000_000),
    ]
    damaged = bytearray(frame)
    at = frame.index(HELD.pack(1 << 30, 5_000_000_000))
    damaged[at - 1] -= 1
    with pytest.raises(MalformedFrame):
        hot.decode_fetch(damaged, head.body, len(damaged), hot.REPLICA_FETCH_VERSION)
