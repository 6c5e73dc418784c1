"""A stall of a node gives the judged their time back; a timer's usual lateness does not."""

from broker.coordination.lateness import Lateness


def test_only_a_stall_spares_anybody() -> None:
    lateness = Lateness()
    assert not lateness.fired(10.0, 10.05)
    assert lateness.spared_until < 10.0
    assert lateness.fired(11.0, 16.0)
    assert lateness.spared_until == 21.0
    assert not lateness.fired(17.0, 17.0)
    assert lateness.spared_until == 21.0
    assert lateness.fired(0.0, 1_000.0)
    assert lateness.spared_until == 1_060.0, "the time that is given back has a bound"
