"""The command ``natsproto`` on a real server: streams, consumers, buckets, messages and services."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import pty
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import natsproto
from natsproto._cli import main
from natsproto._cli._output import _ADVICE, seconds, size
from natsproto.errors import RequestTimeout, ServiceError
from natsproto.jetstream import ConsumerConfig, StreamConfig
from natsproto.retry import DEAD_LETTER_ADVISORIES
from natsproto.sync import Client, Request
from natsproto.testing import Server, run_server

EVIL = "\x1b]0;gotcha\x07\x1b[2J\x9b31m\u202eevil"
"""Sets the title of a terminal, clears it, turns red and writes from right to left."""

ROOT = Path(__file__).parent.parent.parent
NO_RICH = "import sys; sys.modules['rich'] = None; from natsproto._cli import main; sys.exit(main())"


@pytest.fixture
def server() -> Iterator[Server]:
    with run_server(jetstream=True, name="demo") as server:
        yield server


@pytest.fixture
def nc(server: Server) -> Iterator[Client]:
    with natsproto.sync.connect(server.url) as nc:
        yield nc


class Run:
    """Runs commands in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, *arguments: str, code: int = 0) -> str:
        self._capsys.readouterr()
        try:
            found = main(arguments)
        except SystemExit as exc:  # of argparse
            found = int(str(exc.code))
        self.out, self.err = self._capsys.readouterr()
        assert found == code, (found, self.out, self.err)
        return self.out

    def rows(self, *arguments: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in self(*arguments, "--json").splitlines()]


@pytest.fixture
def run(server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in [name for name in os.environ if name.startswith("NATS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NATS_URL", server.url)
    return Run(capsys)


def words(text: str) -> list[list[str]]:
    """The cells of a printed table."""
    return [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]


# ---------------------------------------------------------------- streams and consumers


def test_stream_commands(run: Run, nc: Client, server: Server) -> None:
    assert run("stream", "ls") == "there are no streams\n"
    js = nc.jetstream()
    stream = js.create_stream("ORDERS", subjects=["orders.>"], max_age=3600, description="what was ordered")
    js.publish("orders.new", b'{"id": 7}', headers={"Trace": "42"})
    js.publish("orders.old", b"\xff\x00")
    js.create_stream("EMPTY")
    [heading, empty, orders] = words(run("stream", "ls"))
    assert heading == ["STREAM", "SUBJECTS", "MESSAGES", "BYTES", "CONSUMERS", "LAST MESSAGE"]
    assert empty == ["EMPTY", "EMPTY", "0", "0 B", "0", "-"]
    assert orders[:3] == ["ORDERS", "orders.>", "2"]
    assert [row["messages"] for row in run.rows("stream", "ls")] == [0, 2]

    shown = dict(line.split("  ", 1) for line in run("stream", "info", "ORDERS").splitlines())
    assert shown["description"].strip() == "what was ordered"
    assert "age: 1 h" in shown["limits"]
    assert "2 of 2 subjects" in shown["messages"]
    described = json.loads(run("stream", "info", "ORDERS", "--json"))
    assert (described["config"]["max_age"], described["state"]["messages"]) == (3600, 2)

    assert run("stream", "get", "ORDERS", "1").endswith('ago\nTrace: 42\n\n{"id": 7}\n')
    assert run("stream", "get", "ORDERS", "--last", "orders.old").endswith("\n\\xff\\x00\n".replace("\\x00", "\\x00"))
    message = json.loads(run("stream", "get", "ORDERS", "2", "--json"))
    assert (message["subject"], base64.b64decode(message["data_base64"])) == ("orders.old", b"\xff\x00")
    assert run("stream", "get", "ORDERS", "9", code=1) == ""
    assert "no message" in run.err
    run("stream", "info", "NOPE", code=1)
    assert "stream not found" in run.err
    assert stream.info().state.messages == 2

    for words_of_both in (("stream", "ls", "-s", server.url), ("-s", server.url, "stream", "ls")):
        assert "ORDERS" in run(*words_of_both)
    run("stream", "ls", "-s", "nats://127.0.0.1:1", code=1)
    assert "could not connect" in run.err


def test_consumer_ls_shows_lag_and_age(run: Run, nc: Client) -> None:
    js = nc.jetstream()
    stream = js.create_stream("ORDERS", subjects=["orders.>"])
    assert run("consumer", "ls", "ORDERS") == "there are no consumers of stream ORDERS\n"
    worker = stream.create_consumer("worker")
    stream.create_consumer("mails", filter_subjects=["orders.mail", "orders.post"])
    stream.create_push_consumer(ConsumerConfig(durable_name="pushed", deliver_subject="there"))
    for number in range(7):
        js.publish("orders.new", b"%d" % number)
    for message in worker.fetch(7, timeout=5):
        if message.metadata.stream_seq <= 3:
            message.ack()
        else:
            message.nak()
    assert len(worker.fetch(4, timeout=5)) == 4
    for number in range(30):
        js.publish("orders.new", b"%d" % number)
    puller = threading.Thread(target=lambda: stream.consumer("mails").fetch(1, timeout=5))
    puller.start()
    while stream.consumer_info("mails").num_waiting == 0:
        pass
    rows = {row["consumer"]: row for row in run.rows("consumer", "ls", "ORDERS")}
    shown = [rows["worker"][name] for name in ("kind", "lag", "unacked", "redelivered", "waiting")]
    assert shown == ["pull", 30, 4, 4, 0]
    assert isinstance(rows["worker"]["oldest"], float)
    assert [rows["mails"][name] for name in ("lag", "oldest", "waiting")] == [0, None, 1]
    assert [rows["pushed"][name] for name in ("kind", "waiting")] == ["push", None]
    js.publish("orders.mail", b"")
    puller.join()
    heading, *table = words(run("consumer", "ls"))
    assert heading == ["STREAM", "CONSUMER", "KIND", "LAG", "OLDEST", "UNACKED", "REDELIVERED", "WAITING"]
    assert [line[:4] for line in table if line[1] == "worker"] == [["ORDERS", "worker", "pull", "31"]]
    run("consumer", "ls", "NOPE", code=1)


def test_top_shows_lag_and_rates(run: Run, nc: Client) -> None:
    js = nc.jetstream()
    js.create_stream("A", subjects=["a"]).create_consumer("slow")
    js.create_stream("B", subjects=["b"]).create_consumer("idle")
    stop = threading.Event()

    def publish() -> None:
        while not stop.is_set():
            js.publish("a", b"")

    publishing = threading.Thread(target=publish)
    publishing.start()
    rounds = run.rows("top", "--interval", "0.05", "--count", "3")
    stop.set()
    publishing.join()
    assert len(rounds) == 3
    last = json.loads(run.out.splitlines()[-1])["consumers"]
    assert [row["consumer"] for row in last] == ["slow", "idle"]
    assert last[0]["lag_per_s"] > 0
    assert last[1]["lag_per_s"] == last[0]["acked_per_s"] == 0
    assert "2 consumers, lag" in run("top", "--count", "1")
    assert "1 consumers, lag 0" in run("top", "B", "--count", "1")


@pytest.mark.slow
async def test_top_reads_200_consumers_in_time(nats_server: Server) -> None:
    """A table of 200 consumers takes less than the 2 s until the next one."""
    async with natsproto.connect(nats_server.url) as nc:
        js = nc.jetstream()
        streams = [await js.create_stream(f"MANY{number}", subjects=[f"many.{number}"]) for number in range(20)]
        for number in range(10):
            await asyncio.gather(*(stream.create_consumer(f"worker-{number}") for stream in streams))
    command = [sys.executable, "-m", "natsproto", "top", "--count", "3", "--interval", "0.01", "-s", nats_server.url]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
    took = [int(figure) for figure in re.findall(r"read in (\d+) ms", done.stdout)]
    assert "200 consumers" in done.stdout
    assert len(took) == 3
    assert min(took) < 2000, took


# ---------------------------------------------------------------- buckets


def test_kv_commands(run: Run, nc: Client) -> None:
    assert run("kv", "ls") == "there are no buckets\n"
    kv = nc.jetstream().create_key_value("cfg", history=5)
    assert run("kv", "ls", "cfg") == "bucket cfg has no keys\n"
    assert run("kv", "put", "cfg", "a", "green") == "revision 1\n"
    assert re.fullmatch(r"will put 5 bytes under key a of bucket cfg on 127\.0\.0\.1:\d+\n", run.err)
    assert run("kv", "put", "cfg", "a", "red", "--dry-run") == ""
    assert run.err.startswith("would put 3 bytes")
    assert run("kv", "get", "cfg", "a") == "green\n"
    run("kv", "put", "cfg", "a", "red", "--create", code=1)
    run("kv", "put", "cfg", "a", "red", "--revision", "9", code=1)
    assert run("kv", "put", "cfg", "a", "red", "--revision", "1") == "revision 2\n"
    assert run("kv", "get", "cfg", "a", "--revision", "1") == "green\n"
    assert json.loads(run("kv", "get", "cfg", "a", "--json"))["data"] == "red"
    kv.put("b.c", b"two\nlines")
    assert run("kv", "get", "cfg", "b.c") == "two\nlines\n"
    assert run("kv", "ls", "cfg") == "KEY\na\nb.c\n"
    assert [(row["bucket"], row["values"]) for row in run.rows("kv", "ls")] == [("cfg", 3)]
    kv.delete("a")
    assert run("kv", "get", "cfg", "a", code=1) == ""
    assert run("kv", "get", "cfg", "nope", code=1) == ""
    run("kv", "get", "nope", "a", code=1)
    shown = run("kv", "watch", "cfg", "--count", "2")
    assert sorted(shown.splitlines()) == ["a is deleted (revision 4)", "b.c = two\\nlines"]
    assert "a" not in run("kv", "watch", "cfg", "b.*", "--count", "1")[:1]


def test_raw_values_go_to_files_only(server: Server, nc: Client, tmp_path: Path) -> None:
    kv = nc.jetstream().create_key_value("cfg")
    kv.put("a", EVIL.encode())
    command = [sys.executable, "-m", "natsproto", "kv", "get", "cfg", "a", "--raw", "-s", server.url]
    assert subprocess.run(command, capture_output=True, timeout=60, check=True).stdout == EVIL.encode()
    code, shown = on_terminal(command)
    assert code == 2
    assert "write it to a file" in shown
    assert "gotcha" not in shown


def test_value_of_a_terminal_is_not_awaited(server: Server, nc: Client) -> None:
    nc.jetstream().create_key_value("cfg")
    code, shown = on_terminal([sys.executable, "-m", "natsproto", "kv", "put", "cfg", "a", "-s", server.url])
    assert code == 2
    assert "is missing: give one, or - to type it" in shown
    code, shown = on_terminal([sys.executable, "-m", "natsproto", "pub", "a", "-s", server.url])
    assert code == 0
    assert "published 0 bytes" in shown


def test_object_commands(run: Run, nc: Client, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("object", "ls") == "there are no object stores\n"
    nc.jetstream().create_object_store("files")
    assert run("object", "ls", "files") == "bucket files has no objects\n"
    (tmp_path / "in.bin").write_bytes(content := os.urandom(300_000))
    assert run("object", "put", "files", "in.bin", "--dry-run") == ""
    assert run.err.startswith("would store the 293 KiB of in.bin as object in.bin of bucket files")
    assert run("object", "ls", "files") == "bucket files has no objects\n"
    run("object", "put", "files", "in.bin", "a/out.bin")
    assert words(run("object", "ls", "files"))[1][:2] == ["a/out.bin", "293 KiB"]
    assert run("object", "get", "files", "a/out.bin") == "out.bin has the 293 KiB of object a/out.bin\n"
    assert (tmp_path / "out.bin").read_bytes() == content
    (tmp_path / "out.bin").write_bytes(b"mine")
    run("object", "get", "files", "a/out.bin", code=1)
    assert "--overwrite" in run.err
    assert (tmp_path / "out.bin").read_bytes() == b"mine"
    run("object", "get", "files", "a/out.bin", "--overwrite")
    assert (tmp_path / "out.bin").read_bytes() == content
    run("object", "get", "files", "nope", code=1)
    assert not (tmp_path / "nope").exists()
    run("object", "put", "files", "nope", code=1)
    command = [sys.executable, "-m", "natsproto", "object", "get", "files", "a/out.bin", "-", "-s", server.url]
    assert subprocess.run(command, capture_output=True, timeout=60, check=True).stdout == content
    assert not (tmp_path / "-").exists()
    assert on_terminal(command)[0] == 2
    assert [row["bucket"] for row in run.rows("object", "ls")] == ["files"]


# ---------------------------------------------------------------- messages and services


def test_requests_and_services(run: Run, nc: Client) -> None:
    assert run("services") == "no service answers\n"
    run("services", "nope", "--timeout", "0.05", code=1)
    run("req", "add", "1", code=1)
    assert "responder" in run.err

    def add(request: Request) -> None:
        request.respond(b"sum: " + request.data)

    with nc.add_service("adder", "1.0.0") as service:
        service.add_endpoint("add", add)
        assert run("req", "add", "1") == "sum: 1\n"
        assert json.loads(run("req", "add", "1", "--json"))["data"] == "sum: 1"
        assert run("req", "add", "1", "--replies", "2", "--timeout", "0.05") == "sum: 1\n"
        assert run.err == "1 replies within 0.05 s\n"
        [row] = run.rows("services", "adder")
        assert [row[name] for name in ("service", "endpoint", "subject", "requests", "errors")] == [
            *("adder", "add", "add"), 3, 0,
        ]  # fmt: skip
        assert words(run("services"))[1][:2] == ["adder", "1.0.0"]


def test_error_of_a_service_is_a_failure(run: Run, nc: Client) -> None:
    def fail(_: Request) -> None:
        raise ServiceError(400, "two numbers")

    with nc.add_service("adder", "1.0.0") as service:
        service.add_endpoint("add", fail)
        assert run("req", "add", "1", code=1) == ""
        assert run.err == "natsproto req: error of the service: two numbers (code 400)\n"
        assert json.loads(run("req", "add", "1", "--json", code=1))["headers"]["Nats-Service-Error-Code"] == ["400"]
        run("req", "add", "1", "--replies", "2", "--timeout", "0.05", code=1)


def test_errors_advise_flags(run: Run, unused_tcp_port: int) -> None:
    run("stream", "info", "nope", code=1)
    assert run.err.endswith(": create it, or give its --js-domain\n")
    run("stream", "info", "nope", "--js-domain", "elsewhere", code=1)
    assert "JetStream" in run.err
    run("stream", "ls", "-s", f"nats://127.0.0.1:{unused_tcp_port}", code=1)
    assert run.err.endswith(": start a server there, or name another with --server or NATS_URL\n")


def test_advice_for_flags_is_that_of_errors() -> None:
    """Each text that the command replaces is one that the package has."""
    text = "".join(path.read_text() for path in (ROOT / "natsproto").rglob("*.py") if path.parent.name != "_cli")
    joined = re.sub(r'"\n\s*f?"', "", text)
    for advice in _ADVICE:
        assert advice in joined.replace("{other}", "") or advice.startswith("give the URL of another"), advice


def test_pub_says_what_it_will_do(run: Run, nc: Client) -> None:
    nc.jetstream().create_stream("ORDERS", subjects=["orders.>"])
    assert run("pub", "orders.new", "123", "--stream", "--dry-run") == ""
    assert re.fullmatch(r"would publish 3 bytes on orders\.new to 127\.0\.0\.1:\d+\n", run.err)
    assert json.loads(run("pub", "orders.new", "123", "--stream", "--json")) == {
        "stream": "ORDERS", "seq": 1, "duplicate": False,
    }  # fmt: skip
    run("dead-letters", "replay", "ORDERS", "--dry-run")
    assert "would publish the dead letters of stream ORDERS on their own subjects and delete them" in run.err
    assert json.loads(run("dead-letters", "replay", "ORDERS", "--json")) == {"replayed": 0, "left": 0}


async def reported(url: str) -> None:
    """Have two messages of a stream W reported to a stream DEAD. The first one is no longer there."""
    async with natsproto.connect(url) as nc:
        js = nc.jetstream()
        stream = await js.create_stream("W", subjects=["w"])
        dead = await js.create_stream("DEAD", subjects=[*DEAD_LETTER_ADVISORIES])
        consumer = await stream.create_consumer("c")
        for _ in range(2):
            await js.publish("w", b"1")
            await (await consumer.next()).term("broken")
        await stream.delete_message(1)
        while (await dead.info()).state.messages < 2:
            await nc.flush()


def test_unreadable_dead_letters_are_listed(run: Run, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(reported(server.url))
    gone, there = run.rows("dead-letters", "ls", "DEAD")
    assert (gone["seq"], gone["stream"], gone["stream_seq"], gone["subject"]) == (1, "W", 1, "")
    assert gone["left_out"] == "subject, headers and payload"
    assert (there["seq"], there["stream"], there["stream_seq"], there["subject"]) == (2, "W", 2, "w")
    assert (there["data"], there["left_out"]) == ("1", "")

    calls = list[object]()

    async def fail(js: object, message: object) -> None:
        calls.append(message)
        raise RequestTimeout("get a message of stream 'W'", 5.0)

    monkeypatch.setattr("natsproto.retry.DeadLetter.load", fail)
    lines = run("dead-letters", "ls", "DEAD", code=1).splitlines()
    assert [line.split(" after")[0].strip() for line in lines] == [
        "1 message 1 of W",
        "2 message 2 of W",
        "2 dead letters",
    ]
    assert "messages of stream 'W' cannot be read, try again: " in run.err
    assert len(calls) == 1, "each would take the time of a request"


# ---------------------------------------------------------------- texts of others, terminals


def test_texts_of_others_do_not_reach_the_terminal(
    run: Run, nc: Client, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    js = nc.jetstream()
    subject = "x.\u202egotcha"
    stream = js.create_stream(StreamConfig(name="EVIL", subjects=["x.>"], description=EVIL, metadata={EVIL: EVIL}))
    stream.create_consumer("worker", description=EVIL, filter_subject=subject)
    js.publish(subject, EVIL.encode(), headers={"Trace": EVIL.replace("\u202e", "")})
    with socket.create_connection((server.host, server.port)) as raw:  # natsproto sends no such subject
        raw.sendall(b"CONNECT {}\r\nPUB x.%s 1\r\na\r\nPING\r\n" % EVIL.encode())
        while b"PONG" not in raw.recv(65536):
            pass
    kv = js.create_key_value("cfg", description=EVIL)
    kv.put("a", EVIL.encode())
    store = js.create_object_store("files")
    store.put(EVIL, b"1", description=EVIL)
    monkeypatch.chdir(tmp_path)

    def fail(request: Request) -> None:
        raise ValueError(EVIL)

    with nc.add_service("evil", "1.0.0", description=EVIL) as service:
        service.add_endpoint("fail", fail)
        commands = [
            ["stream", "ls"], ["stream", "info", "EVIL"], ["stream", "get", "EVIL", "1"],
            ["stream", "get", "EVIL", "2"], ["consumer", "ls"], ["top", "--count", "1"], ["kv", "ls"],
            ["kv", "ls", "cfg"], ["kv", "get", "cfg", "a"], ["kv", "watch", "cfg", "--count", "1"],
            ["object", "ls"], ["object", "ls", "files"], ["object", "get", "files", EVIL],
            ["object", "put", "files", EVIL], ["kv", "put", "cfg", "a", EVIL], ["req", "fail", ""],
            ["services"], ["pub", subject, EVIL], ["dead-letters", "ls", "EVIL"], ["stream", "info", EVIL],
            ["kv", "get", "cfg", EVIL], ["pub", "a", "b", "-s", f"nats://{EVIL}"], [EVIL], ["stream", EVIL],
        ]  # fmt: skip
        seen = 0
        for command in commands:
            for more in ([], ["--json"]):
                run._capsys.readouterr()
                try:
                    main([*command, *more])
                except SystemExit:
                    pass
                shown = "".join(run._capsys.readouterr())
                assert all(one.isprintable() or one == "\n" for one in shown), (command, shown)
                seen += "gotcha" in shown
    assert seen > 20


def on_terminal(command: list[str], end: Callable[[str], bool] = lambda shown: False) -> tuple[int, str]:
    """Run a command on a terminal of 120 columns, and return its code and what it showed."""
    leader, follower = pty.openpty()
    env = {**os.environ, "COLUMNS": "120", "LINES": "12", "TERM": "xterm"}
    with subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=env) as process:
        os.close(follower)
        shown = b""
        while True:
            try:
                piece = os.read(leader, 65536)
            except OSError:  # the terminal is closed
                break
            shown += piece
            if not piece:
                break
            if end(shown.decode(errors="replace")):
                process.terminate()
        os.close(leader)
        return process.wait(30), shown.decode()


@pytest.mark.parametrize("command", [["-m", "natsproto"], ["-c", NO_RICH]], ids=["rich", "plain"])
def test_terminal_with_and_without_rich(server: Server, nc: Client, tmp_path: Path, command: list[str]) -> None:
    js = nc.jetstream()
    stream = js.create_stream("ORDERS", subjects=["orders.[red]x[/red]"])
    for number in range(20):
        stream.create_consumer(f"worker-{number}")
    js.create_object_store("files")
    (tmp_path / "file").write_bytes(bytes(1_000_000))
    program = [sys.executable, *command]
    code, shown = on_terminal([*program, "stream", "ls", "-s", server.url])
    assert code == 0
    assert "orders.[red]x[/red]" in shown
    code, shown = on_terminal([*program, "object", "put", "files", str(tmp_path / "file"), "-s", server.url])
    assert code == 0
    assert re.search(r"1\.0/1\.0 MB|977 KiB of 977 KiB", shown), shown
    code, shown = on_terminal([*program, "top", "-s", server.url], lambda shown: " more" in shown)
    assert code == 0
    assert "20 consumers, lag 0" in shown
    assert re.search(r"and \d+ more", shown)


# ---------------------------------------------------------------- help and codes


def commands() -> Iterator[list[str]]:
    """The words of each command."""
    from natsproto._cli import _parser

    def walk(parser: object, before: list[str]) -> Iterator[list[str]]:
        for action in parser._actions:  # type: ignore[attr-defined]
            for name, child in (getattr(action, "choices", None) or {}).items():
                if hasattr(child, "_actions"):
                    below = list(walk(child, [*before, name]))
                    yield from below or [[*before, name]]

    yield from walk(_parser(), [])


def test_help_of_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    found = [" ".join(words) for words in commands()]
    assert {"stream ls", "consumer ls", "kv watch", "object put", "top", "req", "services", "doctor"} <= {*found}
    for name in found:
        with pytest.raises(SystemExit) as exit_of:
            main([*name.split(), "--help"])
        assert exit_of.value.code == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "https://github.com/nats-io/natscli" in shown, name
        assert name == "server" or "--server URL" in shown, name
        assert name == "server" or "--json" in shown, name


def test_wrong_arguments_show_no_password(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (
        ["nats://u:pass-word@h"],
        ["stream", "nats://u:pass-word@h"],
        ["kv", "get", "a", "b", "//u:pass-word@h"],
    ):
        with pytest.raises(SystemExit) as exit_of:
            main(wrong)
        assert exit_of.value.code == 2
        assert "pass-word" not in capsys.readouterr().err


def test_units() -> None:
    sizes = {0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 150 * 1024: "150 KiB", 3 * 2**40: "3.0 TiB"}
    assert {value: size(value) for value in sizes} == sizes
    ages = {None: "-", 0.01: "10 ms", 59: "59 s", 3600: "1 h", 90061: "1 d 1 h", 3601: "1 h"}
    assert {value: seconds(value) for value in ages} == ages
