"""The state of one partition, and what one call of the handler changes.

Rules:

1. The state of a partition changes only by whole calls: what a failed one has set and added is dropped.
2. A change is an entry of the call until the call is merged. The merged entries wait for the commit of their batch.
3. A value and an output are checked when the handler gives them, so that a message whose outputs can never be stored
   fails by itself, and not its batch.
4. The size of the state is that of its keys and values.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import NamedTuple, TypeVar, overload

from natsproto import errors
from natsproto.protocol.frames import Payload, as_bytes
from natsproto.protocol.headers import Headers, HeadersLike, encode_headers
from natsproto.protocol.subject import matches, publish_subject

T = TypeVar("T")

MAX_MESSAGES = 999
"""Messages of a batch beside the cursor's."""
MAX_SUBJECT_BYTES = 3800
"""Bytes of a subject of the sink: servers read control lines of 4,096, with the reply subject of a batch."""
_HEADER_ROOM = 512
"""Bytes of ``max_payload`` that stay free for the headers of a batch and of the state."""


class Output(NamedTuple):
    """A message for the sink."""

    subject: str
    payload: bytes
    headers: Headers | None
    size: int


class CallLimits(NamedTuple):
    """The limits of the outputs and the state of one call. Those of the server are read when a partition begins."""

    processor: str
    partition: int
    max_state_bytes: int
    max_payload: int
    subjects: tuple[str, ...]
    """Those of the sink."""
    own: str
    """The beginning of the processor's own subjects."""

    def check_size(self, subject: str, size: int) -> None:
        """Raise InvalidSubject or PayloadTooLarge for a message that no batch can take."""
        if len(subject.encode("utf-8", "surrogatepass")) > MAX_SUBJECT_BYTES:
            raise errors.InvalidSubject("subject", subject, f"must not be longer than {MAX_SUBJECT_BYTES} bytes")
        if size > self.max_payload - _HEADER_ROOM:
            raise errors.PayloadTooLarge(size, self.max_payload - _HEADER_ROOM)

    def output(self, subject: str, payload: Payload, headers: HeadersLike | None) -> Output:
        """Return a message that a batch for the sink can take. InvalidSubject, InvalidHeader, ConfigError,
        PayloadTooLarge.
        """
        publish_subject(subject)
        if not any(matches(pattern, subject) for pattern in self.subjects) or subject.startswith(self.own):
            raise errors.ConfigError("subject", subject, "must be one of the sink's, and not of the processor's state")
        data = as_bytes(payload)
        size = len(subject) + len(data)
        given = None if headers is None else Headers(headers)
        if given is not None:
            size += len(encode_headers(list(given.pairs())))
        self.check_size(subject, size)
        return Output(subject, data, given, size)


class PartitionState:
    """The values of a partition, and the keys that changed since the last commit."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed: dict[str, bytes | None] = {}
        """The value of each changed key; None: deleted."""
        self.nbytes: int = 0

    def apply(self, key: str, value: bytes | None) -> None:
        """Set or delete (None) one value."""
        old = self.values.get(key)
        self.nbytes += _size(key, value) - _size(key, old)
        if value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value


class KeyedState(MutableMapping[str, bytes]):
    """The state of the partition of a message: values by key. Created by Processor
    for its handler.

    A key is a str that can be the end of a subject: without spaces, ``*`` and ``>``, with dots only between words.
    Setting raises InvalidSubject for other keys, TypeError for values that are not bytes, PayloadTooLarge, and
    StateTooLarge, which ends the processor. When the handler has returned, nothing can be set or deleted.
    """

    def __init__(self, call: HandlerCall) -> None:
        self._call = call
        self._changes, self._values = call.changes, call.state.values

    def __getitem__(self, key: str) -> bytes:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    @overload
    def get(self, key: str, default: None = None, /) -> bytes | None: ...

    @overload
    def get(self, key: str, default: bytes, /) -> bytes: ...

    @overload
    def get(self, key: str, default: T, /) -> bytes | T: ...

    def get(self, key: str, default: object = None, /) -> object:
        """Return the value of a key, or the default.

        Args:
            key: One that was set, or any other str.
            default: What to return when the key has no value.
        """
        if key in self._changes:
            value = self._changes[key]
            return default if value is None else value
        return self._values.get(key, default)

    def __setitem__(self, key: str, value: bytes) -> None:
        self._call.change(key, as_bytes(value))

    def __delitem__(self, key: str) -> None:
        if self.get(key) is None:
            raise KeyError(key)
        self._call.change(key, None)

    def __iter__(self) -> Iterator[str]:
        kept = [key for key in self._values if key not in self._changes]
        return iter([*kept, *(key for key, value in self._changes.items() if value is not None)])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"KeyedState({len(self)} keys)"


class Outputs:
    """The messages of one call for the sink: all of them are stored, or none. Created by Processor for its handler."""

    def __init__(self, call: HandlerCall) -> None:
        self._call = call

    def __len__(self) -> int:
        return len(self._call.outputs)

    def add(self, subject: str, payload: Payload = b"", *, headers: HeadersLike | None = None) -> None:
        """Add a message, which is stored in the sink when the handler has returned, with the position of the source.

        InvalidSubject, InvalidHeader, PayloadTooLarge; ConfigError for a subject that is not one of the sink's, and for
        headers that begin with ``Nats-``, as those of a received message may; LocalProtocolError after the handler has
        returned, and for more than 999 outputs and changed keys of a message.

        Args:
            subject: The subject to publish to, one of the sink's.
            payload: The content as bytes, bytearray or memoryview, up to the server's ``max_payload`` together with the
                headers.
            headers: A mapping of names to values (a str or a list of str), pairs, or Headers; None: no headers.
        """
        given = None if headers is None else Headers(headers)
        for name in given or ():
            if name.lower().startswith("nats-"):  # it may purge the sink, or have the server refuse the whole batch
                raise errors.ConfigError("headers", name, "is for the server: leave out what begins with Nats-")
        self._call.add(subject, payload, given)


class HandlerCall:
    """The outputs and the changed state of one call of the handler."""

    def __init__(self, state: PartitionState, limits: CallLimits) -> None:
        self.state: PartitionState = state
        self._limits = limits
        self.changes: dict[str, bytes | None] = {}
        self.outputs: list[Output] = []
        self.nbytes: int = 0
        """Bytes of the outputs."""
        self._state_bytes = state.nbytes
        self._refusal: errors.NatsError | None = None
        self._is_over = False

    def change(self, key: str, value: bytes | None) -> None:
        """Set or delete a value. See KeyedState."""
        self._check_open()
        limits = self._limits
        if key not in self.changes:
            self._check_room()
            if key not in self.state.values:
                publish_subject(f"state.{key}")
        if value is not None:
            limits.check_size(f"{limits.own}{limits.partition}.state.{key}", len(key) + len(value))
        old = self.changes[key] if key in self.changes else self.state.values.get(key)
        size = self._state_bytes + _size(key, value) - _size(key, old)
        if size > limits.max_state_bytes and value is not None:
            self._refusal = errors.StateTooLarge(limits.processor, limits.partition, size, limits.max_state_bytes)
            raise self._refusal
        self._state_bytes = size
        self.changes[key] = value

    def add(self, subject: str, payload: Payload, headers: HeadersLike | None) -> None:
        """Add an output. See Outputs."""
        self._check_open()
        self._check_room()
        output = self._limits.output(subject, payload, headers)
        self.outputs.append(output)
        self.nbytes += output.size

    def end(self) -> errors.NatsError | None:
        """Allow no further change; return what the handler must not hide."""
        self._is_over = True
        return self._refusal

    def merge(self) -> None:
        """Apply the changes to the state of the partition."""
        for key, value in self.changes.items():
            self.state.apply(key, value)
        self.state.changed.update(self.changes)

    def room_for(self) -> int:
        """Return how many messages of the batch the call needs beside the keys that changed before."""
        return len(self.outputs) + sum(key not in self.state.changed for key in self.changes)

    def _check_open(self) -> None:
        if self._is_over:
            raise errors.LocalProtocolError("the handler has returned: its state and outputs take nothing any more")

    def _check_room(self) -> None:
        if len(self.outputs) + len(self.changes) >= MAX_MESSAGES:
            self._refusal = errors.LocalProtocolError(
                f"a message can have {MAX_MESSAGES} outputs and changed keys at most: an atomic batch holds no more"
            )
            raise self._refusal


def _size(key: str, value: bytes | None) -> int:
    return 0 if value is None else len(key) + len(value)
