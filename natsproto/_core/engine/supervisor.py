"""The supervisor: finds a server, watches the connection to it, and finds the next one.

Owns the pool, the one task that does this, the back-off, the dials in flight, and the old sessions of moves. It does
not know how a connection is used: it hands a new one to the engine, and the engine reports the end of the current
one. Because one task does all of this, a client is never "connected" without a task that notices the end.

Rules of dialling, for the first connection, after a loss, and for a move to another server:

1. Servers are dialled in the order of the pool. The next one is dialled when the one before has failed, and beside it
   when it has been silent for STAGGER_S seconds. The first session is used; the other dials are cut.
2. A dial that is silent goes on beside further rounds of the others, for ``connect_timeout`` seconds.
3. A server that was silent for STAGGER_S comes behind all others, the lost one included, until it answers.
4. No server is dialled twice at a time. With ``reconnect_to_server`` there is one dial at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any, Protocol

from natsproto import errors
from natsproto._core import events
from natsproto._core.event_bus import EventBus
from natsproto._core.notifier import release
from natsproto._core.socket.session import Session, SessionCallbacks
from natsproto._core.socket.transport import UnknownHost
from natsproto._core.socket.wire import Runtime
from natsproto._options.options import DEFAULT_SERVER, Options
from natsproto._options.rules import no_plain_websocket
from natsproto._race import STAGGER_S, Race
from natsproto._signals import calling_on_signal, is_stopping
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
        self._dials: Race[ServerAddress, Session] = Race("natsproto dial", _end_late_session)
        self._old_sessions: set[Session] = set()
        self._progress_before = 0  # before the current session
        self.requires_tls: bool = options._tls_required
        """Also set by the first TLS connection: later ones must use TLS too, so that nobody can downgrade them."""

    def set_servers(self, options: Options) -> None:
        """Use the servers of these options for later connections. TLS that was required once stays required."""
        required = self.requires_tls or options._tls_required
        if required:
            no_plain_websocket(options.addresses)
        self.pool.set_servers(options.addresses)
        self.requires_tls = required

    def use_only(self, address: ServerAddress, *, requires_tls: bool) -> None:
        """Connect to this server only, and log nothing: for a probe. ``requires_tls`` is that of the client itself."""
        self.pool.set_servers((address,))
        self.requires_tls = self.requires_tls or requires_tls
        self._event_bus.is_quiet = True

    # ---------------------------------------------------------------- the task

    async def first(self) -> Session | None:
        """Try every server once, then keep trying for ``retry_connect_for`` seconds; return the first session.

        If all fail, raise ConnectFailed with the last cause of every server, or return None with
        ``retry_on_failed_connect``, and ``run`` keeps trying. The first signal of ``stop_event`` ends the attempts.
        """
        started = self._loop.time()
        failures: dict[str, Exception] = {}
        until_signal = asyncio.timeout(None)
        try:
            async with until_signal:
                with calling_on_signal(partial(_expire, self._loop, until_signal)):
                    if (session := await self._first(started, failures)) is not None:
                        return session
        except TimeoutError:
            if not until_signal.expired():
                raise
            for address in self._dials.running:
                failures[str(address)] = errors.RequestTimeout(f"connecting to {address}", self._loop.time() - started)
        finally:
            self._dials.cut()
        if self._options.retry_on_failed_connect and self._options.allow_reconnect:
            return None
        is_ended = until_signal.expired() or (self._options.retry_connect_for and is_stopping())
        advice = "a signal has set the event of stop_event()" if is_ended else ""
        error = self._connect_failed(failures, started, is_first=True, advice=advice)
        raise error from next(reversed(failures.values()), None)

    async def _first(self, started: float, failures: dict[str, Exception]) -> Session | None:
        """Return the first session, None when all attempts have failed."""
        for address in self.pool.one_pass():
            if (session := await self._dial_beside(address, failures)) is not None:
                return session
        if self._options.retry_connect_for and not is_stopping():
            self._event_bus.log.warning(
                "waiting up to %g s for a server at %s: %s",
                self._options.retry_connect_for,
                ", ".join(map(str, self.pool.servers)),
                next(reversed(failures.values()), "none has answered yet"),
            )
            numbers, deadline = count(1), started + self._options.retry_connect_for
            while (left := deadline - self._loop.time()) > 0:
                plan = self._next_attempt()
                if (session := await self._attempt(plan, numbers, failures, left)) is not None:
                    return session
                if plan is None and not self._dials.running:
                    break
        while self._dials.running:
            if (session := await self._dials.winner()) is not None:
                return session
        return None

    async def _attempt(
        self, plan: Attempt | None, numbers: Iterator[int], failures: dict[str, Exception], limit: float | None = None
    ) -> Session | None:
        """Announce an attempt, wait before it, at most ``limit`` seconds, and make it. Without one, wait for those that
        are running. Returns the session of whichever answers first.
        """
        if plan is None:
            return await self._dials.winner() if self._dials.running else None
        delay = plan.delay if limit is None else min(plan.delay, limit)
        self._event_bus.emit(events.Reconnecting(server=str(plan.address), attempt=next(numbers), delay=delay))
        if (session := await self._wait(delay)) is not None:
            return session
        return await self._dial_beside(plan.address, failures)

    async def _dial_beside(self, address: ServerAddress, failures: dict[str, Exception]) -> Session | None:
        """Dial a server, beside those that are silent; return the first session, None when it is time for another."""
        self._dials.start(address, self._dial(address, failures))
        return await self._dials.winner(None if self._options.reconnect_to_server else STAGGER_S)

    async def _dial(self, address: ServerAddress, failures: dict[str, Exception]) -> Session | None:
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

    def _next_attempt(self) -> Attempt | None:
        """Return the next attempt, or None when no server is left that is not being dialled."""
        plan = self.pool.next(
            self._loop.time(),
            self._runtime.rng.random(),
            dialled=self._dials.running,
            choose=self._options.reconnect_to_server,
            info=self._engine.info,
        )
        if plan is not None and plan.fault is not None:
            self._event_bus.on_handler_error("reconnect callback", plan.fault)
        return plan

    def _connect_failed(
        self, failures: Mapping[str, Exception], started: float, *, is_first: bool = False, advice: str = ""
    ) -> errors.ConnectFailed:
        """Return the error that sums up all attempts; its advice is found here, unless it is given."""
        elapsed = self._loop.time() - started
        if advice:
            return errors.ConnectFailed(list(failures.items()), elapsed, advice=advice)
        refusals = [(server, exc) for server, exc in failures.items() if isinstance(exc, errors.NotAuthorized)]
        if refusals and len(refusals) == len(failures):
            anonymous = all(map(self._options._anonymous_to, self._options.addresses))
            return errors.LoginRefused(refusals, elapsed, anonymous=anonymous)
        tls_failures = [(server, exc) for server, exc in failures.items() if isinstance(exc, errors.TlsFailed)]
        if tls_failures and len(tls_failures) == len(failures):
            return errors.TlsConnectFailed(tls_failures, elapsed)
        if failures and all(isinstance(exc, UnknownHost) for exc in failures.values()):
            advice = "check the name of the host, and the DNS of this machine"
        elif is_first and not self._options.retry_connect_for and any(map(_is_refused, failures.values())):
            is_default = self._options.servers == DEFAULT_SERVER
            other = "give the URL of another (only Options.from_env() reads NATS_URL), " if is_default else ""
            advice = f"start a server there, {other}or pass retry_connect_for= to wait for one"
        return errors.ConnectFailed(list(failures.items()), elapsed, advice=advice)

    def run(self, session: Session | None) -> None:
        """Start the task that keeps a session or looks for one."""
        self._task = self._loop.create_task(self._supervise(session), name="natsproto supervisor")
        self._task.add_done_callback(
            self._on_task_done
        )  # not a handler inside the task: it may be cancelled before it begins

    def _on_task_done(self, _: asyncio.Task[None]) -> None:
        """Give up if the task was cancelled from outside, as event loops do at their end."""
        if self._engine.wants_connection:
            reason = errors.ConnectionLost(
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

    def cancel(self) -> list[asyncio.Task[Any]]:
        """Cancel the tasks, except the caller, and return them."""
        current = asyncio.current_task()
        tasks: list[asyncio.Task[Any]] = [
            task for task in (self._task, self._beside, *self._dials.tasks) if task is not None and task is not current
        ]
        for task in tasks:
            task.cancel()
        return tasks

    def run_beside(self, work: Coroutine[object, object, None]) -> None:
        """Run a task that ends with the client. The one before it must have ended."""
        self._beside = self._loop.create_task(work, name="natsproto probe")

    def end_old_sessions(self) -> None:
        """End the old sessions of moves."""
        for session in list(self._old_sessions):
            session.end(errors.ConnectionClosed())

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
        """Open a session with this server, and note whether it answers."""
        options, began = self._options, self._loop.time()
        link = self._engine.make_link(
            tls_required=self.requires_tls,
            secured=options.tls_first or address.websocket,
        )
        session = Session(address, options, self._runtime, self._engine, link)
        silence = self._loop.call_later(STAGGER_S, partial(self.pool.set_silent, address, silent=True))
        try:
            await session.open(began + options.connect_timeout)
        except asyncio.CancelledError as exc:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # This task was not cancelled: a callable of the options awaited something that was.
            raise errors.ConnectionLost("a callable in the options was cancelled", str(address)) from exc
        except Exception as exc:
            if isinstance(exc, TimeoutError) or self._loop.time() < silence.when():
                self.pool.set_silent(address, silent=isinstance(exc, TimeoutError))
            raise
        finally:
            silence.cancel()
        self.pool.set_silent(address, silent=False)
        return session

    def on_session_adopted(self, session: Session) -> None:
        """The engine uses a session now: the outage is over."""
        self.pool.succeeded(session.address, self._loop.time())
        self._progress_before = self._engine.progress
        self.requires_tls = self.requires_tls or session.encrypted
        if self._attention.done():
            self._attention = self._loop.create_future()

    def on_session_lost(self, session: Session) -> None:
        """The session in use has ended."""
        # Revoked or expired credentials do not count as rejected: the next ones may be new.
        self.pool.failed(session.address, self._loop.time())
        if self._engine.progress > self._progress_before:
            self.pool.carried_traffic()

    def _record_failure(self, address: ServerAddress, exc: Exception) -> None:
        refusal = exc.reason if isinstance(exc, errors.NotAuthorized) else None
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
        numbers = count(1)
        failures: dict[str, Exception] = {}
        try:
            while True:
                plan = self._next_attempt()
                if plan is None and not self._dials.running:
                    failure = self._connect_failed(failures, started) if failures else None
                    return None, self.pool.final_reason or failure
                session = await self._attempt(plan, numbers, failures)
                if session is None:
                    continue
                if not self._engine.wants_connection:  # closed by a callable in the options
                    session.end(errors.ConnectionClosed())
                    return None, None
                server, first = str(session.address), self._engine.info is NO_INFO
                if not await self._engine.on_connected(session):
                    failures[server] = session.ended.result()
                    self._record_failure(session.address, failures[server])
                    continue
                if first:  # the first connection, after retry_on_failed_connect
                    self._event_bus.emit(events.Connected(server=server))
                    return session, None
                self.reconnects += 1
                outage = self._loop.time() - started
                self._event_bus.emit(events.Reconnected(server=server, outage=outage))
                return session, None
        finally:
            self._dials.cut()

    def skip_wait(self) -> None:
        """End the wait for the next attempt."""
        if self._wait_skipped is not None:
            release(self._wait_skipped)

    async def _wait(self, delay: float) -> Session | None:
        """Wait ``delay`` seconds, or until ``skip_wait``; return a session that a silent server opens meanwhile."""
        ends_at = self._loop.time() + delay
        skipped = self._wait_skipped = self._loop.create_future()
        try:
            while (left := ends_at - self._loop.time()) > 0 and not skipped.done():
                if (session := await self._dials.winner(left, skipped)) is not None:
                    return session
        finally:
            self._wait_skipped = None
        return None

    # ---------------------------------------------------------------- moving to another server

    def start_move(self, address: ServerAddress | None = None, reason: str = "") -> None:
        """Move to another server, for a ``reason`` to this one: by default the current one is shutting down."""
        self._target = None if address is None else (address, reason)
        release(self._attention)

    async def _move(self, session: Session) -> Session:
        """Connect to another server first, then switch without an outage (ADR-5 leaves it to the client).

        The wait before it is random, because the server notifies all its clients at the same time. Returns the session
        in use afterwards: the old one if no other server accepted.
        """
        target, self._target = self._target, None
        reason: dict[str, str] = {}
        if target is None:
            wait = min(LAME_DUCK_SPREAD_S * self._runtime.rng.random(), self._options.ping_interval)
            await asyncio.wait((session.ended,), timeout=wait)
        else:
            reason["reason"] = target[1]
        addresses = self.pool.one_pass() if target is None else iter((target[0],))
        following: Session | None = None
        try:
            while following is None and not session.ended.done() and self._engine.can_move:
                address = next(addresses, None)
                if address is not None and str(address) != str(session.address):
                    self._dials.start(address, self._dial_for_move(address))
                if not self._dials.running:
                    if address is None:
                        break
                    continue
                following = await self._dials.winner(None if address is None else STAGGER_S, session.ended)
        finally:
            self._dials.cut()
        if following is None:
            return session
        if session.ended.done() or not self._engine.can_move:
            following.end(errors.ConnectionClosed())
            return session
        return await self._switch(session, following, reason)

    async def _dial_for_move(self, address: ServerAddress) -> Session | None:
        """Return a session with this server; None if that fails."""
        try:
            return await self._open_session(address)
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
        session.end(errors.ConnectionLost("the client moved to another server"))

    def _remove_old_session(self, session: Session) -> None:
        self._old_sessions.discard(session)
        self._engine.on_old_session_ended(session)


def _expire(loop: asyncio.AbstractEventLoop, timeout: asyncio.Timeout) -> None:
    """End a timeout in its loop, from any thread, unless it has ended."""

    def expire() -> None:
        with suppress(RuntimeError):  # it has just been left
            timeout.reschedule(loop.time())

    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(expire)


def _end_late_session(session: Session) -> None:
    """End a session that nobody needs: another one was faster."""
    session.end(errors.ConnectionClosed())


def _request_attention(attention: asyncio.Future[None], _: asyncio.Future[Exception]) -> None:
    release(attention)


def _without_dial_frames(error: Exception) -> Exception:
    """Return a failure without the frames of this package and asyncio, which say no more than its text.

    The error of a user's callable is the cause of an InvalidCredentials, and keeps its frames.
    """
    if isinstance(error, (errors.NatsError, OSError)):
        error.with_traceback(None)
        error.__suppress_context__ = True
        if isinstance(error.__cause__, OSError) and not isinstance(error, errors.InvalidCredentials):
            error.__cause__.with_traceback(None)
            error.__cause__.__suppress_context__ = True
    return error


def _is_refused(error: BaseException) -> bool:
    """True if nothing listens at the address."""
    return isinstance(error, ConnectionRefusedError) or isinstance(error.__cause__, ConnectionRefusedError)
