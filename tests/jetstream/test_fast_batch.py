"""Fast ingest on a real server."""

from __future__ import annotations

import asyncio
import random

import pytest

import natsproto
from natsproto._core.events import Disconnected
from natsproto.errors import (
    BatchRefused,
    ConfigError,
    InvalidSubject,
    LimitReached,
    LocalProtocolError,
    MessageTooLarge,
    NatsError,
    NoStream,
    PayloadTooLarge,
    PublishFailed,
    PublishTimeout,
    PublishUncertain,
    WrongLastSequence,
)
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._stream.stream import Stream
from natsproto.testing import Direction, Server, run_server
from tests.faults.helpers import EventRecorder
from tests.jetstream.test_publish import through_a_proxy
from tests.kit.contents import stored_numbers
from tests.kit.servers import NEWEST, binary_of


@pytest.fixture
async def stream(jetstream: JetStream) -> Stream:
    return await jetstream.create_stream(
        name="F", subjects=["f.>"], storage="memory", allow_batched=True, allow_direct=True
    )


# ---------------------------------------------------------------- on a real server


@pytest.mark.parametrize("gap", ["fail", "ok"])
@pytest.mark.parametrize("size", [0, 1, 2, 999, 1000, 1001, 5000])
async def test_everything_is_stored_in_order(jetstream: JetStream, stream: Stream, gap: str, size: int) -> None:
    async with jetstream.fast_publisher(gap="ok" if gap == "ok" else "fail") as pub:
        for number in range(size):
            assert await pub.publish(f"f.{number % 3}", b"%d" % number) == number + 1
            assert pub.pending <= 1000
    assert await stored_numbers(stream) == list(range(size))
    assert (pub.published, pub.pending, pub.lost) == (size, 0, 0)
    assert size == 0 or (pub.ack is not None and pub.ack.seq == size)


async def test_the_last_message_can_commit(jetstream: JetStream, stream: Stream) -> None:
    async with jetstream.fast_publisher() as pub:
        ack = await pub.commit("f.1", b"0")
        assert (ack.seq, ack.count) == (1, 1)
        for number in range(1, 10):
            await pub.publish("f.1", b"%d" % number)
        ack = await pub.commit("f.1", b"10", headers={"A": "b"})
        assert (ack.seq, ack.count) == (11, 10)
    assert pub.ack == ack
    assert await stored_numbers(stream) == list(range(11))


async def test_flush_waits_until_everything_is_known(jetstream: JetStream, stream: Stream) -> None:
    async with jetstream.fast_publisher() as pub:
        await pub.flush()
        for number in range(7):
            await pub.publish("f.1", b"%d" % number)
        assert pub.pending == 7
        await pub.flush()
        assert (pub.pending, (await stream.info()).state.messages) == (0, 7)
        await pub.publish("f.1", b"7")
    assert await stored_numbers(stream) == list(range(8))


@pytest.mark.parametrize("before", [0, 1, 3])
async def test_rejected_commit_ends_its_batch(jetstream: JetStream, before: int) -> None:
    """With gaps allowed it was sent again for ever."""
    stream = await jetstream.create_stream(
        name="S", subjects=["s"], storage="memory", allow_batched=True, allow_direct=True, max_msg_size=20
    )
    async with jetstream.fast_publisher(gap="ok") as pub:
        for number in range(before):
            await pub.publish("s", b"%d" % number)
        with pytest.raises(PublishFailed, match="message size exceeds maximum") as caught:
            await pub.commit("s", bytes(50))
        assert [failed.number for failed in caught.value.failures] == [before + 1]
        await pub.publish("s", b"%d" % before)
    assert await stored_numbers(stream) == list(range(before + 1))
    assert (pub.published, pub.pending, pub.lost) == (before + 2, 0, 0)


@pytest.mark.parametrize("gap", ["fail", "ok"])
async def test_a_lone_commit_is_stored_once(nats_server: Server, gap: str) -> None:
    async with through_a_proxy(nats_server) as (proxy, nc, _):
        js = nc.jetstream(timeout=20)
        stream = await js.create_stream(name="S", subjects=["s"], storage="memory", allow_batched=True)
        async with js.fast_publisher(gap="ok" if gap == "ok" else "fail") as pub:
            proxy.delay(random.uniform(0.7, 1.1))  # each way: the answer comes after the second that is waited for it
            ack = await pub.commit("s", b"one")
            proxy.delay(0)
        assert (ack.count, ack.seq) == (1, 1)
        assert (await stream.info()).state.messages == 1


async def test_a_lone_commit_without_answer_is_uncertain(nats_server: Server) -> None:
    async with through_a_proxy(nats_server) as (proxy, nc, _):
        js = nc.jetstream()
        stream = await js.create_stream(name="S", subjects=["s"], storage="memory", allow_batched=True)
        proxy.stall(Direction.TO_CLIENT)
        async with nc.jetstream(timeout=3.3).fast_publisher() as pub:
            with pytest.raises(PublishFailed) as caught:
                await pub.commit("s", b"one")
        assert [type(failed.error) for failed in caught.value.failures] == [PublishTimeout]
        assert issubclass(PublishTimeout, PublishUncertain)
        proxy.heal()
        assert (await stream.info()).state.messages == 1


async def test_flush_does_not_wait_for_later_messages(jetstream: JetStream, stream: Stream) -> None:
    feeding = True
    async with jetstream.fast_publisher() as pub:

        async def feed() -> None:
            while feeding:
                await pub.publish("f.fed", b"0")
                await asyncio.sleep(0)

        feeders = [asyncio.create_task(feed()) for _ in range(2)]
        for _ in range(5):
            mine, before = await pub.publish("f.mine", b"0"), pub.published
            await pub.flush()
            assert pub.published - pub.pending >= mine
            assert pub.published - before < 5000
        feeding = False
        await asyncio.gather(*feeders)


async def test_commit_returns_the_ack_of_its_own_batch(jetstream: JetStream, stream: Stream) -> None:
    async with jetstream.fast_publisher() as pub:
        await pub.publish("f.1", b"1")
        committing = asyncio.create_task(pub.commit("f.1", b"2"))
        await asyncio.sleep(0)
        await pub.publish("f.1", b"3")  # another task's
        ack = await committing
        assert (ack.seq, ack.count) == (2, 2)
    assert pub.ack is not None
    assert (pub.ack.seq, pub.ack.count) == (3, 1)


async def test_an_idle_batch_is_committed(jetstream: JetStream, stream: Stream) -> None:
    async with jetstream.fast_publisher() as pub:
        await pub.publish("f.1", b"0")
        async with asyncio.timeout(10):
            while pub.ack is None:  # noqa: ASYNC110 (nothing tells)
                await asyncio.sleep(0.05)
        assert pub.pending == 0
        await pub.publish("f.1", b"1")
    assert await stored_numbers(stream) == [0, 1]


async def test_headers_and_ids_work_as_in_any_message(jetstream: JetStream, stream: Stream) -> None:
    async with jetstream.fast_publisher() as pub:
        await pub.publish("f.1", b"0", msg_id="a", headers={"Trace": "1"})
        await pub.publish("f.1", b"1", msg_id="b")
        await pub.publish("f.1", b"2", msg_id="b")
        await pub.publish("f.1", b"3", msg_id="a", expected_stream="F")
        await pub.publish("f.1", b"4")
    assert await stored_numbers(stream) == [0, 1, 4]
    assert (await stream.get_message(1)).headers["Trace"] == "1"


async def test_subjects_with_percent_signs_are_subjects(jetstream: JetStream, stream: Stream) -> None:
    subjects = ["f.100%", "f.%d", "f.%b.%%", "f.%(x)s"]
    async with jetstream.fast_publisher() as pub:
        for _ in range(3):
            for subject in subjects:
                await pub.publish(subject, b"1")
                await pub.publish(subject, b"1", headers={"A": "%d"})
    assert {message.subject async for message in stream.get_batch()} == set(subjects)
    assert (await stream.info()).state.messages == 24


async def test_many_publishers_share_a_stream(jetstream: JetStream, stream: Stream) -> None:
    async def publish(name: int) -> None:
        async with jetstream.fast_publisher() as pub:
            for number in range(2000):
                await pub.publish(f"f.{name}", b"%d" % number)

    await asyncio.gather(*(publish(name) for name in range(4)))
    held: dict[str, list[int]] = {}
    async for message in stream.get_batch():
        held.setdefault(message.subject, []).append(int(message.data))
    assert held == {f"f.{name}": list(range(2000)) for name in range(4)}


async def test_fast_batch_of_a_few_big_messages(jetstream: JetStream, stream: Stream) -> None:
    async with jetstream.fast_publisher(max_pending_bytes=100_000) as pub:
        for number in range(40):
            await pub.publish("f.1", b"%d" % number + b" " * 50_000)
            assert pub.pending <= 2
    assert await stored_numbers(stream) == list(range(40))


@pytest.mark.parametrize("flow", [1, 3, 10])
async def test_any_flow_and_any_number_of_acknowledgements(jetstream: JetStream, stream: Stream, flow: int) -> None:
    for outstanding in (1, 2, 3):
        async with jetstream.fast_publisher(flow=flow, outstanding=outstanding) as pub:
            for number in range(50):
                await pub.publish("f.1", b"%d" % number)
    assert len(await stored_numbers(stream)) == 150


async def test_refused_message_without_gaps_ends_the_batch(jetstream: JetStream, stream: Stream) -> None:
    with pytest.raises(PublishFailed) as caught:  # noqa: PT012
        async with jetstream.fast_publisher() as pub:
            for number in range(20):
                await pub.publish("f.1", b"%d" % number, expected_last_seq=99 if number == 10 else None)
            await pub.flush()
    first, *rest = caught.value.failures
    assert (first.number, type(first.error)) == (11, WrongLastSequence)
    assert [failed.number for failed in rest] == list(range(12, 21))
    assert "message 11 (sent earlier) was rejected" in str(rest[0].error)
    assert await stored_numbers(stream) == list(range(10))
    with pytest.raises(LocalProtocolError):
        await pub.publish("f.1")


async def test_refusal_is_raised_once(jetstream: JetStream, stream: Stream) -> None:
    async with jetstream.fast_publisher() as pub:
        await pub.publish("f.1", b"0")
        await pub.publish("f.1", b"1", expected_last_seq=99)
        with pytest.raises(PublishFailed) as caught:  # noqa: PT012
            while True:  # few enough that there is room
                await pub.publish("f.1", b"2")
                await asyncio.sleep(0.05)
        assert (caught.value.failures[0].number, type(caught.value.failures[0].error)) == (2, WrongLastSequence)
        with pytest.raises(LocalProtocolError, match="message 2 was rejected"):
            await pub.publish("f.1", b"3")
    assert await stored_numbers(stream) == [0]


async def test_refused_message_with_gaps_is_reported(jetstream: JetStream, stream: Stream) -> None:
    with pytest.raises(PublishFailed) as caught:  # noqa: PT012
        async with jetstream.fast_publisher(gap="ok") as pub:
            for number in range(2000):
                await pub.publish("f.1", b"%d" % number, expected_last_seq=99_999 if number in (10, 1500) else None)
    assert [failed.number for failed in caught.value.failures] == [11, 1501]
    assert {type(failed.error) for failed in caught.value.failures} == {WrongLastSequence}
    assert await stored_numbers(stream) == [number for number in range(2000) if number not in (10, 1500)]
    assert pub.lost == 0


@pytest.mark.parametrize("flow", [1, 500])
async def test_refused_first_message_with_gaps(jetstream: JetStream, flow: int) -> None:
    stream = await jetstream.create_stream(
        name="L", subjects=["l"], storage="memory", allow_batched=True, allow_direct=True, max_msg_size=10
    )
    async with jetstream.fast_publisher(gap="ok", flow=flow, outstanding=1) as pub:
        with pytest.raises(MessageTooLarge):
            await pub.publish("l", bytes(11))
        publishing = [pub.publish("l", payload) for payload in (bytes(12), bytes(13), b"0", b"1")]
        done = await asyncio.gather(*publishing, return_exceptions=True)
        assert [type(one) for one in done] == [MessageTooLarge, MessageTooLarge, int, int]
    assert await stored_numbers(stream) == [0, 1]
    assert (pub.published, pub.pending, pub.lost) == (5, 0, 0)


@pytest.mark.parametrize("gap", ["fail", "ok"])
async def test_a_full_stream_is_reported(jetstream: JetStream, gap: str) -> None:
    stream = await jetstream.create_stream(
        name="L", subjects=["l"], storage="memory", allow_batched=True, allow_direct=True, max_msgs=5, discard="new"
    )
    with pytest.raises(PublishFailed) as caught:  # noqa: PT012
        async with jetstream.fast_publisher(gap="ok" if gap == "ok" else "fail") as pub:
            for number in range(8):
                await pub.publish("l", b"%d" % number)
    assert [failed.number for failed in caught.value.failures] == [6, 7, 8]
    assert type(caught.value.failures[0].error) is LimitReached
    assert await stored_numbers(stream) == list(range(5))


async def test_stream_without_fast_ingest_is_an_error(jetstream: JetStream) -> None:
    stream = await jetstream.create_stream(name="N", subjects=["n"], storage="memory")
    async with jetstream.fast_publisher() as pub:
        with pytest.raises(BatchRefused) as caught:
            await pub.publish("n")
        assert caught.value.err_code == 10205
        with pytest.raises(LocalProtocolError):
            await pub.publish("n")
    assert (await stream.info()).state.messages == 0


async def test_no_stream_is_said_at_the_first_message(jetstream: JetStream) -> None:
    async with jetstream.fast_publisher(retry_wait=0.01) as pub:
        with pytest.raises(NoStream):
            await pub.publish("nowhere")


async def test_bad_arguments_change_nothing(jetstream: JetStream, stream: Stream) -> None:
    async with jetstream.fast_publisher() as pub:
        for call in (pub.publish("f. "), pub.publish("f.1", msg_id=""), pub.publish("f.1", b"x" * 2_000_000)):
            with pytest.raises((InvalidSubject, ConfigError, PayloadTooLarge)):
                await call
        with pytest.raises(TypeError):
            await pub.publish("f.1", "text")  # type: ignore[arg-type]
        assert (pub.published, pub.pending) == (0, 0)
        await pub.publish("f.1", bytearray(b"1"))
    assert await stored_numbers(stream) == [1]
    with pytest.raises(ConfigError):
        jetstream.fast_publisher(gap="maybe")  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        jetstream.fast_publisher(flow=70_000)
    with pytest.raises(ConfigError):
        jetstream.fast_publisher(outstanding=0)
    with pytest.raises(LocalProtocolError):
        await jetstream.fast_publisher().publish("f.1")
    with pytest.raises(LocalProtocolError):
        async with pub:
            pass


async def test_a_block_that_raises_waits_for_nothing(jetstream: JetStream, stream: Stream) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with jetstream.fast_publisher() as pub:
            await pub.publish("f.1")
            raise ZeroDivisionError


async def numbers_count(stream: Stream) -> int:
    return (await stream.info()).state.messages


@pytest.mark.slow
@pytest.mark.parametrize("auto_msg_id", [False, True])
async def test_cuts_neither_lose_nor_double_nor_disorder(nats_server: Server, auto_msg_id: bool) -> None:
    async with through_a_proxy(nats_server) as (proxy, nc, recorder):
        js = nc.jetstream(timeout=30)
        stream = await js.create_stream(
            name="F", subjects=["f"], storage="memory", allow_batched=True, allow_direct=True
        )
        async with js.fast_publisher(flow=50, auto_msg_id=auto_msg_id) as pub:
            await pub.publish("f", b"0")
            for number in range(1, 5000):
                if number % 700 == 350:
                    proxy.cut()
                await pub.publish("f", b"%d" % number)
        assert len(recorder.of(Disconnected)) >= 6
        assert await stored_numbers(stream) == list(range(5000))


@pytest.mark.slow
async def test_with_gaps_allowed_cuts_cost_what_is_counted(nats_server: Server) -> None:
    async with through_a_proxy(nats_server) as (proxy, nc, _):
        js = nc.jetstream(timeout=30)
        stream = await js.create_stream(
            name="F", subjects=["f"], storage="memory", allow_batched=True, allow_direct=True
        )
        async with js.fast_publisher(flow=50, gap="ok") as pub:
            for number in range(5000):
                if number % 700 == 350:
                    proxy.cut()
                await pub.publish("f", b"%d" % number)
        held = await stored_numbers(stream)
        assert held == sorted(set(held))
        assert len(held) + pub.lost >= 5000


@pytest.mark.slow
async def test_server_restart_with_and_without_ids(nats_server: Server) -> None:
    recorder = EventRecorder()
    async with natsproto.connect(
        nats_server.url, on_event=recorder, reconnect_wait=0.02, max_reconnect_attempts=-1
    ) as nc:
        js = nc.jetstream(timeout=30)
        stream = await js.create_stream(name="F", subjects=["f"], storage="file", allow_batched=True, allow_direct=True)
        async with js.fast_publisher(auto_msg_id=True) as pub:
            for number in range(3000):
                if number == 1700:
                    nats_server.kill()
                    await nats_server.restart()
                await pub.publish("f", b"%d" % number)
        assert await stored_numbers(stream) == list(range(3000))
        with pytest.raises(PublishFailed) as caught:  # noqa: PT012
            async with js.fast_publisher() as pub:
                for number in range(3000, 3700):
                    await pub.publish("f", b"%d" % number)
                nats_server.kill()
                await nats_server.restart()
                await pub.flush()
        assert {type(failed.error) for failed in caught.value.failures} == {PublishUncertain}
        held = await stored_numbers(stream)
        assert held == sorted(set(held))


@pytest.mark.slow
@pytest.mark.parametrize("series", [pytest.param("2.14", marks=pytest.mark.variant), NEWEST])
async def test_one_message_and_a_restart_store_one(series: str) -> None:
    """nats-server 2.14 begins a batch with a ping of its first message, and says that it misses that."""
    binary = await asyncio.to_thread(binary_of, series)
    async with (
        run_server(jetstream=True, binary=binary) as server,
        natsproto.connect(server.url, reconnect_wait=0.02, max_reconnect_attempts=-1) as nc,
    ):
        js = nc.jetstream(timeout=30)
        stream = await js.create_stream(name="F", subjects=["f"], storage="file", allow_batched=True, allow_direct=True)
        with pytest.raises(PublishFailed) as caught:  # noqa: PT012
            async with js.fast_publisher() as pub:
                await pub.publish("f", b"1")
                server.kill()
                await server.restart()
                await pub.flush()
        assert await stored_numbers(stream) == [1]
        assert [type(failed.error) for failed in caught.value.failures] == [PublishUncertain]


@pytest.mark.slow
@pytest.mark.parametrize(("gaps", "auto_msg_id"), [(False, False), (False, True), (True, False), (True, True)])
async def test_random_faults_are_reported_by_fast_batches(nats_server: Server, gaps: bool, auto_msg_id: bool) -> None:
    """As the model has it (test_fast_batch_state), on a network that breaks."""
    print(f"seed {(seed := random.randrange(2**32))}")
    rng, taken, lost = random.Random(seed), 0, 0
    failed: dict[int, NatsError] = {}
    async with through_a_proxy(nats_server) as (proxy, nc, _):
        proxy.delay(0.0005, 0.005)
        js = nc.jetstream(timeout=60)
        stream = await js.create_stream(name="F", subjects=["f"], storage="file", allow_batched=True, allow_direct=True)

        async def trouble() -> None:
            if (chance := rng.random()) < 0.01:
                proxy.cut()
            elif chance < 0.013:
                nats_server.kill()
                await nats_server.restart()
            elif chance < 0.03:
                await pub.flush()
            elif chance < 0.05:
                await asyncio.sleep(rng.random() / 50)

        while taken < 1500:
            flow, acks = rng.choice([1, 4, 50]), rng.choice([1, 2, 3])
            pub = js.fast_publisher(gap="ok" if gaps else "fail", flow=flow, outstanding=acks, auto_msg_id=auto_msg_id)
            try:
                async with pub:
                    for _ in range(rng.choice([1, 2, 300])):
                        await pub.publish("f", b"%d" % (taken + pub.published + 1))
                        await trouble()
                    if rng.random() < 0.5:
                        await pub.commit("f", b"%d" % (taken + pub.published + 1))
            except PublishFailed as exc:
                failed |= {taken + failure.number: failure.error for failure in exc.failures}
            except PublishUncertain as exc:
                failed[taken + pub.published] = exc
            taken, lost = taken + pub.published, lost + pub.lost
        proxy.delay(0)
        held = await stored_numbers(stream)
    assert held == sorted(set(held)), "stored twice, or out of order"
    missing = set(range(1, taken + 1)) - set(held) - failed.keys()
    assert len(missing) <= (lost if gaps else 0), "lost without a word"
    assert {type(error) for error in failed.values()} <= {PublishUncertain, PublishTimeout, LocalProtocolError}
    assert {number for number, error in failed.items() if isinstance(error, LocalProtocolError)}.isdisjoint(held)
    if auto_msg_id and not gaps:
        assert not failed
