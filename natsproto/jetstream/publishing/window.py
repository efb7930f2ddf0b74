"""A window of messages that are not acknowledged yet: each with a future of its own.

Owns what is in flight and the decision what becomes of it: which refusals are tried again, what is sent a second time
over a reconnect and what must not be (the rules are those of ``publish``). It knows the headers of a message only as
bytes (see ``outgoing``).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from math import ceil

from natsproto.core.connection import Connection
from natsproto.core.waiting import Waiters
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
from natsproto.jetstream.bugs import ending, ends_on_bugs
from natsproto.jetstream.info import pub_ack
from natsproto.jetstream.publishing.ackfuture import AckFuture
from natsproto.jetstream.publishing.outgoing import Novelty, has_msg_id
from natsproto.jetstream.publishing.retry import BUSY, RESEND_AFTER, pause_after
from natsproto.jetstream.publishing.tokens import NO_LANE, Lane, Slot, Tokens
from natsproto.protocol.frames import Message

LIFETIME = 16
"""Into how many ticks the timeout of a message is divided; it is exact to one of them."""


class Ages:
    """How many ticks ago a message was taken. Its number tells: to note it with each would cost more."""

    __slots__ = ("_counts", "_resend_at")

    def __init__(self, tick: float) -> None:
        """``tick`` is in seconds."""
        self._counts: deque[int] = deque(maxlen=LIFETIME + 1)
        ages = (ceil(RESEND_AFTER * (2**number - 1) / tick) for number in range(1, 32))
        self._resend_at = frozenset(age for age in ages if age < LIFETIME)

    def tick(self, count: int) -> None:
        """So many messages were taken until now."""
        self._counts.append(count)

    def of(self, number: int) -> int:
        """The ticks since that message; LIFETIME + 1 are as good as any more."""
        return len(self._counts) - bisect_left(self._counts, number)

    def is_silence(self, age: int) -> bool:
        """Whether a message without an answer is sent again at this age: 1, 3, 7, 15 … times RESEND_AFTER."""
        return age in self._resend_at


class Failures:
    """Messages that failed, until somebody is told."""

    __slots__ = ("_untold", "count")

    def __init__(self) -> None:
        self.count = 0
        """All of them so far."""
        self._untold: dict[int, tuple[AckFuture, int]] = {}

    def __len__(self) -> int:
        """Those that nobody was told of."""
        return len(self._untold)

    def add(self, number: int, future: AckFuture, size: int) -> None:
        """``size`` is that of the payload, in bytes."""
        self.count += 1
        self._untold[number] = future, size

    def take(self) -> list[FailedMessage]:
        """In the order of publishing, those whose future nobody has looked at."""
        untold, self._untold = self._untold, {}
        return [
            FailedMessage(number, future.subject, size, error)
            for number, (future, size) in sorted(untold.items())
            if (error := future.unseen()) is not None
        ]


class Window:
    """The messages of a publisher that are not acknowledged yet: an inbox that knows what each reply is for.

    A message is in ``_pending`` under its token from the moment it is taken until it is settled, and so in order. It
    is also in ``_waiting`` while it has yet to be sent, for the first time or again. While anything waits, new messages
    wait behind it, so that their order holds; what waits is sent when there is a connection and no pause.
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
        self._inbox = f"{connection.new_inbox()}."
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
        self.tokens = Tokens(self._inbox, connection.heads, max_pending)
        """Whose ``lane`` is that of the last plain message as long as one more like it can be taken without a thought:
        there is room, the clock runs, and nothing has happened; ``headed`` that of the last one with headers, if only
        there is room.
        """
        self._pending: dict[bytes, Slot] = {}
        self._waiting: dict[bytes, None] = {}
        self._failures = Failures()
        self._up = self._sending = False  # whether there is a connection, and whether new messages go out at once
        self._pause: asyncio.TimerHandle | None = None
        # Time is counted in ticks of one timer: a deadline for each message would cost as much as the message.
        self._tick = timeout / LIFETIME
        self._ages = Ages(self._tick)
        self._clock: asyncio.TimerHandle | None = None
        self._stalled, self._flushing = Waiters(), Waiters()
        self._coming = 0  # messages that are taken as soon as there is room
        self._end: NatsError | None = LocalProtocolError(
            "a publisher publishes inside its block: async with js.publisher() as pub"
        )
        self._bug: NatsError | None = None

    def open(self) -> None:
        """Takes messages from now on. ConnectionClosed when the client is."""
        self._loop = asyncio.get_running_loop()
        self._up = self._sending = self._connection.is_connected
        self._connection.open_inbox(self)
        self._end = None

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
        return self.count - len(self._pending) - self._failures.count

    # ------------------------------------------------------------ taking messages

    async def room(self) -> None:
        """Waits until the window takes another message. Cancelling takes nothing.

        PublishFailed when as many messages as the window holds have failed and nobody has looked at their futures.
        """
        self._coming += 1
        try:
            if self._outbox.wait_first:
                await self._outbox.turn()
            while self.full and self._end is None:
                if len(self._failures) >= self._max:
                    self.report()
                else:
                    await self._stalled.wait()
        finally:
            self._coming -= 1

    async def flush(self) -> None:
        """Waits until every message taken so far is settled. Cancelling changes nothing."""
        last = self.count
        while self._pending and next(iter(self._pending.values())).number <= last:
            await self._flushing.wait()

    def report(self) -> None:
        """Raises PublishFailed for the failures that nobody has seen, once; then the bug that has ended it."""
        failures = self._failures.take()
        self._make_room()
        if failures:
            raise PublishFailed(failures) from failures[0].error
        if self._bug is not None:
            raise self._bug.with_traceback(None)

    def close(self) -> None:
        """Takes and waits for nothing more."""
        self._finish(LocalProtocolError("the publisher has ended: its block was left"), "the publisher was given up")
        self._connection.close_inbox(self)

    def demand(self, future: AckFuture, new: Novelty) -> None:
        """The message that was taken last is not to be sent again, or later, to a server that would store it without
        heeding this.
        """
        slot = future.outcome
        assert isinstance(slot, Slot)
        slot.new = new

    def lane_of(self, subject: str, payload: bytes, block: bytes | None) -> Lane:
        """Where such a message is to be taken, when there is room.

        Raises what ended the publisher, and for what cannot be sent.
        """
        if self._end is not None:
            raise self._end.with_traceback(None)
        lane = self.tokens.lane_of(subject, len(payload), 0 if block is None else len(block))
        if self._clock is None:
            self._clock = self._loop.call_later(self._tick, self._on_tick)
        if block is None:
            self.tokens.lane = lane
        else:
            self.tokens.headed = lane
        return lane

    def take(self, lane: Lane, payload: bytes, block: bytes | None = None) -> AckFuture:
        """Takes a message of the lane that is asked for now, sends it if that is possible, and returns its future."""
        if block is None and lane.spare:
            slot = lane.spare.popleft()
            slot.floor = lane.last
        else:
            slot = self.tokens.new_slot(lane, block)
        token = slot.token
        if self._sending:
            self._outbox.put(slot.line, payload)
        else:
            self._waiting[token] = None
        slot.payload = payload
        slot.future = future = AckFuture()
        future.subject = lane.subject
        future.outcome = slot
        self.count = slot.number = self.count + 1
        self._pending[token] = slot
        self.octets = octets = self.octets + lane.octets
        if octets >= self._max_octets or len(self._pending) >= self._max:
            self.full = True
            self.tokens.lane = NO_LANE
        return future

    # ------------------------------------------------------------ what the engine reports

    def answer(self, token: bytes, payload: bytes) -> None:
        """A reply came that is nothing but a payload: nearly always an acknowledgement, read when somebody looks."""
        slot = self._pending.get(token)
        if slot is None:
            self.tokens.hear_stray(token)
            return
        lane = slot.lane
        if not (lane.last < payload < lane.roof and len(payload) == lane.length):
            self._judge(token, slot, payload)
            return
        # As _settle(), without the call.
        del self._pending[token]
        lane.last = payload
        lane.spare.append(slot)
        self.octets -= lane.octets
        slot.future.outcome = payload
        slot.payload = b""
        if slot.waiters is not None:  # nobody waits for most of them
            slot.wake()
        if self._waiting:
            self._waiting.pop(token, None)

    @ends_on_bugs
    def deliver(self, message: Message) -> None:
        """Any reply came."""
        token = message.subject[len(self._inbox) :].encode("utf-8", "surrogateescape")
        slot = self._pending.get(token)
        if slot is None:
            self.tokens.hear_stray(token)
        elif message.is_no_responders:
            self._refuse(token, slot, NoStream(slot.lane.subject))
        else:
            self.answer(token, message.data)

    def settled(self) -> None:
        """All replies of one chunk are in."""
        try:
            if not self._pending and not self._coming:
                self.tokens.rest()
            if self.full or self._flushing:
                self._make_room()
        except Exception as exc:
            self.broken(exc)

    @ends_on_bugs
    def lost(self, error: ConnectionLost) -> None:
        """The connection has ended: what has an id is sent again, the rest is reported unless it never left."""
        self._up = self._sending = False
        self.tokens.leave_behind()
        unsent = {self.tokens.token_of(line) for line in self._outbox.withdraw(self.tokens.mark)}
        for token, slot in list(self._pending.items()):
            if token in unsent or token in self._waiting:
                continue
            if has_msg_id(slot.block):
                slot.doubtful = True
            else:
                self._fail(token, slot, PublishUncertain(slot.lane.subject, str(error)))
        self._waiting = dict.fromkeys(self._pending)
        self._make_room()

    @ends_on_bugs
    def restored(self) -> None:
        """There is a connection again, perhaps to a server with other limits."""
        self._up = True
        self.tokens.forget()
        self._check_demands()
        self._send_waiting()

    @ends_on_bugs
    def denied(self, error: PermissionDenied) -> None:
        """The server refuses messages to a subject."""
        for token, slot in list(self._pending.items()):
            if slot.lane.subject == error.subject:
                self._fail(token, slot, error)
        self._make_room()

    @ends_on_bugs
    def ended(self, error: NatsError) -> None:
        """No reply will come any more."""
        self._finish(error, str(error))

    def broken(self, bug: Exception) -> None:
        """Something here has stumbled: there is no saying what it would do next."""
        self._bug = ending("publishing", bug)
        self._finish(self._bug, str(self._bug))

    # ------------------------------------------------------------ what becomes of a message

    @ends_on_bugs
    def _judge(self, token: bytes, slot: Slot, payload: bytes) -> None:
        """Reads a reply that is not simply the next acknowledgement of the stream."""
        try:
            ack = pub_ack(payload, f"publish to {slot.lane.subject!r}")
        except ApiError as exc:
            if exc.err_code in BUSY:
                self._refuse(token, slot, exc)
            else:
                self._fail(token, slot, exc)
        except NatsError as exc:
            self._fail(token, slot, exc)
        else:
            if self.tokens.acknowledges(slot, ack, payload):
                self._settle(token, slot, payload)

    def _settle(self, token: bytes, slot: Slot, outcome: bytes | NatsError) -> None:
        del self._pending[token]
        self._waiting.pop(token, None)
        self.octets -= slot.lane.octets
        slot.future.outcome = outcome
        slot.payload = b""
        slot.wake()

    def _fail(self, token: bytes, slot: Slot, error: NatsError) -> None:
        self.tokens.leave_behind()
        if slot.doubtful and not isinstance(error, PublishUncertain):
            reason = f"it was sent and not answered, and then: {error}"
            error = PublishUncertain(slot.lane.subject, reason)
        self._failures.add(slot.number, slot.future, slot.lane.octets)
        if len(self._failures) >= self._max:
            self.full = True
        self._settle(token, slot, error)

    def _refuse(self, token: bytes, slot: Slot, error: NatsError) -> None:
        """The message was not stored this time, and may be when it comes again."""
        self.tokens.leave_behind()
        times = 1 if slot.refused is None else slot.refused[0] + 1
        slot.refused = times, error
        if not isinstance(error, NoStream):
            pause = pause_after(times - 1, self._retry_wait)
        elif times > self._retry_attempts >= 0 and not self.acknowledged:
            self._fail(token, slot, error)
            return
        else:
            # Once a stream has answered, its silence is an election: that ends, and the message has its timeout.
            pause = self._retry_wait
        self._waiting[token] = None
        self._hold(pause)

    def _check_demands(self) -> None:
        """Refuses what waits and this server would not heed."""
        server = self._connection.server_info
        for token in list(self._waiting):
            slot = self._pending[token]
            if slot.new is not None and (error := slot.new.refusal(server)) is not None:
                self._fail(token, slot, error)
        self._make_room()

    # ------------------------------------------------------------ sending again

    def _hold(self, pause: float) -> None:
        """Sends nothing for so long; a pause in progress is not prolonged."""
        self._sending = False
        if self._pause is None:
            self._pause = self._loop.call_later(pause, self._end_pause)

    @ends_on_bugs
    def _end_pause(self) -> None:
        self._pause = None
        self._send_waiting()

    def _send_waiting(self) -> None:
        """Sends what waits, in order, and goes back to sending new messages at once when nothing is left."""
        if not self._up or self._pause is not None:
            return
        for token in sorted(self._waiting, key=lambda token: self._pending[token].number):
            slot = self._pending[token]
            try:
                # The server may have other limits now.
                self.tokens.lane_of(slot.lane.subject, slot.lane.octets, len(slot.block or b""))
                self._outbox.put(slot.line, slot.payload)
            except OutboxFull:
                self._hold(self._retry_wait / 8)
                return
            except NatsError as exc:  # too big for this server, or the client is closed
                self._fail(token, slot, exc)
            else:
                del self._waiting[token]
        self._sending = True

    # ------------------------------------------------------------ time

    @ends_on_bugs
    def _on_tick(self) -> None:
        """Ends what has waited too long; sends again what has an id and was met with silence."""
        self._clock = None
        self._ages.tick(self.count)
        silent = []
        for token, slot in list(self._pending.items()):
            age = self._ages.of(slot.number)
            if age > LIFETIME:
                self._expire(token, slot)
            elif self._ages.is_silence(age) and self._up and token not in self._waiting and has_msg_id(slot.block):
                slot.doubtful = True
                silent.append(token)
        if silent:
            self.tokens.leave_behind()
            self._waiting |= dict.fromkeys(silent)
            self._send_waiting()
        if self._pending or self._coming:
            self._clock = self._loop.call_later(self._tick, self._on_tick)
        else:
            self.tokens.rest()
        self._make_room()

    def _expire(self, token: bytes, slot: Slot) -> None:
        subject = slot.lane.subject
        if token not in self._waiting:
            self._fail(token, slot, PublishTimeout(subject, self._timeout))
        elif slot.refused is not None:
            self._fail(token, slot, slot.refused[1])
        else:
            unsent = f"publish to {subject!r}, which waited for a connection and was not sent"
            self._fail(token, slot, RequestTimeout(unsent, self._timeout))

    # ------------------------------------------------------------ waiting and ending

    def _make_room(self) -> None:
        """Wakes those who wait."""
        if self.full and self._has_room():
            self.full = False
        if self._stalled and (not self.full or self._end is not None or len(self._failures) >= self._max):
            self._stalled.wake()
            self._outbox.collect()
        self._flushing.wake()

    def _has_room(self) -> bool:
        return len(self._pending) <= self._low and self.octets <= self._low_octets and len(self._failures) < self._max

    def _finish(self, error: NatsError, reason: str) -> None:
        """Ends everything: whatever was sent and not answered may be stored."""
        if self._end is None:
            self._end = error
        self._up = self._sending = False
        for timer in (self._clock, self._pause):
            if timer is not None:
                timer.cancel()
        self._clock = self._pause = None
        for token, slot in list(self._pending.items()):
            fate = error
            if token not in self._waiting or slot.doubtful:
                fate = PublishUncertain(slot.lane.subject, reason)
                fate.__cause__ = error
            self._fail(token, slot, fate)
        self.tokens.leave_behind()
        self._make_room()
