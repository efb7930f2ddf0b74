"""Finds out whether the server in use is cut off from its cluster, and has the client moved then.

Owns the second connections of a probe, which live until there is a verdict. The rules are in ``cut_off``. JetStream
reports its silences; INFO shows a server that stands alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Protocol

from natsproto import errors
from natsproto._core.cut_off import PROBE_TIMEOUT_S, ApiAnswer, Finding, ProbePlan, Verdict, judge
from natsproto._core.engine.engine import Engine, State
from natsproto._core.inbox.handler import Handler
from natsproto._core.inbox.subscription import Subscription
from natsproto._core.replies.pending_replies import Resending
from natsproto.protocol.addresses import ServerAddress
from natsproto.protocol.frames import Message

log = logging.getLogger("natsproto")

PROBED_SERVERS = 2
"""Other servers that are asked: with a third one, the larger part of the cluster is known."""

REASON = "it is cut off from its cluster: JetStream does not work there"

_UNAVAILABLE = 10008  # JetStream system temporarily unavailable
_ASK_AGAIN_S = 0.2  # a server without a leader drops requests, and interest needs some milliseconds to spread


class ProbeConnection(Protocol):
    """The part of Connection that a probe needs."""

    _engine: Engine

    @property
    def is_connected(self) -> bool: ...

    async def _start(self) -> None: ...

    def new_inbox(self) -> str: ...

    def subscribe(self, subject: str, *, cb: Handler) -> Subscription: ...

    def publish_nowait(self, subject: str, payload: bytes = b"", *, reply: str) -> None: ...

    def _request_resending(
        self, subject: str, payload: bytes, *, timeout: float, headers: None, resending: Resending
    ) -> Awaitable[Message]: ...

    async def close(self) -> None: ...


class CutOffWatch:
    """Watches for one client. ``make_probe`` creates a client for a probe."""

    def __init__(self, engine: Engine, here: ProbeConnection, make_probe: Callable[[], ProbeConnection]) -> None:
        self._engine, self._here, self._make_probe = engine, here, make_probe
        self._plan = ProbePlan()
        self._loop = asyncio.get_running_loop()
        self._is_probing = False
        self._prefix = ""

    def use(self, prefix: str) -> None:
        """JetStream is used with this prefix of its API."""
        if not self._prefix and self._engine.options.leave_cut_off_server:
            self._engine.on_alone = self.on_silence
        self._prefix = self._prefix or prefix

    def on_error(self, error: object) -> None:
        """An event reports an error: a consumer may be silent."""
        if isinstance(error, (errors.HeartbeatMissed, errors.ConsumerGone)):
            self.on_silence()

    def on_silence(self) -> None:
        """A request to JetStream, or a message to a stream, got no answer."""
        engine = self._engine
        if self._is_probing or not self._prefix or not engine.options.leave_cut_off_server or not engine.can_move:
            return
        if len(engine.supervisor.pool.known_servers) < 2:
            return
        delay = self._plan.on_silence(self._loop.time(), engine.random())
        if delay is not None:
            self._is_probing = True
            engine.supervisor.run_beside(self._probe_after(delay))

    async def _probe_after(self, delay: float | None) -> None:
        """Probe until there is a verdict, or too often."""
        engine = self._engine
        try:
            async with AsyncExitStack() as stack:
                probes: dict[ServerAddress, ProbeConnection] = {}
                while delay is not None:
                    await asyncio.wait((engine.closed,), timeout=delay)
                    session = engine.session
                    if session is None or engine.state is not State.OPEN:
                        return
                    await self._open_probes(stack, probes, session.address)
                    verdict, address = await self._probe(probes)
                    delay = self._plan.on_verdict(verdict, self._loop.time())
                    if address is not None and session is engine.session:
                        engine.supervisor.start_move(address, REASON)
        except errors.NatsError as exc:
            log.debug("a probe of other servers failed: %s", exc)
        finally:
            self._is_probing = False

    async def _open_probes(
        self, stack: AsyncExitStack, probes: dict[ServerAddress, ProbeConnection], current: ServerAddress
    ) -> None:
        """Connect to other servers, until PROBED_SERVERS are connected."""
        for address in [address for address, probe in probes.items() if not probe.is_connected]:
            del probes[address]
        known = self._engine.supervisor.pool.known_servers
        others = sorted(
            (address for address in known if str(address) != str(current) and address not in probes),
            key=lambda _: self._engine.random(),
        )
        wanted = others[: PROBED_SERVERS - len(probes)]
        opened = await asyncio.gather(*(self._open(stack, address) for address in wanted))
        probes.update({address: probe for address, probe in opened if probe is not None})

    async def _probe(self, probes: Mapping[ServerAddress, ProbeConnection]) -> tuple[Verdict, ServerAddress | None]:
        """Ask here and at the other servers in the same second."""
        if not probes:
            here = await self._ask(self._here)
            self._plan.denied = here is ApiAnswer.DENIED
            return (Verdict.STAY if here is not ApiAnswer.FAILED else Verdict.UNDECIDED), None
        async with AsyncExitStack() as stack:
            arrived: set[str] = set()
            inboxes = [_open_inbox(stack, connection, arrived) for connection in (self._here, *probes.values())]
            asking = [self._ask(connection) for connection in (self._here, *probes.values())]
            crossing = [
                self._crosses(probe, [f"{inbox}.{number}" for inbox in inboxes], number, arrived)
                for number, probe in enumerate(probes.values(), 1)
            ]
            answers, crossed = await asyncio.gather(asyncio.gather(*asking), asyncio.gather(*crossing))
        self._plan.denied = ApiAnswer.DENIED in answers
        findings = [
            Finding(address=address, answer=answer, reaches_here=here, reaches_others=there)
            for address, answer, (here, there) in zip(probes, answers[1:], crossed, strict=True)
        ]
        log.debug("JetStream here: %s; elsewhere: %s", answers[0], findings)
        return judge(answers[0], findings)

    async def _open(
        self, stack: AsyncExitStack, address: ServerAddress
    ) -> tuple[ServerAddress, ProbeConnection | None]:
        probe = self._make_probe()
        probe._engine.supervisor.use_only(address, requires_tls=self._engine.supervisor.requires_tls)
        stack.push_async_callback(probe.close)
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                await probe._start()
        except (errors.NatsError, OSError):
            return address, None
        return address, probe

    async def _ask(self, connection: ProbeConnection) -> ApiAnswer:
        """Request INFO until it works, as an election may end meanwhile, or until PROBE_TIMEOUT_S have passed."""
        ends_at = self._loop.time() + PROBE_TIMEOUT_S
        while (left := ends_at - self._loop.time()) > 0:
            with suppress(errors.NatsError, ValueError, AttributeError):
                try:
                    reply = await connection._request_resending(
                        f"{self._prefix}.INFO", b"", timeout=left, headers=None, resending=Resending(_ASK_AGAIN_S)
                    )
                except errors.PermissionDenied:
                    return ApiAnswer.DENIED
                if (json.loads(reply.data).get("error") or {}).get("err_code") != _UNAVAILABLE:
                    return ApiAnswer.OK
            await asyncio.sleep(_ASK_AGAIN_S)
        return ApiAnswer.FAILED

    async def _crosses(
        self, probe: ProbeConnection, replies: Sequence[str], own: int, arrived: set[str]
    ) -> tuple[bool, bool]:
        """Return whether answers to requests that are sent there arrive here (the first of ``replies``), and at
        another probed server (not at its ``own`` inbox).
        """
        wanted = [*replies[:own], *replies[own + 1 :]]
        ends_at = self._loop.time() + PROBE_TIMEOUT_S
        while not arrived.issuperset(wanted) and self._loop.time() < ends_at:
            for reply in wanted:
                probe.publish_nowait(f"{self._prefix}.INFO", reply=reply)
            await asyncio.sleep(_ASK_AGAIN_S)
        return wanted[0] in arrived, any(reply in arrived for reply in wanted[1:])


def _open_inbox(stack: AsyncExitStack, connection: ProbeConnection, arrived: set[str]) -> str:
    """Subscribe a connection to an inbox, and note the subjects that arrive there."""
    inbox = connection.new_inbox()
    subscription = connection.subscribe(f"{inbox}.*", cb=lambda message: arrived.add(message.subject))
    stack.push_async_callback(_unsubscribe, subscription)
    return inbox


async def _unsubscribe(subscription: Subscription) -> None:
    with suppress(errors.NatsError):
        await subscription.unsubscribe()
