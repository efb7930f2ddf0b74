"""The supervisor: finds a server, watches the connection to it, and finds the next one.

Owns the pool, the one task that does this, the back-off, and the sessions that were left behind in a move. It
does not know what a connection is used for; the engine is told when there is a new one, and says itself when
the current one has ended. Because one task does all of it, a client is never "connected" without somebody who
will notice the end.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Protocol

from natsproto.core import events
from natsproto.core.herald import Herald
from natsproto.core.runtime import Runtime
from natsproto.core.session import Session, SessionClient
from natsproto.core.waiting import release
from natsproto.errors import ConnectFailed, ConnectionClosed, ConnectionLost, NotAuthorized, RequestTimeout
from natsproto.options import Options
from natsproto.protocol.frames import NO_INFO, ServerInfo
from natsproto.protocol.link import HungUp, Link, TooEarly
from natsproto.protocol.pool import ServerAddress, ServerPool

log = logging.getLogger("natsproto")

LAME_DUCK_SPREAD = 1.0
"""Seconds over which clients spread when their server announces its end; it waits 10 before it cuts any."""

RETIRE_WITHIN = 2.0
"""Seconds a connection that was left may still bring what its server had sent."""


class Supervised(SessionClient, Protocol):
    """Whom a supervisor works for."""

    @property
    def info(self) -> ServerInfo:
        """The last INFO."""
        ...

    @property
    def wants_connection(self) -> bool:
        """Whether the client is not closed."""
        ...

    @property
    def may_move(self) -> bool:
        """Whether a change of servers is in order: the client is open, and neither draining nor closed."""
        ...

    def make_link(self, *, tls_required: bool, secured: bool) -> Link:
        """The protocol side of a new connection."""
        ...

    def opened(self, session: Session) -> None:
        """This is the current session from now on."""
        ...

    def leaving(self, session: Session) -> None:
        """The current session is about to be replaced while it still works."""
        ...

    def buried(self, session: Session) -> None:
        """A session that was left has ended."""
        ...

    def gave_up(self, reason: Exception | None) -> None:
        """There will be no other connection."""
        ...


class Supervisor:
    """Keeps ``client`` connected, from the first server to the last."""

    def __init__(self, options: Options, runtime: Runtime, client: Supervised, herald: Herald) -> None:
        self.pool: ServerPool = options.server_pool(runtime.rng.shuffle)
        self.reconnects = 0
        self._loop = asyncio.get_running_loop()
        self._options, self._runtime, self._client, self._herald = options, runtime, client, herald
        self._task: asyncio.Task[None] | None = None
        self._hurry: asyncio.Future[None] | None = None
        self._stirred: asyncio.Future[None] = self._loop.create_future()
        """Done when the current session needs attention: it has ended, or its server is about to."""
        self._retiring: set[Session] = set()
        self._encrypted = False
        """Whether any connection was under TLS; then all are, so that nobody can take it away on the way."""
        self._patient = False
        """Whether a server could make nothing of a CONNECT ahead of its INFO; then none gets another one."""

    # ---------------------------------------------------------------- the life of the task

    async def first(self) -> Session | None:
        """One pass over the pool; the first session that could be had.

        ConnectFailed with every cause when there is none, or None with retry_on_failed_connect: ``run`` goes on.
        """
        started = self._loop.time()
        attempts: list[tuple[str, BaseException]] = []
        for address in self.pool.one_pass():
            try:
                return await self._attempt(address)
            except Exception as exc:
                self._note_failure(address, exc)
                attempts.append((str(address), exc))
        if self._options.retry_on_failed_connect and self._options.allow_reconnect:
            return None
        raise ConnectFailed(attempts, self._loop.time() - started) from (attempts[-1][1] if attempts else None)

    def run(self, session: Session | None) -> None:
        """From now on there is always a session, or somebody looking for one."""
        self._task = self._loop.create_task(self._supervise(session), name="natsproto supervisor")
        self._task.add_done_callback(self._over)  # no handler in the task: it may end before it has begun

    def _over(self, _: asyncio.Task[None]) -> None:
        """Somebody else has cancelled the task, as event loops do at their end: nobody finds the next server."""
        if self._client.wants_connection:
            self._client.gave_up(ConnectionLost("the task of the client was cancelled, as at the end of a program"))

    @property
    def running(self) -> bool:
        """Whether the task goes on: it was started, has not ended and is not being cancelled."""
        return self._task is not None and not self._task.done() and not self._task.cancelling()

    @property
    def started(self) -> bool:
        """Whether there ever was a connection, or background attempts at one."""
        return self._task is not None

    def cancel(self) -> asyncio.Task[None] | None:
        """Ends the task; returns it to be waited for, unless it is what is running just now."""
        if self._task is None or self._task is asyncio.current_task():
            return None
        self._task.cancel()
        return self._task

    def end_retired(self) -> None:
        """Ends the connections that were left behind."""
        for session in list(self._retiring):
            session.end(ConnectionClosed())

    async def _supervise(self, session: Session | None) -> None:
        """Waits for the end of the session and finds the next one, until the client is closed."""
        reason: Exception | None = None
        try:
            while True:
                if session is None:
                    session, reason = await self._reconnect()
                    if session is None:
                        break
                session = await self._watch(session)
                if not self._client.wants_connection:
                    return
                reason = session.ended.result()
                session = None
                if not self._options.allow_reconnect:
                    break
        except Exception as exc:
            log.exception("the supervisor failed")
            reason = exc
        self._client.gave_up(reason)

    # ---------------------------------------------------------------- one connection

    async def _attempt(self, address: ServerAddress) -> Session:
        """A session with this server: with the second connection if the first one was greeted too early."""
        began = self._loop.time()
        deadline = began + self._options.connect_timeout
        if not self._may_greet(address):
            return await self._open(address, deadline)
        try:
            return await self._open(address, deadline, early=True)
        except TooEarly as exc:
            self._patient = True
            early, ended = exc, self._loop.time()
        try:
            return await self._open(address, deadline)
        except RequestTimeout as exc:
            # One that waits for TLS hangs up at once. What did so late would have done it again, given the time.
            if isinstance(early, HungUp) and ended - began > deadline - ended:
                raise ConnectionLost(early.reason, early.server) from exc
            raise

    def _may_greet(self, address: ServerAddress) -> bool:
        """Whether CONNECT may leave ahead of INFO, and so before TLS: only if it does not even hold a name."""
        options = self._options
        in_clear = not (self._encrypted or options.tls_required_for(address) or address.websocket)
        return in_clear and not self._patient and options.anonymous_to(address) and options.name is None

    async def _open(self, address: ServerAddress, deadline: float, *, early: bool = False) -> Session:
        options = self._options
        link = self._client.make_link(
            tls_required=self._encrypted or options.tls_required_for(address),
            secured=options.tls_first or address.websocket,
        )
        session = Session(address, options, self._runtime, self._client, link)
        try:
            await session.open(deadline, early=early)
        except asyncio.CancelledError as exc:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody cancelled us: a callable of the options awaited something that was.
            raise ConnectionLost("a callable in the options was cancelled", str(address)) from exc
        return session

    def adopted(self, session: Session) -> None:
        """The client has taken a session into use: the outage is over."""
        self.pool.succeeded(session.address, self._loop.time())
        self._encrypted = self._encrypted or session.encrypted
        if self._stirred.done():
            self._stirred = self._loop.create_future()

    def lost(self, session: Session) -> None:
        """The session in use has ended."""
        # Credentials that were withdrawn or have expired were not refused yet: the next ones may be new.
        self.pool.failed(session.address, self._loop.time())

    def _note_failure(self, address: ServerAddress, exc: Exception) -> None:
        refusal = exc.reason if isinstance(exc, NotAuthorized) else None
        self.pool.failed(address, self._loop.time(), refusal)

    async def _watch(self, session: Session) -> Session:
        """Until the current session has ended; moves away from a server in lame duck mode before that.

        Returns the session that ended, which after a move is not the one given.
        """
        while not session.ended.done():
            stirred = self._stirred
            session.ended.add_done_callback(partial(_stir, stirred))
            await stirred
            if not session.ended.done():
                if stirred is self._stirred:
                    self._stirred = self._loop.create_future()
                session = await self._move_away(session)
        return session

    # ---------------------------------------------------------------- the next one, after an end

    async def _reconnect(self) -> tuple[Session | None, Exception | None]:
        """The next session, or None and the reason when no server is left to try."""
        started = self._loop.time()
        number = 0
        last: Exception | None = None
        while True:
            plan = self.pool.next(
                self._loop.time(),
                self._runtime.rng.random(),
                choose=self._options.reconnect_to_server,
                info=self._client.info,
            )
            if plan is None:
                return None, self.pool.final_reason or last
            if plan.fault is not None:
                self._herald.handler_failed("reconnect callback", plan.fault)
            number += 1
            server = str(plan.address)
            self._herald.announce(events.Reconnecting(server=server, attempt=number, delay=plan.delay))
            await self._pause(plan.delay)
            try:
                session = await self._attempt(plan.address)
            except Exception as exc:
                last = exc
                self._note_failure(plan.address, exc)
                self._herald.announce(events.AttemptFailed(server=server, cause=exc))
                continue
            if not self._client.wants_connection:  # closed by a callable in the options
                session.end(ConnectionClosed())
                return None, None
            first = self._client.info is NO_INFO
            self._client.opened(session)
            if first:  # retry_on_failed_connect got there at last
                self._herald.announce(events.Connected(server=server))
                return session, None
            self.reconnects += 1
            outage = self._loop.time() - started
            self._herald.announce(events.Reconnected(server=server, outage=outage))
            return session, None

    def hurry(self) -> None:
        """Ends the wait for the next attempt."""
        if self._hurry is not None:
            release(self._hurry)

    async def _pause(self, delay: float) -> None:
        """Waits, unless somebody is in a hurry."""
        if delay <= 0:
            return
        self._hurry = self._loop.create_future()
        timer = self._loop.call_later(delay, release, self._hurry)
        try:
            await self._hurry
        finally:
            timer.cancel()
            self._hurry = None

    # ---------------------------------------------------------------- the next one, before an end

    def move_soon(self) -> None:
        """The server of the current session is going to shut down."""
        release(self._stirred)

    async def _move_away(self, session: Session) -> Session:
        """Connects elsewhere first and switches then, so that nobody notices (ADR-5 leaves it to the client).

        The wait before it is random, because all clients of the server are told in the same moment. Returns the
        session in use afterwards: the old one if no other server could be had.
        """
        wait = min(LAME_DUCK_SPREAD * self._runtime.rng.random(), self._options.ping_interval)
        await asyncio.wait((session.ended,), timeout=wait)
        for address in self.pool.one_pass():
            if session.ended.done() or not self._client.may_move:
                break
            if str(address) == str(session.address):
                continue
            following = await self._attempt_beside(session, address)
            if following is not None:
                self._switch(session, following)
                return following
        return session

    async def _attempt_beside(self, session: Session, address: ServerAddress) -> Session | None:
        """A new session while ``session`` lives; None when none could be had, or it has ended meanwhile."""
        attempt = self._loop.create_task(self._attempt(address), name="natsproto move")
        wanted = False
        try:
            await asyncio.wait((attempt, session.ended), return_when=asyncio.FIRST_COMPLETED)
            wanted = not session.ended.done() and self._client.may_move
        finally:
            if not wanted:
                attempt.cancel()
                attempt.add_done_callback(_discard)
        if not wanted:
            return None
        try:
            return attempt.result()
        except Exception as exc:
            self._note_failure(address, exc)
            return None

    def _switch(self, old: Session, new: Session) -> None:
        """Makes ``new`` the current session while ``old`` still works."""
        self._client.leaving(old)
        self._retiring.add(old)
        self._loop.call_later(RETIRE_WITHIN, self.retire, old)
        old.ended.add_done_callback(lambda _: self._bury(old))
        self._client.opened(new)
        self._herald.announce(events.Moved(left=str(old.address), server=str(new.address)))

    @staticmethod
    def retire(session: Session) -> None:
        """A session that was left has delivered all it had."""
        session.end(ConnectionLost("the client moved to another server"))

    def _bury(self, session: Session) -> None:
        self._retiring.discard(session)
        self._client.buried(session)


def _discard(attempt: asyncio.Task[Session]) -> None:
    """Ends a session that came too late."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().end(ConnectionClosed())


def _stir(stirred: asyncio.Future[None], _: asyncio.Future[Exception]) -> None:
    release(stirred)
