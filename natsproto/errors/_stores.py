"""Errors of key/value buckets, object stores and services."""

from __future__ import annotations

from collections.abc import Sequence

from natsproto.errors._base import AlreadyExists, NatsError, NotFound


class KeyValueError(NatsError):
    """Base of errors of key/value buckets."""


class ObjectStoreError(NatsError):
    """Base of errors of object stores."""


class BucketNotFound(KeyValueError, ObjectStoreError, NotFound):
    """This account and domain has no key/value bucket or object store of this name.

    If a stream of that name exists, ``reason`` says why it is not a bucket.
    """

    bucket: str
    """The name without ``KV_`` or ``OBJ_``, which the stream has."""
    reason: str

    def __init__(self, bucket: str, reason: str = "") -> None:
        self.bucket, self.reason = bucket, reason
        hint = reason or "create it, or pass its domain"
        super().__init__(f"bucket {bucket!r} not found: {hint}")


class BucketExists(KeyValueError, ObjectStoreError, AlreadyExists):
    """A bucket or object store of this name exists with another configuration.

    ``differences`` names the fields that differ, such as "history is 5, not 3"; empty if it could not be looked up.
    """

    bucket: str
    """The name without ``KV_`` or ``OBJ_``, which the stream has."""
    differences: tuple[str, ...]

    def __init__(self, bucket: str, differences: Sequence[str] = ()) -> None:
        self.bucket, self.differences = bucket, tuple(differences)
        found = f", with {', '.join(differences)}" if differences else " with another configuration"
        super().__init__(f"bucket {bucket!r} already exists{found}: update it, or create it under another name")


class KeyNotFound(KeyValueError, NotFound, KeyError):
    """The bucket has no such key, or not at the requested revision."""

    bucket: str
    key: str
    """As you gave it, before the key codec."""
    revision: int | None
    """The one asked for; of a KeyDeleted that of the deletion; None: the newest."""

    def __init__(self, bucket: str, key: str, revision: int | None = None) -> None:
        self.bucket, self.key, self.revision = bucket, key, revision
        super().__init__(f"{self._where()}: not found")

    def _where(self) -> str:
        at = f" at revision {self.revision}" if self.revision else ""
        return f"key {self.key!r}{at} in bucket {self.bucket!r}"

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show the repr


class KeyDeleted(KeyNotFound):
    """The key was deleted or purged; ``revision`` is that of the deletion, ``operation`` is DEL or PURGE."""

    def __init__(self, bucket: str, key: str, revision: int, operation: str = "DEL") -> None:
        super().__init__(bucket, key, revision)
        self.operation = operation
        self.args: tuple[str, ...] = (f"{self._where()}: {'purged' if operation == 'PURGE' else 'deleted'}",)


class LockLost(KeyValueError):
    """The lock is no longer held; another owner may hold it. ``token`` is the token of the lost lock."""

    bucket: str
    key: str
    """The name of the lock."""
    token: int

    def __init__(self, bucket: str, key: str, token: int) -> None:
        self.bucket, self.key, self.token = bucket, key, token
        super().__init__(f"lock {key!r} in bucket {bucket!r} is lost (token {token}): another owner may hold it now")


class WrongRevision(KeyValueError):
    """The last revision of the key differs from the expected one; nothing was written.

    ``actual`` is the last revision, or None if the server does not report it.
    """

    bucket: str
    key: str
    expected: int
    """The revision that you gave; 0: that the key has no value."""
    actual: int | None

    def __init__(self, bucket: str, key: str, expected: int, actual: int | None = None) -> None:
        self.bucket, self.key, self.expected, self.actual = bucket, key, expected, actual
        now = f", it is {actual}" if actual is not None else ""
        super().__init__(f"key {key!r} in bucket {bucket!r} is not at revision {expected}{now}: get it and retry")


class KeyExists(WrongRevision, AlreadyExists):
    """create() found an existing value; nothing was written."""

    def __init__(self, bucket: str, key: str, actual: int | None = None) -> None:
        super().__init__(bucket, key, 0, actual)
        self.args: tuple[str, ...] = (f"key {key!r} in bucket {bucket!r} already exists",)


class ObjectNotFound(ObjectStoreError, NotFound, KeyError):
    """The store has no object of this name, or it was deleted."""

    bucket: str
    name: str

    def __init__(self, bucket: str, name: str) -> None:
        self.bucket, self.name = bucket, name
        super().__init__(f"object {name!r} in store {bucket!r}: not found")

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show the repr


class ObjectExists(ObjectStoreError, AlreadyExists):
    """The store already has an object of this name; nothing was changed."""

    bucket: str
    name: str

    def __init__(self, bucket: str, name: str) -> None:
        self.bucket, self.name = bucket, name
        super().__init__(f"object {name!r} in store {bucket!r} already exists: delete it first, or use another name")


class ObjectChanged(ObjectStoreError):
    """The object was replaced or deleted during a read or an update; the data read is incomplete."""

    bucket: str
    name: str

    def __init__(self, bucket: str, name: str) -> None:
        self.bucket, self.name = bucket, name
        super().__init__(f"object {name!r} in store {bucket!r} was replaced or deleted during the operation: retry")


class ObjectLinkError(ObjectStoreError):
    """The target of a link is missing or in another store, or the link cannot be created; ``reason`` says why."""

    bucket: str
    name: str
    reason: str

    def __init__(self, bucket: str, name: str, reason: str) -> None:
        self.bucket, self.name, self.reason = bucket, name, reason
        super().__init__(f"object {name!r} in store {bucket!r}: {reason}")


class DigestMismatch(ObjectStoreError):
    """The received bytes differ from the stored object; do not use them.

    ``reason`` is set when bytes or chunks are missing; ``actual`` is the digest of the received bytes.
    """

    bucket: str
    name: str
    expected: str
    """``SHA-256=`` and base64, as the object's info has it."""
    actual: str
    reason: str

    def __init__(self, bucket: str, name: str, expected: str, actual: str, reason: str = "") -> None:
        self.bucket, self.name, self.expected, self.actual, self.reason = bucket, name, expected, actual, reason
        damage = reason or f"digest {actual}, expected {expected}"
        super().__init__(f"object {name!r} in store {bucket!r} is damaged: {damage}")


class ServiceError(NatsError):
    """A service responded with an error (ADR-32). Raised in a handler, it becomes the response.

    Args:
        code: A number for programs, such as 400 or 404; 500 is that of unexpected exceptions.
        description: A text for people, in one line.
    """

    code: int
    """As in HTTP by custom: 400 for the caller's mistake, 500 for the service's own."""
    description: str
    """The explanation that the caller reads."""

    def __init__(self, code: int, description: str) -> None:
        self.code, self.description = code, description
        super().__init__(f"{description} (code {code})")
