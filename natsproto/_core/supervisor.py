"""The supervisor: finds a server, watches the connection to it, and finds the next one.

Owns the pool, the one task that does this, the back-off, and the old sessions of moves. It does not know how a
connection is used: it tells the engine about a new one, and the engine reports the end of the current one. Because one
task does all of this, a client is never "connected" without a task that notices the end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Protocol

from natsproto._core import events
from natsproto._core.event_bus import EventBus
from natsproto._core.notifier import release
from natsproto._core.session import Session, SessionCallbacks
from natsproto._core.transport import UnknownHost
from natsproto._core.wire import Runtime
from natsproto._option_rules import no_plain_websocket
from natsproto._options import Options
from natsproto.errors import (
    ConnectFailed,
    ConnectionClosed,
    ConnectionLost,
    InvalidCredentials,
    LoginRefused,
    NatsError,
    NotAuthorized,
    TlsConnectFailed,
    TlsFailed,
)
from natsproto.protocol.addresses import ServerAddress
from natsproto.protocol.frames import NO_INFO, ServerInfo
from natsproto.protocol.link import Link
from natsproto.protocol.pool import Attempt, ServerPool

log = logging.getLogger("natsproto")

LAME_DUCK_SPREAD_S = 1.0
"""Seconds over which clients spread their moves when a server announces its end; it waits 10 before it closes any."""

OLD_CONNECTION_TIMEOUT_S = 2.0
"""Seconds that the old connection of a move may still deliver messages."""


class SupervisorCallbacks(SessionCallbacks, Protocol):
    """Callbacks that the supervisor needs from the engine."""

    @property
    def info(self) -> ServerInfo:
        """The last INFO."""
        ...

    @property
    def wants_connection(self) -> bool:
        """True until the client is closed."""
        ...

    @property
    def can_move(self) -> bool:
        """True if the client is open, neither draining nor closed, so that it may change servers."""
        ...

    @property
    def progress(self) -> int:
        """Messages that were received, or were sent and confirmed."""
        ...

    def make_link(self, *, tls_required: bool, secured: bool) -> Link:
        """Create the protocol side of a new connection."""
        ...

    async def on_connected(self, session: Session) -> bool:
        """Make this the current session; False if it has ended before."""
        ...

    def on_move_started(self, session: Session) -> None:
        """The current session is about to be replaced while it still works."""
        ...

    def on_old_session_ended(self, session: Session) -> None:
        """The old session of a move has ended."""
        ...

    def on_give_up(self, reason: Exception | None, *, quiet: bool = False) -> None:
        """There will be no other connection; ``quiet`` is set when the event loop ends."""
        ...


class Supervisor:
    """Keeps the engine connected, from the first server to the last."""

    def __init__(self, options: Options, runtime: Runtime, engine: SupervisorCallbacks, event_bus: EventBus) -> None:
        self.pool: ServerPool = options._server_pool(runtime.rng.shuffle)
        self.reconnects = 0
        self._loop = asyncio.get_running_loop()
        self._options, self._runtime, self._engine, self._event_bus = options, runtime, engine, event_bus
        self._task: asyncio.Task[None] | None = None
        self._beside: asyncio.Task[None] | None = None
        self._target: tuple[ServerAddress, str] | None = None  # of the next move, and the reason
        self._wait_skipped: asyncio.Future[None] | None = None
        self._attention: asyncio.Future[None] = self._loop.create_future()
        """Done when the current session needs attention: it has ended, or its server is shutting down."""
        self._old_sessions: set[Session] = set()
        self._progress_before = 0  # before the current session
        self._requires_tls = options._tls_required
        """Also set by the first TLS connection: later ones must use TLS too, so that nobody can downgrade them."""

    def set_servers(self, options: Options) -> None:
        """Use the servers of these options for later connections. TLS that was required once stays required."""
        required = self._requires_tls or options._tls_required
        if required:
            no_plain_websocket(options.addresses)
        self.pool.set_servers(options.addresses)
        self._requires_tls = required

    def use_only(self, address: ServerAddress) -> None:
        """Connect to this server only, and log nothing: for a probe."""
        self.pool.set_servers((address,))
        self._event_bus.is_quiet = True

    # ---------------------------------------------------------------- the task

    async def first(self) -> Session | None:
        """Try every server once, then keep trying for ``retry_connect_for`` seconds; return the first session.

        If all fail, raise ConnectFailed with the last cause of every server, or return None with
        ``retry_on_failed_connect``, and ``run`` keeps trying.
        """
        started = self._loop.time()
        deadline = started + self._options.retry_connect_for
        failures: dict[str, Exception] = {}
        for address in self.pool.one_pass():
            if (session := await self._connect_to(address, failures)) is not None:
                return session
        number = 0
        if self._options.retry_connect_for:
            self._event_bus.log.warning(
                "waiting up to %g s for a server at %s: %s",
                self._options.retry_connect_for,
                ", ".join(failures),
                next(reversed(failures.values()), "none was reached"),
            )
        while (left := deadline - self._loop.time()) > 0 and (plan := self._next_attempt()) is not None:
            number += 1
            session = await self._connect_after(min(plan.delay, left), number, plan.address, failures)
            if session is not None:
                return session
        if self._options.retry_on_failed_connect and self._options.allow_reconnect:
            return None
        raise self._connect_failed(failures, started, is_first=True) from next(reversed(failures.values()), None)

    async def _connect_to(self, address: ServerAddress, failures: dict[str, Exception]) -> Session | None:
        """Return a session with this server, or None after an event and an entry in ``failures``."""
        server = str(address)
        try:
            return await self._open_session(address)
        except Exception as exc:
            self._record_failure(address, exc)
            failures.pop(server, None)
            failures[server] = exc = _without_dial_frames(exc)
            self._event_bus.emit(events.AttemptFailed(server=server, cause=exc))
            return None

    async def _connect_after(
        self, delay: float, number: int, address: ServerAddress, failures: dict[str, Exception]
    ) -> Session | None:
        """Announce an attempt, wait ``delay`` seconds, and make it."""
        self._event_bus.emit(events.Reconnecting(server=str(address), attempt=number, delay=delay))
        await self._wait(delay)
        return await self._connect_to(address, failures)

    def _next_attempt(self) -> Attempt | None:
        """Return the next attempt, or None when no server is left."""
        plan = self.pool.next(
            self._loop.time(),
            self._runtime.rng.random(),
            choose=self._options.reconnect_to_server,
            info=self._engine.info,
        )
        if plan is not None and plan.fault is not None:
            self._event_bus.on_handler_error("reconnect callback", plan.fault)
        return plan

    def _connect_failed(
        self, failures: Mapping[str, Exception], started: float, *, is_first: bool = False
    ) -> ConnectFailed:
        """Return the error that sums up all attempts."""
        elapsed = self._loop.time() - started
        refusals = [(server, exc) for server, exc in failures.items() if isinstance(exc, NotAuthorized)]
        if refusals and len(refusals) == len(failures):
            anonymous = all(map(self._options._anonymous_to, self._options.addresses))
            return LoginRefused(refusals, elapsed, anonymous=anonymous)
        tls_failures = [(server, exc) for server, exc in failures.items() if isinstance(exc, TlsFailed)]
        if tls_failures and len(tls_failures) == len(failures):
            return TlsConnectFailed(tls_failures, elapsed)
        advice = ""
        if failures and all(isinstance(exc, UnknownHost) for exc in failures.values()):
            advice = "check the name of the host, and the DNS of this machine"
        elif is_first and not self._options.retry_connect_for and any(map(_is_refused, failures.values())):
            advice = "start a server there, or pass retry_connect_for= to wait for one"
        return ConnectFailed(list(failures.items()), elapsed, advice=advice)

    def run(self, session: Session | None) -> None:
        """Start the task that keeps a session or looks for one."""
        self._task = self._loop.create_task(self._supervise(session), name="natsproto supervisor")
        self._task.add_done_callback(
            self._on_task_done
        )  # not a handler inside the task: it may be cancelled before it begins

    def _on_task_done(self, _: asyncio.Task[None]) -> None:
        """Give up if the task was cancelled from outside, as event loops do at their end."""
        if self._engine.wants_connection:
            reason = ConnectionLost(
                "its task was cancelled, as at the end of asyncio.run(): a client works only in the one that made it"
            )
            self._engine.on_give_up(reason, quiet=True)

    @property
    def running(self) -> bool:
        """True if the task was started, has not ended, and is not being cancelled."""
        return self._task is not None and not self._task.done() and not self._task.cancelling()

    @property
    def started(self) -> bool:
        """True if there was a connection, or a background attempt at one."""
        return self._task is not None

    def cancel(self) -> list[asyncio.Task[None]]:
        """Cancel the tasks, except the caller, and return them."""
        current = asyncio.current_task()
        tasks = [task for task in (self._task, self._beside) if task is not None and task is not current]
        for task in tasks:
            task.cancel()
        return tasks

    def run_beside(self, work: Coroutine[object, object, None]) -> None:
        """Run a task that ends with the client. The one before it must have ended."""
        self._beside = self._loop.create_task(work, name="natsproto probe")

    def end_old_sessions(self) -> None:
        """End the old sessions of moves."""
        for session in list(self._old_sessions):
            session.end(ConnectionClosed())

    async def _supervise(self, session: Session | None) -> None:
        """Wait for the end of the session and find the next one, until the client is closed."""
        reason: Exception | None = None
        try:
            while True:
                if session is None:
                    session, failure = await self._reconnect()
                    if session is None:
                        reason = failure or reason
                        break
                session = await self._watch(session)
                if not self._engine.wants_connection:
                    return
                reason = session.ended.result()
                session = None
                if not self._options.allow_reconnect:
                    break
        except Exception as exc:
            log.exception("the supervisor failed")
            reason = exc
        if self._engine.wants_connection:
            self._engine.on_give_up(reason)

    # ---------------------------------------------------------------- one connection

    async def _open_session(self, address: ServerAddress) -> Session:
        """Open a session with this server."""
        deadline = self._loop.time() + self._options.connect_timeout
        options = self._options
        link = self._engine.make_link(
            tls_required=self._requires_tls,
            secured=options.tls_first or address.websocket,
        )
        session = Session(address, options, self._runtime, self._engine, link)
        try:
            await session.open(deadline)
        except asyncio.CancelledError as exc:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # This task was not cancelled: a callable of the options awaited something that was.
            raise ConnectionLost("a callable in the options was cancelled", str(address)) from exc
        return session

    def on_session_adopted(self, session: Session) -> None:
        """The engine uses a session now: the outage is over."""
        self.pool.succeeded(session.address, self._loop.time())
        self._progress_before = self._engine.progress
        self._requires_tls = self._requires_tls or session.encrypted
        if self._attention.done():
            self._attention = self._loop.create_future()

    def on_session_lost(self, session: Session) -> None:
        """The session in use has ended."""
        # Revoked or expired credentials do not count as rejected: the next ones may be new.
        self.pool.failed(session.address, self._loop.time())
        if self._engine.progress > self._progress_before:
            self.pool.carried_traffic()

    def _record_failure(self, address: ServerAddress, exc: Exception) -> None:
        refusal = exc.reason if isinstance(exc, NotAuthorized) else None
        self.pool.failed(address, self._loop.time(), refusal)

    async def _watch(self, session: Session) -> Session:
        """Wait until the current session has ended; before that, move away from a server in lame duck mode.

        Returns the session that ended, which after a move is not the given one.
        """
        while not session.ended.done():
            attention = self._attention
            session.ended.add_done_callback(partial(_request_attention, attention))
            await attention
            if session.ended.done():
                break
            if attention is self._attention:
                self._attention = self._loop.create_future()
            session = await self._move(session)
        return session

    # ---------------------------------------------------------------- reconnecting

    async def _reconnect(self) -> tuple[Session | None, Exception | None]:
        """Return the next session, or None and the reason when no server is left."""
        started = self._loop.time()
        number = 0
        failures: dict[str, Exception] = {}
        while True:
            plan = self._next_attempt()
            if plan is None:
                return None, self.pool.final_reason or (self._connect_failed(failures, started) if failures else None)
            number += 1
            server = str(plan.address)
            session = await self._connect_after(plan.delay, number, plan.address, failures)
            if session is None:
                continue
            if not self._engine.wants_connection:  # closed by a callable in the options
                session.end(ConnectionClosed())
                return None, None
            first = self._engine.info is NO_INFO
            if not await self._engine.on_connected(session):
                failures[server] = session.ended.result()
                self._record_failure(plan.address, failures[server])
                continue
            if first:  # the first connection, after retry_on_failed_connect
                self._event_bus.emit(events.Connected(server=server))
                return session, None
            self.reconnects += 1
            outage = self._loop.time() - started
            self._event_bus.emit(events.Reconnected(server=server, outage=outage))
            return session, None

    def skip_wait(self) -> None:
        """End the wait for the next attempt."""
        if self._wait_skipped is not None:
            release(self._wait_skipped)

    async def _wait(self, delay: float) -> None:
        """Wait ``delay`` seconds, or until ``skip_wait``."""
        if delay <= 0:
            return
        self._wait_skipped = self._loop.create_future()
        timer = self._loop.call_later(delay, release, self._wait_skipped)
        try:
            await self._wait_skipped
        finally:
            timer.cancel()
            self._wait_skipped = None

    # ---------------------------------------------------------------- moving to another server

    def start_move(self, address: ServerAddress | None = None, reason: str = "") -> None:
        """Move to another server, for a ``reason`` to this one: by default the current one is shutting down."""
        self._target = None if address is None else (address, reason)
        release(self._attention)

    async def _move(self, session: Session) -> Session:
        """Connect to another server first, then switch without an outage (ADR-5 leaves it to the client).

        The wait before it is random, because the server tells all its clients at the same time. Returns the session in
        use afterwards: the old one if no other server accepted.
        """
        target, self._target = self._target, None
        reason: dict[str, str] = {}
        if target is None:
            wait = min(LAME_DUCK_SPREAD_S * self._runtime.rng.random(), self._options.ping_interval)
            await asyncio.wait((session.ended,), timeout=wait)
        else:
            reason["reason"] = target[1]
        for address in self.pool.one_pass() if target is None else (target[0],):
            if session.ended.done() or not self._engine.can_move:
                break
            if str(address) == str(session.address):
                continue
            following = await self._open_session_during(session, address)
            if following is not None:
                return await self._switch(session, following, reason)
        return session

    async def _open_session_during(self, session: Session, address: ServerAddress) -> Session | None:
        """Open a session while ``session`` lives; None if that fails or ``session`` ends first."""
        attempt = self._loop.create_task(self._open_session(address), name="natsproto move")
        wanted = False
        try:
            await asyncio.wait((attempt, session.ended), return_when=asyncio.FIRST_COMPLETED)
            wanted = not session.ended.done() and self._engine.can_move
        finally:
            if not wanted:
                attempt.cancel()
                attempt.add_done_callback(_end_late_session)
        if not wanted:
            return None
        try:
            return attempt.result()
        except Exception as exc:
            self._record_failure(address, exc)
            return None

    async def _switch(self, old: Session, new: Session, reason: Mapping[str, str]) -> Session:
        """Make ``new`` the current session while ``old`` still works; return the current one."""
        self._engine.on_move_started(old)
        self._old_sessions.add(old)
        self._loop.call_later(OLD_CONNECTION_TIMEOUT_S, self.end_old_session, old)
        old.ended.add_done_callback(lambda _: self._remove_old_session(old))
        if not await self._engine.on_connected(new):
            old.end(new.ended.result())  # its subscriptions were ended
            return old
        self._event_bus.emit(events.Moved(previous_server=str(old.address), server=str(new.address), **reason))
        return new

    @staticmethod
    def end_old_session(session: Session) -> None:
        """End a session that has delivered all its messages."""
        session.end(ConnectionLost("the client moved to another server"))

    def _remove_old_session(self, session: Session) -> None:
        self._old_sessions.discard(session)
        self._engine.on_old_session_ended(session)


def _end_late_session(attempt: asyncio.Task[Session]) -> None:
    """End a session that was established too late."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().end(ConnectionClosed())


def _request_attention(attention: asyncio.Future[None], _: asyncio.Future[Exception]) -> None:
    release(attention)


def _without_dial_frames(error: Exception) -> Exception:
    """Return a failure without the frames of this package and asyncio, which say no more than its text.

    The error of a user's callable is the cause of an InvalidCredentials, and keeps its frames.
    """
    if isinstance(error, (NatsError, OSError)):
        error.with_traceback(None)
        error.__suppress_context__ = True
        if isinstance(error.__cause__, OSError) and not isinstance(error, InvalidCredentials):
            error.__cause__.with_traceback(None)
            error.__cause__.__suppress_context__ = True
    return error


def _is_refused(error: BaseException) -> bool:
    """True if nothing listens at the address."""
    return isinstance(error, ConnectionRefusedError) or isinstance(error.__cause__, ConnectionRefusedError)
