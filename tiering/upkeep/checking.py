"""Compares manifest, `__tier_state` and objects of a partition by names and sizes, without reading records. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from tiering.bucket.segment import SegmentId, SegmentState, TieredSegment
from tiering.manifests.manifest import Manifest
from tiering.shard.lineage import follows


class State(NamedTuple):
    """A partition's content of `__tier_state`: all segments, in any state, at one offset."""

    known: bool
    log_start_offset: int
    tier_end_offset: int
    dropped_ms: int
    state_offset: int
    segments: Sequence[TieredSegment]


class Disagreement(NamedTuple):
    """`what` disagrees: "manifest", "state" or "objects". `is_harmless`: it is expected and resolves itself.
    `is_behind`: the next manifest will resolve it."""

    what: str
    text: str
    is_harmless: bool = False
    is_behind: bool = False


def compare(state: State, manifest: Manifest | None, objects: Mapping[SegmentId, int]) -> list[Disagreement]:
    """All disagreements. `objects`: the sizes of the existing segment objects."""
    found: list[Disagreement] = []
    if manifest is not None:
        found += check_objects(manifest, objects)
        found += _lineage(manifest)
    if not state.known:
        if manifest is not None:
            found.append(Disagreement("state", "__tier_state knows nothing of it, and there is a manifest"))
    elif manifest is None:
        if any(segment.state is SegmentState.COPY_FINISHED for segment in state.segments):
            text = "there is none, and __tier_state has finished segments"
            found.append(Disagreement("manifest", text, is_behind=True))
    else:
        found += _manifest(state, manifest)
    if state.known:
        found += _left_over(state, manifest, objects)
    return found


def check_objects(manifest: Manifest, objects: Mapping[SegmentId, int]) -> list[Disagreement]:
    """Objects that `manifest` names and that are missing or have another size. `objects` as above."""
    return [Disagreement("objects", text) for _, text in lost_objects(manifest, objects)]


def lost_objects(manifest: Manifest, objects: Mapping[SegmentId, int]) -> list[tuple[TieredSegment, str]]:
    """As above: each segment, and the problem with its object."""
    found = []
    for segment in manifest.segments:
        size = objects.get(segment.id)
        if size is None:
            found.append((segment, f"the object of {_name(segment)} is missing"))
        elif size != segment.object_bytes:
            found.append((segment, f"the object of {_name(segment)} has {size} bytes, not {segment.object_bytes}"))
    return found


def _lineage(manifest: Manifest) -> list[Disagreement]:
    return [
        Disagreement("manifest", f"leader epochs of {_name(after)} cannot follow those of the segment before")
        for before, after in pairwise(manifest.segments)
        if not follows(after.epochs, before.epochs, before.end_offset)
    ]


def behind(state: State, manifest: Manifest) -> str | None:
    """How `manifest` lags behind the finished segments of `__tier_state`; None if it does not."""
    shown = manifest.head.tier_state_offset
    if not state.known or shown >= state.state_offset:
        return None
    text = f"its manifest shows __tier_state up to offset {shown}, which stands at {state.state_offset}"
    if state.tier_end_offset > manifest.head.end_offset:
        text += f", and lacks the offsets {manifest.head.end_offset} to {state.tier_end_offset - 1}"
    return text


def _manifest(state: State, manifest: Manifest) -> list[Disagreement]:
    head = manifest.head
    if late := behind(state, manifest):
        return [Disagreement("manifest", late, is_behind=True)]
    if head.tier_state_offset > state.state_offset:
        text = f"the manifest shows offset {head.tier_state_offset}, and the state ends at {state.state_offset}"
        return [Disagreement("state", text)]
    found = []
    for name, shown, kept in (
        ("log start", head.log_start_offset, state.log_start_offset),
        ("tier end", head.end_offset, state.tier_end_offset),
        ("time of deletion", head.dropped_ms, state.dropped_ms),
    ):
        if shown != kept:
            found.append(Disagreement("manifest", f"its {name} is {shown}, that of __tier_state {kept}"))
    finished = {
        segment.id: segment
        for segment in state.segments
        if segment.state is SegmentState.COPY_FINISHED and segment.end_offset > state.log_start_offset
    }
    named = {segment.id: segment for segment in manifest.segments}
    if named or not head.dropped_ms:
        found += [
            Disagreement("manifest", f"it does not name {_name(segment)}")
            for identity, segment in finished.items()
            if identity not in named
        ]
    for identity, segment in named.items():
        if identity not in finished:
            found.append(Disagreement("state", f"__tier_state does not have {_name(segment)}"))
        elif segment != finished[identity]:
            found.append(Disagreement("manifest", f"it says other things of {_name(segment)} than __tier_state"))
    return found


def _left_over(state: State, manifest: Manifest | None, objects: Mapping[SegmentId, int]) -> list[Disagreement]:
    named = {segment.id for segment in state.segments}
    if manifest is not None:
        named.update(segment.id for segment in manifest.segments)
    return [
        Disagreement("objects", f"{one.base_offset}-{one.uuid} is unreferenced; the sweeper deletes it", True)
        for one in sorted(objects)
        if one not in named
    ]


def _name(segment: TieredSegment) -> str:
    return f"segment [{segment.base_offset}, {segment.end_offset}) {segment.uuid}"
