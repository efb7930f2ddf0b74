"""The steps by which a client ends: its receivers end, their handlers finish, and the messages that wait are sent.

Owns the readers that it waits for and the names of the work that is left. ``Ending`` owns the deadline, and the engine
closes the client afterwards, in any case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from natsproto import errors
from natsproto._core.ending import Ending, Reader
from natsproto._core.engine.registry import SubscriptionRegistry
from natsproto._core.event_bus import EventBus
from natsproto._core.inbox.readers import ActiveReaders, give_turns
from natsproto._core.notifier import Notifier
from natsproto._core.outbox import Outbox
from natsproto._core.socket.session import Session

OUTAGE_TIMEOUT_S: Final = 10.0
"""Seconds that a drain waits for a connection; handlers that run get its whole timeout."""


class DrainedEngine(Protocol):
    """The engine of the client that is drained."""

    outbox: Outbox
    registry: SubscriptionRegistry
    readers: ActiveReaders
    state_changed: Notifier
    closed: asyncio.Future[Exception | None]
    event_bus: EventBus

    @property
    def session(self) -> Session | None:
        """The connection in use; None while there is none."""
        ...

    @property
    def reconnects(self) -> int:
        """The number of reconnects so far."""
        ...

    async def flush_connection(self) -> None:
        """Wait until the server has handled everything sent so far, or the connection ends."""
        ...


class Drain:
    """The work of ending a client."""

    def __init__(self, engine: DrainedEngine, close: Callable[[], Awaitable[None]]) -> None:
        self.ending: Ending = Ending("drain", self._run, self._describe_rest, close)
        self._engine: DrainedEngine = engine
        self._clock: Callable[[], float] = asyncio.get_running_loop().time
        self._readers: list[Reader] = []
        """Those that this drain waits for; empty until nothing comes in any more."""
        self._unconfirmed: str = ""
        """Names the step that the server has not confirmed yet."""
        self._failures: list[str] = []
        self._outage: tuple[int, float] = -1, 0.0
        """The number of reconnects before the outage, and the time until which the drain waits for its end."""

    async def _run(self) -> None:
        """End the receivers, wait for their handlers, then send the messages that wait."""
        engine, registry = self._engine, self._engine.registry
        if engine.session is None and engine.outbox.frames:
            self._outage_deadline()  # it is logged at once, and lasts while handlers run
        draining = registry.subscriptions
        for subscription in draining:
            registry.stop_delivery(subscription)
        if draining:
            self._unconfirmed = f"the server did not confirm the end of {len(draining)} subscriptions"
            if (failure := await self._confirm()) is not None:
                self._failures.append(f"{self._unconfirmed} ({failure})")
            self._unconfirmed = ""
        await self._end_readers()
        self.ending.on_stopped()
        for reader in self._readers:
            await reader.join()
        self._unconfirmed = "the rest not confirmed"
        if (unsent := await self._send()) is not None and (engine.outbox.frames or not self._failures):
            self._failures.append(f"{engine.outbox.frames} messages not sent, the rest not confirmed ({unsent})")
        self.ending.unfinished += self._failures

    async def _describe_rest(self) -> list[str]:
        """Name what is left at the deadline."""
        found = list(self._failures)
        if self._unconfirmed:
            unsent = f"{self._engine.outbox.frames} messages not sent, " if self.ending.is_stopped else ""
            found.append(f"{unsent}{self._unconfirmed} (no answer in time)")
        if not self.ending.is_stopped:
            await self._end_readers()
        busy = [reader for reader in self._readers if reader.is_busy]
        return found + [f"{reader.unhandled} messages of {reader.what} not handled" for reader in busy]

    def cut(self) -> list[asyncio.Task[None]]:
        """Cancel what still handles messages, and return the tasks: they can still answer and return messages."""
        return [task for reader in self._readers for task in reader.cut()]

    async def wait(self) -> bool:
        """Wait for the end; from inside, for all other readers, and until the server has everything: False."""

        async def confirm() -> None:
            await give_turns(self._readers)
            await self._confirm()

        return await self.ending.wait_as_caller(self._all_readers, confirm)

    def _all_readers(self) -> list[Reader]:
        return [*self._readers, *self._engine.registry.readers, *self._engine.readers.open]

    async def _end_readers(self) -> None:
        """Nothing comes in any more: what has arrived can still be read."""
        registry = self._engine.registry
        readers = registry.readers
        for subscription in registry.subscriptions:
            registry.remove(subscription)
            subscription._close(None, reason="the client was drained")
        self._readers = [*readers, *await self._engine.readers.end()]

    async def _send(self) -> Exception | str | None:
        """Wait until the server has handled everything. Return the reason if it does not in time."""
        engine = self._engine
        while engine.session is not None or engine.outbox.frames:
            if engine.closed.done():
                return engine.closed.result()
            if engine.session is None:
                limit = min(self._outage_deadline(), self.ending.deadline)
                if self._clock() >= limit:
                    return "no connection"
                await engine.state_changed.wait(limit)
            elif (failure := await self._confirm()) is not None:
                return failure
            elif engine.session is not None and not engine.outbox.frames:
                return None
        return None

    async def _confirm(self) -> Exception | None:
        """Wait until the server has handled everything, or this connection ends. Return the error if there was one."""
        try:
            await self._engine.flush_connection()
        except (
            errors.ConnectionClosed
        ) as exc:  # by another task of the application, or because there is no other server
            return exc if await asyncio.shield(self._engine.closed) else None
        except errors.NatsError as exc:
            return exc
        return None

    def _outage_deadline(self) -> float:
        """Return the time at which this outage has lasted too long; logs its beginning."""
        engine = self._engine
        reconnects = engine.reconnects
        if self._outage[0] != reconnects:
            self._outage = reconnects, self._clock() + OUTAGE_TIMEOUT_S
            left = min(OUTAGE_TIMEOUT_S, max(0.0, self.ending.deadline - self._clock()))
            engine.event_bus.log.warning(
                "draining: %d messages wait for a connection, for at most %.1f s", engine.outbox.frames, left
            )
        return self._outage[1]
