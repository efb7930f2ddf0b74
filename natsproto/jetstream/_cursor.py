"""Cursors: how far a source was taken into a stream, stored in the same atomic batch as its messages (ADR-50).

Rules:

1. A cursor is the last message of one subject of the stream, marked by a header. Its payload is the value.
2. An advance is one atomic batch: the messages, then the new cursor message, which expects the sequence of the old one.
   So messages and value are stored together or not at all, and of two writers one is refused, however late.
3. All attempts of one advance carry one id. Whatever an attempt ends with, only the cursor itself, read from the
   stream's leader, decides what was stored: this id, the old sequence, or the message of somebody else.
4. At the old sequence the batch is sent again: if an earlier attempt is stored after all, the expectation refuses the
   later one. A leader may refuse it there, too, while the batch of another writer is undecided, as when the leader is
   cut off: that is waited for, unless a message has an expectation of its own.
5. A lower sequence is that of a leader that was deposed, or of a stream whose store went back. It counts as the second
   when it is still there after some pauses.
6. A cursor whose position is not known (after an error, or a cancelled advance) refuses to advance until it is loaded:
   its source may have to continue elsewhere.
7. A stream that could remove the newest cursor message by itself is refused: its source would begin anew in silence.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Protocol, Unpack

from natsproto import errors
from natsproto._core.deadline import Backoff, Deadline
from natsproto._durations import positive_seconds
from natsproto.errors._base import is_transient
from natsproto.jetstream._publish.atomic_batch import MAX_ATOMIC_MESSAGES, AtomicBatch, BatchMessage
from natsproto.jetstream._publish.headers import MessageArgs
from natsproto.jetstream._stream.direct_get import RawMessage
from natsproto.jetstream._stream.stream import Stream
from natsproto.jetstream._values.asset_names import check_consumer_name
from natsproto.jetstream._values.codec import Duration
from natsproto.jetstream._values.config import StreamConfig
from natsproto.jetstream._values.info import PubAck
from natsproto.jetstream._values.policies import DiscardPolicy, RetentionPolicy
from natsproto.protocol.frames import Payload
from natsproto.protocol.headers import HeadersLike
from natsproto.protocol.subject import matches

CURSOR_HEADER = "Natsproto-Cursor"
"""Marks a cursor message. Its value is the type of the payload: ``int`` or ``bytes``."""

ADVANCE_HEADER = "Natsproto-Cursor-Advance"
"""The id of the advance that wrote a cursor message."""

SUBJECT_PREFIX = "$CURSOR"

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_MAX_LOWER_READS = 4
"""Reads in a row of a lower sequence, about 1.5 s apart in all, before the stream counts as gone back."""
_MAX_FAILED_CHECKS = 3
"""Refused expectations in a row while the cursor stands at the old sequence, before the error is that of a message with
an expectation of its own.
"""

_READ_TIMEOUT_S = 2.0
"""Seconds to wait for the cursor between two attempts."""
_MIN_WAIT_S = 0.05
"""Seconds that an attempt and a reading get, although the timeout is nearly over."""

_TYPE_NAMES = {int: "int", bytes: "bytes"}
_NUMBER = re.compile(rb"-?[0-9]+")


class _NewBatch(Protocol):
    def __call__(self, *, timeout: float) -> AtomicBatch:
        """Return a new batch to the stream."""
        ...


class _Position(NamedTuple):
    """The result of one reading of the cursor."""

    seq: int = 0
    """The sequence of its message; 0: there is none."""
    value: int | bytes | None = None
    advance_id: str = ""


class Cursor:
    """How far a source was taken into a stream. Created by ``js.cursor()``.

    ``advance`` stores messages and the new value together, or neither. A second writer of the same cursor is refused
    with CursorMoved. For one task at a time.
    """

    def __init__(
        self,
        stream: Stream,
        name: str,
        subject: str,
        *,
        timeout: float,
        new_batch: _NewBatch,
        new_id: Callable[[], str],
    ) -> None:
        self.name: str = name
        self.subject: str = subject
        """The subject of the stream whose last message is the cursor."""
        self._stream = stream
        self._timeout = timeout
        self._new_batch, self._new_id = new_batch, new_id
        self._position = _Position()
        self._is_known = False
        self._is_advancing = False
        self._args: MessageArgs = {}

    def __repr__(self) -> str:
        value = repr(self._position.value) if self._is_known else "unknown"
        return f"Cursor(stream={self.stream!r}, name={self.name!r}, value={value})"

    @property
    def stream(self) -> str:
        """The name of the stream."""
        return self._stream.name

    @property
    def value(self) -> int | bytes | None:
        """The value that was stored last, as of the last ``load`` or ``advance``; None: no value was ever stored.

        LocalProtocolError when it is not known: after an ``advance`` that failed or was cancelled, until ``load``.
        """
        self._check_known()
        return self._position.value

    @property
    def seq(self) -> int:
        """The sequence of the message with the value; 0: there is none. LocalProtocolError as in ``value``."""
        self._check_known()
        return self._position.seq

    async def load(self, *, timeout: Duration | None = None) -> int | bytes | None:
        """Read the cursor from the stream's leader and return its value; None when no value was ever stored.

        Continue the source from this value. RequestTimeout, NoResponders, StreamNotFound, PermissionDenied;
        InvalidReply when its subject holds a message that is not a cursor. Cancelling changes nothing.

        Args:
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        self._check_idle()
        wait = self._timeout if timeout is None else positive_seconds("timeout", timeout)
        self._position = await self._read(wait)
        self._is_known = True
        return self._position.value

    def advance(self, *, to: int | bytes, timeout: Duration | None = None) -> Advance:
        """Return a batch that stores its messages and this new value together. Use it with ``async with``.

        The end of the block commits; an exception in the block discards the batch, and the cursor stays. On leaving:
        CursorMoved when another writer has advanced the cursor, or the stream lost messages in a power failure: call
        ``load`` and continue from its value. PublishUncertain when no attempt was acknowledged within ``timeout`` and
        the cursor could not be read: ``load`` decides. RequestTimeout when the leader had no majority until then.
        WrongLastSequence for an expectation of a message, BatchRefused, NoStream and every other error
        of ``AtomicBatch.commit``, and ConfigError for a subject that the stream does not have: nothing is stored. After
        each of these, and when the block was cancelled while it committed, ``load`` comes before the next advance.

        ConfigError for an int that is not above the value, or another type than that of the value;
        LocalProtocolError during another advance.

        Args:
            to: The new value: an int above the present one, or bytes of the source's own meaning.
            timeout: Seconds to wait at the commit, over all attempts; None: that of the JetStream context.
        """
        self._check_idle()
        self._check_known()
        return Advance(
            self,
            _check_value(to, self._position.value),
            self._timeout if timeout is None else positive_seconds("timeout", timeout),
        )

    # ---------------------------------------------------------------- internals

    async def _open(self) -> Cursor:
        """Check the stream and read the cursor."""
        info = await self._stream.info(timeout=self._timeout)
        _check_stream(info.config, self.subject)
        if info.config.max_age:
            self._args["ttl"] = "never"
        if info.config.allow_rollup_hdrs:
            self._args["rollup"] = "sub"  # the stream keeps one message of each cursor
        await self.load()
        return self

    def _check_idle(self) -> None:
        if self._is_advancing:
            raise errors.LocalProtocolError(f"cursor {self.name!r} is advancing: one advance at a time")

    def _check_known(self) -> None:
        if not self._is_known:
            raise errors.LocalProtocolError(
                f"the position of cursor {self.name!r} is not known after an error: call load() and continue from there"
            )

    async def _subjects(self) -> tuple[str, ...]:
        """Return the subjects that the stream has now."""
        return tuple((await self._stream.info(timeout=_READ_TIMEOUT_S)).config.subjects)

    async def _read(self, timeout: float) -> _Position:
        try:
            message = await self._stream.get_last_message(self.subject, direct=False, timeout=timeout)
        except errors.MessageNotFound:
            return _Position()
        return _Position(message.seq, _decode(message), message.headers.last(ADVANCE_HEADER, ""))

    def _message(self, batch: AtomicBatch, value: int | bytes, advance_id: str) -> BatchMessage:
        """Return the cursor's own message, the last one of a batch."""
        args: MessageArgs = {"expected_last_subject_seq": self._position.seq, **self._args}
        payload = b"%d" % value if isinstance(value, int) else value
        headers = {CURSOR_HEADER: _TYPE_NAMES[type(value)], ADVANCE_HEADER: advance_id}
        return batch._checked(self.subject, payload, headers, args)


class Advance:
    """The messages of one advance of a cursor. Created by ``Cursor.advance``; use it with ``async with``.

    ``ack`` is the acknowledgement afterwards: its ``seq`` is that of the cursor's message, the last one of the batch.
    """

    def __init__(self, cursor: Cursor, value: int | bytes, timeout: float) -> None:
        self._cursor, self._value, self._timeout = cursor, value, timeout
        self._id = cursor._new_id()
        self._batch: AtomicBatch | None = None
        self._messages: list[BatchMessage] = []
        self._ack: PubAck | None = None

    @property
    def ack(self) -> PubAck:
        """The acknowledgement of the batch. LocalProtocolError before the end of the block, and when it failed."""
        if self._ack is None:
            raise errors.LocalProtocolError(
                "an advance is acknowledged as a whole at the end of its block: it was not stored"
            )
        return self._ack

    def __len__(self) -> int:
        return len(self._messages)

    async def publish(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        headers: HeadersLike | None = None,
        **args: Unpack[MessageArgs],
    ) -> None:
        """Add a message; see ``AtomicBatch.publish`` for the arguments and errors. 999 messages at most.

        ConfigError for the subject of the cursor.

        Args:
            subject: The subject to publish to, which a stream must listen on.
            payload: The content as bytes, bytearray or memoryview, up to the server's ``max_payload`` together with the
                headers.
            headers: A mapping of names to values (a str or a list of str), pairs, or Headers; None: no headers.
            **args: Conditions and options of the message, by keyword: those of MessageArgs.
        """
        if subject == self._cursor.subject:
            raise errors.ConfigError("subject", subject, "is the cursor's own: advance(to=...) writes it")
        if self._batch is None or self._ack is not None:
            raise errors.LocalProtocolError(
                'an advance takes messages inside its block: "async with cursor.advance(...)"'
            )
        if len(self._messages) >= MAX_ATOMIC_MESSAGES - 1:
            raise errors.LocalProtocolError(
                f"an advance holds {MAX_ATOMIC_MESSAGES - 1} messages at most: advance in steps"
            )
        # Sent at the end of the block: a server keeps an open batch for ten seconds, and 50 of a stream at a time.
        self._messages.append(self._batch._checked(subject, payload, headers, args))

    async def __aenter__(self) -> Advance:
        cursor = self._cursor
        cursor._check_idle()
        cursor._check_known()
        if self._batch is not None:
            raise errors.LocalProtocolError("an advance is used once: call cursor.advance() again")
        self._batch = cursor._new_batch(timeout=self._timeout)
        cursor._is_advancing = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cursor._is_advancing = False
        if exc is None:
            await self._store()

    async def _store(self) -> None:
        """Send the batch until the cursor shows how it ended. See the rules at the head of this module."""
        cursor = self._cursor
        deadline, backoff = Deadline(self._timeout), Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        old = cursor._position
        cursor._is_known = False  # until the end is known; a cancelled call leaves it so
        unanswered: errors.PublishUncertain | None = None
        lower_reads = failed_checks = 0
        while True:
            try:
                self._ack = await self._send(deadline)
            except errors.NatsError as exc:
                failure: errors.NatsError = exc
            else:
                break
            if isinstance(failure, errors.PublishUncertain):
                unanswered = failure
            elif isinstance(failure, (errors.NoStream, errors.BatchRefused)):
                await self._check_subjects()
            found = await self._found(deadline, failure, unanswered)
            if found is not None and found.advance_id == self._id:
                self._ack = PubAck(stream=cursor.stream, seq=found.seq, count=len(self._messages) + 1)
                break
            if found is None or found.seq == old.seq:
                lower_reads = 0
                failed_checks += isinstance(failure, errors.WrongExpectation)
                can_pass = is_transient(failure) or isinstance(failure, errors.PublishUncertain)
                if isinstance(failure, errors.WrongExpectation):
                    can_pass = failed_checks < _MAX_FAILED_CHECKS or not self._has_expectations()
            elif found.seq < old.seq and lower_reads < _MAX_LOWER_READS:
                lower_reads += 1
                can_pass = True
            else:
                raise errors.CursorMoved(cursor.stream, cursor.name, old.seq, found.seq, found.value) from failure
            if not can_pass or not await backoff.pause(deadline):
                if found is not None and unanswered is None:
                    cursor._position, cursor._is_known = found, True
                raise self._error(failure, unanswered)
        cursor._position = _Position(self._ack.seq, self._value, self._id)
        cursor._is_known = True

    async def _send(self, deadline: Deadline) -> PubAck:
        """Send all messages in one batch and commit it."""
        batch = self._cursor._new_batch(timeout=max(deadline.left, _MIN_WAIT_S))
        for message in self._messages:
            await batch._append(message)
        await batch._append(self._cursor._message(batch, self._value, self._id))
        ack = await batch.commit()
        assert ack is not None  # it has messages
        return ack

    async def _found(
        self, deadline: Deadline, failure: errors.NatsError, unanswered: errors.PublishUncertain | None
    ) -> _Position | None:
        """Read the cursor after a failure; None when it cannot be read now."""
        try:
            return await self._cursor._read(max(min(deadline.left, _READ_TIMEOUT_S), _MIN_WAIT_S))
        except errors.NatsError as exc:
            if is_transient(exc):
                return None
            raise self._error(failure, unanswered) from exc

    async def _check_subjects(self) -> None:
        """Raise ConfigError for a subject that the stream does not have: its message is lost on the way, and a server
        then refuses the batch as incomplete.
        """
        try:
            subjects = await self._cursor._subjects()
        except errors.NatsError:  # it says nothing about the subjects
            return
        for message in self._messages:
            if not any(matches(pattern, message.subject) for pattern in subjects):
                raise errors.ConfigError(
                    "subject", message.subject, f"is not one of stream {self._cursor.stream!r}: nothing was stored"
                )

    def _error(self, failure: errors.NatsError, unanswered: errors.PublishUncertain | None) -> errors.NatsError:
        """Return the error of the call: uncertain if an attempt was not answered."""
        if unanswered is None and isinstance(failure, errors.WrongExpectation) and not self._has_expectations():
            advice = "the stream's leader is cut off, or the batch of another writer is not decided yet"
            late = errors.RequestTimeout(
                f"advance of cursor {self._cursor.name!r}", self._timeout, advice=advice, missing="decision"
            )
            late.__cause__ = failure
            return late
        if unanswered is None or failure is unanswered:
            return failure
        uncertain = errors.PublishUncertain(self._cursor.subject, f"{unanswered.reason}; then {failure}")
        uncertain.__cause__ = failure
        return uncertain

    def _has_expectations(self) -> bool:
        """True when a message has an expectation of its own, which may be the refused one."""
        return any(name.startswith("Nats-Expected-") for message in self._messages for name, _ in message.pairs)


def _check_value(value: object, present: int | bytes | None) -> int | bytes:
    if type(value) is not int and type(value) is not bytes:
        raise errors.ConfigError("to", value, "must be an int or bytes")
    if present is not None and type(value) is not type(present):
        raise errors.ConfigError("to", value, f"must be {_TYPE_NAMES[type(present)]} as the value before")
    if isinstance(value, int) and isinstance(present, int) and value <= present:
        raise errors.ConfigError("to", value, f"must be above the present value {present}")
    return value


def _decode(message: RawMessage) -> int | bytes:
    kind = message.headers.last(CURSOR_HEADER, "")
    if kind == "bytes":
        return message.data
    if kind == "int" and _NUMBER.fullmatch(message.data):
        return int(message.data)
    raise errors.InvalidReply(
        "cursor", CURSOR_HEADER, kind, f"must mark an int or bytes: {message.subject!r} holds another message"
    )


def cursor_subject(stream: str, name: str) -> str:
    """Return the default subject of a cursor: ``$CURSOR.<stream>.<name>``."""
    return f"{SUBJECT_PREFIX}.{stream}.{check_consumer_name(name)}"


def _check_stream(config: StreamConfig, subject: str) -> None:
    """Raise ConfigError for a stream that cannot have this cursor, or would not keep it."""
    own = config.name
    transform = config.subject_transform
    limits = config.max_msgs > 0 or config.max_bytes > 0
    rules = [
        (config.mirror is not None, "is a mirror, which stores no messages of its own"),
        (not config.allow_atomic, f"has no atomic batches: js.update_stream({own!r}, allow_atomic=True)"),
        (config.no_ack, "has no_ack, so nothing says that a batch is stored"),
        (
            config.retention is not RetentionPolicy.LIMITS,
            'has consumers that remove the cursor: use a stream with retention="limits"',
        ),
        (bool(config.allow_msg_counter), "has counters only"),
        (
            not any(matches(pattern, subject) for pattern in config.subjects),
            f"does not listen on {subject!r}: add this subject (or {SUBJECT_PREFIX}.{own}.>) to its subjects",
        ),
        (
            transform is not None and (not transform.src or matches(transform.src, subject)),
            f"transforms {subject!r} to another subject",
        ),
        (
            limits and config.discard is DiscardPolicy.OLD,
            'removes old messages at max_msgs or max_bytes, maybe the cursor: discard="new" refuses new ones instead',
        ),
        (
            config.max_age != 0 and not config.allow_msg_ttl,
            "removes old messages at max_age, also the cursor: with allow_msg_ttl=True it stays",
        ),
        (
            config.max_msgs_per_subject > 0 and bool(config.discard_new_per_subject) and not config.allow_rollup_hdrs,
            "refuses new messages of a full subject (discard_new_per_subject), also a cursor's",
        ),
    ]
    for is_unfit, reason in rules:
        if is_unfit:
            raise errors.ConfigError("stream", own, reason)
