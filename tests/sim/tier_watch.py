"""Looks at the bucket and at `__tier_state` as they change, and has the invariants of the tier check it.

- An object that `__tier_state` calls finished is there and holds exactly the committed bytes of its range.
- The newest manifest shows exactly the state at the offset that it names, and all objects that it names exist.
- Nothing is overwritten, and manifests never go back to an earlier state or leader.
- A segment's object is deleted only once the state lets it go, by a leader that has claimed its epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from records.record import decode_records
from tests.sim.bucket import Bucket
from tests.sim.history import TopicPartition
from tests.sim.invariants import CommittedLog, Coverage, InvariantBroken
from tests.sim.tier_model import Identity, ModelledTier, TierRecordsAreLegal, content_problem, rewritten_away
from tiering.bucket.keys import ManifestKey, PageKey, PartitionPath, SegmentKey, TierRoot
from tiering.bucket.segment import SegmentId, SegmentState
from tiering.manifests.manifest import ManifestHead, decode_head
from tiering.shard.tier_records import KeyKind, SwapRecord, decode_key, decode_segment, decode_swap

INFLATED_BYTES_MAX = 1 << 24


class BucketIsSound:
    """The name under which what is found in the bucket is told."""


class Intent(NamedTuple):
    """Who deletes: a broker, and the leader epochs in which it leads partitions as it asks."""

    broker: int
    epochs: dict[TopicPartition, int]


class TierWatch:
    """One per run. `root` is None until the cluster has an id."""

    def __init__(
        self,
        bucket: Bucket,
        committed: CommittedLog,
        coverage: Coverage,
        root: Callable[[], TierRoot],
        trace: Callable[[str], None],
        *,
        lossy: bool,
    ) -> None:
        self.records = TierRecordsAreLegal(committed, lossy=lossy)
        self._bucket, self._committed, self._coverage = bucket, committed, coverage
        self._root, self._trace, self._lossy = root, trace, lossy
        self._heads: dict[Identity, ManifestHead] = {}
        self._heads_since_ns: dict[Identity, int] = {}
        self._removed: dict[TopicPartition, set[int]] = {}  # by jobs: where the batches begin that are in no segment
        self._name = BucketIsSound()
        bucket.watch = self

    # the state ---------------------------------------------------------------------------------------------

    def committed_state(self, batch: bytes) -> None:
        """A batch of `__tier_state` that is now committed."""
        with memoryview(batch) as view:
            for record in decode_records(view, 0, len(view), inflated_bytes_max=INFLATED_BYTES_MAX):
                assert record.key is not None
                key, value = bytes(record.key), None if record.value is None else bytes(record.value)
                before = self._copied()
                self.records.replay(record.offset, key, value)
                if self._copied() > before:
                    self._check_copies()
                decoded = decode_key(key)
                if decoded is not None and decoded.kind is KeyKind.SWAP and value is not None:
                    self._check_swap((decoded.topic_id, decoded.partition), decode_swap(value))
        self._check_named()

    def _copied(self) -> int:
        return sum(tier.tier_end for tier in self.records.tiers.values())

    def _check_copies(self) -> None:
        """The newest finished segment of each partition."""
        for identity, tier in self.records.tiers.items():
            finished = tier.in_state(SegmentState.COPY_FINISHED)
            if not finished or tier.is_dropped:
                continue
            newest = finished[-1]
            if newest.rewritten:
                continue
            key = self._root().segment_key(path_of(identity, tier), newest.id)
            data = self._bucket.data(key)
            if data is None:
                raise InvariantBroken(self._name, f"{tier.key}: {newest.id} is finished, its object is not there")
            if not self._lossy and (problem := content_problem(newest, data, self._committed, tier.key)):
                raise InvariantBroken(self._name, f"{tier.key}: {newest.id}: {problem}")
        self._coverage.add("segments copied")

    def _check_swap(self, identity: Identity, swap: SwapRecord) -> None:
        """Its objects are there, and hold nothing but what is committed, in order."""
        tier = self.records.tiers.get(identity)
        if tier is None or tier.is_dropped:
            return
        removed = self._removed.setdefault(tier.key, set())
        for base_offset, uuid, value in swap.outputs:
            output = decode_segment(SegmentId(base_offset, uuid.hex()), value)
            data = self._bucket.data(self._root().segment_key(path_of(identity, tier), output.id))
            if data is None:
                raise InvariantBroken(self._name, f"{tier.key}: {output.id} replaces others, its object is not there")
            missing, problem = rewritten_away(output, data, self._committed, tier.key)
            if problem and not self._lossy:
                raise InvariantBroken(self._name, f"{tier.key}: {output.id}: {problem}")
            removed.update(missing)
        self._coverage.add("swaps")
        self._coverage.add("batches rewritten away", len(removed))

    def explains(self, partition: TopicPartition, begin: int, end: int) -> bool:
        """Whether every batch that begins in [begin, end) was rewritten away."""
        removed = self._removed.get(partition, set())
        return all(batch.base_offset in removed for batch in self._committed.between(partition, begin, end))

    def tier_of(self, partition: TopicPartition) -> ModelledTier | None:
        """Of a topic that lives."""
        return next(
            (tier for tier in self.records.tiers.values() if tier.key == partition and not tier.is_dropped), None
        )

    # the bucket --------------------------------------------------------------------------------------------

    def putting(self, node: str, key: str, data: bytes, there: bytes | None, sent_ns: int) -> None:
        """See `BucketWatch`."""
        if there is not None and there != data:
            raise InvariantBroken(self._name, f"{node} overwrites {key}")
        parsed = self._root().parse_key(key)
        if isinstance(parsed, ManifestKey):
            self._published(node, parsed, decode_head(data, key), sent_ns)

    def _published(self, node: str, key: ManifestKey, head: ManifestHead, sent_ns: int) -> bool:
        """Whether it follows the newest one, and is it now; False when its sender cannot have known that one: it was on
        its way meanwhile, or it is of an earlier leader, which may look at nothing new for a while."""
        identity = (key.path.topic_id, key.path.partition)
        what = f"{node} publishes version {head.version} of {head.topic}-{head.partition}"
        before = self._heads.get(identity)
        is_late = before is not None and (
            sent_ns < self._heads_since_ns[identity] or head.leader_epoch < before.leader_epoch
        )
        if is_late:
            self._check_outdone(what, key, head)
        else:
            self._check_follows(what, key, head, before)
        self._check_shows(what, head, self.records.tiers.get(identity) or self.records.forgotten.get(identity))
        self._trace(f"{what}: [{head.log_start_offset}, {head.end_offset}) of state {head.tier_state_offset}")
        if is_late:
            self._coverage.add("manifests that came late")
            return False
        self._heads[identity], self._heads_since_ns[identity] = head, self._bucket.scheduler.now_ns
        self._coverage.add("manifests")
        return True

    def _check_follows(self, what: str, key: ManifestKey, head: ManifestHead, before: ManifestHead | None) -> None:
        place = (head.leader_epoch, head.tier_state_offset)
        if head.version != (1 if before is None else before.version + 1):
            raise InvariantBroken(self._name, f"{what} after version {0 if before is None else before.version}")
        if before is not None and place < (before.leader_epoch, before.tier_state_offset):
            text = f"of epoch and state {place} after {(before.leader_epoch, before.tier_state_offset)}"
            raise InvariantBroken(self._name, f"{what} {text}")

    def _check_outdone(self, what: str, key: ManifestKey, head: ManifestHead) -> None:
        """Its number is free, for the version that had it was removed. A newer one is there, also of a deleted topic:
        its last one stays for longer than a put travels. Then the sweeper removes both, as `unsettled` wants it."""
        versions = [self._root().parse_key(name) for name in self._manifests(key.path)]
        if not any(isinstance(other, ManifestKey) and other.version > head.version for other in versions):
            raise InvariantBroken(self._name, f"{what} late, and it is the newest again")

    def _check_shows(self, what: str, head: ManifestHead, tier: ModelledTier | None) -> None:
        span = None if tier is None else tier.span_at(head.tier_state_offset)
        if span is None:
            raise InvariantBroken(self._name, f"{what} of a state that nobody committed")
        named = shown(head)
        if (head.log_start_offset, head.end_offset) != span[:2] or (named != span.segments and not names_nothing(head)):
            text = f"[{head.log_start_offset}, {head.end_offset}) with {len(named)} segments"
            raise InvariantBroken(self._name, f"{what}: {text}, the state is {span}")

    def _manifests(self, path: PartitionPath) -> list[str]:
        return self._bucket.names(self._root().manifest_prefix(path))

    def deleting(self, node: str, keys: Sequence[str], claims: Intent) -> None:
        """See `BucketWatch`."""
        for key in keys:
            parsed = self._root().parse_key(key)
            if isinstance(parsed, SegmentKey) and self._bucket.data(key) is not None:
                self._deletes(node, parsed, claims)

    def _deletes(self, node: str, key: SegmentKey, intent: Intent) -> None:
        self._coverage.add("objects deleted")
        tier = self.records.tiers.get((key.path.topic_id, key.path.partition))
        if tier is None or tier.is_dropped:
            return
        known = tier.segments.get(key.segment)
        what = f"{node} deletes {key.segment} of {tier.key}"
        if known is None:
            self._coverage.add("orphans swept")
            return
        if known.state is not SegmentState.DELETE_STARTED:
            raise InvariantBroken(self._name, f"{what}, which is {known.state}")
        own = {epoch for epoch, broker in tier.claims if broker == intent.broker}
        if intent.epochs.get(tier.key, max(own, default=-1)) not in own:
            raise InvariantBroken(self._name, f"{what}, and has claimed it in epochs {sorted(own)} alone")

    def changed(self) -> None:
        """See `BucketWatch`."""
        self._check_named()

    def _check_named(self) -> None:
        """What the newest manifests name exists."""
        objects = self._bucket.store.objects
        for identity, head in self._heads.items():
            path = PartitionPath(head.topic, identity[0], identity[1], head.tenant)
            for segment in head.segments:
                key = self._root().segment_key(path, segment.id)
                if segment.end_offset > head.log_start_offset and key not in objects:
                    raise InvariantBroken(self._name, f"version {head.version} names {key}, which is not there")

    # after the end -----------------------------------------------------------------------------------------

    def unsettled(self) -> str:
        """What is still to be done in state and bucket; empty when both are as they shall stay."""
        due: dict[str, None] = {}
        for identity, tier in self.records.tiers.items():
            name = f"{tier.key[0]}-{tier.key[1]}"
            if tier.is_dropped:
                return f"the tier of {name}, which was deleted, is not forgotten"
            for state in (SegmentState.COPY_STARTED, SegmentState.DELETE_STARTED):
                if left := tier.in_state(state):
                    return f"{len(left)} segments of {name} are {state}"
            if below := [s for s in tier.in_state(SegmentState.COPY_FINISHED) if s.end_offset <= tier.log_start]:
                return f"{len(below)} segments of {name} lie below the log start"
            head, span = self._heads.get(identity), tier.span()
            if head is None or (head.log_start_offset, head.end_offset, *shown(head)) != (*span[:2], *span.segments):
                return f"the manifest of {name} is behind the state"
            path = path_of(identity, tier)
            due.update(dict.fromkeys(self._root().segment_key(path, segment) for segment in span.segments))
        found = {key: self._root().parse_key(key) for key in self._bucket.names()}
        if missing := [key for key in due if key not in found]:
            raise InvariantBroken(self._name, f"{missing[0]} is in the state and not in the bucket")
        orphans = [key for key, parsed in found.items() if key not in due and self._is_orphan(parsed)]
        return f"{len(orphans)} objects are orphans, as {orphans[0]}" if orphans else ""

    def _is_orphan(self, key: SegmentKey | ManifestKey | PageKey | None) -> bool:
        """Of an object that is no segment of the state: pages and manifests stay as long as their partition."""
        if isinstance(key, SegmentKey):
            return True
        return key is not None and (key.path.topic_id, key.path.partition) not in self.records.tiers


def shown(head: ManifestHead) -> tuple[SegmentId, ...]:
    return tuple(segment.id for segment in head.segments if segment.end_offset > head.log_start_offset)


def names_nothing(head: ManifestHead) -> bool:
    """Whether it is the last one of a deleted topic."""
    return not head.segments and bool(head.dropped_ms)


def path_of(identity: Identity, tier: ModelledTier) -> PartitionPath:
    return PartitionPath(tier.key[0], identity[0], identity[1], tier.record.tenant)
