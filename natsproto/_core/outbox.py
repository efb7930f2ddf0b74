"""The outbox: published messages that are not written yet.

Owns whole PUB and HPUB frames in order, and decides when they go to the wire. It survives reconnects: messages that no
wire has taken wait for the next one. Control lines never wait here, because a new connection gets all subscriptions
again.

The first message after an idle moment goes out at once, so nothing waits on a timer and a single publish has left when
the call returns. Later messages of the same turn of the event loop are collected and go out together at its end, or as
soon as 64 KiB have come together, or 192 KiB with large payloads, which are not copied. A caller that is about to put
several messages calls ``cork`` first, so that all are collected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from natsproto import errors
from natsproto._core.cleanups import IN_CLEANUP
from natsproto._core.deadline import Deadline
from natsproto._core.notifier import Notifier, running_loop, wrong_loop_error
from natsproto._core.socket.wire import Wire
from natsproto.protocol.commands import ControlLines
from natsproto.protocol.frames import Payload, as_bytes
from natsproto.protocol.headers import HeadersLike, block_of
from natsproto.protocol.line_limit import SAFE_LINE_LENGTH
from natsproto.protocol.subject import publish_subject

FLUSH_SIZE = 65_536
"""Bytes that are written without waiting for the end of the turn of the event loop."""

LARGE_PAYLOAD = 8192
"""Bytes of a payload from which on messages are collected up to LARGE_FLUSH_SIZE, and not copied into one piece."""

LARGE_FLUSH_SIZE = 196_608
"""As FLUSH_SIZE, for large payloads, of which a turn of the event loop for each would cost a quarter."""

CONGESTED_SIZE = 262_144
"""Waiting bytes above which publish() waits while the wire is busy."""


class CallSoon(Protocol):
    """The part of an event loop that the outbox needs."""

    def call_soon(self, callback: Callable[[], None], /) -> object:
        """Call back in the next turn."""
        ...


class Outbox:
    """Bytes waiting for the server.

    Without a connection at most ``limit`` of them. While a connection is busy, one message more than the larger of
    ``limit`` and CONGESTED_SIZE, so that publishing works with a limit of 0 (keep nothing during an outage).
    """

    __slots__ = (
        "_closed_by",
        "_confirmed",
        "_corked",
        "_fast_limit",
        "_limit",
        "_loop",
        "_notifier",
        "_on_write",
        "_parts",
        "_paused",
        "_running",
        "_unchecked_limit",
        "_wire",
        "bytes_out",
        "confirm_scheduled",
        "frames_out",
        "lines",
        "must_wait",
        "size",
    )  # fmt: skip

    def __init__(
        self,
        limit: int,
        loop: CallSoon,
        on_write: Callable[[], None],
        running: Callable[[], object] = running_loop,
    ) -> None:
        self.lines: ControlLines = ControlLines()
        """The control lines of messages, and their limits."""
        self.size: int = 0
        """Bytes waiting."""
        self.frames_out: int = 0
        """Messages handed to a wire."""
        self.bytes_out: int = 0
        """Bytes handed to a wire."""
        self.must_wait: bool = False
        """True if coroutines must ``await wait_writable()`` before the next put."""
        self.confirm_scheduled: bool = False
        """True while a confirmation is scheduled; otherwise every write calls ``on_write``."""
        self._limit = limit  # negative when the outbox is closed
        self._unchecked_limit = limit  # the same; negative as well when only cleanups may publish
        self._closed_by: Exception | None = None
        self._loop, self._running = loop, running
        self._on_write = on_write
        self._parts: list[bytes] = []
        self._fast_limit = -1  # the size up to which put() takes the fast path: one comparison instead of three
        self._confirmed = 0
        self._wire: Wire | None = None
        self._paused = False
        self._corked = False
        self._notifier = Notifier()

    @property
    def frames(self) -> int:
        """Messages waiting."""
        return len(self._parts) // 3

    @property
    def is_ready(self) -> bool:
        """True if put() would neither be refused nor have to wait. Other threads may ask."""
        return self._wire is not None and not self._paused and not self.must_wait and self._unchecked_limit >= 0

    @property
    def unconfirmed(self) -> int:
        """Messages handed to a wire that no PONG of the server has confirmed."""
        return self.frames_out - self._confirmed

    @property
    def confirmed(self) -> int:
        """How many of ``frames_out`` the server has handled for certain."""
        return self._confirmed

    def confirm(self, frames_out: int) -> None:
        """The server has handled everything up to this count of frames_out."""
        self._confirmed = max(self._confirmed, frames_out)

    def put(self, control: bytes, payload: bytes) -> None:
        """Add one message; ``control`` is its control line and header block.

        OutboxFull when the limit would be exceeded, ConnectionClosed after close(), LocalProtocolError outside of the
        event loop if it is the first message of a turn.
        """
        size = self.size + len(control) + len(payload) + 2
        if size > self._fast_limit:
            self._put_slow(control, payload, size)
        else:
            parts = self._parts
            parts.append(control)
            parts.append(payload)
            parts.append(b"\r\n")
            self.size = size

    def _put_slow(self, control: bytes, payload: bytes, size: int) -> None:
        """Add the first message of a turn, to a full outbox, or one that completes a batch."""
        if size > self._unchecked_limit:
            self._check_room(size)
        if not self._corked and self._running() is not self._loop:
            raise wrong_loop_error()
        self._parts += (control, payload, b"\r\n")
        self.size = size
        if not self._corked:
            self.cork()
            self.flush()
        elif size >= (FLUSH_SIZE if len(payload) < LARGE_PAYLOAD else LARGE_FLUSH_SIZE):
            # A caller that never suspends would keep the loop from reading: it must yield once per write.
            self.must_wait = True
            self.flush()

    def put_reply(self, reply: bytes, ending: bytes) -> None:
        """Add a message to a reply subject as received, without validating it: for acknowledgements.

        ``ending`` is the end of the control line and the payload.
        """
        if 10 in reply or 13 in reply:  # integers: searching for bytes takes eight times as long
            raise errors.LocalProtocolError(
                f"cannot respond: the reply subject {reply!r} contains a line end, so the message is forged"
            )
        if len(reply) > SAFE_LINE_LENGTH // 2:
            subject = reply.decode("utf-8", "surrogateescape")
            self.lines.line_limit.check(len(reply) + ending.index(b"\r"), subject)
        self.put(b"PUB ", reply + ending)

    def put_encoded(self, subject: bytes, reply: bytes, payload: bytes) -> None:
        """Add a message with valid subjects as they are sent, for pulls. Their spans are those of the reading."""
        lines, size = self.lines, len(payload)
        if size > lines.max_payload or len(subject) + len(reply) > SAFE_LINE_LENGTH // 2:
            lines.message_line(subject, reply, None, size)  # raises if it is too long
        self.put(b"PUB %b %b %d\r\n" % (subject, reply, size), payload)

    def put_message(
        self, subject: str, payload: Payload, reply: str | None = None, headers: HeadersLike | None = None
    ) -> None:
        """Add any message; the caller reports it to the instrumentation. Raises the errors of ``publish_nowait``."""
        if type(payload) is not bytes:
            payload = as_bytes(payload)
        lines = self.lines
        if reply is None and headers is None:
            self.put(lines.pub_line(subject, len(payload)), payload)
            return
        wire_reply = None if reply is None else publish_subject(reply, "reply subject")
        block = None if headers is None else block_of(headers)
        self.put(lines.message_line(lines.encode_subject(subject), wire_reply, block, len(payload)), payload)

    def cork(self) -> None:
        """Collect further messages, and send them together at the end of this turn of the event loop."""
        if not self._corked and self._limit >= 0:
            self._corked = True
            self._fast_limit = min(self._unchecked_limit, FLUSH_SIZE - 1)
            self._loop.call_soon(self._end_of_turn)

    async def yield_if_needed(self, deadline: Deadline | None = None, operation: str = "publish") -> None:
        """Wait for room while the connection is congested: for coroutines, before a method that never waits.

        At the ``deadline`` RequestTimeout, which names the ``operation``; without one there is no limit.
        """
        if self.must_wait:
            await self.wait_writable(deadline, operation)

    async def wait_writable(self, deadline: Deadline | None = None, operation: str = "publish") -> None:
        """Let the event loop run, and wait for room while the wire is congested, until the ``deadline``: then
        RequestTimeout, which names the ``operation``.

        Returns when there is room, the connection is lost, or the outbox refuses the message. Cancelling leaves the
        outbox as it is.
        """
        # The flag stays set meanwhile, so that every other publisher waits as well.
        await asyncio.sleep(0)
        while self._paused and self.size >= CONGESTED_SIZE and not self._is_refused():
            if deadline is None:
                await self._notifier.wait()
            elif deadline.is_over:
                raise deadline.unsent(operation)
            else:
                await self._notifier.wait(deadline.at)
        self.must_wait = False
        self.cork()  # the publisher is about to continue

    async def wait_flushed(self) -> None:
        """Wait until everything put so far was written to the wire or taken back, or the wire has ended.

        Messages that others put meanwhile are not waited for: they may never stop.
        """
        self.flush()
        last = self.frames_out + self.frames
        while self._wire is not None and self._parts and self.frames_out < last:
            await self._notifier.wait()

    def flush(self) -> None:
        """Hand everything to the wire, if there is one and it accepts data."""
        wire = self._wire
        if wire is None or self._paused or not self._parts:
            return
        if self.size > CONGESTED_SIZE:
            self._flush_in_chunks(wire)
            return
        frames, size = len(self._parts) // 3, self.size
        self.frames_out += frames
        self.bytes_out += size
        self.size = 0
        if size > frames * LARGE_PAYLOAD:
            parts, self._parts = self._parts, []
            wire.writelines(parts, size)
        else:
            data = b"".join(self._parts)
            self._parts.clear()
            wire.write(data)
        if not self.confirm_scheduled:
            self._on_write()

    def _flush_in_chunks(self, wire: Wire) -> None:
        """As flush(), for messages that were collected during an outage or while the wire was busy.

        In one piece, everything that the kernel does not accept would wait in the transport and die with it.
        """
        parts, taken = self._parts, 0
        while taken < len(parts) and not self._paused:
            begin, size = taken, 0
            while taken < len(parts) and size < FLUSH_SIZE:
                size += len(parts[taken]) + len(parts[taken + 1]) + 2
                taken += 3
            frames = (taken - begin) // 3
            self.frames_out += frames
            self.bytes_out += size
            self.size -= size
            if size > frames * LARGE_PAYLOAD:
                wire.writelines(parts[begin:taken], size)
            else:
                wire.write(b"".join(parts[begin:taken]))
        del parts[:taken]
        if not self.confirm_scheduled:
            self._on_write()

    def waiting(self, mark: bytes) -> list[bytes]:
        """Return the control lines and headers of the waiting messages that have ``mark`` in them, in order."""
        return [control for control in self._parts[::3] if mark in control]

    def take_back(self, mark: bytes, is_wanted: Callable[[bytes], bool] = bool) -> list[bytes]:
        """Remove the waiting messages that have ``mark`` in their control line or headers, and for which ``is_wanted``
        returns True; return those in order.
        """
        parts = self._parts
        kept: list[bytes] = []
        taken: list[bytes] = []
        for index in range(0, len(parts), 3):
            control = parts[index]
            if mark in control and is_wanted(control):
                taken.append(control)
            else:
                kept += parts[index : index + 3]
        if taken:
            parts[:] = kept
            self.size = sum(map(len, kept))
        return taken

    def take_back_larger(self, limit: int) -> list[tuple[bytes, int]]:
        """Remove the waiting messages with more than ``limit`` bytes of headers and payload.

        Returns their control lines without line ends, and those bytes.
        """
        parts = self._parts
        found: list[tuple[bytes, int]] = []
        kept: list[bytes] = []
        for index in range(0, len(parts), 3):
            size = 0
            if len(parts[index]) + len(parts[index + 1]) > limit:
                message = parts[index] + parts[index + 1]  # of an acknowledgement the first part is only PUB
                line = message.partition(b"\r\n")[0]
                size = int(line.rpartition(b" ")[2])
            if size > limit:
                found.append((line, size))
            else:
                kept += parts[index : index + 3]
        if found:
            parts[:] = kept
            self.size = sum(map(len, kept))
        return found

    def attach(self, wire: Wire, *, paused: bool) -> None:
        """Write to this wire from now on, at once unless it is paused."""
        self._wire, self._paused = wire, paused
        self._confirmed = self.frames_out
        self.flush()
        self._notifier.wake()

    def detach(self) -> None:
        """The wire has ended; waiting messages are kept."""
        self._wire, self._paused = None, False
        self._notifier.wake()

    def pause(self) -> None:
        """The wire accepts no data for now."""
        self._paused = True

    def resume(self) -> None:
        """The wire has sent everything."""
        self._paused = False
        self.flush()
        self._notifier.wake()

    def accept_only_cleanups(self) -> None:
        """Refuse further messages, except those of cleanups, for which the limits stay."""
        self._unchecked_limit = self._fast_limit = -1
        self._notifier.wake()

    def close(self, reason: Exception | None = None) -> None:
        """Refuse further messages: put raises ConnectionClosed."""
        self._limit = self._unchecked_limit = self._fast_limit = -1
        self._closed_by = reason
        self._notifier.wake()

    def _end_of_turn(self) -> None:
        self._corked = False
        self._fast_limit = -1
        self.flush()
        if self._paused and self.size >= CONGESTED_SIZE:
            self.must_wait = True

    def check_open(self, operation: str) -> None:
        """Raise ConnectionClosed if messages of this task are refused, LocalProtocolError outside of the loop."""
        if self._is_refused():
            raise self.closed_error(operation)
        if self._running() is not self._loop:
            raise wrong_loop_error()

    def closed_error(self, operation: str) -> errors.ConnectionClosed:
        """Return the error of calls after close(), with the reason of that."""
        return errors.ConnectionClosed(operation, self._closed_by)

    def _is_refused(self) -> bool:
        """True if messages of the current task are refused, whatever their size."""
        return self._unchecked_limit < 0 and (self._limit < 0 or not IN_CLEANUP.get())

    def _check_room(self, size: int) -> None:
        """Check the limits of put() for ``size`` bytes in all: a wire that accepts data makes room for any message."""
        self.check_open("publish")
        if size > self._limit and (
            self._wire is None or (self._paused and self.size >= max(self._limit, CONGESTED_SIZE))
        ):
            raise errors.OutboxFull(self.size, size - self.size, self._limit)
