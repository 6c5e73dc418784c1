"""One log directory alone: appends, flushes, truncations and rolls under deaths and losses of power, then recovery.

After a death of the process the log holds all that counted as written; after a loss of power all that was flushed. In
both cases it is one run of batches that were really appended, and producers, epochs, aborted transactions and reads say
what they say.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any, NamedTuple

from common.directory_config import DirectoryConfig
from common.errors import ProtocolError
from common.ports import Ports
from records.batch import BatchHeader, read_header
from records.builder import build_batch
from records.control import MarkerKind, read_marker
from records.record import Record
from storage.audit.audit_trail import NoTrail
from storage.directory.log_directory import LogDirectory
from storage.log.log_config import LogConfig
from storage.log.partition_log import PartitionLog
from storage.producers.known_producer import BATCHES_KEPT
from tests.records.control_batches import build_control_batch
from tests.sim import nemesis
from tests.sim.loop import SimulationFailure
from tests.sim.nemesis import Nemesis, Targets
from tests.sim.replica_files import Batch, ReplicaFiles, batch_at
from tests.sim.world import World, no_collection
from tests.storage.log_workbench import checkpoint_high_watermarks

TOPIC_ID = bytes(range(16))
FAULTS_MS = (200, 2_500)
PRODUCER = 7
LATE_MS = 400
TRANSACTIONAL = (8, 9)  # producers whose batches lie in transactions
TIMES_ASKED = 8
TENDED_SHARE, SHORT_LIVES = 0.2, 8
TRANSACTIONAL_SHARE, END_SHARE = 0.4, 0.4  # of the appends; of those of an open transaction
KINDS = ("kill", "kill_in_write", "power", "stop", "slow_disk", "stuck_disk", "wall_jump", "pause")


class StorageBroken(SimulationFailure): ...


class Model:
    """What the log has to hold: `batches` as they lie in it, and how much of it is safe from which death."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.ever: dict[Batch, None] = {}
        self.written = 0  # ends that survive a kill
        self.flushed = 0  # ends that survive a loss of power
        self.sequence = 0  # of `PRODUCER`
        self.epoch = 1
        self.power_lost = False
        self.is_exact = False  # it was stopped cleanly: `batches` are all that it had
        self.recoveries = 0
        self.aborted_seen = 0  # in recovered logs
        self.longest = 0

    def check_recovered(self, log: PartitionLog, files: ReplicaFiles) -> None:
        self.recoveries += 1
        found = files.look().batches
        self.longest = max(self.longest, len(found))
        if log.log_end_offset != files.end_offset:
            raise StorageBroken(f"the log ends at {log.log_end_offset}, its files at {files.end_offset}")
        end = 0
        for batch in found:
            if batch not in self.ever or batch.base_offset != end:
                raise StorageBroken(f"{batch} at {end} was never appended so")
            end = batch.next_offset
        if self.is_exact and found != self.batches:
            raise StorageBroken(f"{len(found)} batches after a clean stop with {len(self.batches)}, {found[-1:]}")
        self.is_exact = False
        safe = self.flushed if self.power_lost else self.written
        for index, batch in enumerate(self.batches):
            if batch.next_offset <= safe and (index >= len(found) or found[index] != batch):
                raise StorageBroken(f"{batch} is gone, {safe} was safe, the log ends at {end}")
        self.batches = list(found)
        self.written, self.flushed = end, min(self.flushed, end)  # recovery itself flushes nothing
        self.power_lost = False

    @property
    def own(self) -> list[Batch]:
        """Those of `PRODUCER`."""
        return [batch for batch in self.batches if batch.producer_id == PRODUCER]

    def truncated(self, end: int) -> None:
        self.batches = [batch for batch in self.batches if batch.next_offset <= end]
        self.written, self.flushed = min(self.written, end), min(self.flushed, end)


class Transactions(NamedTuple):
    """As the batches of a log have them: (producer, first offset), the ended ones in the order of their markers."""

    open: dict[int, int]
    aborted: list[tuple[int, int]]


def transactions_in(files: ReplicaFiles) -> Transactions:
    found = Transactions({}, [])
    for number, batch in enumerate(files.look().batches):
        if batch.is_control:
            first, content = found.open.pop(batch.producer_id, None), files.content(number)
            marker = read_marker(memoryview(content), 0, len(content))
            if first is not None and marker is not None and marker.kind is MarkerKind.ABORT:
                found.aborted.append((batch.producer_id, first))
        elif batch.is_transactional:
            found.open.setdefault(batch.producer_id, batch.base_offset)
    return found


class StorageRun:
    def __init__(self, seed: int) -> None:
        self.world, self.model = World(f"storage {seed}"), Model()
        rng = self.world.stream("plan")
        self.config = LogConfig(
            segment_bytes=rng.choice((1_024, 4_096, 1 << 20)),
            index_interval_bytes=rng.choice((1, 512)),
            flush_messages=rng.choice((1, 7, 1 << 40)),
        )
        self.truncates = rng.random() < 0.3
        self.replay_bytes_max = rng.choice((0, 1 << 17))
        self.is_varied = rng.random() < 0.5  # it has transactions, and timestamps out of order
        self.world.add_node("store", self._main)
        self.files = ReplicaFiles(self.world.nodes["store"].device, "data/t-0")
        targets = Targets(crashable=["store"], linked=["store", "elsewhere"])
        drawn = nemesis.draw(rng, targets, *FAULTS_MS, count_max=10)
        self.faults = [fault for fault in drawn if fault.kind in KINDS]
        self.world.on_death = self._died

    def _died(self, name: str, power_lost: bool) -> None:
        self.model.power_lost |= power_lost

    async def _main(self, ports: Ports) -> None:
        config = DirectoryConfig(
            checkpoint_interval_ms=200,
            upkeep_interval_ms=50,
            free_bytes_min=1 << 20,
            replay_bytes_max=self.replay_bytes_max,
        )
        directory = LogDirectory(ports, "data", 0, NoTrail(), config)
        await directory.open("cluster")
        is_recovered = False
        try:
            await directory.recover(lambda topic: self.config)
            log = directory.create_log("t", 0, TOPIC_ID, self.config)
            self.model.check_recovered(log, self.files)
            self._check_derived(log)
            is_recovered = True
            await self._use(ports, directory, log)
        finally:
            await directory.close_clean(5)
            if is_recovered and directory.offline is None:
                self.model.written = self.model.flushed = self.files.look().end_offset
                self.model.batches, self.model.is_exact = list(self.files.batches), True

    async def _use(self, ports: Ports, directory: LogDirectory, log: PartitionLog) -> None:
        rng = ports.random
        log.ends.notify(lambda: self._written(log))
        while True:
            await asyncio.sleep(rng.expovariate(1 / 0.01))
            choice = rng.random()
            try:
                if self.is_varied and rng.random() < TENDED_SHARE:
                    await self._tend(ports, directory, log)
                elif choice < 0.85:
                    self._append(ports, log)
                elif choice < 0.92:
                    await log.flush()
                elif choice < 0.96 and self.truncates:
                    await self._truncate(rng, directory, log)
                else:
                    self.model.epoch += 1
            except ProtocolError as error:
                if directory.offline is not None:
                    raise StorageBroken(f"{directory.offline}: {error}") from error
            self._written(log)

    async def _tend(self, ports: Ports, directory: LogDirectory, log: PartitionLog) -> None:
        """What else happens to a log: it is rolled by time, flushed by its upkeep, cut to the begin of a segment."""
        rng = ports.random
        choice = rng.random()
        if choice < 0.5:
            log.roll_now(ports.clock.wall_ms())
        elif choice < 0.7:
            await log.flush_closed()
        elif choice < 0.8 or not self.truncates:
            await directory.checkpoint_recovery_points()
        else:
            await self._truncate(rng, directory, log, rng.choice(log.segments).base_offset)

    def _written(self, log: PartitionLog) -> None:
        log.ends.check()
        model = self.model
        model.written = max(model.written, log.written_end_offset)
        model.flushed = max(model.flushed, log.flushed_end_offset)
        if self.config.flush_messages == 1:
            model.flushed = max(model.flushed, log.written_end_offset)

    def _append(self, ports: Ports, log: PartitionLog) -> None:
        model, rng = self.model, ports.random
        if self.is_varied and rng.random() < TRANSACTIONAL_SHARE:
            data = self._in_transaction(rng.choice(TRANSACTIONAL), ports)
        else:
            data = self._records(ports, PRODUCER, model.sequence)
        with memoryview(data) as view:
            appended = log.append_as_leader(data, view, 0, len(data), model.epoch, ports.clock.wall_ms())
        if appended.duplicate:
            raise StorageBroken(f"sequence {model.sequence} is new and was taken for a duplicate")
        batch = batch_at(data, 0)
        if batch.producer_id == PRODUCER:
            model.sequence += batch.next_offset - batch.base_offset
        model.batches.append(batch)
        model.ever[batch] = None

    def _records(self, ports: Ports, producer: int, sequence: int, *, transactional: bool = False) -> bytearray:
        now_ms, rng = ports.clock.wall_ms(), ports.random
        text = b"v" * rng.randint(1, 200)
        made_ms = now_ms - rng.randint(0, LATE_MS) if self.is_varied else now_ms
        records = [Record(number, made_ms, b"k", text, ()) for number in range(rng.randint(1, 4))]
        return build_batch(
            records, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=transactional
        )

    def _in_transaction(self, producer: int, ports: Ports) -> bytearray:
        """A batch of records, or the marker that ends the transaction."""
        if producer in transactions_in(self.files).open and ports.random.random() < END_SHARE:
            kind = ports.random.choice((MarkerKind.ABORT, MarkerKind.COMMIT))
            now_ms = ports.clock.wall_ms()
            return build_control_batch(
                kind, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=now_ms
            )
        return self._records(ports, producer, 0, transactional=True)

    async def _truncate(
        self, rng: random.Random, directory: LogDirectory, log: PartitionLog, offset: int | None = None
    ) -> None:
        """As a follower does, also below its high watermark: an unclean election may ask for that."""
        batches = self.model.batches
        if not batches:
            return
        high_watermark = rng.choice(batches).base_offset
        await checkpoint_high_watermarks(directory, {("t", 0): high_watermark})
        if offset is None:
            offset = rng.randint(0, log.log_end_offset)
        batch_start = max((batch.base_offset for batch in batches if batch.base_offset <= offset), default=0)
        while True:
            self.model.written = min(self.model.written, batch_start)  # death may come in the middle
            self.model.flushed = min(self.model.flushed, batch_start)
            try:
                end = log.truncate_to(offset)
                break
            except ProtocolError:
                if directory.offline is not None:
                    raise
                await asyncio.sleep(0.02)
        self.model.truncated(end)
        self.model.epoch += 1  # whoever leads now begins an epoch of its own
        if self.model.own:
            last = self.model.own[-1]
            self.model.sequence = last.base_sequence + last.next_offset - last.base_offset
        else:
            self.model.sequence = 0

    def _check_derived(self, log: PartitionLog) -> None:
        """What is kept beside the batches is what the batches say."""
        batches = self.model.batches
        model_sequence = 0
        starts: dict[int, int] = {}
        for batch in batches:
            starts.setdefault(batch.leader_epoch, batch.base_offset)
            if batch.producer_id == PRODUCER:
                model_sequence = batch.base_sequence + batch.next_offset - batch.base_offset
        self.model.sequence = model_sequence
        if log.leader_epochs.entries() != list(starts.items()):
            raise StorageBroken(f"leader epochs {log.leader_epochs.entries()} where the log has {list(starts.items())}")
        known = log.producers.last_records().get(PRODUCER)
        own = self.model.own
        if own and (known is None or known.last_data_offset != own[-1].next_offset - 1):
            raise StorageBroken(f"the producer is known as {known}, its last batch is {own[-1]}")
        self._check_retries(log)
        self._check_transactions(log)
        self._check_times(log)
        for batch in batches:
            region = log.read(batch.next_offset - 1, 1 << 20, log.log_end_offset)
            if region is None or read_header(region.read(), 0).base_offset != batch.base_offset:
                raise StorageBroken(f"offset {batch.next_offset - 1} is not read")
            region.release()

    def _check_retries(self, log: PartitionLog) -> None:
        for batch in self.model.own[-BATCHES_KEPT:]:
            count = batch.next_offset - batch.base_offset
            again = BatchHeader(0, 0, 0, 2, 0, 0, count - 1, 0, 0, PRODUCER, 0, batch.base_sequence, count)
            known = log.producers.check(again)
            if known is None or known[:2] != (batch.base_offset, batch.next_offset):
                raise StorageBroken(f"{batch} comes again and is taken for {known}")

    def _check_transactions(self, log: PartitionLog) -> None:
        expected = transactions_in(self.files)
        aborted = log.aborted_transactions(0, log.log_end_offset)
        if sorted(aborted) != sorted(expected.aborted):
            raise StorageBroken(f"aborted transactions {aborted} where the log has {expected.aborted}")
        first = min(expected.open.values(), default=None)
        log.producers.on_high_watermark(log.log_end_offset)
        if log.first_unstable_offset != first:
            raise StorageBroken(f"first unstable offset {log.first_unstable_offset} where the log has {expected.open}")
        self.model.aborted_seen += len(aborted)

    def _check_times(self, log: PartitionLog) -> None:
        bases = [segment.base_offset for segment in log.segments]
        headers = [read_header(self.files.content(number), 0) for number in range(len(self.files.look().batches))]
        times = sorted({header.max_timestamp for header in headers})
        for wanted in [*times[:: max(len(times) // TIMES_ASKED, 1)], *(time + 1 for time in times[-1:])]:
            expected = next((header.base_offset for header in headers if header.max_timestamp >= wanted), None)
            hit = log.locate_timestamp(wanted)
            found = None
            if hit is not None:
                found = hit.header.base_offset
                hit.region.release()
            if found != expected:
                raise StorageBroken(f"time {wanted} is found at {found}, the log has it at {expected}")
        for segment, end in zip(log.segments, [*bases[1:], log.log_end_offset], strict=True):
            inside = [one.max_timestamp for one in headers if segment.base_offset <= one.base_offset < end]
            if (largest := segment.largest_timestamp().timestamp) != max(inside, default=-1):
                raise StorageBroken(f"{largest} is the largest time of {segment.base_offset}, it has {max(inside)}")

    def _live_shortly(self) -> None:
        world, rng = self.world, self.world.stream("ends")
        world.set_stuck("store", stuck=False)
        world.nodes["store"].device.slow_factor = 1
        for _ in range(SHORT_LIVES):
            world.start("store")
            world.run_for(rng.choice((0.02, 0.1, 0.3)))
            end = rng.choice(("kill", "power", "stop", "stop and power"))
            if end.startswith("stop"):
                world.stop("store")
                if not world.run_until(lambda: world.nodes["store"].loop is None, 20.0):
                    raise StorageBroken("it does not stop")
            if end == "kill":
                world.kill("store")
            elif end.endswith("power"):
                world.power_off("store")

    def run(self) -> Any:
        """Raises what is found to be wrong."""
        world = self.world
        with no_collection():
            try:
                world.start("store")
                Nemesis(world, self.faults, ["store"])
                world.run_for(FAULTS_MS[1] / 1000)
                for end in (world.kill, world.power_off):
                    world.resume("store")
                    world.start("store")
                    world.run_for(0.5)
                    end("store")
                if self.is_varied:
                    self._live_shortly()
                world.start("store")
                world.run_for(0.2)
                if world.nodes["store"].device.blocking_sync_count:
                    raise StorageBroken("a file was synced on the event loop")
            finally:
                world.close()
