"""One drain of a client: it ends the receivers, waits for their handlers, and sends the messages that wait.

Owns the deadlines and the list of unfinished work. The engine closes the client afterwards, in any case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from natsproto._core.event_bus import EventBus
from natsproto._core.notifier import Notifier
from natsproto._core.outbox import Outbox
from natsproto._core.readers import ActiveReaders
from natsproto._core.registry import SubscriptionRegistry
from natsproto._core.session import Session
from natsproto.errors import ConnectionClosed, NatsError

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

    async def flush_connection(self, timeout: float) -> None:
        """Wait until the server has handled everything sent so far, or the connection ends."""
        ...


class Drain:
    """Drains a client in at most ``timeout`` seconds."""

    def __init__(self, engine: DrainedEngine, timeout: float) -> None:
        self._engine: DrainedEngine = engine
        self._clock: Callable[[], float] = asyncio.get_running_loop().time
        self.deadline: float = self._clock() + timeout
        self.unfinished: list[str] = []
        """The work that was left at the deadline."""
        self._outage: tuple[int, float] = -1, 0.0
        """The number of reconnects before the outage, and the time until which the drain waits for its end."""

    async def run(self) -> None:
        """End the receivers, wait for their handlers, then send the messages that wait."""
        engine, registry = self._engine, self._engine.registry
        if engine.session is None and engine.outbox.frames:
            self._outage_deadline()  # it is logged at once, and lasts while handlers run
        draining = registry.subscriptions
        for subscription in draining:
            registry.stop_delivery(subscription)
        if draining and (failure := await self._confirm()) is not None:
            self.unfinished.append(f"the server did not confirm the end of {len(draining)} subscriptions ({failure})")
        for subscription in draining:
            registry.remove(subscription)
            subscription._close(None, reason="the client was drained")
        self.unfinished += await engine.readers.join(draining, self.deadline)
        unsent = await self._send()
        if unsent is not None and (engine.outbox.frames or not self.unfinished):
            self.unfinished.append(f"{engine.outbox.frames} messages not sent, the rest not confirmed ({unsent})")

    async def _send(self) -> Exception | str | None:
        """Wait until the server has handled everything. Return the reason if it does not in time."""
        engine = self._engine
        while engine.session is not None or engine.outbox.frames:
            if engine.closed.done():
                return engine.closed.result()
            if engine.session is None:
                limit = min(self._outage_deadline(), self.deadline)
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
            await self._engine.flush_connection(max(0.0, self.deadline - self._clock()))
        except ConnectionClosed as exc:  # by another task of the application, or because there is no other server
            return exc if await asyncio.shield(self._engine.closed) else None
        except NatsError as exc:
            return exc
        return None

    def _outage_deadline(self) -> float:
        """Return the time at which this outage has lasted too long; logs its beginning."""
        engine = self._engine
        reconnects = engine.reconnects
        if self._outage[0] != reconnects:
            self._outage = reconnects, self._clock() + OUTAGE_TIMEOUT_S
            left = min(OUTAGE_TIMEOUT_S, max(0.0, self.deadline - self._clock()))
            engine.event_bus.log.warning(
                "draining: %d messages wait for a connection, for at most %.1f s", engine.outbox.frames, left
            )
        return self._outage[1]
