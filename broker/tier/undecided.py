"""Transactions that are open below the tier's end although nothing will end them.

The tier holds only what is decided, but the marker of a transaction may lie behind the tier's end. A leader that has
lost what lies there no longer knows how the transaction ended. In a rebuilt or restored partition it is aborted;
elsewhere it is reported, because its coordinator may have committed it: `tidelog transactions doctor` names it.
"""

from __future__ import annotations

import logging

from broker.partitions.partition import Partition
from broker.partitions.transactional_appends import Marker
from broker.tier.led import LedPartition, NotNow
from broker.tier.services import TierServices

logger = logging.getLogger(__name__)

MARKERS_AT_ONCE = 50  # in one turn of the loop
NAMED_MAX = 100  # in one audit line


def check_producers_read(led: LedPartition, *, lost: bool) -> None:
    """Call it before the leader leads. Raises NotNow if `end_undecided` would go by the producers from before a
    truncation, which do not know what was open there."""
    record, barred = led.known.record, led.partition.log.barred
    if barred is not None and (lost or (record.adopted_end_offset and not record.adopting)):
        raise NotNow(barred)


async def end_undecided(led: LedPartition, services: TierServices, *, lost: bool) -> None:
    """Call it for a leader as soon as it leads, in the same turn of the loop as `check_producers_read`. `lost`: it has
    just begun at the tier's end, so it has lost what was behind.

    It may be repeated, by a later leader too: what is adopted from the bucket has a known end, and all that is open
    below that is aborted. Readers of committed records see none of it meanwhile. Raises ProtocolError if the log
    refuses a marker.
    """
    partition, record = led.partition, led.known.record
    adopted_end = 0 if record.adopting else record.adopted_end_offset
    _report("undecided_transactions_aborted", partition, 0, adopted_end, services)
    if lost:
        _report("undecided_transactions", partition, adopted_end, led.known.tier_end_offset, services)
    producers = partition.log.producers
    while some := producers.opened(0, adopted_end, MARKERS_AT_ONCE):
        for one in some:
            marker = Marker(
                one.producer_id, one.producer_epoch, False, max(one.coordinator_epoch, 0), new_protocol=False
            )
            partition.transactions.append_marker(marker, services.ports.clock.wall_ms(), acks=0)
        if len(some) == MARKERS_AT_ONCE:
            await services.pacer.rest("tier")


def _report(event: str, partition: Partition, low: int, high: int, services: TierServices) -> None:
    """Report transactions that are open and began in [low, high), if there are any."""
    producers = partition.log.producers
    count, opened = producers.count_opened(low, high), producers.opened(low, high, NAMED_MAX)
    if not opened:
        return
    named = [(one.producer_id, one.producer_epoch, one.transaction_start_offset) for one in opened]
    services.audit.note(event, topic=partition.topic, partition=partition.index, count=count, transactions=str(named))
    logger.warning(event.replace("_", " "), extra={"partition": repr(partition), "count": count, "transactions": named})
