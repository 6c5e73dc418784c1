"""The active controller's audit feed: its metadata log, from the end of the last export on.

Every controller keeps its image from time to time, so that a new active controller knows the state before the first
change that it exports.
"""

from __future__ import annotations

import asyncio
from collections import deque

from kraft.audit.metadata_audit import MetadataAudit
from kraft.controller.state_machine import MetadataStateMachine
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.metadata_log import unframe_batches
from records.audit_event import AuditEvent, AuditSource
from tiering.exports.audit_export import AuditPiece

PIECE_BYTES = 1 << 20
IMAGES_KEPT = 4


class MetadataFeed:
    """An `AuditFeed`. Call `note` once per interval on every controller; `take` on the active one."""

    def __init__(self, machine: MetadataStateMachine) -> None:
        self.source = AuditSource.METADATA
        self.scope = 0
        self._machine = machine
        self._images: deque[MetadataImage] = deque([EMPTY_IMAGE], maxlen=IMAGES_KEPT)
        self._audit: MetadataAudit | None = None

    @property
    def term(self) -> int:
        return self._machine.image.epoch

    @property
    def begin(self) -> int:
        """The quorum never reverts a commit."""
        return self._machine.image.next_offset

    def note(self) -> None:
        """Images share unchanged parts, so keeping a few costs little."""
        if self._images[-1] is not self._machine.image:
            self._images.append(self._machine.image)

    async def take(self, position: int) -> AuditPiece | None:
        log = self._machine.log
        position = max(position, log.start_offset)
        if position >= log.end_offset:
            return None
        audit = self._audit
        if audit is None or audit.next_offset != position:
            audit = self._audit = MetadataAudit(position, await self._image_at(position))
        image, frames = self._machine.image, log.read(position, PIECE_BYTES)
        if not frames:
            return None
        events = await asyncio.to_thread(_events, audit, frames)
        if audit.next_offset == image.next_offset:  # the image includes the remembered changes
            self._audit = MetadataAudit(image.next_offset, image)
        return AuditPiece(position, audit.next_offset, events)

    async def _image_at(self, position: int) -> MetadataImage | None:
        """Replayed from the newest earlier image, if the log still has everything after it."""
        log = self._machine.log
        known = [image for image in self._images if image.next_offset <= position]
        image = known[-1] if known else None
        while image is not None and image.next_offset < position:
            frames = log.read(image.next_offset, PIECE_BYTES)
            image = await asyncio.to_thread(_replayed, image, frames, position) if frames else None
        return image


def _events(audit: MetadataAudit, frames: bytes) -> list[AuditEvent]:
    """Runs in a thread."""
    found: list[AuditEvent] = []
    for framed in unframe_batches(memoryview(frames)):
        found += audit.events(framed.batch)
    return found


def _replayed(image: MetadataImage, frames: bytes, position: int) -> MetadataImage | None:
    """Runs in a thread; None if `position` is within a batch."""
    delta = MetadataDelta(image)
    for framed in unframe_batches(memoryview(frames)):
        if framed.batch.end_offset > position:
            break
        delta.replay_batch(framed.batch)
    after = delta.image()
    return after if after.next_offset > image.next_offset else None
