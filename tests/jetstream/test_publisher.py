"""A window of messages in flight, on a stream that says what the test wants, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Unpack

import pytest

from natsproto._client import Client
from natsproto._options.options import OptionArgs
from natsproto.errors import (
    ConfigError,
    ConnectionClosed,
    InvalidSubject,
    LimitReached,
    LocalProtocolError,
    NatsError,
    NoStream,
    PayloadTooLarge,
    PermissionDenied,
    PublishFailed,
    PublishTimeout,
    PublishUncertain,
    RequestTimeout,
    TooManyRequests,
    WrongLastSequence,
)
from natsproto.jetstream._publish.ack_future import AckFuture
from tests.core.helpers import ScriptedNetwork, scripted_network, turns
from tests.jetstream.script import STEP, StreamScript, jetstream_of
from tests.kit.clock import advance, virtual_clock
from tests.kit.scripted import Behaviour, Op

SILENT = Behaviour(route=False)


@asynccontextmanager
async def stage(**options: Unpack[OptionArgs]) -> AsyncIterator[tuple[ScriptedNetwork, Client, StreamScript]]:
    """A client on a server whose streams are played by the test."""
    async with scripted_network(SILENT) as net:
        yield net, await net.connect(**options), StreamScript(net)


def ids(*ops: Op) -> list[str]:
    """The message ids of what was heard."""
    return [op.headers.decode().partition("Nats-Msg-Id: ")[2].partition("\r")[0] for op in ops]


# ---------------------------------------------------------------- acknowledgements


@virtual_clock
async def test_future_is_the_ack_of_its_message() -> None:
    async with stage() as (_, nc, stream), nc.jetstream().publisher() as pub:
        first, second = await pub.publish("a", b"1"), await pub.publish("a", b"2")
        one, two = await stream.heard_all(2)
        assert (first.done(), pub.pending, pub.acknowledged) == (False, 2, 0)
        stream.ack(two, 8, domain="hub")
        stream.ack(one, 7, duplicate=True)
        assert ((await second).seq, (await second).domain, (await first).seq) == (8, "hub", 7)
        assert (await first).duplicate
        assert (first.done(), pub.pending, pub.acknowledged, pub.published) == (True, 0, 2, 2)


@virtual_clock
async def test_future_is_awaited_by_many_tasks() -> None:
    async with stage() as (_, nc, stream), nc.jetstream().publisher() as pub:
        future = await pub.publish("a", b"1")

        async def wait() -> int:
            return (await future).seq

        tasks = [asyncio.create_task(wait()) for _ in range(3)]
        op = await stream.heard()
        tasks[0].cancel()
        await turns(2)
        stream.ack(op, 5)
        assert await asyncio.gather(*tasks[1:]) == [5, 5]
        assert tasks[0].cancelled()
        one, two = await asyncio.gather(future, future)
        assert one is two is future.result()


@virtual_clock
async def test_a_future_that_is_open_has_no_result() -> None:
    async with stage() as (_, nc, stream), nc.jetstream().publisher() as pub:
        future = await pub.publish("a", b"1")
        with pytest.raises(asyncio.InvalidStateError):
            future.result()
        with pytest.raises(asyncio.InvalidStateError):
            future.exception()
        assert "waiting" in repr(future)
        stream.ack(await stream.heard())
        await future
        assert (future.cancel(), future.cancelled(), future.exception()) == (False, False, None)
        assert "acknowledged" in repr(future)


@virtual_clock
async def test_replies_nobody_waits_for_are_ignored() -> None:
    async with stage() as (net, nc, stream), nc.jetstream().publisher() as pub:
        future = await pub.publish("a", b"1")
        op = await stream.heard()
        stream.ack(op, 3)
        stream.ack(op, 4)  # a second stream has the subject too
        stream.nobody(op)
        inbox = op.args[1].rpartition(".")[0]
        for token in (b"99", b"x", b"\xff\xfe", b"1.2"):
            net.server.send(b"MSG %b.%b 1 2\r\nok\r\n" % (inbox.encode(), token))
        net.server.deliver(1, f"{inbox}.77", b"", headers=[("A", "b")])
        assert (await future).seq == 3
        await pub.publish("a", b"more")
        stream.ack(await stream.heard(b"more"), 9)


@virtual_clock
async def test_leaving_the_block_waits_for_every_ack() -> None:
    async with stage() as (_, nc, stream):

        async def publish() -> list[AckFuture]:
            async with nc.jetstream().publisher() as pub:
                return [await pub.publish("a", b"%d" % number) for number in range(3)]

        task = asyncio.create_task(publish())
        ops = await stream.heard_all(3)
        for op in ops[:2]:
            stream.ack(op)
        await advance(1)
        assert not task.done()
        stream.ack(ops[2])
        assert [future.result().seq for future in await task] == [1, 2, 3]


@virtual_clock
async def test_the_inbox_is_given_back() -> None:
    async with stage() as (net, nc, stream):
        async with nc.jetstream().publisher() as pub:
            await pub.publish("a")
            stream.ack(await stream.heard())
        await nc.flush()
        assert net.server.current.interest == {}


# ---------------------------------------------------------------- the window


@virtual_clock
async def test_publish_waits_only_when_the_window_is_full() -> None:
    async with stage() as (_, nc, stream), nc.jetstream().publisher(max_pending=3) as pub:
        for number in range(3):
            await pub.publish("a", b"%d" % number)
        fourth = asyncio.create_task(pub.publish("a", b"3"))
        ops = await stream.heard_all(3)
        assert await stream.silent(1.0)
        stream.ack(ops[1])
        await fourth
        ops.append(await stream.heard(b"3"))
        for op in (ops[0], ops[2], ops[3]):
            stream.ack(op)


@virtual_clock
async def test_window_acked_while_nobody_waited_has_room() -> None:
    async with stage() as (_, nc, stream), nc.jetstream().publisher(max_pending=2) as pub:
        for payload in (b"1", b"2"):
            await pub.publish("a", payload)
        for seq, op in enumerate(await stream.heard_all(2), 1):
            stream.ack(op, seq)
        await advance(STEP)
        assert pub.pending == 0
        began = asyncio.get_running_loop().time()
        await pub.publish("a", b"3")
        assert asyncio.get_running_loop().time() == began
        stream.ack(await stream.heard(b"3"), 3)


@virtual_clock
async def test_full_window_stays_full_during_a_retry() -> None:
    async with stage() as (_, nc, stream), nc.jetstream().publisher(max_pending=3) as pub:
        for _ in range(3):
            await pub.publish("a")
        waiting = asyncio.create_task(pub.publish("a"))
        ops = await stream.heard_all(3)
        stream.refuse(ops[0], 10167, "too many requests", 429)
        again = await stream.heard()
        another = asyncio.create_task(pub.publish("a"))
        assert await stream.silent(1.0)
        assert not waiting.done()
        assert not another.done()
        for op in (*ops[1:], again):
            stream.ack(op)
        for op in await stream.heard_all(2):
            stream.ack(op)
        await asyncio.gather(waiting, another)


@virtual_clock
async def test_window_is_full_by_bytes() -> None:
    async with stage() as (_, nc, stream), nc.jetstream().publisher(max_pending_bytes=100) as pub:
        await pub.publish("a", b"x" * 500)
        second = asyncio.create_task(pub.publish("a", b"2"))
        op = await stream.heard()
        assert await stream.silent(1.0)
        stream.ack(op)
        await second
        stream.ack(await stream.heard())


@virtual_clock
async def test_cancelled_publish_publishes_nothing() -> None:
    async with stage() as (_, nc, stream), nc.jetstream().publisher(max_pending=1) as pub:
        await pub.publish("a", b"1")
        waiting = asyncio.create_task(pub.publish("a", b"never"))
        op = await stream.heard()
        await turns(2)
        waiting.cancel()
        await asyncio.wait([waiting])
        stream.ack(op)
        await pub.flush()
        assert await stream.silent(1.0)
        assert pub.published == 1


@virtual_clock
async def test_window_shared_by_many_tasks() -> None:
    async with stage() as (_, nc, stream), nc.jetstream().publisher(max_pending=4) as pub:
        tasks = [asyncio.create_task(pub.publish("a", b"%d" % number)) for number in range(20)]
        for _ in range(20):
            assert pub.pending <= 4
            stream.ack(await stream.heard())
        futures = await asyncio.gather(*tasks)
        assert sorted([(await future).seq for future in futures]) == list(range(1, 21))


@virtual_clock
async def test_flush_waits_for_what_was_published_before() -> None:
    async with stage() as (_, nc, stream), nc.jetstream().publisher() as pub:
        await pub.publish("a", b"1")
        flushing = asyncio.create_task(pub.flush())
        await turns(1)
        await pub.publish("a", b"2")
        one, two = await stream.heard_all(2)
        stream.ack(one)
        await flushing
        assert pub.pending == 1
        stream.ack(two)


# ---------------------------------------------------------------- arguments


@virtual_clock
async def test_publisher_arguments_are_checked_first() -> None:
    async with stage() as (_, nc, stream), nc.jetstream().publisher() as pub:
        with pytest.raises(InvalidSubject):
            await pub.publish("a b")
        with pytest.raises(TypeError):
            await pub.publish("a", "text")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            await pub.publish(7)  # type: ignore[arg-type]
        with pytest.raises(PayloadTooLarge):
            await pub.publish("a", b"x" * 2_000_000)
        with pytest.raises(ConfigError):
            await pub.publish("a", msg_id="")
        with pytest.raises(ConfigError):
            await pub.publish("a", msg_id="x", headers={"Nats-Msg-Id": "y"})
        with pytest.raises(TypeError):
            await pub.publish("a", colour="red")  # type: ignore[call-arg]
        assert await stream.silent(0.1)
        assert (pub.published, pub.pending) == (0, 0)
        await pub.publish("a", bytearray(b"taken"))
        stream.ack(await stream.heard(b"taken"))


@virtual_clock
async def test_a_publisher_works_inside_its_block_only() -> None:
    async with stage() as (_, nc, _):
        pub = nc.jetstream().publisher()
        with pytest.raises(LocalProtocolError):
            await pub.publish("a")
        async with pub:
            pass
        with pytest.raises(LocalProtocolError):
            await pub.publish("a")
        with pytest.raises(LocalProtocolError):
            async with pub:
                pass
        with pytest.raises(ConfigError):
            nc.jetstream().publisher(max_pending=0)
        with pytest.raises(ConfigError):
            nc.jetstream().publisher(max_pending_bytes=-1)
        with pytest.raises(ConfigError):
            nc.jetstream().publisher(timeout=0)


# ---------------------------------------------------------------- refusals


@virtual_clock
async def test_failures_are_raised_in_order_at_the_end() -> None:
    async with stage() as (_, nc, stream):
        with pytest.raises(PublishFailed) as caught:  # noqa: PT012
            async with nc.jetstream().publisher() as pub:
                for number in range(4):
                    await pub.publish(f"a.{number}", b"x" * number)
                ops = await stream.heard_all(4)
                stream.refuse(ops[3], 10077, "maximum messages exceeded", 503)
                stream.ack(ops[0])
                stream.refuse(ops[1], 10071, "wrong last sequence: 9")
                stream.ack(ops[2])
        first, second = caught.value.failures
        assert (first.number, first.subject, first.size, type(first.error)) == (2, "a.1", 1, WrongLastSequence)
        assert (second.number, second.subject, second.size, type(second.error)) == (4, "a.3", 3, LimitReached)
        assert caught.value.__cause__ is first.error
        assert isinstance(first.error, WrongLastSequence)
        assert first.error.last == 9


@virtual_clock
async def test_failure_that_was_seen_is_not_raised_again() -> None:
    async with stage() as (_, nc, stream), nc.jetstream().publisher() as pub:
        seen, looked = await pub.publish("a", b"1"), await pub.publish("a", b"2")
        for op in await stream.heard_all(2):
            stream.refuse(op, 10077)
        with pytest.raises(LimitReached):
            await seen
        await advance(STEP)
        assert isinstance(looked.exception(), LimitReached)
        assert "failed" in repr(looked)


@virtual_clock
async def test_flush_raises_failures_once() -> None:
    async with stage() as (_, nc, stream), nc.jetstream().publisher() as pub:
        await pub.publish("a")
        stream.refuse(await stream.heard(), 10077)
        with pytest.raises(PublishFailed):
            await pub.flush()
        await pub.flush()


@virtual_clock
async def test_unseen_failures_of_a_window_stop_it() -> None:
    async with stage() as (_, nc, stream), nc.jetstream().publisher(max_pending=3) as pub:
        for _ in range(3):
            await pub.publish("a")
            stream.refuse(await stream.heard(), 10077)
            await advance(STEP)
        with pytest.raises(PublishFailed) as caught:
            await pub.publish("a", b"next")
        assert len(caught.value.failures) == 3
        await pub.publish("a", b"next")
        stream.ack(await stream.heard(b"next"))


@virtual_clock
async def test_a_block_that_raises_waits_for_nothing() -> None:
    async with stage() as (_, nc, _):
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with nc.jetstream().publisher() as pub:
                future = await pub.publish("a")
                raise ZeroDivisionError
        assert isinstance(future.exception(), PublishUncertain)


@virtual_clock
async def test_unreadable_ack_fails_the_message() -> None:
    async with stage() as (_, nc, stream), nc.jetstream().publisher() as pub:
        future = await pub.publish("a")
        stream.say(await stream.heard(), b"what?")
        await pub._window.flush()
        assert type(future.exception()).__name__ == "InvalidReply"


# ---------------------------------------------------------------- no stream


@virtual_clock
async def test_no_stream_is_raised_after_three_attempts() -> None:
    async with stage() as (_, nc, stream), nc.jetstream().publisher() as pub:
        loop = asyncio.get_running_loop()
        future = await pub.publish("a")
        times = []
        for _ in range(3):
            stream.nobody(await stream.heard())
            times.append(loop.time())
        with pytest.raises(NoStream) as caught:
            await future
        assert caught.value.subject == "a"
        assert [later - before for before, later in pairwise(times)] == [pytest.approx(0.25, abs=0.03)] * 2


@virtual_clock
async def test_stream_that_comes_back_gets_the_message_once() -> None:
    async with stage() as (_, nc, stream), nc.jetstream().publisher() as pub:
        future = await pub.publish("a")
        stream.nobody(await stream.heard())
        stream.ack(await stream.heard(), 4)
        assert (await future).seq == 4
        assert await stream.silent(2.0)


@virtual_clock
async def test_election_of_a_known_stream_is_waited_for() -> None:
    async with stage() as (_, nc, stream), nc.jetstream().publisher(timeout=10) as pub:
        await pub.publish("a", b"0")
        stream.ack(await stream.heard())
        futures = [await pub.publish("a", b"%d" % number) for number in range(1, 4)]
        for _ in range(12):  # three seconds
            for op in await stream.heard_all(3):
                stream.nobody(op)
        await advance(STEP)
        late = await pub.publish("a", b"4")  # waits behind the others
        ops = await stream.heard_all(4)
        assert [op.payload for op in ops] == [b"1", b"2", b"3", b"4"]
        for op in ops:
            stream.ack(op)
        assert [(await future).seq for future in (*futures, late)] == [2, 3, 4, 5]


@virtual_clock
async def test_election_that_does_not_end_times_out() -> None:
    async with stage() as (_, nc, stream), nc.jetstream().publisher(timeout=2) as pub:
        await pub.publish("a", b"0")
        stream.ack(await stream.heard())
        future = await pub.publish("a", b"1")

        async def deny() -> None:
            while True:
                stream.nobody(await stream.heard())

        denying = asyncio.create_task(deny())
        started = asyncio.get_running_loop().time()
        with pytest.raises(NoStream):
            await future
        assert asyncio.get_running_loop().time() - started == pytest.approx(2, abs=0.2)
        denying.cancel()


@virtual_clock
async def test_a_refusal_of_the_last_second_is_an_answer() -> None:
    """A copy that is on its way when silence is looked for is not sent twice, nor may it have been stored before."""
    async with stage() as (_, nc, stream), nc.jetstream().publisher(timeout=3) as pub:
        loop = asyncio.get_running_loop()
        started = loop.time()
        future = await pub.publish("a", msg_id="1")
        for held in (0.05, 0.0, 0.0, 0.0, 0.20):  # the last one is on its way when a message is a second old
            op = await stream.heard()
            await advance(held)
            stream.nobody(op)
        assert loop.time() - started > 1.0
        assert await stream.silent(0.2)

        async def deny() -> None:
            while True:
                stream.nobody(await stream.heard())

        denying = asyncio.create_task(deny())
        with pytest.raises(NoStream):
            await future
        denying.cancel()


# ---------------------------------------------------------------- a busy server


@virtual_clock
async def test_a_busy_server_is_given_more_and_more_time() -> None:
    async with stage() as (_, nc, stream), nc.jetstream().publisher(timeout=20) as pub:
        loop = asyncio.get_running_loop()
        future = await pub.publish("a")
        times = []
        for _ in range(8):
            op = await stream.heard()
            times.append(loop.time())
            block = b"NATS/1.0 429 Too Many Requests\r\n\r\n"
            error = {"code": 429, "err_code": 10167, "description": "too many requests"}
            stream.say(op, {"error": error, "stream": "S", "seq": 0}, block)
        stream.ack(await stream.heard())
        await future
        pauses = [later - before for before, later in pairwise(times)]
        assert pauses == sorted(pauses)
        assert pauses[0] < 0.1
        assert pauses[-1] == pytest.approx(1, abs=0.03)


@virtual_clock
async def test_busy_stream_until_the_timeout() -> None:
    async with stage() as (_, nc, stream), nc.jetstream().publisher(timeout=3) as pub:
        future = await pub.publish("a")

        async def deny() -> None:
            while True:
                stream.refuse(await stream.heard(), 10167, "too many requests", 429)

        denying = asyncio.create_task(deny())
        with pytest.raises(TooManyRequests):
            await future
        denying.cancel()


@pytest.mark.parametrize("err_code", [10163, 10158, 10008, 10009])
def test_temporary_refusal_is_retried(err_code: int) -> None:
    @virtual_clock
    async def check() -> None:
        async with stage() as (_, nc, stream), nc.jetstream().publisher() as pub:
            future = await pub.publish("a", msg_id="1")
            stream.refuse(await stream.heard(), err_code, "later", 503)
            stream.ack(await stream.heard(), 6)
            assert (await future).seq == 6

    check()


# ---------------------------------------------------------------- silence


@virtual_clock
async def test_silence_ends_at_the_timeout_as_uncertain() -> None:
    async with stage() as (_, nc, stream), nc.jetstream().publisher(timeout=4) as pub:
        started = asyncio.get_running_loop().time()
        future = await pub.publish("a")
        with pytest.raises(PublishTimeout) as caught:
            await future
        assert asyncio.get_running_loop().time() - started == pytest.approx(4.1, abs=0.2)
        assert (caught.value.subject, caught.value.timeout) == ("a", 4)
        assert isinstance(caught.value, TimeoutError)
        assert isinstance(caught.value, PublishUncertain)
        await stream.heard()
        assert await stream.silent(1.0)


@virtual_clock
async def test_window_resends_every_second() -> None:
    async with stage() as (_, nc, stream), jetstream_of(nc, "a").publisher(timeout=10) as pub:
        loop = asyncio.get_running_loop()
        started = loop.time()
        future = await pub.publish("a", msg_id="m")
        times = []
        for _ in range(4):
            op = await stream.heard()
            assert ids(op) == ["m"]
            times.append(loop.time() - started)
        assert times == [pytest.approx(at, abs=0.3) for at in (0, 1, 2, 3)]
        stream.ack(op)
        await future


@virtual_clock
async def test_window_ends_its_wait_after_a_frozen_leader() -> None:
    """Within 1.5 s after a stream answers again, which has forgotten what it was sent meanwhile; any timeout."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for timeout in (rng.uniform(4, 10), rng.uniform(10, 60), rng.uniform(60, 600)):
        async with stage() as (_, nc, stream), jetstream_of(nc, "a").publisher(timeout=timeout) as pub:
            loop = asyncio.get_running_loop()
            back = loop.time() + rng.uniform(0.5, min(timeout - 2, 14))
            futures = []
            for number in range(10):
                futures.append(await pub.publish("a", b"%d" % number, msg_id=f"m{number}"))
                await advance(rng.uniform(0, 0.04))
            while loop.time() < back or not all(future.done() for future in futures):
                op = await stream.heard()
                if loop.time() >= back:
                    stream.ack(op)
                    await turns(3)
            assert loop.time() - back <= 1.5
            for future in futures:
                await future


# ---------------------------------------------------------------- lost connections


@virtual_clock
async def test_messages_with_ids_are_resent_in_order() -> None:
    async with stage() as (net, nc, stream), jetstream_of(nc, "a").publisher() as pub:
        futures = [await pub.publish("a", b"%d" % number, msg_id=f"m{number}") for number in range(5)]
        ops = await stream.heard_all(5)
        stream.ack(ops[1])
        await futures[1]
        net.down()
        await advance(1)
        futures += [await pub.publish("a", b"%d" % number, msg_id=f"m{number}") for number in range(5, 8)]
        net.up()
        again = await stream.heard_all(7)
        assert [op.payload for op in again] == [b"0", b"2", b"3", b"4", b"5", b"6", b"7"]
        assert ids(*again) == ["m0", "m2", "m3", "m4", "m5", "m6", "m7"]
        for op in again:
            stream.ack(op)
        await asyncio.gather(*futures)
        assert await stream.silent(2.0)


@virtual_clock
async def test_messages_without_ids_are_not_resent() -> None:
    async with stage() as (net, nc, stream), jetstream_of(nc, "a").publisher() as pub:
        plain, safe = await pub.publish("a", b"plain"), await pub.publish("a", b"safe", msg_id="1")
        await stream.heard_all(2)
        net.down()
        with pytest.raises(PublishUncertain) as caught:
            await plain
        assert caught.value.subject == "a"
        assert not isinstance(caught.value, TimeoutError)
        net.up()
        op = await stream.heard()
        assert op.payload == b"safe"
        stream.ack(op)
        await safe
        assert await stream.silent(2.0)


@virtual_clock
async def test_unsent_messages_are_sent_after_the_reconnect() -> None:
    async with stage() as (net, nc, stream), nc.jetstream().publisher() as pub:
        net.peer.stall()
        futures = [await pub.publish("a", b"%d" % number + b"x" * 60_000) for number in range(6)]
        left = 6 - nc.stats.buffered_msgs
        assert 0 < left < 6
        net.down()
        await advance(0.1)
        net.peer.unstall()
        uncertain = [isinstance(future.exception(), PublishUncertain) for future in futures if future.done()]
        assert uncertain == [True] * left
        net.up()
        for number in range(left, 6):
            op = await stream.heard(b"%d" % number + b"x" * 60_000)
            stream.ack(op)
        await asyncio.gather(*futures[left:])


@virtual_clock
async def test_publish_in_an_outage_waits_in_the_window() -> None:
    async with stage() as (net, nc, stream), nc.jetstream().publisher(max_pending=2) as pub:
        net.down()
        await advance(0.1)
        futures = [await pub.publish("a", b"%d" % number) for number in range(2)]
        third = asyncio.create_task(pub.publish("a", b"2"))
        await advance(0.5)
        assert not third.done()
        net.up()
        for number in range(2):
            stream.ack(await stream.heard(b"%d" % number))
        await asyncio.gather(*futures)
        stream.ack(await stream.heard(b"2"))
        await (await third)


@virtual_clock
async def test_unsent_message_says_so_at_its_timeout() -> None:
    async with stage() as (net, nc, _), nc.jetstream().publisher(timeout=2) as pub:
        net.down()
        await advance(0.1)
        with pytest.raises(RequestTimeout, match="not sent within 2 s, as the client was not connected") as caught:
            await (await pub.publish("a"))
        assert (type(caught.value), caught.value.sent) == (RequestTimeout, False)


@virtual_clock
async def test_message_to_be_resent_times_out_as_uncertain() -> None:
    async with stage() as (net, nc, stream), jetstream_of(nc, "a").publisher(timeout=4) as pub:
        future = await pub.publish("a", msg_id="1")
        await stream.heard()
        net.down()
        await advance(2)
        net.up()
        with pytest.raises(PublishUncertain, match=r"not connected to a server for [23]"):
            await future


@virtual_clock
async def test_too_big_for_the_next_server_fails_alone() -> None:
    async with scripted_network(SILENT, Behaviour(route=False, greeting={"max_payload": 100})) as net:
        nc, stream = await net.connect(), StreamScript(net)
        async with jetstream_of(nc, "a").publisher() as pub:
            big = await pub.publish("a", b"x" * 200, msg_id="big")
            small = await pub.publish("a", b"x", msg_id="small")
            await stream.heard_all(2)
            (await net.server.connection()).close()
            stream.ack(await stream.heard())
            await small
            assert isinstance(big.exception(), PublishUncertain)
            assert "message of 230 bytes (with headers)" in str(big.exception())


# ---------------------------------------------------------------- reply tokens


@virtual_clock
async def test_every_message_has_its_own_token() -> None:
    async with stage() as (_, nc, stream), nc.jetstream().publisher(max_pending=4) as pub:
        tokens = []
        for _ in range(5):
            for headers in (None, {"A": "b"}):
                future = await pub.publish("a", b"x", headers=headers)
                op = await stream.heard()
                tokens.append(op.args[1])
                stream.ack(op)
                await future
        assert len(set(tokens)) == 10


@virtual_clock
async def test_late_and_second_acks_are_nobodys() -> None:
    async with stage() as (_, nc, stream), nc.jetstream().publisher(timeout=1) as pub:
        first = await pub.publish("a", b"1")
        late = await stream.heard()
        assert isinstance(await error_of(first), PublishTimeout)
        second = await pub.publish("a", b"2")
        op = await stream.heard()
        stream.ack(late, 1)
        await advance(STEP)
        assert not second.done()
        stream.ack(op, 2)
        assert (await second).seq == 2
        third = await pub.publish("a", b"3")
        await stream.heard()
        stream.ack(op, 2)  # once more
        assert isinstance(await error_of(third), PublishTimeout)
        assert isinstance(first.exception(), PublishTimeout)


async def error_of(future: AckFuture) -> NatsError | None:
    """How it ends."""
    try:
        await future
    except NatsError as exc:
        return exc
    return None


# ---------------------------------------------------------------- the client


@virtual_clock
async def test_closing_the_client_ends_the_publisher_at_once() -> None:
    async with stage() as (_, nc, stream):
        with pytest.raises(PublishFailed):  # noqa: PT012
            async with nc.jetstream().publisher(max_pending=1) as pub:
                future = await pub.publish("a")
                waiting = asyncio.create_task(pub.publish("a"))
                await stream.heard()
                started = asyncio.get_running_loop().time()
                await nc.close()
                assert asyncio.get_running_loop().time() - started < 0.1
                with pytest.raises(ConnectionClosed):
                    await waiting
                with pytest.raises(ConnectionClosed):
                    await pub.publish("a")
                assert future.done()
        with pytest.raises(ConnectionClosed):
            async with nc.jetstream().publisher():
                pass


@virtual_clock
async def test_denied_subject_fails_its_messages_only() -> None:
    async with stage() as (net, nc, stream), nc.jetstream().publisher() as pub:
        denied, allowed = await pub.publish("secret"), await pub.publish("a")
        _, op = await stream.heard_all(2)
        net.server.err('Permissions Violation for Publish to "secret"')
        with pytest.raises(PermissionDenied):
            await denied
        stream.ack(op)
        await allowed


@virtual_clock
async def test_a_refused_inbox_ends_the_publisher() -> None:
    async with stage() as (net, nc, stream):
        with pytest.raises(PublishFailed):  # noqa: PT012
            async with nc.jetstream().publisher() as pub:
                future = await pub.publish("a")
                op = await stream.heard()
                inbox = op.args[1].rpartition(".")[0]
                net.server.err(f'Permissions Violation for Subscription to "{inbox}.*"')
                await pub._window.flush()
                assert future.done()
                with pytest.raises(PermissionDenied):
                    await pub.publish("a")
