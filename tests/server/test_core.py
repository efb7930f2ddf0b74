"""The verbs of core NATS against a real server, on asyncio and on uvloop."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections import Counter
from datetime import timedelta

import pytest

import natsproto
from natsproto import sync
from natsproto._core.engine.engine import State
from natsproto._core.events import Closed, Connected, Event
from natsproto._core.socket.transport import SocketWire
from natsproto._options.options import Options
from natsproto.errors import (
    ConnectionClosed,
    LocalProtocolError,
    NoResponders,
    PayloadTooLarge,
    RequestTimeout,
    SubscriptionClosed,
)
from natsproto.protocol.frames import Message
from natsproto.protocol.headers import HeadersLike
from natsproto.testing import Server, run_server
from tests.kit.waiting import until
from tests.server.helpers import both_loops, client

# ---------------------------------------------------------------- connecting


@both_loops
async def test_connect_can_be_awaited_and_entered(nats_server: Server) -> None:
    awaited = await natsproto.connect(nats_server.url, name="awaited")
    assert str(awaited.state) == "open"
    await awaited.close()
    assert str(awaited.state) == "closed"
    async with natsproto.connect(nats_server.url) as entered:
        assert entered.is_connected
    assert entered.state is State.CLOSED


@both_loops
async def test_keepalive_probes_with_a_long_ping_interval(nats_server: Server) -> None:
    for ping_interval, probed in ((120.0, False), (86_400.0, True)):
        async with client(nats_server.url, ping_interval=ping_interval) as nc:
            session = nc._engine.session
            assert session is not None
            assert isinstance(session.wire, SocketWire)
            assert session.wire._transport is not None
            connected = session.wire._transport.get_extra_info("socket")
            assert bool(connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)) is probed


@both_loops
async def test_connect_takes_a_list_a_comma_list_and_options(nats_server: Server) -> None:
    url = nats_server.url
    for servers in ([url], f"{url},{url}", (url, "nats://127.0.0.1:1"), url.removeprefix("nats://")):
        async with client(servers, randomize=False) as nc:  # type: ignore[arg-type]
            assert nc.connected_url == url
    async with natsproto.connect(Options(url, name="one"), name="two") as nc:
        assert nc.is_connected


@both_loops
async def test_an_error_in_the_block_closes_without_draining(nats_server: Server) -> None:
    clients: list[natsproto.Client] = []

    async def block() -> None:
        async with natsproto.connect(nats_server.url) as nc:
            clients.append(nc)
            await nc.subscribe("a", cb=lambda _: asyncio.get_running_loop().create_future())
            await nc.publish("a")
            await nc.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await block()
    assert clients[0].state is State.CLOSED


@both_loops
async def test_what_the_server_said_of_itself_is_there(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        info = nc.server_info
        assert info.version.startswith("2.")
        assert (info.port, info.headers, info.jetstream) == (nats_server.port, True, True)
        assert nc.max_payload == info.max_payload == 1 << 20
        assert nc.client_id > 0
        assert nc.connected_url == nats_server.url
        assert nc.servers == (f"127.0.0.1:{nats_server.port}",)
        assert nc.discovered_servers == ()
        assert repr(nc) == f"<Client open to {nats_server.url}>"


async def test_what_the_server_says_of_our_account_is_there() -> None:
    """It does so behind the first PONG."""
    accounts = "accounts { A { users: [{ user: ann, password: s3cret }] } }\nsystem_account: A"
    async with run_server(config=accounts) as server, client(server.url, user="ann", password="s3cret") as nc:
        await nc.flush()
        info = nc.server_info
        assert (info.remote_account, info.acc_is_sys, info.connect_info) == ("A", True, True)
        assert info.api_lvl > 0
        assert info.client_ip == "127.0.0.1"


async def test_a_server_is_reached_by_its_ipv6_address() -> None:
    async with run_server(args=("--addr", "::1")) as server, client(f"nats://[::1]:{server.port}") as nc:
        assert nc.server_info.client_ip == "::1"
        assert nc.connected_url == f"nats://[::1]:{server.port}"


# ---------------------------------------------------------------- publish and subscribe


@both_loops
async def test_messages_in_order_in_every_way_of_reading(nats_server: Server) -> None:
    count = 3000
    async with client(nats_server.url) as nc:
        handled: list[bytes] = []
        handled_later: list[bytes] = []

        async def later(message: Message) -> None:
            await asyncio.sleep(0)
            handled_later.append(message.data)

        iterated = await nc.subscribe("a.*", max_messages=count)
        batched = await nc.subscribe("a.>", max_messages=count)
        stepped = await nc.subscribe("a.b", max_messages=count)
        await nc.subscribe("a.b", cb=lambda message: handled.append(message.data), max_messages=count)
        await nc.subscribe("a.b", cb=later, max_messages=count)
        sent = [b"%d" % number for number in range(count)]
        for number, payload in enumerate(sent):
            if number % 2:
                await nc.publish("a.b", payload)
            else:
                nc.publish_nowait("a.b", payload)
        assert [message.data async for message in iterated] == sent
        assert [message.data async for batch in batched.batches() for message in batch] == sent
        assert [(await stepped.next(timeout=5)).data for _ in range(count)] == sent
        with pytest.raises(SubscriptionClosed):
            await stepped.next()
        await until(lambda: len(handled) == len(handled_later) == count)
        assert handled == handled_later == sent


@both_loops
async def test_payloads_of_every_size_arrive_as_they_were(nats_server: Server, seed: int) -> None:
    rng = random.Random(seed)
    async with client(nats_server.url) as nc, nc.subscribe("a") as sub:
        sizes = [0, 1, 2, 100, 8191, 8192, 65_535, 65_536, 65_537, 200_000, nc.max_payload]
        payloads = [rng.randbytes(size) for size in sizes + rng.choices(sizes, k=30)]
        for payload in payloads:
            await nc.publish("a", payload)
        assert all([(await sub.next(timeout=30)).data == payload for payload in payloads])
        changing = bytearray(b"changing")
        await nc.publish("a", changing)  # taken, if not promised
        await nc.publish("a", memoryview(changing)[2:])
        changing[:] = b"XXXXXXXX"
        assert [(await sub.next(timeout=5)).data for _ in range(2)] == [b"changing", b"anging"]


@both_loops
async def test_a_message_says_everything_about_itself(nats_server: Server) -> None:
    headers = [("Trace", "abc"), ("Tag", "a"), ("tag", "lower"), ("Tag", "b"), ("Empty", ""), ("Odd", "ü: ,")]
    async with client(nats_server.url) as nc, nc.subscribe("a.>") as sub:
        await nc.publish("a.b", b"42", reply="r.1", headers=headers)
        message = await sub.next(timeout=5)
        assert (message.subject, message.reply, message.data) == ("a.b", "r.1", b"42")
        assert message.headers["Trace"] == "abc"
        assert message.headers.get_all("Tag") == ["a", "b"]
        assert message.headers["tag"] == "lower"
        assert message.headers["Empty"] == ""
        assert message.headers["Odd"] == "ü: ,"
        assert list(message.headers) == ["Trace", "Tag", "tag", "Empty", "Odd"]
        await nc.publish("a.c", headers={"Tag": ["x", "y"]})
        message = await sub.next(timeout=5)
        assert (message.data, message.reply) == (b"", None)
        assert dict(message.headers.pairs()) == {"Tag": "y"}
        assert message.headers.get_all("Tag") == ["x", "y"]
        await nc.publish("a.d", b"plain")
        assert len((await sub.next(timeout=5)).headers) == 0


@both_loops
async def test_a_queue_group_shares_and_the_others_get_all(nats_server: Server) -> None:
    async with client(nats_server.url) as nc, client(nats_server.url) as other:
        got: Counter[str] = Counter()
        for connection, name in ((nc, "one"), (other, "two"), (other, "three")):
            await connection.subscribe("a", queue="q", cb=lambda _, name=name: got.update([name]))  # type: ignore[misc]
        await other.subscribe("a", queue="another", cb=lambda _: got.update(["another"]))
        await other.subscribe("a", cb=lambda _: got.update(["alone"]))
        await asyncio.gather(nc.flush(), other.flush())
        for _ in range(300):
            await nc.publish("a")
        await until(lambda: got.total() == 900)
        assert got["another"] == got["alone"] == 300
        assert got["one"] + got["two"] + got["three"] == 300
        assert min(got["one"], got["two"], got["three"]) > 0


@both_loops
async def test_unsubscribe_at_once_or_after_a_limit(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        now, ten, in_all, at_once = [await nc.subscribe("a") for _ in range(4)]
        callback: list[Message] = []
        await nc.subscribe("a", cb=callback.append, max_messages=7)
        for _ in range(4):
            await nc.publish("a")
        await nc.flush()
        await now.unsubscribe()
        await ten.unsubscribe(max_messages=10)
        await in_all.unsubscribe(max_messages=20)
        await in_all.unsubscribe(max_messages=6)
        await at_once.unsubscribe(max_messages=4)
        assert (at_once.closed, ten.closed) == (True, False)
        for _ in range(50):
            await nc.publish("a")
        await nc.flush()
        assert [len([m async for m in sub]) for sub in (now, ten, in_all, at_once)] == [0, 10, 6, 4]
        assert [sub.delivered for sub in (now, ten, in_all, at_once)] == [0, 10, 6, 4]
        await until(lambda: len(callback) == 7)
        await nc.flush()
        assert len(callback) == 7


@both_loops
async def test_ten_thousand_subscriptions_come_and_go(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        subs = [await nc.subscribe(f"a.{number}") for number in range(10_000)]
        await nc.publish("a.0", b"first")
        await nc.publish("a.9999", b"last")
        assert (await subs[0].next(timeout=5)).data == b"first"
        assert (await subs[9999].next(timeout=5)).data == b"last"
        for sub in subs:
            await sub.unsubscribe()
        await nc.flush()
        with pytest.raises(NoResponders):
            await nc.request("a.5", timeout=5)


@both_loops
async def test_no_echo(nats_server: Server) -> None:
    async with client(nats_server.url, no_echo=True) as nc, client(nats_server.url) as other:
        sub = await nc.subscribe("a")
        await nc.publish("a", b"mine")
        await nc.flush()
        await other.publish("a", b"other's")
        assert (await sub.next(timeout=5)).data == b"other's"


@both_loops
async def test_verbose_and_pedantic_connection(nats_server: Server) -> None:
    async with client(nats_server.url, verbose=True, pedantic=True) as nc, nc.subscribe("a") as sub:
        await nc.publish("a", b"x", headers={"k": "v"})
        assert (await sub.next(timeout=5)).headers["k"] == "v"
        await nc.flush()


# ---------------------------------------------------------------- request and reply


@both_loops
async def test_requests_are_answered_each_with_its_own(nats_server: Server) -> None:
    async with client(nats_server.url) as nc, client(nats_server.url) as service:

        async def echo(message: Message) -> None:
            await message.respond(message.data * 2, headers=message.headers)

        await service.subscribe("svc", cb=echo)
        await service.flush()
        replies = await asyncio.gather(
            *(nc.request("svc", b"%d" % n, headers={"n": str(n)}, timeout=10) for n in range(500))
        )
        assert [reply.data for reply in replies] == [b"%d" % n * 2 for n in range(500)]
        assert [reply.headers["n"] for reply in replies] == [str(n) for n in range(500)]
        assert len(nc._engine.registry.request_mux()) == 0


@both_loops
async def test_nobody_listening_is_said_at_once(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(NoResponders, match=r"nobody\.here"):
            await nc.request("nobody.here", timeout=30)
        assert loop.time() - began < 10


@both_loops
async def test_a_request_that_nobody_answers_times_out(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        late: list[Message] = []
        await nc.subscribe("deaf", cb=late.append)
        for timeout in (0.05, timedelta(milliseconds=50)):
            with pytest.raises(RequestTimeout) as error:
                await nc.request("deaf", timeout=timeout)
            assert error.value.timeout == 0.05
            assert isinstance(error.value, TimeoutError)
        for message in late:
            await message.respond(b"too late")
        await nc.flush()
        assert len(nc._engine.registry.request_mux()) == 0
        await nc.subscribe("svc", cb=lambda message: message.respond(b"in time"))
        assert (await nc.request("svc", timeout=5)).data == b"in time"


@both_loops
async def test_only_the_first_of_many_replies_counts(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        for number in range(5):
            await nc.subscribe("svc", cb=lambda m, n=number: m.respond(b"%d" % n))  # type: ignore[misc]
        for _ in range(20):
            assert (await nc.request("svc", timeout=5)).data in {b"%d" % n for n in range(5)}
        await nc.flush()


@both_loops
async def test_answering_what_asks_for_no_answer_is_an_error(nats_server: Server) -> None:
    async with client(nats_server.url) as nc, nc.subscribe("a") as sub:
        await nc.publish("a")
        message = await sub.next(timeout=5)
        with pytest.raises(LocalProtocolError, match="no reply subject"):
            await message.respond(b"x")


@both_loops
async def test_inboxes_have_their_prefix_and_never_repeat(nats_server: Server) -> None:
    async with client(nats_server.url, inbox_prefix="_INBOX.mine") as nc:
        inboxes = {nc.new_inbox() for _ in range(10_000)}
        assert len(inboxes) == 10_000
        assert all(inbox.startswith("_INBOX.mine.") for inbox in inboxes)
        seen: list[str | None] = []

        async def answer(message: Message) -> None:
            seen.append(message.reply)
            await message.respond()

        await nc.subscribe("svc", cb=answer)
        await nc.request("svc", timeout=5)
        assert str(seen[0]).startswith("_INBOX.mine.")


# ---------------------------------------------------------------- the server


@both_loops
async def test_flush_means_that_the_server_has_it(nats_server: Server) -> None:
    async with client(nats_server.url) as nc, client(nats_server.url) as other:
        for number in range(50):
            sub = await nc.subscribe(f"a.{number}")
            await nc.flush()
            await other.publish(f"a.{number}", b"x")
            await other.flush()
            await nc.flush()
            assert sub.pending_msgs == 1


@both_loops
async def test_rtt_is_a_time(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        assert 0 <= await nc.rtt(timeout=5) < 5


@both_loops
async def test_the_counters_are_exact(nats_server: Server) -> None:
    async with client(nats_server.url) as nc, nc.subscribe("abc") as sub:
        for _ in range(1000):
            await nc.publish("abc", b"12345", headers={"k": "v"})
        await nc.flush()
        stats = nc.stats
        block = len(b"NATS/1.0\r\nk: v\r\n\r\n")
        assert (stats.out_msgs, stats.in_msgs, stats.in_bytes) == (1000, 1000, 1000 * (3 + block + 5))
        assert (sub.pending_msgs, sub.pending_bytes) == (1000, stats.in_bytes)
        assert (stats.buffered_msgs, stats.buffered_bytes, stats.dropped, stats.reconnects) == (0, 0, 0, 0)


@both_loops
async def test_max_payload_counts_headers(nats_server: Server) -> None:
    async with client(nats_server.url) as nc, nc.subscribe("a") as sub:
        block = len(b"NATS/1.0\r\nk: v\r\n\r\n")
        with pytest.raises(PayloadTooLarge) as error:
            await nc.publish("a", bytes(nc.max_payload + 1))
        assert (error.value.size, error.value.limit) == (nc.max_payload + 1, nc.max_payload)
        with pytest.raises(PayloadTooLarge):
            await nc.publish("a", bytes(nc.max_payload - block + 1), headers={"k": "v"})
        await nc.publish("a", bytes(nc.max_payload - block), headers={"k": "v"})
        assert len((await sub.next(timeout=5)).data) == nc.max_payload - block
        assert nc.stats.reconnects == 0


@both_loops
async def test_events_tell_the_whole_story(nats_server: Server) -> None:
    reported: list[Event] = []
    nc = await natsproto.connect(nats_server.url, on_event=reported.append)
    stream = nc.events()
    await nc.drain()
    assert [type(event) for event in reported] == [Connected, Closed]
    assert [type(event) async for event in stream] == [Closed]


# ---------------------------------------------------------------- the end


@both_loops
async def test_drain_of_a_subscription_delivers_the_rest(nats_server: Server) -> None:
    async with client(nats_server.url) as nc, client(nats_server.url) as other:
        handled: list[bytes] = []

        async def slowly(message: Message) -> None:
            await asyncio.sleep(0)
            handled.append(message.data)

        called, read = await nc.subscribe("a", cb=slowly), await nc.subscribe("a")
        await nc.flush()
        for number in range(500):
            await other.publish("a", b"%d" % number)
        await other.flush()
        await asyncio.gather(called.drain(), read.drain())
        assert len(handled) == 500
        assert [message.data async for message in read] == handled
        await other.publish("a", b"late")
        await other.flush()
        await nc.flush()
        assert len(handled) == 500


@both_loops
async def test_drain_of_the_client_answers_everything(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        service = await natsproto.connect(nats_server.url)
        handled = 0

        async def answer(message: Message) -> None:
            nonlocal handled
            await asyncio.sleep(0)
            await message.respond(message.data)
            handled += 1

        await service.subscribe("svc", cb=answer)
        await service.flush()
        replies = await nc.subscribe("replies", max_messages=500)
        for number in range(500):
            await nc.publish("svc", b"%d" % number, reply="replies")
        await nc.flush()
        await service.drain()
        assert service.state is State.CLOSED
        async with asyncio.timeout(10):
            assert [int(message.data) async for message in replies] == list(range(500))
        assert handled == 500


@both_loops
async def test_drain_of_a_client_with_many_quick_callbacks(nats_server: Server) -> None:
    count = 2000
    handled = 0

    def handler(_: Message) -> None:
        nonlocal handled
        handled += 1

    async with natsproto.connect(nats_server.url) as nc:
        await nc.subscribe("a", cb=handler)
        for _ in range(count):
            await nc.publish("a")
    assert handled == count


@both_loops
async def test_closing_ends_pending_requests_at_once(nats_server: Server) -> None:
    async with client(nats_server.url) as other:
        await other.subscribe("deaf")
        await other.flush()
        nc = await natsproto.connect(nats_server.url)
        loop = asyncio.get_running_loop()
        pending = [asyncio.create_task(nc.request("deaf", timeout=30)) for _ in range(20)]
        await nc.flush()
        began = loop.time()
        closing = asyncio.create_task(nc.close())
        results = await asyncio.gather(*pending, return_exceptions=True)
        assert loop.time() - began < 10
        assert [type(result) for result in results] == [ConnectionClosed] * 20
        await closing


@both_loops
async def test_what_was_published_before_closing_arrives(nats_server: Server) -> None:
    async with client(nats_server.url) as other:
        sub = await other.subscribe("a", max_messages=1000)
        await other.flush()
        nc = await natsproto.connect(nats_server.url)
        for number in range(1000):
            await nc.publish("a", b"%d" % number + bytes(1000))
        await nc.close()
        async with asyncio.timeout(10):
            assert len([message async for message in sub]) == 1000


@both_loops
async def test_a_client_does_not_keep_a_program_from_ending(nats_server: Server) -> None:
    """asyncio.run with a client that nobody closed, a callback at work and a reader: no hang, no warning."""

    async def main() -> None:
        nc = await natsproto.connect(nats_server.url)
        await nc.subscribe("a", cb=lambda _: asyncio.get_running_loop().create_future())
        sub = await nc.subscribe("a")
        await nc.publish("a")
        await sub.next(timeout=5)
        asyncio.get_running_loop().create_task(sub.next())
        await asyncio.sleep(0)

    failures: list[BaseException] = []

    def program() -> None:
        try:
            asyncio.run(main())
        except BaseException as exc:
            failures.append(exc)

    thread = threading.Thread(target=program)
    thread.start()
    await asyncio.to_thread(thread.join, 20)
    assert not thread.is_alive()
    assert failures == []
    await asyncio.get_running_loop().shutdown_default_executor()


async def test_invalid_header_lines_of_others_are_reported(nats_server: Server) -> None:
    async with client(nats_server.url) as nc, nc.subscribe("s") as sub:
        await nc.flush()
        reader, writer = await asyncio.open_connection("127.0.0.1", nats_server.port)
        try:
            writer.write(b'CONNECT {"verbose":false,"headers":true}\r\n')
            for block in (b"garbage", b"A: 1\r\nbad line", b"NATS/1.0\r\nA: 1\r\n\r\n"):
                writer.write(b"HPUB s %d %d\r\n%b\r\n" % (len(block), len(block), block))
            writer.write(b"PING\r\n")
            await reader.readuntil(b"PONG\r\n")
            seen = [(await sub.next(timeout=10)).headers for _ in range(3)]
        finally:
            writer.close()
            await writer.wait_closed()
    assert [dict(headers) for headers in seen] == [{}, {"A": "1"}, {"A": "1"}]
    assert [headers.invalid_lines for headers in seen] == [("garbage",), ("bad line",), ()]


async def test_empty_headers_are_not_sent(nats_server: Server) -> None:
    async with client(nats_server.url) as nc, nc.subscribe("s") as sub:
        empties: list[HeadersLike] = [{}, [], iter(()), {"a": []}, natsproto.Headers()]
        for empty in empties:
            await nc.publish("s", b"x", headers=empty)
            nc.publish_nowait("s", b"x", headers=empty)
            for _ in range(2):
                message = await sub.next(timeout=10)
                assert (message.has_headers, message.size) == (False, 2)

        async def echo(message: Message) -> None:
            assert not message.has_headers
            await message.respond(b"", headers={})

        await nc.subscribe("r", cb=echo)
        assert not (await nc.request("r", headers={})).has_headers
        async for reply in nc.request_many("r", headers={}, max_messages=1):
            assert not reply.has_headers
        await nc.publish("s", b"x", headers={"a": ""})
        assert (await sub.next(timeout=10)).has_headers
    with sync.connect(nats_server.url) as blocking, blocking.subscribe("s") as heard:
        blocking.publish("s", b"x", headers={})
        assert not heard.next(timeout=10).headers
