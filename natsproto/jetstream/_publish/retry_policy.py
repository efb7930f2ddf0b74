"""PURE. The policy of sending a message to a stream again.

Three rules decide everything, for one message, for windows and for batches:

* A message that the server rejected, or that had no responders, is not stored and may be sent again (ADR-22), unless
  the refusal is not certain (see ``outcome``).
* A message without a reply may be stored. It is sent again only if it has a message id that the stream still knows.
* The caller gets one outcome for each message, within its timeout.
"""

from __future__ import annotations

from natsproto import errors
from natsproto.errors._base import Transience
from natsproto.jetstream._publish.outcome import (
    Decision,
    Evidence,
    Expectation,
    Resend,
    Situation,
    Step,
    UncertainRefusal,
    next_step,
    refusal_error,
    uncertain_refusal,
)
from natsproto.protocol.server_errors import SubscriptionDenied

RETRY_ATTEMPTS = 2
RETRY_WAIT_S = 0.25
"""Seconds; the values of ADR-22."""

RESEND_AFTER_S = 1.0
"""Seconds without a reply after which a message with an id is sent again, repeatedly."""

MAX_RETRY_PAUSE_S = 1.0
"""The most seconds between two attempts on a busy server."""

FORGOTTEN_ID = "it may be stored, and the stream may not know its message id any more"
"""Why a message with an id is not sent again."""

UNTIL_TIMEOUT = -1
"""A number of attempts: for a stream that exists, "no responders" is an election."""


def is_rejected_for_now(error: errors.NatsError) -> bool:
    """Return True for a rejection that ends by itself: the message was not stored, and a retry will succeed."""
    return isinstance(error, errors.ApiError) and error._transience is Transience.ELECTION


def uncertain_error(
    subject: str, error: errors.NatsError, timeout: float, reason: str = "", *, in_a_row: int = 0
) -> errors.PublishUncertain:
    """Return the error of a message that was sent and gets no reply because of ``error``; the ``timeout`` in seconds is
    that of the message. ``in_a_row`` counts timeouts, see PublishTimeout.
    """
    if isinstance(error, errors.RequestTimeout):
        return errors.PublishTimeout(subject, timeout, in_a_row, disconnected=error.disconnected)
    uncertain = errors.PublishUncertain(subject, reason or str(error))
    uncertain.__cause__ = error
    return uncertain


class RetryCounter:
    """The temporary failures of a message, and the wait before the next attempt.

    ``attempts`` is the limit of retries while no stream has the subject, -1 for no limit; ``wait`` is in seconds. By
    default a message with an id has no limit, so that it survives an election: it may be sent any number of times.
    """

    __slots__ = ("_attempts", "_transient", "_wait", "no_stream")

    def __init__(self, attempts: int | None, wait: float, *, has_id: bool = False) -> None:
        if attempts is None:
            attempts = -1 if has_id else RETRY_ATTEMPTS
        self._attempts = attempts
        self._wait = wait
        self.no_stream = 0
        """The number of attempts without a stream."""
        self._transient = 0

    def no_stream_error(self, subject: str, timeout: float) -> errors.NoStream:
        """The error of a message that no stream receives within its attempts, or else within ``timeout`` seconds."""
        return errors.NoStream(subject, timeout if self._attempts < 0 else 0.0)

    def pause_after(self, error: errors.NatsError) -> float | None:
        """Return the seconds until the next attempt, short at first for a busy server; None when there is none."""
        if isinstance(error, errors.NoResponders | errors.NoStream):
            self.no_stream += 1
            return None if self.no_stream > self._attempts >= 0 else self._wait
        return self.busy_pause() if is_rejected_for_now(error) else None

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
        "_is_answered",
        "_maybe_stored",
        "_retry_counter",
        "_retry_wait",
        "_stale_resends",
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
        self._maybe_stored: errors.PublishUncertain | None = None  # why an earlier copy may be stored
        self._is_answered = True  # every copy was
        self._stale_resends = 0

    @property
    def is_resendable(self) -> bool:
        """True if it may be sent again after a lost connection."""
        return self.has_id or self.is_guarded

    def situation(
        self, error: errors.NatsError, expected: Expectation, sent_at: float, now: float, *, has_own_id: bool
    ) -> Situation | None:
        """Return the situation after a refusal that is not certain; None if it is, or this is no refusal."""
        if not isinstance(error, errors.WrongLastSequence):
            return None
        self._note_silence(sent_at, now)
        may_be_stored = self._maybe_stored is not None and not self.has_id
        refusal = uncertain_refusal(error, expected.seq, may_be_stored=may_be_stored, has_own_id=has_own_id)
        if refusal is None:
            return None
        is_guarded = expected.subject in (self.subject, "")
        return Situation(refusal, self.has_id, is_guarded, self._is_answered, self._stale_resends)

    @property
    def must_know_id(self) -> bool:
        """True if a copy that may be stored is recognised only by the id."""
        return self.has_id and self._maybe_stored is not None

    def forget_id(self) -> None:
        """The stream may not know the id any more: raises PublishUncertain if another copy would be stored twice."""
        self.has_id = False
        if self._maybe_stored is not None and not self.is_guarded:
            raise errors.PublishUncertain(self.subject, FORGOTTEN_ID) from self._maybe_stored

    def step(self, situation: Situation, waits: int, evidence: Evidence | None, now: float) -> Step:
        """Return ``next_step`` within the time that is left."""
        pause = self._retry_counter.next_pause
        step = next_step(situation, waits, evidence, pause)
        return Decision.UNKNOWN if isinstance(step, Resend) and self.deadline - now <= pause else step

    def pause_after_refusal(self, refusal: UncertainRefusal, error: errors.ApiError) -> float:
        """Return the seconds until it is sent again after a refusal that is not certain."""
        self._maybe_stored = refusal_error(self.subject, refusal, error)
        pause = self._retry_counter.busy_pause()
        if refusal is UncertainRefusal.IN_PROCESS:
            return 0.0  # it has waited for another reply
        self._stale_resends += 1
        return pause

    def _note_silence(self, sent_at: float, now: float) -> None:
        if self.is_resendable and now - sent_at >= RESEND_AFTER_S:  # it was sent again after a silence
            self._is_answered = False
            self._maybe_stored = self._maybe_stored or errors.PublishTimeout(self.subject, now - sent_at)

    def pause_after(self, error: errors.NatsError, sent_at: float, now: float, *, in_a_row: int = 0) -> float:
        """Return the seconds until it is sent again, after this reply to an attempt. Raises the error for the caller
        when it is not sent again. ``in_a_row`` counts timeouts, see PublishTimeout.
        """
        failure = error
        if isinstance(error, errors.RequestTimeout) and not error.sent and self._maybe_stored is None:
            raise errors.RequestTimeout(
                f"publish to {self.subject!r}", self._timeout, sent=False, disconnected=error.disconnected
            )
        if isinstance(
            error, errors.RequestTimeout | errors.ConnectionLost | SubscriptionDenied
        ):  # sent, but no reply will come
            self._is_answered = False
            self._maybe_stored = uncertain_error(self.subject, error, self._timeout, in_a_row=in_a_row)
            if isinstance(error, errors.ConnectionLost) and self.is_resendable and now < self.deadline:
                return 0.0
            raise self._maybe_stored
        self._note_silence(sent_at, now)
        if isinstance(error, errors.OutboxFull):
            pause = None if self._maybe_stored is None else self._retry_wait
        else:
            pause = self._retry_counter.pause_after(error)
            if (
                pause is None
                and isinstance(error, errors.NoResponders)
                and self._maybe_stored is not None
                and self.is_guarded
            ):
                pause = self._retry_wait  # the server may be starting
            if isinstance(error, errors.NoResponders):
                failure = self._retry_counter.no_stream_error(self.subject, self._timeout)
            elif pause is None and (self.has_id or self._maybe_stored is None):
                raise error  # a permanent rejection: no copy is stored
        if pause is not None and self.deadline - now > pause:
            return pause
        if self._maybe_stored is None:
            raise failure
        raise errors.PublishUncertain(self.subject, f"{self._maybe_stored.reason}, and then {failure}") from failure
