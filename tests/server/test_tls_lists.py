"""TLS that one server of a list demands is demanded of all: whatever the list, its order and the reconnects.

A plain server that records what it receives must never see anything but a TLS ClientHello: no CONNECT, no HTTP request
with a cookie or a token.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import natsproto
from natsproto import AttemptFailed, AuthChallenge, Connected, Credentials, Options, Reconnected, ServersDiscovered
from natsproto.errors import ConfigError, ConnectFailed, TlsFailed
from tests.kit.examples import examples
from tests.kit.pki import Authority
from tests.kit.scripted import INFO, Behaviour, ScriptedServer, info_line
from tests.kit.watch import Watch

SECRET = "p4ssw0rd"
CLIENT_HELLO = b"\x16\x03\x01"


class PlainServer:
    """A server without TLS that says its INFO and records what it receives."""

    def __init__(self) -> None:
        self.connections: list[PlainConnection] = []
        self.port = 0
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.get_running_loop().create_server(lambda: PlainConnection(self), "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self.connections:
            connection.transport.abort()
        await self._server.wait_closed()

    @property
    def received(self) -> list[bytes]:
        """What was received on each connection that received anything."""
        return [bytes(one.received) for one in self.connections if one.received]

    @property
    def in_clear(self) -> list[bytes]:
        """What was received on connections that did not begin with a ClientHello."""
        return [one for one in self.received if not one.startswith(CLIENT_HELLO)]


class PlainConnection(asyncio.Protocol):
    """One connection of a PlainServer."""

    def __init__(self, server: PlainServer) -> None:
        self.server, self.received = server, bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.server.connections.append(self)
        transport.write(info_line({**INFO, "port": self.server.port}))

    def data_received(self, data: bytes) -> None:
        self.received += data


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authority]:
    authority = Authority(tmp_path_factory.mktemp("pki"))
    with mock.patch.dict(os.environ, {"SSL_CERT_FILE": str(authority.cert)}):
        yield authority


# ---------------------------------------------------------------- the rule


@pytest.mark.parametrize(
    ("servers", "options"),
    [
        ("wss://a,ws://b", {}),
        ("ws://b,wss://a", {}),
        ("ws://a", {"tls": True}),
        ("ws://a", {"tls_first": True}),
    ],
)
def test_ws_where_tls_is_demanded_is_refused(servers: str, options: dict[str, bool]) -> None:
    with pytest.raises(ConfigError, match=r"ws://[ab]:80.* must be a wss:// URL"):
        Options(servers, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("order", [("tls", "nats"), ("nats", "tls")])
async def test_one_tls_url_demands_tls_of_every_server(ca: Authority, order: Sequence[str]) -> None:
    async with PlainServer() as first, PlainServer() as second:
        urls = [f"{scheme}://127.0.0.1:{one.port}" for scheme, one in zip(order, (first, second), strict=True)]
        with pytest.raises(ConnectFailed) as caught:
            await natsproto.connect(urls, user="ann", password=SECRET, randomize=False)
        assert [type(cause) for _, cause in caught.value.attempts] == [TlsFailed, TlsFailed]
        assert [len(one.connections) for one in (first, second)] == [1, 1]
        assert first.in_clear == second.in_clear == []


async def test_a_nats_url_beside_a_tls_url_is_upgraded(ca: Authority) -> None:
    greeting = {"tls_required": None, "tls_available": True}
    offering = Behaviour(greeting=greeting, tls=ca.server("127.0.0.1"))
    async with PlainServer() as plain, ScriptedServer(offering) as server:
        urls = [server.url, f"tls://127.0.0.1:{plain.port}"]
        async with natsproto.connect(urls, user="ann", password=SECRET, randomize=False) as nc:
            await nc.flush()
        assert server.current.connect["pass"] == SECRET
        assert plain.connections == []


async def test_tls_url_in_set_servers_demands_tls(ca: Authority) -> None:
    async with PlainServer() as plain, ScriptedServer() as server:
        watch = Watch()
        options = Options(server.url, user="ann", password=SECRET, on_event=watch, reconnect_wait=0.01, jitter_tls=0)
        async with natsproto.connect(options) as nc:
            nc.set_servers(["tls://127.0.0.1:1", f"nats://127.0.0.1:{plain.port}"])
            with pytest.raises(ConfigError, match="must be a wss:// URL"):
                nc.set_servers("ws://127.0.0.1:1")
            nc.set_servers(f"nats://127.0.0.1:{plain.port}")
            server.current.reset()
            cause = (await watch.until(AttemptFailed)).cause
        assert isinstance(cause, TlsFailed)
        assert plain.in_clear == []


async def test_set_servers_cannot_lift_the_demand_of_a_url(ca: Authority) -> None:
    async with PlainServer() as plain:
        watch = Watch()
        options = Options("tls://127.0.0.1:1", user="ann", password=SECRET, on_event=watch, jitter_tls=0)
        nc = await natsproto.connect(options.replace(retry_on_failed_connect=True))
        with pytest.raises(ConfigError, match="must be a wss:// URL"):
            nc.set_servers(f"ws://127.0.0.1:{plain.port}")
        nc.set_servers(f"nats://127.0.0.1:{plain.port}")
        while not any(isinstance(event.cause, TlsFailed) for event in watch.all(AttemptFailed)):
            await watch.until(AttemptFailed, len(watch.all(AttemptFailed)) + 1)
        await nc.close()
        assert plain.in_clear == []


async def test_a_ws_server_gets_no_request_after_tls(ca: Authority) -> None:
    """The list is replaced while a server that demands TLS by its INFO is being connected to."""
    behaviours = Behaviour(hang_up=True), Behaviour(tls=ca.server("127.0.0.1"))
    async with PlainServer() as plain, ScriptedServer(*behaviours) as server:
        watch = Watch()

        def prove(challenge: AuthChallenge) -> Credentials:
            nc.set_servers(f"ws://127.0.0.1:{plain.port}")
            return Credentials(user="ann", password=SECRET)

        options = Options(
            server.url, auth=prove, websocket_headers={"Cookie": SECRET}, on_event=watch, reconnect_wait=0.01,
            jitter_tls=0, retry_on_failed_connect=True,
        )  # fmt: skip
        async with natsproto.connect(options) as nc:
            await watch.until(Connected)
            server.current.reset()
            cause = (await watch.until(AttemptFailed, 2)).cause
        assert isinstance(cause, TlsFailed)
        assert "ws://" in str(cause)
        assert plain.connections == []


# ---------------------------------------------------------------- the property


@dataclass
class Case:
    """A list of servers and what happens to a client of it.

    ``urls`` are schemes in the order of the list; "good" is a server with TLS. Later steps act on the client.
    """

    urls: list[str]
    good_scheme: str
    tls_option: bool
    randomize: bool
    steps: list[tuple[str, list[str]]] = field(default_factory=list)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Lists with at least one server that demands TLS, or an option that does."""
    lists = st.lists(st.sampled_from(["nats", "tls"]), max_size=3) | st.lists(st.just("wss"), min_size=1, max_size=3)
    urls, good_scheme, tls_option = draw(lists), draw(st.sampled_from(["tls", "nats"])), draw(st.booleans())
    if "wss" not in urls and (not urls or draw(st.booleans())):
        urls.insert(draw(st.integers(0, len(urls))), "good")
    if not tls_option and not {"tls", "wss"} & set(urls) and not ("good" in urls and good_scheme == "tls"):
        urls.insert(draw(st.integers(0, len(urls))), "tls")
    step = st.tuples(st.sampled_from(["cut", "reconnect", "set", "announce"]), lists.filter(bool))
    return Case(urls, good_scheme, tls_option, draw(st.booleans()), draw(st.lists(step, max_size=4)))


@given(case=cases())
@examples(200)
def test_plain_server_sees_only_a_client_hello(ca: Authority, case: Case) -> None:
    asyncio.run(_live(ca, case))


async def _live(ca: Authority, case: Case) -> None:
    async with (
        ScriptedServer(Behaviour(tls=ca.server("127.0.0.1"))) as good,
        PlainServer() as one, PlainServer() as two, PlainServer() as three, PlainServer() as four,
    ):  # fmt: skip
        recorders = (one, two, three, four)

        def urls_of(schemes: list[str]) -> list[str]:
            ports = itertools.cycle(recorder.port for recorder in recorders)
            good_url = f"{case.good_scheme}://127.0.0.1:{good.port}"
            return [good_url if each == "good" else f"{each}://127.0.0.1:{next(ports)}" for each in schemes]

        watch = Watch()
        options = Options(
            urls_of(case.urls), user="ann", password=SECRET, websocket_headers={"Cookie": SECRET}, on_event=watch,
            randomize=case.randomize, retry_on_failed_connect=True, reconnect_wait=0.002, reconnect_wait_max=0.004,
            jitter_tls=0, tls=ca.client() if case.tls_option else None,
        )  # fmt: skip
        nc = await natsproto.connect(options)
        for what, schemes in case.steps:
            if what == "set":
                nc.set_servers(urls_of(schemes))
            elif what == "announce" and nc.is_connected:
                found = len(watch.all(ServersDiscovered))
                good.info(connect_urls=[f"127.0.0.1:{four.port}"])
                await nc.flush()
                assert len(watch.all(ServersDiscovered)) <= found + 1
            elif what == "reconnect":
                await nc.reconnect()
            elif what == "cut" and nc.is_connected:
                good.current.reset()
            failed, again = len(watch.all(AttemptFailed)), len(watch.all(Reconnected))
            while len(watch.all(AttemptFailed)) < failed + 4 and len(watch.all(Reconnected)) == again:
                if what in ("set", "announce") and nc.is_connected:
                    break
                await asyncio.sleep(0.001)
        await nc.close()
        assert [recorder.in_clear for recorder in recorders] == [[], [], [], []]
        assert not any(SECRET.encode() in seen for recorder in recorders for seen in recorder.received)


def test_the_recorder_sees_what_is_sent_in_clear() -> None:
    """Otherwise the tests above would prove nothing."""

    async def body() -> list[bytes]:
        async with PlainServer() as plain:
            url = f"nats://127.0.0.1:{plain.port}"
            with pytest.raises(ConnectFailed):
                await natsproto.connect(url, user="ann", password=SECRET, connect_timeout=0.05)
            return plain.in_clear

    (seen,) = asyncio.run(body())
    assert SECRET.encode() in seen
