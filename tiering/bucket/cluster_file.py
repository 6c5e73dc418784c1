"""`cluster.json`: the cluster that owns the bucket. Each rebuild from the bucket raises the incarnation by
compare-and-set; a cluster that sees a newer one than its own stops writing, because it has been replaced.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from common.ports import Clock
from object_store.errors import ObjectMissing, StoreUnavailable, StoreUnfit, VersionConflict
from object_store.probe import probe_conditions
from object_store.store import ObjectStore
from tiering.bucket.keys import TierRoot
from tiering.bucket.sealed import check_seal, sealed
from tiering.bucket.store_seen import FILE_NAME, StoreSeen

FORMAT = 1
CHECK_INTERVAL_S = 10.0
FIRST_INCARNATION = 1

_log = logging.getLogger(__name__)


class StaleCluster(Exception):
    """The bucket belongs to a newer incarnation of the cluster: write nothing more."""


class ClusterFile(msgspec.Struct, frozen=True, kw_only=True):
    """`changed_ms` is when this incarnation began (Unix milliseconds)."""

    format: int = FORMAT
    cluster_id: str
    incarnation: int
    created_ms: int
    changed_ms: int


_decoder = msgspec.json.Decoder(ClusterFile)


async def read_cluster_file(store: ObjectStore, root: TierRoot) -> tuple[ClusterFile, str] | None:
    """The file and its version for compare-and-set; None when it is missing. Raises StoreError, and ValueError for an
    unreadable one."""
    try:
        body, version = await store.get_with_version(root.cluster_file)
    except ObjectMissing:
        return None
    try:
        check_seal(body)
        file = _decoder.decode(body)
    except ValueError as error:
        raise ValueError(f"{root.cluster_file} in {store.name}: {error}") from error
    if file.format != FORMAT or file.cluster_id != root.cluster_id or file.incarnation < FIRST_INCARNATION:
        raise ValueError(f"{root.cluster_file} in {store.name} is of format {file.format}, cluster {file.cluster_id}")
    return file, version


async def set_incarnation(
    store: ObjectStore, root: TierRoot, expected: ClusterFile | None, version: str | None, incarnation: int, now_ms: int
) -> ClusterFile:
    """Replace the file that was read (None: it was missing). Raises VersionConflict, StoreError."""
    file = ClusterFile(
        cluster_id=root.cluster_id,
        incarnation=incarnation,
        created_ms=now_ms if expected is None else expected.created_ms,
        changed_ms=now_ms,
    )
    await store.replace(root.cluster_file, sealed(msgspec.json.format(msgspec.json.encode(file))), version)
    return file


async def begin_incarnation(
    store: ObjectStore, root: TierRoot, now_ms: int, seen: tuple[ClusterFile, str] | None = None
) -> ClusterFile:
    """For a rebuild: take the bucket over from the cluster that wrote it. With `seen`, only if the file is unchanged.
    Raises VersionConflict when another rebuild does the same, StoreError, ValueError."""
    found = seen or await read_cluster_file(store, root)
    if found is None:
        return await set_incarnation(store, root, None, None, FIRST_INCARNATION, now_ms)
    return await set_incarnation(store, root, found[0], found[1], found[0].incarnation + 1, now_ms)


class ClusterGuard:
    """Checks before each write of a manifest whether this cluster still owns the bucket.

    The cluster's own incarnation is in its metadata, so that a broker that joins the old cluster after a rebuild does
    not take it for the new one. The bucket is read at most once per `interval_s`.
    """

    def __init__(
        self,
        store: ObjectStore,
        root: TierRoot,
        own: Callable[[], int],
        clock: Clock,
        interval_s: float = CHECK_INTERVAL_S,
        seen: StoreSeen | None = None,
        begins: Callable[[], bool] = lambda: True,
        probe_name: Callable[[], str] | None = None,
    ) -> None:
        """`begins`: whether this node may create a missing `cluster.json`. `probe_name` returns a new name each time,
        for one trial write before any other."""
        self.incarnation = 0
        """0 until the first check."""
        self.stale: str | None = None
        """Why nothing may ever be written again, for status and log; None when writing is allowed."""
        self.missing: str | None = None
        """Why nothing may be written for now; None when writing is allowed."""
        self.missing_since_ms = 0
        self._store = store
        self._root = root
        self._own = own
        self._clock = clock
        self._interval_s = interval_s
        self._seen = seen
        self._begins = begins
        self._probe_name = probe_name
        self._unfit: StoreUnfit | None = None
        self._probed_s = float("-inf")
        self._checked_at = float("-inf")

    async def check(self) -> int:
        """This cluster's incarnation. Raises StaleCluster for good; StoreError and ValueError while the bucket's owner
        is not known."""
        if self.stale is None and self._clock.monotonic() - self._checked_at >= self._interval_s:
            began_at = self._clock.monotonic()
            await self._look()
            self._checked_at = began_at
        if self.stale is not None:
            raise StaleCluster(self.stale)
        return self.incarnation

    def saw(self, incarnation: int) -> None:
        """Note the incarnation in an object. Raises StaleCluster when it is newer than this cluster's."""
        if self.incarnation and incarnation > self.incarnation:
            self._become_stale(incarnation)
            raise StaleCluster(self.stale or "")

    async def _look(self) -> None:
        found = await read_cluster_file(self._store, self._root)
        in_bucket = FIRST_INCARNATION if found is None else found[0].incarnation
        if not self.incarnation:
            self.incarnation = self._own()
        if in_bucket > self.incarnation:
            self._become_stale(in_bucket)
            return
        file, version = found if found is not None else (None, None)
        await self._check_seen(file)
        await self._check_fit()
        self.missing = None
        if file is None or in_bucket < self.incarnation:  # a new bucket, or an older copy of it
            now_ms = self._clock.wall_ms()
            try:
                file = await set_incarnation(self._store, self._root, file, version, self.incarnation, now_ms)
            except VersionConflict:  # another broker was faster, or a rebuild: look again next time
                self._checked_at = float("-inf")
                return
        if self._seen is not None:
            await self._seen.note(file.created_ms)

    async def _check_seen(self, file: ClusterFile | None) -> None:
        """Raises StoreUnavailable when this is another store than before, or this node may not begin in it yet."""
        if self._seen is None:
            return
        noted = await self._seen.noted()
        if noted is not None and (file is None or file.created_ms != noted):
            reason = _not_the_one_there_was(self._root.cluster_id, is_empty=file is None)
            self._refuse("the object store is not the one there was", reason)
            raise StoreUnavailable(self._store.name, "get", self._root.cluster_file, reason)
        if file is None and noted is None and not self._begins():
            reason = "no broker has begun in it yet"
            raise StoreUnavailable(self._store.name, "get", self._root.cluster_file, reason)

    async def _check_fit(self) -> None:
        """Try the store's conditional writes, once. Raises StoreUnfit, and other errors of the trial write."""
        if self._probe_name is None:
            return
        now_s = self._clock.monotonic()
        if self._unfit is None or now_s - self._probed_s >= self._interval_s:
            self._probed_s, self._unfit = now_s, None
            try:
                await probe_conditions(self._store, self._root.probe_key(self._probe_name()))
            except StoreUnfit as error:
                self._unfit = error
        if self._unfit is not None:
            self._refuse("the object store is unfit for a tier", f"{self._unfit.reason}; nothing is written to it")
            raise StoreUnfit(self._unfit.store, self._unfit.operation, "", self._unfit.reason)
        self._probe_name = None

    def _refuse(self, event: str, reason: str) -> None:
        if self.missing == reason:
            return
        if self.missing is None:
            self.missing_since_ms = self._clock.wall_ms()
        self.missing = reason
        _log.error(event, extra={"reason": reason})

    def _become_stale(self, newer: int) -> None:
        self.stale = (
            f"{self._store.name} belongs to incarnation {newer} of cluster {self._root.cluster_id}, which was rebuilt "
            f"from it; this is incarnation {self.incarnation}, and it writes nothing more there"
        )
        _log.error("the object store is another cluster's", extra={"reason": self.stale})


def _not_the_one_there_was(cluster_id: str, *, is_empty: bool) -> str:
    there = "nothing of the cluster is there" if is_empty else "another cluster began there"
    return (
        f"this is not the store that this node has worked with, {there}: is the volume mounted, and tidelog.tier.uri "
        f"right? So that nothing gets to the wrong place, nothing is copied; to go on in it all the same, remove "
        f"{FILE_NAME} from the log.dirs of each node of cluster {cluster_id}, and restart them"
    )
