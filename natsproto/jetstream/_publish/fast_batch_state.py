"""PURE. Fast batches as the client sees them (ADR-50): which messages the stream has, and what to send next.

``BatchMessages`` owns the state of each message, ``FastBatchState`` the batch in progress. ``next_command`` returns the
next message to send and ``on_sent`` records it; ``on_reply`` takes a reply and returns the seconds to pause sending;
``on_tick`` counts the time without replies. The module does no I/O and reads no clock.

The state of a message is told by its place: ``pending`` begins behind what is stored, the first ``sent - acked`` of it
were sent in the batch in progress, the rest waits. One batch follows another as need be; numbers count through.

How a batch goes on when something is lost. The server counts a batch's messages and says where one is missing. With
``gap="fail"`` it ends the batch there, so that it holds exactly what came before; the rest is sent again in a new
batch, and what the stream holds is in order and complete. With ``gap="ok"`` it goes on, and the loss is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, IntEnum
from typing import NamedTuple

from natsproto.errors import (
    ApiError,
    InvalidReply,
    JetStreamError,
    LocalProtocolError,
    NatsError,
    NoStream,
    PermissionDenied,
    PublishTimeout,
    PublishUncertain,
    RequestTimeout,
    UnsupportedByServer,
)
from natsproto.jetstream._api_errors import ErrCode, api_error
from natsproto.jetstream._codec import parse
from natsproto.jetstream._info import PubAck, decode_pub_ack
from natsproto.jetstream._publish.batch_messages import BatchMessages, PendingMessage
from natsproto.jetstream._publish.headers import has_msg_id
from natsproto.jetstream._publish.retry_policy import TRANSIENT_CODES, RetryCounter

_FATAL_CODES = frozenset(
    {ErrCode.BATCH_PUBLISH_DISABLED, ErrCode.BATCH_PUBLISH_INVALID_PATTERN, ErrCode.BATCH_PUBLISH_INVALID_BATCH_ID}
)


class BatchOperation(IntEnum):
    """The part of a message in its batch, as its reply subject says it."""

    START = 0
    APPEND = 1
    COMMIT = 2
    END = 3
    PING = 4


class BatchPhase(Enum):
    """Where the batch in progress is."""

    IDLE = "there is none"
    STARTING = "its first message is out, and not answered"
    OPEN = "it takes messages"
    PINGING = "it takes messages again when the stream has said how far it is"
    BROKEN = "the stream has ended it, and will say with how much"
    COMMITTING = "the message that commits it is out"
    SINGLE = "that is its only message"
    ENDING = "its end without a message is out"


class BatchEvent(Enum):
    """Something that happens to a batch, beside messages that are sent."""

    ACKED = "the stream takes messages"
    LATER = "a message was not taken that may be taken later"
    BROKEN = "a message is missing or was refused, where none may be missing"
    OVER = "the stream has ended it, or knows nothing of it"


_STARTED = frozenset(BatchPhase) - {BatchPhase.IDLE}

TRANSITIONS: Mapping[tuple[BatchPhase, BatchOperation | BatchEvent], BatchPhase] = {
    (BatchPhase.IDLE, BatchOperation.START): BatchPhase.STARTING,
    (BatchPhase.IDLE, BatchOperation.COMMIT): BatchPhase.SINGLE,
    (BatchPhase.OPEN, BatchOperation.COMMIT): BatchPhase.COMMITTING,
    (BatchPhase.OPEN, BatchOperation.END): BatchPhase.ENDING,
    (BatchPhase.OPEN, BatchOperation.PING): BatchPhase.PINGING,
    (BatchPhase.PINGING, BatchOperation.END): BatchPhase.ENDING,
    (BatchPhase.STARTING, BatchEvent.ACKED): BatchPhase.OPEN,
    (BatchPhase.PINGING, BatchEvent.ACKED): BatchPhase.OPEN,
    (BatchPhase.STARTING, BatchEvent.LATER): BatchPhase.IDLE,  # nothing of it is stored: it is begun again
    (BatchPhase.SINGLE, BatchEvent.LATER): BatchPhase.IDLE,
    (BatchPhase.OPEN, BatchEvent.LATER): BatchPhase.PINGING,
    **{(phase, BatchEvent.BROKEN): BatchPhase.BROKEN for phase in _STARTED},
    **{(phase, BatchEvent.OVER): BatchPhase.IDLE for phase in _STARTED},
}
"""The next phase of a batch. A pair that is not listed changes nothing."""

RESEND_OPERATIONS: Mapping[BatchPhase, BatchOperation] = {
    BatchPhase.OPEN: BatchOperation.PING,
    BatchPhase.PINGING: BatchOperation.PING,
    BatchPhase.BROKEN: BatchOperation.PING,
    # Starts no batch: a stream that has ended this one answers that it does not know it.
    BatchPhase.COMMITTING: BatchOperation.COMMIT,
    BatchPhase.SINGLE: BatchOperation.COMMIT,
    BatchPhase.ENDING: BatchOperation.END,
}
"""The message that asks for the reply that the stream owes."""


class Command(NamedTuple):
    """Something to send to the stream."""

    operation: BatchOperation
    sequence: int
    message: PendingMessage


class FastOptions(NamedTuple):
    """The limits of a publisher, documented at ``js.fast_publisher``. Times are in seconds."""

    gap_ok: bool
    flow: int
    outstanding: int
    max_pending_bytes: int
    timeout: float
    retry_attempts: int
    retry_wait: float

    @property
    def tick(self) -> float:
        """Seconds of silence after which the stream is asked; after two, and without need, the batch is committed."""
        return min(1.0, self.timeout / 4)

    @property
    def max_pending(self) -> int:
        """Messages of which it may be unknown what became of them."""
        return self.flow * self.outstanding


class FastBatchState:
    """The batch in progress, of the messages of one publisher. ``name`` begins the ids of the batches."""

    __slots__ = (
        *("_acked", "_commits", "_limits", "_ack_flow", "_name", "_number", "_retry_counter", "_refused", "_repeat"),
        *("_silent_ticks", "_is_commit_wanted", "messages", "phase", "sent", "append_until"),
    )

    def __init__(self, name: bytes, limits: FastOptions, messages: BatchMessages) -> None:
        self._name, self._limits = name, limits
        self.messages = messages
        self.phase = BatchPhase.IDLE
        self.sent = 0
        """The sequence of the last message sent in the batch."""
        self.append_until = 0
        """Messages can be sent at once, and be taken with ``append``, up to this sequence; 0 for none."""
        self._number = 1
        self._acked = 0  # the sequence behind which the pending messages begin
        self._ack_flow = 0  # the stream's flow; 0 as long as no stream has ever taken a message
        self._commits = 0  # how often the end of the batch was sent
        self._is_commit_wanted = False
        self._repeat = False  # to ask for the reply that the stream owes
        self._silent_ticks = 0  # ticks since the stream said something
        self._retry_counter = self._new_retry_counter()
        self._refused: dict[int, NatsError] = {}  # by the sequence that the stream will miss, and rightly

    def _new_retry_counter(self) -> RetryCounter:
        return RetryCounter(self._limits.retry_attempts, self._limits.retry_wait)

    @property
    def batch(self) -> bytes:
        """The id of the batch in progress, or of the next."""
        return b"%b-%d" % (self._name, self._number)

    @property
    def accepted_once(self) -> bool:
        """True once the stream has taken a message."""
        return self._ack_flow > 0

    @property
    def idle(self) -> bool:
        """True if neither side owes anything."""
        return self.phase is BatchPhase.IDLE and not self.messages.pending

    @property
    def has_too_many_failures(self) -> bool:
        """True if as many messages have failed, untold, as may be pending."""
        return self.messages.failures >= self._limits.max_pending

    @property
    def full(self) -> bool:
        """True if room has to be waited for before the next message."""
        limits, messages = self._limits, self.messages
        full = len(messages.pending) >= limits.max_pending or messages.nbytes >= limits.max_pending_bytes
        return full or self.has_too_many_failures

    # ------------------------------------------------------------ publishing

    def append(self, subject: str, payload: bytes, block: bytes | None) -> int:
        """Records a message that was just sent, up to ``append_until``, and returns its number."""
        messages = self.messages
        self.sent += 1
        messages.pending.append((subject, payload, block))
        messages.nbytes = nbytes = messages.nbytes + len(payload)
        if nbytes >= self._limits.max_pending_bytes:
            self.append_until = 0
        return messages.settled + len(messages.pending)

    def commit(self) -> None:
        """The batch is to end with what was taken so far, or with the message that is taken next."""
        self._is_commit_wanted, self.append_until = True, 0

    def commit_if_short(self) -> None:
        """Somebody waits for room: a batch that is full of bytes may hold too few messages for an acknowledgement."""
        if self.phase is BatchPhase.OPEN and self._in_flight == len(self.messages.pending) < self._ack_flow:
            self.commit()

    # ------------------------------------------------------------ commands

    @property
    def _in_flight(self) -> int:
        return self.sent - self._acked

    @property
    def _limit(self) -> int:
        return self._acked + self._ack_flow * self._limits.outstanding

    def next_command(self) -> Command | None:
        """The message to send now; None when there is nothing before something else happens."""
        pending, phase = self.messages.pending, self.phase
        if self.messages.end is not None:
            return None
        if self._repeat:
            return self._resend_command(RESEND_OPERATIONS[phase])
        if phase is BatchPhase.IDLE and pending:
            alone = self._is_commit_wanted and len(pending) == 1
            return Command(BatchOperation.COMMIT if alone else BatchOperation.START, 1, pending[0])
        if phase is not BatchPhase.OPEN:
            return None
        if (place := self._in_flight) < len(pending):
            if self.sent >= self._limit:
                return None
            last = self._is_commit_wanted and place == len(pending) - 1
            return Command(BatchOperation.COMMIT if last else BatchOperation.APPEND, self.sent + 1, pending[place])
        return self._resend_command(BatchOperation.END) if self._is_commit_wanted else None

    def _resend_command(self, operation: BatchOperation) -> Command:
        if operation is BatchOperation.COMMIT and self._in_flight:
            return Command(operation, self.sent, self.messages.pending[self._in_flight - 1])
        empty = (self.messages.subject, b"", None)
        if operation is BatchOperation.PING and self.sent > 1:
            return Command(operation, self.sent, empty)
        # Also instead of a ping of the first message: nats-server 2.14 begins a batch with that where it has forgotten
        # this one, and says that it misses the message. And where a commit lacks nothing but its own reply.
        return Command(BatchOperation.END, self.sent + 1, empty)

    def on_sent(self, command: Command) -> None:
        """It has been handed over."""
        operation = command.operation
        if operation is BatchOperation.COMMIT or operation is BatchOperation.END:
            self._commits += 1
        if operation is not BatchOperation.END:
            self.sent = command.sequence
        self._repeat, self.append_until = False, 0
        self._transition(operation)

    def allow_append(self) -> None:
        """No command is due: the next message can go out as soon as it is taken, if the batch takes it."""
        in_step = self.phase is BatchPhase.OPEN and self._in_flight == len(self.messages.pending)
        if in_step and not self.full and not self._is_commit_wanted and self.messages.end is None:
            self.append_until = min(self._limit, self._acked + self._limits.max_pending)
        else:
            self.append_until = 0

    def resend(self) -> None:
        """The stream owes a reply: decides what is sent again for it.

        A first message is, if it has an id: a stream that has stored it, and ended the batch, begins a batch with the
        copy. Of what follows the stream knows that it has it, or that it does not know the batch.
        """
        if self.phase in (BatchPhase.STARTING, BatchPhase.SINGLE) and not has_msg_id(self.messages.pending[0][2]):
            return
        if self.phase is BatchPhase.STARTING:
            self._transition(BatchEvent.OVER)  # begun again; a reply to it that comes late is not heard
        else:
            self._repeat = self.phase is not BatchPhase.IDLE

    # ------------------------------------------------------------ the connection and the clock

    def on_disconnect(self, unsent: Iterable[BatchOperation], reason: str) -> None:
        """The connection is lost, and these had not left: they are as if they had never been sent."""
        self._retry_counter = self._new_retry_counter()
        self.append_until = 0
        if self.phase is BatchPhase.IDLE:
            return
        for operation in unsent:
            if operation is BatchOperation.COMMIT or operation is BatchOperation.END:
                self._commits -= 1
                if self._commits:
                    continue  # sent again in vain: it may have left the first time
                self.phase = BatchPhase.OPEN
            if operation in (BatchOperation.START, BatchOperation.APPEND, BatchOperation.COMMIT):
                self.sent -= 1
        if self.sent == 0:
            self._transition(BatchEvent.OVER)
        elif self.phase in (BatchPhase.STARTING, BatchPhase.SINGLE):
            self._on_batch_unknown(reason)

    def on_reconnect(self) -> None:
        """There is a connection again; replies may have been lost on the way."""
        self._silent_ticks = 0
        self.resend()

    def on_pause_end(self) -> None:
        """The pause that a reply has asked for is over."""
        if self.phase not in (BatchPhase.OPEN, BatchPhase.BROKEN):
            self.resend()

    def on_tick(self, *, can_send: bool) -> None:
        """Nothing was heard for a tick. In the end it is given up."""
        self._silent_ticks += 1
        limits = self._limits
        if self._silent_ticks > int(limits.timeout / limits.tick):
            if self._retry_counter.no_stream and self.phase is BatchPhase.IDLE:  # a stream that there was is gone
                self._stop(1, NoStream(self.messages.pending[0][0]))
            else:
                self.give_up("no answer", RequestTimeout("fast ingest", limits.timeout))
        elif can_send:
            if self.phase is not BatchPhase.OPEN or self.full or self._is_commit_wanted:
                self.resend()
            elif self._silent_ticks >= 2:
                self.commit()

    # ------------------------------------------------------------ replies of the stream

    def on_reply(self, batch: bytes, sequence: int, payload: bytes) -> float:
        """A reply to this message of this batch; returns for how many seconds to send nothing."""
        if batch != self.batch or self.phase is BatchPhase.IDLE:
            return 0  # of a batch that is over
        self._silent_ticks = 0
        try:
            reply = parse(payload, "answer to fast ingest")
            kind = reply.get("type")
            if kind == "ack":
                self._on_ack(_count_field(reply, "seq"), _count_field(reply, "msgs"))
            elif kind == "gap":
                self._on_gap(_count_field(reply, "last_seq"), _count_field(reply, "seq"))
            elif kind == "err":
                self._on_header_error(_count_field(reply, "seq"), api_error(reply, "fast ingest"))
            elif "error" in reply:
                return self._on_error(sequence, api_error(reply, f"fast ingest to {self.messages.subject!r}"))
            else:
                self._on_end(decode_pub_ack(reply))
        except NatsError as exc:  # it cannot be read
            self.give_up(str(exc), exc)
        return 0

    def on_no_responders(self, batch: bytes) -> float:
        """No stream listened to some message: there is none, or it has no leader right now. As ``on_reply``."""
        if batch != self.batch or self.phase is BatchPhase.IDLE:
            return 0
        subject = self.messages.subject
        pause = self._retry_counter.pause_after(NoStream(subject))
        # With a stream that there was an election is waited for; and in a batch what was sent before may be stored.
        if pause is None and self.phase in (BatchPhase.STARTING, BatchPhase.SINGLE) and not self.accepted_once:
            self._stop(self._acked + 1, NoStream(subject))
            return 0
        self._transition(BatchEvent.LATER)
        return self._limits.retry_wait

    def _on_ack(self, sequence: int, msgs: int) -> None:
        """Everything up to a sequence is stored (with gaps allowed: or lost); this covers all acks before it."""
        self._transition(BatchEvent.ACKED)
        self._repeat = False
        self._retry_counter = self._new_retry_counter()
        self._settle_up_to(sequence)
        self._ack_flow = max(1, msgs)

    def _on_gap(self, first: int, following: int) -> None:
        """The stream has missed what is from ``first`` up to ``following``."""
        if self._limits.gap_ok:
            missed = range(max(first, self._acked + 1), min(following, self.sent + 1))
            self.messages.lost += len(missed) - sum(1 for sequence in self._refused if sequence in missed)
        else:
            self._transition(BatchEvent.BROKEN)  # it says next what it has

    def _on_header_error(self, sequence: int, error: NatsError) -> None:
        """One message is not stored, because of what its headers say."""
        if self._limits.gap_ok:
            self._fail(sequence, error)
            self._refused[sequence] = error
        else:
            self._refused = {sequence: error}
            self._transition(BatchEvent.BROKEN)

    def _on_error(self, sequence: int, error: ApiError) -> float:
        """The stream did not take a message into the batch at all."""
        code, gap_ok = error.err_code, self._limits.gap_ok
        if code == ErrCode.BATCH_PUBLISH_UNKNOWN_BATCH_ID:
            self._on_batch_unknown("the stream knows nothing of the batch any more")
        elif code in TRANSIENT_CODES:
            self._transition(BatchEvent.LATER)
            return self._retry_counter.pause_after(error) or 0
        elif code in _FATAL_CODES or (sequence == 1 and not gap_ok):
            self._stop(sequence, error)
        elif gap_ok:
            self._fail(sequence, error)
            self._refused[sequence] = error
            if sequence == 1:
                self._settle_up_to(1)
                self._transition(BatchEvent.OVER)
        else:
            self._refused = {sequence: error}
            self._transition(BatchEvent.BROKEN)
            self._repeat = True  # the stream will miss it, notice and say what it has
        return 0

    def _on_end(self, ack: PubAck) -> None:
        """The batch has ended; ``ack`` tells the number of its messages."""
        if not ack.batch:
            self._settle_up_to(1)
            reason = f"stream {ack.stream!r} stored the message alone (nats-server 2.14 is needed)"
            self.give_up(reason, UnsupportedByServer("fast ingest", reason))
            return
        self._ack_flow = max(1, self._ack_flow)
        self._retry_counter = self._new_retry_counter()
        self.messages.ack = ack
        self._is_commit_wanted = False
        count = ack.count
        while self._limits.gap_ok and count + 1 in self._refused:
            count += 1  # the message that was to commit it: it has failed and is not sent again
        self._settle_up_to(count)
        if self._refused and not self._limits.gap_ok:
            self._stop(*self._refused.popitem())
        else:
            self._transition(BatchEvent.OVER)

    def _on_batch_unknown(self, reason: str) -> None:
        """The stream cannot tell how far the batch came. With ids everything may be sent again."""
        maybe_stored = self.messages.pending[: self._in_flight]
        if not all(has_msg_id(block) for _, _, block in maybe_stored):
            if not self._limits.gap_ok:
                self.give_up(reason, LocalProtocolError(f"the publisher has ended: {reason}"))
                return
            self.messages.lost += len(maybe_stored) - sum(sequence > self._acked for sequence in self._refused)
            self._settle_up_to(self.sent)
        self._transition(BatchEvent.OVER)

    def _transition(self, event: BatchOperation | BatchEvent) -> None:
        """The one place where the phase changes, but for what had not left. A batch that is over is followed by
        another: what was not settled is sent in that.
        """
        phase = TRANSITIONS.get((self.phase, event), self.phase)
        if phase is not self.phase:
            self.phase, self.append_until = phase, 0
            if phase is BatchPhase.IDLE:
                self._number += 1
                self.sent = self._acked = self._commits = 0
                self._repeat = False
                self._refused = {}

    # ------------------------------------------------------------ outcomes

    def _settle_up_to(self, sequence: int) -> None:
        settled = max(0, min(sequence, self.sent) - self._acked)
        self._acked += settled
        self.messages.settle(settled)

    def _fail(self, sequence: int, error: NatsError) -> None:
        self.messages.fail(sequence - self._acked - 1, error)
        if self.has_too_many_failures:
            self.append_until = 0

    def _stop(self, sequence: int, error: NatsError) -> None:
        """One message was refused where none may be missing: those behind it are not stored either."""
        refused = max(0, sequence - self._acked - 1)
        number = self.messages.settled + refused + 1
        behind = JetStreamError(f"not stored, as message {number} before it was refused")
        errors: list[NatsError] = [
            PublishUncertain(subject, str(error)) if place < refused else error if place == refused else behind
            for place, (subject, _, _) in enumerate(self.messages.pending)
        ]
        self._finish(errors, LocalProtocolError(f"the publisher has ended: message {number} was refused: {error}"))

    def on_permission_error(self, error: PermissionDenied) -> None:
        """The server refuses messages to a subject."""
        if any(subject == error.subject for subject, _, _ in self.messages.pending):
            self.give_up(str(error), error)

    def give_up(self, reason: str, end: NatsError) -> None:
        """End everything: whatever was sent and not acknowledged may be stored. Nothing, if it has ended before."""
        if self.messages.end is not None:
            return
        in_doubt = 0 if self.phase is BatchPhase.IDLE else self._in_flight
        errors = [
            self._error_of(subject, reason, end) if place < in_doubt else end
            for place, (subject, _, _) in enumerate(self.messages.pending)
        ]
        self._finish(errors, end)

    def _error_of(self, subject: str, reason: str, end: NatsError) -> NatsError:
        if isinstance(end, PermissionDenied) and subject == end.subject:
            return end
        if isinstance(end, RequestTimeout):
            return PublishTimeout(subject, self._limits.timeout)
        uncertain = PublishUncertain(subject, reason)
        uncertain.__cause__ = end
        return uncertain

    def _finish(self, errors: list[NatsError], end: NatsError) -> None:
        failed = self._refused if self._limits.gap_ok else ()
        remaining = [None if self._acked + place in failed else error for place, error in enumerate(errors, 1)]
        self.messages.finish(remaining, end)
        self.append_until = 0
        self._transition(BatchEvent.OVER)


def _count_field(reply: dict[str, object], name: str) -> int:
    value = reply.get(name)
    if type(value) is not int or value < 0:
        raise InvalidReply("answer to fast ingest", name, value, "must be a number")
    return value
