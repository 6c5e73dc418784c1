"""What an object store answers when it does not do what it was asked. Each error names store, operation and key.

No error carries the words of a client library or of the store itself: they may hold what only the credentials'
owner should see.
"""


class StoreError(Exception):
    """The store did not do it, and trying again at once is of no use.

    After any StoreError of a put, a replace, a copy or a delete the outcome is unknown, but for `ObjectExists`,
    `VersionConflict` and `InvalidKey`, which mean that nothing was written.
    """

    def __init__(self, store: str, operation: str, key: str, reason: str) -> None:
        super().__init__(f"{operation} {key!r} in {store}: {reason}" if key else f"{operation} {store}: {reason}")
        self.store = store
        self.operation = operation
        self.key = key
        self.reason = reason


class StoreUnavailable(StoreError):
    """No answer in time, a broken connection, or an answer that says "later". Retriable; retries here are used up."""


class StoreDenied(StoreError):
    """Credentials are missing, wrong or not allowed this; or the bucket or directory is not there."""


class NoStore(StoreDenied):
    """There is no such directory at all: most likely its URI was mistyped."""


class StoreFull(StoreError):
    """No room, or a quota is used up."""


class ObjectMissing(StoreError):
    """There is no such object."""


class ObjectExists(StoreError):
    """A create-only put found an object, which is as it was."""


class VersionConflict(StoreError):
    """The object is not in the version that a replace expected; it is as it was."""


class ObjectTruncated(StoreError):
    """The object ends before the bytes that were asked for."""


class ObjectAltered(StoreError):
    """The bytes do not fit the checksum that the store keeps of them, each time they are read."""


class InvalidKey(StoreError):
    """The key can name no object here: see `object_store.store.check_key`."""


class StoreUnfit(StoreError):
    """The store lacks something without which the tier would not be safe: conditional writes."""
