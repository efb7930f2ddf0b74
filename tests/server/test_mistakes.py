"""Mistakes of newcomers that are more than one call, or whose advice is a note, a warning or a short traceback.

Those of one call are in tests/misuse.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import pickle
import socket
import subprocess
import sys
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import natsproto
from natsproto import Client, Message, errors, sync
from natsproto.jetstream import JetStream, JsMessage, Stream, StreamSource
from natsproto.testing import run_server

LIMITED = """
authorization { users: [
    {user: u, password: p, permissions: {
        publish: {deny: ["secret", "$JS.API.CONSUMER.NAMES.>", "$JS.API.STREAM.NAMES"]}, subscribe: {deny: ["private"]}
    }}
] }
"""


@pytest.fixture
async def orders(jetstream: JetStream) -> Stream:
    return await jetstream.create_stream("ORDERS", subjects=["orders.*.new"], storage="memory")


async def test_core_messages_lack_what_acknowledges(nats_client: Client) -> None:
    async with nats_client.subscribe("core") as subscription:
        await nats_client.publish("core", b"1")
        message = await subscription.next(5)
    for name in ("ack", "ack_nowait", "ack_sync", "in_progress", "metadata", "nak", "term"):
        assert not hasattr(message, name)
        assert not hasattr(Message, name)
        assert hasattr(JsMessage, name)
    assert copy.copy(message).data == pickle.loads(pickle.dumps(message)).data == b"1"


def test_client_of_another_run() -> None:
    with contextlib.ExitStack() as stack:

        async def first() -> Client:
            server = await servers.enter_async_context(run_server())
            return await natsproto.connect(server.url)

        async def second(nc: Client) -> None:
            for call in (nc.publish("a"), nc.request("a"), nc.flush()):
                with pytest.raises(
                    errors.ConnectionClosed, match=r"the end of asyncio.run\(\): a client works only in"
                ):
                    await call
            await nc.close()

        servers = contextlib.AsyncExitStack()
        client = asyncio.run(first())
        stack.callback(lambda: asyncio.run(servers.aclose()))
        asyncio.run(second(client))


async def test_bucket_that_differs_is_called_a_bucket(jetstream: JetStream) -> None:
    await jetstream.create_key_value("b", storage="memory")
    await jetstream.create_object_store("o", storage="memory")
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "^bucket 'b' already exists, with history=1 instead of 5": lambda: jetstream.create_key_value("b", history=5),
        "^update bucket 'b': .*storage": lambda: jetstream.create_or_update_key_value("b", storage="file"),
        "^update bucket 'b': .*storage ": lambda: jetstream.update_key_value("b", storage="file"),
        "^update object store 'o': .*storage": lambda: jetstream.create_or_update_object_store("o", storage="file"),
        "^update object store 'o': .*storage ": lambda: jetstream.update_object_store("o", storage="file"),
    }
    for said, call in calls.items():
        with pytest.raises((errors.BucketExists, errors.InvalidStreamConfig), match=said) as caught:
            await call()
        assert "KV_" not in str(caught.value)
        assert "OBJ_" not in str(caught.value)


async def test_missing_consumer_names_others(nats_client: Client) -> None:
    asked: list[str] = []
    js = nats_client.jetstream(trace=lambda call: asked.append(call.subject))
    stream = await js.create_stream("S", storage="memory")
    with pytest.raises(errors.ConsumerNotFound, match=r"err_code 10014\)$") as none:
        await stream.consumer("wroker")
    assert none.value.existing == ()
    for number in range(12):
        await stream.create_consumer(f"w{number:02d}")
    asked.clear()
    for find in (stream.consumer, stream.push_consumer, stream.consumer_info, stream.update_consumer):
        with pytest.raises(errors.ConsumerNotFound, match=r": the stream has 'w00', .*'w09' and 2 more$") as caught:
            await find("wroker")
        assert caught.value.existing == tuple(f"w{number:02d}" for number in range(10))
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert len(asked) == 8  # one more each


async def test_overlapping_subjects_name_the_stream(orders: Stream, jetstream: JetStream) -> None:
    with pytest.raises(errors.SubjectsOverlap, match=r"'orders.eu.>' with those of stream 'ORDERS'") as caught:
        await jetstream.create_stream("NEW", subjects=["new.>", "orders.eu.>"], storage="memory")
    assert (caught.value.stream, caught.value.subject) == ("ORDERS", "orders.eu.>")
    await jetstream.create_stream("NEW", subjects=["new.>"], storage="memory")
    with pytest.raises(errors.SubjectsOverlap, match=r"^update stream 'NEW': .* stream 'ORDERS'"):
        await jetstream.update_stream("NEW", subjects=["orders.>"])


async def test_nothing_is_said_of_what_may_not_be_asked() -> None:
    async with (
        run_server(jetstream=True, config=LIMITED) as server,
        natsproto.connect(server.url, user="u", password="p") as nc,
    ):
        js = nc.jetstream()
        stream = await js.create_stream("S", subjects=["a"], storage="memory")
        await stream.create_consumer("w")
        with pytest.raises(errors.ConsumerNotFound, match=r"err_code 10014\)$"):
            await stream.consumer("x")
        with pytest.raises(errors.SubjectsOverlap, match=r"an existing stream \(code"):
            await js.create_stream("T", subjects=["a"])


@pytest.mark.parametrize("filters", [["order.*.new"], ["orders.eu.new", "orders.eu.old"], ["orders.>.x"], ["orders"]])
async def test_filter_that_matches_nothing_is_a_warning(
    orders: Stream, caplog: pytest.LogCaptureFixture, filters: list[str]
) -> None:
    if filters == ["orders.>.x"]:
        with pytest.raises(errors.ConfigError):
            await orders.create_consumer("c", filter_subjects=filters)
        return
    await orders.create_consumer("c", filter_subjects=filters)
    orders.ordered_consumer(filter_subject=filters[-1])
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 2
    assert f"the filter {filters[-1]!r} of a consumer of stream 'ORDERS' matches none" in said[0]


async def test_filter_that_may_match_is_no_warning(
    orders: Stream, jetstream: JetStream, caplog: pytest.LogCaptureFixture
) -> None:
    for subject in ("orders.eu.new", "orders.>", "*.eu.*", ">", "orders.*.new"):
        orders.ordered_consumer(filter_subject=subject)
    copy_of = await jetstream.create_stream("M", mirror=StreamSource(name="ORDERS"), storage="memory")
    copy_of.ordered_consumer(filter_subject="elsewhere")
    (await jetstream.stream("ORDERS", bind=True)).ordered_consumer(filter_subject="elsewhere")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_missing_creds_file(unused_tcp_port: int, tmp_path: Path) -> None:
    """It is missing whether a server is there or not."""
    path = tmp_path / "me.creds"
    url = f"nats://127.0.0.1:{unused_tcp_port}"
    for creds in (path, str(path)):
        with pytest.raises(errors.InvalidCredentials, match=r"me.creds': cannot be read: No such file") as caught:
            await natsproto.connect(url, creds=creds)
        assert not isinstance(caught.value, errors.ConnectFailed)
    path.write_text("nothing")
    with pytest.raises(errors.InvalidCredentials, match="has no BEGIN NATS USER JWT"):
        await natsproto.connect(url, creds=path)
    with pytest.raises(errors.ConnectFailed):  # it may come later
        await natsproto.connect(url, creds=path, retry_connect_for=0.01)
    with pytest.raises(errors.InvalidCredentials, match=r"password file .*cannot be read"):
        await natsproto.connect(url, user="u", password=tmp_path / "none")


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
async def test_failed_connection_is_a_short_traceback(unused_tcp_port: int, host: str) -> None:
    refused = host == "127.0.0.1"
    said = "start a server there, or pass retry_connect_for=" if refused else "check the name of the host"
    with pytest.raises(errors.ConnectFailed, match=said) as caught:
        await natsproto.connect(f"nats://{host}:{unused_tcp_port}")
    lines = "".join(traceback.format_exception(caught.value)).splitlines()
    assert len(lines) <= 15, "\n".join(lines)
    assert isinstance(caught.value.__cause__, ConnectionRefusedError if refused else socket.gaierror)


def test_program_without_a_server_says_so_briefly(tmp_path: Path, unused_tcp_port: int) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"""
import asyncio, natsproto
async def main():
    async with natsproto.connect("nats://127.0.0.1:{unused_tcp_port}"):
        pass
asyncio.run(main())
""")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60)
    of_natsproto = [line for line in done.stderr.splitlines() if "/natsproto/" in line]
    assert len(of_natsproto) == 1, done.stderr
    assert len(done.stderr.splitlines()) <= 22, done.stderr


async def test_callable_that_fails_keeps_its_frames(nats_server: Any) -> None:
    def password() -> str:
        raise KeyError("vault")

    with pytest.raises(errors.ConnectFailed) as caught:
        await natsproto.connect(nats_server.url, user="u", password=password)
    assert "in password" in "".join(traceback.format_exception(caught.value))


async def test_permission_denied_says_where_to_allow_it() -> None:
    async with (
        run_server(config=LIMITED) as server,
        natsproto.connect(server.url, user="u", password="p") as nc,
    ):
        with pytest.raises(errors.PermissionDenied, match="'secret': allow it in the permissions of the user"):
            await nc.request("secret")
        async with nc.subscribe("private") as subscription:
            with pytest.raises(errors.PermissionDenied, match="'private': allow it in the permissions of the user"):
                await subscription.next(5)
    inbox = errors.PermissionDenied("text", "subscribe to", "_INBOX.a.*")
    assert "or pass inbox_prefix=" in str(inbox)


async def test_publish_without_a_stream_has_no_delay(nats_server: Any) -> None:
    said = {
        "delay": "only js.publish, to a stream, has it: use schedule=Schedule.after",
        "ttl": "js.publish",
        "msg_id": "js.publish",
        "timeout": "use nc.request",
        "data": "give the payload second",
    }

    async def publish(**given: int) -> None:
        async with natsproto.connect(nats_server.url) as nc:
            unchecked: Any = nc.publish
            await unchecked("a", **given)

    def publish_blocking(**given: int) -> None:
        with sync.connect(nats_server.url) as client:
            unchecked: Any = client.publish
            unchecked("a", **given)

    for name, advice in said.items():
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'") as caught:
            await publish(**{name: 5})
        assert advice in "".join(caught.value.__notes__)
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'") as caught:
            publish_blocking(**{name: 5})
        assert advice in "".join(caught.value.__notes__)


async def test_log_of_a_handler_says_what_publish_lacks(
    nats_client: Client, orders: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    async def later(message: Message) -> None:
        publish: Any = nats_client.publish
        await publish("a", delay=5)

    await nats_client.subscribe("tell", cb=later)
    async with nats_client.add_service("s", "1.0.0") as service:
        service.add_endpoint("ask", later)
        await nats_client.publish("tell")
        with contextlib.suppress(errors.ServiceError):
            await nats_client.request("ask")
        await nats_client.publish("orders.eu.new")
        consumer = await orders.create_consumer("c", max_deliver=1)
        await consumer.consume(later, stop_after=1).run()
    assert caplog.text.count("only js.publish, to a stream, has it: use schedule=Schedule.after") == 3


@pytest.mark.parametrize(
    ("option", "value", "warns"),
    [("connect_timeout", 2000, True), ("request_timeout", 5000, True), ("connect_timeout", 120, False)],
)
async def test_milliseconds_of_options_are_noted(
    caplog: pytest.LogCaptureFixture, option: str, value: int, warns: bool
) -> None:
    with caplog.at_level(logging.WARNING, "natsproto"):
        natsproto.Options(**{option: value})  # type: ignore[arg-type]
    assert [f"{option}={value}" in record.getMessage() for record in caplog.records] == [True] * warns


async def test_milliseconds_of_consumers_are_noted(jetstream: JetStream, caplog: pytest.LogCaptureFixture) -> None:
    stream = await jetstream.create_stream("S", subjects=["s"], storage="memory")
    with caplog.at_level(logging.WARNING, "natsproto"):
        await stream.create_consumer("good", ack_wait=3600)
        assert caplog.records == []
        await stream.create_consumer("odd", ack_wait=30000)
    [record] = caplog.records
    assert "ack_wait=30000" in record.getMessage()
    assert "seconds" in record.getMessage()
