"""All pieces of one partition, joined in the order of the log: segments, producers, transactions, epochs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_offload.verification.checks import Check, Findings
from spark_offload.verification.partition_checks import check_chain
from spark_offload.verification.pieces import Piece, PieceResult, Sections
from spark_offload.verification.producer_walk import ProducerWalk
from spark_offload.verification.report import PartitionReport
from spark_offload.verification.segment_checks import check_segment
from tiering.bucket.segment import PRODUCER_SNAPSHOT

SPANS_MAX = 1_000


@dataclass(slots=True)
class PartitionWalk:
    """`pieces` are any one of each segment, ascending; `results` all parts of each, by the segment's row."""

    pieces: Sequence[Piece]
    results: Mapping[int, Sequence[PieceResult]]
    expiration_ms: int

    def run(self, report: PartitionReport, findings: Findings) -> None:
        """Adds to both."""
        walk = ProducerWalk(self.expiration_ms, report.log_start)
        at = -1
        for piece in self.pieces:
            results = self.results[piece.row]
            for result in results:
                findings.take(result.findings)
                _add(report, result)
            is_whole = check_segment(piece, results, findings)
            if piece.segment.base_offset != at:
                walk.begin(piece.segment.base_offset)
            at = piece.segment.end_offset
            _check_producers(walk, piece, results, is_whole=is_whole, findings=findings)
        self._check_chains(findings)

    def _check_chains(self, findings: Findings) -> None:
        """Against the history that the newest readable segment carries."""
        for piece in reversed(self.pieces):
            sections = _sections(self.results[piece.row])
            if sections is not None and sections.epochs:
                for one in self.pieces:
                    if one.segment.end_offset <= piece.segment.end_offset:
                        check_chain(one.segment, sections.epochs, one.place, findings)
                return


def _add(report: PartitionReport, result: PieceResult) -> None:
    report.batches += result.batches
    report.records += result.records
    report.decoded += result.decoded
    report.seconds += result.seconds
    for start, end in result.spans:
        covered = report.covered
        if (covered and covered[-1][1] >= start) or len(covered) == SPANS_MAX:
            covered[-1] = (covered[-1][0], max(covered[-1][1], end))
        else:
            covered.append((start, end))


def _sections(results: Sequence[PieceResult]) -> Sections | None:
    return results[0].sections if results else None


def _check_producers(
    walk: ProducerWalk, piece: Piece, results: Sequence[PieceResult], *, is_whole: bool, findings: Findings
) -> None:
    segment, sections = piece.segment, _sections(results)
    producers = sections.producers if sections is not None else None
    is_sound = is_whole and not any(Check.BATCH_CRC in result.findings.failed for result in results)
    if is_sound:
        for result in results:
            walk.sequences(result.producers, piece.place, findings, is_sparse=piece.gaps)
        aborted = walk.aborted([result.producers for result in results])
        if sections is not None and sections.aborted is not None:
            walk.check_aborted(aborted, sections.aborted, piece.place, findings, is_sparse=piece.gaps)
        if producers is not None:
            walk.check_snapshot(producers, segment.changed_ms, piece.place, findings, is_sparse=piece.gaps)
    if not is_sound or piece.gaps or PRODUCER_SNAPSHOT not in segment.sections:
        walk.adopt(producers or (), segment.end_offset)
