"""The conditions for replacing segments by others: same offsets, same history, no loss for readers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tiering.bucket.segment import TAKEN_OVER, SegmentState, TieredSegment, complaint


def merged_epochs(segments: Sequence[TieredSegment]) -> list[tuple[int, int]]:
    """The merged leader epochs of consecutive segments. Their replacement has to have all of them, even without records
    of an epoch, because `lineage` rejects a chain with a gap."""
    chain: list[tuple[int, int]] = []
    for segment in segments:
        for epoch, start in segment.epochs:
            if not chain or epoch > chain[-1][0]:
                chain.append((epoch, start))
    return chain


def swap_complaint(inputs: Sequence[TieredSegment], outputs: Sequence[TieredSegment]) -> str | None:
    """Why `outputs` cannot replace `inputs`; None if they can.

    Both ascend without a hole over the same offsets. Each output ends where an input ends. It has that input's producer
    snapshot and leader epochs, the epochs of all inputs that it covers, and no later timestamp than they have.
    """
    if not inputs or not outputs:
        return "a swap has inputs and outputs"
    for what, segments in (("inputs", inputs), ("outputs", outputs)):
        for before, after in pairwise(segments):
            if after.base_offset != before.end_offset:
                return f"{what} do not touch: [{after.base_offset}, …) comes behind offset {before.end_offset}"
    spans = [(some[0].base_offset, some[-1].end_offset) for some in (inputs, outputs)]
    if spans[0] != spans[1]:
        return f"inputs cover {list(spans[0])}, outputs {list(spans[1])}"
    known = {segment.uuid for segment in inputs}
    at = 0
    for output in outputs:
        problem = complaint(output)
        if problem is None and (output.state is not SegmentState.COPY_FINISHED or not output.rewritten):
            problem = "not finished, or not marked as rewritten"
        if problem is None and output.uuid in known:
            problem = "its uuid is taken"
        known.add(output.uuid)
        covered = []
        while at < len(inputs) and inputs[at].end_offset <= output.end_offset:
            covered.append(inputs[at])
            at += 1
        if problem is None:
            problem = _replaces(covered, output)
        if problem is not None:
            return f"output [{output.base_offset}, {output.end_offset}) {output.uuid}: {problem}"
    return None


def _replaces(covered: Sequence[TieredSegment], output: TieredSegment) -> str | None:
    if not covered or covered[-1].end_offset != output.end_offset:
        return "no input ends there"
    epochs = merged_epochs(covered)
    if list(map(tuple, output.epochs)) != epochs:
        return f"leader epochs {output.epochs}, those of its inputs {epochs}"
    if output.max_timestamp > max(segment.max_timestamp for segment in covered):
        return f"its greatest timestamp {output.max_timestamp} is in no input"
    for name in TAKEN_OVER:
        mine, theirs = output.sections.get(name), covered[-1].sections.get(name)
        if (mine is None) != (theirs is None) or (
            mine is not None and theirs is not None and (mine.length, mine.crc32c) != (theirs.length, theirs.crc32c)
        ):
            return f"its section {name} is not that of the input with the same end"
    return None
