"""PURE. The messages of a fast publisher, and the outcome of each.

The position of a message is its state: ``pending`` starts after the settled messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from natsproto import errors
from natsproto.jetstream._values.info import PubAck

PendingMessage: TypeAlias = tuple[str, bytes, bytes | None]
"""Subject, payload and header block of a message. A plain tuple, since creating a NamedTuple takes four times as long.
"""


class BatchMessages:
    """The messages of a publisher, and the state of each."""

    __slots__ = (
        *("_failed", "_last_subject"),
        *("ack", "awaited", "ended", "fatal_error", "is_reported", "lost", "nbytes", "pending", "settled"),
    )

    def __init__(self) -> None:
        self.pending: list[PendingMessage] = []
        """The messages without an outcome, in order."""
        self.nbytes = 0
        """Bytes of their payloads."""
        self.settled = 0
        """The number of messages before them."""
        self.lost = 0
        """Messages that the stream did not or may not have stored, with gaps allowed."""
        self.ack: PubAck | None = None
        """The acknowledgement of the last batch."""
        self.awaited: dict[int, PubAck | None] = {}
        """The numbers of committing messages, and the acknowledgements of their batches."""
        self.ended = 0
        """The number of the last message of the batches that have ended, with or without an acknowledgement."""
        self.fatal_error: errors.NatsError | None = None
        """The error that ended the publisher."""
        self.is_reported = False
        """True if it was raised, after all failures."""
        self._last_subject = ""  # of the settled messages
        self._failed: list[errors.FailedMessage] = []

    @property
    def count(self) -> int:
        """Messages accepted so far; the number of the last one."""
        return self.settled + len(self.pending)

    @property
    def subject(self) -> str:
        """A subject of the stream."""
        return self.pending[-1][0] if self.pending else self._last_subject

    @property
    def failures(self) -> int:
        """Failed messages that were not reported yet."""
        return len(self._failed)

    def add(self, subject: str, payload: bytes, block: bytes | None) -> int:
        """Accept a message and return its number."""
        self.pending.append((subject, payload, block))
        self.nbytes += len(payload)
        return self.settled + len(self.pending)

    def settle(self, count: int) -> None:
        """Settle the first ``count`` messages: their outcome is known."""
        settled = self.pending[:count]
        if settled:
            del self.pending[:count]
            self.nbytes -= sum([len(payload) for _, payload, _ in settled])
            self.settled += len(settled)
            self._last_subject = settled[-1][0]

    def set_ack(self, ack: PubAck) -> None:
        """Set the acknowledgement of the batch that ends now; its messages are settled."""
        self.ack = ack
        for number in self.awaited:
            if self.ended < number <= self.settled:
                self.awaited[number] = ack

    def fail(self, index: int, error: errors.NatsError) -> None:
        """Record the failure of one pending message."""
        if 0 <= index < len(self.pending):
            subject, payload, _ = self.pending[index]
            self._failed.append(errors.FailedMessage(self.settled + index + 1, subject, len(payload), error))

    def finish(self, refusals: Iterable[errors.NatsError | None], fatal_error: errors.NatsError) -> None:
        """End the publisher with an error for each pending message, and one for all later calls."""
        for index, error in enumerate(refusals):
            if error is not None:
                self.fail(index, error)
        self.settle(len(self.pending))
        self.fatal_error = fatal_error

    def take_error(self) -> errors.NatsError | None:
        """Return the error to raise: for messages that failed since the last call, or for the end of the publisher."""
        failed, self._failed = self._failed, []
        self.is_reported = self.fatal_error is not None
        if failed:
            error = errors.PublishFailed(failed)
            error.__cause__ = failed[0].error
            return error
        return self.fatal_error

    def take_error_of(self, number: int) -> errors.NatsError | None:
        """Return the error to raise if this message, one of the first, was rejected."""
        if self.fatal_error is None:  # the publisher continues; other calls report the other failures
            own = [failed for failed in self._failed if failed.number == number]
            self._failed = [failed for failed in self._failed if failed.number != number]
            return own[0].error if own else None
        error = self.take_error()
        return error.failures[0].error if isinstance(error, errors.PublishFailed) else error
