"""The invariants bite: each is shown a history that breaks it, beside one that does not."""

from __future__ import annotations

import pytest

from records.batch import read_header, stamp
from records.builder import build_batch
from records.record import Record
from tests.sim.disk import Device, SimDisk
from tests.sim.history import Acknowledged, Fetched, History, Joined, Shown
from tests.sim.invariants import (
    AcknowledgedIsCommitted,
    CommittedLog,
    CommittedRecordsStay,
    GroupsNeverGoBack,
    HighWatermarkNeverFalls,
    InSyncReplicasHoldCommitted,
    InvariantBroken,
    LeaderHoldsAllCommitted,
    LeaderKnowsProducers,
    LoopsNeverBlock,
    MetadataAgrees,
    OneLeaderPerEpoch,
    PowerPromise,
    ReplicaState,
    SequencesWithoutGap,
    ShownIsCommitted,
)
from tests.sim.loop import Scheduler, SimLoop
from tests.sim.replica_files import ReplicaFiles

PARTITION = ("t", 0)


class Replica:
    """A partition's directory on a simulated disk."""

    def __init__(self) -> None:
        scheduler = Scheduler(1)
        self.device = Device(scheduler, scheduler.random)
        self.disk = SimDisk(self.device, SimLoop(scheduler))
        self.disk.make_directory("t-0")
        self.files = ReplicaFiles(self.device, "t-0")
        self.end = 0
        self._at: dict[str, int] = {}

    def append(self, sequence: int, *, count: int = 1, epoch: int = 1, segment: int = 0, text: bytes = b"v") -> int:
        """Returns the batch's CRC."""
        records = [Record(n, 1, b"k", text, ()) for n in range(count)]
        batch = bytearray(build_batch(records, producer_id=7, producer_epoch=0, base_sequence=sequence))
        stamp(batch, 0, self.end, epoch)
        name = f"t-0/{segment:020d}.log"
        at = self._at.get(name, 0)
        self.disk.open(name, create=True).pwrite(batch, at)
        self._at[name] = at + len(batch)
        self.end += count
        return read_header(batch, 0).crc

    def truncate(self, name: str, size: int, end: int) -> None:
        self.disk.open(name).truncate(size)
        self._at[name], self.end = size, end


def state(node: str, high_watermark: int, **changes: object) -> ReplicaState:
    values: dict[str, object] = {
        "node": node,
        "broker_id": int(node[-1]),
        "life": 1,
        "partition": PARTITION,
        "leader_epoch": 1,
        "is_leader": True,
        "high_watermark": high_watermark,
        "end_offset": high_watermark,
        "isr": (0, 1),
        "min_insync": 2,
    }
    return ReplicaState(**(values | changes))  # type: ignore[arg-type]


class Cluster:
    def __init__(self) -> None:
        self.log = CommittedLog()
        self.sequences = SequencesWithoutGap()
        self.stay = CommittedRecordsStay(self.log, self.sequences)
        self.replicas = [Replica(), Replica()]

    def append_all(self, sequence: int, **how: int) -> int:
        crcs = [replica.append(sequence, **how) for replica in self.replicas]  # type: ignore[arg-type]
        return crcs[0]


def test_files_follow_appends_truncations_and_new_segments() -> None:
    replica = Replica()
    replica.append(0, count=2)
    size = replica._at[f"t-0/{0:020d}.log"]
    assert replica.files.look().end_offset == 2
    replica.append(2)
    replica.append(3, segment=3)
    assert [batch.base_sequence for batch in replica.files.look().batches] == [0, 2, 3]
    replica.disk.remove(f"t-0/{3:020d}.log")
    replica.truncate(f"t-0/{0:020d}.log", size, 2)
    assert [batch.base_sequence for batch in replica.files.look().batches] == [0]
    replica.append(2, epoch=2)
    assert [batch.leader_epoch for batch in replica.files.look().batches] == [1, 2]


def test_two_leaders_of_one_epoch() -> None:
    invariant = OneLeaderPerEpoch()
    invariant.led(state("broker-0", 0))
    invariant.led(state("broker-1", 0, leader_epoch=2))
    with pytest.raises(InvariantBroken):
        invariant.led(state("broker-1", 0))


def test_a_high_watermark_that_falls() -> None:
    invariant = HighWatermarkNeverFalls()
    invariant.moved(state("broker-0", 5), state("broker-0", 3, leader_epoch=2))
    with pytest.raises(InvariantBroken):
        invariant.moved(state("broker-0", 5), state("broker-0", 4))


def test_a_committed_record_that_is_replaced_or_lost() -> None:
    cluster = Cluster()
    cluster.append_all(0)
    cluster.append_all(1)
    cluster.stay.advanced(state("broker-0", 2), cluster.replicas[0].files)
    leader = LeaderHoldsAllCommitted(cluster.log)
    leader.led(state("broker-1", 1, leader_epoch=2), cluster.replicas[1].files)
    cluster.replicas[1].truncate(f"t-0/{0:020d}.log", 0, 0)
    with pytest.raises(InvariantBroken, match="ends at 0"):
        leader.led(state("broker-1", 1, leader_epoch=2), cluster.replicas[1].files)
    cluster.replicas[1].append(0, text=b"other")
    with pytest.raises(InvariantBroken, match="is committed"):
        cluster.stay.advanced(state("broker-1", 1, leader_epoch=2), cluster.replicas[1].files)


def test_a_replica_that_gives_up_what_is_committed() -> None:
    cluster = Cluster()
    cluster.append_all(0)
    cluster.append_all(1)
    cluster.stay.advanced(state("broker-0", 1), cluster.replicas[0].files)
    held = list(cluster.replicas[1].files.look().batches)
    cluster.stay.cut("broker-1", PARTITION, held, 1)
    with pytest.raises(InvariantBroken, match="gives up"):
        cluster.stay.cut("broker-1", PARTITION, held, 0)


def test_a_late_leader_need_not_have_what_later_epochs_committed() -> None:
    cluster = Cluster()
    cluster.append_all(0)
    cluster.stay.advanced(state("broker-0", 1), cluster.replicas[0].files)
    cluster.replicas[0].append(1, epoch=3)
    cluster.stay.advanced(state("broker-0", 2, leader_epoch=3), cluster.replicas[0].files)
    leader = LeaderHoldsAllCommitted(cluster.log)
    leader.led(state("broker-1", 1, leader_epoch=2), cluster.replicas[1].files)
    with pytest.raises(InvariantBroken, match="ends at 1"):
        leader.led(state("broker-1", 1, leader_epoch=4), cluster.replicas[1].files)


def test_nor_know_the_producers_of_later_epochs() -> None:
    cluster = Cluster()
    cluster.append_all(0)
    cluster.stay.advanced(state("broker-0", 1), cluster.replicas[0].files)
    cluster.replicas[0].append(1, epoch=3)
    cluster.stay.advanced(state("broker-0", 2, leader_epoch=3), cluster.replicas[0].files)
    knows = LeaderKnowsProducers(cluster.log, cluster.sequences)
    knows.led(state("broker-1", 1, leader_epoch=2), {7: (0, 0)}, 0)
    knows.led(state("broker-1", 2, leader_epoch=4), {7: (0, 1)}, 0)
    for known in ({7: (0, 0)}, {}):
        with pytest.raises(InvariantBroken, match="producer 7 came to 1"):
            knows.led(state("broker-1", 1, leader_epoch=4), known, 0)
    knows.led(state("broker-1", 2, leader_epoch=4), {}, 2)  # nothing of it is left


def test_high_watermarks_past_what_is_there() -> None:
    cluster = Cluster()
    cluster.append_all(0)
    with pytest.raises(InvariantBroken, match="past what the disk holds"):
        cluster.stay.advanced(state("broker-0", 2), cluster.replicas[0].files)
    with pytest.raises(InvariantBroken, match="a follower's"):
        cluster.stay.advanced(state("broker-0", 1, is_leader=False), cluster.replicas[0].files)


@pytest.mark.parametrize("second", [0, 2])
def test_a_sequence_twice_or_left_out(second: int) -> None:
    cluster = Cluster()
    cluster.append_all(0)
    cluster.append_all(second)
    with pytest.raises(InvariantBroken, match=r"SequencesWithoutGap: .* sequence 1 is due"):
        cluster.stay.advanced(state("broker-0", 2), cluster.replicas[0].files)


def test_replicas_that_do_not_hold_what_is_committed() -> None:
    cluster = Cluster()
    cluster.append_all(0)
    invariant = InSyncReplicasHoldCommitted(cluster.log)
    files = {number: replica.files for number, replica in enumerate(cluster.replicas)}
    cluster.stay.advanced(state("broker-0", 1), files[0])
    invariant.advanced(state("broker-0", 1), files, ())
    with pytest.raises(InvariantBroken, match="2 are due"):
        invariant.advanced(state("broker-0", 1, isr=(0,)), files, ())
    cluster.replicas[0].append(1)
    cluster.stay.advanced(state("broker-0", 2), files[0])
    invariant.advanced(state("broker-0", 2), files, (1,))
    with pytest.raises(InvariantBroken, match="replica 1 is in the ISR"):
        invariant.advanced(state("broker-0", 2), files, ())
    with pytest.raises(InvariantBroken, match="1 disks"):
        invariant.advanced(state("broker-0", 2, isr=(0, 2)), files, ())
    invariant.changed(PARTITION, 0, "ISR", files[0])
    with pytest.raises(InvariantBroken, match="ELR"):
        invariant.changed(PARTITION, 1, "ELR", files[1])


def test_what_clients_hear_is_committed() -> None:
    cluster = Cluster()
    crc = cluster.append_all(0)
    acknowledged, shown = AcknowledgedIsCommitted(cluster.log), ShownIsCommitted(cluster.log)
    with pytest.raises(InvariantBroken, match="0 are committed"):
        acknowledged.acknowledged(Acknowledged(PARTITION, 0, 1, crc, 7, 0))
    with pytest.raises(InvariantBroken, match="nothing past 0"):
        shown.shown(Shown(PARTITION, 0, 1, crc, 0))
    cluster.stay.advanced(state("broker-0", 1), cluster.replicas[0].files)
    acknowledged.acknowledged(Acknowledged(PARTITION, 0, 1, crc, 7, 0))
    shown.shown(Shown(PARTITION, 0, 1, crc, 0))
    with pytest.raises(InvariantBroken, match="out of order"):
        acknowledged.acknowledged(Acknowledged(PARTITION, 0, 1, crc, 7, 0))
    with pytest.raises(InvariantBroken, match="sequence 5 is acknowledged"):
        acknowledged.acknowledged(Acknowledged(PARTITION, 0, 1, crc, 7, 5))
    with pytest.raises(InvariantBroken, match="showed"):
        shown.shown(Shown(PARTITION, 0, 1, crc + 1, 0))


def test_groups_that_go_back() -> None:
    history = History()
    invariant = GroupsNeverGoBack(history)
    history.synced("g", "a", 3, "a")
    history.synced("g", "b", 3, "a")
    history.joins.append(Joined("g", "a", 3, 3))
    history.offset_fetches.append(Fetched("g", PARTITION, 5, 5))
    invariant.check()
    history.joins.append(Joined("g", "a", 2, 3))
    with pytest.raises(InvariantBroken, match="after 3 was synced"):
        invariant.check()
    history.joins.pop()
    history.synced("g", "b", 3, "b")
    with pytest.raises(InvariantBroken, match="is led by"):
        invariant.check()
    history.syncs.pop()
    history.offset_fetches.append(Fetched("g", PARTITION, 4, 5))
    with pytest.raises(InvariantBroken, match="5 was acknowledged"):
        invariant.check()


def test_metadata_that_differs() -> None:
    invariant = MetadataAgrees()
    invariant.saw("controller-0", 4, 111)
    invariant.saw("broker-0", 4, 111)
    invariant.led("controller-0", 2)
    with pytest.raises(InvariantBroken, match="differ at offset 4"):
        invariant.saw("broker-1", 4, 222)
    with pytest.raises(InvariantBroken, match="term 2"):
        invariant.led("controller-1", 2)


def test_a_loop_that_waits_for_its_device() -> None:
    LoopsNeverBlock().check("broker-0", 0)
    with pytest.raises(InvariantBroken):
        LoopsNeverBlock().check("broker-0", 1)


def test_power_may_fail_at_fewer_than_min_insync_replicas_until_the_isr_is_whole() -> None:
    promise = PowerPromise(2, flushes_each=False)
    assert promise.allows([0])
    assert not promise.allows([0, 1])
    promise.lost_power(0, 11)
    assert promise.allows([0])
    assert not promise.allows([1])
    promise.isr_is_whole()
    assert not promise.allows([1])  # the metadata does not know yet that broker 0 was gone
    assert not promise.registered(0, 11)
    assert promise.registered(0, 12)
    promise.isr_is_whole()
    assert promise.allows([1])
    promise.disk_fails(2, True)
    promise.isr_is_whole()
    assert not promise.allows([1])
    promise.disk_fails(2, False)
    promise.isr_is_whole()
    assert promise.allows([1])
    assert PowerPromise(2, flushes_each=True).allows([0, 1, 2])
