"""Pulling: the driver of a PullLedger.

Owns the timer of a ledger, and the subscription that its pulls are answered on as long as it reads. Every decision is
the ledger's (ADR-37); what is here carries it out, in the step in which something happens: a chunk that brings
messages sends the next pull itself, so no task has to wake up for that and none runs while a consumer is read.
"""

from __future__ import annotations

import asyncio
from time import monotonic

from natsproto.errors import (
    ConnectionClosed,
    ConsumerGone,
    ConsumerNotFound,
    HeartbeatMissed,
    NatsError,
    OutboxFull,
    PermissionDenied,
    StreamNotFound,
)
from natsproto.jetstream._asking import EARLY
from natsproto.jetstream._bugs import ending
from natsproto.jetstream._consumer.inbox import PullInbox, Replies
from natsproto.jetstream._consumer.ledger import Action, PullLedger, Verdict
from natsproto.jetstream._consumer.pulls import PROBE, PullRequest
from natsproto.jetstream._consumer.reader import ConsumerNotice, Guard, Outlet
from natsproto.jetstream._info import ConsumerInfo
from natsproto.jetstream._message import JsMessage, consumer_seq

LOOK_UP_EVERY = 1.0
"""Seconds between two questions whether a consumer that takes no pulls is still there."""


class Puller:
    """Pulls for one reader as its ledger says. It is a Feed.

    ``lasting`` says that it reads without end. A ``guard`` is asked before messages are
    taken in and told of everything that would otherwise be tried again; it ends the puller then. The first pull
    acknowledges the message ``acking`` as well.
    """

    def __init__(
        self,
        inbox: PullInbox,
        ledger: PullLedger,
        *,
        lasting: bool,
        guard: Guard | None = None,
        acking: JsMessage | None = None,
    ) -> None:
        self.ledger = ledger
        self.reply = ""
        """Where its pulls are answered, up to the number of the pull."""
        self.counts_bytes = ledger.counts_bytes
        self.piece = max(1, min(64, ledger.max_messages // 8))
        self._inbox, self._lasting, self._guard, self._acking = inbox, lasting, guard, acking
        self._loop = asyncio.get_running_loop()
        self._outlet: Outlet | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = 0.0  # not timer.when(): uvloop's handles for what is due already have none
        self._replies: Replies | None = None
        self._look_up_task: asyncio.Task[None] | None = None
        self._looked_up_at = 0.0
        self._may_look_up = True
        self._reconnected = False  # and no message has come since

    @property
    def room(self) -> int:
        """How many messages more are wanted."""
        return self.ledger.room

    @property
    def _what(self) -> str:
        return f"consumer {self._inbox.consumer!r} of stream {self._inbox.stream!r}"

    # ---------------------------------------------------------------- as a feed

    def start(self, outlet: Outlet) -> None:
        """Begins to pull; nothing more is sent until the server is heard of."""
        self._outlet = outlet
        self._replies = self._inbox.join(self)
        self.reply = self._replies.prefix
        if not self._inbox.connection.is_connected:
            self.ledger.on_disconnect()
        if self._lasting and (stashed := self._inbox.take(self.room)):
            self.ledger.on_stashed(len(stashed), sum(m.counted_size for m in stashed) if self.counts_bytes else 0)
            outlet.put(stashed)
        self._go_on(self._loop.time())

    async def established(self) -> None:
        """The consumer was there before: what is stored waits in the stream until it is pulled."""

    def taken(self, count: int, size: int) -> None:
        """There is room again."""
        ledger = self.ledger
        if ledger.ahead is not None:
            ledger.ahead.on_taken(count, monotonic())
        if ledger.on_taken(count, size).action is Action.REFILL and not ledger.done:
            self._go_on(self._loop.time())

    async def finish(self) -> None:
        """Asks for nothing more and takes in what is on its way. When cancelled, that is for the next reader."""
        self.ledger.stop()
        self._rest()
        try:
            if self._replies is not None and (ending := self._inbox.end(self._replies)) is not None:
                await asyncio.shield(ending)
        finally:
            self.close()

    def close(self) -> None:
        """Wants no more: its pulls end on the server. What comes until then is for the next reader."""
        self.ledger.stop()
        self._rest()
        self._outlet = None
        self._leave()

    def stop(self, error: NatsError | None) -> None:
        """It is over: the subscription has ended."""
        self.ledger.stop()
        self._end(error)

    def fail(self, bug: Exception) -> None:
        """It is over, because of a bug."""
        error = ending(f"reading {self._what}", bug)
        self.stop(error)
        if self._guard is not None:
            self._guard.broken(error)  # it may have given this one up just before

    # ---------------------------------------------------------------- what happens

    def on_messages(self, messages: list[JsMessage], now: float) -> None:
        """These came."""
        ledger, outlet = self.ledger, self._outlet
        if outlet is None:
            return
        if self._reconnected and (first := consumer_seq(messages[0])):
            self._reconnected = False
            self._drop_unknown(first - 1)
        if self._guard is not None:
            expected = self._guard.accept(messages)
            if expected < len(messages):
                if expected:
                    size = sum(message.counted_size for message in messages[:expected]) if self.counts_bytes else 0
                    ledger.on_messages(expected, size, now)
                    outlet.put(messages[:expected])
                return
        if ledger.group:
            for message in messages:
                if message.has_headers and (pin := message.headers.last("Nats-Pin-Id")):
                    self._inbox.pins[ledger.group] = pin
        if ledger.ahead is not None:
            ledger.ahead.on_messages(messages, ledger.held, monotonic())
        size = sum(message.counted_size for message in messages) if self.counts_bytes else 0
        if not ledger.done:  # or it is finishing, and these were on their way
            ledger.on_messages(len(messages), size, now)
            outlet.put(messages)
            self._go_on(now)
        else:
            outlet.put(messages)

    def on_leftover(self, messages: list[JsMessage], now: float) -> int:
        """These came for a reader who had left; returns how many of them are taken in."""
        ledger, outlet = self.ledger, self._outlet
        if outlet is None or ledger.done:
            return 0
        taken = messages[: ledger.room]
        if self._guard is not None:
            taken = taken[: self._guard.accept(taken)]
        if taken:
            ledger.on_stashed(len(taken), sum(m.counted_size for m in taken) if self.counts_bytes else 0)
            outlet.put(taken)
            self._go_on(now)
        return len(taken)

    def on_status(self, message: JsMessage, now: float) -> None:
        """The server said something about a pull."""
        headers, number = message.headers, message.subject[len(self.reply) :]
        if (
            self._guard is not None
            and headers.status == 100
            and (last := headers.last("Nats-Last-Consumer")).isdecimal()
        ):
            self._guard.heard(int(last))
            if self._outlet is None:
                return
        verdict = self.ledger.on_status(
            int(number) if number.isdecimal() else -1, headers.status, headers.description, headers, now
        )
        if headers.status == 423:
            self._inbox.pins.pop(self.ledger.group, None)
        self._carry_out(verdict, now)

    def on_disconnect(self) -> None:
        """The connection is gone."""
        self.ledger.on_disconnect()
        self._go_on(self._loop.time())

    def on_reconnect(self) -> None:
        """It is back; no pull has survived."""
        now = self._loop.time()
        self._reconnected = self._lasting and self._guard is None
        self._carry_out(self.ledger.on_reconnect(now), now)
        if self._reconnected and not self.ledger.asked and self._may_look_up and self._look_up_task is None:
            # There is no room, so no pull will show what the server still knows.
            self._look_up_task = self._loop.create_task(self._look_up(), name="natsproto consumer look-up")

    # ---------------------------------------------------------------- inside

    def _go_on(self, now: float) -> None:
        """Sends what is due, and ends or waits."""
        ledger = self.ledger
        if ledger.group:
            ledger.pin_id = self._inbox.pins.get(ledger.group, "")  # the handle's other readers are this client too
        while (request := ledger.next_request(now)) is not None and self._send(request, now):
            pass
        if ledger.done:
            self._end(None)
        else:
            self._arm()

    def _send(self, request: PullRequest, now: float) -> bool:
        inbox, reply = self._inbox, f"{self.reply}{self.ledger.number}"
        acked, self._acking = self._acking, None
        try:
            if acked is not None:
                acked.ack_next_nowait(request.body(), reply)
            else:
                inbox.connection.publish_nowait(inbox.subject, request.body(), reply=reply)
        except OutboxFull:
            self._acking = acked
            self.ledger.on_not_sent(now)
            return False
        except ConnectionClosed:
            self.ledger.stop()
            return False
        return True

    def _probe(self) -> None:
        try:
            self._inbox.connection.publish_nowait(self._inbox.subject, PROBE, reply=f"{self.reply}0")
        except NatsError:
            return  # no room, or closed: then it has other troubles

    def _arm(self) -> None:
        """One timer. It is not moved with every message: it looks again when it fires."""
        deadline = self.ledger.deadline
        if deadline is None or self._outlet is None:
            return
        if self._timer is not None:
            if self._fires_at <= deadline:
                return
            self._timer.cancel()
        self._fires_at = deadline
        self._timer = self._loop.call_at(deadline, self._tick)

    def _tick(self) -> None:
        self._timer = None
        try:
            deadline = self.ledger.deadline
            if deadline is None:
                return
            now = self._loop.time()
            if deadline > now + EARLY:
                self._arm()
                return
            now = max(now, deadline)
            self._carry_out(self.ledger.on_silence(now), now)
        except Exception as exc:
            self.fail(exc)

    def _carry_out(self, verdict: Verdict, now: float) -> None:
        notice = verdict.notice
        if self._guard is not None and isinstance(verdict.error or notice, (ConsumerGone, HeartbeatMissed)):
            self._guard.lost(verdict.error or notice)
            return
        if notice is not None and self.ledger.unanswered <= 1 and self.ledger.losses <= 1:  # not all tries in vain
            self._announce(notice)
        if verdict.action is Action.STOP:
            self._end(verdict.error)
            return
        if verdict.action is Action.PROBE:
            self._probe()
        if self.ledger.unanswered:
            self._look_up_soon(now)
        self._go_on(now)

    def _drop_unknown(self, last_known: int) -> None:
        """A server that was killed may not know of its last deliveries when it is back. It repeats them with the same
        sequences, and does not answer acknowledgements of the first ones before.
        """
        if self._outlet is not None and (dropped := self._outlet.drop_unknown(last_known)):
            size = sum(message.counted_size for message in dropped) if self.counts_bytes else 0
            self.ledger.on_dropped(len(dropped), size)

    def _announce(self, error: NatsError) -> None:
        inbox = self._inbox
        inbox.connection.announce(ConsumerNotice(stream=inbox.stream, consumer=inbox.consumer, error=error))

    def _end(self, error: NatsError | None) -> None:
        outlet, self._outlet = self._outlet, None
        self._rest()
        if outlet is None:
            return
        self._leave()
        if self._lasting and error is not None:
            self._announce(error)
        outlet.end(error)

    def _leave(self) -> None:
        replies, self._replies = self._replies, None
        if replies is not None:
            self._inbox.leave(replies, keep=self.ledger.settled)

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._look_up_task is not None:
            self._look_up_task.cancel()
            self._look_up_task = None

    # ---------------------------------------------------------------- is it still there?

    def _look_up_soon(self, now: float) -> None:
        if self._look_up_task is None and self._may_look_up and now >= self._looked_up_at:
            self._looked_up_at = now + LOOK_UP_EVERY
            self._look_up_task = self._loop.create_task(self._look_up(), name="natsproto consumer look-up")

    async def _look_up(self) -> None:
        """Nobody takes its pulls: gone, or without a leader for the moment? And what does it know after a reconnect?
        Whoever may not ask goes on trying.
        """
        inbox = self._inbox
        gone: NatsError | None = None
        try:
            endpoint, asked = f"CONSUMER.INFO.{inbox.stream}.{inbox.consumer}", f"info of consumer {inbox.consumer!r}"
            info = await inbox.api.get(ConsumerInfo, endpoint, asked=asked)
            if self._reconnected:
                self._reconnected = False
                self._drop_unknown(info.delivered.consumer_seq)
                self._go_on(self._loop.time())
        except (ConsumerNotFound, StreamNotFound) as exc:
            gone = ConsumerGone(exc.description, inbox.consumer, inbox.stream)
        except PermissionDenied:
            self._may_look_up = False
        except NatsError:
            pass
        except Exception as exc:
            gone = ending(f"reading {self._what}", exc)
        self._look_up_task = None
        if gone is not None:
            self.ledger.stop()
            self._end(gone)
