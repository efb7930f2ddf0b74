"""Pulling: what carries the decisions of a PullState out (ADR-37).

PullSource owns the subscription on which the pulls of one reader are answered, and their one timer. What comes is put
into the reader's buffer in the step in which a chunk brings it, and that step sends the next pull itself: no task has
to wake up for it and none runs while a consumer is read.
"""

from __future__ import annotations

import asyncio
from operator import attrgetter
from typing import Final, NamedTuple, Protocol, cast

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
from natsproto.jetstream._consumer.messages import NEVER_REFILL, Buffer, ConsumerNotice
from natsproto.jetstream._consumer.prefetch import AdaptivePrefetch
from natsproto.jetstream._consumer.pull_inbox import PullInbox, PullSubscription
from natsproto.jetstream._consumer.pull_options import UNBOUNDED, Demand, Kind
from natsproto.jetstream._consumer.pull_state import DONE, KEEP, PROBE, Action, Phase, PullState, Verdict
from natsproto.jetstream._info import ConsumerInfo
from natsproto.jetstream._message import JsMessage, consumer_seq
from natsproto.jetstream._retry_request import TIMER_SLACK_S
from natsproto.jetstream._unexpected import wrap_unexpected

LOOK_UP_INTERVAL_S: Final = 1.0
"""Seconds between two questions whether a consumer that takes no pulls is still there."""
_head_of = attrgetter("_head")


class Ending(NamedTuple):
    """How reading from one consumer has ended; ``lost``: another one may go on behind it."""

    error: NatsError | None
    lost: bool = False


class Order(Protocol):
    """The check that a batch continues what came before; pure."""

    def on_messages(self, messages: list[JsMessage]) -> int:
        """How many of these, from the first on, are the next ones."""
        ...

    def on_heartbeat(self, last_consumer_seq: int) -> bool:
        """Whether all came that was delivered so far."""
        ...


class PullSource:
    """Pulls for one reader, of one consumer. It is a Source.

    An ordered reader gives the ``order`` that its messages have to keep. It gets a future of ``follow`` that says how
    this consumer has ended, and the buffer goes on then; otherwise the end is the buffer's.
    """

    def __init__(
        self,
        inbox: PullInbox,
        demand: Demand,
        *,
        buffer: Buffer | None = None,
        order: Order | None = None,
        acking: JsMessage | None = None,
    ) -> None:
        self._inbox, self._demand, self._order, self._acking = inbox, demand, order, acking
        self.buffer = buffer_for(demand) if buffer is None else buffer
        self.state: PullState | None = None
        self._ended: asyncio.Future[Ending] | None = None
        self._replies: PullSubscription | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = 0.0  # not timer.when(): uvloop's handles for what is due already have none
        self._look_up_task: asyncio.Task[None] | None = None
        self._looked_up_at = 0.0
        self._may_look_up = True
        self._reconnected = False  # and no message has come since

    # ---------------------------------------------------------------- as a source

    def start(self) -> None:
        """Begins to pull, behind what a reader before has left; nothing more is sent until the server is heard of."""
        inbox, buffer, demand = self._inbox, self.buffer, self._demand
        now = inbox.loop.time()
        if inbox.leftover:
            most = demand.max_messages if demand.kind is not Kind.ENDLESS else demand.total or UNBOUNDED
            buffer.put_sized(inbox.take(most))
        self._begin(PullState(demand, buffer, now, consumer=inbox.consumer), now)

    def follow(
        self, after: PullState | None, until: float, prefetch: AdaptivePrefetch | None
    ) -> asyncio.Future[Ending]:
        """Begins to pull for an ordered reader; returns what is done when this consumer has ended."""
        inbox = self._inbox
        now = inbox.loop.time()
        self._ended = inbox.loop.create_future()
        state = PullState(
            self._demand, self.buffer, now, consumer=inbox.consumer, until=until, prefetch=prefetch, after=after
        )
        self._begin(state, now)
        return self._ended

    def _begin(self, state: PullState, now: float) -> None:
        self.state = state
        if state.phase is Phase.DONE:  # others have left enough
            if self._acking is not None:
                self._acking.ack_nowait()
            self._end(None)
            return
        self._replies = self._inbox.join(self)
        if not self._inbox.connection.is_connected:
            state.on_disconnect()
        self._go_on(now)

    async def established(self) -> None:
        """The consumer was there before: what is stored waits in the stream until it is pulled."""

    def refill(self) -> None:
        """There is room again."""
        if self._replies is not None:
            self._go_on(self._inbox.loop.time())

    async def finish(self) -> None:
        """Asks for nothing more and takes in what is on its way. When cancelled, that is for the next reader."""
        if self.state is not None:
            self.state.stop()
        self._rest()
        try:
            if self._replies is not None and (draining := self._inbox.end(self._replies)) is not None:
                await asyncio.shield(draining)
        finally:
            self.close()

    def close(self) -> None:
        """Wants no more: its pulls end on the server. What comes until then is for the next reader."""
        if self._replies is not None:
            assert self.state is not None
            self.state.stop()
            self._rest()
            replies, self._replies = self._replies, None
            self._inbox.leave(replies, keep=not self.state.given_up)

    # ---------------------------------------------------------------- what happens

    def on_change(self) -> None:
        """A chunk brought something, or the subscription has ended. A bug ends who reads, not the connection."""
        replies, inbox = self._replies, self._inbox
        if replies is None:
            return
        arrived = replies.subscription.inbox
        try:
            if arrived:
                came = cast("list[JsMessage]", list(arrived))
                arrived.clear()
                now = inbox.loop.time()
                if any(map(_head_of, came)):
                    self._sort(came, replies.prefix, now)
                else:  # so none is a status
                    self._take_in(came, now)
            elif replies.subscription.closed:
                inbox.forget(replies)
                self.end(replies.subscription.error)
        except Exception as exc:
            self.fail(exc)

    def _sort(self, came: list[JsMessage], prefix: str, now: float) -> None:
        """Messages and statuses, all in their order."""
        messages: list[JsMessage] = []
        for message in came:
            if not message.is_status:
                messages.append(message)
                continue
            if messages:
                self._take_in(messages, now)
                messages = []
            if self._replies is not None and message.subject.startswith(prefix):
                self._on_status(message, message.subject[len(prefix) :], now)
        if messages:
            self._take_in(messages, now)

    def _take_in(self, messages: list[JsMessage], now: float) -> None:
        buffer, state = self.buffer, self.state
        left: list[JsMessage] = []
        if self._replies is None or state is None:  # it has left within this chunk
            self._inbox.keep(messages)
            return
        demand = self._demand
        if demand.kind is not Kind.ENDLESS:
            room = max(demand.max_messages - buffer.came + buffer.taken, 0)
            if len(messages) > room:
                messages, left = messages[:room], messages[room:]
        if self._reconnected and messages and (first := consumer_seq(messages[0])):
            self._reconnected = False
            buffer.drop_after(first - 1)
        expected = len(messages) if self._order is None else self._order.on_messages(messages)
        is_gap = expected < len(messages)
        if is_gap:
            messages = messages[:expected]
        if messages:
            if demand.priority.group:
                self._note_pin(messages)
            size = sum(message.counted_size for message in messages) if demand.max_bytes else 0
            buffer.put(messages, size)
            if state.phase is not Phase.DONE:  # or it is finishing, and these were on their way
                verdict = state.on_messages(len(messages), size, now)
                if verdict is DONE:
                    self._end(None)
                elif verdict is not KEEP:
                    self._go_on(now)
        if is_gap:
            self._lose(None)
        elif left:
            self._inbox.keep(left)

    def _note_pin(self, messages: list[JsMessage]) -> None:
        for message in messages:
            if message.has_headers and (pin := message.headers.last("Nats-Pin-Id")):
                self._inbox.pins[self._demand.priority.group] = pin

    def on_leftover(self, messages: list[JsMessage], now: float) -> int:
        """These came for a reader who had left; returns how many of them are taken in."""
        state = self.state
        if self._replies is None or state is None or state.phase is Phase.DONE or self._order is not None:
            return 0
        taken = messages[: state.room]
        if taken:
            self.buffer.put_sized(taken)
            state.on_stashed()
            self._go_on(now)
        return len(taken)

    def _on_status(self, message: JsMessage, number: str, now: float) -> None:
        """The server said something about a pull."""
        assert self.state is not None
        headers = message.headers
        status = headers.status
        if (
            self._order is not None
            and status == 100
            and (last := headers.last("Nats-Last-Consumer")).isdecimal()
            and not self._order.on_heartbeat(int(last))
        ):
            self._lose(None)
            return
        if status == 423:
            self._inbox.pins.pop(self._demand.priority.group, None)
        pull = int(number) if number.isdecimal() else -1
        self._carry_out(self.state.on_status(pull, status, headers.description, headers, now), now)

    def on_disconnect(self) -> None:
        """The connection is gone."""
        if self.state is not None:
            self.state.on_disconnect()
            self._go_on(self._inbox.loop.time())

    def on_reconnect(self) -> None:
        """It is back; no pull has survived."""
        state = self.state
        if state is None:
            return
        now = self._inbox.loop.time()
        self._reconnected = self._demand.kind is Kind.ENDLESS and self._order is None
        self._carry_out(state.on_reconnect(now), now)
        if self._reconnected and not state.pending and self._may_look_up and self._look_up_task is None:
            # There is no room, so no pull will show what the server still knows.
            self._start_look_up()

    def end(self, error: NatsError | None) -> None:
        """It is over: the subscription has ended, or the account may not pull."""
        if self.state is not None:
            self.state.stop()
        self._end(error)

    def fail(self, bug: Exception) -> None:
        """It is over, because of a bug."""
        self.end(wrap_unexpected(f"reading {self._inbox.what}", bug))

    # ---------------------------------------------------------------- inside

    def _go_on(self, now: float) -> None:
        """Sends what is due, and ends or waits. The one timer is not moved with every message: it looks again when it
        fires.
        """
        state, buffer, replies, inbox = self.state, self.buffer, self._replies, self._inbox
        assert state is not None
        refill_at: int | None = None
        while replies is not None and (request := state.next_request(now)) is not None:
            body = request.body(inbox.pins.get(request.group, "") if request.group else "")
            acked, self._acking = self._acking, None
            try:
                if acked is not None:
                    acked.ack_next_nowait(body, f"{replies.prefix}{state.number}")
                else:
                    inbox.connection.publish_nowait(inbox.subject, body, reply=f"{replies.prefix}{state.number}")
            except OutboxFull:
                self._acking = acked
                state.on_not_sent(now)
                break
            except ConnectionClosed:
                state.stop()
                break
            refill_at = state.refill_at
            if refill_at is None or refill_at > buffer.taken:
                break
        else:
            refill_at = state.refill_at
        if state.phase is Phase.DONE:
            if not inbox.is_ending(replies):  # else what is on its way is still to be read
                self._end(None)
            return
        buffer.refill_at = NEVER_REFILL if refill_at is None else refill_at
        deadline = state.deadline
        if deadline is not None and replies is not None and (self._timer is None or deadline < self._fires_at):
            if self._timer is not None:
                self._timer.cancel()
            self._fires_at = deadline
            self._timer = inbox.loop.call_at(deadline, self._tick)

    def _probe(self) -> None:
        if self._replies is None:
            return
        try:
            self._inbox.connection.publish_nowait(self._inbox.subject, PROBE, reply=f"{self._replies.prefix}0")
        except NatsError:
            return  # no room, or closed: then it has other troubles

    def _tick(self) -> None:
        self._timer = None
        try:
            state = self.state
            if state is None or (deadline := state.deadline) is None:
                return
            now = self._inbox.loop.time()
            if deadline > now + TIMER_SLACK_S:
                self._go_on(now)
                return
            now = max(now, deadline)
            self._carry_out(state.on_silence(now), now)
        except Exception as exc:
            self.fail(exc)

    def _carry_out(self, verdict: Verdict, now: float) -> None:
        state, notice = self.state, verdict.notice
        assert state is not None
        if self._order is not None and isinstance(verdict.error or notice, (ConsumerGone, HeartbeatMissed)):
            self._lose(verdict.error or notice)
            return
        if notice is not None and state.unanswered <= 1 and state.losses <= 1:  # not all tries in vain
            self._announce(notice)
        if verdict.action is Action.STOP:
            self._end(verdict.error)
            return
        if verdict.action is Action.PROBE:
            self._probe()
        if state.unanswered and self._look_up_task is None and self._may_look_up and now >= self._looked_up_at:
            self._looked_up_at = now + LOOK_UP_INTERVAL_S
            self._start_look_up()
        self._go_on(now)

    def _announce(self, error: NatsError) -> None:
        inbox = self._inbox
        inbox.connection.announce(ConsumerNotice(stream=inbox.stream, consumer=inbox.consumer, error=error))

    def _lose(self, error: NatsError | None) -> None:
        """Nothing more is to be had from this consumer; another one may go on."""
        self.close()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(Ending(error, lost=True))

    def _end(self, error: NatsError | None) -> None:
        self._rest()
        replies, self._replies = self._replies, None
        if replies is not None:
            assert self.state is not None
            self._inbox.leave(replies, keep=not self.state.given_up)
        elif self.buffer.ended:
            return
        if self._order is None:
            if error is not None and self._demand.kind is Kind.ENDLESS:
                self._announce(error)
            self.buffer.end(error)
        elif self._ended is not None and not self._ended.done():
            self._ended.set_result(Ending(error))

    def _rest(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._look_up_task is not None:
            self._look_up_task.cancel()
            self._look_up_task = None

    # ---------------------------------------------------------------- is it still there?

    def _start_look_up(self) -> None:
        self._look_up_task = self._inbox.loop.create_task(self._look_up(), name="natsproto consumer look-up")

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
                self.buffer.drop_after(info.delivered.consumer_seq)
                self._go_on(inbox.loop.time())
        except (ConsumerNotFound, StreamNotFound) as exc:
            gone = ConsumerGone(exc.description, inbox.consumer, inbox.stream)
        except PermissionDenied:
            self._may_look_up = False
        except NatsError:
            pass
        except Exception as exc:
            gone = wrap_unexpected(f"reading {inbox.what}", exc)
        self._look_up_task = None
        if gone is not None:
            self.end(gone)


def buffer_for(demand: Demand, prefetch: AdaptivePrefetch | None = None) -> Buffer:
    """The buffer of a reader with this demand."""
    untold = max(1, min(64, demand.max_messages // 8))
    return Buffer(counts_bytes=demand.max_bytes > 0, untold=untold, prefetch=prefetch)
