"""The seam for tracing and measuring.

An instrumented client has an Instrumentation, which the paths of sending, receiving and settling call. Without one, a
path costs one ``is None`` test. This module knows nothing of spans.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from time import time_ns
from typing import NamedTuple, Protocol, TypeVar, cast

from natsproto.protocol.frames import Message

T = TypeVar("T")


class ReaderInfo(NamedTuple):
    """The subject and the queue group of a reader's subscription, or its stream and its consumer."""

    name: str
    group: str | None
    is_stream: bool = False


class Instrumentation(Protocol):
    """The callbacks of an instrumented client. They must not raise."""

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
