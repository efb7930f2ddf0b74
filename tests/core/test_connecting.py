"""The first connection: who is told what of attempts that fail, how long it goes on, and the end of a client."""

from __future__ import annotations

import asyncio
import gc
import logging
import pickle
import weakref

import pytest

import natsproto
from natsproto._core.events import AttemptFailed, Closed, Connected
from natsproto.errors import (
    ConnectFailed,
    ConnectionClosed,
    LocalProtocolError,
    LoginRefused,
    NoResponders,
    NotAuthorized,
    RequestTimeout,
    SubscriptionClosed,
)
from natsproto.testing import Server, run_server
from tests.core.helpers import HOST, PORT, scripted_network
from tests.faults.helpers import EventRecorder
from tests.kit.clock import virtual_clock
from tests.kit.scripted import Behaviour

REFUSES = Behaviour(refuse="Authorization Violation")


# ---------------------------------------------------------------- refused logins


@virtual_clock
async def test_login_refused_without_credentials() -> None:
    async with scripted_network(REFUSES) as net:
        with pytest.raises(NotAuthorized) as refused:
            await net.connect()
        error = refused.value
        assert isinstance(error, LoginRefused)
        assert isinstance(error, ConnectFailed)
        assert str(error) == (
            f"{HOST}:{PORT} rejected a client without credentials: Authorization Violation: "
            "give user and password, token, creds, nkey_seed, jwt or auth"
        )
        assert (error.reason, error.server, error.anonymous) == ("Authorization Violation", f"{HOST}:{PORT}", True)
        assert isinstance(error.attempts[0][1], NotAuthorized)
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.reason) == (LoginRefused, str(error), error.reason)


@virtual_clock
async def test_login_refused_with_credentials() -> None:
    async with scripted_network(REFUSES) as net:
        with pytest.raises(LoginRefused) as refused:
            await net.connect(user="ann", password="wrong")
        assert str(refused.value).startswith(f"{HOST}:{PORT} rejected the credentials: Authorization Violation: check")
        assert not refused.value.anonymous


@virtual_clock
async def test_login_refused_by_some_only() -> None:
    """One that cannot be reached might have accepted."""
    async with scripted_network(REFUSES) as net:
        with pytest.raises(ConnectFailed) as failed:
            await net.connect(f"nats://{HOST}:{PORT},nats://10.0.0.7", randomize=False)
        assert not isinstance(failed.value, NotAuthorized)
        assert str(failed.value).count(f"{HOST}:{PORT}") == 1
        assert "reached" not in str(failed.value)


# ---------------------------------------------------------------- attempts


@virtual_clock
async def test_attempt_failed_at_first_connect() -> None:
    recorder = EventRecorder()
    async with scripted_network() as net:
        await net.connect(f"nats://10.0.0.7,nats://{HOST}:{PORT}", randomize=False, on_event=recorder)
        assert [type(event) for event in recorder.events] == [AttemptFailed, Connected]
        failed = recorder.of(AttemptFailed)[0]
        assert failed.server == "10.0.0.7:4222"
        assert isinstance(failed.cause, ConnectionRefusedError)


@virtual_clock
async def test_retry_connect_for(caplog: pytest.LogCaptureFixture) -> None:
    recorder = EventRecorder()
    loop = asyncio.get_running_loop()
    async with scripted_network() as net:
        net.down()
        began = loop.time()
        loop.call_later(10, net.up)
        nc = await net.connect(retry_connect_for=30, on_event=recorder)
        assert [r.getMessage() for r in caplog.records if "waiting up to 30 s for a server at" in r.getMessage()]
        assert "WARNING" in caplog.text
        assert 10 <= loop.time() - began < 15
        assert nc.is_connected
        assert len(recorder.of(AttemptFailed)) > 3
        assert type(recorder.events[-1]) is Connected


@virtual_clock
async def test_retry_connect_for_runs_out() -> None:
    loop = asyncio.get_running_loop()
    async with scripted_network() as net:
        net.down()
        began = loop.time()
        with pytest.raises(ConnectFailed) as failed:
            await net.connect(retry_connect_for=7.3)
        assert loop.time() - began == pytest.approx(7.3, abs=1e-6)
        assert [server for server, _ in failed.value.attempts] == [f"{HOST}:{PORT}"]
        assert failed.value.elapsed == pytest.approx(7.3, abs=1e-6)


@virtual_clock
async def test_retry_connect_for_refused_login() -> None:
    """Credentials that stay refused are not tried for half a minute."""
    loop = asyncio.get_running_loop()
    async with scripted_network(REFUSES) as net:
        began = loop.time()
        with pytest.raises(LoginRefused):
            await net.connect(retry_connect_for=30)
        assert 2 <= loop.time() - began < 8


def test_retry_connect_for_a_real_server(nats_server: Server) -> None:
    """What a compose file does: the program first, then the server."""
    nats_server.kill()

    async def main() -> None:
        recorder = EventRecorder(AttemptFailed)
        connecting = asyncio.ensure_future(_connected(nats_server.url, recorder))
        await recorder.wait(AttemptFailed, 2)
        await nats_server.restart()
        nc = await connecting
        await nc.flush()
        await nc.close()

    asyncio.run(main())


async def _connected(url: str, recorder: EventRecorder) -> natsproto.Client:
    return await natsproto.connect(url, retry_connect_for=60, on_event=recorder)


@virtual_clock
async def test_flush_waits_for_the_first_connection() -> None:
    """With retry_on_failed_connect, for which docs/connecting.md says so."""
    loop = asyncio.get_running_loop()
    async with scripted_network() as net:
        net.down()
        nc = await net.connect(retry_on_failed_connect=True)
        await nc.publish("a", b"early")
        with pytest.raises(RequestTimeout):
            await nc.flush(timeout=0.7)
        loop.call_later(10, net.up)
        await nc.flush(timeout=30)
        assert nc.is_connected
        await net.server.expect("PUB", "a", payload=b"early")


# ---------------------------------------------------------------- the end


def test_program_without_close_is_quiet(caplog: pytest.LogCaptureFixture) -> None:
    async def main(url: str) -> None:
        nc = await natsproto.connect(url)
        await nc.flush()

    caplog.set_level(logging.DEBUG, "natsproto")
    with run_server() as server:
        asyncio.run(main(server.url))
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == []
    assert any("closed for good" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("end", ["close", "drain"])
@virtual_clock
async def test_next_when_the_client_is_closed(end: str) -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        sub = await nc.subscribe("a")
        waiting = asyncio.create_task(sub.next())
        await nc.flush()
        await (nc.close() if end == "close" else nc.drain())
        with pytest.raises(SubscriptionClosed, match=r"the client was (closed|drained)"):
            await waiting


@virtual_clock
async def test_closed_reason_is_an_error_of_ours() -> None:
    recorder = EventRecorder(Closed)
    async with scripted_network() as net:
        nc = await net.connect(max_reconnect_attempts=2, on_event=recorder)
        net.down()
        reason = await nc.wait_closed()
        assert isinstance(reason, ConnectFailed)
        assert isinstance(reason.attempts[0][1], ConnectionRefusedError)
        assert recorder.events == [Closed(reason=reason)]


@virtual_clock
async def test_closed_reason_without_attempts() -> None:
    async with scripted_network() as net:
        nc = await net.connect(max_reconnect_attempts=0)
        net.down()
        assert isinstance(await nc.wait_closed(), natsproto.errors.ConnectionLost)


@virtual_clock
async def test_set_servers_on_a_closed_client() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        await nc.close()
        with pytest.raises(ConnectionClosed, match="set_servers"):
            nc.set_servers("nats://elsewhere")


@virtual_clock
async def test_reconnect_without_allow_reconnect() -> None:
    async with scripted_network() as net:
        nc = await net.connect(allow_reconnect=False)
        with pytest.raises(LocalProtocolError, match="allow_reconnect"):
            await nc.reconnect()
        assert nc.is_connected
        await nc.flush()


@virtual_clock
async def test_connect_sends_no_null_name() -> None:
    async with scripted_network() as net:
        await net.connect()
        op = await net.server.expect("CONNECT")
        assert "null" not in " ".join(op.args)


def test_closed_client_is_released(nats_server: Server) -> None:
    """No timer holds it: a thousand connects a second would keep a thousand clients."""

    async def one() -> weakref.ref[object]:
        nc = await natsproto.connect(nats_server.url)
        sub = await nc.subscribe("a")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await sub.next(timeout=60)
        with pytest.raises(NoResponders):
            await nc.request("nobody", timeout=60)
        await nc.publish("b", b"x")
        await nc.close()
        return weakref.ref(nc._engine)

    async def main() -> None:
        held = [await one() for _ in range(3)]
        for _ in range(5):
            await asyncio.sleep(0)
        gc.collect()
        assert [ref() for ref in held] == [None] * 3

    asyncio.run(main())
