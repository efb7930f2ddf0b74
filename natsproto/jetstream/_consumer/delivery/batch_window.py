"""The window in which a batch is collected: until it is full, or its oldest message has waited long enough.

Owns the wait of the readers that share a window. ``consume_batches`` and ``batches`` of Messages collect with it.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final

from natsproto import errors
from natsproto._core.notifier import release
from natsproto._durations import seconds
from natsproto.jetstream._consumer.delivery.buffer import Buffer
from natsproto.jetstream._consumer.message import JsMessage

MAX_BATCH_MESSAGES: Final = 65_536
"""The most messages of a batch."""
MAX_WAIT_PART: Final = 0.1
"""A part of ack_wait; messages that wait longer would have to be kept alive."""


def check_window(max_messages: int, max_wait: object, ack_wait: float | None) -> float:
    """Return the seconds of ``max_wait``. ConfigError for invalid arguments, and for messages that would wait too long
    for this ``ack_wait`` (None: unknown, or there is none).
    """
    wait = seconds("max_wait", max_wait)
    if type(max_messages) is not int or not 1 <= max_messages <= MAX_BATCH_MESSAGES:
        raise errors.ConfigError("max_messages", max_messages, f"must be from 1 to {MAX_BATCH_MESSAGES:,}")
    if ack_wait is not None and wait >= MAX_WAIT_PART * ack_wait:
        rule = f"must be less than {MAX_WAIT_PART:g} of the consumer's ack_wait of {ack_wait:g} s"
        raise errors.ConfigError("max_wait", wait, rule)
    return wait


class BatchWindow:
    """Collects up to ``max_messages`` messages of a buffer, or those that arrive until one has waited for ``max_wait``
    seconds. Readers that share it collect one after the other.
    """

    def __init__(self, buffer: Buffer, max_messages: int, max_wait: float) -> None:
        self.max_messages: int = max_messages
        self._buffer, self._max_wait = buffer, max_wait
        self._collecting = asyncio.Lock()

    async def collect(self) -> list[JsMessage]:
        """Return the next batch; an empty one when no message waits, or none may be handled before the next change. At
        the end of reading it does not wait. Cancelling loses nothing.
        """
        buffer, loop = self._buffer, asyncio.get_running_loop()
        async with self._collecting:
            while buffer.ready and len(buffer.ready) < buffer.fair_size(self.max_messages) and not buffer.is_finished:
                left = buffer.arrivals.since + self._max_wait - monotonic()
                if left <= 0:
                    break
                waiter = buffer.next_change()
                timer = loop.call_later(left, release, waiter)
                try:
                    await waiter
                finally:
                    timer.cancel()
            return buffer.take_batch(buffer.fair_size(self.max_messages))
