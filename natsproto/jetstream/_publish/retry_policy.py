"""PURE. The policy of sending a message to a stream again.

Three rules decide everything, for one message, for windows and for batches:

* A message that the server rejected, or that had no responders, is not stored and may be sent again (ADR-22), unless
  the refusal is not certain (see ``refusals``).
* A message without a reply may be stored. It is sent again only if it has a message id.
* The caller gets one outcome for each message, within its timeout.
"""

from __future__ import annotations

from natsproto.errors import (
    ApiError,
    ConnectionLost,
    NatsError,
    NoResponders,
    NoStream,
    OutboxFull,
    PublishTimeout,
    PublishUncertain,
    RequestTimeout,
    WrongLastSequence,
)
from natsproto.jetstream._api_errors import ErrCode
from natsproto.jetstream._publish.refusals import Doubt, Expectation, doubt_of, doubtful_error
from natsproto.protocol.server_errors import SubscriptionDenied

RETRY_ATTEMPTS = 2
RETRY_WAIT_S = 0.25
"""Seconds; the values of ADR-22."""

RESEND_AFTER_S = 1.0
"""Seconds without a reply after which a message with an id is sent again, repeatedly."""

MAX_RETRY_PAUSE_S = 1.0
"""The most seconds between two attempts on a busy server."""

MAX_STALE_REPEATS = 2
"""How often a message with an id is sent again after a stale refusal: a stream that has it knows the id."""

TRANSIENT_CODES = frozenset(
    {
        ErrCode.STREAM_TOO_MANY_REQUESTS,
        ErrCode.ATOMIC_PUBLISH_TOO_MANY_INFLIGHT,
        ErrCode.BATCH_PUBLISH_TOO_MANY_INFLIGHT,
        ErrCode.STREAM_EXPECTED_LAST_SEQ_PER_SUBJECT_NOT_READY,
        ErrCode.STREAM_DUPLICATE_MESSAGE_CONFLICT,
        ErrCode.CLUSTER_NOT_AVAIL,
        ErrCode.CLUSTER_NOT_LEADER,
    }
)
"""Temporary errors: the message was not stored, and a retry will succeed."""


def uncertain_error(
    subject: str, error: NatsError, timeout: float, reason: str = "", *, in_a_row: int = 0
) -> PublishUncertain:
    """Return the error of a message that was sent and gets no reply because of ``error``; the ``timeout`` in seconds is
    that of the message. ``in_a_row`` counts timeouts, see PublishTimeout.
    """
    if isinstance(error, RequestTimeout):
        return PublishTimeout(subject, timeout, in_a_row, disconnected=error.disconnected)
    uncertain = PublishUncertain(subject, reason or str(error))
    uncertain.__cause__ = error
    return uncertain


class RetryCounter:
    """The temporary failures of a message, and the wait before the next attempt.

    ``attempts`` is the limit of retries while no stream has the subject, -1 for no limit; ``wait`` is in seconds. By
    default a message with an id has no limit, so that it survives an election: it may be sent any number of times.
    """

    __slots__ = ("_attempts", "_transient", "_wait", "no_stream")

    def __init__(self, attempts: int | None, wait: float, *, has_id: bool = False) -> None:
        self._attempts = attempts if attempts is not None else -1 if has_id else RETRY_ATTEMPTS
        self._wait = wait
        self.no_stream = 0
        """The number of attempts without a stream."""
        self._transient = 0

    def no_stream_error(self, subject: str, timeout: float) -> NoStream:
        """The error of a message that no stream receives within its attempts, or else within ``timeout`` seconds."""
        return NoStream(subject, timeout if self._attempts < 0 else 0.0)

    def pause_after(self, error: NatsError) -> float | None:
        """Return the seconds until the next attempt, short at first for a busy server; None when there is none."""
        if isinstance(error, NoResponders | NoStream):
            self.no_stream += 1
            return None if self.no_stream > self._attempts >= 0 else self._wait
        if not isinstance(error, ApiError) or error.err_code not in TRANSIENT_CODES:
            return None
        return self.busy_pause()

    def busy_pause(self) -> float:
        """Return the seconds until the next attempt on a busy server: short at first."""
        self._transient += 1
        return self._pause(self._transient - 1)

    @property
    def next_pause(self) -> float:
        """Seconds that a busy server would get before the next attempt."""
        return self._pause(self._transient)

    def _pause(self, failures: int) -> float:
        return min(MAX_RETRY_PAUSE_S, self._wait / 8 * 2.0 ** min(failures, 10))


class PublishState:
    """The state of one message during publishing, and the decision whether it is sent again.

    ``attempts`` None is the default. ``is_guarded``: the message expects the last sequence of its own subject, and can
    be found in the stream: a copy that is sent after a lost connection is not stored twice. ``now`` and ``deadline``
    are seconds of the same clock.
    """

    __slots__ = (
        "_maybe_stored",
        "_retry_counter",
        "_retry_wait",
        "_stale",
        "_timeout",
        "deadline",
        "has_id",
        "is_guarded",
        "subject",
    )

    def __init__(
        self,
        subject: str,
        timeout: float,
        attempts: int | None,
        retry_wait: float,
        *,
        has_id: bool,
        now: float,
        is_guarded: bool = False,
    ) -> None:
        self.subject, self.has_id, self.is_guarded = subject, has_id, is_guarded
        self.deadline = now + timeout
        self._timeout, self._retry_wait = timeout, retry_wait
        self._retry_counter = RetryCounter(attempts, retry_wait, has_id=has_id)
        self._maybe_stored: PublishUncertain | None = None  # why an earlier copy may be stored
        self._stale = 0  # stale refusals so far

    @property
    def is_resendable(self) -> bool:
        """True if it may be sent again after a lost connection."""
        return self.has_id or self.is_guarded

    @property
    def next_pause(self) -> float:
        """Seconds that a busy server gets before the next attempt."""
        return self._retry_counter.next_pause

    def is_repeated_after(self, doubt: Doubt, now: float) -> bool:
        """True if it is sent again with its id after this doubt: a stream that has it knows the id."""
        is_left = doubt is Doubt.IN_PROCESS or self._stale < MAX_STALE_REPEATS
        return self.has_id and is_left and self.deadline - now > self.next_pause

    def doubt(self, error: WrongLastSequence, expected: Expectation) -> Doubt:
        """Return why this refusal is not certain; raises it when it is."""
        doubt = doubt_of(error, expected.seq, sent_before=self._maybe_stored is not None and not self.has_id)
        if doubt is None:
            raise error
        return doubt

    def pause_after_doubt(self, error: WrongLastSequence, expected: Expectation, now: float) -> float:
        """Return the seconds until it is sent again after a refusal that is not certain. Raises PublishUncertain when
        it is not sent again.
        """
        doubt = self.doubt(error, expected)
        self._maybe_stored = uncertain = doubtful_error(self.subject, doubt, error)
        pause = self._retry_counter.busy_pause()
        if doubt is Doubt.IN_PROCESS:
            pause = 0.0  # it has waited for a second reply
            again = self.has_id or expected.subject in (self.subject, "")  # else it could be stored twice
        else:
            self._stale += 1
            again = self.has_id and self._stale <= MAX_STALE_REPEATS
        if again and self.deadline - now > pause:
            return pause
        raise uncertain

    def pause_after(self, error: NatsError, sent_at: float, now: float, *, in_a_row: int = 0) -> float:
        """Return the seconds until it is sent again, after this reply to an attempt. Raises the error for the caller
        when it is not sent again. ``in_a_row`` counts timeouts, see PublishTimeout.
        """
        failure = error
        if isinstance(error, RequestTimeout) and not error.sent and self._maybe_stored is None:
            raise RequestTimeout(
                f"publish to {self.subject!r}", self._timeout, sent=False, disconnected=error.disconnected
            )
        if isinstance(error, RequestTimeout | ConnectionLost | SubscriptionDenied):  # sent, but no reply will come
            self._maybe_stored = uncertain_error(self.subject, error, self._timeout, in_a_row=in_a_row)
            if isinstance(error, ConnectionLost) and self.is_resendable and now < self.deadline:
                return 0.0
            raise self._maybe_stored
        if self.has_id and now - sent_at >= RESEND_AFTER_S:  # it was resent after a silence
            self._maybe_stored = self._maybe_stored or PublishTimeout(self.subject, now - sent_at)
        if isinstance(error, OutboxFull):
            pause = None if self._maybe_stored is None else self._retry_wait
        else:
            pause = self._retry_counter.pause_after(error)
            if pause is None and isinstance(error, NoResponders) and self._maybe_stored is not None and self.is_guarded:
                pause = self._retry_wait  # the server may be starting
            if isinstance(error, NoResponders):
                failure = self._retry_counter.no_stream_error(self.subject, self._timeout)
            elif pause is None and (self.has_id or self._maybe_stored is None):
                raise error  # a permanent rejection: no copy is stored
        if pause is not None and self.deadline - now > pause:
            return pause
        if self._maybe_stored is None:
            raise failure
        raise PublishUncertain(self.subject, f"{self._maybe_stored.reason}, and then {failure}") from failure
