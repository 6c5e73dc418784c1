"""Objects as files below one directory: the blocking calls, for threads.

An object is written under a random name in `.unfinished`, made durable, and only then linked or renamed to its key, so
half of it is never visible. `link` rejects an existing name, which makes a create-only put atomic. Compare-and-set
holds an advisory lock of the root from the comparison to the rename. It excludes replaces by any process, but neither
a put nor a delete of the same key.

The version of an object is (inode, time of its last write in nanoseconds, size). A file system's clock has a resolution
of milliseconds, so the digits below one millisecond are random.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence

from common.disk_errors import NO_ROOM
from common.machine_disk import MachineFile
from object_store.errors import (
    InvalidKey,
    NoStore,
    ObjectExists,
    ObjectMissing,
    ObjectTruncated,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
    VersionConflict,
)
from object_store.file_copying import CopyCancelled, SourceEnded, SystemCalls, append_bytes, append_range
from object_store.store import RESERVED_NAME, Body, FileRange, ObjectInfo, body_parts

LEFTOVER_AGE_MS = 3_600_000
PUBLISH_ATTEMPTS = 10  # another process may remove an empty directory before it is used
DURABLE_DIRECTORIES_MAX = 10_000
WRITES = {"put", "replace"}
LOCK_NAME = "lock"
LOCK_POLL_S = 0.01
READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
LOAD_STEP_BYTES = 128 << 10
FULL = {*NO_ROOM, errno.EFBIG}
DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
GiveName = Callable[[str, str], None]  # from the finished file to the object


class Cancellation:
    """The event loop sets `asked`, which the thread reads; the thread counts `steps`, which show its progress."""

    __slots__ = ("asked", "steps")

    def __init__(self) -> None:
        self.asked = False
        self.steps = 0

    def is_asked(self) -> bool:
        """Called between two steps of the work."""
        self.steps += 1
        return self.asked


class DirectoryFiles:
    """Raises StoreErrors. `root` is absolute, without a slash at its end; `name` is the store's name in messages."""

    def __init__(self, root: str, name: str, lock_timeout_s: float, calls: SystemCalls) -> None:
        self.root = root
        self.name = name
        self._prefix = root + "/"
        self._unfinished = self._prefix + RESERVED_NAME
        self._lock_timeout_s = lock_timeout_s
        self._calls = calls
        self._durable: dict[str, None] = {}  # directories whose entries in their parents are durable
        self._marked = False

    def prepare(self, create: bool) -> None:
        """Make the root when `create`, and sweep an earlier process's leftovers. Raises StoreDenied without a root.

        Without `create` the first put makes the mark (`.unfinished`), which distinguishes the root from an empty mount
        point.
        """
        with self._errors("open", ""):
            if create:
                os.makedirs(self.root, exist_ok=True)
            elif not os.path.isdir(self.root):
                raise NoStore(self.name, "open", "", "there is no such directory")
            if not create and not os.path.isdir(self._unfinished):
                return
            try:
                self._mark()
            except OSError as error:
                if error.errno not in DENIED:
                    raise
                return  # read-only; a put will raise
        with contextlib.suppress(StoreError):
            self.sweep(time.time_ns() // 1_000_000 - LEFTOVER_AGE_MS, Cancellation())

    def _mark(self) -> None:
        os.makedirs(self._unfinished, exist_ok=True)
        self._marked = True

    def put(self, key: str, body: Body, create_only: bool, cancelled: Cancellation) -> ObjectInfo:
        with self._errors("put", key), self._unfinished_file(body, cancelled, "put", key) as (path, status):
            if create_only:
                self._publish(path, key, "put", self._calls.link)
            else:
                self._publish(path, key, "put", self._calls.rename)
            return _info(key, status)

    def replace(self, key: str, body: bytes, expected: str | None, cancelled: Cancellation) -> ObjectInfo:
        with (
            self._errors("replace", key),
            self._unfinished_file(body, cancelled, "replace", key) as (path, status),
            self._replace_lock(key),
        ):
            try:
                current: str | None = _info(key, self._object_status(key)).version
            except (FileNotFoundError, NotADirectoryError):
                current = None
            if current != expected:
                raise VersionConflict(self.name, "replace", key, "the object has another version")
            self._publish(path, key, "replace", self._calls.link if expected is None else self._calls.rename)
            return _info(key, status)

    def get(self, key: str, start: int, length: int | None) -> tuple[bytes, ObjectInfo]:
        with self._errors("get", key):
            fd = os.open(self._prefix + key, READ_FLAGS)
            try:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    raise ObjectMissing(self.name, "get", key, "there is no such object")
                end = start + length if length is not None else max(start, status.st_size)
                if end > status.st_size:
                    raise ObjectTruncated(self.name, "get", key, f"it ends at {status.st_size}, not {end}")
                return self._read(fd, key, start, end), _info(key, status)
            finally:
                os.close(fd)

    def lend(self, key: str, own_directory: str, start: int, length: int) -> MachineFile | None:
        with self._errors("lend", key):
            fd = os.open(self._prefix + key, READ_FLAGS)
            try:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    raise ObjectMissing(self.name, "lend", key, "there is no such object")
                near = status.st_dev == os.stat(own_directory).st_dev
                if near:
                    self._load(fd, start, min(start + length, status.st_size))
            except BaseException:
                os.close(fd)
                raise
            if near:
                return MachineFile(fd)
            os.close(fd)
            return None

    def head(self, key: str) -> ObjectInfo:
        with self._errors("head", key):
            return _info(key, self._object_status(key))

    def delete(self, keys: Sequence[str], progress: Cancellation) -> None:
        touched: dict[str, None] = {}
        for key in keys:
            with self._errors("delete", key):
                try:
                    os.unlink(self._prefix + key)
                except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                    self._still_there("delete", key)
                else:
                    touched[os.path.dirname(self._prefix + key)] = None
            progress.steps += 1
        for directory in touched:
            with self._errors("delete", directory.removeprefix(self._prefix)):
                self._settle_after_delete(directory)
            progress.steps += 1

    def copy(self, source: str, target: str, cancelled: Cancellation) -> ObjectInfo:
        with self._errors("copy", source):
            file = MachineFile(os.open(self._prefix + source, READ_FLAGS))
            try:
                status = os.fstat(file.fd)
                if not stat.S_ISREG(status.st_mode):
                    raise ObjectMissing(self.name, "copy", source, "there is no such object")
                # Not a link: sweeps go by age, and the copy needs its own.
                return self.put(target, [FileRange(file, 0, status.st_size)], False, cancelled)
            finally:
                file.close()

    def sweep(self, before_ms: int, progress: Cancellation) -> int:
        """Remove unfinished files last written before `before_ms`; returns how many."""
        removed = 0
        if not self._marked:
            return removed
        with self._errors("sweep", RESERVED_NAME):
            for name in sorted(os.listdir(self._unfinished)):
                path = f"{self._unfinished}/{name}"
                with contextlib.suppress(FileNotFoundError):
                    if name != LOCK_NAME and os.stat(path).st_mtime_ns < before_ms * 1_000_000:
                        os.unlink(path)
                        removed += 1
                progress.steps += 1
        return removed

    def list_names(self, prefix: str) -> list[str]:
        with self._errors("list", prefix):
            return [
                name for name in self._entries(prefix) if not name.endswith("/") or self._has_objects(prefix + name)
            ]

    def walk(self, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        """Objects ascending by key. Holds the names of one directory per level."""
        stack = [iter(self._candidates(prefix[: prefix.rfind("/") + 1], prefix, start_after))]
        while stack:
            key = next(stack[-1], None)
            if key is None:
                stack.pop()
            elif key.endswith("/"):
                stack.append(iter(self._candidates(key, prefix, start_after)))
            else:
                try:
                    info = self.head(key)
                except ObjectMissing:  # deleted meanwhile
                    continue
                yield info

    # -- writing

    @contextlib.contextmanager
    def _unfinished_file(
        self, body: Body, cancelled: Cancellation, operation: str, key: str
    ) -> Iterator[tuple[str, os.stat_result]]:
        """A durable file with the bytes of `body` and the write time of its version, removed at the end."""
        if not self._marked:
            try:
                self._mark()
            except OSError as error:
                if error.errno not in DENIED:
                    raise
                raise StoreDenied(self.name, operation, key, "nothing can be written into the directory") from None
        path = f"{self._unfinished}/{os.urandom(16).hex()}"
        fd = os.open(path, WRITE_FLAGS, 0o644)
        try:
            try:
                for part in body_parts(body):
                    if isinstance(part, FileRange):
                        append_range(self._calls, fd, part, cancelled.is_asked)
                    else:
                        append_bytes(fd, part)
                        cancelled.steps += 1
                now = time.time_ns()
                stamp = now - now % 1_000_000 + int.from_bytes(os.urandom(4), "big") % 1_000_000
                os.utime(fd, ns=(stamp, stamp))
                self._calls.fsync(fd)
                if cancelled.is_asked():  # the caller gave up, perhaps long ago, and expects no object
                    raise CopyCancelled
                status = os.fstat(fd)
            finally:
                os.close(fd)
            yield path, status
        except SourceEnded as ended:
            raise StoreError(self.name, operation, key, str(ended)) from None
        except CopyCancelled:
            raise StoreError(self.name, operation, key, "it was cancelled") from None
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def _publish(self, path: str, key: str, operation: str, give_name: GiveName) -> None:
        """Make the finished file at `path` the object `key`, durably."""
        target = self._prefix + key
        directory = os.path.dirname(target)
        for attempt in range(PUBLISH_ATTEMPTS):
            self._make_durable(directory, operation, key)
            try:
                give_name(path, target)
                break
            except FileNotFoundError:
                self._durable.pop(directory, None)
                if attempt == PUBLISH_ATTEMPTS - 1 or not os.path.exists(path):
                    raise StoreUnavailable(self.name, operation, key, "its directory went away") from None
            except IsADirectoryError:
                self._clear_directory(target, operation, key)
            except FileExistsError:
                if not os.path.isdir(target):
                    error = ObjectExists if operation == "put" else VersionConflict
                    raise error(self.name, operation, key, "the object exists") from None
                self._clear_directory(target, operation, key)
        with contextlib.suppress(FileNotFoundError):  # another process deleted it already
            self._sync_directory(directory)

    def _clear_directory(self, path: str, operation: str, key: str) -> None:
        """Remove an empty directory that a crash left. Raises InvalidKey for one with objects."""
        try:
            os.rmdir(path)
        except FileNotFoundError:
            pass
        except OSError:
            raise InvalidKey(self.name, operation, key, "there are objects below it") from None

    def _make_durable(self, directory: str, operation: str, key: str) -> None:
        """Make `directory` and those above it, except the root, which may be unmounted."""
        if directory == self.root or directory in self._durable:
            return
        parent = os.path.dirname(directory)
        self._make_durable(parent, operation, key)
        try:
            os.mkdir(directory)
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):  # removed again
                if not stat.S_ISDIR(os.stat(directory).st_mode):
                    raise InvalidKey(self.name, operation, key, "a name before a slash is an object") from None
        except FileNotFoundError:
            self._durable.pop(parent, None)
            return  # removed again; `_publish` will fail and retry
        try:
            self._sync_directory(parent)
        except FileNotFoundError:
            return
        while len(self._durable) >= DURABLE_DIRECTORIES_MAX:
            with contextlib.suppress(KeyError, StopIteration, RuntimeError):  # other threads change it too
                del self._durable[next(iter(self._durable))]
        self._durable[directory] = None

    def _settle_after_delete(self, directory: str) -> None:
        """Make the deletion durable and remove directories that became empty."""
        while True:
            with contextlib.suppress(FileNotFoundError):
                self._sync_directory(directory)
            if directory == self.root:
                return
            try:
                self._durable.pop(directory, None)
                os.rmdir(directory)
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY}:
                    return
                raise
            directory = os.path.dirname(directory)

    def _sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._calls.fsync(fd)
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _replace_lock(self, key: str) -> Iterator[None]:
        fd = os.open(f"{self._unfinished}/{LOCK_NAME}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            deadline = time.monotonic() + self._lock_timeout_s
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise StoreUnavailable(self.name, "replace", key, "another process holds the lock") from None
                    time.sleep(LOCK_POLL_S)
            yield
        finally:
            os.close(fd)

    # -- reading

    def _read(self, fd: int, key: str, start: int, end: int) -> bytes:
        data = os.pread(fd, end - start, start) if end > start else b""
        if len(data) == end - start:
            return data
        parts = [data]
        position = start + len(data)
        while position < end:  # a signal interrupted it, or the range exceeds one call's limit
            more = os.pread(fd, end - position, position)
            if not more:
                raise ObjectTruncated(self.name, "get", key, f"it ends at {position}, not {end}")
            parts.append(more)
            position += len(more)
        return b"".join(parts)

    def _load(self, fd: int, start: int, end: int) -> None:
        """Load a range into the page cache, in this thread, because an event loop reads it next.

        Sending to /dev/null copies nothing and makes the kernel read ahead into large folios. POSIX_FADV_WILLNEED would
        load single pages, whose every use costs several times as much CPU.
        """
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            while start < end and (sent := self._calls.sendfile(null, fd, start, end - start)):
                start += sent
        except OSError:
            for at in range(start, end, LOAD_STEP_BYTES):
                os.pread(fd, min(LOAD_STEP_BYTES, end - at), at)
        finally:
            os.close(null)

    def _object_status(self, key: str) -> os.stat_result:
        status = os.lstat(self._prefix + key)
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(errno.ENOENT, "no file", key)
        return status

    def _entries(self, directory_key: str) -> list[str]:
        """Names of files, and of directories with a trailing slash, in the order of the keys below them."""
        names: list[str] = []
        if not directory_key:
            self._still_there("list", "")
        try:
            with os.scandir(self._prefix + directory_key) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        names.append(entry.name + "/")
                    elif entry.is_file(follow_symlinks=False):
                        names.append(entry.name)
        except (FileNotFoundError, NotADirectoryError):
            self._still_there("list", directory_key)
            return []
        if not directory_key:
            names = [name for name in names if name != RESERVED_NAME + "/"]
        names.sort()
        return names

    def _candidates(self, directory_key: str, prefix: str, start_after: str) -> list[str]:
        with self._errors("list", directory_key):
            keys = [directory_key + name for name in self._entries(directory_key)]
        return [
            key
            for key in keys
            if (key.startswith(prefix) or (key.endswith("/") and prefix.startswith(key)))
            and (key > start_after or (key.endswith("/") and start_after.startswith(key)))
        ]

    def _has_objects(self, directory_key: str) -> bool:
        names = self._entries(directory_key)
        return any(not name.endswith("/") for name in names) or any(
            self._has_objects(directory_key + name) for name in names
        )

    # -- errors

    def _still_there(self, operation: str, key: str) -> None:
        """Raises StoreUnavailable if the root itself is missing, because an unmounted volume is not an empty one."""
        if not os.path.isdir(self._unfinished if self._marked else self.root):
            raise StoreUnavailable(self.name, operation, key, "the directory of the store is gone")

    @contextlib.contextmanager
    def _errors(self, operation: str, key: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError):
            self._still_there(operation, key)
            if operation in WRITES:
                raise StoreUnavailable(self.name, operation, key, "its directory went away") from None
            raise ObjectMissing(self.name, operation, key, "there is no such object") from None
        except OSError as error:
            raise self._store_error(error, operation, key) from None

    def _store_error(self, error: OSError, operation: str, key: str) -> StoreError:
        reason = os.strerror(error.errno) if error.errno else type(error).__name__
        if error.errno in FULL:
            return StoreFull(self.name, operation, key, reason)
        if error.errno in DENIED:
            return StoreDenied(self.name, operation, key, reason)
        if error.errno == errno.ELOOP:
            return ObjectMissing(self.name, operation, key, "it is a symbolic link")
        if error.errno == errno.ENAMETOOLONG:
            return InvalidKey(self.name, operation, key, reason)
        return StoreUnavailable(self.name, operation, key, reason)


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    version = f"{status.st_ino:x}.{status.st_mtime_ns:x}.{status.st_size:x}"
    return ObjectInfo(key, status.st_size, status.st_mtime_ns // 1_000_000, version)
