"""The acknowledgement of one message, before and after its arrival.

Owns its waiters and its decoding. The window sets its outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator

from natsproto import errors
from natsproto._core.notifier import release
from natsproto.jetstream._values.info import PubAck, pub_ack


class AckFuture:
    """The acknowledgement of one message, now or later. ``await`` it for the PubAck, or for the error.

    Any number of tasks may await it, and cancelling one does not affect the others. It has the methods of an
    asyncio.Future except those that set it; for ``asyncio.wait`` use ``asyncio.ensure_future(future)``. It costs a
    fifth of an asyncio.Future, because it schedules no callbacks and parses the server's reply at its first use.
    """

    # No __init__, which would double the cost of creation: the window sets ``subject`` and ``_outcome``.
    __slots__ = ("_deadline", "_head", "_outcome", "_payload", "_seen", "subject")

    subject: str
    """Where the message was published to."""
    _outcome: list[asyncio.Future[None]] | bytes | PubAck | errors.NatsError | None
    """The waiters, or None, before the outcome is known; then the server's reply, unparsed or parsed, or the error."""
    _head: bytes
    _payload: bytes
    """For the window: the encoded message, until it is settled."""
    _deadline: float
    """For the window: the deadline, in the loop's time."""

    def done(self) -> bool:
        """True once the outcome of the message is known."""
        return self._outcome is not None and type(self._outcome) is not list

    def result(self) -> PubAck:
        """Return the acknowledgement. Raises the error if there is one, and asyncio.InvalidStateError before done()."""
        outcome = self._outcome
        if type(outcome) is bytes:
            self._outcome = outcome = pub_ack(outcome, f"publish to {self.subject!r}")
        if type(outcome) is PubAck:
            return outcome
        if isinstance(outcome, errors.NatsError):
            self._seen = True
            raise outcome.with_traceback(None)
        raise asyncio.InvalidStateError(f"message to {self.subject!r} is not acknowledged yet")

    def cancel(self) -> bool:
        """Return False: a message that was published cannot be taken back. Cancel the task that waits instead."""
        return False

    def cancelled(self) -> bool:
        """Return False, as it is never cancelled."""
        return False

    @property
    def duplicate(self) -> bool:
        """True if the stream already had a message with this id. Faster than ``result``; False before done()."""
        outcome = self._outcome
        if type(outcome) is bytes and b'"duplicate"' not in outcome:
            return False  # nearly always
        return self.done() and not isinstance(outcome, errors.NatsError) and self.result().duplicate

    def exception(self) -> errors.NatsError | None:
        """Return the error, or None for a stored message. asyncio.InvalidStateError before done()."""
        try:
            self.result()
        except errors.NatsError as exc:
            return exc.with_traceback(None)  # which would keep the caller's frame while the publisher keeps the error
        return None

    def __await__(self) -> Generator[object, None, PubAck]:
        if not self.done():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiters = self._wait_with(waiter)
            try:
                yield from waiter
            finally:
                if waiter in waiters:
                    waiters.remove(waiter)
        return self.result()

    def add_done_callback(self, callback: Callable[[AckFuture], object]) -> None:
        """Call ``callback`` after it is done, in a later step of the event loop, which logs its exceptions.

        Reading the error with ``result`` or ``exception`` marks it as seen, so leaving the publisher does not raise it.

        Args:
            callback: Called with the future on the event loop; it must not block.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter.add_done_callback(lambda _: callback(self))
        if self.done():
            waiter.set_result(None)
        else:
            self._wait_with(waiter)

    def _wait_with(self, waiter: asyncio.Future[None]) -> list[asyncio.Future[None]]:
        """Add a waiter, which is released with the outcome; return the list that holds it."""
        waiters = self._outcome
        if type(waiters) is not list:
            self._outcome = waiters = []
        waiters.append(waiter)
        return waiters

    def _settle(self, outcome: bytes | PubAck | errors.NatsError) -> None:
        """Set the outcome and wake the waiters. For the window."""
        waiters, self._outcome = self._outcome, outcome
        if type(waiters) is list:  # most have no waiters
            for waiter in waiters:
                release(waiter)

    def _unseen_error(self) -> errors.NatsError | None:
        """Return the error if there is one that was never read. For the window."""
        outcome = self._outcome
        return outcome if isinstance(outcome, errors.NatsError) and not hasattr(self, "_seen") else None

    def __repr__(self) -> str:
        state = "acknowledged" if self.done() else "waiting"
        return f"AckFuture({self.subject!r}, {'failed' if isinstance(self._outcome, errors.NatsError) else state})"
