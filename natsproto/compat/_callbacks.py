"""The six callbacks of nats-py, called for natsproto's events.

Owns the mapping from events to callbacks. It logs nothing, because natsproto logs every event.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import natsproto
from natsproto import errors as ours
from natsproto.compat._translate import translate_error
from natsproto.compat.nats import errors

NAMES = (
    "error_cb",
    "disconnected_cb",
    "closed_cb",
    "discovered_server_cb",
    "reconnected_cb",
    "lame_duck_mode_cb",
)


class Callbacks:
    """The callbacks of one connection. ``slow`` makes the error for a subscription that drops messages."""

    def __init__(
        self, given: Mapping[str, Any], slow: Callable[[natsproto.SlowConsumerDetected], Exception | None]
    ) -> None:
        self._callbacks: dict[str, Callable[..., Awaitable[object]] | None] = {name: given[name] for name in NAMES}
        for callback in self._callbacks.values():
            if callback is not None and not inspect.iscoroutinefunction(callback):
                raise errors.InvalidCallbackTypeError
        self._reconnects = given["allow_reconnect"]
        self._slow = slow
        self._connected = self._closed = False
        self.is_forced = False
        """The program has asked for the next reconnect, so that its cause is no error."""
        self.last_error: BaseException | None = None

    async def on_event(self, event: natsproto.Event) -> None:
        """Call the callbacks for an event."""
        match event:
            case natsproto.Connected():
                self._connected = True
            case natsproto.Disconnected():
                if not isinstance(event.cause, ours.ConnectionClosed):
                    if not self.is_forced:
                        await self.failed(event.cause)
                    self.is_forced = False
                    if self._reconnects:  # otherwise it is called when the client is closed
                        await self._call("disconnected_cb")
            case natsproto.Reconnected() | natsproto.Moved():
                self.last_error = None
                await self._call("reconnected_cb")
            case natsproto.ServersDiscovered():
                if self._connected:  # those of the first INFO are no news
                    await self._call("discovered_server_cb")
            case natsproto.LameDuck():
                await self._call("lame_duck_mode_cb")
            case natsproto.SlowConsumerDetected():
                await self.failed(self._slow(event) or event.error)
            case natsproto.AttemptFailed():
                await self.failed(event.cause)
            case natsproto.Closed():
                if self._connected:
                    self.last_error = translate_error(event.reason) if event.reason is not None else self.last_error
                    await self.ended()
            case natsproto.PermissionViolation() | natsproto.ServerErrorEvent() | natsproto.MessageDropped():
                await self.failed(event.error)
            case natsproto.HandlerFailed():
                await self.report(event.error)

    async def failed(self, error: BaseException) -> None:
        """Call ``error_cb``."""
        self.last_error = error = translate_error(error)
        await self._call("error_cb", error)

    async def report(self, error: BaseException) -> None:
        """Call ``error_cb`` for an error of the application, which is not ``last_error``."""
        await self._call("error_cb", translate_error(error))

    async def ended(self) -> None:
        """Call ``disconnected_cb`` and ``closed_cb``, once."""
        if not self._closed:
            self._closed = True
            await self._call("disconnected_cb")
            await self._call("closed_cb")

    async def _call(self, name: str, *args: object) -> None:
        callback = self._callbacks[name]
        if callback is not None:
            await callback(*args)
