"""How a program of nats-py connects: URLs, credentials, the server to reconnect to, and the state between."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest

from natsproto.compat import nats
from natsproto.compat.nats.aio.client import NO_RESPONDERS_STATUS, RawCredentials, ServerVersion
from natsproto.compat.nats.aio.client import Server as KnownServer
from natsproto.testing import Server, run_server
from tests.compat.scenarios import CallbackLog
from tests.kit.identity import Key, Operator
from tests.kit.pki import Authority
from tests.kit.scripted import Behaviour, ScriptedServer


@pytest.mark.parametrize(
    ("servers", "reason"),
    [
        ("nats://localhost:port", "invalid connect url option"),
        ("nats://:4222", "invalid hostname in connect url"),
        ("nats://none:4222", "invalid hostname in connect url"),
        (4222, "invalid connect url option"),
        (["ws://localhost:1", "nats://localhost:2"], "mixing of websocket and non websocket URLs is not allowed"),
    ],
)
async def test_url_that_is_wrong_is_refused(servers: Any, reason: str) -> None:
    with pytest.raises(nats.errors.Error) as caught:
        await nats.connect(servers)
    assert str(caught.value) == f"nats: {reason}"


@pytest.mark.differs("`connect(allow_reconnect=False)` when no server answers")
async def test_url_without_scheme_or_port() -> None:
    nc = nats.NATS()
    with pytest.raises(ConnectionRefusedError):
        await nc.connect(["127.0.0.1:9", "nats://127.0.0.1:9"], allow_reconnect=False)
    assert {url.netloc for url in nc.servers} == {"127.0.0.1:9"}
    with pytest.raises(OSError, match=r"."):
        await nc.connect("no-such-host.invalid", allow_reconnect=False)
    assert [url.port for url in nc.servers] == [4222]


@pytest.mark.differs("A list of servers, one of them `tls://`")
async def test_one_tls_url_demands_tls_of_the_whole_list() -> None:
    async with ScriptedServer() as plain:
        with pytest.raises(OSError, match="Connect call failed"):
            await nats.connect(
                [plain.url, "tls://127.0.0.1:1"], user="ann", password="p", dont_randomize=True, allow_reconnect=False
            )
        assert len(plain.connections) == 1
        assert plain.ops == []


# ---------------------------------------------------------------- credentials


async def is_let_in(server: Server, **options: Any) -> bool:
    """Whether the server lets a client with these options in, and serves it."""
    nc = await nats.connect(server.url, allow_reconnect=False, **options)
    try:
        await nc.flush()
        return nc.is_connected
    finally:
        await nc.close()


async def is_refused(server: Server, **options: Any) -> bool:
    with pytest.raises((nats.errors.AuthorizationError, nats.errors.Error), match=r"(?i)authorization"):
        await nats.connect(server.url, allow_reconnect=False, **options)
    return True


async def test_user_and_password_may_be_callables() -> None:
    async with run_server(user="ann", password="secret") as server:
        assert await is_let_in(server, user="ann", password="secret")
        assert await is_let_in(server, user=lambda: "ann", password=lambda: "secret")
        assert await is_refused(server, user="ann", password="wrong")
        assert await is_refused(server, user="ann")


async def test_token_may_be_a_callable() -> None:
    async with run_server(token="t0ken") as server:
        assert await is_let_in(server, token="t0ken")
        assert await is_let_in(server, token=lambda: "t0ken")
        assert await is_refused(server)


async def test_nkeys_seed_is_a_file_or_text(tmp_path: Path) -> None:
    key = Key.user()
    (tmp_path / "seed").write_text(key.seed)
    async with run_server(config=f"authorization {{ users: [{{ nkey: {key.public} }}] }}") as server:
        assert await is_let_in(server, nkeys_seed=str(tmp_path / "seed"))
        assert await is_let_in(server, nkeys_seed_str=f" {key.seed}\n")
        assert await is_refused(server, nkeys_seed_str=Key.user().seed)


async def test_user_credentials_in_every_form(tmp_path: Path) -> None:
    operator = Operator()
    user = operator.account.user()
    creds, jwt, seed = tmp_path / "user.creds", tmp_path / "user.jwt", tmp_path / "user.nk"
    creds.write_text(user.creds)
    jwt.write_text(user.jwt)
    seed.write_text(user.key.seed)
    async with run_server(config=operator.config()) as server:
        for given in (creds, str(creds), RawCredentials(user.creds), (str(jwt), str(seed))):
            assert await is_let_in(server, user_credentials=given)
        assert await is_refused(server, user_credentials=RawCredentials(Operator().account.user().creds))


@pytest.mark.differs("signature_cb without user_jwt_cb")
async def test_signature_cb_signs_the_nonce() -> None:
    operator = Operator()
    user = operator.account.user()
    nonces: list[str] = []

    def sign(nonce: str) -> bytes:
        nonces.append(nonce)
        return base64.b64encode(user.key.sign(nonce.encode()))

    async with run_server(config=operator.config()) as server:
        assert await is_let_in(server, signature_cb=sign, user_jwt_cb=user.jwt.encode)
        assert await is_let_in(server, signature_cb=sign, user_jwt_cb=user.jwt.encode, token=lambda: "for a callout")
        with pytest.raises(NotImplementedError, match="user_jwt_cb"):
            await nats.connect(server.url, signature_cb=sign)
    assert len({*nonces}) == 2


async def test_token_goes_with_an_nkey(tmp_path: Path) -> None:
    """The server's auth callout sees both."""
    user = Operator().account.user()
    (tmp_path / "jwt").write_text(user.jwt)
    (tmp_path / "seed").write_text(user.key.seed)
    async with ScriptedServer(Behaviour(greeting={"nonce": "n"})) as server:
        nc = await nats.connect(
            server.url,
            user_credentials=(str(tmp_path / "jwt"), str(tmp_path / "seed")),
            token="t",
            allow_reconnect=False,
        )
        sent = server.current.connect
        assert (sent["jwt"], sent["auth_token"]) == (user.jwt, "t")
        await nc.close()


# ---------------------------------------------------------------- TLS and WebSocket


async def test_tls_context_and_hostname(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate = authority.issue("nats.example")
    config = f'tls {{ cert_file: "{certificate.cert}", key_file: "{certificate.key}" }}'
    async with run_server(config=config) as server:
        context = authority.client()
        nc = await nats.connect(server.url, tls=context, tls_hostname="nats.example", allow_reconnect=False)
        assert (nc.is_connected, nc.ssl_context) == (True, context)
        await nc.close()
        with pytest.raises(OSError, match=r"(?i)certificate"):
            await nats.connect(server.url, tls=context, allow_reconnect=False)
    assert nats.NATS().ssl_context.check_hostname


@pytest.mark.differs("untraced: connecting does not end with nats-py here, though it does in a program")
async def test_websocket_headers_are_sent() -> None:
    async with run_server(websocket=True) as server:
        nc = await nats.connect(server.websocket_url, ws_connection_headers={"X-A": ["1", "2"]}, allow_reconnect=False)
        await nc.flush()
        assert (nc.connected_url or nc.servers[0]).scheme == "ws"
        await nc.close()


# ---------------------------------------------------------------- the state


async def test_client_knows_its_server(nc: nats.NATS, nats_server: Server) -> None:
    assert (nc.is_connected, nc.is_connecting, nc.is_reconnecting, nc.is_draining) == (True, False, False, False)
    assert nc.connected_url is not None
    assert (nc.connected_url.hostname, nc.connected_url.port) == ("127.0.0.1", nats_server.port)
    assert [url.port for url in nc.servers] == [nats_server.port]
    assert (nc.discovered_servers, [known.uri.port for known in nc.server_pool]) == ([], [nats_server.port])
    assert (nc.client_ip, nc.max_payload, nc.pending_data_size) == ("127.0.0.1", 1024 * 1024, 0)
    assert isinstance(nc.client_id, int)
    assert nc.connected_server_version.major >= 2
    assert 0 < await nc.rtt() < await nc.rtt(30) + 30
    assert nc.new_inbox() != nc.new_inbox()
    assert nc.last_error is None


@pytest.mark.differs("`publish()` before `connect()`")
async def test_client_before_connect() -> None:
    nc = nats.NATS()
    assert (nc.is_connected, nc.is_connecting, nc.is_closed, nc.connected_url) == (False, False, False, None)
    assert (nc.discovered_servers, nc.servers, nc.client_id, nc.client_ip) == ([], [], None, None)
    assert (nc.last_error, nc.pending_data_size, nc.max_payload) == (None, 0, 1024 * 1024)
    assert str(nc.connected_server_version) == "<nats server v0.0.0-unknown>"
    with pytest.raises(nats.errors.ConnectionClosedError):
        await nc.publish("a")
    await nc.close()
    assert nc.is_closed


@pytest.mark.differs("`connect(allow_reconnect=False)` when no server answers")
async def test_close_after_a_refusal_is_reported() -> None:
    log, nc = CallbackLog(), nats.NATS()
    with pytest.raises(ConnectionRefusedError):
        await nc.connect("nats://127.0.0.1:9", allow_reconnect=False, **log.callbacks())
    await nc.close()
    await nc.close()
    assert log.names == ["disconnected_cb", "closed_cb"]


@pytest.mark.differs("`connect()` of a client that is connected")
async def test_connected_client_connects_no_more(nc: nats.NATS, nats_server: Server) -> None:
    with pytest.raises(nats.errors.Error, match="connected"):
        await nc.connect(nats_server.url)
    assert repr(nc).startswith("<nats client v2.")


@pytest.mark.differs("`connect()` of a client that is connected")
async def test_client_is_connecting_while_it_does() -> None:
    nc = nats.NATS()
    connecting = asyncio.create_task(nc.connect("nats://127.0.0.1:9", reconnect_time_wait=30))
    await asyncio.sleep(0)
    assert nc.is_connecting
    with pytest.raises(nats.errors.Error, match="connected"):
        await nc.connect("nats://127.0.0.1:9")
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    assert (nc.is_connecting, nc.is_connected) == (False, False)


def test_server_version_has_parts() -> None:
    version = ServerVersion("2.12.3-RC.1+abc")
    assert (version.major, version.minor, version.patch) == (2, 12, 3)
    assert (version.prerelease, version.build, version.dev) == ("RC.1", "abc", "RC.1+abc")
    assert ServerVersion("2.10.0").dev == ""
    with pytest.raises(ValueError, match="Semantic"):
        _ = ServerVersion("new").major


# ---------------------------------------------------------------- outages


async def test_publish_during_an_outage_is_sent_later() -> None:
    log = CallbackLog()
    async with run_server() as server:
        nc = await nats.connect(server.url, reconnect_time_wait=0.01, max_reconnect_attempts=-1, **log.callbacks())
        sub = await nc.subscribe("a")
        await nc.flush()
        server.kill()
        await log.until("disconnected_cb")
        assert (nc.is_reconnecting, nc.is_connected, nc.is_closed) == (True, False, False)
        await nc.publish("a", b"1")
        assert nc.pending_data_size > 0
        with pytest.raises(nats.errors.ConnectionReconnectingError):
            await nc.drain()
        await server.restart()
        assert (await sub.next_msg(timeout=30)).data == b"1"
        await nc.close()


async def test_flush_and_rtt_time_out(nats_server: Server) -> None:
    nc = await nats.connect(nats_server.url, allow_reconnect=False)
    with pytest.raises(nats.errors.BadTimeoutError):
        await nc.flush(0)
    with pytest.raises(nats.errors.BadTimeoutError):
        await nc.rtt(-1)
    nats_server.freeze()
    with pytest.raises(nats.errors.FlushTimeoutError):
        await nc.flush(0.01)
    with pytest.raises(nats.errors.TimeoutError):
        await nc.rtt(0.01)
    nats_server.thaw()
    await nc.close()
    with pytest.raises(nats.errors.ConnectionClosedError):
        await nc.rtt()


@pytest.mark.differs("`last_error` after a drain that took too long")
async def test_drain_timeout_is_reported(nats_server: Server) -> None:
    log = CallbackLog()
    nc = await nats.connect(nats_server.url, drain_timeout=0.01, **log.callbacks())
    started, never = asyncio.Event(), asyncio.Event()

    async def handler(msg: Any) -> None:
        started.set()
        await never.wait()

    await nc.subscribe("a", cb=handler)
    await nc.publish("a")
    await started.wait()
    draining = asyncio.create_task(nc.drain())
    while not nc.is_draining:  # noqa: ASYNC110  # at the next step of the loop, or the one after
        await asyncio.sleep(0)
    second = asyncio.create_task(nc.drain())  # has nothing to do of its own
    with pytest.raises(nats.errors.ConnectionDrainingError):
        await nc.subscribe("b")
    await asyncio.gather(draining, second)
    assert [type(error) for error in log.errors] == [nats.errors.DrainTimeoutError]
    assert (nc.is_closed, type(nc.last_error)) == (True, nats.errors.DrainTimeoutError)
    with pytest.raises(nats.errors.ConnectionClosedError):
        nc.set_server_pool(["nats://127.0.0.1:9"])


async def test_server_pool_is_replaced(nats_server: Server) -> None:
    log = CallbackLog()
    async with run_server() as other:
        nc = await nats.connect(nats_server.url, reconnect_time_wait=0.01, **log.callbacks())
        nc.set_server_pool([other.url])
        assert [known.uri.port for known in nc.server_pool] == [other.port]
        await nc.force_reconnect()
        await log.until("reconnected_cb")
        assert nc.connected_url is not None
        assert nc.connected_url.port == other.port
        with pytest.raises(nats.errors.Error, match="invalid"):
            nc.set_server_pool(["nats://a:b"])
        await nc.close()


async def test_reconnect_is_not_forced_when_not_allowed(nats_server: Server) -> None:
    nc = await nats.connect(nats_server.url, allow_reconnect=False)
    client_id = nc.client_id
    await nc.force_reconnect()
    await nc.flush()
    assert nc.client_id == client_id
    await nc.close()


async def test_reconnect_handler_chooses_the_server(nats_server: Server) -> None:
    log = CallbackLog()
    asked: list[tuple[list[int | None], str]] = []

    def choose(servers: list[KnownServer], info: dict[str, Any]) -> tuple[KnownServer | None, float]:
        asked.append(([server.uri.port for server in servers], info["server_id"]))
        return next(server for server in servers if server.uri.port == other.port), 0.0

    async with run_server() as other:
        nc = await nats.connect(
            [nats_server.url, other.url],
            dont_randomize=True,
            reconnect_time_wait=0.01,
            reconnect_to_server_handler=choose,
            **log.callbacks(),
        )
        await nc.force_reconnect()
        await log.until("reconnected_cb")
        assert nc.connected_url is not None
        assert nc.connected_url.port == other.port
        [(ports, server_id)] = asked
        assert ({*ports}, bool(server_id)) == ({nats_server.port, other.port}, True)
        await nc.close()


@pytest.mark.parametrize(
    ("chosen", "told_of"),
    [(None, []), (KnownServer(urlparse("nats://127.0.0.1:9")), ["ServerNotInPoolError"])],
    ids=["none", "a stranger"],
)
async def test_reconnect_handler_without_a_choice(
    chosen: KnownServer | None, told_of: list[str], nats_server: Server
) -> None:
    log = CallbackLog()

    def choose(servers: list[KnownServer], info: dict[str, Any]) -> tuple[KnownServer | None, float]:
        return chosen, 0.0  # instead of reconnect_time_wait

    nc = await nats.connect(
        nats_server.url, reconnect_time_wait=3600, reconnect_to_server_handler=choose, **log.callbacks()
    )
    await nc.force_reconnect()
    await log.until("reconnected_cb")
    await nc.flush()
    names = [type(error).__name__ for error in log.errors]
    assert [name for name in names if name == "ServerNotInPoolError"] == told_of
    await nc.close()


@pytest.mark.differs("`reconnect_to_server_handler` in `connect`")
async def test_reconnect_handler_in_first_connect() -> None:
    log = CallbackLog()

    def choose(servers: list[KnownServer], info: dict[str, Any]) -> tuple[KnownServer | None, float]:
        return KnownServer(urlparse("nats://127.0.0.1:7")), 0.001  # instead of reconnect_time_wait

    connecting = asyncio.create_task(
        nats.connect(
            "nats://127.0.0.1:9",
            max_reconnect_attempts=-1,
            reconnect_time_wait=3600,
            reconnect_to_server_handler=choose,
            **log.callbacks(),
        )
    )
    async with asyncio.timeout(30):
        while sum(isinstance(error, nats.errors.ServerNotInPoolError) for error in log.errors) < 2:
            await log.changed()
    connecting.cancel()
    await asyncio.wait([connecting])
    assert not any(isinstance(error, AssertionError) for error in log.errors)


@pytest.mark.differs("`reconnect_to_server_handler` that raises")
async def test_reconnect_handler_that_raises(nats_server: Server) -> None:
    log = CallbackLog()

    def choose(servers: list[KnownServer], info: dict[str, Any]) -> tuple[KnownServer | None, float]:
        raise KeyError("no choice")

    nc = await nats.connect(
        nats_server.url, reconnect_time_wait=0.01, reconnect_to_server_handler=choose, **log.callbacks()
    )
    await nc.force_reconnect()
    await log.until("reconnected_cb")
    assert [error.args for error in log.errors if isinstance(error, KeyError)] == [("no choice",)]
    await nc.close()


async def test_lame_duck_and_discovery_are_reported() -> None:
    log = CallbackLog()
    async with ScriptedServer() as server:
        nc = await nats.connect(server.url, reconnect_time_wait=0.01, **log.callbacks())
        server.current.info(connect_urls=["127.0.0.1:9"])
        await log.until("discovered_server_cb")
        assert [url.port for url in nc.discovered_servers] == [9]
        server.current.info(ldm=True)
        await log.until("lame_duck_mode_cb")
        await nc.close()


async def test_client_name_is_given(nats_server: Server) -> None:
    async with ScriptedServer() as server:
        nc = await nats.connect(server.url, name="shop", no_echo=True, verbose=False, pedantic=True)
        sent = server.current.connect
        assert (sent["name"], sent["echo"], sent["pedantic"], sent["verbose"]) == ("shop", False, True, False)
        await nc.close()
    assert NO_RESPONDERS_STATUS == "503"
