"""The errors of object stores. Each names store, operation and key.

No error carries text of a client library or of the store itself, which may reveal secrets.
"""


class StoreError(Exception):
    """The call failed, and retrying at once is of no use.

    After a StoreError of a put, replace, copy or delete the outcome is unknown, except that `ObjectExists`,
    `VersionConflict` and `InvalidKey` mean that nothing was written.
    """

    def __init__(self, store: str, operation: str, key: str, reason: str) -> None:
        super().__init__(f"{operation} {key!r} in {store}: {reason}" if key else f"{operation} {store}: {reason}")
        self.store = store
        self.operation = operation
        self.key = key
        self.reason = reason


class StoreUnavailable(StoreError):
    """No answer in time, a broken connection, or a throttling answer. Retriable; the retries here are used up."""


class StoreDenied(StoreError):
    """Credentials are missing, wrong or lack the right; or the bucket or directory is missing."""


class NoStore(StoreDenied):
    """The directory does not exist; most likely its URI was mistyped."""


class StoreFull(StoreError):
    """The store has no room, or a quota is used up."""


class ObjectMissing(StoreError):
    """There is no such object."""


class ObjectExists(StoreError):
    """A create-only put found an object, and left it unchanged."""


class VersionConflict(StoreError):
    """The object has another version than a replace expected, and is unchanged."""


class ObjectTruncated(StoreError):
    """The object ends before the requested range does."""


class ObjectAltered(StoreError):
    """Every read returned bytes that do not match the store's checksum."""


class InvalidKey(StoreError):
    """The key is invalid for an object: see `object_store.store.check_key`."""


class StoreUnfit(StoreError):
    """The store lacks conditional writes, without which the tier would not be safe."""
