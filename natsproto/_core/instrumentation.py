"""The seam for tracing and measuring.

An instrumented client has an Instrumentation, which the paths of sending, receiving and settling call. Without one, a
path costs one test. This module knows nothing of spans.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from time import time_ns
from types import TracebackType
from typing import Final, Literal, NamedTuple, Protocol, Self, TypeAlias, TypeVar, cast

from natsproto.protocol.frames import Message, Payload
from natsproto.protocol.headers import HeadersLike

T = TypeVar("T")

SendOperation: TypeAlias = Literal["send", "request", "publish"]
"""A message to subscribers, a request, or a message to a stream."""


class Sending:
    """A message, a batch or an acknowledgement that is being sent. This base class reports nothing.

    ``end`` it with its outcome, now or later, or use it with ``with``, whose end ends it with the block's exception.
    Only the first end counts.
    """

    __slots__ = ("headers",)

    def __init__(self, headers: HeadersLike | None = None) -> None:
        self.headers: HeadersLike | None = headers
        """The headers to send, with the context of the trace."""

    def end(self, outcome: object = None) -> None:
        """The outcome is known: an acknowledgement, an exception, or None for a message without acknowledgement."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(exc)


class BatchReports:
    """Reports the messages that are acknowledged together. This base class reports nothing."""

    def adding(self, subject: str, payload: Payload, headers: HeadersLike | None) -> Sending:
        """A message is being added. It belongs to the batch if this ends without an exception."""
        return Sending(headers)

    def sending(self) -> Sending:
        """The outcome of the messages that were added since the last call is awaited."""
        return Sending()


UNREPORTED: Final = BatchReports()
"""The reports of a client without instrumentation."""


class ReaderInfo(NamedTuple):
    """The subject and the queue group of a reader's subscription, or its stream and its consumer."""

    name: str
    group: str | None
    is_stream: bool = False


class Instrumentation(Protocol):
    """The callbacks of an instrumented client. They raise InvalidHeader for invalid headers and nothing else."""

    def sending(self, operation: SendOperation, subject: str, payload: Payload, headers: HeadersLike | None) -> Sending:
        """A message is being sent."""
        ...

    def batch(self) -> BatchReports:
        """A batch is being published."""
        ...

    def responding(self, headers: HeadersLike | None) -> HeadersLike | None:
        """Return the headers of a response, with the context of the trace."""
        ...

    def settling(self, message: Message, words: bytes) -> Sending:
        """A message from a stream is being acknowledged with these words (``+ACK``)."""
        ...

    def of_subscription(self, subject: str) -> Instrumentation | None:
        """Return the instrumentation of a subscription to this subject; None to report nothing that it reads."""
        ...

    def received(
        self,
        messages: Sequence[Message],
        asked_at: int,
        reader: ReaderInfo,
        *,
        batch: bool,
        error: BaseException | None = None,
    ) -> None:
        """A reader that asked at this time (nanoseconds since the epoch) gets one message or, with ``batch``, a list.

        A fetch reports an empty list as well, and its ``error``.
        """
        ...


class ReportedIterator(AsyncIterator[T]):
    """Iterates over messages or batches of a reader, and reports each to an instrumentation."""

    def __init__(
        self, source: AsyncIterator[T], instrumentation: Instrumentation, reader: Callable[[], ReaderInfo]
    ) -> None:
        self._source, self._instrumentation, self._reader = source, instrumentation, reader

    async def __anext__(self) -> T:
        asked_at = time_ns()
        item = await anext(self._source)
        is_batch = isinstance(item, list)
        messages = cast("list[Message]", item if is_batch else [item])
        self._instrumentation.received(messages, asked_at, self._reader(), batch=is_batch)
        return item

    async def aclose(self) -> None:
        """Close the source, for contextlib.aclosing()."""
        await cast("AsyncGenerator[T]", self._source).aclose()
