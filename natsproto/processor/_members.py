"""The workers of a processor, and which of them has which partition.

Every worker publishes its name on a core subject. A worker is present if its name came in the last ``MEMBER_TTL_S``
seconds. The sorted names share the partitions. Workers may disagree for a while: then two have a
partition, and the cursor fences one of them, or nobody has it. So there is no election, no bucket and no lease.
"""

from __future__ import annotations

import asyncio

from natsproto import errors
from natsproto._core.connection import Connection
from natsproto.protocol.frames import Message

MEMBER_TTL_S = 3.0
"""Seconds without a message after which a worker counts as dead."""
ANNOUNCE_INTERVAL_S = 0.75
FIRST_WAIT_S = 0.2
"""Seconds in which a new worker receives the names of the others, before it takes partitions."""
_LEFT = b"-"
_MAX_NAMES, _MAX_NAME_BYTES = 1000, 64


class Members:
    """The present workers, in the order that shares the partitions."""

    def __init__(self, connection: Connection, subject: str) -> None:
        self.changed: asyncio.Event = asyncio.Event()
        """Set when a worker came or went."""
        self._connection, self._subject = connection, subject
        self._me = connection._runtime.new_id()
        self._last_seen: dict[str, float] = {}  # the other workers, and the time of its last message
        self._announces = asyncio.Event()

    def partitions(self, count: int) -> set[int]:
        """Return the partitions of this worker among ``count``."""
        names = sorted([*self._last_seen, self._me])
        return set(range(names.index(self._me), count, len(names)))

    async def run(self) -> None:
        """Announce this worker and listen to the others, until cancelled. Raises the error that ends listening."""
        listening = asyncio.create_task(self._listen())
        listening.add_done_callback(lambda _: self._announces.set())
        try:
            self._send(self._me.encode())
            await asyncio.wait({listening}, timeout=FIRST_WAIT_S)
            self.changed.set()
            while not listening.done():
                self._announces.clear()
                began = asyncio.get_running_loop().time()
                try:
                    await asyncio.wait_for(self._announces.wait(), ANNOUNCE_INTERVAL_S)
                except TimeoutError:
                    pass
                self._forget(began)
                self._send(self._me.encode())
            await listening
        finally:
            listening.cancel()

    def leave(self) -> None:
        """Say that this worker ends, so that the others need not wait."""
        self._send(_LEFT + self._me.encode())

    async def _listen(self) -> None:
        async with self._connection.subscribe(self._subject) as subscription:
            async for message in subscription:
                self._on_message(message)

    def _on_message(self, message: Message) -> None:
        data = bytes(message.data[:_MAX_NAME_BYTES])
        name = data.removeprefix(_LEFT).decode("ascii", "replace")
        if name == self._me:
            return
        if data.startswith(_LEFT):
            if self._last_seen.pop(name, None) is not None:
                self.changed.set()
            return
        if name not in self._last_seen:
            if len(self._last_seen) >= _MAX_NAMES:
                return
            self._announces.set()  # it does not know this worker
            self.changed.set()
        self._last_seen[name] = asyncio.get_running_loop().time()

    def _forget(self, began: float) -> None:
        """Forget workers whose name has not come for too long, though it could have come."""
        now = asyncio.get_running_loop().time()
        if not self._connection.is_connected or now - began > 2 * ANNOUNCE_INTERVAL_S:
            self._last_seen = dict.fromkeys(self._last_seen, now)
        for name in [name for name, last_seen in self._last_seen.items() if last_seen < now - MEMBER_TTL_S]:
            del self._last_seen[name]
            self.changed.set()

    def _send(self, data: bytes) -> None:
        try:
            self._connection.publish_nowait(self._subject, data)
        except errors.NatsError:  # there is no connection, or no room: the others notice it
            pass
