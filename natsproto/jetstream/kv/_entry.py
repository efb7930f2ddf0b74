"""Entries: what a key held at a revision.

Owns the value that get, history and watch give, and the reading of what a message of a bucket means: a value, a
deletion, a purge, or a marker that the server left for what has expired (ADR-8, ADR-48).
"""

from __future__ import annotations

from abc import abstractmethod
from enum import StrEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Generic, cast

from natsproto.errors import InvalidPayload, KeyDeleted
from natsproto.jetstream._direct import headerless_message
from natsproto.jetstream.kv._bucket_subjects import BucketSubjects, V

if TYPE_CHECKING:
    from collections.abc import Callable

    from natsproto.jetstream._direct import RawMessage
    from natsproto.jetstream._message import JsMessage
    from natsproto.jetstream._timestamp import Timestamp
    from natsproto.protocol.headers import Headers

OPERATION = "KV-Operation"
_MARKER = "Nats-Marker-Reason"
_SIZE = "Nats-Msg-Size"


class Operation(StrEnum):
    """What was done to a key."""

    PUT = "PUT"
    DELETE = "DEL"
    PURGE = "PURGE"


def operation_of(headers: Headers) -> Operation:
    """What a message with these headers did to its key. An unknown operation counts as a deletion (ADR-8)."""
    if said := headers.last(OPERATION):
        return Operation.PUT if said == "PUT" else Operation.PURGE if said == "PURGE" else Operation.DELETE
    if reason := headers.last(_MARKER):
        return Operation.DELETE if reason == "Remove" else Operation.PURGE
    return Operation.PUT


def operation_in(message: RawMessage | JsMessage) -> Operation:
    """The same for a message, whose headers stay unread if there are none."""
    return operation_of(message.headers) if message.has_headers else Operation.PUT


class KeyValueEntry(Generic[V]):
    """A key at a revision. Treat it as frozen; what is not asked for is not read.

    ``data`` is the payload, empty for deletions and where a watch is ``meta_only``.
    """

    __slots__ = ("_decoded", "_layout", "_message", "data")

    _message: RawMessage | JsMessage

    def __init__(self, layout: BucketSubjects[V], message: RawMessage | JsMessage) -> None:
        self._layout, self._message = layout, message
        self.data: bytes = message.data

    @property
    def bucket(self) -> str:
        """The name of the bucket."""
        return self._layout.bucket

    @property
    def key(self) -> str:
        """The key. InvalidPayload when the key codec of the handle did not make it."""
        return self._layout.key_of(self._message.subject)

    @property
    def subject(self) -> str:
        """The subject under which the stream holds it."""
        return self._message.subject

    @property
    def value(self) -> V:
        """The value: the payload, or what the codec of the handle makes of it, decoded once.

        InvalidPayload when it is not of the type; with a codec KeyDeleted for a deletion, which has no value.
        """
        decode = self._layout.decode
        if decode is None:
            return self.data  # type: ignore[return-value]  # V is bytes then
        try:
            return self._decoded
        except AttributeError:
            if self.is_deleted:
                raise KeyDeleted(self.bucket, self.key, self.revision, self.operation) from None
            try:
                self._decoded: V = decode(self.data)
            except InvalidPayload as exc:
                key = self._message.subject.removeprefix(self._layout.stored)
                where = f"key {key!r} in bucket {self.bucket!r}, revision {self.revision}"
                raise InvalidPayload(exc.doing, exc.kind, f"{exc.reason} ({where})") from exc
            return self._decoded

    @property
    def operation(self) -> Operation:
        """What was done to the key."""
        return operation_in(self._message)

    @property
    def is_deleted(self) -> bool:
        """Whether the key was deleted or purged, or has expired: there is no value."""
        return self._message.has_headers and self.operation is not Operation.PUT

    @property
    def headers(self) -> Headers:
        """The headers of the message behind it."""
        return self._message.headers

    @property
    def size(self) -> int:
        """Bytes of the payload, also where a watch is ``meta_only``."""
        said = self._message.headers.last(_SIZE)
        return int(said) if said.isdecimal() and not self.data else len(self.data)

    @property
    @abstractmethod
    def revision(self) -> int:
        """The revision: the sequence in the bucket's stream, unique in the bucket."""

    @property
    @abstractmethod
    def created(self) -> Timestamp:
        """When it was stored, to the nanosecond."""

    @property
    @abstractmethod
    def delta(self) -> int:
        """How many entries of the same reading (get, history, watch) were behind it; 0 for the latest."""

    def __eq__(self, other: object) -> bool:
        """Whether both are the same revision of the same key with the same content."""
        if not isinstance(other, KeyValueEntry):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash((self.bucket, self.revision))

    def _identity(self) -> tuple[object, ...]:
        return self.bucket, self.revision, self._message.subject, self.data, self.operation, self.created

    def __repr__(self) -> str:
        key = self._message.subject[len(self._layout.stored) :]
        what = f"{len(self.data)} bytes" if not self.is_deleted else self.operation
        return f"KeyValueEntry(bucket={self.bucket!r}, key={key!r}, revision={self.revision}, {what})"


class StoredEntry(KeyValueEntry[V]):
    """An entry that was got from the stream."""

    __slots__ = ()

    _message: RawMessage  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def revision(self) -> int:
        """See KeyValueEntry."""
        return self._message.seq

    @property
    def created(self) -> Timestamp:
        """See KeyValueEntry."""
        return self._message.time

    @property
    def delta(self) -> int:
        """See KeyValueEntry."""
        return self._message.num_pending


class UnreadEntry(StoredEntry[V]):
    """An entry without headers that was got from the stream, and is read when somebody looks for more than the value.

    ``head`` is what the server said of it, and has been found to be in order.
    """

    __slots__ = ("_head",)

    def __init__(self, layout: BucketSubjects[V], head: bytes, data: bytes) -> None:
        self._layout, self._head = layout, head
        self.data = data

    def __getattr__(self, name: str) -> RawMessage:
        if name != "_message":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        self._message = message = headerless_message(self._head, self.data)
        return message


class DeliveredEntry(KeyValueEntry[V]):
    """An entry that a consumer delivered. Whoever makes one sets its slots, as a watch reads 50,000 at a time and the
    call of an ``__init__`` is half of what an entry costs.
    """

    __slots__ = ()
    __init__ = object.__init__  # pyright: ignore[reportAssignmentType]

    _message: JsMessage  # pyright: ignore[reportIncompatibleVariableOverride]

    # A call of Python's less.
    revision = property(attrgetter("_message.stream_seq"), doc="See KeyValueEntry.")  # pyright: ignore[reportIncompatibleMethodOverride]

    @property
    def created(self) -> Timestamp:
        """See KeyValueEntry."""
        return self._message.metadata.timestamp

    @property
    def delta(self) -> int:
        """See KeyValueEntry."""
        return self._message.metadata.num_pending


class PlainEntry(DeliveredEntry[bytes]):
    """One whose value is the payload."""

    __slots__ = ()

    # The slot itself: a property costs five times as much.
    value = vars(KeyValueEntry)["data"]  # pyright: ignore[reportIncompatibleMethodOverride]


def delivered(layout: BucketSubjects[V]) -> Callable[[], DeliveredEntry[V]]:
    """The class of the entries that are delivered for a handle."""
    return cast("Callable[[], DeliveredEntry[V]]", PlainEntry if layout.decode is None else DeliveredEntry)
