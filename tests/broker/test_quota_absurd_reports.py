"""What a broker reports that is absurd takes neither shares nor connections away from others."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.broker.quota_world import CONNECTIONS, INTERVAL_S, QUOTA, A, overloaded
from tests.kraft.usage_reports import report, tenant_row


def test_absurd_reports_leave_others_their_share() -> None:
    world = overloaded()
    liar, image = world.brokers[2], world.image
    world.silent = {2}
    for number, (bytes_in, epoch) in enumerate([(-5, 0), (1 << 62, 0), (1 << 59, 0), (77, 1)]):
        liar.round += 1
        world.now += INTERVAL_S
        row = tenant_row(A, bytes_in)
        uptime_ms = int((world.now - liar.began_s) * 1000)
        request = report(2, image.brokers[2].epoch + epoch, liar.round, uptime_ms, tenants=[row])
        world.answer(request)
        for broker in (0, 1):
            world.brokers[broker].serve(INTERVAL_S)
            world.brokers[broker].report()
        shares = world.shares()
        assert shares[0] > QUOTA // 8 and shares[1] > QUOTA // 8, number
        assert shares[0] + shares[1] <= QUOTA


COUNTS = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-1, 4 * QUOTA))
ABOVE = st.integers(QUOTA + 1, (1 << 63) - 1)


@given(
    counts=st.tuples(COUNTS, COUNTS, COUNTS),
    shares=st.tuples(ABOVE, COUNTS, COUNTS),
    waited_ms=COUNTS,
    connections=st.integers(-(1 << 31), -1) | st.integers(CONNECTIONS + 1, (1 << 31) - 1),
    is_new=st.booleans(),
)
@settings(max_examples=20, deadline=None)
def test_one_absurd_report_leaves_others_their_shares_and_connections(
    counts: tuple[int, int, int], shares: tuple[int, int, int], waited_ms: int, connections: int, is_new: bool
) -> None:
    """Also one that a controller hears first which has just become active."""
    world = overloaded()
    liar, others = world.brokers[2], [world.brokers[0], world.brokers[1]]
    if is_new:
        world.fail_over()
    liar.round += 1
    world.now += INTERVAL_S
    row = tenant_row(A, counts[0], bytes_out=counts[1], busy_ns=counts[2], connections=connections)
    row.ingress_share, row.egress_share, row.busy_share = shares
    row.throttled = [row.ThrottledTime(reason="share", ms=waited_ms)]
    uptime_ms = int((world.now - liar.began_s) * 1000)
    world.answer(report(2, world.image.brokers[2].epoch, liar.round, uptime_ms, tenants=[row]))
    for _ in range(4):  # rounds in which nobody hears of it again
        for broker in others:
            broker.serve(INTERVAL_S)
            broker.report()
            assert broker.served(A) > QUOTA // 8, "by a share, or by none"
            assert broker.shares.connections_here(world.image.tenants[A], CONNECTIONS) >= CONNECTIONS // 3
        assert sum(world.shares().get(broker.broker_id, 0) for broker in others) <= QUOTA
        world.now += INTERVAL_S


def test_a_broker_that_always_claims_more_than_its_quota_takes_no_others_share() -> None:
    world = overloaded()
    liar = world.brokers[2]
    world.silent = {2}
    for _ in range(20):
        world.now += INTERVAL_S
        liar.round += 1
        row = tenant_row(A, 0)
        row.ingress_share = 1 << 60
        uptime_ms = int((world.now - liar.began_s) * 1000)
        world.answer(report(2, world.image.brokers[2].epoch, liar.round, uptime_ms, tenants=[row]))
        for broker in (0, 1):
            world.brokers[broker].serve(INTERVAL_S)
            world.brokers[broker].report()
        assert min(world.brokers[broker].served(A) for broker in (0, 1)) > QUOTA // 8
