"""natsproto.testing against the real nats-server, watched through bare sockets and process ids."""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from natsproto.errors import ConfigError
from natsproto.testing import (
    Cluster,
    Server,
    ServerFailed,
    ServerNotFound,
    ServerTls,
    find_binary,
    run_cluster,
    run_server,
)
from natsproto.testing._config import ServerSettings
from natsproto.testing._steps import drive, wait_until

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="sharing a bound port is a Linux facility")


class Peer:
    """One bare connection to a server: lines in, lines out."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    @asynccontextmanager
    async def to(cls, url: str, context: ssl.SSLContext | None = None) -> AsyncIterator[Peer]:
        host, _, port = url.rpartition("/")[2].partition(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
        try:
            yield cls(reader, writer)
        finally:
            writer.close()
            try:
                await writer.wait_closed()
            except OSError:  # the server hung up first, or TLS was cut short
                pass

    async def line(self) -> bytes:
        async with asyncio.timeout(10):
            return await self._reader.readline()

    async def rest(self) -> bytes:
        async with asyncio.timeout(10):
            return await self._reader.read()

    async def info(self) -> dict[str, Any]:
        """The next INFO; other lines before it are passed over."""
        while not (line := await self.line()).startswith(b"INFO "):
            assert line, "the server hung up"
        found: dict[str, Any] = json.loads(line[5:])
        return found

    def send(self, text: str) -> None:
        self._writer.write(text.encode() + b"\r\n")

    async def start_tls(self, context: ssl.SSLContext) -> None:
        await self._writer.start_tls(context)

    async def hello(self, **fields: str) -> bytes:
        """What the server says to these credentials: PONG or -ERR."""
        self.send(f"CONNECT {json.dumps({'verbose': False, 'pedantic': False, 'protocol': 1, **fields})}\r\nPING")
        return await self.line()

    async def request(self, subject: str, payload: str = "") -> dict[str, Any]:
        """A JSON answer; the connection said hello before."""
        self.send(f"SUB answer 1\r\nUNSUB 1 1\r\nPUB {subject} answer {len(payload)}\r\n{payload}")
        while not (line := await self.line()).startswith(b"MSG answer"):
            assert line, "the server hung up"
        found: dict[str, Any] = json.loads(await self.line())
        return found


async def info_of(server: Server) -> dict[str, Any]:
    async with Peer.to(server.url) as peer:
        return await peer.info()


async def hello(server: Server, **fields: str) -> bytes:
    async with Peer.to(server.url) as peer:
        await peer.info()
        return await peer.hello(**fields)


async def ask(server: Server, subject: str, payload: str = "") -> dict[str, Any]:
    async with Peer.to(server.url) as peer:
        await peer.info()
        assert await peer.hello() == b"PONG\r\n"
        return await peer.request(subject, payload)


def port_refuses(server: Server) -> bool:
    with closing(socket.socket()) as sock:
        return sock.connect_ex((server.host, server.port)) != 0


def gone(pid: int) -> bool:
    """Whether the process ends within ten seconds; woken by its end."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 10)[0])
    finally:
        os.close(handle)


async def eventually(check: Callable[[], bool]) -> bool:
    """Whether it comes true within ten seconds: for what happens in other processes."""
    await drive(wait_until(check, 10))
    return check()


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def python(code: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", f"import natsproto.testing as t, os, sys\n{code}"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)


# ---------------------------------------------------------------- starting


async def test_server_accepts_clients_on_entry() -> None:
    async with run_server() as server:
        info = await info_of(server)
    assert info["port"] == server.port
    assert server.url == f"nats://127.0.0.1:{server.port}"
    assert not info.get("jetstream")


def test_plain_with_needs_no_event_loop() -> None:
    with run_server() as server:
        assert not port_refuses(server)
        pid = server.pid
    assert port_refuses(server)
    assert gone(pid)


async def test_jetstream_is_ready_on_entry() -> None:
    async with run_server(jetstream=True) as server:
        answer = await ask(server, "$JS.API.INFO")
    assert answer["streams"] == 0


async def test_config_jetstream_block_keeps_store_dir() -> None:
    text = 'max_payload: 2000\njetstream { domain: "hub" }'
    async with run_server(config=text, name="orders-1") as server:
        info = await info_of(server)
        assert str(server.config_path.parent / "store") in server.log()
    assert (info["max_payload"], info["domain"], info["server_name"]) == (2000, "hub", "orders-1")


async def test_further_arguments_reach_the_command() -> None:
    async with run_server(args=["--debug"]) as server:
        await info_of(server)
        assert "[DBG]" in server.log()


async def test_user_and_password_are_asked_for() -> None:
    async with run_server(user="ann", password='pa"ss\\ 1') as server:
        assert await hello(server, user="ann", **{"pass": 'pa"ss\\ 1'}) == b"PONG\r\n"
        assert await hello(server, user="ann", **{"pass": "no"}) == b"-ERR 'Authorization Violation'\r\n"


async def test_token_is_asked_for() -> None:
    async with run_server(token="s3cret") as server:
        assert await hello(server, auth_token="s3cret") == b"PONG\r\n"
        assert await hello(server) == b"-ERR 'Authorization Violation'\r\n"


async def test_fixed_port_is_taken() -> None:
    async with run_server() as first:
        port = first.port
    async with run_server(port=port) as second:
        assert (second.port, (await info_of(second))["port"]) == (port, port)


async def test_monitoring_tells_about_this_server() -> None:
    async with run_server(name="watched") as server, Peer.to(server.monitoring_url) as peer:
        peer.send("GET /varz HTTP/1.0\r\n")
        while await peer.line() != b"\r\n":
            pass
        answer = await peer.rest()
    assert json.loads(answer)["server_name"] == "watched"


@pytest.mark.parametrize(
    "arguments",
    [
        {"user": "ann"},
        {"password": "x"},
        {"user": "ann", "password": "x", "token": "y"},
        {"tls": ServerTls(cert="c.pem", key="k.pem", verify=True)},
    ],
)
def test_conflicting_settings_raise_before_start(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        run_server(**arguments)


# ---------------------------------------------------------------- TLS and WebSocket


class Certificates:
    """A throw-away authority with one certificate, good for 127.0.0.1 and for a client."""

    def __init__(self, directory: Path) -> None:
        self.cert, self.key = directory / "cert.pem", directory / "key.pem"
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "natsproto test")])
        now = datetime.now(UTC)
        cert = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        self.cert.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        self.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )

    def client(self, *, certified: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.cert))
        if certified:
            context.load_cert_chain(self.cert, self.key)
        return context


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


async def test_tls_is_required_of_clients(certificates: Certificates) -> None:
    async with run_server(tls=ServerTls(cert=certificates.cert, key=certificates.key)) as server:
        assert server.url == f"tls://127.0.0.1:{server.port}"
        async with Peer.to(server.url) as peer:
            assert (await peer.info())["tls_required"] is True
            await peer.start_tls(certificates.client())
            assert await peer.hello() == b"PONG\r\n"


async def test_handshake_first_says_nothing_before_tls(certificates: Certificates) -> None:
    tls = ServerTls(cert=certificates.cert, key=certificates.key, handshake_first=True)
    async with run_server(tls=tls) as server, Peer.to(server.url, certificates.client()) as peer:
        await peer.info()
        assert await peer.hello() == b"PONG\r\n"


async def turned_away(peer: Peer, context: ssl.SSLContext) -> bool:
    """Whether the server ends the handshake, which TLS 1.3 may report as late as on the first read."""
    try:
        await peer.start_tls(context)
        return await peer.hello() == b""
    except OSError:
        return True


async def test_verify_takes_clients_with_a_certificate_only(certificates: Certificates) -> None:
    tls = ServerTls(cert=certificates.cert, key=certificates.key, ca=certificates.cert, verify=True)
    async with run_server(tls=tls) as server:
        async with Peer.to(server.url) as peer:
            assert (await peer.info())["tls_verify"] is True
            await peer.start_tls(certificates.client(certified=True))
            assert await peer.hello() == b"PONG\r\n"
        async with Peer.to(server.url) as stranger:
            await stranger.info()
            assert await turned_away(stranger, certificates.client())


@pytest.mark.parametrize("secure", [False, True])
async def test_websocket_port_upgrades(certificates: Certificates, secure: bool) -> None:
    tls = ServerTls(cert=certificates.cert, key=certificates.key) if secure else None
    async with run_server(websocket=True, tls=tls) as server:
        assert server.websocket_url.startswith("wss://127.0.0.1:" if secure else "ws://127.0.0.1:")
        async with Peer.to(server.websocket_url, certificates.client() if secure else None) as peer:
            peer.send(
                "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
            )
            assert (await peer.line()).startswith(b"HTTP/1.1 101 ")


async def test_websocket_url_without_websocket_raises() -> None:
    async with run_server() as server:
        with pytest.raises(ConfigError, match="websocket=True"):
            _ = server.websocket_url


# ---------------------------------------------------------------- stopping, faults, configuration


async def test_killed_server_restarts_with_port_and_streams() -> None:
    async with run_server(jetstream=True) as server:
        before, port = server.pid, server.port
        await ask(server, "$JS.API.STREAM.CREATE.S", json.dumps({"name": "S", "subjects": ["s"]}))
        server.kill()
        assert (server.running, port_refuses(server), gone(before)) == (False, True, True)
        await server.restart()
        assert (server.running, server.pid == before) == (True, False)
        assert server.port == port
        assert (await ask(server, "$JS.API.STREAM.INFO.S"))["config"]["subjects"] == ["s"]
        assert server.log().count("Server is ready") == 2


async def test_stop_shuts_down_and_allows_restart() -> None:
    async with run_server() as server:
        await server.stop()
        assert port_refuses(server)
        assert "Server Exiting" in server.log()
        await server.stop()
        await server.restart()
        assert not port_refuses(server)


async def test_restart_of_a_running_server_stops_it_first() -> None:
    async with run_server() as server:
        before = server.pid
        await server.restart()
        assert gone(before)
        assert not port_refuses(server)


@linux_only
async def test_port_of_stopped_server_stays_reserved() -> None:
    async with run_server() as server:
        server.kill()
        with closing(socket.socket()) as sock, pytest.raises(OSError, match="in use"):
            sock.bind((server.host, server.port))


async def test_frozen_server_answers_nothing_until_thawed() -> None:
    async with run_server() as server, Peer.to(server.url) as peer:
        await peer.info()
        assert await peer.hello() == b"PONG\r\n"
        await peer.info()  # the one that follows every handshake
        server.freeze()
        peer.send("PING")
        answer = asyncio.ensure_future(peer.line())
        done, _ = await asyncio.wait([answer], timeout=0.1)
        assert not done
        assert server.running
        server.thaw()
        assert await answer == b"PONG\r\n"


async def test_frozen_server_can_be_stopped() -> None:
    async with run_server() as server:
        server.freeze()
        await server.stop()
        assert "Server Exiting" in server.log()
        await server.restart()
        server.freeze()
        pid = server.pid
    assert gone(pid)


async def test_reconfigure_keeps_clients_across_restart() -> None:
    async with run_server(config="max_payload: 2000") as server:
        async with Peer.to(server.url) as peer:
            await peer.info()
            assert await peer.hello() == b"PONG\r\n"
            await peer.info()
            await server.reconfigure("max_payload: 3000")
            peer.send("PING")
            assert await peer.line() == b"PONG\r\n"
        assert (await info_of(server))["max_payload"] == 3000
        await server.restart()
        assert (await info_of(server))["max_payload"] == 3000


async def test_reconfigure_of_stopped_server() -> None:
    async with run_server() as server:
        server.kill()
        await server.reconfigure("max_payload: 3000")
        await server.restart()
        assert (await info_of(server))["max_payload"] == 3000


async def test_refused_configuration_raises() -> None:
    async with run_server(config="max_payload: 2000") as server:
        with pytest.raises(ServerFailed, match="unknown field"):
            await server.reconfigure("no_such_field: 1")
        assert (await info_of(server))["max_payload"] == 2000


async def test_reload_of_a_dead_server_says_so() -> None:
    async with run_server() as server:
        server.kill()
        with pytest.raises(ServerFailed, match="not running"):
            await server.reload()


async def test_lame_duck_is_announced_to_clients() -> None:
    async with run_server() as server, Peer.to(server.url) as peer:
        await peer.info()
        await peer.hello()
        await server.lame_duck()
        while not (await peer.info()).get("ldm"):
            pass
        assert port_refuses(server)


async def test_given_store_dir_outlives_the_block(tmp_path: Path) -> None:
    async with run_server(jetstream=True, store_dir=tmp_path) as server:
        await ask(server, "$JS.API.STREAM.CREATE.S", json.dumps({"name": "S", "subjects": ["s"]}))
    async with run_server(jetstream=True, store_dir=tmp_path) as server:
        assert (await ask(server, "$JS.API.STREAM.INFO.S"))["config"]["name"] == "S"


# ---------------------------------------------------------------- nothing is left behind


async def test_block_leaves_no_process_and_no_file() -> None:
    async with run_server(jetstream=True) as server:
        pid, directory = server.pid, server.config_path.parent
        assert directory.is_dir()
    assert gone(pid)
    assert not directory.exists()


async def test_error_in_the_block_stops_the_server() -> None:
    with pytest.raises(ZeroDivisionError):
        async with run_server() as server:
            raise ZeroDivisionError
    assert gone(server.pid)


async def test_cancelling_the_block_stops_the_server() -> None:
    entered: asyncio.Future[Server] = asyncio.get_running_loop().create_future()

    async def run() -> None:
        async with run_server() as server:
            entered.set_result(server)
            await asyncio.Event().wait()

    task = asyncio.create_task(run())
    server = await entered
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gone(server.pid)


async def test_cancelling_the_start_stops_what_was_started(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    slow = script(tmp_path / "slow", f'echo $$ > "{pid_file}.new" && mv "{pid_file}.new" "{pid_file}"; exec sleep 60')

    async def run() -> None:
        async with run_server(binary=slow):
            pytest.fail("was never ready")

    task = asyncio.create_task(run())
    assert await eventually(pid_file.exists)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gone(int(pid_file.read_text()))


async def test_cancelling_a_stop_kills_the_server(tmp_path: Path) -> None:
    deaf = script(
        tmp_path / "deaf",
        'trap "" TERM; while [ $# -gt 0 ]; do [ "$1" = --ports_file_dir ] && dir=$2; shift; done\n'
        'echo \'{"nats": []}\' > "$dir/deaf_$$.ports"; while :; do sleep 60 & wait $!; done',
    )
    async with run_server(binary=deaf) as server:
        pid = server.pid
        task = asyncio.create_task(server.stop())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert gone(pid)


def test_interpreter_exit_stops_server() -> None:
    with python("s = t.run_server().__enter__(); print(s.pid, s.config_path.parent)") as process:
        pid, directory = process.communicate()[0].split()
    assert process.returncode == 0
    assert gone(int(pid))
    assert not Path(directory).exists()


async def test_killed_program_leaves_no_server_or_files() -> None:
    code = "with t.run_server() as s: print(s.pid, s.config_path.parent, flush=True); sys.stdin.read()"
    with python(code) as process:
        assert process.stdout is not None
        pid, directory = process.stdout.readline().split()
        process.kill()
    assert gone(int(pid))
    assert await eventually(lambda: not Path(directory).exists())


def test_forked_child_leaves_parents_server_running(tmp_path: Path) -> None:
    code = (
        f"with t.run_server(store_dir={str(tmp_path)!r}) as s:\n"
        "  child = os.fork()\n"
        "  if not child: sys.exit()\n"
        "  os.waitpid(child, 0)\n"
        "  print(s.running, s.config_path.exists())"
    )
    with python(code) as process:
        assert process.communicate()[0].split() == ["True", "True"]


def test_server_outlives_thread_that_started_it() -> None:
    scope = run_server()
    servers: list[Server] = []
    thread = threading.Thread(target=lambda: servers.append(scope.__enter__()))
    thread.start()
    thread.join()
    try:
        assert not port_refuses(servers[0])
        assert servers[0].running
    finally:
        scope.__exit__(None, None, None)


# ---------------------------------------------------------------- failing


def test_failed_start_shows_the_log_and_leaves_nothing() -> None:
    with (
        pytest.raises(ServerFailed, match='unknown field "no_such_field"') as failure,
        run_server(config="no_such_field: 1"),
    ):
        pytest.fail("was never ready")
    assert "exited with code 1" in failure.value.reason


def test_start_timeout_raises_with_log(tmp_path: Path) -> None:
    slow = script(tmp_path / "slow", "echo thinking $$; exec sleep 60")
    with (
        pytest.raises(ServerFailed, match=r"not ready within 1 s") as failure,
        run_server(binary=slow, start_timeout=1),
    ):
        pytest.fail("was never ready")
    said, pid = failure.value.log.split()
    assert said == "thinking"
    assert gone(int(pid))


def test_port_of_somebody_else_is_named() -> None:
    with run_server() as server, pytest.raises(ServerFailed, match=str(server.port)), run_server(port=server.port):
        pytest.fail("started twice on one port")


async def test_failed_restart_can_be_repeated() -> None:
    async with run_server() as server:
        server.kill()
        await server.reconfigure("no_such_field: 1")
        with pytest.raises(ServerFailed, match="no_such_field"):
            await server.restart()
        assert "no_such_field" in server.log()
        await server.reconfigure("")
        await server.restart()
        assert not port_refuses(server)


def test_missing_named_binary_raises(tmp_path: Path) -> None:
    with pytest.raises(ServerNotFound, match=r"pip install 'natsproto\[server\]'"):
        find_binary(tmp_path / "nothing")
    with pytest.raises(ServerNotFound), run_server(binary=tmp_path / "nothing"):
        pytest.fail("started nothing")


def test_environment_names_the_binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = script(tmp_path / "mine", "exit 0")
    monkeypatch.setenv("NATSPROTO_SERVER_BINARY", str(mine))
    assert find_binary() == mine
    monkeypatch.setenv("NATSPROTO_SERVER_BINARY", str(tmp_path / "nothing"))
    with pytest.raises(ServerNotFound, match="NATSPROTO_SERVER_BINARY"):
        find_binary()


def test_binary_from_package_or_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NATSPROTO_SERVER_BINARY", raising=False)
    binary = find_binary()
    assert binary.is_absolute()
    assert subprocess.run([binary, "--version"], check=True, capture_output=True).stdout.startswith(b"nats-server: v")


def test_importing_the_package_does_not_import_pytest() -> None:
    with python("print('pytest' in sys.modules)") as process:
        assert process.communicate()[0].split() == ["False"]


# ---------------------------------------------------------------- clusters


def stores(cluster: Cluster, root: Path) -> bool:
    return all((root / server.name / "jetstream").is_dir() for server in cluster.servers)


async def test_cluster_is_complete_when_the_block_is_entered(tmp_path: Path) -> None:
    async with run_cluster(3, store_dir=tmp_path, name="c") as cluster:
        assert [server.name for server in cluster.servers] == ["c-1", "c-2", "c-3"]
        assert cluster.urls == [server.url for server in cluster.servers]
        info = await info_of(cluster.servers[0])
        assert info["cluster"] == "c"
        assert len(info["connect_urls"]) == 3
        created = await ask(
            cluster.servers[0],
            "$JS.API.STREAM.CREATE.S",
            json.dumps({"name": "S", "subjects": ["s"], "num_replicas": 3}),
        )
        assert len(created["cluster"]["replicas"]) == 2
        assert stores(cluster, tmp_path)
        pids = [server.pid for server in cluster.servers]
    assert all(gone(pid) for pid in pids)


@pytest.mark.slow
async def test_killed_node_rejoins_its_cluster() -> None:
    async with run_cluster(3) as cluster:
        leader = await cluster.meta_leader()
        node = next(server for server in cluster.servers if server is not leader)
        node.kill()
        assert await cluster.meta_leader() is leader
        await cluster.ready()  # of those that run
        await node.restart()
        await cluster.ready()
        assert len((await info_of(node))["connect_urls"]) == 3


async def test_meta_leader_returns_the_leader_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster("c", 2, ServerSettings())
    try:
        looks = [None, cluster.servers[0], None]
        monkeypatch.setattr(cluster, "_leader", lambda: looks.pop(0))
        assert await cluster.meta_leader() is cluster.servers[0]
    finally:
        await drive(cluster._close_steps())


def test_cluster_without_jetstream_in_plain_with() -> None:
    with run_cluster(2, jetstream=False) as cluster:
        assert not any(port_refuses(server) for server in cluster.servers)
    assert all(port_refuses(server) for server in cluster.servers)


@pytest.mark.slow
def test_failing_node_takes_cluster_down() -> None:
    with pytest.raises(ServerFailed, match="no_such_field"), run_cluster(3, config="no_such_field: 1"):
        pytest.fail("was never ready")


def test_cluster_of_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least two"):
        run_cluster(1)


@pytest.mark.slow
def test_cluster_start_timeout_raises_with_logs() -> None:
    lonely = "cluster { name: other, listen: '127.0.0.1:-1' }"
    with (
        pytest.raises(ServerFailed, match=r"routes of the cluster: not ready within 2 s(?s:.*)natsproto-2:"),
        run_cluster(2, config=lonely, jetstream=False, start_timeout=2),
    ):
        pytest.fail("was never ready")
