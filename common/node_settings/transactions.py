"""Transactions: their coordinators, and what partition leaders ask them."""

from dataclasses import dataclass

from common.settings import CLUSTER_WIDE, INT_MAX, MIB, setting

WEEK_MS = 604_800_000


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Settings of transaction coordinators."""

    # fmt: off
    max_timeout_ms: int = setting("transaction.max.timeout.ms", "int", 900_000,
        "The longest `transaction.timeout.ms` of a producer; a longer one is refused.", 1)
    id_expiration_ms: int = setting("transactional.id.expiration.ms", "int", WEEK_MS,
        "A transactional id without a transaction for this long is forgotten.", 1)
    expired_ids_interval_ms: int = setting("transaction.remove.expired.transaction.cleanup.interval.ms", "int",
        3_600_000, "How often expired transactional ids are looked for.", 1)
    timeouts_interval_ms: int = setting("transaction.abort.timed.out.transaction.cleanup.interval.ms", "int", 10_000,
        "How often transactions past their timeout are looked for.", 1)
    state_partitions: int = setting("transaction.state.log.num.partitions", "int", 50,
        "Partitions of __transaction_state.", 1)
    state_replication_factor: int = setting("transaction.state.log.replication.factor", "int", 3,
        "Replicas of __transaction_state, at most one per broker; controllers add missing ones when more brokers "
        "join, and need the same value.", 1, 32767)
    state_min_isr: int = setting("transaction.state.log.min.isr", "int", 2,
        "In-sync replicas that __transaction_state needs to accept a record; fewer where it has fewer replicas.", 1)
    state_segment_bytes: int = setting("transaction.state.log.segment.bytes", "int", 100 * MIB,
        "Segment size of __transaction_state.", 1024)
    # fmt: on


@dataclass(frozen=True, slots=True)
class VerificationSettings:
    """Settings of partition leaders that ask coordinators whether a batch belongs to a transaction, and of what the
    coordinators answer."""

    # fmt: off
    verification_enable: bool = setting("transaction.partition.verification.enable", "boolean", True,
        "Whether a leader asks the coordinator before a transaction begins in its partition. It always does for "
        "clients of the newer protocol, and in __consumer_offsets.", update=CLUSTER_WIDE)
    add_retry_ms: int = setting("add.partitions.to.txn.retry.backoff.ms", "int", 20,
        "The longest pause before a leader asks again while the producer's previous transaction is being completed; "
        "the first ones are shorter.", 1)
    add_retry_max_ms: int = setting("add.partitions.to.txn.retry.backoff.max.ms", "int", 100,
        "How long a broker waits in place of a client for the end of its previous transaction, before it answers "
        "CONCURRENT_TRANSACTIONS: a leader asks again, a coordinator holds the request.", 0)
    waiting_bytes_max: int = setting("tidelog.transaction.verification.bytes.max", "long", 64 * MIB,
        "Memory for batches that wait for coordinators' answers. More are refused with a retriable error. A tenant has "
        "at most as much as it leaves to others.", 1)
    waiting_max: int = setting("tidelog.transaction.verification.waiting.max", "int", 10_000,
        "Producers and partitions that wait for coordinators' answers at a time. A tenant has at most as many as it "
        "leaves to others.", 1, INT_MAX)
    # fmt: on
