"""A running ``consume`` of the blocking client, whose handler is called in threads."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from natsproto._durations import DEFAULT, Default
from natsproto.jetstream._consumer import consume
from natsproto.jetstream._values.codec import Duration
from natsproto.sync._wrapper import SyncWrapper


class ConsumeContext(SyncWrapper[consume.ConsumeContext]):
    """A running ``consume``, whose handler is called in threads. Leaving ``with`` stops it.

    It ends by ``stop`` or ``drain``, after ``stop_after`` messages, with the client, or when the consumer becomes
    unusable, which ``wait`` raises. The threads are daemon threads: a handler that hangs does not keep the program.
    """

    @property
    def handled(self) -> int:
        """Messages handled so far, including failures."""
        return self._inner.handled

    @property
    def failed(self) -> int:
        """Messages for which the handler raised."""
        return self._inner.failed

    @property
    def in_progress(self) -> int:
        """Messages that are being handled now."""
        return self._inner.in_progress

    @property
    def pending(self) -> int:
        """Messages that have arrived and wait for the handler."""
        return self._inner.pending

    @property
    def prefetch(self) -> int:
        """The most messages to be requested, waiting or in work now."""
        return self._inner.prefetch

    @property
    def stale(self) -> int:
        """Messages that were dropped because the server delivers them again."""
        return self._inner.stale

    @property
    def given_back(self) -> int:
        """Messages that were returned because they had waited for twice their ack_wait."""
        return self._inner.given_back

    @property
    def closed(self) -> bool:
        """True after its end: no handler is running and none will be called."""
        return self._inner.closed

    def run(self, until: threading.Event | None = None) -> None:
        """Wait until it has ended, or until the event is set, then stop it.

        Raises the error that made the consumer unusable (ConsumerGone, PullRefused). DrainTimeout when running calls
        take longer than the option ``drain_timeout``. An interrupt stops it, too.

        Args:
            until: An event whose setting ends it, such as that of ``stop_event()``; None: it runs until stopped.
        """
        with self:
            self.wait(until)

    def wait(self, until: threading.Event | None = None) -> None:
        """Wait until it has ended, or until the event is set; raise the error that made the consumer unusable.

        An interrupt ends only the wait.

        Args:
            until: An event whose setting ends it, such as that of ``stop_event()``; None: it waits until stopped.
        """
        self._portal.call_until(self._inner.wait, until)

    def stop(self, timeout: Duration | Default | None = DEFAULT) -> None:
        """Stop calling the handler, wait for running calls, and return waiting messages to the server.

        DrainTimeout when they take longer than ``timeout``: their threads go on, and their messages are delivered again
        after ``ack_wait``. An interrupt, such as a second Ctrl-C, ends the wait. In the handler it does not wait.

        Args:
            timeout: Seconds for the running calls, which are cancelled then. Left out: the option ``drain_timeout``;
                None: no limit.
        """
        self._portal.call(self._inner.stop, timeout)

    def drain(self, timeout: Duration | Default | None = DEFAULT) -> None:
        """Stop pulling, handle the messages that have arrived or are in flight, then end.

        DrainTimeout when they take longer than ``timeout``, as in ``stop``. In the handler it does not wait.

        Args:
            timeout: Seconds for the messages and the running calls, which are cancelled then. Left out: the option
                ``drain_timeout``; None: no limit.
        """
        self._portal.call(self._inner.drain, timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._portal.stopped:
            self.stop()
            if exc is None:
                self.wait()
