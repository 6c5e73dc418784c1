"""What must hold of transactions after every event: read from the committed batches of all partitions, in the order in
which they are committed, and from what clients learned."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from broker.coordination.groups.records import OffsetKey, decode_offset_value
from broker.coordination.groups.records import decode_key as decode_group_key
from broker.coordination.transactions import values
from broker.coordination.transactions.records import decode_key, decode_value
from broker.coordination.transactions.values import NO_PRODUCER_ID, Producer, Transaction, TransactionState
from kraft.topic_names import GROUP_TOPIC
from tests.sim.history import TopicPartition
from tests.sim.invariants import CommittedLog, InvariantBroken, tell
from tests.sim.replica_files import Batch
from tests.sim.transaction_history import Ended, Given, Intent, OffsetRead, Refused, StableRead

Pairs = list[tuple[bytes, bytes | None]]
PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
OUTCOME = {
    TransactionState.PREPARE_COMMIT: True,
    TransactionState.COMPLETE_COMMIT: True,
    TransactionState.PREPARE_ABORT: False,
    TransactionState.COMPLETE_ABORT: False,
}


def kind(commit: bool) -> str:
    return "commit" if commit else "abort"


class DecisionsAreRecorded:
    """Of each transactional id, what `__transaction_state` says follows from what it said before. A producer id belongs
    to one transactional id and does not come back; its epoch never falls; a recorded outcome never changes; and a
    transaction is complete when every one of its partitions has the marker, or had nothing to be ended."""

    def __init__(self, count: Callable[[str], None]) -> None:
        self._count = count
        self.is_open_in: Callable[[int, TopicPartition], bool] = lambda producer_id, partition: False
        self.is_gone: Callable[[TopicPartition], bool] = lambda partition: False
        """Whether its topic is deleted: then it counts as ended there."""
        self.states: dict[str, Transaction] = {}
        self.names: dict[int, str] = {}  # of producer ids, also of earlier ones
        self.pairs: dict[str, set[Producer]] = {}  # recorded ones, and those that follow by a recorded decision
        self._unmarked: dict[str, dict[TopicPartition, None]] = {}

    def recorded(self, key: bytes, value: bytes | None) -> None:
        name = decode_key(key)
        if name is None or value is None:
            return
        new, old = decode_value(value), self.states.get(name)
        owner = self.names.setdefault(new.producer_id, name)
        if owner != name:
            raise InvariantBroken(self, f"producer {new.producer_id} belongs to {owner}, and is given to {name}")
        if old is not None:
            self._check_follows(name, old, new)
        if new.state.is_prepared and (old is None or not old.state.is_prepared):
            places = [(topic, index) for topic, indexes in new.partitions.items() for index in indexes]
            self._unmarked[name] = dict.fromkeys(places)
        self.states[name] = new
        pairs = self.pairs.setdefault(name, set())
        pairs.add(new.producer)
        if new.next_id != NO_PRODUCER_ID:
            pairs.add(Producer(new.next_id, 0))

    def _check_follows(self, name: str, old: Transaction, new: Transaction) -> None:
        if new.producer_id == old.producer_id:
            if new.producer_epoch < old.producer_epoch:
                raise InvariantBroken(self, f"{name}: epoch {old.producer_epoch} goes to {new.producer_epoch}")
        elif any(pair.producer_id == new.producer_id and pair.producer_epoch for pair in self.pairs[name]):
            raise InvariantBroken(self, f"{name}: producer {new.producer_id} comes back after {old.producer_id}")
        if not old.state.is_prepared:
            return
        if OUTCOME.get(new.state) is not OUTCOME[old.state]:
            raise InvariantBroken(self, f"{name}: {old.state.title} is followed by {new.state.title}")
        if new.state.is_prepared:
            return
        for partition in self._unmarked.pop(name, {}):
            if not self.is_open_in(old.producer_id, partition):
                continue
            if self.is_gone(partition):
                self._count("transactions that end without a deleted topic")
            else:
                raise InvariantBroken(self, f"{name}: {new.state.title} where {partition} has no marker")

    def marked(self, producer_id: int, partition: TopicPartition) -> None:
        self._unmarked.get(self.names.get(producer_id, ""), {}).pop(partition, None)

    def of(self, producer_id: int) -> tuple[str, Transaction | None]:
        """The transactional id, and its state if that producer id is its current one."""
        name = self.names.get(producer_id, "")
        state = self.states.get(name)
        return name, state if state is not None and state.producer_id == producer_id else None


class OpenBatch(NamedTuple):
    batch: Batch
    intent: Intent | None


class MarkersAgree:
    """Every marker is the recorded outcome of its producer's transaction, under the recorded epoch; every batch lies in
    a transaction that its coordinator knows, with those alone that its client sent in it; and a client's transaction
    has one outcome, in all partitions."""

    def __init__(self, decisions: DecisionsAreRecorded) -> None:
        self._decisions = decisions
        decisions.is_open_in = lambda producer_id, partition: producer_id in self.open.get(partition, {})
        self.open: dict[TopicPartition, dict[int, list[OpenBatch]]] = {}
        self.outcomes: dict[tuple[TopicPartition, int], bool] = {}  # of batches in ended transactions
        self.intents: dict[tuple[TopicPartition, int], Intent | None] = {}  # of the same
        self._of_intents: dict[Intent, bool] = {}

    def batch(self, partition: TopicPartition, batch: Batch, intent: Intent | None) -> None:
        """`intent`: as its client wrote it into its records, if it did."""
        name, state = self._decisions.of(batch.producer_id)
        place = partition[0], partition[1]
        held = self.open.setdefault(partition, {}).setdefault(batch.producer_id, [])
        known = state is not None and state.state.is_open and state.has(*place)
        bumped = 1 if state is not None and state.state.is_prepared else 0
        if state is None or not known or not 0 <= state.producer_epoch - batch.producer_epoch <= bumped:
            shown = "nothing" if state is None else f"{state.state.title} of epoch {state.producer_epoch}"
            raise InvariantBroken(self, f"{partition}: {tell(batch)} is committed, {name} is {shown} there")
        for other in held:
            if other.batch.producer_epoch != batch.producer_epoch or other.intent != intent != None:  # noqa: E711
                text = f"{tell(batch)} of {intent} lies in the transaction of {tell(other.batch)} of {other.intent}"
                raise InvariantBroken(self, f"{partition}: {text}")
        held.append(OpenBatch(batch, intent))

    def marker(self, partition: TopicPartition, batch: Batch, commit: bool) -> None:
        self.check_marker(partition, batch, commit)
        self._decisions.marked(batch.producer_id, partition)
        for one in self.open.get(partition, {}).pop(batch.producer_id, []):
            self.outcomes[partition, one.batch.base_offset] = commit
            self.intents[partition, one.batch.base_offset] = one.intent
            if one.intent is not None and self._of_intents.setdefault(one.intent, commit) is not commit:
                raise InvariantBroken(self, f"{partition}: {one.intent} is committed in part")

    def check_marker(self, partition: TopicPartition, batch: Batch, commit: bool) -> None:
        """A marker that is appended or committed."""
        name, state = self._decisions.of(batch.producer_id)
        told = f"{partition}: a marker to {kind(commit)} epoch {batch.producer_epoch} of producer {batch.producer_id}"
        if state is None or OUTCOME.get(state.state) is not commit or not state.state.is_prepared:
            shown = "nothing" if state is None else state.state.title
            raise InvariantBroken(self, f"{told}, recorded of {name!r} is {shown}")
        if state.producer_epoch != batch.producer_epoch:
            raise InvariantBroken(self, f"{told}, recorded of {name} is epoch {state.producer_epoch}")

    def undecided_from(self, partition: TopicPartition) -> int | None:
        """Where the first open transaction begins; None if there is none."""
        held = [batches[0].batch.base_offset for batches in self.open.get(partition, {}).values()]
        return min(held, default=None)

    def outcome_of(self, intent: Intent) -> bool | None:
        return self._of_intents.get(intent)


class PromisesAreKept:
    """What an acknowledged EndTxn says is decided. A producer's id and epoch are recorded when it gets them, no other
    gets them, and it is not refused while they are the current ones."""

    def __init__(self, decisions: DecisionsAreRecorded, markers: MarkersAgree) -> None:
        self._decisions, self._markers = decisions, markers
        self._owners: dict[Producer, tuple[str, int]] = {}
        self._newest: dict[tuple[str, int], Producer] = {}
        self.ended: list[Ended] = []

    def given(self, item: Given) -> None:
        pair, owner = Producer(item.producer_id, item.producer_epoch), (item.transactional_id, item.instance)
        if pair not in self._decisions.pairs.get(item.transactional_id, ()):
            state = self._decisions.states.get(item.transactional_id)
            text = f"{item.answer} gives {pair}, recorded is {None if state is None else state.producer}"
            raise InvariantBroken(self, f"{item.transactional_id}: {text}")
        if pair.producer_epoch > values.LAST_EPOCH:
            raise InvariantBroken(self, f"{item.transactional_id}: {pair} is given, which only fences")
        if (holder := self._owners.setdefault(pair, owner)) != owner:
            raise InvariantBroken(self, f"{item.transactional_id}: {pair} is given to {owner} and to {holder}")
        before = self._newest.get(owner)
        if (
            before is not None
            and before.producer_id == pair.producer_id
            and before.producer_epoch > pair.producer_epoch
        ):
            raise InvariantBroken(self, f"{item.transactional_id}: {pair} is given after {before}")
        self._newest[owner] = pair

    def refused(self, item: Refused) -> None:
        """Nobody is fenced who has the id and epoch of now, or, once a transaction is decided, of the next one."""
        state = self._decisions.states.get(item.transactional_id)
        if state is None:
            return
        rotates = state.state.is_prepared and state.next_id != NO_PRODUCER_ID
        current = Producer(state.next_id, 0) if rotates else state.producer
        if current == (item.producer_id, item.producer_epoch):
            raise InvariantBroken(
                self, f"{item.transactional_id}: {item.answer}, and {current} is the current producer"
            )

    def end_acknowledged(self, item: Ended) -> None:
        self.ended.append(item)
        state = self._decisions.states[item.intent.transactional_id]
        decided = OUTCOME.get(state.state)
        for partition, base_offset in item.batches:
            outcome = self._outcome(item, partition, base_offset)
            if outcome is None and self._decisions.is_gone(partition):
                continue
            if outcome is None and state.state.is_prepared and state.has(*partition):
                outcome = decided
            if outcome is not item.commit:
                text = f"{kind(item.commit)} is acknowledged, {partition} at {base_offset} is {outcome}"
                raise InvariantBroken(self, f"{item.intent}: {text} and recorded {state.state.title}")

    def _outcome(self, item: Ended, partition: TopicPartition, base_offset: int) -> bool | None:
        """None if it is not known: the topic may be made again under its name, and the outcomes are those of the first
        one."""
        place = partition, base_offset
        if self._decisions.is_gone(partition) and self._markers.intents.get(place) != item.intent:
            return None
        return self._markers.outcomes.get(place)

    def check_ends(self) -> None:
        """When all transactions have ended."""
        for item in self.ended:
            for partition, base_offset in item.batches:
                outcome = self._outcome(item, partition, base_offset)
                if outcome is not item.commit and not (outcome is None and self._decisions.is_gone(partition)):
                    text = f"{kind(item.commit)} is acknowledged, {partition} at {base_offset} is {outcome}"
                    raise InvariantBroken(self, f"{item.intent}: {text}")


class ReadersSeeTheCommitted:
    """A reader of committed records is shown each batch that is plain or committed once, and none that is aborted or
    undecided."""

    def __init__(self, committed: CommittedLog, markers: MarkersAgree) -> None:
        self._committed, self._markers = committed, markers

    def read(self, item: StableRead) -> None:
        shown, outcomes = set(item.shown), self._markers.outcomes
        for batch in self._committed.between(item.partition, item.begin, item.end):
            if batch.is_control:
                due: bool | None = False
            elif batch.is_transactional:
                due = outcomes.get((item.partition, batch.base_offset))
            else:
                due = True
            if (batch.base_offset in shown) is not due:
                what = {None: "undecided", True: "committed", False: "aborted"}[due]
                told = "shown" if batch.base_offset in shown else "passed over"
                text = f"{item.reader} at broker {item.node}: {tell(batch)} is {what} and {told}"
                raise InvariantBroken(self, f"{item.partition}: {text}")


class Counting(NamedTuple):
    """A group's offset that counts: where its batch lies, and its value."""

    record_offset: int
    value: int


class OffsetsCountWhenCommitted:
    """A coordinator tells a group's offset as it was between question and answer: a transaction's when it is committed,
    unless one that lies later in the log counts already. What is copied to a partition that is to have the group is
    there before it counts."""

    def __init__(self) -> None:
        self.holds: Callable[[str, int], bool] = lambda group, index: True
        """Whether that partition of the groups' topic has the group, by the newest metadata."""
        self.values: dict[tuple[str, TopicPartition], list[int]] = {}
        self._counting: dict[tuple[int, str, TopicPartition], Counting] = {}
        self._pending: dict[tuple[int, int], list[tuple[str, TopicPartition, Counting]]] = {}

    def records(self, index: int, batch: Batch, pairs: Pairs) -> None:
        for key, value in pairs:
            decoded = decode_group_key(key)
            if not isinstance(decoded, OffsetKey) or value is None:
                continue
            group, place = decoded.group_id, (decoded.topic, decoded.partition)
            one = Counting(batch.base_offset, decode_offset_value(value).offset)
            if batch.is_transactional:
                self._pending.setdefault((index, batch.producer_id), []).append((group, place, one))
            else:
                self._count(index, group, place, one)

    def marker(self, index: int, producer_id: int, commit: bool) -> None:
        for group, place, one in self._pending.pop((index, producer_id), []):
            if commit:
                self._count(index, group, place, one)

    def _count(self, index: int, group: str, place: TopicPartition, one: Counting) -> None:
        held = self._counting.get((index, group, place))
        if held is None or one.record_offset >= held.record_offset:
            self._counting[index, group, place] = one
            if self.holds(group, index):
                self.values.setdefault((group, place), []).append(one.value)

    def mark(self, group: str, partition: TopicPartition) -> int:
        """How many values of an offset are committed."""
        return len(self.values.get((group, partition), ()))

    def value(self, group: str, partition: TopicPartition) -> int:
        return self.values.get((group, partition), [-1])[-1]

    def told(self, item: OffsetRead) -> None:
        values = self.values.get((item.group, item.partition), [])
        allowed = values[max(item.mark - 1, 0) :] + ([] if item.mark else [-1])
        if item.offset not in allowed:
            text = f"{item.offset} is told, {allowed} are right"
            raise InvariantBroken(self, f"{item.group} {item.partition}: {text}")


class CopiedOnce:
    """The committed records of each output partition are those of its input partition, once and in order."""

    def __init__(self, visible: Callable[[TopicPartition, int], bool | None]) -> None:
        """`visible`: whether the batch at an offset is plain or committed; None while that is open."""
        self._visible = visible
        self._inputs: dict[int, list[tuple[int, int]]] = {}  # offset of the batch and of the record
        self._outputs: dict[int, list[tuple[int, int]]] = {}  # the same, with the offset of the input record
        self._at: dict[int, list[int]] = {}  # how many of the outputs and inputs are compared

    def input(self, index: int, base_offset: int, count: int) -> None:
        self._inputs.setdefault(index, []).extend((base_offset, base_offset + n) for n in range(count))

    def output(self, index: int, base_offset: int, copied: Iterable[int]) -> None:
        self._outputs.setdefault(index, []).extend((base_offset, offset) for offset in copied)

    def check(self, index: int, source: TopicPartition, target: TopicPartition) -> None:
        """Go on to where outputs are decided."""
        at = self._at.setdefault(index, [0, 0])
        inputs, outputs = self._inputs.get(index, []), self._outputs.get(index, [])
        while at[0] < len(outputs):
            base_offset, copied = outputs[at[0]]
            visible = self._visible(target, base_offset)
            if visible is None:
                return
            at[0] += 1
            if not visible:
                continue
            while at[1] < len(inputs) and self._visible(source, inputs[at[1]][0]) is False:
                at[1] += 1
            due = inputs[at[1]][1] if at[1] < len(inputs) else -1
            if copied != due:
                raise InvariantBroken(self, f"{target}: {copied} of {source} is copied at {base_offset}, {due} is due")
            at[1] += 1

    def left(self, index: int, source: TopicPartition) -> int:
        """How many visible records of the input are not copied."""
        done = self._at.get(index, [0, 0])[1]
        return sum(
            self._visible(source, base_offset) is not False for base_offset, _ in self._inputs.get(index, [])[done:]
        )


class TierHoldsTheDecided:
    """No segment is copied before all transactions that it has records of are decided."""

    def __init__(self, markers: MarkersAgree) -> None:
        self._markers = markers

    def copied(self, partition: TopicPartition, tier_end: int) -> None:
        first = self._markers.undecided_from(partition)
        if first is not None and first < tier_end:
            raise InvariantBroken(self, f"{partition}: the tier ends at {tier_end}, undecided is {first}")


def is_offsets(partition: TopicPartition) -> bool:
    return partition[0] == GROUP_TOPIC
