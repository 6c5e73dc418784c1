"""From the results of a segment's pieces to what holds for the segment as a whole. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from spark_offload.verification.checks import Check, Findings
from spark_offload.verification.pieces import UNKNOWN, Piece, PieceResult

_POLYNOMIAL = 0x82F63B78  # CRC-32C, reflected


def check_segment(piece: Piece, results: Sequence[PieceResult], findings: Findings) -> bool:
    """`piece` is any of the segment's; `results` are of all its parts, in order. Whether all of it could be read."""
    segment, place = piece.segment, piece.place
    is_whole = all(result.is_whole for result in results)
    findings.checks(Check.OBJECT_UNREADABLE)
    seen = [result for result in results if result.next_offset != UNKNOWN]
    if is_whole:
        _checksum(piece, results, findings)
        _totals(piece, seen, findings)
    at = segment.base_offset
    for result in seen:
        if result.first_offset > at and not piece.gaps:
            findings.fail(Check.OFFSETS, place, f"offsets {at} to {result.first_offset - 1} are missing", offset=at)
        elif result.first_offset < at:
            findings.fail(Check.OFFSETS, place, f"offset {result.first_offset} comes again", offset=result.first_offset)
        at = result.next_offset
    if at < segment.end_offset and not piece.gaps:
        findings.fail(Check.OFFSETS, place, f"offsets {at} to {segment.end_offset - 1} are missing", offset=at)
    return is_whole


def _checksum(piece: Piece, results: Sequence[PieceResult], findings: Findings) -> None:
    findings.checks(Check.LOG_CHECKSUM)
    crc, end = 0, 0
    for result in results:
        if result.end > result.begin:
            crc = combined(crc, result.crc, result.end - result.begin)
            end = result.end
    segment = piece.segment
    reason = ""
    if end != segment.log_bytes:
        reason = f"batches end at byte {end}, the log at {segment.log_bytes}"
    elif crc != segment.log_crc32c:
        reason = f"the log has the CRC-32C {crc:08x}, not {segment.log_crc32c:08x}"
    if reason:
        findings.fail(Check.LOG_CHECKSUM, piece.place, reason)


def _totals(piece: Piece, seen: Sequence[PieceResult], findings: Findings) -> None:
    segment, place = piece.segment, piece.place
    records = sum(result.records for result in seen)
    if segment.records is not None and records != segment.records:
        findings.fail(Check.BATCH_COUNT, place, f"{records} records, and the manifest says {segment.records}")
    largest = max((result.max_timestamp for result in seen), default=-1)
    if largest < segment.max_timestamp:
        text = f"the greatest timestamp is {largest}, and the manifest says {segment.max_timestamp}"
        findings.fail(Check.TIMESTAMP, place, text)
    has_transactions = any(result.has_transactions for result in seen)
    if has_transactions and not segment.has_transactions:
        findings.fail(Check.BATCH_HEADER, place, "there are transactions, and the manifest says there are none")


def combined(first: int, second: int, size: int) -> int:
    """The CRC-32C of two runs of bytes, the second one `size` bytes long, from the CRC-32C of each.

    Appending a zero byte is linear in the CRC's bits; squaring that map again and again reaches any number of bytes.
    """
    if not size or not first:
        return first ^ second if size else first
    step = [_POLYNOMIAL, *(1 << bit for bit in range(31))]  # one zero bit
    for _ in range(3):
        step = [_applied(step, column) for column in step]
    while size:
        if size & 1:
            first = _applied(step, first)
        size >>= 1
        if size:
            step = [_applied(step, column) for column in step]
    return first ^ second


def _applied(columns: Sequence[int], bits: int) -> int:
    """The sum of the columns whose bit is set."""
    total, bit = 0, 0
    while bits:
        if bits & 1:
            total ^= columns[bit]
        bits >>= 1
        bit += 1
    return total
