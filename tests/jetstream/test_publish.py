"""Publishing to streams of a real server, one message at a time and with a window."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

import natsproto
from natsproto._client import Client
from natsproto._core.events import Disconnected, Reconnected
from natsproto.errors import (
    ConfigError,
    ConnectionClosed,
    InvalidSubject,
    LimitReached,
    MessageNotFound,
    MessageTooLarge,
    NoStream,
    PayloadTooLarge,
    PermissionDenied,
    PublishFailed,
    PublishTimeout,
    PublishUncertain,
    RequestTimeout,
    TtlRefused,
    WrongExpectation,
    WrongLastSequence,
)
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._values.config import StreamConfig
from natsproto.testing import Direction, FaultProxy, Server, run_server
from tests.faults.helpers import EventRecorder
from tests.jetstream.reading import known
from tests.jetstream.script import StreamScript, jetstream_of
from tests.jetstream.test_publisher import stage
from tests.kit.clock import advance, virtual_clock


@pytest.fixture
async def js(jetstream: JetStream) -> JetStream:
    await jetstream.create_stream(name="S", subjects=["s.>"], storage="memory", allow_direct=True)
    return jetstream


# ---------------------------------------------------------------- what the server answers


async def test_an_acknowledgement_says_where_the_message_is(js: JetStream) -> None:
    ack = await js.publish("s.a", b"1", headers={"Trace": "x"})
    assert (ack.stream, ack.seq, ack.duplicate, ack.domain) == ("S", 1, False, "")
    stored = await (await js.stream("S")).get_message(1)
    assert (stored.subject, stored.data, stored.headers["Trace"]) == ("s.a", b"1", "x")
    assert (await js.publish("s.a", bytearray(b"2"))).seq == 2


async def test_message_id_is_stored_once(js: JetStream) -> None:
    first = await js.publish("s.a", b"1", msg_id="m")
    await js.publish("s.a", b"2")
    again = await js.publish("s.b", b"3", msg_id="m")
    assert (first.duplicate, again.duplicate, again.seq) == (False, True, first.seq)
    assert (await js.publish("s.a", headers={"nats-msg-id": "m"})).duplicate is False  # names are case-sensitive


async def test_a_domain_is_part_of_the_acknowledgement() -> None:
    hub = run_server(jetstream=True, config="jetstream { domain: hub }")
    async with hub as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream(domain="hub")
        await js.create_stream(name="S", subjects=["s"], storage="memory")
        assert (await js.publish("s")).domain == "hub"
        async with js.publisher() as pub:
            assert (await (await pub.publish("s"))).domain == "hub"


async def test_expectations_that_hold_let_a_message_through(js: JetStream) -> None:
    await js.publish("s.a", msg_id="first", expected_last_seq=0, expected_stream="S")
    await js.publish("s.b", expected_last_msg_id="first")
    await js.publish("s.a", expected_last_subject_seq=1)
    await js.publish("s.c", expected_last_subject_seq=0)
    await js.publish("s.d", expected_last_subject_seq=3, expected_last_subject_seq_subject="s.a")
    ack = await js.publish("s.d", expected_last_subject_seq=5, expected_last_subject_seq_subject="s.*")
    assert ack.seq == 6


async def test_expectations_that_do_not_hold_store_nothing(js: JetStream) -> None:
    await js.publish("s.a", msg_id="first")
    with pytest.raises(WrongLastSequence) as caught:
        await js.publish("s.a", expected_last_seq=7)
    assert (caught.value.err_code, caught.value.last) == (10071, 1)
    with pytest.raises(WrongLastSequence):
        await js.publish("s.a", expected_last_subject_seq=0)
    with pytest.raises(WrongExpectation) as other:
        await js.publish("s.a", expected_last_msg_id="second")
    assert other.value.err_code == 10070
    with pytest.raises(WrongExpectation) as stream:
        await js.publish("s.a", expected_stream="OTHER")
    assert stream.value.err_code == 10060
    assert (await (await js.stream("S")).info()).state.messages == 1


async def test_full_stream_with_discard_new(jetstream: JetStream) -> None:
    await jetstream.create_stream(name="F", subjects=["f"], storage="memory", max_msgs=1, discard="new")
    await jetstream.publish("f")
    with pytest.raises(LimitReached) as caught:
        await jetstream.publish("f")
    assert (caught.value.code, caught.value.err_code) == (503, 10077)


async def test_too_big_message_is_refused(jetstream: JetStream) -> None:
    await jetstream.create_stream(name="T", subjects=["t"], storage="memory", max_msg_size=10)
    with pytest.raises(MessageTooLarge):
        await jetstream.publish("t", b"x" * 11)
    with pytest.raises(MessageTooLarge) as caught:
        await jetstream.publish("t", headers={"A": "x" * 70_000})
    assert caught.value.err_code in (10054, 10097)
    with pytest.raises(PayloadTooLarge):
        await jetstream.publish("t", b"x" * 2_000_000)


async def test_a_subject_without_a_stream_is_said(js: JetStream) -> None:
    with pytest.raises(NoStream) as caught:
        await js.publish("nowhere", timeout=50)
    assert caught.value.subject == "nowhere"
    with pytest.raises(NoStream):
        await js.publish("nowhere", retry_attempts=0)


async def test_stream_created_during_retries(js: JetStream) -> None:
    publishing = asyncio.create_task(js.publish("late", b"x", retry_attempts=-1, retry_wait=0.05, timeout=10))
    await asyncio.sleep(0)
    await js._connection.flush()  # nobody has answered the first attempt
    assert not publishing.done()
    await js.create_stream(name="LATE", subjects=["late"], storage="memory")
    assert (await publishing).stream == "LATE"


async def test_stream_with_no_ack_times_out_and_stores(jetstream: JetStream) -> None:
    stream = await jetstream.create_stream(name="Q", subjects=["q"], storage="memory", no_ack=True)
    with pytest.raises(PublishTimeout):
        await jetstream.publish("q", timeout=0.2)
    await jetstream._connection.publish("q")
    while (await stream.info()).state.messages < 2:
        pass  # each look is a round trip


async def test_bad_arguments_send_nothing(js: JetStream) -> None:
    before = js._connection.stats.out_msgs
    for bad in (
        js.publish("s. "),
        js.publish("s.a", msg_id="\n"),
        js.publish("s.a", headers={"Nats-Msg-Id": "1"}, msg_id="1"),
        js.publish("s.a", timeout=0),
        js.publish("s.a", retry_wait=-1),
        js.publish("s.*"),
    ):
        with pytest.raises((ConfigError, InvalidSubject)):
            await bad
    assert js._connection.stats.out_msgs == before


async def test_the_users_headers_are_not_changed(js: JetStream) -> None:
    headers = {"A": ["1", "2"]}
    await js.publish("s.a", headers=headers, msg_id="m", ttl=None)
    assert headers == {"A": ["1", "2"]}


async def test_a_denied_subject_is_an_error_at_once() -> None:
    config = 'authorization { users: [{ user: a, password: b, permissions: { publish: { deny: "s.secret" } } }] }'
    server = run_server(jetstream=True, config=config)
    async with server as running, natsproto.connect(running.url, user="a", password="b") as nc:
        js = nc.jetstream()
        await js.create_stream(name="S", subjects=["s.>"], storage="memory")
        with pytest.raises(PermissionDenied):
            await js.publish("s.secret")
        async with js.publisher() as pub:
            denied, allowed = await pub.publish("s.secret"), await pub.publish("s.open")
            with pytest.raises(PermissionDenied):
                await denied
            assert (await allowed).seq == 1


async def test_denied_inbox_is_uncertain_at_once() -> None:
    """The server takes the message, and its acknowledgement goes nowhere."""
    config = """authorization { users: [
        { user: a, password: b, permissions: { subscribe: { deny: "_INBOX.>" } } }
        { user: c, password: d }
    ] }"""
    async with (
        run_server(jetstream=True, config=config) as running,
        natsproto.connect(running.url, user="c", password="d") as owner,
    ):
        stream = await owner.jetstream().create_stream(
            name="S", subjects=["s"], storage="memory", allow_atomic=True, allow_batched=True
        )

        async def single(js: JetStream) -> None:
            await js.publish("s")

        async def windowed(js: JetStream) -> None:
            async with js.publisher() as pub:
                await (await pub.publish("s"))

        async def fast(js: JetStream) -> None:
            async with js.fast_publisher() as pub:
                await pub.publish("s")

        async def atomic(js: JetStream) -> None:
            async with js.atomic_batch() as batch:
                await batch.publish("s")

        for publish in (single, windowed, fast, atomic):
            async with natsproto.connect(running.url, user="a", password="b") as nc, asyncio.timeout(20):
                with pytest.raises(PublishUncertain, match="denied"):
                    await publish(nc.jetstream(timeout=50))
                await nc.flush()
        while (await stream.info()).state.messages < 3:
            pass  # each look is a round trip


# ---------------------------------------------------------------- time to live


@pytest.mark.slow
async def test_message_ttl_leaves_a_marker(jetstream: JetStream) -> None:
    # The server raises the time of every message to that of the markers.
    config = StreamConfig(
        name="T", subjects=["t.>"], allow_msg_ttl=True, allow_direct=True, subject_delete_marker_ttl=2
    )
    stream = await jetstream.create_stream(config, storage="memory")
    consumer = await stream.create_consumer(filter_subjects=["t.short"], ack_policy="none")
    reading = asyncio.create_task(consumer.fetch(2, timeout=30))
    await known(consumer, lambda info: info.num_waiting)  # what it waits for, it gets before its time is over
    await jetstream.publish("t.short", b"x", ttl=2)
    await jetstream.publish("t.ever", b"y", ttl="never")
    first, marker = await reading
    assert first.headers["Nats-TTL"] == "2"
    assert (marker.data, marker.headers["Nats-Marker-Reason"], marker.headers["Nats-Rollup"]) == (b"", "MaxAge", "sub")
    assert marker.headers["Nats-TTL"] == "2s"
    assert (await stream.get_last_message("t.ever")).headers["Nats-TTL"] == "never"
    with pytest.raises(MessageNotFound):
        await stream.get_message(1)


async def test_window_takes_a_ttl_before_the_first_connect() -> None:
    async with run_server(jetstream=True) as server:
        async with natsproto.connect(server.url) as nc:
            await nc.jetstream().create_stream(name="T", subjects=["t.>"], allow_msg_ttl=True)
        server.kill()
        async with natsproto.connect(server.url, retry_on_failed_connect=True, reconnect_wait_max=0.2) as nc:
            async with nc.jetstream(timeout=30).publisher(auto_msg_id=True) as pub:
                ack = await pub.publish("t.a", b"x", ttl=60)
                await server.restart()
            stored = await (await nc.jetstream().stream("T")).get_message((await ack).seq)
            assert stored.headers["Nats-TTL"] == "60"


async def test_publish_with_a_ttl_without_a_server_times_out() -> None:
    async with run_server(jetstream=True) as server:
        server.kill()
        async with natsproto.connect(server.url, retry_on_failed_connect=True, drain_timeout=1) as nc:
            with pytest.raises(RequestTimeout, match="not sent within"):  # it must not wait for 600
                await nc.jetstream(timeout=600).publish("t.a", b"x", ttl=60, timeout=0.2)
            await nc.close()


async def test_a_stream_without_ttl_refuses_one(js: JetStream) -> None:
    with pytest.raises(TtlRefused):
        await js.publish("s.a", ttl=60)


async def test_a_rollup_removes_what_was_before(jetstream: JetStream) -> None:
    stream = await jetstream.create_stream(name="R", subjects=["r.>"], storage="memory", allow_rollup_hdrs=True)
    for subject in ("r.a", "r.a", "r.b"):
        await jetstream.publish(subject)
    await jetstream.publish("r.a", b"all of a", rollup="sub")
    assert (await stream.info()).state.messages == 2
    await jetstream.publish("r.c", b"all", rollup="all")
    assert (await stream.info()).state.messages == 1


# ---------------------------------------------------------------- the window


async def test_a_window_stores_everything_in_order(js: JetStream) -> None:
    async with js.publisher(max_pending=64) as pub:
        futures = [await pub.publish("s.a", b"%d" % number) for number in range(3000)]
        assert pub.pending <= 64
    assert [future.result().seq for future in futures] == list(range(1, 3001))
    stream = await js.stream("S")
    assert [int(message.data) async for message in stream.get_batch()] == list(range(3000))


async def test_a_window_takes_every_argument(js: JetStream) -> None:
    async with js.publisher() as pub:
        first = await pub.publish("s.a", b"1", msg_id="m", expected_last_seq=0, headers={"A": "b"})
        second = await pub.publish("s.a", b"2", msg_id="m")
        wrong = await pub.publish("s.a", b"3", expected_last_seq=9)
        assert ((await first).seq, (await second).duplicate) == (1, True)
        with pytest.raises(WrongLastSequence):
            await wrong
    stored = await (await js.stream("S")).get_message(1)
    assert (stored.headers["A"], stored.headers["Nats-Msg-Id"]) == ("b", "m")


async def test_a_window_tells_of_a_missing_stream(js: JetStream) -> None:
    with pytest.raises(PublishFailed) as caught:  # noqa: PT012
        async with js.publisher(retry_wait=0.01) as pub:
            for number in range(10):
                await pub.publish("nowhere", b"x" * number)
    assert [(failed.number, failed.size, type(failed.error)) for failed in caught.value.failures] == [
        (number + 1, number, NoStream) for number in range(10)
    ]


async def test_publishers_and_requests_side_by_side(js: JetStream) -> None:
    async def publish(name: int) -> None:
        async with js.publisher(max_pending=16) as pub:
            for number in range(300):
                await pub.publish(f"s.{name}", b"%d" % number)

    async def ask() -> None:
        for number in range(100):
            await js.publish("s.single", b"%d" % number)

    await asyncio.gather(publish(1), publish(2), ask())
    state = (await (await js.stream("S")).info(subjects_filter=">")).state
    assert state.subjects == {"s.1": 300, "s.2": 300, "s.single": 100}


# ---------------------------------------------------------------- lost connections


@asynccontextmanager
async def through_a_proxy(server: Server) -> AsyncIterator[tuple[FaultProxy, Client, EventRecorder]]:
    host, _, port = server.url.removeprefix("nats://").partition(":")
    recorder = EventRecorder()
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(FaultProxy(host, int(port)))
        nc = await stack.enter_async_context(natsproto.connect(proxy.url, on_event=recorder, reconnect_wait=0.01))
        yield proxy, nc, recorder


async def test_publish_with_an_id_survives_a_lost_ack(nats_server: Server) -> None:
    async with through_a_proxy(nats_server) as (proxy, nc, recorder):
        js = nc.jetstream()
        stream = await js.create_stream(name="S", subjects=["s"], storage="memory")
        proxy.stall(Direction.TO_CLIENT)
        publishing = asyncio.create_task(js.publish("s", b"once", msg_id="m", timeout=20))
        async with natsproto.connect(nats_server.url) as other:
            while (await (await other.jetstream().stream("S")).info()).state.messages == 0:
                pass  # until the server has it
            proxy.cut()
            proxy.heal()
            ack = await publishing
        assert ack.duplicate
        assert (await stream.info()).state.messages == 1
        assert len(recorder.of(Disconnected)) == 1


async def test_publish_without_an_id_is_uncertain(nats_server: Server) -> None:
    async with through_a_proxy(nats_server) as (proxy, nc, recorder):
        js = nc.jetstream()
        await js.create_stream(name="S", subjects=["s"], storage="memory")
        proxy.stall(Direction.TO_CLIENT)
        publishing = asyncio.create_task(js.publish("s", b"once"))
        await asyncio.sleep(0)
        proxy.cut()
        proxy.heal()
        with pytest.raises(PublishUncertain) as caught:
            await publishing
        assert caught.value.subject == "s"
        assert not isinstance(caught.value, PublishTimeout)
        await recorder.wait(Reconnected)


@pytest.mark.slow
async def test_window_with_ids_over_many_cuts(nats_server: Server) -> None:
    async with through_a_proxy(nats_server) as (proxy, nc, recorder):
        js = nc.jetstream(timeout=30)
        stream = await js.create_stream(name="S", subjects=["s"], storage="memory", allow_direct=True)
        async with js.publisher(max_pending=100) as pub:
            for number in range(3000):
                if number % 500 == 250:
                    proxy.cut()
                await pub.publish("s", b"%d" % number, msg_id=str(number))
        assert len(recorder.of(Disconnected)) == 6
        assert [int(message.data) async for message in stream.get_batch()] == list(range(3000))


@pytest.mark.slow
async def test_window_without_ids_over_many_cuts(nats_server: Server) -> None:
    async with through_a_proxy(nats_server) as (proxy, nc, _):
        js = nc.jetstream(timeout=30)
        stream = await js.create_stream(name="S", subjects=["s"], storage="memory", allow_direct=True)
        uncertain: set[int] = set()

        async def outcome_of(call: Awaitable[object]) -> None:
            try:
                await call
            except PublishFailed as exc:
                uncertain.update(f.number - 1 for f in exc.failures if type(f.error) is PublishUncertain)

        async with js.publisher(max_pending=100) as pub:
            while pub.published < 2000:
                if pub.published % 500 == 250:
                    proxy.cut()
                await outcome_of(pub.publish("s", b"%d" % pub.published))
            await outcome_of(pub.flush())
        stored = [int(message.data) async for message in stream.get_batch()]
        assert len(stored) == len(set(stored))
        assert set(range(2000)) - set(stored) <= uncertain
        assert len(uncertain) <= 400


async def test_restarted_server_gets_what_it_lacks(nats_server: Server) -> None:
    async with natsproto.connect(nats_server.url, reconnect_wait=0.02, max_reconnect_attempts=-1) as nc:
        js = nc.jetstream(timeout=30)
        stream = await js.create_stream(name="S", subjects=["s"], storage="file", allow_direct=True)
        async with js.publisher(max_pending=50, auto_msg_id=True) as pub:
            for number in range(1000):
                if number == 500:
                    nats_server.kill()
                    await nats_server.restart()
                await pub.publish("s", b"%d" % number)
        assert [int(message.data) async for message in stream.get_batch()] == list(range(1000))


async def test_publishing_on_a_closed_client_says_so(nats_server: Server) -> None:
    nc = await natsproto.connect(nats_server.url)
    js = nc.jetstream()
    await nc.close()
    with pytest.raises(ConnectionClosed):
        await js.publish("s")
    with pytest.raises(ConnectionClosed):
        async with js.publisher():
            pass


# ---------------------------------------------------------------- one message, on a scripted stream


@virtual_clock
async def test_a_single_publish_backs_off_from_a_busy_server() -> None:
    async with stage() as (_, nc, stream):
        publishing = asyncio.create_task(nc.jetstream().publish("a"))
        for err_code in (10167, 10163, 10158):
            stream.refuse(await stream.heard(), err_code, "later", 503)
        stream.ack(await stream.heard(), 3)
        assert (await publishing).seq == 3


@virtual_clock
async def test_no_stream_is_raised_within_a_second() -> None:
    async with stage() as (_, nc, stream):
        loop = asyncio.get_running_loop()
        started = loop.time()
        publishing = asyncio.create_task(nc.jetstream().publish("nowhere"))
        for _ in range(3):
            stream.nobody(await stream.heard())
        with pytest.raises(NoStream):
            await publishing
        assert 0.5 <= loop.time() - started < 1


@virtual_clock
async def test_publish_over_a_reconnect_needs_an_id() -> None:
    async with stage() as (net, nc, stream):
        js = jetstream_of(nc, "a", timeout=30)
        safe = asyncio.create_task(js.publish("a", b"safe", msg_id="1"))
        plain = asyncio.create_task(js.publish("a", b"plain"))
        await stream.heard_all(2)
        net.down()
        with pytest.raises(PublishUncertain):
            await plain
        await advance(3)
        net.up()
        op = await stream.heard()
        assert op.payload == b"safe"
        stream.ack(op, 8)
        assert (await safe).seq == 8
        assert await stream.silent(1.0)


@virtual_clock
async def test_publish_ends_at_its_timeout() -> None:
    async with stage() as (net, nc, stream):
        loop = asyncio.get_running_loop()

        async def lasts(msg_id: str | None, said: str = "may or may not") -> float:
            started = loop.time()
            with pytest.raises(RequestTimeout, match=said):
                await nc.jetstream().publish("a", msg_id=msg_id, timeout=4)
            return loop.time() - started

        assert list(await asyncio.gather(lasts(None), lasts("1"))) == [pytest.approx(4, abs=0.05)] * 2
        assert len(await stream.heard_all(5)) == 5  # the one with an id again after every second
        net.down()
        await advance(0.1)
        assert await lasts("2", "not sent") == pytest.approx(4, abs=0.05)


@virtual_clock
async def test_no_stream_after_a_reconnect_is_uncertain() -> None:
    async with stage() as (net, nc, stream):
        publishing = asyncio.create_task(jetstream_of(nc, "a", timeout=30).publish("a", msg_id="1", retry_attempts=2))
        await stream.heard()
        net.down()
        await advance(0.1)
        net.up()
        for _ in range(3):
            stream.nobody(await stream.heard())
        with pytest.raises(PublishUncertain) as caught:
            await publishing
        assert isinstance(caught.value.__cause__, NoStream)


@virtual_clock
async def test_publish_is_resent_every_second() -> None:
    async with stage() as (_, nc, stream):
        loop = asyncio.get_running_loop()
        started = loop.time()
        publishing = asyncio.create_task(jetstream_of(nc, "a", timeout=60).publish("a", msg_id="1"))
        ops = []
        for second in range(6):  # a frozen leader
            ops.append(await stream.heard())
            assert loop.time() - started == pytest.approx(second, abs=0.1)
        stream.ack(ops[-1], 3)
        assert (await publishing).seq == 3


@virtual_clock
async def test_publish_hears_an_answer_that_takes_long() -> None:
    async with stage() as (_, nc, stream):
        publishing = asyncio.create_task(jetstream_of(nc, "a", timeout=60).publish("a", msg_id="1"))
        first, _, _ = await stream.heard_all(3)
        stream.ack(first, 3)  # more than two seconds on its way
        assert (await publishing).seq == 3


@virtual_clock
async def test_publish_with_id_outlives_an_election() -> None:
    async with stage() as (_, nc, stream):
        publishing = asyncio.create_task(nc.jetstream(timeout=20).publish("a", msg_id="1"))
        for _ in range(30):  # more than seven seconds
            stream.nobody(await stream.heard())
        stream.ack(await stream.heard(), 3)
        assert (await publishing).seq == 3


@virtual_clock
async def test_no_stream_with_an_id_costs_the_timeout() -> None:
    async with stage() as (_, nc, stream):
        loop = asyncio.get_running_loop()

        async def deny() -> None:
            while True:
                stream.nobody(await stream.heard())

        denying = asyncio.create_task(deny())
        started = loop.time()
        with pytest.raises(NoStream, match="'a' after retries for 4 s"):
            await nc.jetstream().publish("a", msg_id="1", timeout=4)
        assert loop.time() - started == pytest.approx(4, abs=0.3)
        started = loop.time()
        with pytest.raises(NoStream) as caught:
            await nc.jetstream().publish("a", msg_id="1", timeout=4, retry_attempts=1)
        assert loop.time() - started == pytest.approx(0.25, abs=0.1)
        assert caught.value.waited == 0.0
        denying.cancel()


@virtual_clock
async def test_resent_and_then_refused_may_be_stored() -> None:
    async with stage() as (_, nc, stream):
        publishing = asyncio.create_task(jetstream_of(nc, "a", timeout=3).publish("a", msg_id="1", retry_attempts=0))
        await stream.heard()
        stream.nobody(await stream.heard())  # the second copy; the first may be stored
        with pytest.raises(PublishUncertain) as caught:
            await publishing
        assert isinstance(caught.value.__cause__, NoStream)


async def test_publish_without_headers_has_no_block(js: JetStream) -> None:
    stream = await js.stream("S")
    await js.publish("s.a", b"x")
    plain = (await stream.info()).state.bytes
    cases: list[dict[str, object]] = [{"msg_id": None}, {"ttl": None}, {"headers": {}}, {"headers": {}, "msg_id": None}]
    for args in cases:
        before = (await stream.info()).state.bytes
        await js.publish("s.a", b"x", **args)  # type: ignore[arg-type]  # each of its own type
        assert (await stream.info()).state.bytes - before == plain, args
    async with js.publisher() as pub:
        before = (await stream.info()).state.bytes
        await pub.publish("s.a", b"x", headers={}, ttl=None)
        await pub.flush()
        assert (await stream.info()).state.bytes - before == plain


async def test_no_ack_stream_is_named_in_the_timeout(jetstream: JetStream) -> None:
    await jetstream.create_stream(name="N", subjects=["n"], storage="memory", no_ack=True)
    with pytest.raises(PublishTimeout, match="streams with no_ack never send one"):
        await jetstream.publish("n", b"1", timeout=0.2)


@virtual_clock
async def test_closing_the_client_ends_a_publish() -> None:
    async with stage() as (_, nc, stream):
        publishing = asyncio.create_task(nc.jetstream().publish("a", msg_id="1"))
        await StreamScript.heard(stream)
        await nc.close()
        with pytest.raises(ConnectionClosed):
            await publishing
