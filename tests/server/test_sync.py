"""The blocking client: what it promises to scripts, threads, forks and pickles."""

from __future__ import annotations

import asyncio
import gc
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import natsproto
from natsproto import sync
from natsproto._core.engine.engine import State
from natsproto._core.events import AttemptFailed, Disconnected, Event
from natsproto.errors import (
    AlreadyAcked,
    ConfigError,
    ConnectFailed,
    ConnectionClosed,
    InvalidHeader,
    InvalidSubject,
    LocalProtocolError,
    NoResponders,
    PayloadTooLarge,
    PermissionDenied,
    RequestTimeout,
    ServiceError,
    StreamNotFound,
    SubscriptionClosed,
)
from natsproto.service import Request
from natsproto.testing import Server, run_server
from tests.server.helpers import loops


@pytest.mark.parametrize("installed", [True, False])
def test_loop_is_uvloops_where_it_is_installed(
    nats_server: Server, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    if not installed:
        monkeypatch.setitem(sys.modules, "uvloop", None)

    async def loop_module() -> str:
        return type(asyncio.get_running_loop()).__module__

    with sync.connect(nats_server.url) as client:
        assert client._reach()[0].call(loop_module).startswith("uvloop") == installed
        client.publish("a", b"1")


# ---------------------------------------------------------------- the verbs


def test_publish_subscribe_and_request(nats_server: Server, nc: sync.Client) -> None:
    assert (nc.state, nc.is_connected, nc.connected_url) == (State.OPEN, True, nats_server.url)
    assert nc.max_payload == nc.server_info.max_payload
    assert 0 < nc.rtt() < 5
    with nc.subscribe("a.*") as sub:
        nc.publish("a.b", b"1", reply="r", headers={"Tag": ["x", "y"]})
        message = sub.next(timeout=5)
        assert (message.subject, message.data, message.reply) == ("a.b", b"1", "r")
        assert message.headers.get_all("Tag") == ["x", "y"]
        assert message.size > 5
        with pytest.raises(RequestTimeout):
            sub.next(timeout=0.01)
        with pytest.raises(RequestTimeout):
            sub.next(timeout=0)
    assert sub.closed
    with pytest.raises(SubscriptionClosed):
        sub.next(timeout=5)
    assert list(sub) == []
    with pytest.raises(NoResponders):
        nc.request("nobody", timeout=5)
    assert nc.stats.out_msgs >= 2


def test_text_json_and_default(nats_server: Server, nc: sync.Client) -> None:
    with nc.subscribe("a") as sub:
        nc.publish("a", b'{"a": 1}')
        message = sub.next(timeout=10)
    assert (message.text, message.json()) == ('{"a": 1}', {"a": 1})
    with run_server(jetstream=True) as stored, sync.connect(stored.url) as other:
        kv = other.jetstream().create_key_value("B")
        assert kv.get("a", default=None) is None
        kv.put("a", b"1")
        entry = kv.get("a", default=None)
        assert entry is not None
        assert entry.value == kv.get("a").value == b"1"


def test_messages_are_iterated_and_answered(nc: sync.Client) -> None:
    requests = nc.subscribe("double", max_messages=100)

    def serve() -> None:
        for request in requests:
            request.respond(request.data * 2, headers={"A": "b"})

    server = threading.Thread(target=serve)
    server.start()
    nc.flush()
    for number in range(100):
        reply = nc.request("double", b"%d" % number, timeout=5)
        assert reply.data == b"%d" % number * 2
    server.join(5)
    assert not server.is_alive()


def test_what_was_published_first_goes_first(nc: sync.Client) -> None:
    sub = nc.subscribe("a")
    for number in range(10_000):
        nc.publish("a", b"%d" % number)
    nc.flush()
    assert sub.pending_msgs == 10_000
    assert [sub.next(timeout=5).data for _ in range(10_000)] == [b"%d" % number for number in range(10_000)]
    nc.publish("a", b"before")
    with pytest.raises(NoResponders):
        nc.request("nobody", timeout=5)
    assert sub.next(timeout=0).data == b"before", "the request went behind it"
    sub.unsubscribe(max_messages=10_001 + 1)
    nc.publish("a", b"last")
    assert [message.data for message in sub] == [b"last"]


def test_bad_arguments_raise_at_the_call(nc: sync.Client) -> None:
    for error, arguments in (
        (InvalidSubject, {"subject": "a b"}),
        (InvalidSubject, {"subject": "a", "reply": "a.*"}),
        (InvalidHeader, {"subject": "a", "headers": {"a b": "c"}}),
        (InvalidHeader, {"subject": "a", "headers": {"a": "c\r\n"}}),
        (PayloadTooLarge, {"subject": "a", "payload": bytes(nc.max_payload + 1)}),
        (TypeError, {"subject": "a", "payload": "text"}),
        (TypeError, {"subject": 5}),
    ):
        with pytest.raises(error):
            nc.publish(**arguments)
    with pytest.raises(InvalidSubject):
        nc.subscribe("a..b")
    with pytest.raises(ConfigError):
        nc.request("a", timeout=-1)
    with pytest.raises(ConfigError):
        nc.request_many("a", timeout=0)
    assert nc.stats.out_msgs == 0
    payload = bytearray(b"changing")
    with nc.subscribe("a") as sub:
        nc.publish("a", payload)
        payload[:] = b"XXXXXXXX"
        assert sub.next(timeout=5).data == b"changing"


def test_many_replies_and_services_are_iterated(nats_server: Server, nc: sync.Client) -> None:
    sub = nc.subscribe("who", max_messages=1)

    def serve() -> None:
        for request in sub:
            for name in (b"ana", b"ben", b""):
                request.respond(name)

    threading.Thread(target=serve).start()
    assert [reply.data for reply in nc.request_many("who", timeout=5, sentinel="empty")] == [b"ana", b"ben"]

    async def run_service(go_on: asyncio.Event, started: threading.Event) -> None:
        async with natsproto.connect(nats_server.url) as server, server.add_service("calc", "1.0.0") as service:

            @service.endpoint("refuse")
            async def refuse(request: Request) -> None:
                raise ServiceError(400, "no")

            await server.flush()
            started.set()
            await go_on.wait()

    with asyncio.Runner() as runner:
        go_on, started, loop = asyncio.Event(), threading.Event(), runner.get_loop()
        thread = threading.Thread(target=runner.run, args=(run_service(go_on, started),))
        thread.start()
        assert started.wait(10)
        (info,) = nc.discover_services(timeout=30)
        assert next(iter(nc.ping_services("calc", timeout=30))).id == info.id
        with pytest.raises(ServiceError, match="no"):
            nc.call("refuse", timeout=5)
        (stats,) = nc.service_stats("calc", timeout=30)
        assert stats.endpoints[0].num_errors == 1
        loop.call_soon_threadsafe(go_on.set)
        thread.join(10)


def test_jetstream_from_a_stream_to_an_acknowledgement(nc: sync.Client) -> None:
    js = nc.jetstream(timeout=5)
    with pytest.raises(StreamNotFound):
        js.stream("S")
    stream = js.create_stream(name="S", subjects=["s.>"], storage="memory")
    assert (stream.name, list(js.stream_names()), js.stream_name_by_subject("s.a")) == ("S", ["S"], "S")
    acks = [js.publish(f"s.{number}", b"%d" % number, msg_id=f"m{number}") for number in range(10)]
    assert [ack.seq for ack in acks] == list(range(1, 11))
    assert js.publish("s.0", msg_id="m0").duplicate
    assert stream.info().state.messages == 10
    assert stream.get_message(3).data == b"2"
    assert [stored.data for stored in stream.get_batch(batch=3)] == [b"0", b"1", b"2"]

    consumer = stream.create_consumer(durable_name="d")
    first = consumer.next(timeout=5)
    assert (first.data, first.metadata.stream_seq, first.is_acked) == (b"0", 1, False)
    first.in_progress()
    first.ack_sync()
    with pytest.raises(AlreadyAcked):
        first.nak()
    batch = consumer.fetch(3, timeout=5)
    assert [message.data for message in batch] == [b"1", b"2", b"3"]
    for message in batch:
        message.ack()
    rest = [message.data for message in consumer.messages(stop_after=6)]
    assert rest == [b"4", b"5", b"6", b"7", b"8", b"9"]
    assert consumer.fetch(5, no_wait=True) == []
    assert stream.consumer("d").name == "d"
    assert list(stream.consumer_names()) == ["d"]
    js.delete_stream("S")


# ---------------------------------------------------------------- threads


def test_any_thread_may_use_it_at_the_same_time(nc: sync.Client) -> None:
    serving = nc.subscribe("echo", queue="q")

    def serve() -> None:
        for request in serving:
            request.respond(request.data)

    servers = [threading.Thread(target=serve) for _ in range(3)]
    for server in servers:
        server.start()
    nc.flush()
    with ThreadPoolExecutor(16) as pool:
        asked = list(pool.map(lambda number: nc.request("echo", b"%d" % number, timeout=10).data, range(500)))
    assert asked == [b"%d" % number for number in range(500)]
    serving.unsubscribe()
    for server in servers:
        server.join(5)
        assert not server.is_alive()


def test_a_running_event_loop_is_no_hindrance(nats_server: Server) -> None:
    async def notebook() -> bytes:
        with sync.connect(nats_server.url) as nc, nc.subscribe("a") as sub:
            nc.publish("a", b"1")
            return sub.next(timeout=5).data

    assert asyncio.run(notebook()) == b"1"
    assert loops() == []


def test_call_on_own_loop_raises(nats_server: Server) -> None:
    raised: list[Exception] = []
    made: list[sync.Client] = []
    disconnected = threading.Event()

    def on_event(event: Event) -> None:
        if isinstance(event, Disconnected):
            client = made[0]
            for call in (lambda: client.request("a"), lambda: client.publish("a"), client.flush):
                try:
                    call()
                except LocalProtocolError as exc:
                    raised.append(exc)
            disconnected.set()

    with sync.connect(nats_server.url, on_event=on_event, reconnect_wait=0.01) as client:
        made.append(client)
        client.reconnect()
        assert disconnected.wait(10)
    assert len(raised) == 3
    assert "wait for itself" in str(raised[0])
    assert loops() == []


@pytest.mark.skipif(sys.platform == "win32", reason="there are no signals")
def test_an_interrupt_cancels_what_is_waited_for(nc: sync.Client) -> None:
    sub = nc.subscribe("a")
    timer = threading.Timer(0.1, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012  # however soon it comes
            timer.start()
            sub.next()
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    nc.publish("a", b"1")
    assert sub.next(timeout=5).data == b"1", "the cancelled call took no message"


# ---------------------------------------------------------------- the end


def test_after_the_end_every_verb_says_so(nats_server: Server) -> None:
    nc = sync.connect(nats_server.url)
    sub = nc.subscribe("a")
    js = nc.jetstream()
    nc.close()
    nc.close()
    nc.drain()
    assert (nc.state, nc.is_connected) == (State.CLOSED, False)
    for call in (nc.flush, lambda: nc.publish("a"), lambda: sub.next(0), lambda: js.publish("a"), nc.reconnect):
        with pytest.raises(ConnectionClosed):
            call()
    assert repr(nc) == "<blocking Client, closed>"
    assert loops() == []


def test_closing_ends_calls_in_other_threads(nats_server: Server) -> None:
    nc = sync.connect(nats_server.url)
    sub = nc.subscribe("silent")
    requests = nc.subscribe("asked")
    ended: list[BaseException] = []

    def waits(call: object) -> None:
        try:
            call()  # type: ignore[operator]
        except (ConnectionClosed, SubscriptionClosed) as exc:
            ended.append(exc)

    threads = [threading.Thread(target=waits, args=(c,)) for c in (sub.next, lambda: nc.request("asked", timeout=60))]
    for thread in threads:
        thread.start()
    requests.next(timeout=5)
    nc.close()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    assert len(ended) == 2


def test_with_block_drains_or_closes_on_error(nats_server: Server) -> None:
    def raises() -> None:
        with sync.connect(nats_server.url):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        raises()
    with sync.connect(nats_server.url) as listening, listening.subscribe("a") as sub:
        listening.flush()
        with sync.connect(nats_server.url) as nc:
            for number in range(1000):
                nc.publish("a", b"%d" % number)
        assert [sub.next(timeout=5).data for _ in range(1000)][-1] == b"999"
    assert loops() == []


def test_garbage_collector_closes_forgotten_client(nats_server: Server) -> None:
    sync.connect(nats_server.url).publish("a")
    gc.collect()
    assert loops() == []


def test_failed_connect_leaves_no_thread() -> None:
    with pytest.raises(ConnectFailed):
        sync.connect("nats://127.0.0.1:1", connect_timeout=1)
    with pytest.raises(ConfigError):
        sync.connect("nonsense://x")
    assert loops() == []


def test_a_refused_subscription_says_why() -> None:
    config = 'authorization { users = [ { user: "a", password: "b", permissions: { subscribe: { deny: "no" } } } ] }'
    with run_server(config=config) as server, sync.connect(server.url, user="a", password="b") as nc:
        sub = nc.subscribe("no")
        with pytest.raises(PermissionDenied):
            sub.next(timeout=5)
        with pytest.raises(PermissionDenied):
            list(sub)


# ---------------------------------------------------------------- other processes


def run_program(program: str, *arguments: str) -> str:
    """What a program prints; it must end well and silently."""
    # Python warns of every fork in a program with threads; these tests are about nothing else.
    options = ("-W", "error", "-W", "ignore:This process:DeprecationWarning")
    done = subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_forked_process_connects_again(nats_server: Server) -> None:
    program = """
        import os, sys
        from natsproto import sync
        from natsproto.errors import LocalProtocolError

        nc = sync.connect(sys.argv[1])
        sub = nc.subscribe("a")
        js = nc.jetstream()
        nc.flush()
        mine = nc.server_info.client_id
        for _ in range(3):
            child = os.fork()
            if child == 0:
                for call in (lambda: sub.next(0), lambda: js.account_info()):
                    try:
                        call()
                        os._exit(1)
                    except LocalProtocolError as exc:
                        assert "in this process" in str(exc)
                assert nc.server_info.client_id != mine
                with nc.subscribe("b") as own:
                    nc.publish("b", b"b")
                    assert own.next(timeout=5).data == b"b"
                nc.publish("a", b"from a child")
                nc.close()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            assert sub.next(timeout=5).data == b"from a child"
        assert nc.server_info.client_id == mine
        assert nc.stats.reconnects == 0
        nc.close()
        child = os.fork()
        if child == 0:
            assert str(nc.state) == "closed"
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print("well")
    """
    assert run_program(program, nats_server.url) == "well\n"


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_forked_worker_pool_uses_module_client(nats_server: Server) -> None:
    program = """
        import multiprocessing, sys
        from natsproto import sync

        nc = sync.connect(sys.argv[1])

        def work(number):
            nc.publish("done", b"%d" % number)
            nc.flush()
            return nc.server_info.client_id

        if __name__ == "__main__":
            sub = nc.subscribe("done")
            nc.flush()
            with multiprocessing.get_context("fork").Pool(3) as pool:
                ids = set(pool.map(work, range(30)))
            assert nc.server_info.client_id not in ids
            assert sorted(int(sub.next(timeout=5).data) for _ in range(30)) == list(range(30))
            nc.close()
            print("well")
    """
    assert run_program(program, nats_server.url) == "well\n"


def test_published_messages_leave_at_program_exit(nats_server: Server, nc: sync.Client) -> None:
    program = """
        import sys
        from natsproto import sync

        nc = sync.connect(sys.argv[1])
        for number in range(1000):
            nc.publish("a", b"%d" % number)
    """
    with nc.subscribe("a") as sub:
        nc.flush()
        run_program(program, nats_server.url)
        assert [int(sub.next(timeout=5).data) for _ in range(1000)] == list(range(1000))


def test_pickled_client_connects_when_unpickled(nats_server: Server, nc: sync.Client) -> None:
    copy = pickle.loads(pickle.dumps(nc))
    assert isinstance(copy, sync.Client)
    assert repr(copy) == "<blocking Client, not connected yet>"
    with copy, nc.subscribe("a") as sub:
        nc.flush()
        copy.publish("a", b"1")
        assert sub.next(timeout=5).data == b"1"
        assert copy.server_info.client_id != nc.server_info.client_id


def test_sync_retry_connect_for(nats_server: Server) -> None:
    """A script that is up before its server waits for it."""
    nats_server.kill()
    failed = threading.Event()

    def hear(event: Event) -> None:
        if isinstance(event, AttemptFailed):
            failed.set()

    def restart() -> None:
        assert failed.wait(30)
        asyncio.run(nats_server.restart())

    starting = threading.Thread(target=restart)
    starting.start()
    try:
        with sync.connect(nats_server.url, retry_connect_for=60, on_event=hear) as nc:
            nc.flush(timeout=10)
    finally:
        failed.set()
        starting.join()
    nats_server.kill()
    with pytest.raises(ConnectFailed):
        sync.connect(nats_server.url)


def test_missing_names_and_callbacks_raise_hints(nc: sync.Client) -> None:
    client: Any = nc
    with pytest.raises(TypeError, match="calls no callbacks: iterate the subscription"):
        client.subscribe("a", cb=print)
    js: Any = nc.jetstream()
    stream = js.create_stream(name="S", subjects=["s"], storage="memory")
    for owner, name, hint in (
        (client, "jsm", "use nc.jetstream()"),
        (client, "connect", "use nc = sync.connect(...)"),
        (client.subscribe("a"), "messages", "use for message in subscription"),
        (js, "add_stream", "use js.create_stream(...)"),
        (js, "pull_subscribe", "make a consumer with stream.create_consumer(...), then use its messages or fetch"),
        (js, "stream_info", "use stream.info(), of stream = js.stream(name)"),
        (js.create_key_value(bucket="b"), "watchall", "use kv.watch()"),
        (stream.ordered_consumer(), "consume", "only pull consumers have it here: iterate messages()"),
    ):
        with pytest.raises(AttributeError) as caught:
            getattr(owner, name)
        assert f"has no attribute {name!r}: {hint}" in str(caught.value)
