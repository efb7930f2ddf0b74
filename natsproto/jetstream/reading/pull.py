"""Pulling: the driver of a PullLedger, and the inbox that pulls are answered on.

Owns the interest in an inbox, the timer of a ledger and the messages that nobody asks for any more. Every decision is
the ledger's (ADR-37); what is here carries it out, in the step in which something happens: a chunk that brings
messages sends the next pull itself, so no task has to wake up for that and none runs while a consumer is read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import cast

from natsproto.core.events import Denied, Disconnected, Event, Moved, Reconnected
from natsproto.core.subscription import Subscription
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
from natsproto.jetstream.api import Api
from natsproto.jetstream.asking import EARLY
from natsproto.jetstream.bugs import ending
from natsproto.jetstream.message import JsMessage, none_has_headers
from natsproto.jetstream.reading.ledger import Action, PullLedger, Verdict
from natsproto.jetstream.reading.pulls import PROBE, PullRequest
from natsproto.jetstream.reading.reader import PARTING, ConsumerNotice, Guard, Outlet, give_back

IDLE = 1.0
"""Seconds after the last fetch for which the inbox is kept, so that a loop of them subscribes once."""
LOOK_UP_EVERY = 1.0
"""Seconds between two questions whether a consumer that takes no pulls is still there."""


class PullInbox:
    """Where the pulls of a consumer are answered, and what came for nobody.

    One subscription serves all pulls that follow each other. A message does not tell which pull it answers (it comes
    under its own subject) and need not: it goes to whoever reads, and if nobody does, into the stash, from which the
    next reader is served first. So a pull that was left early (a cancelled fetch) loses nothing and withholds nothing.

    The stash and the pins (ADR-42: by group) are the consumer handle's, which may have several inboxes. ``give_back``
    says that the server takes back what is not read (it waits for acknowledgements), which happens once nobody has
    read for a while. ``make`` is the class of the messages.
    """

    def __init__(
        self,
        api: Api,
        stream: str,
        consumer: str,
        *,
        stash: deque[JsMessage],
        pins: dict[str, str],
        give_back: bool,
        make: type[JsMessage] = JsMessage,
    ) -> None:
        self.pins = pins
        self.api, self.stream, self.consumer = api, stream, consumer
        self.connection = api.connection
        self.subject = f"{api.prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._loop = asyncio.get_running_loop()
        self._give_back, self._make = give_back, make
        self._stash = stash
        self._pullers: list[Puller] = []
        self._subscription: Subscription | None = None
        self._unlisten: Callable[[], None] | None = None
        self._base = ""
        self._serial = 0
        self._owed_until = 0.0  # when the last pull that was left early has ended on the server
        self._idle_since = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None

    # ---------------------------------------------------------------- pullers

    def join(self, puller: Puller) -> str:
        """From now on the puller gets what comes; returns what the reply subjects of its pulls begin with."""
        if self._subscription is None:
            self._base = self.connection.new_inbox()
            self._subscription = self.connection.subscribe(
                f"{self._base}.*.*", pending_msgs_limit=0, pending_bytes_limit=0, message_type=self._make
            )  # no limits: bounded by what is asked for
            self._subscription.on_change = self._changed
            self._unlisten = self.connection.listen(self._on_event)
        self._pullers.append(puller)
        self._serial += 1
        return f"{self._base}.{self._serial}."

    def leave(self, puller: Puller, owed_until: float) -> None:
        """The puller wants no more. The server may serve its pulls until then (0: it owes nothing)."""
        if puller in self._pullers:
            self._pullers.remove(puller)
        self.owe(owed_until)
        if not self._pullers and self._subscription is not None:
            self._idle_since = self._loop.time()
            if self._idle_timer is None:
                self._idle_timer = self._loop.call_later(IDLE, self._check_idle)

    def owe(self, until: float) -> None:
        """The server may serve a pull until then that nobody waits for."""
        self._owed_until = max(self._owed_until, until)

    @property
    def owes(self) -> bool:
        """Whether the server may still serve pulls that were left early."""
        return self._owed_until > self._loop.time()

    # ---------------------------------------------------------------- the stash

    def take(self, most: int) -> list[JsMessage]:
        """Up to so many messages that came for nobody."""
        stash = self._stash
        return [stash.popleft() for _ in range(min(len(stash), most))]

    def put_back(self, messages: list[JsMessage]) -> None:
        """These were taken and not handed over: they are the next ones again."""
        self._stash.extendleft(reversed(messages))
        if messages and self._pullers:
            self._hand_out(self.take(len(self._stash)), self._loop.time())

    def return_unread(self, messages: list[JsMessage]) -> None:
        """Nobody here is going to read these: back to the server if it takes them, else into the stash."""
        if self._give_back:
            give_back(messages)
        else:
            self.put_back(messages)

    # ---------------------------------------------------------------- ending

    async def finish(self) -> None:
        """Asks the server to send no more and takes in what it has sent. Cancelling ends it at once."""
        subscription = self._subscription
        try:
            if subscription is not None and not subscription.closed and self.connection.is_connected:
                await subscription.drain(PARTING)
        except NatsError:
            return  # it did not confirm; whatever it still sends is delivered again after ack_wait
        finally:
            self.close()

    def close(self) -> None:
        """Ends the interest. The stash stays; a new reader opens it again."""
        subscription, self._subscription = self._subscription, None
        if self._unlisten is not None:
            self._unlisten()
            self._unlisten = None
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        self._owed_until = 0.0
        if subscription is not None:
            subscription.on_change = None
            self.connection.unsubscribe_nowait(subscription)

    def _check_idle(self) -> None:
        self._idle_timer = None
        if self._pullers:
            return  # leave() begins anew
        due = max(self._idle_since + IDLE, self._owed_until)
        if due > self._loop.time() + EARLY:
            self._idle_timer = self._loop.call_at(due, self._check_idle)
            return
        self.close()
        if self._give_back:
            self.return_unread(self.take(len(self._stash)))

    # ---------------------------------------------------------------- what comes

    def _changed(self) -> None:
        subscription = self._subscription
        if subscription is None:
            return
        try:
            came = cast("list[JsMessage]", subscription.take_nowait())
            if came:
                now = self._loop.time()
                if none_has_headers(came):  # so none is a status
                    self._hand_out(came, now)
                else:
                    self._sort(came, now)
            if subscription.closed:
                error = subscription.error
                for puller in list(self._pullers):
                    puller.stop(error)
                self.close()
        except Exception as exc:
            self._fail(exc)

    def _sort(self, came: list[JsMessage], now: float) -> None:
        """Messages to their readers, statuses to the puller they are for, all in their order."""
        messages: list[JsMessage] = []
        for message in came:
            if not message.is_status:
                messages.append(message)
                continue
            if messages:
                self._hand_out(messages, now)
                messages = []
            for puller in self._pullers:
                if message.subject.startswith(puller.reply):
                    puller.on_status(message, now)
                    break
        if messages:
            self._hand_out(messages, now)

    def _hand_out(self, messages: list[JsMessage], now: float) -> None:
        for puller in list(self._pullers):
            room = puller.room
            if room >= len(messages):
                puller.on_messages(messages, now)
                return
            if room > 0:
                puller.on_messages(messages[:room], now)
                messages = messages[room:]
        self._stash += messages

    def _on_event(self, event: Event) -> None:
        try:
            if isinstance(event, Disconnected):
                self._owed_until = 0.0
                for puller in list(self._pullers):
                    puller.on_disconnect()
            elif isinstance(event, (Reconnected, Moved)):
                for puller in list(self._pullers):
                    puller.on_reconnect()
            elif isinstance(event, Denied) and event.error.subject == self.subject:
                for puller in list(self._pullers):
                    puller.stop(event.error)
        except Exception as exc:
            self._fail(exc)

    def _fail(self, bug: Exception) -> None:
        """A bug ends whoever reads, not the connection, over which others do."""
        if not self._pullers:
            raise bug
        for puller in list(self._pullers):
            puller.fail(bug)


class Puller:
    """Pulls for one reader as its ledger says. It is a Feed.

    ``lasting`` says that the inbox is the puller's own and ends with it. A ``guard`` is asked before messages are
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
        self._ends_at = 0.0  # when the last pull that was sent ends on the server
        self._look_up_task: asyncio.Task[None] | None = None
        self._looked_up_at = 0.0
        self._may_look_up = True

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
        self.reply = self._inbox.join(self)
        if not self._inbox.connection.is_connected:
            self.ledger.on_disconnect()
        if self._lasting and (stashed := self._inbox.take(self.room)):
            self.ledger.on_stashed(len(stashed), sum(m.counted_size for m in stashed) if self.counts_bytes else 0)
            outlet.put(stashed)
        self._go_on(self._loop.time())

    def taken(self, count: int, size: int) -> None:
        """There is room again."""
        ledger = self.ledger
        if ledger.ahead is not None:
            ledger.ahead.on_taken(count, monotonic())
        if ledger.on_taken(count, size).action is Action.REFILL and not ledger.done:
            self._go_on(self._loop.time())

    async def finish(self) -> None:
        """Asks for nothing more and takes in what is on its way."""
        self.ledger.stop()
        self._rest()
        try:
            await self._inbox.finish()
        finally:
            self.close()

    def close(self) -> None:
        """Wants no more; what comes later is for the next reader."""
        owed_until = self._ends_at if self.ledger.asked else 0.0
        self.ledger.stop()
        self._rest()
        self._outlet = None
        self._inbox.leave(self, owed_until)
        if self._lasting:
            self._inbox.close()

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
        self._arm()

    def on_reconnect(self) -> None:
        """It is back; no pull has survived."""
        now = self._loop.time()
        self._carry_out(self.ledger.on_reconnect(now), now)

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
        self._ends_at = now + request.expires
        if inbox.owes:
            inbox.owe(self._ends_at)  # what this pull brings may come after what is owed, and be owed itself then
        return True

    def _probe(self) -> None:
        try:
            self._inbox.connection.publish_nowait(self._inbox.subject, PROBE.body(), reply=f"{self.reply}0")
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
            verdict = self.ledger.on_silence(now)
            if verdict.action is Action.DONE:
                self._inbox.owe(now + IDLE)  # the server was to end the pull, and may do so in this moment
            self._carry_out(verdict, now)
        except Exception as exc:
            self.fail(exc)

    def _carry_out(self, verdict: Verdict, now: float) -> None:
        notice = verdict.notice
        if self._guard is not None and isinstance(verdict.error or notice, (ConsumerGone, HeartbeatMissed)):
            self._guard.lost(verdict.error or notice)
            return
        if notice is not None and self.ledger.unanswered <= 1 and self.ledger.losses <= 1:  # not all tries in vain
            self._announce(notice)
            if isinstance(notice, HeartbeatMissed):
                self._inbox.owe(self._ends_at)
        if verdict.action is Action.STOP:
            self._end(verdict.error)
            return
        if verdict.action is Action.PROBE:
            self._probe()
        if self.ledger.unanswered:
            self._look_up_soon(now)
        self._go_on(now)

    def _announce(self, error: NatsError) -> None:
        inbox = self._inbox
        inbox.connection.announce(ConsumerNotice(stream=inbox.stream, consumer=inbox.consumer, error=error))

    def _end(self, error: NatsError | None) -> None:
        outlet, self._outlet = self._outlet, None
        self._rest()
        if outlet is None:
            return
        self._inbox.leave(self, 0.0)
        if self._lasting:
            self._inbox.close()
            if error is not None:
                self._announce(error)
        outlet.end(error)

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
        """Nobody takes its pulls: gone, or without a leader for the moment? Whoever may not ask goes on trying."""
        inbox = self._inbox
        gone: NatsError | None = None
        try:
            await inbox.api.call(
                f"CONSUMER.INFO.{inbox.stream}.{inbox.consumer}", asked=f"info of consumer {inbox.consumer!r}"
            )
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
