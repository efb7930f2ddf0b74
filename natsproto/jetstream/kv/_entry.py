"""Entries: the value of a key at a revision, and the stream that has them.

Owns the entry that get, history and watch return, the meaning of a bucket's messages (a value, a deletion, a purge, or
the server's marker for an expired key: ADR-8, ADR-48), and the reading and writing of one key. Translates errors of the
stream into errors of keys.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from enum import StrEnum
from functools import partial
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Generic, Literal, NoReturn, TypeVar, cast

from natsproto import errors
from natsproto._core.events import Event
from natsproto._help.introspection import html_table
from natsproto.errors._base import shown_payload
from natsproto.errors._jetstream import with_advice
from natsproto.jetstream._api.requests import Api
from natsproto.jetstream._consumer.message import JsMessage
from natsproto.jetstream._publish.headers import MSG_ID_HEADER, MessageArgs
from natsproto.jetstream._publish.outcome import Change, Evidence, Expectation
from natsproto.jetstream._publish.publish import LEADER_CHECK_S, Lookup, Recognition, Sent, publish
from natsproto.jetstream._publish.retry_policy import UNTIL_TIMEOUT
from natsproto.jetstream._stream.direct_get import LastGet, RawMessage, headerless_message
from natsproto.jetstream._stream.own_write import WriteLookup, batch_lookup
from natsproto.jetstream._stream.stream import Stream
from natsproto.jetstream._values.codec import Duration
from natsproto.jetstream._values.info import PubAck
from natsproto.jetstream._values.timestamp import Timestamp
from natsproto.jetstream.kv._keys import BucketSubjects, V
from natsproto.protocol.headers import Headers
from natsproto.protocol.subject import have_no_wildcards

M = TypeVar("M", "RawMessage", "JsMessage")
Ttl = Duration | Literal["never"]
"""Seconds until a key or a marker expires (at least 1), or "never", whatever the TTL of the bucket."""

OPERATION_HEADER = "KV-Operation"
WRITE_ID_HEADER = "Natsproto-Write"
"""Header that identifies a write with an expected revision. Not Nats-Msg-Id, which would change what the stream takes
for a duplicate. Entries do not show it.
"""
_MARKER_REASON_HEADER = "Nats-Marker-Reason"
_SIZE_HEADER = "Nats-Msg-Size"

MAX_CACHED_GETS = 4096
"""Keys for which a handle keeps a prepared direct get."""


class Operation(StrEnum):
    """The kinds of entries: values, and markers of deletions."""

    PUT = "PUT"
    """A value was written."""
    DELETE = "DEL"
    """The value was deleted, and the history kept."""
    PURGE = "PURGE"
    """The value and the history were deleted; also what a TTL has ended."""


_OPERATIONS = {"PUT": Operation.PUT, "PURGE": Operation.PURGE}


def operation_of(headers: Headers) -> Operation:
    """Return the operation of a message with these headers. An unknown one counts as a deletion (ADR-8)."""
    if said := headers.last(OPERATION_HEADER):
        return _OPERATIONS.get(said, Operation.DELETE)
    if reason := headers.last(_MARKER_REASON_HEADER):
        return Operation.DELETE if reason == "Remove" else Operation.PURGE
    return Operation.PUT


def operation_in(message: RawMessage | JsMessage) -> Operation:
    """Return the operation of a message; its headers are parsed only if there are any."""
    return operation_of(message.headers) if message.has_headers else Operation.PUT


class KeyValueEntry(Generic[V]):
    """A key at a revision, created by what reads a bucket. Treat it as frozen.

    ``data`` is the payload, empty for deletions and in a ``meta_only`` watch. ``value`` is the value: the payload, or
    the codec's decoding of it. Reading ``value`` raises InvalidPayload when the payload cannot be decoded, and with a
    codec KeyDeleted for a deletion. All parts except ``data`` are parsed at their first use.
    """

    __slots__ = ("_head", "_message", "_subjects", "data", "value")

    data: bytes
    """The bytes as stored; b"" of a deletion."""
    value: V
    """The bytes, or what the codec of a typed bucket makes of them."""
    _head: bytes
    """The headers of a direct get's reply, until ``_message`` is created from them."""
    _message: RawMessage | JsMessage
    _subjects: BucketSubjects[V]

    def __init__(self, subjects: BucketSubjects[V], message: RawMessage | JsMessage) -> None:
        self._subjects, self._message = subjects, message
        self.data = message.data
        if subjects.decode_value is None:
            self.value = cast(V, message.data)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            if name == "_message":
                self._message = message = headerless_message(self._head, self.data)
                return message
            if name == "value":
                self.value = value = self._decode()
                return value
            return super().__getattribute__(name)  # raises the error of this name, or that of a codec in a property

    def _decode(self) -> V:
        subjects = self._subjects
        assert subjects.decode_value is not None
        if self.is_deleted:
            raise errors.KeyDeleted(self.bucket, self.key, self.revision, self.operation)
        try:
            return subjects.decode_value(self.data)
        except errors.InvalidPayload as exc:
            key = self._message.subject.removeprefix(subjects.read_prefix)
            where = f"key {key!r} in bucket {self.bucket!r}, revision {self.revision}"
            raise errors.InvalidPayload(exc.operation, exc.kind, f"{exc.reason} ({where})") from exc

    @property
    def bucket(self) -> str:
        """The bucket that it was read from, without ``KV_``."""
        return self._subjects.bucket

    @property
    def key(self) -> str:
        """The key. InvalidPayload when the handle's key codec cannot decode it."""
        return self._subjects.key_of(self._message.subject)

    @property
    def subject(self) -> str:
        """The subject under which the stream stores it."""
        return self._message.subject

    @property
    def operation(self) -> Operation:
        """``PUT`` for a value, ``DEL`` or ``PURGE`` for a deletion."""
        return operation_in(self._message)

    @property
    def is_deleted(self) -> bool:
        """True if the key was deleted or purged, or has expired: there is no value."""
        return self._message.has_headers and operation_of(self._message.headers) is not Operation.PUT

    @property
    def headers(self) -> Headers:
        """The headers of the stored message, without those which natsproto adds to recognise its own writes."""
        headers = self._message.headers
        if WRITE_ID_HEADER not in headers:
            return headers
        own_id = headers.last(WRITE_ID_HEADER)
        own = (WRITE_ID_HEADER, own_id), (MSG_ID_HEADER, own_id)
        return Headers(pair for pair in headers.pairs() if pair not in own)

    @property
    def size(self) -> int:
        """Bytes of the payload, also in a ``meta_only`` watch."""
        said = self._message.headers.last(_SIZE_HEADER)
        return int(said) if said.isdecimal() and not self.data else len(self.data)

    @property
    def revision(self) -> int:
        """The revision: the sequence in the bucket's stream, unique in the bucket."""
        message = self._message
        return message.seq

    @property
    def created(self) -> Timestamp:
        """The time when it was stored, to the nanosecond."""
        message = self._message
        return message.time if isinstance(message, RawMessage) else message.metadata.timestamp

    @property
    def delta(self) -> int:
        """Entries that follow it in the same get, history or watch; 0 for the latest."""
        message = self._message
        return message.num_pending if isinstance(message, RawMessage) else message.metadata.num_pending

    def __reduce__(self) -> tuple[object, ...]:
        return KeyValueEntry, (self._subjects, self._message)

    def __eq__(self, other: object) -> bool:
        """Compare revision, key and content."""
        if not isinstance(other, KeyValueEntry):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash((self.bucket, self.revision))

    def _identity(self) -> tuple[object, ...]:
        return self.bucket, self.revision, self._message.subject, self.data, self.operation, self.created

    def __repr__(self) -> str:
        key = self._message.subject[len(self._subjects.read_prefix) :]
        content = shown_payload(self.data) if not self.is_deleted else self.operation
        return f"KeyValueEntry(bucket={self.bucket!r}, key={key!r}, revision={self.revision}, {content})"

    def _repr_html_(self) -> str:
        """The entry as a table in a notebook."""
        names = ("bucket", "key", "revision", "operation", "created", "data")
        return html_table("KeyValueEntry", ((name, str(getattr(self, name))) for name in names))


def headerless_entry(subjects: BucketSubjects[V], head: bytes, data: bytes) -> KeyValueEntry[V]:
    """Return the entry in a direct get's reply without publisher headers, which ``LastGet.headerless`` has checked."""
    entry = cast("KeyValueEntry[V]", KeyValueEntry.__new__(KeyValueEntry))
    entry._subjects, entry._head, entry.data = subjects, head, data
    if subjects.decode_value is None:
        entry.value = cast(V, data)
    return entry


def has_write_id(entry: KeyValueEntry[V], write_id: str) -> bool:
    """True if the entry is that of the write with this id."""
    return entry._message.headers.last(WRITE_ID_HEADER) == write_id


class KeyValueNotice(Event):
    """A watch, or a listing, of a bucket has left out entries: their keys are no keys, such as ``>``, which a server
    stores as it does any other, or the key codec cannot decode them.

    ``keys`` are the keys as stored, ``error`` is that of the first one.
    """

    bucket: str
    keys: tuple[str, ...]
    error: errors.NatsError

    level = logging.WARNING
    line = "bucket %(bucket)r: entries left out, as their keys cannot be read: %(error)s"


class BucketStream(Generic[V]):
    """The stream of a bucket for one handle: reads and writes the messages of keys."""

    api: Api
    stream: Stream
    subjects: BucketSubjects[V]

    def __init__(self, api: Api, stream: Stream, subjects: BucketSubjects[V]) -> None:
        self.api, self.stream, self.subjects = api, stream, subjects
        self.bucket: str = subjects.bucket
        self._gets: dict[str, LastGet] = {}  # by the encoded key
        id_format = f"{api.connection._runtime.new_id()[:8]}{{:x}}.{{:x}}".format
        self._write_ids = map(id_format, count(1), iter(api.connection._runtime.random_bits(), None))

    @property
    def was_found(self) -> bool:
        """True if the bucket exists, as far as is known: a server has returned its configuration."""
        return self.stream._info is not None

    def new_write_id(self) -> str:
        """Return the id of a write: short, as it counts for the bucket's ``max_value_size``, and unpredictable, as
        another writer could use it first.
        """
        return next(self._write_ids)

    # ---------------------------------------------------------------- reading

    def last_get(self, key: str) -> LastGet:
        """Return the prepared direct get of a key's newest entry. InvalidSubject, TypeError."""
        subjects = self.subjects
        encoded = key if subjects.key_codec is None else subjects.encode_key(key)
        try:
            return self._gets[encoded]
        except (KeyError, TypeError):  # TypeError for a key that is not hashable
            stored = subjects.encode_key(key) if subjects.key_codec is None else encoded
            get = LastGet(self.api, self.stream.name, subjects.read_prefix + stored)
        if len(self._gets) >= MAX_CACHED_GETS:
            self._gets.clear()
        self._gets[encoded] = get
        return get

    async def find(
        self, key: str, revision: int | None = None, *, direct: bool = False, timeout: Duration | None
    ) -> KeyValueEntry[V] | None:
        """Return the newest entry of a key, or the one at a revision; it may be a deletion. None when there is none,
        also if another key has the revision. From the stream's leader unless ``direct``. BucketNotFound.
        """
        subject = self.subjects.read_prefix + self.subjects.encode_key(key)
        if revision is None:
            return await self._entry(subject, self.stream.get_last_message(subject, direct=direct, timeout=timeout))
        return await self._entry(subject, self.stream.get_message(revision, direct=direct, timeout=timeout))

    async def confirm_missing(
        self, subject: str, missing: errors.MessageNotFound, timeout: Duration | None
    ) -> KeyValueEntry[V] | None:
        """Find an entry that one server does not have at the leader. BucketNotFound."""
        body = {"last_by_subj": subject}
        return await self._entry(subject, self.stream._confirm_missing(missing, body, timeout))

    async def _entry(self, subject: str, reading: Awaitable[RawMessage]) -> KeyValueEntry[V] | None:
        try:
            message = await reading
        except errors.MessageNotFound:
            return None
        except errors.StreamNotFound as exc:
            raise errors.BucketNotFound(self.bucket) from exc
        return KeyValueEntry(self.subjects, message) if message.subject == subject else None

    async def last_revision(self, key: str, timeout: Duration | None) -> int | None:
        """Return the key's last revision, which the error of a replicated stream lacks; None when it is unknown."""
        try:
            entry = await self.find(key, timeout=timeout)
        except errors.NatsError:
            return None
        return 0 if entry is None else entry.revision

    def readable(self, messages: list[M]) -> list[M]:
        """Return the messages whose keys have no wildcards and can be decoded; report the others with an event."""
        subjects = self.subjects
        if subjects.key_codec is None and have_no_wildcards([message.subject for message in messages]):
            return messages
        unreadable = [subjects.unreadable(message.subject) for message in messages]
        first = next(filter(None, unreadable), None)
        if first is None:
            return messages
        left_out = [message.subject for message, error in zip(messages, unreadable, strict=True) if error is not None]
        keys = tuple(subject.removeprefix(subjects.read_prefix) for subject in left_out)
        self.api.connection._event_bus.emit(KeyValueNotice(bucket=self.bucket, keys=keys, error=first))
        return [message for message, error in zip(messages, unreadable, strict=True) if error is None]

    # ---------------------------------------------------------------- writing

    async def ttl_args(self, ttl: Ttl, timeout: Duration | None) -> MessageArgs:
        """Return the arguments of a write with a TTL. UnsupportedByServer if the server would store and ignore it.

        The rollup removes older entries, which would become the newest again when this one expires (ADR-48).
        """
        await self.api.require_api_level(1, "2.11", f"time to live of a key of bucket {self.bucket!r}", timeout)
        return {"ttl": ttl, "rollup": "sub"}

    async def write(
        self,
        key: str,
        payload: bytes,
        headers: dict[str, str] | None,
        args: MessageArgs,
        revision: int | None,
        timeout: Duration | None,
        write_id: str = "",
        change: Change | None = None,
    ) -> int:
        """Store a message under a key and return its revision. Raises the errors of ``publish``.

        With ``revision`` only if that is the key's last one (0: it has none): WrongRevision. ``write_id`` is that of a
        caller who looks the write up after a refusal of revision 0, and whose ``change`` this is a part of.
        """
        subject, wait = self.subjects.write_prefix + self.subjects.encode_key(key), self.api.seconds(timeout)
        recognition = None
        with_id: MessageArgs = args
        if revision is not None:
            args = {**args, "expected_last_subject_seq": revision}
            own_id = write_id or self.new_write_id()
            # No message of the key need be left to show what came before this write, so the server remembers its id.
            with_id = args
            if write_id or revision == 0 or self.api.streams.is_unsettled(subject):
                with_id = {**args, "msg_id": own_id}
            recognition = self._recognition(own_id, subject, args, is_empty_checked=not write_id)
        while True:
            try:
                return (await self._publish(subject, payload, headers, with_id, wait, recognition, change)).seq
            except errors.MessageTooLarge:
                if recognition is None:
                    raise
                with_id, recognition = args, None  # there is a ``max_value_size``, and the value may fit alone
            except errors.WrongLastSequence as exc:
                assert revision is not None
                raise await self._wrong_revision(key, revision, exc, wait) from exc
            except errors.NatsError as exc:
                await self.raise_named(exc, f"write of key {key!r}")

    def _publish(
        self,
        subject: str,
        payload: bytes,
        headers: dict[str, str] | None,
        args: MessageArgs,
        wait: float,
        recognition: Recognition | None,
        change: Change | None = None,
    ) -> Awaitable[PubAck]:
        """Publish a write. A bucket that exists is waited for until the timeout: without a leader nothing is stored."""
        return publish(
            *(self.api, subject, payload, headers, args),
            timeout=wait,
            retry_attempts=UNTIL_TIMEOUT if self.was_found else None,
            await_leader=self.await_leader,
            recognition=recognition,
            change=change,
        )

    async def _wrong_revision(
        self, key: str, expected: int, error: errors.WrongLastSequence, wait: float
    ) -> errors.WrongRevision:
        actual = error.last if error.last is not None else await self.last_revision(key, wait)
        return errors.WrongRevision(self.bucket, key, expected, actual)

    async def write_if(self, key: str, payload: bytes, args: MessageArgs, timeout: Duration | None) -> int:
        """Store a value that expects the last sequence of another key, and return its revision: WrongLastSequence."""
        subject = self.subjects.write_prefix + self.subjects.encode_key(key)
        recognition = self._recognition(self.new_write_id(), subject, args)
        try:
            return (await self._publish(subject, payload, None, args, self.api.seconds(timeout), recognition)).seq
        except errors.NatsError as exc:
            await self.raise_named(exc, f"write of key {key!r}")

    async def raise_named(self, error: errors.NatsError, operation: str) -> NoReturn:
        """Raise the error of a write so that it names the bucket."""
        if isinstance(error, errors.PublishUncertain):
            advice = "read the key, and write again if it does not have this value"
            raise with_advice(error, advice, f"{operation} of bucket {self.bucket!r}")
        if isinstance(error, errors.TtlRefused):
            what = f"{operation} of bucket {self.bucket!r}"
            raise errors.TtlRefused(error.code, error.err_code, error.description, what, self.bucket) from None
        if isinstance(error, errors.BucketNotFound):
            raise error from errors.NoStream(f"{self.subjects.write_prefix}>")
        if not isinstance(error, errors.NoStream) or isinstance(error, errors.StreamUnavailable):
            raise error
        try:
            await self.await_leader(LEADER_CHECK_S)
        except errors.BucketNotFound:
            raise errors.BucketNotFound(self.bucket) from error
        raise errors.StreamUnavailable(f"bucket {self.bucket!r}", error.subject, error.waited) from error

    async def await_leader(self, seconds: float) -> None:
        """Wait up to ``seconds`` for an answer of the bucket's leader. BucketNotFound."""
        try:
            await self.stream.info(timeout=seconds)
        except errors.StreamNotFound as exc:
            raise errors.BucketNotFound(self.bucket) from exc
        except errors.NatsError:
            return  # there may be an election

    def stored_subject(self, subject: str) -> str:
        """Return the subject under which the stream has a message that was written to this one."""
        return self.subjects.read_prefix + subject[len(self.subjects.write_prefix) :]

    async def _find_stream(self) -> Stream:
        return self.stream

    def batch_lookup_of(self, subject: str, batch_id: str) -> Lookup:
        """Return the lookup of an atomic batch, by its last message."""
        return batch_lookup(self._find_stream, self.stored_subject(subject), batch_id)

    def _recognition(
        self, write_id: str, subject: str, args: MessageArgs, *, is_empty_checked: bool = False
    ) -> Recognition:
        """Return how the write with this id to a subject is recognised."""
        return Recognition(
            partial(self._look_up, write_id, subject, args), (WRITE_ID_HEADER, write_id), is_empty_checked
        )

    def _look_up(self, write_id: str, subject: str, args: MessageArgs, sent: Sent) -> Awaitable[Evidence]:
        ttl = args.get("ttl")
        lookup = WriteLookup(
            self._find_stream,
            self.stored_subject(subject),
            lambda message: message.headers.last(WRITE_ID_HEADER) == write_id,
            ttl=inf if ttl is None or isinstance(ttl, str) else self.api.seconds(ttl),
        )
        if sent.expected.subject == subject:
            sent = sent._replace(expected=Expectation(sent.expected.seq, self.stored_subject(subject)))
        return lookup(sent)
