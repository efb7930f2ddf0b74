"""Where a client may be used: in the event loop that it was made in, for as long as that lives."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import natsproto
from natsproto._core.engine.engine import State
from natsproto._core.events import Closed, Event
from natsproto._core.socket.transport import SocketWire
from natsproto.errors import ConnectionClosed, ConnectionLost, LocalProtocolError
from natsproto.testing import Server, ServerTls, run_server
from tests.kit.pki import Authority
from tests.server.helpers import LOOPS, also_uvloop, client


@also_uvloop
async def test_client_closes_when_all_tasks_are_cancelled(nats_server: Server) -> None:
    """As programs do in their last moment, and some earlier: nobody waits for a connection that never comes."""
    reported: list[Event] = []
    nc = await natsproto.connect(nats_server.url, on_event=reported.append)
    sub = await nc.subscribe("a")
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    reason = await asyncio.wait_for(nc.wait_closed(), 5)
    assert isinstance(reason, ConnectionLost)
    assert "cancelled" in str(reason)
    assert reported[-1] == Closed(reason=reason)
    with pytest.raises(ConnectionLost):
        await sub.next(timeout=5)
    with pytest.raises(ConnectionClosed):
        await nc.publish("a")
    await nc.drain()


async def _every_verb(nc: natsproto.Client, sub: natsproto.Subscription) -> list[type[BaseException]]:
    """What each says."""

    async def publish_nowait() -> None:
        nc.publish_nowait("a", b"lost")

    async def subscribe() -> None:
        nc.subscribe("lost")

    async def read() -> None:
        async for _ in sub:
            pass

    async def events() -> None:
        async for _ in nc.events():
            pass

    said: list[type[BaseException]] = []
    for verb in (
        lambda: nc.publish("a", b"lost"),
        publish_nowait,
        lambda: nc.request("a", b"lost"),
        nc.flush,
        nc.rtt,
        subscribe,
        lambda: sub.next(timeout=5),
        read,
        events,
        nc.wait_closed,
        nc.reconnect,
        nc.drain,
        nc.close,
    ):
        try:
            await asyncio.wait_for(verb(), 5)
        except Exception as exc:
            said.append(type(exc))
    return said


@also_uvloop
async def test_another_event_loop_is_an_error_of_every_verb(nats_server: Server) -> None:
    async with client(nats_server.url) as nc, nc.subscribe("a") as sub:
        said = await asyncio.to_thread(lambda: asyncio.run(_every_verb(nc, sub)))
        assert said == [LocalProtocolError] * 13
        await nc.publish("a", b"found")
        assert (await sub.next(timeout=5)).data == b"found"
        assert nc.stats.in_msgs == 1
        await asyncio.get_running_loop().shutdown_default_executor()


async def test_client_is_closed_after_its_event_loop(nats_server: Server) -> None:
    async def main() -> tuple[natsproto.Client, natsproto.Subscription]:
        nc = await natsproto.connect(nats_server.url)
        return nc, await nc.subscribe("a")

    nc, sub = await asyncio.to_thread(lambda: asyncio.run(main()))
    assert nc.state is State.CLOSED
    said = await _every_verb(nc, sub)
    # events() tells the end, wait_closed() why it came, drain() and close() have nothing left to do.
    assert said == [ConnectionClosed] * 6 + [ConnectionLost] * 2 + [ConnectionClosed]


def test_forked_process_does_not_use_the_client(nats_server: Server) -> None:
    program = f"""
import asyncio, os, natsproto

async def main():
    async with natsproto.connect({nats_server.url!r}) as nc, nc.subscribe("a") as sub:
        await nc.flush()
        child = os.fork()
        if not child:
            try:
                nc.publish_nowait("a", b"lost")
            except natsproto.errors.LocalProtocolError:
                os._exit(7)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        await nc.publish("a", b"found")
        print(os.waitstatus_to_exitcode(status), (await sub.next(timeout=5)).data)

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == ("7 b'found'\n", "")


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_uvloop_gathers_plain_writes_only(tmp_path: Path, tls: bool) -> None:
    """In parts, TLS on uvloop costs more than the copy that they save."""
    authority = Authority(tmp_path)
    certificate = authority.issue("127.0.0.1")

    async def body() -> None:
        server_tls = ServerTls(cert=certificate.cert, key=certificate.key) if tls else None
        async with (
            run_server(tls=server_tls) as server,
            natsproto.connect(server.url, tls=authority.client() if tls else None) as nc,
            nc.subscribe("a") as sub,
        ):
            session = nc._engine.session
            assert session is not None
            assert isinstance(session.wire, SocketWire)
            assert session.wire._gathers_writes is not tls
            for number in range(30):
                await nc.publish("a", bytes([number]) * 10_000)
            assert [(await sub.next(timeout=30)).data[0] for _ in range(30)] == list(range(30))

    with asyncio.Runner(loop_factory=LOOPS["uvloop"]) as runner:
        runner.run(body())
