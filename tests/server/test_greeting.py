"""The early greeting on real servers: with TLS demanded behind INFO, waited for, and not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

import natsproto
from natsproto.core.events import AttemptFailed, Disconnected, Reconnected
from natsproto.errors import ConnectFailed, ConnectionLost, NotAuthorized, ServerError, TlsFailed
from natsproto.options import OptionArgs, Options
from natsproto.testing import Server, ServerTls, run_server
from tests.kit.identity import Key, Operator
from tests.kit.pki import Authority
from tests.kit.proxy import Direction, FaultProxy, Link
from tests.kit.watch import Watch
from tests.server.ground import both_loops, client, until

HELLO = b"\x16\x03"
"""How a TLS handshake begins."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pki"))


def tls(authority: Authority, *, first: bool | str = False) -> ServerTls:
    cert, key = authority.issue("127.0.0.1")
    return ServerTls(cert=cert, key=key, handshake_first=first)


def proxy_to(server: Server) -> FaultProxy:
    return FaultProxy("127.0.0.1", server.port)


def said(link: Link) -> bytes:
    """What the client said on one connection."""
    return bytes(link.seen[Direction.TO_SERVER])


@both_loops
async def test_connect_is_with_the_server_before_its_info_is_with_us() -> None:
    async with run_server() as server, proxy_to(server) as proxy:
        proxy.stall(Direction.TO_CLIENT)
        connecting = asyncio.create_task(natsproto.connect(proxy.url).__aenter__())
        await until(lambda: proxy.history and said(proxy.link).endswith(b"}\r\nPING\r\n"))
        proxy.heal()
        nc = await connecting
        await nc.flush()
        await nc.close()
        assert proxy.accepted == 1


_OPERATOR = Operator()
_SOMEBODY: Mapping[str, OptionArgs] = {
    "user": {"user": "u", "password": "p"},
    "token": {"token": "t"},
    "nkey": {"nkey_seed": Key.user().seed},
    "creds": {"creds": lambda: _OPERATOR.account.user().creds},
    "name": {"name": "orders"},
}


@pytest.mark.parametrize("who", _SOMEBODY)
async def test_who_has_anything_to_say_of_himself_says_it_to_a_server_that_was_heard(who: str) -> None:
    async with run_server() as server, proxy_to(server) as proxy:
        proxy.stall(Direction.TO_CLIENT)
        with pytest.raises(ConnectFailed, match="waiting for INFO"):
            await natsproto.connect(Options(proxy.url, connect_timeout=0.3).merge(**_SOMEBODY[who]))
        assert said(proxy.link) == b""


@both_loops
async def test_server_that_demands_tls_behind_info_gets_it_and_is_greeted_early_once(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.cert))
    watch = Watch()
    async with run_server(tls=tls(authority)) as server, proxy_to(server) as proxy:
        async with client(proxy.url, on_event=watch, jitter_tls=0) as nc:
            await nc.flush()
            assert proxy.accepted == 2
            proxy.cut()
            await watch.until(Reconnected)
            await nc.flush()
        first, second, third = proxy.history
        assert said(first).startswith(b"CONNECT {")
        assert b'"name":null' in said(first)
        assert said(second).startswith(HELLO)
        assert said(third).startswith(HELLO)
        assert watch.all(AttemptFailed) == []
        assert len(watch.all(Disconnected)) == 1


async def test_certificate_that_nobody_trusts_is_one_failure_and_no_second_early_greeting(authority: Authority) -> None:
    watch = Watch()
    async with run_server(tls=tls(authority)) as server, proxy_to(server) as proxy:
        async with client(proxy.url, on_event=watch, retry_on_failed_connect=True, reconnect_wait=0.01, jitter_tls=0):
            for number in (1, 2):
                failed = (await watch.until(AttemptFailed, number)).cause
                assert isinstance(failed, TlsFailed)
                assert "not signed by a trusted CA" in str(failed)
        assert [said(link)[:2] == HELLO for link in proxy.history[:4]] == [False, True, True, True]


@pytest.mark.parametrize("user", ["", "ann:s3cret@"])
async def test_client_that_met_tls_greets_no_other_server_early(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, user: str
) -> None:
    """Neither if it was greeted early there nor if it was waited for."""
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
        assert {said(link) for link in proxy.history} == {b""}


@both_loops
async def test_server_that_waits_a_moment_for_the_handshake_takes_us_behind_info(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.cert))
    async with run_server(tls=tls(authority, first="auto")) as server, proxy_to(server) as proxy:
        async with client(proxy.url) as nc:
            await nc.flush()
        first, second = proxy.history
        assert bytes(first.seen[Direction.TO_CLIENT]) == b"", "it took CONNECT for a handshake"
        assert said(second).startswith(HELLO)


async def test_server_that_waits_for_the_handshake_is_named_as_such(authority: Authority) -> None:
    async with run_server(tls=tls(authority, first=True)) as server, proxy_to(server) as proxy:
        with pytest.raises(ConnectFailed) as failed:
            await natsproto.connect(proxy.url)
        [(_, cause)] = failed.value.attempts
        assert type(cause) is ConnectionLost
        assert "tls_first=True" in str(cause)
        assert [said(link)[:7] for link in proxy.history] == [b"CONNECT", b""]


async def test_server_that_offers_tls_is_taken_at_its_first_word(authority: Authority) -> None:
    async with run_server(tls=tls(authority), config="allow_non_tls: true") as server, proxy_to(server) as proxy:
        async with client(proxy.url) as nc:
            assert nc.server_info.tls_available
        assert proxy.accepted == 1


@both_loops
async def test_full_server_says_so_to_every_early_client() -> None:
    """It hangs up without having read CONNECT, so that a reset follows its last words."""
    async with run_server(config="max_connections: 1") as server, client(server.url, name="the one"):
        for _ in range(50):
            with pytest.raises(ConnectFailed) as failed:
                await natsproto.connect(server.url)
            [(_, cause)] = failed.value.attempts
            assert isinstance(cause, ServerError)
            assert "maximum connections exceeded" in str(cause)


async def test_server_that_wants_to_know_who_we_are_refuses_once() -> None:
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
async def test_verbose_server_accepts_an_early_client_byte_by_byte(chop: int | None) -> None:
    async with run_server() as server, proxy_to(server) as proxy:
        proxy.chop(chop)
        async with client(proxy.url, verbose=True, pedantic=True) as nc, nc.subscribe("a") as sub:
            await nc.publish("a", b"x")
            assert (await sub.next(timeout=5)).data == b"x"
