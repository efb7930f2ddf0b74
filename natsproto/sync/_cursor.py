"""Cursors for threads without an event loop."""

from __future__ import annotations

from typing import Final

from natsproto.jetstream import _cursor
from natsproto.jetstream._values.info import PubAck
from natsproto.sync._wrapper import SyncContext, SyncWrapper, blocking, wrapped


class Advance(SyncContext[_cursor.Advance]):
    """The messages of one advance of a cursor. Leaving ``with`` stores them and the new value together.

    Leaving it with an exception discards them, and the cursor stays.
    """

    _exit_needs_client = True

    publish: Final = blocking(_cursor.Advance.publish)

    @property
    def ack(self) -> PubAck:
        """The acknowledgement of the batch. LocalProtocolError before the end of the block, and when it failed."""
        return self._inner.ack

    def __len__(self) -> int:
        return len(self._inner)


class Cursor(SyncWrapper[_cursor.Cursor]):
    """How far a source was taken into a stream; its messages and its value are stored together, or neither."""

    load: Final = blocking(_cursor.Cursor.load)
    advance: Final = wrapped(_cursor.Cursor.advance, Advance)

    @property
    def stream(self) -> str:
        """The name of the stream."""
        return self._inner.stream

    @property
    def name(self) -> str:
        """The name of the cursor."""
        return self._inner.name

    @property
    def subject(self) -> str:
        """The subject of the stream whose last message is the cursor."""
        return self._inner.subject

    @property
    def value(self) -> int | bytes | None:
        """The value that was stored last, as of the last ``load`` or ``advance``; None: no value was ever stored.

        LocalProtocolError when it is not known: after an ``advance`` that failed, until ``load``.
        """
        return self._inner.value

    @property
    def seq(self) -> int:
        """The sequence of the message with the value; 0: there is none. LocalProtocolError as in ``value``."""
        return self._inner.seq
