"""TLS on real and on lying servers, on both event loops where they have TLS of their own.

What is checked, in the order of the tests:

1. ``tls://`` upgrades behind INFO; 2. so does a context with ``nats://``; 3. and a server that demands it, verified
by the default context; 4. ``tls_available`` alone does not; 5. but with TLS asked for it does; 6. ``tls_first`` with a
server that waits for it; 7. ``auto`` servers take both kinds; 8. client certificates; 9. certificate files of a context
and 10. of the environment; 11. ``tls_hostname``; 12. an IP address in the certificate; 13. what a cluster announces as
a bare IP address is verified against the name that was dialled; 14. the context callable is asked at every attempt,
15. so a rotated CA is followed; 16. what it does wrong is said; 17. a restart over TLS keeps the subscriptions;
18. big messages both ways; 19. back-pressure; 20. close() is quick.

21. A wrong CA, 22. a wrong host, 23. an expired certificate, 24. a missing client certificate in TLS 1.3 and
25. in TLS 1.2, 26. an untrusted client certificate, 27. ``tls_first`` with a plain server, 28. the reverse, 29. no
common version, 30. an end inside the handshake, 31. a stalled handshake and 32. a stalled ``tls_first`` are worded
errors, and none of them sends CONNECT.

33. ``tls://``, 34. a context, 35. a reconnect, 36. a discovered server and 37. a server that used to demand TLS never
get CONNECT in clear; 38. nor does ``ws://`` slip in. 39. Bytes behind INFO, 40. however they are cut, are refused;
41. an INFO in clear names no servers and 42. announces no lame duck.
"""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

import natsproto
from natsproto._core.engine import engine
from natsproto._core.events import AttemptFailed, Disconnected, LameDuck, Reconnected, ServersDiscovered
from natsproto._options.options import Options
from natsproto.errors import (
    ConfigError,
    ConnectFailed,
    RemoteProtocolError,
    RequestTimeout,
    TlsFailed,
)
from natsproto.testing import Direction, FaultProxy, Server, ServerTls, run_cluster, run_server
from tests.kit.failures import cause_of
from tests.kit.pki import Authority, Certificate
from tests.kit.scripted import INFO, Behaviour, ScriptedServer, info_line
from tests.kit.watch import Watch
from tests.server.helpers import Run

SECRET = "p4ssw0rd"


class Pki:
    """Certificates, good and bad."""

    def __init__(self, folder: Path) -> None:
        self.ca, self.other = Authority(folder), Authority(folder, "other")
        self.good = self.ca.issue("localhost", "127.0.0.1")
        self.named = self.ca.issue("localhost")
        self.elsewhere = self.ca.issue("elsewhere.example")
        self.expired = self.ca.issue("127.0.0.1", expired=True)
        self.lax = self.ca.issue("127.0.0.1", strict=False)
        self.client = self.ca.issue("client")
        self.stranger = self.other.issue("client")

    def server(self, certificate: Certificate | None = None, *, first: bool | str = False) -> ServerTls:
        cert, key = certificate or self.good
        return ServerTls(cert=cert, key=key, handshake_first=first)

    def strict(self, *, first: bool = False) -> ServerTls:
        """A server that wants a certificate of every client."""
        return ServerTls(cert=self.good.cert, key=self.good.key, ca=self.ca.cert, verify=True, handshake_first=first)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(autouse=True)
def _nothing_left_open() -> Iterator[None]:
    yield
    gc.collect()  # a transport that nobody closed is a ResourceWarning, hence an error, of this test


async def login_cause(url: str, **options: object) -> BaseException:
    return await cause_of(url, user="ann", password=SECRET, **options)


async def encrypted(server: Server) -> bool:
    """Whether the server sees TLS on its only connection."""
    port = int(server.monitoring_url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /connz HTTP/1.0\r\n\r\n")
    answer = json.loads((await reader.read()).partition(b"\r\n\r\n")[2])
    writer.close()
    await writer.wait_closed()
    (connection,) = answer["connections"]
    return str(connection.get("tls_version", "")).startswith("1.")


# ---------------------------------------------------------------- it works


def test_tls_url_upgrades_behind_info(run: Run, pki: Pki) -> None:
    async def body() -> None:
        async with run_server(tls=pki.server()) as server, natsproto.connect(server.url, tls=pki.ca.client()) as nc:
            await nc.flush()
            assert await encrypted(server)
            assert nc.connected_url == f"tls://127.0.0.1:{server.port}"

    run(body())


async def test_context_upgrades_a_nats_url(pki: Pki) -> None:
    async with (
        run_server(tls=pki.server()) as server,
        natsproto.connect(f"nats://127.0.0.1:{server.port}", tls=pki.ca.client()),
    ):
        assert await encrypted(server)


async def test_server_that_demands_tls_is_verified(pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_server(tls=pki.server()) as server:
        url = f"nats://127.0.0.1:{server.port}"
        assert "not signed by a trusted CA" in str(await login_cause(url))
        monkeypatch.setenv("SSL_CERT_FILE", str(pki.ca.cert))  # what the default context trusts
        async with natsproto.connect(url):
            assert await encrypted(server)


async def test_offered_tls_is_used_when_asked_for_only(pki: Pki) -> None:
    async with run_server(tls=pki.server(), config="allow_non_tls: true") as server:
        url = f"nats://127.0.0.1:{server.port}"
        async with natsproto.connect(url) as nc:
            assert nc.server_info.tls_available
            assert not nc.server_info.tls_required
            assert not await encrypted(server)
        async with natsproto.connect(url, tls=pki.ca.client()):
            assert await encrypted(server)


def test_tls_first(run: Run, pki: Pki) -> None:
    async def body() -> None:
        async with (
            run_server(tls=pki.server(first=True)) as server,
            natsproto.connect(server.url, tls=pki.ca.client(), tls_first=True) as nc,
        ):
            await nc.flush()
            assert await encrypted(server)

    run(body())


@pytest.mark.parametrize("first", [False, True])
async def test_server_that_takes_both_kinds_takes_both(pki: Pki, first: bool) -> None:
    async with (
        run_server(tls=pki.server(first="auto")) as server,
        natsproto.connect(server.url, tls=pki.ca.client(), tls_first=first),
    ):
        assert await encrypted(server)


def test_client_certificate(run: Run, pki: Pki) -> None:
    async def body() -> None:
        async with (
            run_server(tls=pki.strict()) as server,
            natsproto.connect(server.url, tls=pki.ca.client(pki.client)) as nc,
        ):
            await nc.flush()
            assert nc.server_info.tls_verify

    run(body())


async def test_nats_context_gives_the_certificates(pki: Pki, tmp_path: Path) -> None:
    folder = tmp_path / "nats" / "context"
    folder.mkdir(parents=True)
    async with run_server(tls=pki.strict(first=True)) as server:
        settings = {
            "url": server.url, "cert": str(pki.client.cert), "key": str(pki.client.key), "ca": str(pki.ca.cert),
            "tls_first": True,
        }  # fmt: skip
        (folder / "shop.json").write_text(json.dumps(settings))
        async with natsproto.connect(Options.from_context("shop", {"XDG_CONFIG_HOME": str(tmp_path)})) as nc:
            await nc.flush()


async def test_environment_gives_the_certificates(pki: Pki) -> None:
    async with run_server(tls=pki.strict()) as server:
        environ = {
            "NATS_URL": server.url, "NATS_CERT": str(pki.client.cert), "NATS_KEY": str(pki.client.key),
            "NATS_CA": str(pki.ca.cert),
        }  # fmt: skip
        async with natsproto.connect(Options.from_env(environ)) as nc:
            await nc.flush()


async def test_tls_hostname_is_verified_instead_of_the_host(pki: Pki) -> None:
    async with (
        run_server(tls=pki.server(pki.elsewhere)) as server,
        natsproto.connect(server.url, tls=pki.ca.client(), tls_hostname="elsewhere.example"),
    ):
        assert await encrypted(server)


async def test_ip_address_in_the_certificate_counts(pki: Pki) -> None:
    async with (
        run_server(tls=pki.server(pki.ca.issue("127.0.0.1"))) as server,
        natsproto.connect(server.url, tls=pki.ca.client()),
    ):
        assert await encrypted(server)


async def test_verification_is_skipped_by_a_context_only(pki: Pki) -> None:
    careless = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    careless.check_hostname, careless.verify_mode = False, ssl.CERT_NONE
    async with run_server(tls=pki.server(pki.expired)) as server, natsproto.connect(server.url, tls=careless):
        assert await encrypted(server)


async def test_discovered_address_keeps_the_dialled_hostname(pki: Pki) -> None:
    async with run_cluster(2, jetstream=False, tls=pki.server(pki.named)) as cluster:
        first, second = cluster.servers
        watch = Watch()
        async with natsproto.connect(f"tls://localhost:{first.port}", tls=pki.ca.client(), on_event=watch) as nc:
            await watch.until(ServersDiscovered)
            assert f"127.0.0.1:{second.port}" in nc.discovered_servers
            first.kill()
            await watch.until(Reconnected)
            assert nc.connected_url == f"tls://127.0.0.1:{second.port}"
            assert await encrypted(second)


async def test_tls_callable_follows_a_new_ca(pki: Pki, tmp_path: Path) -> None:
    cert, key, trusted = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem"

    def install(authority: Authority) -> None:
        made = authority.issue("127.0.0.1")
        shutil.copy(made.cert, cert)
        shutil.copy(made.key, key)

    install(pki.ca)
    shutil.copy(pki.ca.cert, trusted)
    asked: list[ssl.SSLContext] = []

    def context() -> ssl.SSLContext:
        asked.append(ssl.create_default_context(cafile=str(trusted)))
        return asked[-1]

    async with run_server(tls=ServerTls(cert=cert, key=key)) as server:
        watch = Watch()
        options = Options(server.url, tls=context, on_event=watch, reconnect_wait=0.01, jitter_tls=0)
        async with natsproto.connect(options) as nc:
            install(pki.other)
            await server.reload()
            await nc.reconnect()
            failed = (await watch.until(AttemptFailed)).cause
            assert isinstance(failed, TlsFailed)
            shutil.copy(pki.other.cert, trusted)
            await watch.until(Reconnected)
    assert len(asked) == 2 + len(watch.all(AttemptFailed))


async def test_tls_callable_that_fails_is_named(pki: Pki, tmp_path: Path) -> None:
    async with run_server(tls=pki.server()) as server:
        missing = await login_cause(server.url, tls=lambda: ssl.create_default_context(cafile=str(tmp_path / "none")))
        nonsense = await login_cause(server.url, tls=lambda: "context")
    assert isinstance(missing, ConfigError)
    assert "No such file" in str(missing)
    assert isinstance(nonsense, ConfigError)
    assert "must return an ssl.SSLContext, not str" in str(nonsense)


def test_restart_over_tls_keeps_the_subscriptions(run: Run, pki: Pki) -> None:
    async def body() -> None:
        watch = Watch()
        async with (
            run_server(tls=pki.server()) as server,
            natsproto.connect(server.url, tls=pki.ca.client(), on_event=watch) as nc,
            nc.subscribe("news") as news,
        ):
            await server.restart()
            await watch.until(Reconnected)
            await nc.publish("news", b"still here")
            assert (await news.next(timeout=5)).data == b"still here"

    run(body())


@pytest.mark.slow
def test_big_messages_over_tls_with_back_pressure(run: Run, pki: Pki) -> None:
    """32 messages of 1 MiB, four times the bound on what may wait for the socket."""
    payloads = [bytes([number]) * 1_048_576 for number in range(32)]

    async def body() -> None:
        async with run_server(tls=pki.server()) as server:
            context = pki.ca.client()
            async with (
                natsproto.connect(server.url, tls=context) as publisher,
                natsproto.connect(server.url, tls=context) as subscriber,
                subscriber.subscribe("big") as big,
            ):
                await subscriber.flush()

                async def publish() -> int:
                    most = 0
                    for payload in payloads:
                        await publisher.publish("big", payload)
                        most = max(most, publisher.stats.buffered_bytes)
                    return most

                publishing = asyncio.create_task(publish())
                received = [(await big.next(timeout=20)).data for _ in payloads]
                assert received == payloads
                assert await publishing <= publisher_bound(publisher)
                echo = await echoed(publisher, subscriber, payloads[1])
                assert echo == payloads[1]

    run(body())


def publisher_bound(nc: natsproto.Client) -> int:
    """What may wait: the outbox's limit, and one message that found it empty."""
    return Options().outbox_limit + nc.max_payload


async def echoed(asking: natsproto.Client, answering: natsproto.Client, payload: bytes) -> bytes:
    async def echo(message: natsproto.Message) -> None:
        await message.respond(message.data)

    async with answering.subscribe("echo", cb=echo):
        await answering.flush()
        return (await asking.request("echo", payload, timeout=10)).data


def test_close_is_quick(run: Run, pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        monkeypatch.setattr(engine, "CLOSE_TIMEOUT_S", 60)
        async with run_server(tls=pki.server()) as server:
            nc = await natsproto.connect(server.url, tls=pki.ca.client())
            started = asyncio.get_running_loop().time()
            await nc.close()
            assert asyncio.get_running_loop().time() - started < 10

    run(body())


# ---------------------------------------------------------------- it does not, and says why


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ("wrong CA", "not signed by a trusted CA"),
        ("wrong host", "the certificate is for another host"),
        ("expired", "not valid at this time"),
    ],
)
def test_certificate_refused_with_its_reason(run: Run, pki: Pki, trouble: str, words: str) -> None:
    certificates = {"wrong CA": pki.good, "wrong host": pki.elsewhere, "expired": pki.expired}
    context = (pki.other if trouble == "wrong CA" else pki.ca).client()

    async def body() -> None:
        for first in (False, True):
            async with run_server(tls=pki.server(certificates[trouble], first=first)) as server:
                cause = await login_cause(server.url, tls=context, tls_first=first)
            assert isinstance(cause, TlsFailed)
            assert cause.server == f"127.0.0.1:{server.port}"
            assert words in str(cause)
            assert isinstance(cause.__cause__, ssl.SSLCertVerificationError)

    run(body())


def test_certificate_of_a_lenient_context_only(run: Run, pki: Pki) -> None:
    context = pki.ca.client()
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # as it is from Python 3.13 on

    async def body() -> None:
        async with run_server(tls=pki.server(pki.lax)) as server:
            cause = await login_cause(server.url, tls=context)
            assert isinstance(cause, TlsFailed)
            assert "clear ssl.VERIFY_X509_STRICT" in str(cause)
            assert "Authority Key Identifier" in str(cause)
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
            async with natsproto.connect(server.url, tls=context) as nc:
                assert nc.is_connected

    run(body())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
@pytest.mark.parametrize("has", ["no certificate", "a certificate nobody trusts"])
def test_client_certificate_missing_or_untrusted(run: Run, pki: Pki, version: ssl.TLSVersion, has: str) -> None:
    context = pki.ca.client(None if has == "no certificate" else pki.stranger)
    context.minimum_version = context.maximum_version = version

    async def body() -> None:
        for first in (False, True):
            async with run_server(tls=pki.strict(first=first)) as server:
                cause = await login_cause(server.url, tls=context, tls_first=first)
            assert isinstance(cause, TlsFailed)
            assert "client certificate" in str(cause)

    run(body())


def test_tls_first_with_a_plain_server_is_named(run: Run, pki: Pki) -> None:
    async def body() -> None:
        async with run_server() as plain, run_server(tls=pki.server()) as behind_info:
            for server in (plain, behind_info):
                cause = await login_cause(server.url, tls=pki.ca.client(), tls_first=True)
                assert isinstance(cause, TlsFailed)
                assert "remove tls_first" in str(cause)

    run(body())


@pytest.mark.parametrize("timeout", [1.5, 5.0])
async def test_server_that_waits_for_the_handshake_is_named(pki: Pki, timeout: float) -> None:
    """Either the server loses its patience (after 2 seconds) or we do."""
    async with run_server(tls=pki.server(first=True)) as server:
        cause = await login_cause(server.url, tls=pki.ca.client(), connect_timeout=timeout)
    assert "tls_first=True" in str(cause)


def test_no_common_version_is_a_tls_failure(run: Run, pki: Pki) -> None:
    ours, theirs = pki.ca.client(), pki.ca.server("127.0.0.1")
    ours.minimum_version, theirs.maximum_version = ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2

    async def body() -> None:
        async with ScriptedServer(Behaviour(tls=theirs)) as server:
            assert isinstance(await login_cause(server.url, tls=ours), TlsFailed)
            assert server.ops == []

    run(body())


def test_default_context_takes_no_old_version() -> None:
    context = Options("tls://127.0.0.1")._tls_context()
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_end_inside_the_handshake_is_worded(run: Run, pki: Pki) -> None:
    async def body() -> None:
        async with ScriptedServer(Behaviour(greeting={"tls_required": True}, hang_up=True)) as server:
            cause = await login_cause(server.url, tls=pki.ca.client())
        assert isinstance(cause, TlsFailed)
        assert "the server closed the connection during the handshake" in str(cause)

    run(body())


@pytest.mark.slow
@pytest.mark.parametrize("first", [False, True])
def test_stalled_handshake_ends_at_the_connect_timeout(run: Run, pki: Pki, first: bool) -> None:
    async def body() -> None:
        async with run_server(tls=pki.server(first=first)) as server, FaultProxy("127.0.0.1", server.port) as proxy:
            proxy.stall(Direction.TO_SERVER)
            started = asyncio.get_running_loop().time()
            cause = await login_cause(proxy.url, tls=pki.ca.client(), tls_first=first, connect_timeout=1.5)
            assert asyncio.get_running_loop().time() - started < 10
        assert isinstance(cause, RequestTimeout)
        assert "TLS handshake" in str(cause)

    run(body())


# ---------------------------------------------------------------- it is never taken away


async def test_tls_url_sends_nothing_to_a_server_without_tls(pki: Pki) -> None:
    async with ScriptedServer() as server:
        cause = await login_cause(f"tls://127.0.0.1:{server.port}", tls=pki.ca.client())
        await server.current.ended.wait()
    assert isinstance(cause, TlsFailed)
    assert (server.ops, server.faults) == ([], [])


async def test_context_sends_nothing_to_a_server_without_tls(pki: Pki) -> None:
    async with ScriptedServer() as server:
        cause = await login_cause(server.url, tls=pki.ca.client())
        await server.current.ended.wait()
    assert isinstance(cause, TlsFailed)
    assert (server.ops, server.faults) == ([], [])


@pytest.mark.slow
@pytest.mark.parametrize("demands", ["the user", "the server"])
async def test_server_without_its_tls_gets_nothing(pki: Pki, monkeypatch: pytest.MonkeyPatch, demands: str) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(pki.ca.cert))
    good = Behaviour(tls=pki.ca.server("127.0.0.1"))
    async with ScriptedServer(good, Behaviour(), Behaviour(), good) as server:
        watch = Watch()
        options = Options(
            server.url, tls=demands == "the user", user="ann", password=SECRET, on_event=watch, reconnect_wait=0.01,
            jitter_tls=0,
        )  # fmt: skip
        async with natsproto.connect(options):
            server.current.reset()
            await watch.until(Reconnected)
        assert [type(event.cause) for event in watch.all(AttemptFailed)] == [TlsFailed] * 2
        assert {op.connection for op in server.ops} == {0, 3}


async def test_announced_server_without_tls_gets_nothing(pki: Pki) -> None:
    async with ScriptedServer() as plain, ScriptedServer(Behaviour(tls=pki.ca.server("127.0.0.1"))) as server:
        watch = Watch()
        options = Options(server.url, tls=pki.ca.client(), password=SECRET, user="ann", on_event=watch)
        async with natsproto.connect(options) as nc:
            server.info(connect_urls=[f"127.0.0.1:{plain.port}"])
            await watch.until(ServersDiscovered)
            await server.stop()
            await watch.until(AttemptFailed, 2)
            assert not nc.is_connected
            await nc.close()
        assert len(plain.connections) >= 1
        assert plain.ops == []


async def test_servers_set_later_cannot_slip_past_tls(pki: Pki) -> None:
    async with run_server(tls=pki.server()) as server, natsproto.connect(server.url, tls=pki.ca.client()) as nc:
        with pytest.raises(ConfigError, match="must be a wss:// URL"):
            nc.set_servers("ws://127.0.0.1:1")
        assert nc.servers == (f"127.0.0.1:{server.port}",)


INJECTIONS = {
    "a command": b"PING\r\n",
    "another INFO": info_line({**INFO, "connect_urls": ["evil.example:4222"]}),
    "half a line": b"MSG",
    "a message": b"MSG a 1 2\r\nhi\r\n",
    "an error": b"-ERR 'Authorization Violation'\r\n",
    "the line end of a sloppy server": b"\r\n",
    "garbage": bytes(range(256)),
}


@pytest.mark.parametrize("injected", INJECTIONS.values(), ids=INJECTIONS.keys())
def test_bytes_between_info_and_handshake_are_refused(run: Run, pki: Pki, injected: bytes) -> None:
    """Somebody in the middle adds them and lets the real server do the handshake."""
    greeting = info_line({**INFO, "tls_required": True}) + injected

    async def body() -> None:
        async with ScriptedServer(Behaviour(greeting=greeting, tls=pki.ca.server("127.0.0.1"))) as server:
            cause = await login_cause(server.url, tls=pki.ca.client())
            assert isinstance(cause, RemoteProtocolError)
            assert server.count("CONNECT") == 0

    run(body())


@pytest.mark.parametrize("injected", INJECTIONS.values(), ids=INJECTIONS.keys())
async def test_bytes_in_clear_that_come_later_are_refused(pki: Pki, injected: bytes) -> None:
    pieces = [info_line({**INFO, "tls_required": True}), injected]
    async with ScriptedServer(Behaviour(greeting=pieces, tls=pki.ca.server("127.0.0.1"))) as server:
        cause = await login_cause(server.url, tls=pki.ca.client())
        assert isinstance(cause, (RemoteProtocolError, TlsFailed))
        assert server.count("CONNECT") == 0


async def test_info_in_clear_is_not_trusted(pki: Pki) -> None:
    lies = {"connect_urls": ["evil.example:4222"], "ldm": True}
    async with ScriptedServer(Behaviour(greeting=lies, tls=pki.ca.server("127.0.0.1"))) as server:
        watch = Watch()
        async with natsproto.connect(server.url, tls=pki.ca.client(), on_event=watch) as nc:
            await nc.flush()
            assert not nc.discovered_servers
            assert watch.all(LameDuck) == []
            server.info(connect_urls=["friend.example:4222"])
            await watch.until(ServersDiscovered)
            assert nc.discovered_servers == ("friend.example:4222",)


def test_broken_tls_stream_is_a_disconnect(run: Run, pki: Pki) -> None:
    """Plain bytes in the middle of an encrypted stream."""

    async def body() -> None:
        async with run_server(tls=pki.server()) as server, FaultProxy("127.0.0.1", server.port) as proxy:
            watch = Watch()
            async with natsproto.connect(proxy.url, tls=pki.ca.client(), on_event=watch) as nc:
                proxy.inject(Direction.TO_CLIENT, b"PING\r\nthis is not TLS\r\n")
                assert isinstance((await watch.until(Disconnected)).cause, TlsFailed)
                await watch.until(Reconnected)
                await nc.flush()

    run(body())


@pytest.mark.parametrize("kind", [str, Path])
async def test_path_of_an_authority_is_taken(pki: Pki, kind: type[str] | type[Path]) -> None:
    """Read at every attempt; what cannot be read is worded."""
    async with run_server(tls=pki.server()) as server:
        path = kind(pki.ca.cert)
        async with natsproto.connect(server.url, tls=path) as nc:
            await nc.flush()
        with pytest.raises(ConnectFailed):
            await natsproto.connect(server.url, tls=kind(pki.other.cert))
        with pytest.raises(ConnectFailed, match="reading the files failed with FileNotFoundError"):
            await natsproto.connect(server.url, tls=kind("missing.pem"))
    with pytest.raises(ConfigError, match="path of a file"):
        Options(server.url, tls="")
    for option in ("ca", "cafile", "verify"):
        with pytest.raises(TypeError, match="tls="):
            Options(server.url, **{option: "ca.pem"})  # type: ignore[arg-type]
