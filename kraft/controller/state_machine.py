"""The replicated state: committed bytes in, image and metadata log out. Deterministic; no command raises an
exception."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import NamedTuple

import msgspec

from common.invariants import check
from common.pacing import Work, at_once
from kraft.batch_codec import decoding_batch
from kraft.batches import Batch, BatchKind
from kraft.image.delta import MetadataDelta, ReplayError
from kraft.image.difference import differing
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.image.snapshot import decoding, encoding
from kraft.metadata_log import MetadataLog
from kraft.records import LeaderChangeRecord


class Verdict(IntEnum):
    """The result of a committed batch."""

    APPLIED = 0
    FENCED = 1
    """Written by a controller of an earlier epoch."""
    CONFLICT = 2
    """Decided on another end of the log than the current one."""
    DUPLICATE = 3
    """A batch of this epoch that was already applied."""
    REJECTED = 4
    """Undecodable, contradicting the image, or of another metadata version."""


class Applied(NamedTuple):
    """The batch got the offsets from `base_offset` to before `end_offset`; none unless it was APPLIED."""

    verdict: Verdict
    base_offset: int
    end_offset: int


Subscriber = Callable[[MetadataDelta, MetadataImage], None]


class MetadataStateMachine:
    """The state that the quorum replicates. `image` is the committed state."""

    def __init__(self, log: MetadataLog) -> None:
        self.image: MetadataImage = EMPTY_IMAGE
        self.log = log
        self._subscribers: list[Subscriber] = []

    def subscribe(self, callback: Subscriber) -> None:
        """Call `callback(delta, image)` after each change, during `applying`: it must not raise, and only take
        notes."""
        self._subscribers.append(callback)

    def apply(self, index: int, data: bytes) -> Applied:
        """`applying` at once."""
        return at_once(self.applying(index, data))

    def applying(self, index: int, data: bytes | memoryview) -> Work[Applied]:
        """Check and apply a committed batch, the quorum's entry `index`. Others see it completely or not at all."""
        image = self.image
        batch = yield from decoding_batch(data)
        verdict = _judge(image, batch)
        if batch is None or verdict is not Verdict.APPLIED:
            return Applied(verdict, image.next_offset, image.next_offset)
        encoded: bytes | memoryview | None = data
        if batch.header.kind is BatchKind.LEADER_CHANGE:  # valid wherever the log ends
            header = msgspec.structs.replace(batch.header, base_offset=image.next_offset)
            batch, encoded = Batch(header, batch.records), None
        delta = MetadataDelta(image)
        try:
            yield from delta.replaying(batch)
        except ReplayError:
            return Applied(Verdict.REJECTED, image.next_offset, image.next_offset)
        following = yield from delta.imaging()
        check(self.image is image, "entries are applied one after another")
        self.image = following
        self.log.append(batch, encoded, index)
        for callback in self._subscribers:
            callback(delta, following)
        return Applied(Verdict.APPLIED, batch.header.base_offset, batch.end_offset)

    def snapshot(self) -> Work[bytes]:
        return encoding(self.image)

    def restoring(self, data: bytes) -> Work[Callable[[], None]]:
        """Raises DamagedSnapshot."""
        image = yield from decoding(data)
        delta = yield from differing(self.image, image)
        return partial(self._replace, delta)

    def _replace(self, delta: MetadataDelta) -> None:
        check(delta.base is self.image, "nothing is applied while a snapshot is decoded")
        self.image = delta.image()
        self.log.reset(self.image.next_offset, self.image.epoch)
        for callback in self._subscribers:
            callback(delta, self.image)


def _judge(image: MetadataImage, batch: Batch | None) -> Verdict:
    if batch is None:
        return Verdict.REJECTED
    header = batch.header
    if header.kind is BatchKind.LEADER_CHANGE:
        return _judge_leader_change(image, batch)
    if header.epoch != image.epoch or header.leader_id != image.leader_id:
        return Verdict.FENCED
    if header.sequence <= image.sequence:
        return Verdict.DUPLICATE
    if header.base_offset != image.next_offset:
        return Verdict.CONFLICT
    if header.metadata_version != image.metadata_version:
        return Verdict.REJECTED
    return Verdict.APPLIED


def _judge_leader_change(image: MetadataImage, batch: Batch) -> Verdict:
    """A later epoch, or the same controller again, which lost track of one of its batches."""
    header, record = batch.header, batch.records[0]
    if not isinstance(record, LeaderChangeRecord) or len(batch.records) != 1:
        return Verdict.REJECTED
    if (record.epoch, record.leader_id) != (header.epoch, header.leader_id):
        return Verdict.REJECTED
    again = header.epoch == image.epoch and header.leader_id == image.leader_id and header.sequence > image.sequence
    return Verdict.APPLIED if header.epoch > image.epoch or again else Verdict.FENCED
