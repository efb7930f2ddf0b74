"""A window of messages that are not acknowledged yet: each with a future of its own.

Owns what is in flight and the decision what becomes of it: which refusals are tried again, what is sent a second time
over a reconnect and what must not be (the rules are those of ``publish``). It knows the headers of a message only as
bytes (see ``outgoing``).
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections import deque
from collections.abc import Callable, Generator
from math import ceil
from typing import Final, TypeAlias

from natsproto.core.connection import Connection
from natsproto.errors import (
    ApiError,
    ConnectionLost,
    FailedMessage,
    LocalProtocolError,
    NatsError,
    NoStream,
    OutboxFull,
    PermissionDenied,
    PublishFailed,
    PublishTimeout,
    PublishUncertain,
    RequestTimeout,
)
from natsproto.jetstream.info import PubAck, pub_ack
from natsproto.jetstream.outgoing import (
    has_msg_id,
)
from natsproto.jetstream.retry import BUSY, RESEND_AFTER, pause_after
from natsproto.jetstream.waiting import release
from natsproto.protocol.frames import Message
from natsproto.protocol.subject import publish_subject

LIFETIME = 16
"""Into how many ticks the timeout of a message is divided; it is exact to one of them."""

Slot: TypeAlias = tuple[bytes, bytes, int]
"""A reply token, the control line of a message with it, and the number of the first message that had it."""

_NO_SLOT: Final[Slot] = (b"", b"", 0)
_PLAIN = re.compile(rb'(\{"stream":"[^"\\]+", ?(?:"domain":"[^"\\]+", ?)?"seq": ?)[1-9][0-9]{0,19}\}')
_blank: Final = object.__new__


class Lane:
    """Messages of one subject, one size of the payload and one of the header block.

    They share all of the control line but the reply token; and those without headers the tokens, one after another.
    """

    __slots__ = ("back", "front", "last", "length", "octets", "roof", "spare")

    def __init__(self, front: bytes, back: bytes, octets: int) -> None:
        self.front, self.back = front, back
        """The control line before and behind the token."""
        self.octets = octets
        self.spare: deque[Slot] = deque()
        """Slots whose message is acknowledged, the longest unused first."""
        # The acknowledgement of the highest sequence so far. What lies between it and the roof and is as long says
        # that the same stream has stored something behind it.
        self.last = self.roof = b""
        self.length = 0


class AckFuture:
    """The acknowledgement of one message, now or later. ``await`` it for the PubAck, or for the error.

    Any number of tasks may await it, and cancelling one changes nothing for the others. It costs a fifth of an
    asyncio.Future: nobody is called back, and what the server said is read when somebody looks.
    """

    __slots__ = ("_seen", "block", "floor", "lane", "number", "outcome", "payload", "since", "slot", "subject")

    subject: str
    # The rest is the window's, which also makes it. What it needs to send the message again is emptied when it is
    # settled.
    payload: bytes
    block: bytes | None
    lane: Lane
    slot: Slot
    number: int
    since: int
    floor: bytes
    """The last acknowledgement in the lane when this message took over a token; empty if the token is its own."""
    outcome: list[asyncio.Future[None]] | bytes | PubAck | NatsError | None
    """Waiters, if there are any, while it is open; then what the server said, as it came or read; or the error."""

    def done(self) -> bool:
        """Whether it is known what became of the message."""
        return self.outcome is not None and type(self.outcome) is not list

    def result(self) -> PubAck:
        """The acknowledgement. Raises the error if there is one, and asyncio.InvalidStateError before done()."""
        outcome = self.outcome
        if type(outcome) is bytes:
            self.outcome = outcome = pub_ack(outcome, f"publish to {self.subject!r}")
        if type(outcome) is PubAck:
            return outcome
        if isinstance(outcome, NatsError):
            self._seen = True
            raise outcome.with_traceback(None)
        raise asyncio.InvalidStateError(f"message to {self.subject!r} is not acknowledged yet")

    @property
    def duplicate(self) -> bool:
        """Whether the stream had a message of this id already. Cheaper than ``result``; False before done()."""
        outcome = self.outcome
        if type(outcome) is bytes and b'"duplicate"' not in outcome:
            return False  # nearly always
        return self.done() and not isinstance(outcome, NatsError) and self.result().duplicate

    def exception(self) -> NatsError | None:
        """The error, or None for a message that was stored. asyncio.InvalidStateError before done()."""
        try:
            self.result()
        except NatsError as exc:
            return exc
        return None

    def __await__(self) -> Generator[object, None, PubAck]:
        if not self.done():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiters = self._wait_with(waiter)
            try:
                yield from waiter
            finally:
                if waiter in waiters:
                    waiters.remove(waiter)
        return self.result()

    def _wait_with(self, waiter: asyncio.Future[None]) -> list[asyncio.Future[None]]:
        waiters = self.outcome if isinstance(self.outcome, list) else []
        waiters.append(waiter)
        self.outcome = waiters
        return waiters

    def add_done_callback(self, callback: Callable[[AckFuture], object]) -> None:
        """Calls back soon after it is done, in a step of the event loop of its own; what it raises is logged there.

        The error may be looked at there as ``future.outcome``: ``result`` and ``exception`` mark it as seen.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter.add_done_callback(lambda _: callback(self))
        if self.done():
            waiter.set_result(None)
        else:
            self._wait_with(waiter)

    def settle(self, outcome: bytes | NatsError) -> None:
        """What became of the message; for the window."""
        waiters = self.outcome
        self.outcome = outcome
        self.payload = b""
        self.block = None
        self.slot = _NO_SLOT
        if isinstance(waiters, list):
            for waiter in waiters:
                release(waiter)

    def unseen(self) -> NatsError | None:
        """The error, if there is one that nobody has looked at; for the window."""
        outcome = self.outcome
        return outcome if isinstance(outcome, NatsError) and not hasattr(self, "_seen") else None

    def __repr__(self) -> str:
        failed = isinstance(self.outcome, NatsError)
        return f"AckFuture({self.subject!r}, {'failed' if failed else 'acknowledged' if self.done() else 'waiting'})"


class Window:
    """The messages of a publisher that are not acknowledged yet: an inbox that knows what each reply is for.

    A message is in ``_pending`` under its token from the moment it is taken until it is settled, and so in order. It
    is also in ``_waiting`` while it has yet to be sent, for the first time or again. While anything waits, new messages
    wait behind it, so that their order holds; what waits is sent when there is a connection and no pause.

    Tokens. A server remembers for a few hundred subjects who listens to them, so replies cost it a fifth less when
    their subjects come again. A token goes to another message of its lane when its own is acknowledged, and that only
    while everything is plain: a second answer to the first message must never be taken for one to the second.

    * Only messages without headers share tokens. They have no id, so none is ever sent twice, nor is a duplicate.
    * With whatever is unusual (a lost connection, a refusal, a timeout) all tokens so far are left behind, used or not.
      So they are when nothing is pending: the stream may be made anew then, and count from 1 again.
    * What answers a message that took over its token is an acknowledgement of it only if it is of the stream that
      acknowledged the one before, with a higher sequence than any that was known when it was sent.
    * An answer to nothing, or one that breaks that rule, says that messages are answered twice here. Then no token is
      used a second time for the rest of the window's life.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        max_pending: int,
        max_pending_bytes: int,
        timeout: float,
        retry_attempts: int,
        retry_wait: float,
    ) -> None:
        self._connection = connection
        self._outbox = connection.outbox
        self._loop = asyncio.get_running_loop()
        self._inbox = f"{connection.new_inbox()}."
        self._mark = self._inbox.encode()
        self._max, self._max_octets = max_pending, max_pending_bytes
        # A full window takes messages again when half of it is free: while the server works on one half, the other
        # goes out in one write. With a tenth of it the throughput was 10 % less.
        self._low, self._low_octets = max_pending - max(1, max_pending // 2), max_pending_bytes // 2
        self._timeout = timeout
        self._retry_attempts, self._retry_wait = retry_attempts, retry_wait
        self.count = 0
        """Messages taken so far; the number of the last one."""
        self.octets = 0
        """Bytes of payload that are not acknowledged."""
        self.full = False
        """Whether room() has to be awaited before the next message."""
        self._pending: dict[bytes, AckFuture] = {}
        self._waiting: dict[bytes, None] = {}
        self._doubtful: set[bytes] = set()  # sent before and not answered, among those to be sent again
        self._refused: dict[bytes, tuple[int, NatsError]] = {}  # how often, and with which words the last time
        self._failed: dict[int, tuple[AckFuture, int]] = {}  # with the size of the payload; until somebody is told
        self._failures = 0
        self._up = connection.is_connected
        self._sending = self._up  # whether new messages go out at once
        self._pause: asyncio.TimerHandle | None = None
        self._lanes: dict[tuple[str, int, int], Lane] = {}
        self._slots = 0  # made since the lanes were new
        self._left_behind = 0  # tokens of messages up to this number are not used again
        # Time is counted in ticks of one timer: a deadline for each message would cost as much as the message.
        self._tick = timeout / LIFETIME
        self._resend_at = _resend_ages(self._tick)
        self._now = 0
        self._clock: asyncio.TimerHandle | None = None
        self._stalled: list[asyncio.Future[None]] = []
        self._flushing: list[asyncio.Future[None]] = []
        self._end: NatsError | None = None
        connection.open_inbox(self)

    @property
    def subject(self) -> str:
        """What the engine subscribes to."""
        return self._inbox + "*"

    @property
    def pending(self) -> int:
        """Messages that are not acknowledged yet."""
        return len(self._pending)

    @property
    def acknowledged(self) -> int:
        """Messages that a stream has acknowledged."""
        return self.count - len(self._pending) - self._failures

    # ------------------------------------------------------------ taking messages

    async def room(self) -> None:
        """Waits until the window takes another message. Cancelling takes nothing.

        PublishFailed when as many messages as the window holds have failed and nobody has looked at their futures.
        """
        if self._outbox.wait_first:
            await self._outbox.turn()
        while self.full and self._end is None:
            if len(self._failed) >= self._max:
                self.report()
            else:
                await self._wait(self._stalled)

    async def flush(self) -> None:
        """Waits until every message taken so far is settled. Cancelling changes nothing."""
        last = self.count
        while self._pending and next(iter(self._pending.values())).number <= last:
            await self._wait(self._flushing)

    def report(self) -> None:
        """Raises PublishFailed for the failures that nobody has seen, once."""
        failures = [
            FailedMessage(number, future.subject, size, error)
            for number, (future, size) in sorted(self._failed.items())
            if (error := future.unseen()) is not None
        ]
        self._failed.clear()
        self._make_room()
        if failures:
            raise PublishFailed(failures) from failures[0].error

    def close(self) -> None:
        """Takes and waits for nothing more."""
        self._finish(LocalProtocolError("the publisher has ended: its block was left"), "the publisher was given up")
        self._connection.close_inbox(self)

    def take(self, subject: str, payload: bytes, block: bytes | None) -> AckFuture:
        """Takes a message, sends it if that is possible now, and returns its future.

        Raises what ended the publisher, and for what cannot be sent.
        """
        if self._end is not None:
            raise self._end.with_traceback(None)
        number = self.count + 1
        key = (subject, len(payload), 0 if block is None else len(block))
        lane = self._lanes.get(key) or self._open_lane(*key)
        spare = lane.spare
        while spare:
            slot = spare.popleft()
            if slot[2] > self._left_behind:
                floor = lane.last
                break
        else:
            slot, floor = self._new_slot(lane, number), b""
        token, line, _ = slot
        if not self._sending:
            self._waiting[token] = None
        elif block is None:
            self._outbox.put(line, payload)
        else:
            self._outbox.put(line + block, payload)
        future: AckFuture = _blank(AckFuture)  # an __init__ would take as long as all of these
        future.subject = subject
        future.payload = payload
        future.block = block
        future.lane = lane
        future.slot = slot
        future.number = number
        future.since = self._now
        future.floor = floor
        future.outcome = None
        self.count = number
        self._pending[token] = future
        self.octets = octets = self.octets + lane.octets
        if octets >= self._max_octets or len(self._pending) >= self._max:
            self.full = True
        if self._clock is None:
            self._clock = self._loop.call_later(self._tick, self._on_tick)
        return future

    def _open_lane(self, subject: str, octets: int, block: int) -> Lane:
        """What such messages have in common; checked once for all."""
        heads = self._connection.heads
        wire = publish_subject(subject)
        heads.full(wire, self._mark + b"9" * 20, bytes(block) if block else None, octets)
        if len(self._lanes) >= 4096:
            self._lanes.clear()
        if block:
            lane = Lane(b"HPUB %b %b" % (wire, self._mark), b" %d %d\r\n" % (block, block + octets), octets)
        else:
            lane = Lane(b"PUB %b %b" % (wire, self._mark), b" %d\r\n" % octets, octets)
        self._lanes[subject, octets, block] = lane
        return lane

    def _new_slot(self, lane: Lane, number: int) -> Slot:
        """A token that no message had before."""
        self._slots += 1
        if self._slots > 4 * self._max + 16_384:  # or bursts of every size would be remembered for good
            self._lanes.clear()
            self._slots = 0
        token = b"%d" % number
        return token, lane.front + token + lane.back, number

    def _leave_tokens(self) -> None:
        """Something is not as usual: messages that are taken from now on have tokens that none had before."""
        self._left_behind = max(self._left_behind, self.count)
        self._lanes.clear()

    def _distrust(self) -> None:
        """Messages are answered twice: from now on each has a token of its own."""
        self._left_behind = sys.maxsize

    # ------------------------------------------------------------ what the engine reports

    def answer(self, token: bytes, payload: bytes) -> None:
        """A reply came that is nothing but a payload: nearly always an acknowledgement, read when somebody looks."""
        future = self._pending.get(token)
        if future is None:
            self._hear_stray(token)
            return
        lane = future.lane
        if not (lane.last < payload < lane.roof and len(payload) == lane.length):
            self._judge(token, future, payload)
            return
        # As _settle(), without the calls.
        del self._pending[token]
        lane.last = payload
        self.octets -= lane.octets
        if future.block is None:
            lane.spare.append(future.slot)
        else:
            future.block = None
            future.slot = _NO_SLOT
        if future.outcome is None:  # nobody waits for most of them
            future.outcome = payload
            future.payload = b""
        else:
            future.settle(payload)
        if self._waiting:
            self._waiting.pop(token, None)

    def deliver(self, message: Message) -> None:
        """Any reply came."""
        token = message.subject[len(self._inbox) :].encode("utf-8", "surrogateescape")
        future = self._pending.get(token)
        if future is None:
            self._hear_stray(token)
        elif message.is_no_responders:
            self._refuse(token, NoStream(future.subject))
        else:
            self.answer(token, message.data)

    def settled(self) -> None:
        """All replies of one chunk are in."""
        if not self._pending and not self._stalled:
            self._left_behind = max(self._left_behind, self.count)
        if self.full or self._flushing:
            self._make_room()

    def lost(self, error: ConnectionLost) -> None:
        """The connection has ended: what has an id is sent again, the rest is reported unless it never left."""
        self._up = self._sending = False
        self._leave_tokens()
        unsent = {self._token_of(head) for head in self._outbox.withdraw(self._mark)}
        for token, future in list(self._pending.items()):
            if token in unsent or token in self._waiting:
                continue
            if has_msg_id(future.block):
                self._doubtful.add(token)
            else:
                self._fail(token, PublishUncertain(future.subject, str(error)))
        self._waiting = dict.fromkeys(self._pending)
        self._make_room()

    def restored(self) -> None:
        """There is a connection again, perhaps to a server with other limits."""
        self._up = True
        self._lanes.clear()
        self._send_waiting()

    def denied(self, error: PermissionDenied) -> None:
        """The server refuses messages to a subject."""
        for token, future in list(self._pending.items()):
            if future.subject == error.subject:
                self._fail(token, error)
        self._make_room()

    def ended(self, error: NatsError) -> None:
        """No reply will come any more."""
        self._finish(error, str(error))

    # ------------------------------------------------------------ what becomes of a message

    def _judge(self, token: bytes, future: AckFuture, payload: bytes) -> None:
        """Reads a reply that is not simply the next acknowledgement of the stream."""
        try:
            ack = pub_ack(payload, f"publish to {future.subject!r}")
        except ApiError as exc:
            if exc.err_code in BUSY:
                self._refuse(token, exc)
            else:
                self._fail(token, exc)
        except NatsError as exc:
            self._fail(token, exc)
        else:
            if future.floor and not _is_behind(ack, pub_ack(future.floor)):
                self._distrust()  # it answers the message that had the token before
                return
            self._learn(future, payload)
            del self._pending[token]
            self._waiting.pop(token, None)
            self.octets -= len(future.payload)
            future.settle(payload)

    def _learn(self, future: AckFuture, payload: bytes) -> None:
        """What the next acknowledgement of the lane will look like."""
        plain = _PLAIN.fullmatch(payload)
        if plain is None:
            return
        lane, roof = future.lane, plain[1] + b":"  # what comes behind 9
        if lane.roof and lane.roof != roof:
            self._distrust()  # two streams have the subject
        elif len(payload) > lane.length or (len(payload) == lane.length and payload > lane.last):
            lane.last, lane.roof, lane.length = payload, roof, len(payload)
        elif not future.floor:
            self._leave_tokens()  # out of order, or the stream was made anew

    def _hear_stray(self, token: bytes) -> None:
        """A reply came that no message waits for. To one that was settled, as usual, there cannot be any."""
        if token.isdigit() and len(token) <= 20 and int(token) > self._left_behind:
            self._distrust()

    def _refuse(self, token: bytes, error: NatsError) -> None:
        """The message was not stored this time, and may be when it comes again."""
        self._leave_tokens()
        times = self._refused.get(token, (0, error))[0] + 1
        if not isinstance(error, NoStream):
            pause = pause_after(times - 1, self._retry_wait)
        elif times > self._retry_attempts >= 0 and not self.acknowledged:
            self._fail(token, error)
            return
        else:
            # Once a stream has answered, its silence is an election: that ends, and the message has its timeout.
            pause = self._retry_wait
        self._refused[token] = times, error
        self._waiting[token] = None
        self._hold(pause)

    def _fail(self, token: bytes, error: NatsError) -> None:
        self._leave_tokens()
        future = self._pending.pop(token)
        self._waiting.pop(token, None)
        if token in self._doubtful and not isinstance(error, PublishUncertain):
            error = PublishUncertain(future.subject, f"it was sent, the connection was lost, and then: {error}")
        size = len(future.payload)
        self.octets -= size
        self._failures += 1
        self._failed[future.number] = future, size
        if len(self._failed) >= self._max:
            self.full = True
        future.settle(error)

    # ------------------------------------------------------------ sending again

    def _hold(self, pause: float) -> None:
        """Sends nothing for so long; a pause in progress is not prolonged."""
        self._sending = False
        if self._pause is None:
            self._pause = self._loop.call_later(pause, self._end_pause)

    def _end_pause(self) -> None:
        self._pause = None
        self._send_waiting()

    def _send_waiting(self) -> None:
        """Sends what waits, in order, and goes back to sending new messages at once when nothing is left."""
        if not self._up or self._pause is not None:
            return
        for token in sorted(self._waiting, key=lambda token: self._pending[token].number):
            future = self._pending[token]
            block = future.block or b""
            key = (future.subject, len(future.payload), len(block))
            try:
                if key not in self._lanes:
                    self._open_lane(*key)  # the server may have other limits now
                self._outbox.put(future.slot[1] + block, future.payload)
            except OutboxFull:
                self._hold(self._retry_wait / 8)
                return
            except NatsError as exc:  # too big for this server, or the client is closed
                self._fail(token, exc)
            else:
                del self._waiting[token]
        self._sending = True

    def _token_of(self, head: bytes) -> bytes:
        start = head.index(self._mark) + len(self._mark)
        return head[start : head.index(b" ", start)]

    # ------------------------------------------------------------ time

    def _on_tick(self) -> None:
        """Ends what has waited too long; sends again what has an id and was met with silence."""
        self._clock = None
        self._now += 1
        now = self._now
        silent = []
        for token, future in list(self._pending.items()):
            age = now - future.since
            if age > LIFETIME:
                self._expire(token, future)
            elif age in self._resend_at and self._up and token not in self._waiting and has_msg_id(future.block):
                silent.append(token)
        if silent:
            self._leave_tokens()
            self._doubtful.update(silent)
            self._waiting |= dict.fromkeys(silent)
            self._send_waiting()
        pending = self._pending
        self._doubtful.intersection_update(pending)
        self._refused = {token: said for token, said in self._refused.items() if token in pending}
        if pending:
            self._clock = self._loop.call_later(self._tick, self._on_tick)
        self._make_room()

    def _expire(self, token: bytes, future: AckFuture) -> None:
        if token not in self._waiting:
            self._fail(token, PublishTimeout(future.subject, self._timeout))
        elif token in self._refused:
            self._fail(token, self._refused[token][1])
        else:
            unsent = f"publish to {future.subject!r}, which waited for a connection and was not sent"
            self._fail(token, RequestTimeout(unsent, self._timeout))

    # ------------------------------------------------------------ waiting and ending

    def _make_room(self) -> None:
        """Wakes those who wait."""
        if self.full and self._has_room():
            self.full = False
        if self._stalled and (not self.full or self._end is not None or len(self._failed) >= self._max):
            self._wake(self._stalled)
            self._outbox.collect()
        if self._flushing:
            self._wake(self._flushing)

    def _has_room(self) -> bool:
        return len(self._pending) <= self._low and self.octets <= self._low_octets and len(self._failed) < self._max

    def _finish(self, error: NatsError, reason: str) -> None:
        """Ends everything: whatever was sent and not answered may be stored."""
        if self._end is None:
            self._end = error
        self._up = self._sending = False
        for timer in (self._clock, self._pause):
            if timer is not None:
                timer.cancel()
        self._clock = self._pause = None
        for token, future in list(self._pending.items()):
            unsent = token in self._waiting and token not in self._doubtful
            self._fail(token, error if unsent else PublishUncertain(future.subject, reason))
        self._make_room()

    async def _wait(self, queue: list[asyncio.Future[None]]) -> None:
        waiter: asyncio.Future[None] = self._loop.create_future()
        queue.append(waiter)
        try:
            await waiter
        finally:
            if waiter in queue:
                queue.remove(waiter)

    @staticmethod
    def _wake(queue: list[asyncio.Future[None]]) -> None:
        waiters = queue[:]
        queue.clear()
        for waiter in waiters:
            release(waiter)


def _resend_ages(tick: float) -> frozenset[int]:
    """After how many ticks of silence a message is sent again: 1, 3, 7, 15 … times RESEND_AFTER."""
    ages = (ceil(RESEND_AFTER * (2**number - 1) / tick) for number in range(1, 32))
    return frozenset(age for age in ages if age < LIFETIME)


def _is_behind(ack: PubAck, other: PubAck) -> bool:
    """Whether the same stream has stored something new after the other acknowledgement."""
    return (ack.stream, ack.domain) == (other.stream, other.domain) and ack.seq > other.seq and not ack.duplicate
