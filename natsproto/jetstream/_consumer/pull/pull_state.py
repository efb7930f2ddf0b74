"""PURE. The decisions of pulling (ADR-37, ADR-42): events in, actions out.

PullState owns the pending messages, the limits learned from refusals, and the timeouts. It knows no socket, clock or
task: the time is passed in as float seconds of any steady clock. The buffer counts received and consumed messages, and
is only read here.

Rules:

1. A pull is due when what is pending and what waits unread have together fallen to the threshold. It asks for what
   then fits, in messages and in bytes.
2. A bounded reading has one pull. It is over when the server ends that pull, when everything has arrived, or at its
   time. It pulls again, in the time that is left, only for what a lost pull still owed, or where a learned limit made
   several pulls of one.
3. A pull ends when all of it has arrived, or its bytes are used up: then silently. Else by a status with what is left,
   by a change of leader (then all do), or by silence of two heartbeats.
4. A pull that was given up may still be served. Its messages are taken, and its statuses no longer count.
5. After a loss the heartbeat of the next pull is short and doubles with each loss, since a leader that is stepping
   down drops pulls without a word.
6. A message or a heartbeat sets all counts of losses and failures to zero.
7. A refusal that names a limit is learned, and the pull is sent again within the limit. After other refusals an
   endless reading waits, longer each time; a bounded one ends with the error, unless only the waiting queue is full.
8. "No responders" does not say whether the consumer is gone: the driver looks it up while this state waits.
9. A burst of messages that ends suddenly is probed once, with a pull that every server refuses without effect.
10. Without a connection nothing is pulled and no heartbeat is due. After a reconnect the old pulls are lost, and
    nothing is looked up.
11. A server drops a message that crosses the end of the subscription, and has counted its delivery. Where that is the
    only one, no more pulls are sent, and each open one has ended before the subscription does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple, Protocol

from natsproto import errors
from natsproto._durations import NO_LIMIT_S
from natsproto.jetstream._consumer.delivery.prefetch import MAX_PULL_BYTES, Prefetch
from natsproto.jetstream._consumer.pull.pull_limits import NO_PULL_LIMITS, PullLimits, retry_wait
from natsproto.jetstream._consumer.pull_options import (
    DEFAULT_MAX_MESSAGES,
    NO_PRIORITY,
    UNBOUNDED_BATCH,
    PriorityOptions,
    PullMode,
    PullOptions,
    default_heartbeat,
)
from natsproto.jetstream._values.codec import dumps

MIN_EXPIRES_S: Final = 0.01
"""A pull with less time than this is not sent."""
END_GRACE_S: Final = 0.1
"""Seconds to wait for the end of a bounded pull after its time."""

MAX_MISSED_HEARTBEATS: Final = 2
HEARTBEAT_AFTER_LOSS_S: Final = 0.25
"""Seconds between heartbeats of the first pull after a loss; they double with every lost pull. A pull that reaches a
leader that is stepping down disappears silently.
"""
EXPIRES_AFTER_LOSS_S: Final = 5.0
PROBE_AFTER_S: Final = 0.2
"""Seconds of sudden silence after which a probe is sent."""
MIN_MESSAGES_BETWEEN_PROBES: Final = 8
"""Messages that must have arrived since the last probe, so that slow traffic is not doubled by probes."""
PROBE: Final = b'{"batch":1,"expires":1000000000,"idle_heartbeat":1000000000}'
"""A pull that every server refuses at once, for its heartbeat, without effect. The reply 503 (no responders) reveals at
once that the consumer's server was killed; silence needs two heartbeats.
"""
_GRACE_WITHOUT_HEARTBEAT_S = 1.0  # how much longer than `expires` a pull without heartbeats is waited for


class Action(Enum):
    """The next step of the driver, PullSource."""

    KEEP = "keep"
    """Nothing."""
    ARM = "arm"
    """Check ``deadline`` again: it is earlier now."""
    REFILL = "refill"
    """Call ``next_request()``, which may return None for now."""
    PROBE = "probe"
    """Send PROBE, as pull 0."""
    DONE = "done"
    """A bounded pull is complete."""
    STOP = "stop"
    """Reading has ended with ``error``."""


class PullDecision(NamedTuple):
    """An action, with the error that ends reading (STOP), or one that is survived and reported (``notice``)."""

    action: Action
    error: errors.NatsError | None = None
    notice: errors.NatsError | None = None


KEEP: Final = PullDecision(Action.KEEP)
ARM: Final = PullDecision(Action.ARM)
REFILL: Final = PullDecision(Action.REFILL)
DONE: Final = PullDecision(Action.DONE)


class PullRequest(NamedTuple):
    """A request to ``CONSUMER.MSG.NEXT``; ``body()`` is its JSON. Durations are seconds."""

    batch: int
    expires: float = 0.0
    max_bytes: int = 0
    no_wait: bool = False
    idle_heartbeat: float = 0.0
    priority: PriorityOptions = NO_PRIORITY

    def body(self, pin_id: str = "") -> bytes:
        """The payload of the request.

        The heartbeat is cut to half of ``expires`` in whole nanoseconds. The server refuses one that is a nanosecond
        longer, and half of a float rounds up as often as down.
        """
        parts = [f'{{"batch":{self.batch}']
        if self.expires:
            expires = round(self.expires * 1e9)
            parts.append(f'"expires":{expires}')
            if self.idle_heartbeat:
                parts.append(f'"idle_heartbeat":{min(round(self.idle_heartbeat * 1e9), expires // 2)}')
        if self.max_bytes:
            parts.append(f'"max_bytes":{self.max_bytes}')
        if self.no_wait:
            parts.append('"no_wait":true')
        if self.priority.group:
            parts.append(dumps(self.priority)[1:-1].decode())
            if pin_id:
                parts.append(f'"id":{json.dumps(pin_id)}')
        return (",".join(parts) + "}").encode()


class ReceivedCounts(Protocol):
    """The messages and bytes that a buffer has received and its reader has consumed."""

    received: int
    received_bytes: int
    consumed: int
    consumed_bytes: int


class _Pull(NamedTuple):
    number: int
    batch: int
    size: int


class PullPhase(Enum):
    """The phase of a reading."""

    PULLING = "pulling"
    SERVER_SHUTDOWN = "server_shutdown"
    """The consumer's server is shutting down."""
    DISCONNECTED = "disconnected"
    """There is no connection: no pulls are sent and no heartbeat is due."""
    DONE = "done"
    """No more pulls are sent."""


class PullState:
    """Decides how much to pull from one consumer, and when.

    ``predecessor`` is the state of the previous consumer of an ordered reader.

    With bounded options there is one pull: DONE when the server ends it. Only messages that a lost server still owed
    are pulled again, in the time left until ``until``. With NO_WAIT that is the time to wait for the server's reply.

    Pulls are numbered from 1 and each needs its own reply subject: a cluster identifies open pulls by their reply
    subjects, and forgets the subject with the first of them that ends. After a change of leader the others would be
    lost silently.

    The size of a message is that of its subject, ack subject, header block and payload (ADR-37). Sizes are needed only
    with ``max_bytes``; the server counts before it adds a ``Nats-Pin-Id`` header, so leave that one out.

    A pull WITH a heartbeat that finds the consumer's waiting queue full (``max_waiting``) is dropped by the server
    without a 409: only missed heartbeats reveal it.
    """

    def __init__(
        self,
        options: PullOptions,
        counts: ReceivedCounts,
        now: float,
        *,
        consumer: tuple[str, str] = ("", ""),
        until: float = 0.0,
        prefetch: Prefetch | None = None,
        predecessor: PullState | None = None,
    ) -> None:
        self._options, self._counts, self._prefetch, self._consumer = options, counts, prefetch, consumer
        self._is_bounded = options.mode is not PullMode.ENDLESS
        # One pull at a time: a server ends several that do not wait together, and does not say what each has left.
        self._is_single = self._is_bounded or options.stop_when_empty
        self._is_no_wait = options.mode is PullMode.NO_WAIT or options.stop_when_empty
        self._until = (until or now + options.expires) if self._is_bounded else 0.0
        self.phase = PullPhase.PULLING
        self.pending = self.pending_bytes = 0
        """Messages, and their bytes, that were requested and have not arrived."""
        self.number = 0
        """The number of the last pull."""
        self._open_pulls: list[_Pull] = []  # that may be open, the oldest first
        self._last_ended = 0  # the last pull that was given up or has ended, with all before it
        self.has_abandoned_pulls = False
        """True if a pull was abandoned that the server may still serve."""
        self._limits: PullLimits = NO_PULL_LIMITS if predecessor is None else predecessor._limits
        self.losses: int = 0 if predecessor is None else max(predecessor.losses, 1)
        """Pulls lost in a row."""
        self.no_responders = 0
        """Pulls in a row without responders."""
        self.idle_timeout = 0.0
        """Seconds of silence after which open pulls are lost."""
        self._last_heard = 0.0
        self._since_probe = 0  # messages since the last probe
        self._failures = 0  # in a row
        self._retry_at = 0.0  # when it may be asked again
        if counts.received and (self._is_complete() or self._has_available()):  # the first condition saves two calls
            self.phase = PullPhase.DONE

    # ------------------------------------------------------------ pulling

    @property
    def is_done(self) -> bool:
        """True if no more pulls will be sent."""
        return self.phase is PullPhase.DONE

    @property
    def is_served(self) -> bool:
        """True if no open pull is known."""
        return not self.pending or self.phase is PullPhase.DISCONNECTED

    @property
    def has_one_pull(self) -> bool:
        """True if the server can serve no pull but the last one."""
        return not self.has_abandoned_pulls and self.pending == self._open_pulls[-1].batch

    @property
    def capacity(self) -> int:
        """The number of messages that still fit, beyond the requested ones if other readers left messages over."""
        if not self._is_bounded:
            return UNBOUNDED_BATCH
        return self._options.max_messages - self._counts.received + self._counts.consumed

    @property
    def refill_at(self) -> int | None:
        """The number of consumed messages at which the next pull is due; None for never."""
        if self._is_bounded or self.phase is PullPhase.DONE or (self._is_single and self.pending):
            return None
        if self._options.max_bytes:
            return 0
        return self._counts.received + self.pending - self._threshold()

    @property
    def deadline(self) -> float | None:
        """When to call ``on_deadline``; None for never."""
        if self.phase is PullPhase.DONE:
            return None
        if self.phase is PullPhase.DISCONNECTED:
            return self._until or None
        due = self._until + END_GRACE_S if self._is_bounded else 0.0
        if self._retry_at:  # never after ``_until``
            due = self._retry_at
        if self.pending:
            wait = (
                self.idle_timeout
                if self._since_probe < MIN_MESSAGES_BETWEEN_PROBES
                else min(self.idle_timeout, PROBE_AFTER_S)
            )
            if not due or self._last_heard + wait < due:
                due = self._last_heard + wait
        return due or None

    def next_body(self, now: float, pin_id: str = "") -> bytes | None:
        """Return the payload of the pull to send now and count it as pending; None when none is due."""
        request = self.next_request(now)
        return None if request is None else request.body(pin_id)

    def next_request(self, now: float) -> PullRequest | None:
        """Return the pull to send now and count it as pending; None when none is due."""
        if (
            self.phase is PullPhase.DONE
            or self.phase is PullPhase.DISCONNECTED
            or now < self._retry_at
            or not self._needs_pull()
        ):
            return None
        options, counts, limits = self._options, self._counts, self._limits
        held = counts.received - counts.consumed
        bound = options.max_messages if self._prefetch is None else self._prefetch.decide()
        is_unbounded = options.is_bytes_only and self._prefetch is None
        batch = min(bound if is_unbounded else bound - self.pending - held, limits.batch)
        if options.stop_after:
            batch = min(batch, options.stop_after - counts.received - self.pending)
        if batch <= 0:
            return None
        size = 0
        if options.max_bytes:
            free = options.max_bytes - self.pending_bytes - counts.received_bytes + counts.consumed_bytes
            size = min(free, limits.size)
            # Next to an open pull, a few free bytes would only get "message size exceeds" again and again.
            if size <= limits.too_small or (self.pending and free * 4 < options.max_bytes):
                return None
        expires = self._time_left(now)
        if expires is None:
            self._finish()
            return None
        heartbeat = options.heartbeat
        if heartbeat * 2 > expires:
            heartbeat = default_heartbeat(expires)
        if self.losses:
            heartbeat, expires = self._after_loss(heartbeat, expires)
        early = options.mode is PullMode.AVAILABLE
        if self._is_no_wait or (early and held):
            heartbeat = expires = 0.0  # with a time the server would wait for a first message
        if self._open_pulls:
            self._drop_served_pulls()
        self.pending += batch
        self.pending_bytes += size
        self.number += 1
        self._open_pulls.append(_Pull(self.number, batch, size))
        self.idle_timeout = MAX_MISSED_HEARTBEATS * heartbeat if heartbeat else expires + _GRACE_WITHOUT_HEARTBEAT_S
        self._last_heard, self._retry_at = now, 0.0
        if self._prefetch is not None and self._prefetch.adapts_bytes and bound > DEFAULT_MAX_MESSAGES:
            size = MAX_PULL_BYTES
        no_wait = early or self._is_no_wait
        return PullRequest(batch, expires, size, no_wait, heartbeat, options.priority)

    def _threshold(self) -> int:
        fixed = self._options.refill_at
        if self._prefetch is None:
            return -(-self._options.max_messages // 2) if fixed is None else fixed
        return self._prefetch.threshold if fixed is None else min(fixed, self._prefetch.bound - 1)

    def _needs_pull(self) -> bool:
        """True if one of the bounds is at its threshold and the reader keeps up."""
        if self._is_single and self.pending:
            return False
        if self._is_bounded:
            return True
        counts, options, threshold = self._counts, self._options, self._threshold()
        held = counts.received - counts.consumed
        if not options.max_bytes:
            return self.pending + held <= threshold
        held_bytes = counts.received_bytes - counts.consumed_bytes
        if held > threshold or held_bytes > options.refill_at_bytes:
            return False
        return self.pending + held <= threshold or self.pending_bytes + held_bytes <= options.refill_at_bytes

    def _time_left(self, now: float) -> float | None:
        """Seconds for the next pull: ``expires``, or the rest of a bounded pull's time; None when none is left."""
        if not self._is_bounded:
            most = NO_LIMIT_S if self._prefetch is None else self._prefetch.expires
            return min(self._options.expires, self._limits.expires, most)
        left = self._until - now
        if not self.number:
            left = max(left, MIN_EXPIRES_S)
        return min(left, self._limits.expires) if left >= MIN_EXPIRES_S else None

    def _after_loss(self, heartbeat: float, expires: float) -> tuple[float, float]:
        """Heartbeat and ``expires`` of a pull after losses: shorter than these."""
        sooner = HEARTBEAT_AFTER_LOSS_S * 2.0 ** min(self.losses - 1, 10)
        if sooner >= heartbeat:
            return heartbeat, expires
        return sooner, min(expires, max(EXPIRES_AFTER_LOSS_S, sooner * 2))

    # ------------------------------------------------------------ incoming messages

    def on_messages(self, count: int, size: int, now: float) -> PullDecision:
        """Messages arrived and were counted; ``size`` is their bytes (0 without ``max_bytes``)."""
        self._last_heard = now
        self.losses = self.no_responders = self._failures = 0
        if self.phase is PullPhase.SERVER_SHUTDOWN:
            self.phase = PullPhase.PULLING
        if self._limits.too_small:
            self._limits = self._limits._replace(too_small=0)
        before, self._since_probe = self._since_probe, self._since_probe + count
        if count < self.pending and not size:
            self.pending -= count  # without a call, as nearly always
        else:
            self._reduce_pending(count, size)
        if (self._is_bounded or self._options.stop_after) and self._is_complete():
            return self._finish()
        if (self._is_single or self._options.max_bytes or not self._limits.batch) and not self.pending:
            return REFILL
        return ARM if before < MIN_MESSAGES_BETWEEN_PROBES <= self._since_probe else KEEP

    def on_leftover(self) -> None:
        """Messages of another reader's pulls were added and counted."""
        if self._is_complete():
            self._finish()

    def on_status(
        self, number: int, code: int, description: str, headers: Mapping[str, str], now: float
    ) -> PullDecision:
        """A status arrived for a pull (0: for a probe); ``headers`` may have the pending messages (ADR-37)."""
        said = description.lower()
        if code == 409 and ("deleted" in said or "push based" in said):
            kind = errors.ConsumerDeleted if "deleted" in said else errors.ConsumerGone
            return self._stop(kind(description, *self._consumer))
        if number == 0:
            return self._on_probe_status(code, now)
        if number <= self._last_ended:
            return self._on_ended_pull(code, said)
        if code == 100:
            self._last_heard = now
            self.losses = self.no_responders = self._failures = 0
            return KEEP
        if code in (400, 412):
            return self._stop(errors.PullRefused(code, description, *self._consumer))
        if code == 503:
            return self._on_no_responders(now)
        self._last_heard, self.no_responders = now, 0
        if code == 409 and "leadership change" in said:
            self._clear_pulls()  # every pull ended, not one
            self.losses += 1
            return self._retry(now)
        left_bytes = self._end_pull(number, headers)
        if code == 423:
            return self._retry(now)
        if code == 409 and "server shutdown" in said:
            self.phase = PullPhase.SERVER_SHUTDOWN
            self.losses = max(self.losses, 1)
            return self._retry(now)
        if code == 409 and "message size exceeds" in said:
            return self._on_message_too_big(left_bytes, code, description)
        if code in (404, 408) or (code == 409 and "batch completed" in said):
            return self._on_pull_end(code, now)
        return self._on_refusal(code, description, now)

    def _on_probe_status(self, code: int, now: float) -> PullDecision:
        """Any refusal of a probe shows that the consumer is there; no responders shows that open pulls are lost."""
        if code != 503:
            self._last_heard, self.no_responders = now, 0
            return KEEP
        return self._on_no_responders(now) if self.pending else KEEP

    def _on_ended_pull(self, code: int, said: str) -> PullDecision:
        """An abandoned pull has ended. A new leader reports that, so there is no need to wait."""
        if code == 409 and "leadership change" in said and self._retry_at:
            self._retry_at = 0.0
            return REFILL
        return KEEP

    def _on_message_too_big(self, left_bytes: int, code: int, description: str) -> PullDecision:
        """The next message needs more bytes than were free; the same request would fail again."""
        most = min(self._options.max_bytes, self._limits.size)
        if self._is_bounded and self._counts.received:  # the next fetch reports it
            held_bytes = self._counts.received_bytes - self._counts.consumed_bytes
            free = min(self._options.max_bytes - held_bytes, self._limits.size)
            return REFILL if left_bytes < free else self._finish()
        if self._prefetch is not None and self._prefetch.adapts_bytes:
            self._prefetch.reset()
            return REFILL
        if left_bytes >= most:
            return self._stop(
                errors.PullRefused(code, f"{description}: it needs more than {most} bytes", *self._consumer)
            )
        self._limits = self._limits._replace(too_small=left_bytes)
        return REFILL

    def _on_pull_end(self, code: int, now: float) -> PullDecision:
        """A pull ended normally. A bounded reading is over, unless a learned limit split it into several pulls."""
        if self._options.stop_when_empty:
            return self._finish() if code == 404 else self._retry(now)  # 408: others wait for the messages
        self._failures = 0
        if not self._is_bounded:
            return REFILL
        is_split = code == 409
        if code == 408:
            is_split = self._limits.expires < self._options.expires
        if is_split and self._time_left(now) is not None:
            return REFILL
        return self._finish()

    def _on_refusal(self, code: int, description: str, now: float) -> PullDecision:
        """Learn a limit of the consumer; after any other refusal pulls again, with growing waits."""
        notice = errors.PullRefused(code, description, *self._consumer)
        learned = self._limits.learn(description.lower())
        if learned not in (None, self._limits):
            assert learned is not None
            self._limits = learned
            return PullDecision(Action.REFILL, notice=notice)
        if learned is None and self._is_bounded and "exceeded maxwaiting" not in description.lower():
            return self._stop(notice)
        is_first = not self._failures
        self._back_off(now)
        return PullDecision(Action.REFILL, notice=notice if is_first or not self._is_bounded else None)

    def _on_no_responders(self, now: float) -> PullDecision:
        """There are no responders: the consumer is gone or has no leader now. The driver looks it up."""
        self.no_responders += 1
        self._abandon_pulls()
        self.losses = max(self.losses, 1)
        seen = "nobody answered its pull request (503): it is gone, or the server starts or elects a leader"
        if self.phase is PullPhase.SERVER_SHUTDOWN:
            seen += " after its server shut down (409 Server Shutdown)"
        self._back_off(now)
        return PullDecision(Action.REFILL, notice=errors.ConsumerGone(seen, *self._consumer))

    # ------------------------------------------------------------ timeouts and reconnects

    def on_deadline(self, now: float) -> PullDecision:
        """To be called at ``deadline``. Missed heartbeats abandon the open pulls and pull again."""
        if self._is_bounded and now >= self._until + (0.0 if self.phase is PullPhase.DISCONNECTED else END_GRACE_S):
            return self._finish()
        if self.phase is PullPhase.DISCONNECTED:
            return KEEP
        if self._retry_at and now >= self._retry_at:
            self._retry_at = 0.0
            return self._finish() if self._time_left(now) is None else REFILL
        if not self.pending or now < (self.deadline or now):
            return KEEP
        if now < self._last_heard + self.idle_timeout:
            self._since_probe = 0  # a sudden silence: one probe for each burst of messages
            return PullDecision(Action.PROBE)
        missed = errors.HeartbeatMissed(self.idle_timeout, *self._consumer)
        self._abandon_pulls()
        self.losses += 1
        if self._time_left(now) is None or self._has_available():
            return self._finish()
        return PullDecision(Action.REFILL, notice=missed)

    def on_not_sent(self, now: float) -> None:
        """The outbox had no room for the last pull. It is sent again, with growing waits."""
        pull = self._open_pulls.pop()
        self._reduce_pending(pull.batch, pull.size)
        self._back_off(now)

    def on_disconnect(self) -> None:
        """The connection was lost: no pulls are sent and no heartbeat is due until ``on_reconnect``."""
        if self._has_available():
            self._finish()
        if self.phase is not PullPhase.DONE:
            self.phase = PullPhase.DISCONNECTED

    def on_reconnect(self, now: float) -> PullDecision:
        """The connection is back. The old pulls are lost; the consumer is not looked up (ADR-37)."""
        self._abandon_pulls()
        self.has_abandoned_pulls = False
        self.losses = 1
        self._retry_at, self._failures = 0.0, 0
        if self.phase is PullPhase.DONE:
            return KEEP
        self.phase = PullPhase.PULLING
        if self._time_left(now) is None:
            return self._finish()
        return REFILL

    def send_no_more(self) -> None:
        """Send no more pulls; the open ones are awaited."""
        self._limits = self._limits._replace(batch=0)

    def stop(self) -> None:
        """Stop pulling, because the reader has left."""
        self._finish()

    # ------------------------------------------------------------ pending pulls

    def _drop_served_pulls(self) -> None:
        """Drop the oldest pulls that were served and ended silently: the younger ones account for all pending
        messages.
        """
        pulls = self._open_pulls
        demands = [pull.size or pull.batch for pull in pulls]  # bytes, or messages where bytes have no limit
        surplus = sum(demands) - (self.pending_bytes or self.pending)
        served = 0
        while surplus >= demands[served]:
            surplus -= demands[served]
            served += 1
        del pulls[:served]

    def _reduce_pending(self, count: int, size: int) -> None:
        """Reduce the pending messages and bytes."""
        self.pending = max(self.pending - count, 0)
        sized = self._options.max_bytes > 0
        if sized:
            self.pending_bytes = max(self.pending_bytes - size, 0)
        # A pull whose bytes are used up ends without a status; its remaining messages are not pending any more.
        if not self.pending or (sized and not self.pending_bytes):
            self._clear_pulls()

    def _end_pull(self, number: int, headers: Mapping[str, str]) -> int:
        """End one pull before it was served in full; return the bytes that were left."""
        left = _parse_count(headers.get("Nats-Pending-Messages"))
        left_bytes = _parse_count(headers.get("Nats-Pending-Bytes")) or 0
        pull = next((pull for pull in self._open_pulls if pull.number == number), None)
        if pull is not None:
            self._open_pulls.remove(pull)
            if left is None:  # without these headers the server did not take it at all
                left, left_bytes = pull.batch, pull.size
        if self._is_single:
            self._clear_pulls()
        elif left is not None:
            self._reduce_pending(left, left_bytes)
        return left_bytes

    def _clear_pulls(self) -> None:
        """Forget all pulls, which have ended."""
        self.pending = self.pending_bytes = 0
        self._open_pulls.clear()
        self._last_ended = self.number

    def _abandon_pulls(self) -> None:
        """Abandon the open pulls, which the server may still serve."""
        if self.pending:
            self.has_abandoned_pulls = True
            self._clear_pulls()

    def _is_complete(self) -> bool:
        """True if all messages have arrived."""
        options, counts = self._options, self._counts
        if not self._is_bounded:
            return 0 < options.stop_after <= counts.received
        return counts.received - counts.consumed >= options.max_messages or (
            0 < options.max_bytes <= counts.received_bytes - counts.consumed_bytes
        )

    def _has_available(self) -> bool:
        return self._options.mode is PullMode.AVAILABLE and self._counts.received > self._counts.consumed

    def _retry(self, now: float) -> PullDecision:
        """Pull again, at once the first time and then with growing waits."""
        if self._failures:
            self._back_off(now)
        else:
            self._failures = 1
        return REFILL

    def _back_off(self, now: float) -> None:
        self._retry_at = now + retry_wait(self._failures)
        self._failures += 1
        if self._is_bounded:
            self._retry_at = min(self._retry_at, self._until)

    def _finish(self) -> PullDecision:
        if self.pending:  # saves a call for each complete fetch
            self._abandon_pulls()
        self.phase = PullPhase.DONE
        return DONE

    def _stop(self, error: errors.NatsError) -> PullDecision:
        self._finish()
        return PullDecision(Action.STOP, error=error)


def _parse_count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
