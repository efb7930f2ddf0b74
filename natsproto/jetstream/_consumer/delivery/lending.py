"""The messages that ``next`` of Messages has returned: one in the hand of each task that calls it.

Owns these messages until their tasks are done with them. Only then they count as consumed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any, TypeAlias

from natsproto.jetstream._consumer.delivery.buffer import Buffer
from natsproto.jetstream._consumer.message import JsMessage

_Caller: TypeAlias = asyncio.Task[Any] | None


class Lending:
    """The messages that ``next`` has returned.

    A task is done with its message when it asks for another one. A task that has ended, as those of
    ``asyncio.wait_for`` do, is done with it when any task asks.
    """

    def __init__(self, buffer: Buffer, release: Callable[[JsMessage], None]) -> None:
        self._buffer, self._release = buffer, release
        self._readers: dict[_Caller, int] = {}  # their keys among the messages in hand
        self._lent: dict[_Caller, tuple[JsMessage, float]] = {}  # and since when
        self._ended: list[_Caller] = []

    def on_ask(self) -> None:
        """The running task asks for a message."""
        if self._ended:
            self._remove_ended()
        caller = asyncio.current_task()
        if caller in self._readers:
            self._settle(caller)
            return
        self._readers[caller] = self._buffer.add_reader()
        if caller is not None:
            caller.add_done_callback(self._ended.append)

    def leave(self) -> None:
        """The running task goes on to read in another way."""
        self._ended.append(asyncio.current_task())
        self._remove_ended()

    def lend(self, message: JsMessage, now: float) -> None:
        """The running task, which has asked, gets this message."""
        caller = asyncio.current_task()
        self._lent[caller] = message, now
        self._buffer.hand_of(self._readers[caller])[0] = message

    def end(self) -> None:
        """Reading has stopped."""
        self._ended += self._readers
        self._remove_ended()

    def _remove_ended(self) -> None:
        ended = [caller for caller in dict.fromkeys(self._ended) if caller in self._readers]
        self._ended.clear()
        for caller in ended:
            self._settle(caller)
            self._buffer.remove_reader(self._readers.pop(caller))

    def _settle(self, caller: _Caller) -> None:
        lent = self._lent.pop(caller, None)
        if lent is not None:
            message, since = lent
            self._buffer.hand_of(self._readers[caller])[0] = None
            self._buffer.on_batch_handled([message], monotonic() - since)
            self._release(message)
