"""PURE. Is a write stored? Which refusals are certain, and what follows after the others.

Rules:

1. A server compares before it proposes, so a refusal says "I did not propose it" and nothing about other servers. When
   a leader that was cut off comes back, it and its successor both get a message: the refusal of the deposed leader
   arrives first, the acknowledgement of the other one milliseconds later.
2. A refusal is certain only if the server that refused knew what this client knows. All refusals are certain but those
   of ``UncertainRefusal``.
3. After one of those the client waits for another reply, and looks the message up at the leader, as ``next_step`` says.
   That the message is found proves that it is stored.
4. That it is not found proves something only in three cases: another message was stored with the same expectation, or
   the expected sequence was never the last one; the leader is the only one that there can have been; or a leader that
   reaches a majority lacks it a second after the refusal, and the stream would have kept it.
5. A leader is the only one that there can have been (``Leadership.UNDISPUTED``) if it has led since before the message
   was sent, for longer than a deposed leader goes on, or since the stream was created.
6. A message without an answer may be stored. It is sent again only if it cannot be stored twice: it has an id that the
   stream still knows, or it expects the last sequence of its own subject and a lookup can recognise it.
7. "No responders" proves that nothing was stored: waiting and sending again is always safe.
8. After a write without an answer every error is PublishUncertain (``Change``), unless the stream does not exist.
9. Chunks of a write are removed only with the proof that the write is not stored: ``NotStored``, which only
   ``Change.not_stored`` returns.

===============  ============================================  =====================================================
UncertainRefusal the refusal                                   what follows; "look up" is a lookup at the leader
===============  ============================================  =====================================================
STALE            10071, last < expected                        look up; after 0.25 s; after 0.75 s. With a message id
                                                               that is known: send again after 0.25 s, twice at most
IN_PROCESS       10164                                         look up; after 0.01 s; after 0.25 s if the message that
                                                               is found cannot be told from this one; send again. With
                                                               a message id: pause, look up, send again
OWN_COPY         10071, last > expected, after a copy without  look up; after 0.25 s; after 0.75 s
                 an answer or one of the refusals above
EMPTY            10071, expected 0, the write has an own id    look up once
COMMIT           10176, or 10164, of a commit                  look up after 0.25 s; after 0.75 s
===============  ============================================  =====================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, IntEnum
from types import TracebackType
from typing import Final, NamedTuple, TypeAlias

from natsproto import errors
from natsproto.jetstream._values.error_codes import ErrCode
from natsproto.jetstream._values.info import PubAck

_BY_STREAM_HEADER = "nats-expected-last-sequence"
_BY_SUBJECT_HEADER = "nats-expected-last-subject-sequence"
_OTHER_SUBJECT_HEADER = "nats-expected-last-subject-sequence-subject"

FURTHER_REPLY_S = 0.25
"""Seconds in which the reply of another server comes, if there is one: in clusters within 9 ms."""
MAX_STALE_RESENDS = 2
"""How often a message with an id is sent again after a stale refusal: a stream that has it knows the id."""


class UncertainRefusal(Enum):
    """Why a message may be stored although a server refused it."""

    STALE = "the server that refused it did not know the sequence that was expected"
    IN_PROCESS = "a server refused it because another write of the subject was in process"
    OWN_COPY = "the last sequence may be that of an earlier copy of this message"
    EMPTY = "the subject may have had this message"
    COMMIT = "a server refused the commit, which another one may have stored"


LOOKUP_WAITS_S: Final[Mapping[UncertainRefusal, tuple[float, ...]]] = {
    UncertainRefusal.STALE: (0.0, FURTHER_REPLY_S, 0.75),
    UncertainRefusal.IN_PROCESS: (0.0, 0.01),
    UncertainRefusal.OWN_COPY: (0.0, FURTHER_REPLY_S, 0.75),
    UncertainRefusal.EMPTY: (0.0,),
    UncertainRefusal.COMMIT: (FURTHER_REPLY_S, 0.75),
}
"""Seconds to wait for another reply before each lookup. A lookup shows a write in process only until the next one."""


class Expectation(NamedTuple):
    """The last sequence that a message expects of a subject, or of the whole stream ("")."""

    seq: int
    subject: str


class Leadership(IntEnum):
    """The certainty that the server that answered a lookup leads the stream."""

    UNCONFIRMED = 0
    """It may have been deposed."""
    MAJORITY = 1
    """It reaches a majority of its peers."""
    UNDISPUTED = 2
    """It reaches a majority, and no other server can have been the leader since the message was first sent."""
    ONLY_SERVER = 3
    """The stream has one server."""


class Evidence(NamedTuple):
    """The result of a lookup. The default is that of a lookup that failed: it proves nothing."""

    ack: PubAck | None = None
    """Where the message is stored."""
    is_refuted: bool = False
    """Another message took its place, or its expectation was never true."""
    is_absent: bool = False
    """The stream has no copy, and would still have one that was stored."""
    is_replaced: bool = False
    """Newer messages have replaced those that would decide: another lookup shows no more."""
    is_ambiguous: bool = False
    """It has a message that cannot be told from this one."""
    leadership: Leadership = Leadership.UNCONFIRMED


class Situation(NamedTuple):
    """An uncertain refusal, and what is known of the message."""

    refusal: UncertainRefusal
    has_msg_id: bool = False
    """The stream recognises a copy of it."""
    is_guarded: bool = False
    """A copy of it expects the same sequence of its own subject, or of the stream."""
    is_answered: bool = True
    """No copy of it is without an answer."""
    stale_resends: int = 0
    """How often it was sent again after a stale refusal."""


class Decision(Enum):
    """The end of an uncertain refusal."""

    STORED = "stored"
    NOT_STORED = "not stored"
    UNKNOWN = "unknown"


class AwaitReply(NamedTuple):
    """Wait for another reply for these seconds, and then look the message up if ``looks_up``."""

    seconds: float
    looks_up: bool


class Resend(NamedTuple):
    """Send the message again: it cannot be stored twice."""


Step: TypeAlias = AwaitReply | Resend | Decision


class Stored(NamedTuple):
    """The stream has the message."""

    ack: PubAck


class Refused(NamedTuple):
    """No copy of the message is stored."""

    error: errors.NatsError


class NotStored(NamedTuple):
    """No message of a change is stored. The proof that what belongs to it may be removed."""

    error: errors.NatsError


class Unknown(NamedTuple):
    """The message may be stored."""

    error: errors.PublishUncertain


Outcome: TypeAlias = Stored | Refused | Unknown


def next_step(situation: Situation, waits: int, evidence: Evidence | None, pause: float = 0.0) -> Step:
    """Return what to do after an uncertain refusal and this number of waits, the last one with this evidence.

    ``pause`` is the number of seconds that a busy server gets before it gets the message again.
    """
    if evidence is not None and (step := _judge(situation, waits, evidence)) is not None:
        return step
    refusal = situation.refusal
    if refusal is UncertainRefusal.IN_PROCESS and situation.has_msg_id:
        return Resend() if waits else AwaitReply(pause, looks_up=True)  # others may have gone on, time and again
    if refusal is UncertainRefusal.STALE and situation.has_msg_id and situation.stale_resends < MAX_STALE_RESENDS:
        return Resend() if waits else AwaitReply(FURTHER_REPLY_S, looks_up=False)
    waits_s = LOOKUP_WAITS_S[refusal]
    if refusal is UncertainRefusal.IN_PROCESS and evidence is not None and evidence.is_ambiguous:
        waits_s = (*waits_s, FURTHER_REPLY_S)
    if waits < len(waits_s):
        return AwaitReply(waits_s[waits], looks_up=True)
    if refusal is UncertainRefusal.IN_PROCESS and situation.is_guarded:
        return Resend()
    return Decision.UNKNOWN


def _judge(situation: Situation, waits: int, evidence: Evidence) -> Step | None:
    """Return the step that the evidence allows; None if it decides nothing."""
    refusal, leadership = situation.refusal, evidence.leadership
    if evidence.ack is not None:
        return Decision.STORED
    if evidence.is_refuted or refusal is UncertainRefusal.EMPTY:
        return Decision.NOT_STORED
    is_only_leader = leadership >= Leadership.UNDISPUTED
    if is_only_leader and situation.is_answered and not evidence.is_ambiguous:  # the refusal was that of this leader
        if refusal is UncertainRefusal.IN_PROCESS:
            return Resend()
        if refusal is not UncertainRefusal.COMMIT:
            return Decision.NOT_STORED
    if refusal is UncertainRefusal.IN_PROCESS:
        return None  # it is sent again: nothing has taken its place
    has_waited = is_only_leader or refusal is UncertainRefusal.COMMIT or waits >= len(LOOKUP_WAITS_S[refusal])
    if evidence.is_absent and leadership is not Leadership.UNCONFIRMED and has_waited:
        return Decision.NOT_STORED
    if refusal is UncertainRefusal.OWN_COPY and (is_only_leader or (evidence.is_replaced and waits >= 2)):
        return Decision.UNKNOWN  # no other server will answer, or it has had the time
    return None


def expectation_of(subject: str, pairs: Iterable[tuple[str, str]]) -> Expectation:
    """Return what the headers of a message to ``subject`` expect; the sequence is 0 where they expect nothing."""
    found = {name.lower(): value for name, value in pairs}
    by_subject, by_stream = found.get(_BY_SUBJECT_HEADER, ""), found.get(_BY_STREAM_HEADER, "")
    if by_subject.isdecimal():
        return Expectation(int(by_subject), found.get(_OTHER_SUBJECT_HEADER, subject))
    return Expectation(int(by_stream) if by_stream.isdecimal() else 0, "")


def uncertain_refusal(
    error: BaseException, expected: int, *, may_be_stored: bool = False, has_own_id: bool = False
) -> UncertainRefusal | None:
    """Return why this refusal is not certain; None when it is.

    ``expected`` is the last sequence that the message expects; ``may_be_stored``: an earlier copy may be stored, and
    the stream would not recognise the message by its id. ``has_own_id``: a lookup recognises it.
    """
    if not isinstance(error, errors.WrongLastSequence):
        return None
    if error.err_code == ErrCode.STREAM_WRONG_LAST_SEQUENCE_CONSTANT:
        return UncertainRefusal.IN_PROCESS
    if error.last is not None and error.last < expected:
        return UncertainRefusal.STALE
    if may_be_stored:
        return UncertainRefusal.OWN_COPY
    return UncertainRefusal.EMPTY if has_own_id and expected == 0 else None


def is_uncertain_commit(error: errors.ApiError, expected: int) -> bool:
    """Return True if the refusal of a commit is not certain; ``expected`` is the highest sequence that it expects."""
    is_incomplete = error.err_code == ErrCode.ATOMIC_PUBLISH_INCOMPLETE_BATCH
    return is_incomplete or uncertain_refusal(error, expected) is not None


def refusal_error(subject: str, refusal: UncertainRefusal, error: errors.ApiError) -> errors.PublishUncertain:
    """Return the error of a message whose refusal is not certain."""
    uncertain = errors.PublishUncertain(subject, f"{refusal.value} ({error.description})")
    uncertain.__cause__ = error
    return uncertain


_NO_STREAM = (errors.StreamNotFound, errors.BucketNotFound)
"""Without a stream nothing is stored."""


class Change:
    """One change of a stream, which may take several writes and reads.

    ``with Change(subject) as change:`` is around all of them: an error that leaves the block after a write without an
    answer becomes PublishUncertain.
    """

    __slots__ = ("subject", "uncertain")

    def __init__(self, subject: str) -> None:
        self.subject: str = subject
        self.uncertain: errors.PublishUncertain | None = None
        """Why the change may have been made."""

    def not_stored(self, error: errors.NatsError) -> NotStored:
        """Return the proof that no write is stored; raise PublishUncertain while one may be."""
        if isinstance(error, errors.PublishUncertain):
            raise error
        if self.uncertain is not None:
            raise self._uncertain_error(self.uncertain, error) from error
        return NotStored(error)

    def _uncertain_error(self, before: errors.PublishUncertain, error: errors.NatsError) -> errors.PublishUncertain:
        return errors.PublishUncertain(self.subject, f"{before.reason}, and then {error}")

    def __enter__(self) -> Change:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(exc, errors.PublishUncertain):
            self.uncertain = exc
        elif self.uncertain is not None and isinstance(exc, errors.NatsError) and not isinstance(exc, _NO_STREAM):
            raise self._uncertain_error(self.uncertain, exc) from exc
