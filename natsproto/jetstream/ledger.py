"""The decisions of pulling and of reading in order, without I/O (ADR-37, ADR-42, ADR-17).

Owns two books: PullLedger knows how much was asked of the server, how much of it came and how much of that is not
taken yet, and says when to ask again; OrderedCursor knows how far a reader is and says what is next, what is stale
and what is a gap. Both know no socket, no clock and no task: the time is passed in (float seconds on any steady
clock) and the drivers carry the verdicts out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from natsproto.errors import ConfigError, ConsumerGone, HeartbeatMissed, NatsError, PullRefused
from natsproto.jetstream import ahead
from natsproto.jetstream.ahead import Ahead
from natsproto.jetstream.codec import Record, Seconds, dumps, flag, integer, seconds, text
from natsproto.jetstream.config import AckPolicy, ConsumerConfig, DeliverPolicy
from natsproto.jetstream.info import ConsumerInfo

UNBOUNDED: Final = 1_000_000
"""What is asked for when only bytes are bounded; a server takes a missing count for one message (ADR-37)."""
EXPIRES: Final = 30.0
HEARTBEATS_MISSED: Final = 2
HEARTBEAT: Final = 2.0
"""Seconds between heartbeats. ADR-37 says half of ``expires``, but a leader that was killed says nothing: with 15 s its
end would be noticed after 30. Two of these are shorter than any election (4 to 9 s), so that the pulls are being asked
again when the next leader is there.
"""
ANXIOUS_HEARTBEAT: Final = 0.25
"""Seconds between heartbeats of the first pull after a loss, doubling with every pull of which nothing is heard: a pull
that reaches a leader on its way out disappears without a word.
"""
ANXIOUS_EXPIRES: Final = 5.0
PROBE_AFTER: Final = 0.2
"""Seconds of sudden silence after which it is asked whether anybody takes pulls at all."""
PROBE_EVERY: Final = 8
"""Messages that must have come since the last such question, so that a trickle is not doubled by questions."""
_FIRST_WAIT, _WAIT_GROWTH, _LONGEST_WAIT = 0.1, 1.04, 10.0  # overshoots an election by 4 % of its time
_MOST_FAILURES = 120  # in a row; the longest wait is reached then
_MOMENT = 0.01  # less time than this is not worth another pull
_GRACE = 0.1  # how much longer than a single pull's time its end is waited for
_WITHOUT_HEARTBEAT = 1.0  # how much longer than `expires` a pull without heartbeats is waited for

_LIMIT = re.compile(r"exceeded maxrequest(batch|expires|maxbytes) of (\S+)")
_GO_DURATION = re.compile(r"([0-9.]+)(h|ms|m|us|µs|ns|s)")
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


class PullRequest(Record):
    """What goes to ``CONSUMER.MSG.NEXT``; ``body()`` is its JSON. Durations are seconds."""

    batch: int = integer(default=0)
    expires: Seconds = seconds(default=0.0)
    max_bytes: int = integer(default=0)
    no_wait: bool = flag(default=False)
    idle_heartbeat: Seconds = seconds(default=0.0)
    group: str = text(default="")
    min_pending: int = integer(default=0)
    min_ack_pending: int = integer(default=0)
    id: str = text(default="")
    priority: int = integer(default=0, high=9)

    def body(self) -> bytes:
        """The payload of the request."""
        return dumps(self)


PROBE: Final = PullRequest(batch=1, expires=1.0, idle_heartbeat=1.0)
"""A pull that every server refuses at once, for its heartbeat, and that changes nothing. What matters is who answers:
"nobody" (503) tells within a moment that the server of a consumer was killed, where silence needs two heartbeats.
"""


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


def heartbeat_for(expires: float) -> float:
    """The heartbeat that goes with a pull: half its time, 2 s at most; none when it ends within one second.

    The server refuses a heartbeat longer than half of ``expires``.
    """
    return min(expires / 2, HEARTBEAT) if expires >= 1.0 else 0.0


class _OpenPull(NamedTuple):
    number: int
    batch: int
    size: int


class PullLedger:
    """How much to pull, and when. One for each fetch, ``messages()`` or ``consume()``.

    ``max_messages`` bounds what is asked for or waits to be taken, ``max_bytes`` its bytes (0: no bound); both may be
    given. A new pull goes out when what is left of one of them is at or below its threshold (half, rounded up).
    ``total`` is the number of messages after which it is DONE (0: never). With ``follows``, and neither bound nor
    threshold, the bound follows the reader: ``ahead`` has to be told then what comes and what is taken.

    With ``once`` it is one pull of at most ``max_messages`` and ``max_bytes``: DONE when the server ended it, asked
    again only for what a lost server still owed, and then for the time that is left of ``expires``. With ``no_wait``
    it takes what is there; ``expires`` is then how long a server is looked for that can tell.

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
        self.asked, self.asked_bytes = 0, 0  # of the server, not here yet
        self.held, self.held_bytes = 0, 0  # here, not taken yet
        self.received = 0
        self.number = 0  # of the last pull
        self.unanswered = 0  # pulls in a row that nobody was there to take
        self.losses = 0  # of pulls, in a row, without a sign of life between
        self._expires = self._expires_limit = expires
        self._heartbeat = heartbeat
        self._once, self._no_wait = once, no_wait
        self._template = PullRequest(
            no_wait=no_wait,
            group=group,
            min_pending=min_pending,
            min_ack_pending=min_ack_pending,
            priority=priority,
        )
        self._batch_limit, self._bytes_limit = max_messages, max_bytes  # what one pull may ask, learned from refusals
        self._sent: list[_OpenPull] = []  # the pulls that may be open, oldest first
        self._lost_to = 0  # the last pull that was given up, or is known to have ended, with all before it
        self._too_small = 0  # bytes that were free and not enough for the next message
        self._heard_at = 0.0  # the last sign of life
        self._patience = 0.0  # how long silence may last after it, 0 for as long as it likes
        self._flow = 0  # messages since the last probe
        self._not_before = 0.0
        self._failures = 0  # in a row, without a sign of life between
        self._until = 0.0  # the end of a single pull
        self._has_asked = False
        self._connected = True
        self._over = False

    def _resize(self, max_messages: int) -> None:
        """From now on ``max_messages`` is another one, with the threshold that comes with it; what was asked for stays
        asked for.
        """
        if self._batch_limit == self.max_messages:  # nothing less was learned
            self._batch_limit = max_messages
        self.max_messages, self.threshold_messages = max_messages, _threshold("threshold_messages", None, max_messages)

    # ------------------------------------------------------------ asking

    @property
    def done(self) -> bool:
        """Whether nothing more will be asked for."""
        return self._over

    @property
    def room(self) -> int:
        """How many messages more fit: beyond what was asked for, if others left something behind on the server."""
        if not self._once:
            return UNBOUNDED
        return 0 if self._over else self.max_messages - self.held

    @property
    def deadline(self) -> float | None:
        """When to call ``on_silence`` if nothing else happens before; None for not at all."""
        if self._over:
            return None
        if not self._connected:
            return self._until or None
        end = self._until + _GRACE if self._until else 0.0
        silent_at = self._heard_at + self._wait_in_silence() if self._patience else 0.0
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
        batch = min(room, self._batch_limit)
        if self.total:
            batch = min(batch, self.total - self.received - self.asked)
        if batch <= 0:
            return None
        size = 0
        if self.counts_bytes:
            room = self.max_bytes - self.asked_bytes - self.held_bytes
            size = min(room, self._bytes_limit)
            # A sliver beside a pull that is open would be refused by the next message, again and again.
            if size <= self._too_small or (self.asked and room * 4 < self.max_bytes):
                return None
        expires = self._time_left(now)
        if expires is None:
            self._finish()
            return None
        self._has_asked = True
        heartbeat = self._heartbeat if self._heartbeat * 2 <= expires else heartbeat_for(expires)
        if self.losses:
            heartbeat, expires = self._anxious(heartbeat, expires)
        if self._no_wait:
            expires = 0.0  # with one the server would wait for a first message
        self._not_before = 0.0
        self._drop_served()
        self.asked += batch
        self.asked_bytes += size
        self.number += 1
        self._sent.append(_OpenPull(self.number, batch, size))
        self._listen(now, expires, heartbeat)
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
            return self._expires_limit
        left = self._until - now
        if not self._has_asked:
            left = max(left, _MOMENT)
        return min(left, self._expires_limit) if left >= _MOMENT else None

    def _anxious(self, heartbeat: float, expires: float) -> tuple[float, float]:
        """Heartbeat and time of a pull after others were lost: it shows soon whether anybody has it."""
        sooner = ANXIOUS_HEARTBEAT * 2.0 ** min(self.losses - 1, 10)
        if sooner >= heartbeat or sooner * 2 > expires:
            return heartbeat, expires
        return sooner, min(expires, max(ANXIOUS_EXPIRES, sooner * 2))

    def _listen(self, now: float, expires: float, heartbeat: float) -> None:
        """From now on a sign of life is due."""
        self._patience = HEARTBEATS_MISSED * heartbeat if heartbeat else expires + _WITHOUT_HEARTBEAT
        self._heard_at = now

    def _wait_in_silence(self) -> float:
        """For how long silence is borne before something is done about it."""
        return min(self._patience, PROBE_AFTER) if self._flow >= PROBE_EVERY else self._patience

    # ------------------------------------------------------------ what comes

    def on_messages(self, count: int, size: int, now: float) -> Verdict:
        """That many messages came in, of that many bytes together (0 unless ``counts_bytes``). They are held."""
        self._alive(now)
        self.losses = 0
        self._too_small = 0
        self._flow += count
        self.received += count
        self.held += count
        self.held_bytes += size
        self._settle(count, size)
        if self.total and self.received >= self.total:
            return self._finish()
        if self._once and not self.asked:
            return self._finish() if self._filled() else REFILL
        return KEEP

    def on_message(self, size: int, now: float) -> Verdict:
        """One message came in."""
        return self.on_messages(1, size, now)

    def on_stashed(self, count: int, size: int) -> None:
        """So many messages are held that were not asked for by this ledger."""
        self.received += count
        self.held += count
        self.held_bytes += size
        if self.total and self.received >= self.total:
            self._finish()

    def on_taken(self, count: int, size: int) -> Verdict:
        """That many of the messages held were handed to the user: room for as many. A single pull never calls it."""
        self.held = max(self.held - count, 0)
        self.held_bytes = max(self.held_bytes - size, 0)
        return REFILL if self._due() else KEEP

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
        if number <= self._lost_to:
            return self._on_old(code, said)
        if code == 100:
            self._alive(now)
            self.losses = 0
            return KEEP
        if code in (400, 412):
            return self._stop(PullRefused(code, description, self.consumer))
        if code == 503:
            return self._on_nobody(now)
        self._alive(now, healthy=False)
        if code == 409 and "leadership change" in said:
            self._lose()  # every pull ended, not one
            return self._again(now)
        left_bytes = self._end_pull(number, headers)
        if code == 423:
            self.pin_id = ""
            return self._again(now)
        if code == 409 and "server shutdown" in said:
            self.losses = max(self.losses, 1)
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
            return self._finish()
        if self.ahead is not None:
            self.ahead.begin_again()
            return REFILL
        most = min(self.max_bytes, self._bytes_limit)
        if left_bytes >= most:
            return self._stop(PullRefused(code, f"{description}: it needs more than {most} bytes", self.consumer))
        self._too_small = left_bytes
        return REFILL

    def _on_end(self, code: int, now: float) -> Verdict:
        """A pull came to its natural end. A single one is over, unless a learned limit made it ask in pieces."""
        self._failures = 0
        if not self._once:
            return REFILL
        in_pieces = self._expires_limit < self._expires if code == 408 else code == 409 and not self._filled()
        return REFILL if in_pieces and self._time_left(now) is not None else self._finish()

    def _on_refusal(self, code: int, description: str, now: float) -> Verdict:
        """A limit of the consumer is learned and kept from now on; anything else is asked again, later and later."""
        notice = PullRefused(code, description, self.consumer)
        if limit := _LIMIT.search(description.lower()):
            if self._learn(limit[1], limit[2]):
                return Verdict(Action.REFILL, notice=notice)
        elif self._once:
            return self._stop(notice)
        self._wait(now)
        return Verdict(Action.REFILL, notice=notice)

    def _learn(self, what: str, limit: str) -> bool:
        """Whether the limit was understood and is news."""
        if what == "expires":
            longest = sum(float(number) * _UNITS[unit] for number, unit in _GO_DURATION.findall(limit))
            news = 0 < longest < self._expires_limit
            if news:
                self._expires_limit = longest
            return news
        most = int(limit) if limit.isdecimal() else 0
        if what == "batch":
            news = 0 < most < self._batch_limit
            self._batch_limit = most if news else self._batch_limit
        else:
            news = 0 < most < self._bytes_limit
            self._bytes_limit = most if news else self._bytes_limit
        return news

    def _on_nobody(self, now: float) -> Verdict:
        """Nobody listens for pulls: the consumer is gone, or has no leader for the moment. Whoever may ask has to."""
        self.unanswered += 1
        self._forget()
        self.losses = max(self.losses, 1)
        gone = ConsumerGone("nobody takes its pulls: it is deleted, or has no leader", self.consumer)
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
        if not self._patience or now < self._heard_at + self._wait_in_silence():
            return KEEP
        if now < self._heard_at + self._patience:
            self._flow = 0
            return Verdict(Action.PROBE)
        missed = HeartbeatMissed(self._patience, self.consumer)
        self._lose()
        if self._once and self._time_left(now) is None:
            return self._finish()
        return Verdict(Action.REFILL, notice=missed)

    def on_not_sent(self, now: float) -> None:
        """The last pull could not be sent for want of room. It is asked again, later and later."""
        if self._sent:
            pull = self._sent.pop()
            self._settle(pull.batch, pull.size)
        self._wait(now)

    def on_disconnect(self) -> None:
        """The connection is gone: nothing is asked and no heartbeat is due until ``on_reconnect``."""
        self._connected = False

    def on_reconnect(self, now: float) -> Verdict:
        """The connection is back. The pulls of the old one are lost; the consumer is not looked up (ADR-37)."""
        self._connected = True
        self._lose()
        self.losses = 1
        self._not_before, self._failures = 0.0, 0
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
        self._forget()
        self._over = bool(self.total and self.received >= self.total) or (self._once and self._filled())
        self._not_before, self._failures, self.unanswered, self.losses = 0.0, 0, 0, max(self.losses, 1)

    def stop(self) -> None:
        """Whoever reads has had enough: nothing more is asked for."""
        self._over = True
        self._forget()

    # ------------------------------------------------------------ the books

    def _settle(self, count: int, size: int) -> None:
        """That much of what was asked for needs no more waiting."""
        self.asked = max(self.asked - count, 0)
        if self.counts_bytes:
            self.asked_bytes = max(self.asked_bytes - size, 0)
        # A pull whose bytes are used up to the last one ends without a word, and what it had left in messages with it.
        if not self.asked or (self.counts_bytes and not self.asked_bytes):
            self._forget()

    def _end_pull(self, number: int, headers: Mapping[str, str]) -> int:
        """One pull ended with something left of it; returns how many bytes that was."""
        left, left_bytes = (_count(headers.get(f"Nats-Pending-{what}")) for what in ("Messages", "Bytes"))
        pull = next((pull for pull in self._sent if pull.number == number), None)
        if pull is not None:
            self._sent.remove(pull)
        if left is not None:
            self._settle(left, left_bytes or 0)
        elif self._once:
            self._forget()
        elif pull is not None:
            self._settle(pull.batch, pull.size)  # without these headers the server did not take it at all
        return left_bytes or 0

    def _drop_served(self) -> None:
        """Forgets the oldest pulls that the younger ones can account for: they were served and ended silently."""
        sizes, owed = (
            ([pull.size for pull in self._sent], self.asked_bytes)
            if self.counts_bytes
            else ([pull.batch for pull in self._sent], self.asked)
        )
        left, served = sum(sizes), 0
        while served < len(sizes) and left - sizes[served] >= owed:
            left -= sizes[served]
            served += 1
        del self._sent[:served]

    def _filled(self) -> bool:
        """Whether a single pull has all that it was to get."""
        return self.held >= self.max_messages or (self.counts_bytes and self.held_bytes >= self.max_bytes)

    def _lose(self) -> None:
        """What was on its way is lost."""
        self._forget()
        self.losses += 1

    def _forget(self) -> None:
        """Nothing is on its way any more."""
        self.asked = self.asked_bytes = 0
        self._sent.clear()
        self._lost_to = self.number
        self._patience = 0.0

    def _alive(self, now: float, *, healthy: bool = True) -> None:
        self._heard_at = now
        self.unanswered = 0
        if healthy:
            self._failures = 0

    def _again(self, now: float) -> Verdict:
        """Asked again at once the first time, later and later when that keeps failing."""
        if self._failures:
            self._wait(now)
        else:
            self._failures = 1
        return REFILL

    def _wait(self, now: float) -> None:
        self._not_before = now + min(_FIRST_WAIT * _WAIT_GROWTH**self._failures, _LONGEST_WAIT)
        self._failures = min(self._failures + 1, _MOST_FAILURES)

    def _finish(self) -> Verdict:
        self._over = True
        self._forget()
        return DONE

    def _stop(self, error: NatsError) -> Verdict:
        self._over = True
        self._forget()
        return Verdict(Action.STOP, error=error)


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _threshold(what: str, given: int | None, bound: int) -> int:
    if given is None:
        return -(-bound // 2)
    if given > bound:
        raise ConfigError(what, given, f"cannot be above its bound of {bound}")
    return given


# ---------------------------------------------------------------- reading in order


class Place(Enum):
    """Where a message belongs."""

    NEXT = "next"
    """It follows the last one: deliver it."""
    STALE = "stale"
    """It is of a consumer given up: drop it."""
    GAP = "gap"
    """Something before it is missing: drop it and make the next consumer."""


class OrderedCursor:
    """How far an ordered reader is, and the consumers that carry it (ADR-17).

    ``config`` says where to begin and what to filter; what an ordered consumer cannot have is a ConfigError. The names
    of the consumers are ``prefix`` and a serial, so that messages of one given up are told from those of its
    successor.
    """

    def __init__(self, prefix: str, config: ConsumerConfig) -> None:
        for what, value, wanted in (
            ("durable_name", config.durable_name, ""),
            ("name", config.name, ""),
            ("deliver_subject", config.deliver_subject, ""),
            ("deliver_group", config.deliver_group, ""),
            ("max_deliver", config.max_deliver in (-1, 1), True),
            ("num_replicas", config.num_replicas in (0, 1), True),
            ("ack_policy", config.ack_policy in (AckPolicy.NONE, AckPolicy.EXPLICIT), True),  # the latter by default
            ("backoff", config.backoff, ()),
        ):
            if value != wanted:
                raise ConfigError(what, getattr(config, what), "an ordered consumer chooses this itself")
        self._base, self._prefix = config, prefix
        self.serial = 0
        self.name = ""
        self.stream_seq = 0  # of the last message delivered
        self.consumer_seq = 0
        self._begin = 0  # where the stream stood when "new" began, plus one
        self._failures = 0

    def next_consumer(self, *, deliver_subject: str = "", heartbeat: float = 5.0) -> ConsumerConfig:
        """The consumer to create now, from the message after the last one on. All before it are stale from here.

        With ``deliver_subject`` a push consumer with flow control and heartbeats of so many seconds.
        """
        self.serial += 1
        self.name = f"{self._prefix}_{self.serial}"
        self.consumer_seq = 0
        base = self._base
        filters = base.filters
        if base.deliver_policy == DeliverPolicy.LAST_PER_SUBJECT and not filters:
            filters = (">",)  # the server insists on a filter there
        config = base.replace(
            name=self.name,
            ack_policy=AckPolicy.NONE,
            max_deliver=1,
            num_replicas=1,
            mem_storage=True,
            inactive_threshold=base.inactive_threshold or 300.0,
            filter_subject=filters[0] if len(filters) == 1 else "",
            filter_subjects=filters if len(filters) > 1 else (),
        )
        begin = self.stream_seq + 1 if self.stream_seq else self._begin
        if begin:
            config = config.replace(
                deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=begin, opt_start_time=None
            )
        if deliver_subject:
            config = config.replace(
                deliver_subject=deliver_subject, flow_control=True, idle_heartbeat=heartbeat, ack_wait=22 * 3600.0
            )
        return config

    def on_created(self, info: ConsumerInfo) -> None:
        """The consumer is there. Where "new" began is remembered, for the case that it is lost before a message."""
        if self._base.deliver_policy == DeliverPolicy.NEW and not self.stream_seq and not self._begin:
            self._begin = info.delivered.stream_seq + 1

    def on_failed(self) -> float:
        """No consumer could be made, or one was lost before it was heard of: seconds to wait before the next one.

        0.1 at first, 4 % of the time that it has failed for, 10 at most.
        """
        self._failures = min(self._failures + 1, _MOST_FAILURES)
        return min(_FIRST_WAIT * _WAIT_GROWTH ** (self._failures - 1), _LONGEST_WAIT)

    def on_message(self, consumer: str, consumer_seq: int, stream_seq: int) -> Place:
        """Where a message belongs; the cursor moves when it is next."""
        if consumer != self.name:
            return Place.STALE
        if consumer_seq != self.consumer_seq + 1:
            return Place.GAP
        self.consumer_seq = consumer_seq
        self.stream_seq = stream_seq
        self._failures = 0
        return Place.NEXT

    def on_run(self, count: int, consumer_seq: int, stream_seq: int) -> bool:
        """Whether ``count`` messages that this consumer alone can have sent, the last of them with these sequences,
        are the next ones; the cursor moves if so. If not, ``on_message`` tells for each.

        A consumer numbers what it sends one after the other and a connection keeps their order. So when the last of
        n messages is n further than the one before them, none of them is missing, doubled or out of order.
        """
        if consumer_seq != self.consumer_seq + count or stream_seq < self.stream_seq + count:
            return False
        self.consumer_seq, self.stream_seq = consumer_seq, stream_seq
        self._failures = 0
        return True

    def on_heartbeat(self, last_consumer_seq: int) -> Place:
        """A heartbeat told the last sequence delivered (``Nats-Last-Consumer``): NEXT when all of it came."""
        if last_consumer_seq > self.consumer_seq:
            return Place.GAP
        self._failures = 0
        return Place.NEXT
