"""A session: one connection to one server, from the dial to its end.

Owns a Wire and a Link and carries bytes between them. It does the handshake, which needs TLS contexts and credentials,
and keeps the connection alive with pings. Messages and link events go to the engine that opened the session. A session
ends once, with a cause, and cannot be reused.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Protocol, TypeVar

from natsproto import errors
from natsproto._core.socket.wire import READ_BUFFER_SIZE, DialPlan, Runtime, Wire
from natsproto._options.options import Options
from natsproto._version import __version__
from natsproto.protocol.addresses import ServerAddress
from natsproto.protocol.auth import connect_fields
from natsproto.protocol.frames import Route, ServerInfo
from natsproto.protocol.link import (
    Link,
    LinkEvent,
    LinkFailed,
    LinkState,
    NeedCredentials,
    Ready,
    ServerErr,
    UpgradeTls,
    describe_peer,
)
from natsproto.protocol.server_errors import is_final

T = TypeVar("T")

log = logging.getLogger("natsproto")

_WAITING_FOR_INFO = "waiting for INFO"
_PHASE_OF_STATE = {
    LinkState.AWAIT_INFO: _WAITING_FOR_INFO,
    LinkState.AUTHENTICATING: "waiting for the server to accept the connection",
}
_OPEN_PHASE = "open"
_TLS_HANDSHAKE = "in the TLS handshake"
_NO_INFO_HINT = (
    "if the server has handshake_first, use tls_first=True; otherwise this may not be a NATS client port: the HTTP "
    "monitoring port also sends nothing first"
)
_SILENT_AFTER_S = 1.0
"""Seconds after which a server that closes the connection before INFO was silent: one that stops closes it at once."""
_SUBSCRIPTIONS_PER_FULL_READ = 8
"""Decision 0013 has the figures for 4, 8 and 16."""

_KERNEL_KEEPALIVE_S = 7200.0
"""Seconds of silence after which TCP keep-alive probes the peer. Pings are usually more frequent; turning it on anyway
costs three system calls and 2 % of a connect."""

_MAX_COMPRESSED_SIZE = 65_536
"""Bytes that are compressed together. A server closes the connection on frames that unpack to more than max_payload;
deflate uses a window of only 32 KiB anyway."""


class SessionCallbacks(Protocol):
    """Callbacks that a session needs from the engine."""

    def on_messages(self, touched: list[Route]) -> bool:
        """Messages were put into these routes. True if a task has to run before they are handled."""
        ...

    def on_link_event(self, session: Session, event: LinkEvent) -> None:
        """The link has an event; only after the handshake."""
        ...

    def on_write_paused(self, session: Session) -> None:
        """The wire accepts no data for now."""
        ...

    def on_write_resumed(self, session: Session) -> None:
        """The wire accepts data again."""
        ...

    def on_session_ended(self, session: Session) -> None:
        """The session has ended; nothing written from now on is sent."""
        ...


class Session:
    """One connection to ``address``: ``open`` it, write to ``wire``, and wait for ``ended``."""

    def __init__(
        self, address: ServerAddress, options: Options, runtime: Runtime, engine: SessionCallbacks, link: Link
    ) -> None:
        loop = asyncio.get_running_loop()
        self.address = address
        self.link = link
        self.wire: Wire | None = None
        self.ended: asyncio.Future[Exception] = loop.create_future()
        """Its result is the cause of the end."""
        self.wire_closed: asyncio.Future[None] = loop.create_future()
        """Done when the wire is closed; never without a wire."""
        self._loop = loop
        self._options = options
        self._runtime = runtime
        self._engine = engine
        self.write_paused = False
        """True while the wire wants no more data."""
        self._is_live = False
        self._handshake_events: deque[LinkEvent] = deque()
        self._handshake_waiter: asyncio.Future[None] | None = None
        self._is_closing = False
        self._phase = "dialling"
        self._began = loop.time()
        self.encrypted = False
        """True if the connection uses TLS."""
        self._is_held = False
        self._is_yielding = False
        self.is_emptied = True
        """True if the last read found no more bytes than it could take."""
        self._full_reads = 0  # in this turn of the event loop
        self._keep_alive: asyncio.TimerHandle | None = None
        self._stuck = (0, 0)  # bytes sent until the last keep-alive tick, and ticks without progress

    # ---------------------------------------------------------------- opening

    async def open(self, deadline: float) -> ServerInfo:
        """Dial and do the handshake; return the server's INFO.

        Everything together ends at ``deadline``, ``connect_timeout`` after the attempt began; then RequestTimeout names
        the phase. NotAuthorized, TlsFailed, UnsupportedByServer, RemoteProtocolError, ConnectionLost,
        InvalidCredentials, OSError and ssl.SSLError otherwise. Cancelling and every error leave no connection behind.
        """
        try:
            async with asyncio.timeout_at(deadline):
                info = await self._handshake()
        except TimeoutError as exc:
            self.end(exc)
            if isinstance(exc, errors.NatsError):
                raise
            waited = self._options.connect_timeout
            raise errors.RequestTimeout(
                f"connecting to {self.address}, {self._current_phase}{self._info_hint()}", waited
            ) from None
        except BaseException as exc:
            self.end(exc if isinstance(exc, Exception) else errors.ConnectionLost("cancelled", str(self.address)))
            if isinstance(exc, ssl.SSLError):
                raise self._tls_failure(exc, after_info=self.link.info_in_clear) from exc
            if isinstance(exc, ConnectionError):
                if self._current_phase == _TLS_HANDSHAKE:
                    raise self._tls_failure(exc) from exc
                cause_of_end = self.ended.result()
                if cause_of_end is not exc:
                    raise cause_of_end from exc
            raise
        return info

    def start_events(self) -> None:
        """Pass all events to the engine from now on, beginning with those that followed the handshake."""
        self._is_live = True
        self._phase = _OPEN_PHASE
        self._arm_keep_alive()
        steps = list(self._handshake_events)
        self._handshake_events.clear()
        self._dispatch_events(steps)

    async def _handshake(self) -> ServerInfo:
        options, address = self._options, self.address
        if self.link.tls_required and address.scheme == "ws":
            raise errors.TlsFailed(
                "it is required, but the URL of this server is ws://; nothing was sent to it", str(address)
            )
        self._phase = "getting the TLS context and WebSocket headers"
        first = options._tls_context() if options.tls_first or address.scheme == "wss" else None
        hostname = options._tls_hostname_for(address)
        plan = DialPlan(
            context=first,
            hostname=hostname,
            timeout=options.connect_timeout,
            tcp_keepalive=options.ping_interval >= _KERNEL_KEEPALIVE_S,
            shuffle=self._runtime.rng.shuffle if options.randomize else None,
            dialer=options._dialer_for(address),
            headers=await options._websocket_headers_for(address),
            path=options._websocket_path_for(address),
            compression=options.websocket_compression,
            max_message=options.max_message_size,
            largest_compressed=self._largest_compressed,
            is_accepted=lambda: self.link.state is LinkState.READY,
        )
        self.encrypted = first is not None
        steps = ["dialling", "TLS handshake" if first else "", "WebSocket handshake" if address.websocket else ""]
        self._phase = " and ".join(filter(None, steps))
        self.wire = await self._runtime.dial(address, plan, self)
        while True:
            step = await self._next_handshake_event()
            if isinstance(step, UpgradeTls):
                self._phase = _TLS_HANDSHAKE
                await self.wire.start_tls(options._tls_context(), hostname)
                self._raise_if_ended()
                self.encrypted = True
                step = self.link.secured()
            if _is_too_old(info := self.link.info):
                raise errors.UnsupportedByServer("headers", f"{address} runs nats-server {info.version}; 2.2 is needed")
            if isinstance(step, NeedCredentials):
                self.wire.write(self.link.authenticate(await self._connect_fields(step.info)))
            elif isinstance(step, (Ready, ServerErr)):
                # Both can come: credentials that expire in this second are accepted and rejected at once.
                if (refusal := self._server_refusal()) is not None:
                    raise refusal
                if isinstance(step, Ready):
                    return info

    def _largest_compressed(self) -> int:
        return min(self.link.info.max_payload, _MAX_COMPRESSED_SIZE) or _MAX_COMPRESSED_SIZE

    async def _next_handshake_event(self) -> LinkEvent:
        while not self._handshake_events or self.ended.done():
            self._raise_if_ended()
            self._handshake_waiter = self._loop.create_future()
            try:
                await self._handshake_waiter
            finally:
                self._handshake_waiter = None
        return self._handshake_events.popleft()

    def _raise_if_ended(self) -> None:
        """Raise the cause if the session has ended."""
        if self.ended.done():
            raise self.ended.result()

    async def _run_unless_ended(self, work: Coroutine[object, object, T]) -> T:
        """Return the result of ``work``. If the session ends first, cancel it and raise the cause: a server waits for
        credentials no longer than its own timeout.
        """
        task = self._loop.create_task(work)
        try:
            await asyncio.wait((task, self.ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
        if not task.cancelled() and (failure := task.exception()) is not None:
            raise failure
        self._raise_if_ended()
        return task.result()

    async def _connect_fields(self, info: ServerInfo) -> dict[str, object]:
        """Return the fields of CONNECT."""
        options, address = self._options, self.address
        self._phase = "finding credentials"
        finding = options._credentials_for(address, info.nonce, info)
        credentials = await (finding if options._credentials_at_hand else self._run_unless_ended(finding))
        named = {} if options.name is None else {"name": options.name}
        return {
            "verbose": options.verbose,
            "pedantic": options.pedantic,
            "tls_required": self.link.tls_required,
            **named,
            "lang": "python-natsproto",
            "version": __version__,
            "protocol": 1,
            "echo": not options.no_echo,
            "headers": True,
            "no_responders": True,
            **connect_fields(credentials, info.nonce),
        }

    @property
    def _current_phase(self) -> str:
        """The phase of the handshake, worded for an error."""
        return self._phase if self.wire is None else _PHASE_OF_STATE.get(self.link.state, self._phase)

    # ---------------------------------------------------------------- callbacks of the wire

    def on_data(self, chunk: bytes) -> None:
        """Bytes were received. An error in handling them ends this session and nothing else."""
        self._receive(self.link.receive, chunk, len(chunk))

    def on_buffer_filled(self, count: int) -> None:
        """``count`` bytes were written to the buffer given to ``Wire.read_into``."""
        self._receive(self.link.receive_into_room, count, count)

    def _receive(self, receive: Callable[[T], list[LinkEvent]], what: T, size: int) -> None:
        self.is_emptied = size < READ_BUFFER_SIZE
        try:
            link = self.link
            events = receive(what)
            parser = link.parser
            if touched := parser.touched:
                parser.touched = []
                if self._engine.on_messages(touched) and size >= READ_BUFFER_SIZE:
                    self._on_full_read(len(touched))
            if events:
                self._dispatch_events(events)
            if link.pending_pongs:
                self._send_pongs()
            if parser.large.need and self.wire is not None:
                self.wire.read_into(parser.large.room)
        except Exception as exc:
            log.exception("receiving from %s failed", self.address)
            self.end(exc)

    def _on_full_read(self, subscriptions: int) -> None:
        """Let the readers run after the second full read of a turn, and later if it was for many subscriptions.

        uvloop reads up to 32 times in a row, 2 MiB, before any task runs. Messages that wait so long have left the
        processor's caches, and the garbage collector has visited them. But each reader that runs costs a task's
        switch, which is worth it only for several messages.
        """
        if self._full_reads == 0:
            self._loop.call_soon(self._on_turn_end)
        self._full_reads += 1
        if self._full_reads >= max(2, subscriptions / _SUBSCRIPTIONS_PER_FULL_READ):
            self.yield_to_readers()

    def _on_turn_end(self) -> None:
        self._full_reads = 0

    def on_disconnect(self, cause: Exception | None) -> None:
        """The wire has ended."""
        if not self.wire_closed.done():
            self.wire_closed.set_result(None)
        if not self.ended.done():
            self.end(errors.ConnectionClosed() if self._is_closing else self._disconnect_cause(cause))

    def on_write_paused(self) -> None:
        """The wire accepts no data for now."""
        self.write_paused = True
        self._engine.on_write_paused(self)

    def on_write_resumed(self) -> None:
        """The wire accepts data again."""
        self.write_paused = False
        self._send_pongs()
        self._engine.on_write_resumed(self)

    def _send_pongs(self) -> None:
        """Answer PINGs unless the wire is busy: a peer that does not read must not fill our memory with PONGs."""
        if self.link.pending_pongs and not self.write_paused and self.wire is not None:
            self.wire.write(self.link.take_output())

    def _dispatch_events(self, events: list[LinkEvent]) -> None:
        for event in events:
            if self._is_live:
                self._engine.on_link_event(self, event)
            else:
                self._handshake_events.append(event)
            if isinstance(event, LinkFailed):
                self.end(event.error)
        if self._handshake_events and self._handshake_waiter is not None and not self._handshake_waiter.done():
            self._handshake_waiter.set_result(None)

    # ---------------------------------------------------------------- reading

    def yield_to_readers(self) -> None:
        """Stop reading until the readers that were woken have had a turn of the event loop."""
        if not self._is_yielding and not self._is_held and self.wire is not None and not self.ended.done():
            self._is_yielding = True
            self.wire.pause_reading()
            self._loop.call_soon(self._loop.call_soon, self._resume_reading)

    def _resume_reading(self) -> None:
        self._is_yielding = False
        if not self._is_held and not self.ended.done() and self.wire is not None:
            self.wire.resume_reading()

    def hold_reading(self, wanted: bool) -> None:
        """Stop or resume reading, for subscriptions with the policy ``pause``."""
        if wanted == self._is_held or self.wire is None or self.ended.done():
            return
        self._is_held = wanted
        if wanted:
            self.wire.pause_reading()
        else:
            self.wire.resume_reading()

    # ---------------------------------------------------------------- diagnostics

    def _server_refusal(self) -> errors.NatsError | None:
        """Return the last -ERR, if the server closes the connection after it."""
        server_err = self.link.server_err
        if isinstance(server_err, errors.NotAuthorized):
            return errors.NotAuthorized(server_err.reason, str(self.address))
        return server_err if is_final(server_err) else None

    def _tls_failure(self, cause: OSError, *, after_info: bool = False) -> errors.TlsFailed:
        from natsproto._core.socket.tls_failure import (
            tls_failure,  # few connections need it; importing natsproto is fast
        )

        return tls_failure(cause, str(self.address), after_info=after_info)

    def _disconnect_cause(self, cause: Exception | None) -> Exception:
        """Return the reason for the end of the wire: the last -ERR, else the error of the socket."""
        if (refusal := self._server_refusal()) is not None:
            return refusal
        if isinstance(cause, errors.NatsError):
            return cause
        server = str(self.address)
        blamed: errors.NatsError
        if isinstance(cause, ssl.SSLError):
            blamed = self._tls_failure(cause, after_info=self.link.info_in_clear)
        else:
            reason = "closed by the server" if cause is None else f"{type(cause).__name__}: {cause}"
            if self._current_phase != _OPEN_PHASE:
                silent = self._loop.time() - self._began >= _SILENT_AFTER_S
                reason += f" while {self._current_phase}{self._info_hint(silent=silent)}"
            if self._may_be_certificate_error():
                from natsproto._core.socket.tls_failure import CLIENT_CERTIFICATE_HINT

                blamed = errors.TlsFailed(f"{reason}: {CLIENT_CERTIFICATE_HINT}", server)
            else:
                blamed = errors.ConnectionLost(reason, server)
        blamed.__cause__ = cause
        return blamed

    def _may_be_certificate_error(self) -> bool:
        """True if the server may have rejected our certificate. In TLS 1.3 it checks it after our handshake is done,
        and the reset that follows its alert often arrives first.
        """
        info = self.link.info
        return self.encrypted and self._current_phase != _OPEN_PHASE and (info.tls_verify or not info.version)

    def _info_hint(self, *, silent: bool = True) -> str:
        """Say what may be wrong if INFO has not come, or not all of it."""
        if self._current_phase != _WAITING_FOR_INFO or self.encrypted:
            return ""
        begun = self.link.parser.unread
        if not begun:
            return f" ({_NO_INFO_HINT})" if silent else ""
        return f" (so far {begun!r}{'' if begun.startswith(b'INFO') else f': {describe_peer(begun)}'})"

    # ---------------------------------------------------------------- keep-alive

    def ping(self, token: object) -> None:
        """Send PING; its PONG comes as PongFor(token)."""
        if self.wire is not None:
            self.wire.write(self.link.ping(token))

    def _arm_keep_alive(self) -> None:
        self._keep_alive = self._loop.call_later(self._options.ping_interval, self._on_keep_alive)

    def _on_keep_alive(self) -> None:
        """Check the connection; an error in the check ends it, since nothing would check it again."""
        try:
            self._check_keep_alive()
        except Exception as exc:
            log.exception("the keep-alive check of %s failed", self.address)
            self.end(exc)

    def _check_keep_alive(self) -> None:
        assert self.wire is not None
        # A peer that sends but does not read is dead as well.
        unsent, passed = self.wire.unsent_bytes(), self.wire.sent_bytes()
        before, ticks = self._stuck
        ticks = ticks + 1 if unsent and passed <= before else 0
        self._stuck = (passed, ticks)
        if ticks > self._options.max_outstanding_pings:
            self.end(errors.ConnectionLost(f"the server accepts no data: {unsent} bytes are stuck", str(self.address)))
            return
        silent = self.link.count_silent_tick()
        if silent > self._options.max_outstanding_pings and not self._is_held:
            self.end(errors.StaleConnection(silent - 1, str(self.address)))
            return
        self.ping(None)
        self._arm_keep_alive()

    # ---------------------------------------------------------------- ending

    def end(self, cause: Exception) -> None:
        """End the session at once, without waiting for the peer."""
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        if self.wire is not None:
            self.wire.abort()
        if not self.ended.done():
            self.ended.set_result(cause)
            self._engine.on_session_ended(self)
        if self._handshake_waiter is not None and not self._handshake_waiter.done():
            self._handshake_waiter.set_result(None)

    def close(self) -> None:
        """Close the session after sending everything written."""
        self._is_closing = True
        if self.wire is not None:
            self.wire.close()

    @property
    def closes_immediately(self) -> bool:
        """True if close() takes at most one turn of the event loop: everything was sent, and neither TLS nor WebSocket
        waits for an answer of the peer.
        """
        if self.wire is None or self.encrypted or self.address.websocket:
            return False
        return self.wire.unsent_bytes() == 0


def _is_too_old(info: ServerInfo) -> bool:
    return not info.headers and bool(info.version)
