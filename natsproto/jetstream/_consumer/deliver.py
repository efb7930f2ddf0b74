"""Deliveries: taking in what a consumer pushes to a subject (ADR-9, ADR-15).

Owns the subscription on the deliver subject, the flow control requests that wait for their turn and the alarm for
heartbeats that do not come. It makes no consumer and deletes none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, cast

from natsproto._core.connection import Connection
from natsproto._core.events import Disconnected, Event, Moved, Reconnected
from natsproto._core.subscription import Subscription
from natsproto.errors import HeartbeatMissed, NatsError
from natsproto.jetstream._bugs import ending
from natsproto.jetstream._consumer.reader import PARTING, ConsumerNotice, Guard, Outlet
from natsproto.jetstream._message import JsMessage, consumer_seq, none_has_headers

HEARTBEATS_MISSED: Final = 3
"""Heartbeats that may be late before it is an alarm: more than for pulls, as nothing else tells of the end (ADR-15)."""
PIECE: Final = 64


class Deliveries:
    """What is pushed to ``subject`` (of a queue group, if any). It is a Feed.

    The server stops when too much is on its way (flow control) until it is answered, and that is done only when
    everything in front of its question was taken: so a slow reader slows the server down instead of being flooded.
    ``heartbeat`` in seconds (0: the consumer sends none); when three are missed the guard is told, or else ``alarm`` is
    called, which returns why nothing more will come, if so. ``stash`` holds what was left unread before; ``total``
    ends it after so many messages. ``check``, if given, is waited for before it subscribes (False) and afterwards
    (True), when it is established.
    """

    counts_bytes = False
    piece = PIECE

    def __init__(
        self,
        connection: Connection,
        subject: str,
        *,
        stream: str,
        consumer: str,
        queue: str = "",
        heartbeat: float = 0.0,
        ack_wait: float | None = None,
        guard: Guard | None = None,
        alarm: Callable[[], Awaitable[NatsError | None]] | None = None,
        unread: int = 0,
        stash: deque[JsMessage] | None = None,
        total: int = 0,
        check: Callable[[bool], Awaitable[None]] | None = None,
    ) -> None:
        self._connection = connection
        self._subject, self._queue = subject, queue
        self._stream, self._consumer = stream, consumer
        self._patience = HEARTBEATS_MISSED * heartbeat
        self._ack_wait, self._guard, self._alarm, self._check = ack_wait, guard, alarm, check
        self._loop = asyncio.get_running_loop()
        self._outlet: Outlet | None = None
        self._subscription: Subscription | None = None
        self._unlisten: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._alarm_task: asyncio.Task[None] | None = None
        self._heard_at = 0.0
        self._connected = True
        self._stash, self._total = stash, total
        self._came, self._taken = unread, 0  # messages of another consumer may have to be read first
        self._questions: deque[tuple[int, str]] = deque()  # (how many came before it, where the answer goes)
        self._reconnected = False  # and no message has come since
        self._stalled = ""  # the last question that a heartbeat repeated

    # ---------------------------------------------------------------- as a feed

    def start(self, outlet: Outlet) -> None:
        """Subscribes, unless that is to be checked first."""
        self._outlet = outlet
        if self._check is None:
            self._subscribe()

    def _subscribe(self) -> None:
        """Flow control bounds what waits; without it nothing does, and nothing may be dropped."""
        connection = self._connection
        self._connected = connection.is_connected
        self._subscription = connection.subscribe(
            self._subject,
            queue=self._queue or None,
            pending_msgs_limit=0,
            pending_bytes_limit=0,
            message_type=JsMessage,
            message_note=self._ack_wait,
        )
        self._subscription.on_change = self._changed
        self._unlisten = connection.listen(self._on_event)
        self._heard_at = self._loop.time()
        self._arm()
        if self._stash:
            ready = list(self._stash)
            self._stash.clear()
            self._take_in(ready)

    async def established(self) -> None:
        """Subscribes after the check. What is stored waits in the stream until somebody is interested. Raises what the
        check raises.
        """
        if self._check is not None:
            await self._check(False)
            if self._outlet is not None:
                self._subscribe()
                await self._check(True)

    def taken(self, count: int, size: int) -> None:
        """So many were read: questions behind them are answered now."""
        self._taken += count
        questions = self._questions
        while questions and questions[0][0] <= self._taken:
            self._answer(questions.popleft()[1])

    async def finish(self) -> None:
        """Ends the interest and takes in what is on its way."""
        subscription = self._subscription
        self._rest()
        try:
            if subscription is not None and not subscription.closed and self._connection.is_connected:
                await subscription.drain(PARTING)
        except NatsError:
            return  # the server did not confirm: what it still sends is delivered again, if it is to be answered
        finally:
            self.close()

    def close(self) -> None:
        """Ends the interest at once."""
        self._outlet = None
        self._rest()
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.on_change = None
            self._connection.unsubscribe_nowait(subscription)

    # ---------------------------------------------------------------- what comes

    def _changed(self) -> None:
        subscription = self._subscription
        if subscription is None:
            return
        try:
            came = cast("list[JsMessage]", subscription.take_nowait())
            if came:
                self._heard_at = self._loop.time()
                if none_has_headers(came):
                    self._take_in(came)
                else:
                    self._sort(came)
            if subscription.closed:
                outlet, error = self._outlet, subscription.error
                self.close()
                if outlet is not None:
                    outlet.end(error)
        except Exception as exc:
            self._fail(exc)

    def _sort(self, came: list[JsMessage]) -> None:
        messages: list[JsMessage] = []
        for message in came:
            if not message.is_status:
                messages.append(message)
                continue
            if messages:
                self._take_in(messages)
                messages = []
            self._on_status(message)
        if messages:
            self._take_in(messages)

    def _take_in(self, messages: list[JsMessage]) -> None:
        outlet, guard = self._outlet, self._guard
        if outlet is None:
            return
        if self._reconnected and (first := consumer_seq(messages[0])):
            # What a restarted server does not know of it repeats with the same sequences.
            self._reconnected = False
            self._came -= len(outlet.drop_unknown(first - 1))
        if guard is not None:
            expected = guard.accept(messages)
            messages = messages if expected == len(messages) else messages[:expected]
        room = self._total - self._came
        if self._total and len(messages) >= room:
            left, messages = messages[room:], messages[:room]
            if left and self._stash is not None:
                self._stash += left
            outlet.put(messages)
            self.close()
            outlet.end(None)
            return
        self._came += len(messages)
        outlet.put(messages)

    def _on_status(self, message: JsMessage) -> None:
        """A flow control request has a reply subject, a heartbeat has none. Nothing else comes to push consumers."""
        headers = message.headers
        if headers.status != 100:
            return
        if message.reply is not None:
            self._ask(message.reply)
            return
        stalled = headers.last("Nats-Consumer-Stalled")
        if stalled and stalled != self._stalled:  # the question itself was lost, or the answer
            self._stalled = stalled
            self._ask(stalled)
        last = headers.last("Nats-Last-Consumer")
        if self._guard is not None and last.isdecimal():
            self._guard.heard(int(last))

    def _ask(self, question: str) -> None:
        if self._came <= self._taken:
            self._answer(question)
        else:
            self._questions.append((self._came, question))

    def _answer(self, question: str) -> None:
        try:
            self._connection.publish_nowait(question)
        except NatsError:
            return  # no room or no connection: the next heartbeat asks again

    # ---------------------------------------------------------------- what does not come

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Disconnected):
            self._connected = False
            self._questions.clear()
        elif isinstance(event, (Reconnected, Moved)):
            self._connected = True
            self._reconnected = self._guard is None
            self._heard_at = self._loop.time()
            self._arm()

    def _arm(self) -> None:
        if self._timer is None and self._patience and self._connected and self._outlet is not None:
            self._timer = self._loop.call_at(self._heard_at + self._patience, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._connected and self._loop.time() >= self._heard_at + self._patience - 0.002:
            self._heard_at = self._loop.time()
            missed = HeartbeatMissed(self._patience, self._consumer)
            if self._guard is not None:
                try:
                    self._guard.lost(missed)
                except Exception as exc:
                    self._fail(exc)
            else:
                self._announce(missed)
                if self._alarm is not None and self._alarm_task is None:
                    self._alarm_task = self._loop.create_task(self._look_up(self._alarm), name="natsproto look-up")
        self._arm()

    async def _look_up(self, alarm: Callable[[], Awaitable[NatsError | None]]) -> None:
        try:
            error = await alarm()
        except Exception as exc:
            error = ending(f"reading {self._what}", exc)
        self._alarm_task = None
        if error is not None:
            self._end(error)

    def _fail(self, bug: Exception) -> None:
        """A bug ends whoever reads, not the connection, over which others do."""
        error = ending(f"reading {self._what}", bug)
        self._end(error)
        if self._guard is not None:
            self._guard.broken(error)  # it may have given this one up just before

    def _end(self, error: NatsError) -> None:
        outlet = self._outlet
        if outlet is not None:
            self.close()
            if self._guard is None:
                self._announce(error)
            outlet.end(error)

    @property
    def _what(self) -> str:
        return f"consumer {self._consumer!r} of stream {self._stream!r}"

    def _announce(self, error: NatsError) -> None:
        self._connection.announce(ConsumerNotice(stream=self._stream, consumer=self._consumer, error=error))

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._alarm_task is not None:
            self._alarm_task.cancel()
            self._alarm_task = None
