"""The failures of a publisher with a window: those that were not reported yet, and the error that ended it."""

from __future__ import annotations

from natsproto import errors
from natsproto.jetstream._publish.ack_future import AckFuture


class Failures:
    """The failed messages that were not reported yet, and the error that ended the publisher."""

    __slots__ = ("_unreported", "count", "fatal_error", "unexpected_error", "went_back")

    def __init__(self) -> None:
        self.count = 0
        """The number of failures so far, reported or not."""
        self.fatal_error: errors.NatsError | None = errors.LocalProtocolError(
            "a publisher publishes inside its block: async with js.publisher() as pub"
        )
        """The error of calls that publish; None while the publisher is open."""
        self.went_back: errors.StreamWentBack | None = None
        """The stream lost messages, which was not raised yet."""
        self.unexpected_error: errors.NatsError | None = None
        """The unexpected error that ended the window."""
        self._unreported: dict[int, tuple[AckFuture, int]] = {}

    def __len__(self) -> int:
        """The number of unreported failures."""
        return len(self._unreported)

    def add(self, number: int, future: AckFuture, size: int) -> None:
        """Add a failed message; ``size`` is that of its payload, in bytes."""
        self.count += 1
        self._unreported[number] = future, size

    def take(self) -> list[errors.FailedMessage]:
        """Return the failures whose futures were not examined, in publishing order, and forget them."""
        unreported, self._unreported = self._unreported, {}
        return [
            errors.FailedMessage(number, future.subject, size, error)
            for number, (future, size) in sorted(unreported.items())
            if (error := future._unseen_error()) is not None
        ]
