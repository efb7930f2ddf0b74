"""Pulling: carries out the decisions of a PullState (ADR-37).

PullSource owns the subscription for the replies to one reader's pulls, and one timer. Received messages go into the
reader's buffer in the same step of the event loop, which also sends the next pull: no task runs for it.
"""

from __future__ import annotations

import asyncio
import json
from itertools import groupby
from operator import attrgetter
from time import monotonic
from typing import Final, NamedTuple, cast

from natsproto._core.consumer_stats import ConsumerStats
from natsproto._core.instrumentation import ReaderInfo
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
from natsproto.jetstream._api_errors import consumer_gone
from natsproto.jetstream._consumer.buffer import NEVER_REFILL, Buffer
from natsproto.jetstream._consumer.deliveries import KEEP_PIN, Deliveries
from natsproto.jetstream._consumer.messages import ConsumerNotice
from natsproto.jetstream._consumer.ordered_cursor import OrderedCursor
from natsproto.jetstream._consumer.prefetch import AdaptivePrefetch
from natsproto.jetstream._consumer.pull_inbox import Leftover, PullInbox, PullSubscription
from natsproto.jetstream._consumer.pull_options import PullMode, PullOptions
from natsproto.jetstream._consumer.pull_state import DONE, KEEP, PROBE, Action, Decision, PullPhase, PullState
from natsproto.jetstream._consumer.reader_stats import stats_of
from natsproto.jetstream._message import JsMessage, consumer_seq, extend_all
from natsproto.jetstream._retry_request import TIMER_SLACK_S
from natsproto.jetstream._unexpected import wrap_unexpected

EXTEND_LEFTOVER_S: Final = 0.5
"""Seconds after which a message of an earlier reader gets a new ack_wait when it is fetched."""
LOOKUP_INTERVAL_S: Final = 1.0
"""Seconds between two lookups of a consumer without responders."""
_head_of, _is_status_of = attrgetter("_head"), attrgetter("_is_status")


class ConsumerEnd(NamedTuple):
    """How reading from one consumer has ended; ``lost``: another consumer may continue."""

    error: NatsError | None
    lost: bool = False


class PullSource:
    """Pulls messages of one consumer for one reader; a MessageSource.

    An ordered reader passes its ``cursor``, which checks the order, and ``ended``, a future that is resolved when this
    consumer has ended. The buffer stays open then, for the next consumer.
    """

    def __init__(
        self,
        inbox: PullInbox,
        options: PullOptions,
        *,
        buffer: Buffer | None = None,
        cursor: OrderedCursor | None = None,
        ended: asyncio.Future[ConsumerEnd] | None = None,
        acking: JsMessage | None = None,
    ) -> None:
        self._inbox, self._options, self._cursor, self._acking = inbox, options, cursor, acking
        self.connection = inbox.connection
        # Ages matter where the server delivers again, and pulls that end by themselves are for callers who choose.
        is_followed = options.mode is PullMode.ENDLESS and cursor is None and inbox.may_redeliver
        self._deliveries = Deliveries(self, inbox, options.max_messages) if is_followed else None
        self.buffer = buffer or Buffer(
            options.max_messages, counts_bytes=options.max_bytes > 0, deliveries=self._deliveries
        )
        self.state: PullState
        """Set by ``start``."""
        self._ended = ended
        self._replies: PullSubscription | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0  # not timer.when(), which uvloop lacks for handles that are due
        self._lookup_task: asyncio.Task[None] | None = None
        self._next_lookup = 0.0
        self._may_lookup = True
        self._reconnected = False  # and no message has come since
        self._started_at = 0.0

    # ---------------------------------------------------------------- the interface of a source

    def start(
        self, predecessor: PullState | None = None, until: float = 0.0, prefetch: AdaptivePrefetch | None = None
    ) -> None:
        """Start to pull; messages left over by an earlier reader come first. The arguments are an ordered reader's."""
        inbox, options = self._inbox, self._options
        self._started_at = monotonic()
        if inbox.leftover and self._cursor is None:
            self._put_leftover(inbox.take_leftover(options.most_messages))
        now = inbox.loop.time()
        self.state = state = PullState(
            options,
            self.buffer,
            now,
            consumer=(inbox.consumer, inbox.stream),
            until=until,
            prefetch=prefetch if self._deliveries is None else self._deliveries.state,
            predecessor=predecessor,
        )
        if state.phase is PullPhase.DONE:  # others have left enough
            if self._acking is not None:
                self._acking.ack_nowait()
            self.end(None)
            return
        self._replies = inbox.join(self)
        if options.mode is PullMode.ENDLESS and self._cursor is None:
            inbox.connection._consumers.add(self)
        if self._deliveries is not None:
            self._deliveries.start()
        if not inbox.is_connected:
            state.on_disconnect()
            if self._deliveries is not None:
                self._deliveries.on_disconnect()
        self._send_pulls(now)

    def reader_info(self) -> ReaderInfo:
        """Return the stream and the consumer."""
        return ReaderInfo(self._inbox.stream, self._inbox.consumer, is_stream=True)

    def stats(self, now: float) -> ConsumerStats | None:
        """See MeasuredReader."""
        return stats_of(self.buffer, self.reader_info(), now)

    async def wait_created(self) -> None:
        """Return at once: the consumer exists already."""

    def refill(self) -> None:
        """Send the pulls that are due."""
        if self._replies is not None:
            self._send_pulls(self._inbox.loop.time())

    async def finish(self) -> None:
        """Stop pulling and receive the messages in flight. When cancelled, the next reader gets those."""
        self.state.stop()
        self._stop_timers()
        try:
            if self._replies is not None and (draining := self._inbox.end(self._replies)) is not None:
                await asyncio.shield(draining)
        finally:
            self.close()

    def close(self) -> None:
        """End its pulls on the server. The next reader gets the messages that arrive until then."""
        self._leave()

    # ---------------------------------------------------------------- events

    def on_change(self) -> None:
        """Called when messages have arrived or the subscription has ended. An unexpected error ends the reader, not the
        connection.
        """
        replies, inbox = self._replies, self._inbox
        if replies is None:
            return
        arrived = replies.subscription._inbox
        try:
            if arrived:
                received = cast("list[JsMessage]", list(arrived))
                arrived.clear()
                now = inbox.loop.time()
                if any(map(_head_of, received)):
                    self._split_statuses(received, replies.prefix, now)
                else:  # so none is a status
                    self._receive(received, now)
            elif replies.subscription.closed:
                inbox.remove(replies)
                self.end(replies.subscription.error)
        except Exception as exc:
            self.fail(exc)

    def _split_statuses(self, received: list[JsMessage], prefix: str, now: float) -> None:
        """Handle messages and statuses in their order."""
        for is_status, messages in groupby(received, _is_status_of):
            if not is_status:
                self._receive(list(messages), now)
                continue
            for status in messages:
                if self._replies is not None and status.subject.startswith(prefix):
                    self._on_status(status, status.subject[len(prefix) :], now)

    def _receive(self, messages: list[JsMessage], now: float) -> None:
        buffer, state = self.buffer, self.state
        left: list[JsMessage] = []
        if self._replies is None:  # it has left within this chunk
            self._inbox.keep_leftover(messages)
            return
        options = self._options
        if options.mode is not PullMode.ENDLESS:
            capacity = max(options.max_messages - buffer.received + buffer.consumed, 0)
            if len(messages) > capacity:
                messages, left = messages[:capacity], messages[capacity:]
        if self._reconnected and messages and (first := consumer_seq(messages[0])):
            self._reconnected = False
            buffer.drop_after(first - 1)
        expected = len(messages) if self._cursor is None else self._cursor.on_messages(messages)
        is_gap = expected < len(messages)
        if is_gap:
            messages = messages[:expected]
        if messages:
            if options.priority.group:
                self._remember_pin(messages)
            size = sum(message._counted_size for message in messages) if options.max_bytes else 0
            before = buffer.received
            if self._deliveries is None:
                buffer.put(messages, size)
            else:
                self._put_followed(self._deliveries, messages, size)
            if state.phase is not PullPhase.DONE:  # else it is finishing, and these were in flight
                decision = state.on_messages(len(messages), size, now)
                if decision is DONE:
                    self.end(None)
                elif decision is not KEEP or buffer.received - before < len(messages):  # some are handled already
                    self._send_pulls(now)
        if is_gap:
            self._lose_consumer(None)
        elif left:
            self._inbox.keep_leftover(left)

    def _put_followed(self, deliveries: Deliveries, messages: list[JsMessage], size: int) -> None:
        """Put messages into the buffer, without those that are handled already."""
        arrived = monotonic()
        runs = deliveries.redeliveries.select(messages)
        for number, run in runs:
            if len(run) < len(messages) and size:
                size = sum(message._counted_size for message in run)
            deliveries.state.on_arrival(len(run), number, arrived)
            self.buffer.put(run, size)

    def _put_leftover(self, leftover: list[Leftover]) -> None:
        """Put messages into the buffer that arrived for an earlier reader; a fetch extends old ones."""
        if self._deliveries is None:
            self.buffer.put_counted([one.message for one in leftover])
            if self._inbox.may_redeliver and self._cursor is None and leftover:
                old = monotonic() - EXTEND_LEFTOVER_S
                extend_all([one.message for one in leftover if one.since < old])
        else:
            for one in leftover:
                self.put_late(*one)

    def put_late(self, message: JsMessage, began: float) -> None:
        """Add a message that was delivered some time ago."""
        if self._deliveries is not None:
            number = 1 if self._inbox.config is None else message.metadata.num_delivered
            self._deliveries.state.on_leftover(1, number, began, monotonic())
        self.buffer.put_counted([message])

    def put_back(self, messages: list[JsMessage]) -> None:
        """Return messages that were received and not handled, for the next reader."""
        self._inbox.put_back(messages, self._started_at or monotonic())

    def remove_unread(self, messages: list[JsMessage]) -> None:
        """Count these messages, which were removed from the buffer, as never received."""
        self.buffer.on_removed(messages)

    @property
    def is_pulling(self) -> bool:
        """True while messages may arrive."""
        return self._replies is not None

    def _remember_pin(self, messages: list[JsMessage]) -> None:
        for message in messages:
            if message.has_headers and (pin := message.headers.last("Nats-Pin-Id")):
                self._inbox.pins[self._options.priority.group] = pin

    def on_leftover(self, leftover: list[Leftover], now: float) -> int:
        """Take messages that arrived for an earlier reader; return the number it accepts."""
        state = self.state
        if self._replies is None or state.phase is PullPhase.DONE or self._cursor is not None:
            return 0
        accepted = leftover[: state.capacity]
        if accepted:
            self._put_leftover(accepted)
            state.on_leftover()
            self._send_pulls(now)
        return len(accepted)

    def _on_status(self, message: JsMessage, number: str, now: float) -> None:
        """Handle a status of the server about a pull."""
        headers = message.headers
        status = headers._status
        if (
            self._cursor is not None
            and status == 100
            and (last := headers.last("Nats-Last-Consumer")).isdecimal()
            and not self._cursor.on_heartbeat(int(last))
        ):
            self._lose_consumer(None)
            return
        if status == 423:
            self._inbox.pins.pop(self._options.priority.group, None)
        pull = int(number) if number.isdecimal() else -1
        self._apply(self.state.on_status(pull, status, headers._description, headers, now), now)

    def on_disconnect(self) -> None:
        """The connection was lost."""
        self.state.on_disconnect()
        if self._deliveries is not None:
            self._deliveries.on_disconnect()
        self._send_pulls(self._inbox.loop.time())

    def on_reconnect(self) -> None:
        """The connection is back; no pull has survived."""
        state, now = self.state, self._inbox.loop.time()
        if self._deliveries is not None:
            self._deliveries.on_reconnect()
            self.buffer.wake()
        self._reconnected = self._options.mode is PullMode.ENDLESS and self._cursor is None
        self._apply(state.on_reconnect(now), now)
        if self._reconnected and not state.pending and self._may_lookup and self._lookup_task is None:
            # There is no room, so no pull will show what the server still knows.
            self._start_lookup()

    def fail(self, bug: Exception) -> None:
        """End reading because of an unexpected error."""
        self.end(wrap_unexpected(f"reading {self._inbox.description}", bug))

    # ---------------------------------------------------------------- internals

    def _send_pulls(self, now: float) -> None:
        """Send the pulls that are due, then end or set the timer. The timer is not moved with every message: it is
        checked when it fires.
        """
        state, buffer, replies, inbox = self.state, self.buffer, self._replies, self._inbox
        is_idle = not state.pending and not state.has_abandoned_pulls
        while replies is not None and (request := state.next_request(now)) is not None:
            if is_idle and self._deliveries is not None:
                self._deliveries.state.on_pull(monotonic())
                is_idle = False
            refill_at, deadline = state.refill_at, state.deadline  # as long as the state is at hand
            body = request.body(inbox.pins.get(request.priority.group, ""))
            acked, self._acking = self._acking, None
            reply = f"{replies.prefix}{state.number}"
            try:
                if acked is not None:
                    acked._ack_next_nowait(body, reply)
                else:
                    inbox.connection._publish_encoded(inbox.encoded_subject, reply.encode(), body)
            except OutboxFull:
                self._acking = acked
                state.on_not_sent(now)
                refill_at, deadline = None, state.deadline
                break
            except ConnectionClosed:
                state.stop()
                break
            if refill_at is None or refill_at > buffer.consumed:
                break
        else:
            refill_at, deadline = state.refill_at, state.deadline
        if state.phase is PullPhase.DONE:
            if not inbox.is_ending(replies):  # else messages in flight are still to be read
                self.end(None)
            return
        buffer.refill_at = NEVER_REFILL if refill_at is None else refill_at
        if deadline is not None and replies is not None and (self._timer is None or deadline < self._timer_at):
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = deadline
            self._timer = inbox.loop.call_at(deadline, self._on_timer)

    def _send_probe(self, body: bytes = PROBE) -> None:
        """Send a pull as number 0, whose status tells only whether there is anybody."""
        if self._replies is None:
            return
        try:
            self.connection._publish_encoded(self._inbox.encoded_subject, f"{self._replies.prefix}0".encode(), body)
        except NatsError:
            return  # no room, or closed, which ends the reading by itself

    def keep_pin(self) -> None:
        """Keep the pin of a pinned client without a message."""
        inbox, group = self._inbox, self._options.priority.group
        if (pin := inbox.pins.get(group)) and not self.state.pending:
            self._send_probe(f'{{{KEEP_PIN},"group":{json.dumps(group)},"id":{json.dumps(pin)}}}'.encode())

    def _on_timer(self) -> None:
        self._timer = None
        try:
            state, now = self.state, self._inbox.loop.time()
            if (deadline := state.deadline) is None:
                return
            if deadline > now + TIMER_SLACK_S:
                self._send_pulls(now)
                return
            now = max(now, deadline)
            self._apply(state.on_deadline(now), now)
        except Exception as exc:
            self.fail(exc)

    def _apply(self, decision: Decision, now: float) -> None:
        state, notice = self.state, decision.notice
        if self._cursor is not None and isinstance(decision.error or notice, (ConsumerGone, HeartbeatMissed)):
            self._lose_consumer(decision.error or notice)
            return
        is_first_failure = state.no_responders <= 1 and state.losses <= 1
        if notice is not None and is_first_failure:
            self._emit_notice(notice)
        if decision.action is Action.STOP:
            self.end(decision.error)
            return
        if decision.action is Action.PROBE:
            self._send_probe()
        if state.no_responders and self._lookup_task is None and self._may_lookup and now >= self._next_lookup:
            self._next_lookup = now + LOOKUP_INTERVAL_S
            self._start_lookup()
        self._send_pulls(now)

    def _emit_notice(self, error: NatsError) -> None:
        inbox = self._inbox
        inbox.connection._emit(ConsumerNotice(stream=inbox.stream, consumer=inbox.consumer, error=error))

    def _lose_consumer(self, error: NatsError | None) -> None:
        """End reading from this consumer; another one may continue."""
        self.close()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(ConsumerEnd(error, lost=True))

    def end(self, error: NatsError | None) -> None:
        """End reading: it is complete, the subscription has ended, or the account may not pull."""
        if not self._leave() and self.buffer.ended:
            return
        if self._cursor is None:
            if error is not None and self._options.mode is PullMode.ENDLESS:
                self._emit_notice(error)
            self.buffer.end(error)
        elif self._ended is not None and not self._ended.done():
            self._ended.set_result(ConsumerEnd(error))

    def _leave(self) -> bool:
        """Leave the inbox; False if it had left before."""
        self._stop_timers()
        replies, self._replies = self._replies, None
        if replies is None:
            return False
        if self.state.phase is not PullPhase.DONE:
            self.state.stop()
        self._inbox.leave(replies, reuse=not self.state.has_abandoned_pulls)
        return True

    def _stop_timers(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._lookup_task is not None:
            self._lookup_task.cancel()
            self._lookup_task = None

    # ---------------------------------------------------------------- looking up the consumer

    def _start_lookup(self) -> None:
        self._lookup_task = self._inbox.loop.create_task(self._lookup(), name="natsproto consumer look-up")

    async def _lookup(self) -> None:
        """Look up a consumer without responders: it is gone, or has no leader now. After a reconnect it also
        gives the last delivery. Without permission, pulling goes on.
        """
        inbox = self._inbox
        gone: NatsError | None = None
        try:
            info = await inbox.look_up()
            if self._reconnected:
                self._reconnected = False
                self.buffer.drop_after(info.delivered.consumer_seq)
                self._send_pulls(inbox.loop.time())
        except (ConsumerNotFound, StreamNotFound) as exc:
            gone = consumer_gone(exc, inbox.consumer, inbox.stream)
        except PermissionDenied:
            self._may_lookup = False
        except NatsError:
            pass
        except Exception as exc:
            gone = wrap_unexpected(f"reading {inbox.description}", exc)
        self._lookup_task = None
        if gone is not None:
            self.end(gone)
