"""`verified.json`: the outcomes of the last verifications of the tier. Jobs write it, brokers show it.

A later outcome replaces an earlier one if it looked at as much; otherwise both stay, so that a quick look does not hide
what a deep one found. The file is bounded: outcomes with damage stay longest, then the newest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from object_store.errors import ObjectMissing, StoreUnavailable, VersionConflict
from object_store.store import ObjectStore
from tiering.bucket.keys import TierRoot
from tiering.bucket.sealed import check_seal, sealed

FORMAT = 1
RUNS_MAX = 16
TOPICS_MAX = 250
NAMES_MAX = 20
TEXT_MAX = 255
FILE_BYTES_MAX = 1 << 20
ATTEMPTS = 5


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a verification saw. `partitions`: those that were chosen, as the option was written; empty: all.

    `deep`: every record was decoded. `compared` are the things beside the tier that it was compared with: `ledger`,
    `keys`, `brokers`. `bytes` are those of the log. `problems` are damage, `notices` are not. Times are Unix
    milliseconds.
    """

    began_ms: int
    ended_ms: int
    deep: bool = False
    compared: tuple[str, ...] = ()
    partitions: str = ""
    segments: int = 0
    records: int = 0
    bytes: int = 0
    problems: int = 0
    notices: int = 0

    def looks_as_close(self, other: Outcome) -> bool:
        """Whether nothing that `other` found can have escaped it. What was well needs no second ledger."""
        if not self.deep and other.deep:
            return False
        return not other.problems or set(other.compared) <= set(self.compared)


class TopicOutcome(Outcome, frozen=True, kw_only=True):
    """The part of a run that concerns one topic; `topic_id` is 32 hexadecimal digits."""

    topic: str
    topic_id: str

    def covers(self, other: TopicOutcome) -> bool:
        return self.looks_as_close(other) and self.partitions in ("", other.partitions)


class Run(Outcome, frozen=True, kw_only=True):
    """A whole verification and what was chosen for it; empty fields choose everything. Of `topics`, of which there are
    `topic_count`, it has the first names. `version` is the one of the program."""

    topics: tuple[str, ...] = ()
    topic_count: int = 0
    topic_id: str = ""
    tenant: str = ""
    version: str = ""

    @property
    def is_whole(self) -> bool:
        return not (self.topic_count or self.topic_id or self.tenant or self.partitions)

    @property
    def scope(self) -> str:
        """What it covered, for people."""
        if self.is_whole:
            return "everything"
        more = self.topic_count - len(self.topics)
        names = ", ".join(self.topics) + (f" and {more} more" if more > 0 else "")
        parts = [f"topic {names}" if self.topic_count == 1 else f"topics {names}"] if self.topic_count else []
        parts += [f"topic id {self.topic_id}"] if self.topic_id else []
        parts += [f"tenant {self.tenant}"] if self.tenant else []
        parts += [f"partitions {self.partitions}"] if self.partitions else []
        return ", ".join(parts)

    def covers(self, other: Run) -> bool:
        return self.looks_as_close(other) and (self.is_whole or self.scope == other.scope)


class Verifications(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file, newest first."""

    format: int = FORMAT
    cluster_id: str
    runs: tuple[Run, ...] = ()
    topics: tuple[TopicOutcome, ...] = ()

    @property
    def last(self) -> Run | None:
        return self.runs[0] if self.runs else None

    def joined(self, run: Run, topics: Iterable[TopicOutcome]) -> Verifications:
        """With one more run and what it saw of topics."""
        runs = _runs([_bounded(run), *self.runs])
        by_topic: dict[str, list[TopicOutcome]] = {}
        for one in [*topics, *self.topics]:
            by_topic.setdefault(one.topic_id, []).append(replace(one, partitions=one.partitions[:TEXT_MAX]))
        kept = [one for same in by_topic.values() for one in _topic(same, runs)]
        kept.sort(key=lambda one: (not one.problems, -one.ended_ms, -one.bytes, one.topic))
        shown = sorted(kept[:TOPICS_MAX], key=lambda one: (-one.ended_ms, one.topic))
        return Verifications(cluster_id=self.cluster_id, runs=runs, topics=tuple(shown))


def _runs(runs: Sequence[Run]) -> tuple[Run, ...]:
    kept: list[Run] = []
    for one in sorted(runs, key=lambda one: one.ended_ms, reverse=True):
        if not any(newer.covers(one) for newer in kept):
            kept.append(one)
    last, earlier = kept[:1], sorted(kept[1:], key=lambda one: (not one.is_whole, not one.problems))
    return tuple(last + sorted(earlier[: RUNS_MAX - 1], key=lambda one: -one.ended_ms))


def _topic(outcomes: Sequence[TopicOutcome], runs: Sequence[Run]) -> list[TopicOutcome]:
    """Outcomes of one topic that no later one replaces, nor a later run over everything, which has seen it too."""
    kept: list[TopicOutcome] = []
    for one in sorted(outcomes, key=lambda one: one.ended_ms, reverse=True):
        is_seen = any(run.is_whole and run.ended_ms > one.ended_ms and run.looks_as_close(one) for run in runs)
        if not is_seen and not any(newer.covers(one) for newer in kept):
            kept.append(one)
    return kept


def _bounded(run: Run) -> Run:
    return replace(
        run,
        partitions=run.partitions[:TEXT_MAX],
        topics=tuple(name[:TEXT_MAX] for name in run.topics[:NAMES_MAX]),
        tenant=run.tenant[:TEXT_MAX],
        version=run.version[:TEXT_MAX],
    )


def encode_verifications(found: Verifications) -> bytes:
    return sealed(msgspec.json.encode(found))


_decoder = msgspec.json.Decoder(Verifications)


def decode_verifications(body: bytes) -> Verifications:
    """Raises ValueError."""
    check_seal(body)
    found = _decoder.decode(body)
    if found.format != FORMAT:
        raise ValueError(f"its format is {found.format}, and this version knows {FORMAT}")
    return found


async def read_verifications(store: ObjectStore, root: TierRoot) -> Verifications | None:
    """None when there was none yet. Raises StoreError, and ValueError for a file that is none."""
    try:
        if (await store.head(root.verified_file)).size > FILE_BYTES_MAX:
            raise ValueError(f"{root.verified_file} is larger than {FILE_BYTES_MAX} bytes")
        return decode_verifications(await store.get(root.verified_file))
    except ObjectMissing:
        return None


async def keep_verification(store: ObjectStore, root: TierRoot, run: Run, topics: Sequence[TopicOutcome]) -> None:
    """Add a run to the file, by compare-and-set. A damaged file is replaced: later runs find again what it had. Raises
    StoreError, and ValueError for a file of a later format."""
    for _ in range(ATTEMPTS):
        known, version = Verifications(cluster_id=root.cluster_id), None
        try:
            body, version = await store.get_with_version(root.verified_file)
            known = _known(body, known)
        except ObjectMissing:
            pass
        try:
            await store.replace(root.verified_file, encode_verifications(known.joined(run, topics)), version)
            return
        except VersionConflict:
            continue
    raise StoreUnavailable(store.name, "replace", root.verified_file, f"others changed it {ATTEMPTS} times meanwhile")


class _Format(msgspec.Struct):
    format: int


def _known(body: bytes, otherwise: Verifications) -> Verifications:
    """Raises ValueError for a later format."""
    try:
        check_seal(body)
        number = msgspec.json.decode(body, type=_Format).format
    except ValueError:
        return otherwise
    if number > FORMAT:
        raise ValueError(f"a later version wrote it, in format {number}")
    try:
        return decode_verifications(body)
    except ValueError:
        return otherwise
