"""The handshake with real servers: with TLS demanded after INFO, waited for, and not at all."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

import natsproto
from natsproto._core.events import AttemptFailed, Disconnected, Reconnected
from natsproto._options.options import OptionArgs, Options
from natsproto.errors import ConnectFailed, NotAuthorized, ServerError, TlsFailed
from natsproto.testing import Direction, FaultProxy, ProxyLink, Server, ServerTls, run_server
from tests.kit.identity import Key, Operator
from tests.kit.pki import Authority
from tests.kit.watch import Watch
from tests.server.helpers import also_uvloop, client

HELLO = b"\x16\x03"
"""How a TLS handshake begins."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki"))


def tls(authority: Authority, *, first: bool | str = False) -> ServerTls:
    cert, key = authority.issue("127.0.0.1")
    return ServerTls(cert=cert, key=key, handshake_first=first)


def proxy_to(server: Server) -> FaultProxy:
    return FaultProxy("127.0.0.1", server.port, record=True)


def client_bytes(link: ProxyLink) -> bytes:
    """What the client said on one connection."""
    return bytes(link.seen[Direction.TO_SERVER])


_OPERATOR = Operator()
_SOMEBODY: Mapping[str, OptionArgs] = {
    "nothing": {},
    "user": {"user": "u", "password": "p"},
    "token": {"token": "t"},
    "nkey": {"nkey_seed": Key.user().seed},
    "creds": {"creds": lambda: _OPERATOR.account.user().creds},
    "name": {"name": "orders"},
}


@pytest.mark.parametrize("who", _SOMEBODY)
async def test_nothing_is_sent_before_info(who: str) -> None:
    async with run_server() as server, proxy_to(server) as proxy:
        proxy.stall(Direction.TO_CLIENT)
        with pytest.raises(ConnectFailed, match="waiting for INFO"):
            await natsproto.connect(Options(proxy.url, connect_timeout=1).replace(**_SOMEBODY[who]))
        assert client_bytes(proxy.link) == b""


@also_uvloop
async def test_server_that_demands_tls_after_info_gets_it(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.cert))
    watch = Watch()
    async with run_server(tls=tls(authority)) as server, proxy_to(server) as proxy:
        async with client(proxy.url, on_event=watch, jitter_tls=0) as nc:
            await nc.flush()
            assert proxy.accepted == 1
            proxy.cut()
            await watch.until(Reconnected)
            await nc.flush()
        assert [client_bytes(link)[:2] for link in proxy.history] == [HELLO, HELLO], "nothing in clear"
        assert watch.all(AttemptFailed) == []
        assert len(watch.all(Disconnected)) == 1


async def test_untrusted_certificate_is_one_failure(authority: Authority) -> None:
    watch = Watch()
    async with run_server(tls=tls(authority)) as server, proxy_to(server) as proxy:
        async with client(proxy.url, on_event=watch, retry_on_failed_connect=True, reconnect_wait=0.01, jitter_tls=0):
            for number in (1, 2):
                failed = (await watch.until(AttemptFailed, number)).cause
                assert isinstance(failed, TlsFailed)
                assert "not signed by a trusted CA" in str(failed)
        assert [client_bytes(link)[:2] == HELLO for link in proxy.history[:2]] == [True, True]


@pytest.mark.parametrize("user", ["", "ann:s3cret@"])
async def test_client_that_met_tls_says_nothing_in_clear(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, user: str
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.cert))
    watch = Watch()
    async with run_server(tls=tls(authority)) as demanding, run_server() as plain, proxy_to(plain) as proxy:
        url = f"nats://{user}127.0.0.1:{demanding.port}"
        async with client(f"{url},{proxy.url}", randomize=False, on_event=watch, reconnect_wait=0.01) as nc:
            demanding.kill()
            refused = await watch.until(AttemptFailed)
            while f":{proxy.port}" not in refused.server:
                refused = await watch.until(AttemptFailed, len(watch.all(AttemptFailed)) + 1)
            assert "TLS" in str(refused.cause)
            assert not nc.is_connected
        assert {client_bytes(link) for link in proxy.history} == {b""}


@also_uvloop
async def test_server_that_waits_a_moment_for_the_handshake(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.cert))
    async with run_server(tls=tls(authority, first="auto")) as server, proxy_to(server) as proxy:
        async with client(proxy.url) as nc:
            await nc.flush()
        assert [client_bytes(link)[:2] for link in proxy.history] == [HELLO]


async def test_server_that_expects_tls_first_is_named(authority: Authority) -> None:
    async with run_server(tls=tls(authority, first=True)) as server, proxy_to(server) as proxy:
        with pytest.raises(ConnectFailed, match="tls_first=True"):
            await natsproto.connect(proxy.url, connect_timeout=1.5)
        assert {client_bytes(link) for link in proxy.history} == {b""}


async def test_server_that_offers_tls(authority: Authority) -> None:
    async with run_server(tls=tls(authority), config="allow_non_tls: true") as server, proxy_to(server) as proxy:
        async with client(proxy.url) as nc:
            assert nc.server_info.tls_available
        assert proxy.accepted == 1


@also_uvloop
async def test_full_server_says_so_to_every_client() -> None:
    """It hangs up without having read CONNECT, so that a reset follows its last words."""
    async with run_server(config="max_connections: 1") as server, client(server.url, name="the one"):
        for _ in range(50):
            with pytest.raises(ConnectFailed) as failed:
                await natsproto.connect(server.url)
            [(_, cause)] = failed.value.attempts
            assert isinstance(cause, ServerError)
            assert "maximum connections exceeded" in str(cause)


async def test_server_that_needs_credentials_refuses_once() -> None:
    async with (
        run_server(config="authorization { user: ann, password: s3cret }") as server,
        proxy_to(server) as proxy,
    ):
        with pytest.raises(ConnectFailed) as failed:
            await natsproto.connect(proxy.url)
        [(_, cause)] = failed.value.attempts
        assert isinstance(cause, NotAuthorized)
        assert proxy.accepted == 1


@pytest.mark.parametrize("chop", [None, 1])
async def test_verbose_server_accepts_a_client_byte_by_byte(chop: int | None) -> None:
    async with run_server() as server, proxy_to(server) as proxy:
        proxy.chop(chop)
        async with client(proxy.url, verbose=True, pedantic=True) as nc, nc.subscribe("a") as sub:
            await nc.publish("a", b"x")
            assert (await sub.next(timeout=5)).data == b"x"
