"""Whatever producers of both protocols, zombies among them, timers and new leaders do, and in whatever order."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.coordination.transactions.config import TransactionConfig
from broker.coordination.transactions.records import decode_key, decode_value
from broker.coordination.transactions.values import (
    LAST_EPOCH,
    InitProducer,
    MarkersToWrite,
    Producer,
    Transaction,
    TransactionState,
)
from common.errors import ErrorCode
from tests.broker.transaction_driver import START_MS, TransactionDriver

CONFIG = TransactionConfig(id_expiration_ms=1 << 50)  # an id that is forgotten begins again with a new producer id
State = TransactionState
IDS = st.sampled_from(["a", "lkc-abc123_b"])
PICKS = st.integers(0, 20)


class Transactions(RuleBasedStateMachine):
    """Producers know only what they were answered, now or earlier. `ended`: the outcome of each epoch's transaction,
    as its markers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = TransactionDriver(CONFIG)
        for name, producer_id in (("a", 7), ("lkc-abc123_b", 8)):  # near the last epoch, so that it is reached
            start = Transaction(producer_id, LAST_EPOCH - 3, 30_000, updated_ms=START_MS, previous_id=producer_id)
            self.driver.put(name, start)
        self.known: dict[str, list[Producer]] = {"a": [Producer(7, LAST_EPOCH - 3)], "lkc-abc123_b": []}
        self.answers: dict[Producer, str] = {}
        self.ended: dict[tuple[int, int], bool] = {}
        self.seen = 0
        self.newest: dict[str, Transaction] = {}

    def pick(self, name: str, pick: int) -> Producer:
        known = self.known[name]
        return known[-1 - pick % len(known)] if known else Producer(9, 9)

    def learn(self, name: str, answer: tuple[ErrorCode, Producer]) -> None:
        code, producer = answer
        if code is ErrorCode.NONE and producer != Producer():
            assert producer.producer_epoch <= LAST_EPOCH
            assert self.answers.setdefault(producer, name) == name
            if producer not in self.known[name]:
                self.known[name].append(producer)

    @rule(name=IDS)
    def init(self, name: str) -> None:
        """A producer without an epoch never gets one that was given before."""
        before = set(self.answers)
        code, producer = self.driver.init(name, timeout_ms=30_000)
        assert code is not ErrorCode.NONE or producer not in before
        self.learn(name, (code, producer))

    @rule(name=IDS, pick=PICKS)
    def init_again(self, name: str, pick: int) -> None:
        if self.known[name]:
            self.learn(name, self.driver.init(name, self.pick(name, pick), timeout_ms=30_000))

    @rule(name=IDS, pick=PICKS, partition=st.integers(0, 2), new=st.booleans())
    def add(self, name: str, pick: int, partition: int, new: bool) -> None:
        self.driver.add(name, self.pick(name, pick), ("flights", partition), new_protocol=new)

    @rule(name=IDS, pick=PICKS, commit=st.booleans(), new=st.booleans())
    def end(self, name: str, pick: int, commit: bool, new: bool) -> None:
        self.learn(name, self.driver.end(name, self.pick(name, pick), commit=commit, new_protocol=new))

    @rule()
    def markers(self) -> None:
        self.driver.write_markers()

    @rule(seconds=st.sampled_from([1, 40]))
    def time(self, seconds: int) -> None:
        self.driver.pass_ms(seconds * 1_000)

    @rule()
    def leader_changes(self) -> None:
        self.driver.reload()

    @rule()
    def newest_record_is_taken_back(self) -> None:
        """As if the log had refused it; what it answered was never sent, so the producers have not learned it."""
        shard, request = self.driver.shard, self.pick("a", 0)
        if self.driver.state("a").state is State.ONGOING:
            (fences,) = (shard.init_producer_id(_init("a"), 1, self.driver.now).records,)
            before = [shard.before(record) for record in fences]
            held = self.driver.state("a")
            for record in fences:
                shard.replay(record.key, record.value)
            shard.take_acts()
            shard.undo(before[::-1], self.driver.now)
            assert self.driver.state("a") == held
            assert shard.take_acts() == []
            assert request in self.known["a"]

    @invariant()
    def records_follow_from_each_other(self) -> None:
        for record in self.driver.log[self.seen :]:
            name = decode_key(record.key)
            assert name is not None
            assert record.value is not None
            new = decode_value(record.value)
            old = self.newest.get(name)
            self.newest[name] = new
            if old is None:
                continue
            assert new.producer_id > old.producer_id or (
                new.producer_id == old.producer_id and new.producer_epoch >= old.producer_epoch
            ), "id and epoch never fall"
            if old.state.is_prepared:
                wanted = State.COMPLETE_COMMIT if old.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT
                assert new.state is wanted
                assert self.ended.get((old.producer_id, old.producer_epoch)) is not None, "markers were asked for"
            if new.state is State.ONGOING and old.state is State.ONGOING:
                assert all(set(held) <= set(new.partitions[topic]) for topic, held in old.partitions.items())
        self.seen = len(self.driver.log)

    @invariant()
    def markers_of_an_epoch_are_of_one_kind(self) -> None:
        for act in self.driver.acts:
            self.check_markers(act)

    def check_markers(self, act: MarkersToWrite) -> None:
        if act.new_protocol:
            assert self.ended.setdefault((act.producer_id, act.producer_epoch), act.commit) is act.commit
        else:
            self.ended[act.producer_id, act.producer_epoch] = act.commit
        held = self.driver.state(act.transactional_id)
        assert held.state is (State.PREPARE_COMMIT if act.commit else State.PREPARE_ABORT)
        assert held.producer == (act.producer_id, act.producer_epoch)

    @invariant()
    def replay_gives_what_was_decided(self) -> None:
        copy = self.driver.loaded(self.driver.log)
        assert dict(copy.committed) == dict(self.driver.shard.committed)
        for name in self.driver.shard.committed:
            assert copy.find(name) == self.driver.shard.find(name)


def _init(name: str) -> InitProducer:
    return InitProducer(name, 30_000)


Transactions.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestTransactions = Transactions.TestCase
