"""The decisions of pulling, without I/O (ADR-37, ADR-42).

PullLedger knows how much was asked of the server, how much of it came and how much of that is not taken yet, and says
when to ask again. It knows no socket, no clock and no task: the time is passed in (float seconds on any steady clock)
and the driver carries the verdicts out. What is open and what limits were learned is in ``pulls``, how long silence is
borne in ``pulse``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from natsproto.errors import ConfigError, ConsumerGone, HeartbeatMissed, NatsError, PullRefused
from natsproto.jetstream._consumer import ahead
from natsproto.jetstream._consumer.ahead import Ahead
from natsproto.jetstream._consumer.pulls import Learned, OpenPulls, PullRequest
from natsproto.jetstream._consumer.pulse import Backoff, Pulse, heartbeat_for

UNBOUNDED: Final = 1_000_000
"""What is asked for when only bytes are bounded; a server takes a missing count for one message (ADR-37)."""
EXPIRES: Final = 30.0
_MOMENT = 0.01  # less time than this is not worth another pull
_GRACE = 0.1  # how much longer than a single pull's time its end is waited for


class Action(Enum):
    """What a driver does next."""

    KEEP = "keep"
    """Nothing."""
    REFILL = "refill"
    """Ask ``next_request()``; it may say that it is not time yet."""
    PROBE = "probe"
    """Send PROBE, as pull 0."""
    DONE = "done"
    """All that a bounded pull will get is there."""
    STOP = "stop"
    """Nothing more will come; ``error`` says why."""


class Verdict(NamedTuple):
    """An action, the error that ends everything (STOP), or one that is told and survived (``notice``)."""

    action: Action
    error: NatsError | None = None
    notice: NatsError | None = None


KEEP: Final = Verdict(Action.KEEP)
REFILL: Final = Verdict(Action.REFILL)
DONE: Final = Verdict(Action.DONE)


class PullLedger:
    """How much to pull, and when. One for each fetch, ``messages()`` or ``consume()``.

    ``max_messages`` bounds what is asked for or waits to be taken, ``max_bytes`` its bytes (0: no bound); both may be
    given. A new pull goes out when what is left of one of them is at or below its threshold (half, rounded up).
    ``total`` is the number of messages after which it is DONE (0: never). With ``follows``, and neither bound nor
    threshold, the bound follows the reader: ``ahead`` has to be told then what comes and what is taken.

    With ``once`` it is one pull of at most ``max_messages`` and ``max_bytes``: DONE when the server ended it, asked
    again only for what a lost server still owed, and then for the time that is left of ``expires``. With ``no_wait``
    it takes what is there; ``expires`` is then how long a server is looked for that can tell. With ``early`` it takes
    what is there too, but waits for a first message.

    Pulls are numbered from 1 on (``number`` is the last one's) and each needs a reply subject of its own: a cluster
    remembers which pulls are open by their reply subjects, and forgets the subject with the first of them that ends.
    After a change of leader the others would be lost without a word.

    The size of a message is that of its subject, ack subject, header block and payload (ADR-37). Sizes are needed only
    if ``counts_bytes``; the server counts before it adds a ``Nats-Pin-Id`` header, so leave that one out.
    """

    def __init__(
        self,
        *,
        max_messages: int | None = None,
        max_bytes: int = 0,
        expires: float = EXPIRES,
        heartbeat: float | None = None,
        threshold_messages: int | None = None,
        threshold_bytes: int | None = None,
        total: int = 0,
        once: bool = False,
        no_wait: bool = False,
        early: bool = False,
        follows: bool = False,
        group: str = "",
        min_pending: int = 0,
        min_ack_pending: int = 0,
        priority: int = 0,
        pin_id: str = "",
        consumer: str = "",
    ) -> None:
        self._only_bytes = max_messages is None and max_bytes > 0
        bounded = max_messages is not None or max_bytes or threshold_messages is not None
        self.ahead = Ahead() if follows and not bounded else None
        if max_messages is None:
            max_messages = UNBOUNDED if max_bytes else ahead.FIRST
        for what, bound, least in (
            ("max_messages", max_messages, 1),
            ("max_bytes", max_bytes, 0),
            ("total", total, 0),
            ("threshold_messages", 0 if threshold_messages is None else threshold_messages, 0),
            ("threshold_bytes", 0 if threshold_bytes is None else threshold_bytes, 0),
        ):
            if bound < least:
                raise ConfigError(what, bound, f"must be at least {least}")
        if expires <= 0:
            raise ConfigError("expires", expires, "a pull needs some seconds")
        if heartbeat is None:
            heartbeat = 0.0 if no_wait else heartbeat_for(expires)
        if heartbeat < 0 or heartbeat * 2 > expires:
            raise ConfigError("heartbeat", heartbeat, f"must be from 0 to half of expires ({expires:g} s)")
        self.max_messages, self.max_bytes, self.total = max_messages, max_bytes, total
        self.threshold_messages = _threshold("threshold_messages", threshold_messages, max_messages)
        self.threshold_bytes = _threshold("threshold_bytes", threshold_bytes, max_bytes)
        self.counts_bytes = max_bytes > 0
        self.consumer = consumer
        self.group = group
        self.pin_id = pin_id
        self.held, self.held_bytes = 0, 0  # here, not taken yet
        self.received = 0
        self.unanswered = 0  # pulls in a row that nobody was there to take
        self._expires, self._heartbeat = expires, heartbeat
        self._once, self._no_wait, self._early = once, no_wait, early
        self._template = PullRequest(
            no_wait=no_wait or early,
            group=group,
            min_pending=min_pending,
            min_ack_pending=min_ack_pending,
            priority=priority,
        )
        self._open = OpenPulls(counts_bytes=self.counts_bytes)
        self._learned = Learned(max_messages, max_bytes, expires)
        self._pulse = Pulse()
        self._backoff = Backoff()
        self._not_before = 0.0  # when it may be asked again
        self._too_small = 0  # bytes that were free and not enough for the next message
        self._until = 0.0  # the end of a single pull
        self._has_asked = False
        self._shutdown_seen = False
        self._connected = True
        self._over = False

    def _resize(self, max_messages: int) -> None:
        """From now on ``max_messages`` is another one, with the threshold that comes with it; what was asked for stays
        asked for.
        """
        if self._learned.batch == self.max_messages:  # nothing less was learned
            self._learned.batch = max_messages
        self.max_messages, self.threshold_messages = max_messages, _threshold("threshold_messages", None, max_messages)

    # ------------------------------------------------------------ asking

    @property
    def asked(self) -> int:
        """Messages that were asked for and are not here yet."""
        return self._open.batch

    @property
    def asked_bytes(self) -> int:
        """Bytes of them; 0 unless ``counts_bytes``."""
        return self._open.size

    @property
    def number(self) -> int:
        """Of the last pull."""
        return self._open.number

    @property
    def losses(self) -> int:
        """Pulls lost in a row, without a sign of life between."""
        return self._pulse.losses

    @property
    def done(self) -> bool:
        """Whether nothing more will be asked for."""
        return self._over

    @property
    def room(self) -> int:
        """How many messages more fit: beyond what was asked for, if others left something behind on the server."""
        if not self._once:
            return UNBOUNDED
        return 0 if self._over else max(self.max_messages - self.held, 0)

    @property
    def settled(self) -> bool:
        """Whether every pull has ended on the server, as far as it has said so."""
        return not self._open.given_up

    @property
    def deadline(self) -> float | None:
        """When to call ``on_silence`` if nothing else happens before; None for not at all."""
        if self._over:
            return None
        if not self._connected:
            return self._until or None
        end = self._until + _GRACE if self._until else 0.0
        silent_at = self._pulse.silent_at if self.asked else 0.0
        return min(filter(None, (self._not_before, silent_at, end)), default=None)

    def next_request(self, now: float) -> PullRequest | None:
        """The pull to send now, counted as asked for; None when enough is asked for, or when it must wait."""
        self.begin(now)
        if self._over or not self._connected or now < self._not_before:
            return None
        if not self._due():
            return None
        if self.ahead is not None:
            self._resize(self.ahead.decide())
        room = self.max_messages if self._only_bytes else self.max_messages - self.asked - self.held
        batch = min(room, self._learned.batch)
        if self.total:
            batch = min(batch, self.total - self.received - self.asked)
        if batch <= 0:
            return None
        size = 0
        if self.counts_bytes:
            room = self.max_bytes - self.asked_bytes - self.held_bytes
            size = min(room, self._learned.size)
            # A sliver beside a pull that is open would be refused by the next message, again and again.
            if size <= self._too_small or (self.asked and room * 4 < self.max_bytes):
                return None
        expires = self._time_left(now)
        if expires is None:
            self._finish()
            return None
        self._has_asked = True
        heartbeat, expires = self._pulse.anxious(self._heartbeat, expires)
        if self._no_wait or (self._early and self.held):
            heartbeat = expires = 0.0  # with a time the server would wait for a first message
        self._not_before = 0.0
        self._open.add(batch, size)
        self._pulse.listen(now, expires, heartbeat)
        most_bytes = ahead.GUARD if self.ahead is not None and self.max_messages > ahead.FIRST else size
        return self._template.replace(
            batch=batch, max_bytes=most_bytes, expires=expires, idle_heartbeat=heartbeat, id=self.pin_id
        )

    def _due(self) -> bool:
        """Whether one of the bounds is half free (or what the thresholds say) and the user keeps up."""
        if self._once:
            return not self.asked
        if self.held > self.threshold_messages or (self.counts_bytes and self.held_bytes > self.threshold_bytes):
            return False
        few = self.asked + self.held <= self.threshold_messages
        return few or (self.counts_bytes and self.asked_bytes + self.held_bytes <= self.threshold_bytes)

    def _time_left(self, now: float) -> float | None:
        """How long the next pull may wait: all its time, or what is left of a single pull's; None when none is."""
        if not self._once:
            return self._learned.expires
        left = self._until - now
        if not self._has_asked:
            left = max(left, _MOMENT)
        return min(left, self._learned.expires) if left >= _MOMENT else None

    # ------------------------------------------------------------ what comes

    def on_messages(self, count: int, size: int, now: float) -> Verdict:
        """That many messages came in, of that many bytes together (0 unless ``counts_bytes``). They are held."""
        self._alive(now)
        self._pulse.flow(count)
        self._shutdown_seen = False
        self._too_small = 0
        self.received += count
        self.held += count
        self.held_bytes += size
        self._open.settle(count, size)
        if self.total and self.received >= self.total:
            return self._finish()
        if self._once and self._filled():
            return self._finish()
        return REFILL if self._once and not self.asked else KEEP

    def on_message(self, size: int, now: float) -> Verdict:
        """One message came in."""
        return self.on_messages(1, size, now)

    def on_stashed(self, count: int, size: int) -> None:
        """So many messages are held that were not asked for by this ledger."""
        self.received += count
        self.held += count
        self.held_bytes += size
        if (self.total and self.received >= self.total) or (self._once and self._filled()):
            self._finish()

    def on_taken(self, count: int, size: int) -> Verdict:
        """That many of the messages held were handed to the user: room for as many. A single pull never calls it."""
        self.held = max(self.held - count, 0)
        self.held_bytes = max(self.held_bytes - size, 0)
        return REFILL if self._due() else KEEP

    def on_dropped(self, count: int, size: int) -> None:
        """That many of the messages held will be delivered again: they count as not received."""
        self.received -= count
        self.on_taken(count, size)

    def on_pin(self, pin_id: str) -> None:
        """A message carried a ``Nats-Pin-Id``: the pulls from here on carry it too. An empty one says nothing."""
        if pin_id:
            self.pin_id = pin_id

    def on_status(self, number: int, code: int, description: str, headers: Mapping[str, str], now: float) -> Verdict:
        """A status came in for a pull (0: for a probe); ``headers`` may tell what was pending (ADR-37)."""
        said = description.lower()
        if code == 409 and ("deleted" in said or "push based" in said):
            return self._stop(ConsumerGone(description, self.consumer))
        if number == 0:
            return self._on_probed(code, now)
        if self._open.is_old(number):
            return self._on_old(code, said)
        if code == 100:
            self._alive(now)
            self._pulse.losses = 0
            return KEEP
        if code in (400, 412):
            return self._stop(PullRefused(code, description, self.consumer))
        if code == 503:
            return self._on_nobody(now)
        self._alive(now, healthy=False)
        if code == 409 and "leadership change" in said:
            self._open.forget()  # every pull ended, not one
            self._pulse.losses += 1
            return self._again(now)
        left_bytes = self._end_pull(number, headers)
        if code == 423:
            self.pin_id = ""
            return self._again(now)
        if code == 409 and "server shutdown" in said:
            self._shutdown_seen = True
            self._pulse.losses = max(self.losses, 1)
            return self._again(now)
        if code == 409 and "message size exceeds" in said:
            return self._on_too_small(left_bytes, code, description)
        if code in (404, 408) or (code == 409 and "batch completed" in said):
            return self._on_end(code, now)
        return self._on_refusal(code, description, now)

    def _on_probed(self, code: int, now: float) -> Verdict:
        """Whatever the server has against the probe, somebody is there; unless nobody is, for pulls that were open."""
        if code != 503:
            self._alive(now, healthy=False)
            return KEEP
        return self._on_nobody(now) if self.asked else KEEP

    def _on_old(self, code: int, said: str) -> Verdict:
        """A pull that was given up has ended. A new leader says so when it is there: no need to wait any longer."""
        if code == 409 and "leadership change" in said and self._not_before:
            self._not_before = 0.0
            return REFILL
        return KEEP

    def _on_too_small(self, left_bytes: int, code: int, description: str) -> Verdict:
        """The next message needs more bytes than were free. Asking for as few again would go on for ever."""
        if self._once:
            next_size = min(self.max_bytes - self.held_bytes, self._learned.size)
            return REFILL if left_bytes < next_size else self._finish()
        if self.ahead is not None:
            self.ahead.begin_again()
            return REFILL
        most = min(self.max_bytes, self._learned.size)
        if left_bytes >= most:
            return self._stop(PullRefused(code, f"{description}: it needs more than {most} bytes", self.consumer))
        self._too_small = left_bytes
        return REFILL

    def _on_end(self, code: int, now: float) -> Verdict:
        """A pull came to its natural end. A single one is over, unless a learned limit made it ask in pieces."""
        self._backoff.reset()
        if not self._once:
            return REFILL
        in_pieces = self._learned.expires < self._expires if code == 408 else code == 409 and not self._filled()
        return REFILL if in_pieces and self._time_left(now) is not None else self._finish()

    def _on_refusal(self, code: int, description: str, now: float) -> Verdict:
        """A limit of the consumer is learned and kept from now on; anything else is asked again, later and later."""
        notice = PullRefused(code, description, self.consumer)
        news = self._learned.learn(description.lower())
        if news:
            return Verdict(Action.REFILL, notice=notice)
        if news is None and self._once and "exceeded maxwaiting" not in description.lower():
            return self._stop(notice)
        is_first = not self._backoff
        self._wait(now)
        if self._once:
            self._not_before = min(self._not_before, self._until)
        return Verdict(Action.REFILL, notice=notice if is_first or not self._once else None)

    def _on_nobody(self, now: float) -> Verdict:
        """Nobody listens for pulls: the consumer is gone, or has no leader for the moment. Whoever may ask has to."""
        self.unanswered += 1
        self._open.give_up()
        self._pulse.losses = max(self.losses, 1)
        seen = "no server took its pull (503 No Responders)"
        if self._shutdown_seen:
            seen += " after its server shut down (409 Server Shutdown)"
        gone = ConsumerGone(seen, self.consumer)
        self._wait(now)
        if self._once:
            self._not_before = min(self._not_before, self._until)
        return Verdict(Action.REFILL, notice=gone)

    # ------------------------------------------------------------ what does not come

    def on_silence(self, now: float) -> Verdict:
        """To be called at ``deadline``: missed heartbeats give everything asked for up and ask again."""
        if self._over:
            return KEEP
        if self._once and now >= self._until + (_GRACE if self._connected else 0.0):
            return self._finish()
        if not self._connected:
            return KEEP
        if self._not_before and now >= self._not_before:
            self._not_before = 0.0
            if self._once and self._time_left(now) is None:
                return self._finish()
            return REFILL
        if not self.asked or now < self._pulse.silent_at:
            return KEEP
        if self._pulse.wants_probe(now):
            return Verdict(Action.PROBE)
        missed = HeartbeatMissed(self._pulse.patience, self.consumer)
        self._lose()
        if self._once and (self._time_left(now) is None or (self._early and self.held)):
            return self._finish()
        return Verdict(Action.REFILL, notice=missed)

    def on_not_sent(self, now: float) -> None:
        """The last pull could not be sent for want of room. It is asked again, later and later."""
        self._open.take_back()
        self._wait(now)

    def on_disconnect(self) -> None:
        """The connection is gone: nothing is asked and no heartbeat is due until ``on_reconnect``."""
        self._connected = False
        if self._early and self.held:
            self._finish()

    def on_reconnect(self, now: float) -> Verdict:
        """The connection is back. The pulls of the old one are lost; the consumer is not looked up (ADR-37)."""
        self._connected = True
        self._lose()
        self._open.given_up = False
        self._pulse.losses = 1
        self._not_before = 0.0
        self._backoff.reset()
        if self._over:
            return KEEP
        if self._once and self._time_left(now) is None:
            return self._finish()
        return REFILL

    def begin(self, now: float) -> None:
        """The time of a single pull begins, though its first request may have to wait."""
        if self._once and not self._until:
            self._until = now + self._expires

    def begin_again(self) -> None:
        """Another consumer takes the place of the one that was pulled from. What is held is held; nothing is on its
        way, nothing is being waited for, and what ended the old one is forgotten.
        """
        self._open.forget()
        self._open.given_up = False
        self._over = bool(self.total and self.received >= self.total) or (self._once and self._filled())
        self._not_before, self.unanswered, self._pulse.losses = 0.0, 0, max(self.losses, 1)
        self._backoff.reset()

    def stop(self) -> None:
        """Whoever reads has had enough: nothing more is asked for."""
        self._over = True
        self._open.give_up()

    # ------------------------------------------------------------ the books

    def _end_pull(self, number: int, headers: Mapping[str, str]) -> int:
        """One pull ended with something left of it; returns how many bytes that was."""
        left, left_bytes = (_count(headers.get(f"Nats-Pending-{what}")) for what in ("Messages", "Bytes"))
        if left is not None:
            self._open.end(number, (left, left_bytes or 0))
        elif self._once:
            self._open.forget()
        else:
            self._open.end(number, None)  # without these headers the server did not take it at all
        return left_bytes or 0

    def _filled(self) -> bool:
        """Whether a single pull has all that it was to get."""
        return self.held >= self.max_messages or (self.counts_bytes and self.held_bytes >= self.max_bytes)

    def _lose(self) -> None:
        """What was on its way is lost, as far as is known."""
        self._open.give_up()
        self._pulse.losses += 1

    def _alive(self, now: float, *, healthy: bool = True) -> None:
        self._pulse.beat(now)
        self.unanswered = 0
        if healthy:
            self._backoff.reset()

    def _again(self, now: float) -> Verdict:
        """Asked again at once the first time, later and later when that keeps failing."""
        if self._backoff:
            self._wait(now)
        else:
            self._backoff.fail()
        return REFILL

    def _wait(self, now: float) -> None:
        self._not_before = now + self._backoff.fail()

    def _finish(self) -> Verdict:
        self._over = True
        self._open.give_up()
        return DONE

    def _stop(self, error: NatsError) -> Verdict:
        self._over = True
        self._open.give_up()
        return Verdict(Action.STOP, error=error)


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _threshold(what: str, given: int | None, bound: int) -> int:
    if given is None:
        return -(-bound // 2)
    if given > bound:
        raise ConfigError(what, given, f"cannot be above its bound of {bound}")
    return given
