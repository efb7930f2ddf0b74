"""PURE. Which refusals of a message are certain, and which are not.

A refusal is final only if the refuser knew what this client knows. A server compares before it proposes, so a refusal
says "I did not propose it", and nothing about other servers: when a leader that was cut off comes back, it and its
successor both get the message. The refusal of the deposed one arrives first, the acknowledgement milliseconds later.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from natsproto.errors import ApiError, PublishUncertain, WrongLastSequence
from natsproto.jetstream._api_errors import ErrCode

_BY_STREAM_HEADER = "nats-expected-last-sequence"
_BY_SUBJECT_HEADER = "nats-expected-last-subject-sequence"
_OTHER_SUBJECT_HEADER = "nats-expected-last-subject-sequence-subject"

FURTHER_REPLY_WAITS_S = (0.25, 0.75)
"""Seconds to wait for a second reply after a stale refusal: before the first search for the message, and the second.
Second replies of clusters came within 9 ms.
"""


class Doubt(Enum):
    """Why a message may be stored although a server refused it."""

    STALE = "the server that refused it did not know the sequence that was expected"
    IN_PROCESS = "a server refused it because another write of the subject was in process"
    OWN_COPY = "the last sequence may be that of an earlier copy of this message"


class Expectation(NamedTuple):
    """The last sequence that a message expects of a subject, or of the whole stream ("")."""

    seq: int
    subject: str


def expectation_of(subject: str, pairs: Iterable[tuple[str, str]]) -> Expectation:
    """Return what the headers of a message to ``subject`` expect; the sequence is 0 where they expect nothing."""
    found = {name.lower(): value for name, value in pairs}
    by_subject, by_stream = found.get(_BY_SUBJECT_HEADER, ""), found.get(_BY_STREAM_HEADER, "")
    if by_subject.isdecimal():
        return Expectation(int(by_subject), found.get(_OTHER_SUBJECT_HEADER, subject))
    return Expectation(int(by_stream) if by_stream.isdecimal() else 0, "")


def doubt_of(error: BaseException, expected: int, *, sent_before: bool) -> Doubt | None:
    """Return why this refusal is not certain; None when it is.

    ``expected`` is the last sequence that the message expects; ``sent_before``: an earlier copy may be stored, and the
    stream would not recognise the message by its id.
    """
    if not isinstance(error, WrongLastSequence):
        return None
    if error.err_code == ErrCode.STREAM_WRONG_LAST_SEQUENCE_CONSTANT:
        return Doubt.IN_PROCESS
    if error.last is not None and error.last < expected:
        return Doubt.STALE
    return Doubt.OWN_COPY if sent_before else None


def doubtful_error(subject: str, doubt: Doubt, error: ApiError) -> PublishUncertain:
    """Return the error of a message whose refusal is not certain."""
    uncertain = PublishUncertain(subject, f"{doubt.value} ({error.description})")
    uncertain.__cause__ = error
    return uncertain
