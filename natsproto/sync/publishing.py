"""Messages on their way from any thread to the event loop.

Owns those that were published and not handed to the client yet. A way into the loop and back costs 50 to 300 µs, so
publishing does not wait for each: it checks what can be checked, leaves the message here, and the loop takes all
there is at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, TypeAlias

from natsproto.client import Client
from natsproto.errors import ConnectionClosed, PayloadTooLarge
from natsproto.jetstream.outgoing import as_bytes
from natsproto.protocol.frames import Payload
from natsproto.protocol.headers import Headers, HeadersLike, encode_headers
from natsproto.protocol.subject import publish_subject
from natsproto.sync.portal import Portal

if TYPE_CHECKING:
    _Item: TypeAlias = tuple[str, bytes, str | None, Headers | None]

MAX_MSGS = 4096
"""Messages that may be on their way; then publishing waits."""


class Outgoing:
    """One client's messages. ``put`` is for all threads, the rest runs on the loop."""

    def __init__(self, portal: Portal, client: Client) -> None:
        self._portal = portal
        self._client = client
        self._items: deque[_Item] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._posted = False
        self._error: Exception | None = None

    @property
    def busy(self) -> bool:
        """Whether any are on their way."""
        return bool(self._items) or self._sender is not None

    def put(self, subject: str, payload: Payload, reply: str | None, headers: HeadersLike | None) -> None:
        """Takes a message; raises for bad arguments, and what became of earlier messages."""
        self._portal.check()
        publish_subject(subject)
        if reply is not None:
            publish_subject(reply, "reply subject")
        payload = as_bytes(payload)
        kept = None if headers is None else Headers(headers)
        size = len(payload) + (0 if kept is None else len(encode_headers(kept)))
        if size > self._client.max_payload > 0:
            raise PayloadTooLarge(size, self._client.max_payload)
        self._raise()
        self._items.append((subject, payload, reply, kept))
        if not self._posted:
            self._posted = True
            self._portal.post(self._start)
        if len(self._items) >= MAX_MSGS:
            self._portal.call(self.settled)

    async def settled(self, timeout: float | None = None) -> None:
        """Until the client has taken all of them, or so many seconds; raises why it did not."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while self.busy and (deadline is None or loop.time() < deadline):
            self._start()
            if self._sender is not None:
                await asyncio.wait([self._sender], timeout=None if deadline is None else deadline - loop.time())
        self._raise()

    def _start(self) -> None:
        self._posted = False  # before looking: what comes now is either seen here or posted again
        if self._sender is None and self._items:
            self._sender = asyncio.get_running_loop().create_task(self._send(), name="natsproto sync publish")

    async def _send(self) -> None:
        items, client = self._items, self._client
        try:
            while items:
                subject, payload, reply, headers = items.popleft()
                await client.publish(subject, payload, reply=reply, headers=headers)
        except Exception as exc:
            self._error = exc
            if isinstance(exc, ConnectionClosed):
                items.clear()
        finally:
            self._sender = None
            self._start()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error
