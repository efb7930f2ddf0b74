"""Requests whose messages wait in the outbox: an outage lasts, so they have not left the client.

Owns the knowledge of what was not sent, and takes back the messages of requests that were given up meanwhile: a request
that has failed must not reach its responder after the reconnect. With a connection it does nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from natsproto.protocol.commands import subjects_of

T = TypeVar("T")

_SWEEP_RATIO = 8
"""Waiting messages for each request that was given up, up to which these are taken out of the outbox at once."""


class MessageQueue(Protocol):
    """The part of an outbox that requests need."""

    @property
    def frames(self) -> int:
        """Messages waiting."""
        ...

    def put(self, control: bytes, payload: bytes, /) -> None:
        """Add a message."""
        ...

    def waiting(self, mark: bytes, /) -> list[bytes]:
        """Return the control lines of the waiting messages that have ``mark`` in them."""
        ...

    def take_back(self, mark: bytes, is_wanted: Callable[[bytes], bool], /) -> list[bytes]:
        """Remove such messages, if ``is_wanted`` says so of their control lines."""
        ...


class HeldRequests:
    """The requests that wait for a connection, by the token that ends their reply subject after ``prefix``.

    ``is_pending`` says whether anybody still waits for the reply to a token. ``active`` is true while there is no
    connection; requests must be added then.
    """

    __slots__ = ("_given_up", "_is_pending", "_outbox", "_prefix", "_tokens", "active")

    def __init__(self, prefix: str, outbox: MessageQueue, is_pending: Callable[[str], bool], *, active: bool) -> None:
        self.active = active
        self._prefix, self._outbox, self._is_pending = prefix, outbox, is_pending
        self._tokens: set[str] = set()
        self._given_up = 0  # since their messages were last taken back

    def __contains__(self, token: str) -> bool:
        return token in self._tokens

    def add(self, token: str, future: asyncio.Future[T]) -> None:
        """The message of this request waits in the outbox."""
        self._tokens.add(token)
        future.add_done_callback(partial(self._on_done, token))

    def on_disconnect(self) -> list[str]:
        """The connection was lost. Return the tokens in the outbox; those that were not sent must be added."""
        self.active = True
        return list(map(self._token_of, self._outbox.waiting(self._prefix.encode())))

    def on_connect(self) -> None:
        """The outbox is about to be sent: take back what nobody waits for."""
        self.active = False
        self._tokens.clear()
        self._take_back()

    def _on_done(self, token: str, _: asyncio.Future[T]) -> None:
        if token in self._tokens:
            self._tokens.remove(token)
            self._given_up += 1
            if self._given_up * _SWEEP_RATIO >= self._outbox.frames:  # a search of the outbox for each could take long
                self._take_back()

    def _take_back(self) -> None:
        self._given_up = 0
        self._outbox.take_back(
            self._prefix.encode(),
            lambda control: bool(token := self._token_of(control)) and not self._is_pending(token),
        )

    def _token_of(self, control: bytes) -> str:
        """Return the token in the reply subject of a control line; "" if that is another inbox."""
        reply = subjects_of(control.partition(b"\r\n")[0])[1]
        return reply.removeprefix(self._prefix) if reply.startswith(self._prefix) else ""
