"""Fast ingest on a scripted stream that loses things."""

from __future__ import annotations

import asyncio

import pytest

import natsproto
from natsproto.errors import (
    ConnectionClosed,
    JetStreamError,
    LocalProtocolError,
    NoStream,
    PermissionDenied,
    PublishFailed,
    PublishTimeout,
    PublishUncertain,
    UnsupportedByServer,
)
from natsproto.jetstream._publish.fast.fast_batch import FastPublisher
from natsproto.jetstream._values.info import PubAck
from tests.core.helpers import ScriptedNetwork, scripted_network
from tests.jetstream.script import STEP, StreamScript
from tests.kit.clock import advance, virtual_clock
from tests.kit.scripted import Behaviour, Op

FAST = Behaviour(route=False)


def word(op: Op) -> tuple[int, int, int]:
    """Flow, sequence and operation, as the reply subject says them."""
    flow, _, sequence, operation, last = op.args[1].split(".")[-5:]
    assert last == "$FI"
    return int(flow), int(sequence), int(operation)


def batch_of(op: Op) -> str:
    return op.args[1].split(".")[-6]


class FastScript(StreamScript):
    """A stream that takes fast ingest."""

    def flow(self, op: Op, seq: int, msgs: int) -> None:
        self.say(op, {"type": "ack", "seq": seq, "msgs": msgs})

    def gap(self, op: Op, first: int, following: int) -> None:
        self.say(op, {"type": "gap", "last_seq": first, "seq": following})

    def done(self, op: Op, count: int, seq: int = 1) -> None:
        self.say(op, {"stream": "S", "seq": seq, "batch": batch_of(op), "count": count})

    def say(self, op: Op, payload: bytes | dict[str, object], headers: bytes | None = None) -> None:
        """Any reply, also when the inbox has two wildcards' worth of tokens in its place."""
        stem = ".".join(op.args[1].split(".")[:2]) + "."
        super().say(Op(op.name, (op.args[0], op.args[1])), payload, headers)
        assert op.args[1].startswith(stem)


async def start(nc: natsproto.Client, stream: FastScript, msgs: int, **options: object) -> tuple[FastPublisher, Op]:
    pub = nc.jetstream().fast_publisher(**options)  # type: ignore[arg-type]
    await pub.__aenter__()
    first = asyncio.create_task(pub.publish("a", b"1"))
    op = await stream.heard()
    stream.flow(op, 0, msgs)
    await first
    return pub, op


async def leave(pub: FastPublisher) -> None:
    """As an exception leaves the block: waits for nothing."""
    await pub.__aexit__(ZeroDivisionError, ZeroDivisionError(), None)


@virtual_clock
async def test_first_message_is_acked_with_the_flow() -> None:
    async with scripted_network(FAST) as net:
        nc, stream = await net.connect(), FastScript(net)
        pub = nc.jetstream().fast_publisher(flow=100, outstanding=2)
        async with pub:
            tasks = [asyncio.create_task(pub.publish("a", b"%d" % number)) for number in range(1, 31)]
            first = await stream.heard()
            assert word(first) == (100, 1, 0)
            assert await stream.silent(0.5)
            stream.flow(first, 0, 10)
            ops = await stream.heard_all(19)
            assert [word(op) for op in ops] == [(100, sequence, 1) for sequence in range(2, 21)]
            assert await stream.silent(0.1)
            stream.flow(ops[8], 10, 5)  # slower: up to ten beyond the acknowledged ten
            assert await stream.silent(0.1)
            stream.flow(ops[18], 20, 20)  # faster again
            ops = await stream.heard_all(10)
            await asyncio.gather(*tasks)
            leaving = asyncio.create_task(pub.flush())
            end = await stream.heard()
            assert word(end) == (100, 31, 3)
            stream.done(end, 30)
            await leaving
        assert pub.ack is not None
        assert pub.ack.count == 30


@virtual_clock
async def test_ack_covers_lost_acks_before_it() -> None:
    async with scripted_network(FAST) as net:
        nc, stream = await net.connect(), FastScript(net)
        pub, _ = await start(nc, stream, 2)
        for _ in range(3):
            await pub.publish("a")
        ops = await stream.heard_all(3)  # sequences 2 to 4; the acknowledgement of 2 is lost
        more = asyncio.create_task(pub.publish("a", b"5"))
        await advance(STEP)
        stream.flow(ops[2], 4, 2)
        await more
        assert word(await stream.heard(b"5")) == (500, 5, 1)
        assert pub.pending == 1
        await leave(pub)


@virtual_clock
async def test_silent_stream_is_pinged() -> None:
    async with scripted_network(FAST) as net:
        nc, stream = await net.connect(), FastScript(net)
        pub, _ = await start(nc, stream, 2, flow=4, outstanding=1)
        tasks = [asyncio.create_task(pub.publish("a", b"%d" % number)) for number in range(2, 6)]
        await stream.heard_all(1)
        ping = await stream.heard(timeout=5)
        assert word(ping) == (4, 2, 4)
        stream.flow(ping, 2, 2)
        assert [word(op) for op in await stream.heard_all(2)] == [(4, 3, 1), (4, 4, 1)]
        await leave(pub)
        await asyncio.gather(*tasks, return_exceptions=True)


@virtual_clock
async def test_gap_ends_the_batch_and_another_follows() -> None:
    async with scripted_network(FAST) as net:
        nc, stream = await net.connect(), FastScript(net)
        pub, first = await start(nc, stream, 100)
        for number in range(2, 8):
            await pub.publish("a", b"%d" % number)
        ops = await stream.heard_all(6)
        stream.gap(ops[3], 4, 5)
        stream.done(ops[3], 3)
        again = await stream.heard()
        assert (word(again), again.payload) == ((500, 1, 0), b"4")
        assert batch_of(again) != batch_of(first)
        stream.say(ops[5], {"error": {"code": 400, "err_code": 10208, "description": "unknown"}, "stream": "S"})
        stream.flow(again, 0, 100)
        rest = await stream.heard_all(3)
        assert [(word(op)[1], op.payload) for op in rest] == [(2, b"5"), (3, b"6"), (4, b"7")]
        finishing = asyncio.create_task(pub.flush())
        stream.done(await stream.heard(), 4)
        await finishing
        assert (pub.pending, pub.lost) == (0, 0)
        await leave(pub)


async def lose_ack(net: ScriptedNetwork, pub: FastPublisher, committing: asyncio.Task[PubAck]) -> None:
    """The connection is lost with the acknowledgement of a commit."""
    net.down()
    net.up()
    with pytest.raises(PublishUncertain, match="the acknowledgement of the batch was lost"):
        await committing
    assert (pub.lost, pub.pending) == (1, 0)
    await leave(pub)


@virtual_clock
async def test_commit_with_a_lost_ack_is_uncertain() -> None:
    async with scripted_network(FAST) as net:
        nc, stream = await net.connect(), FastScript(net)
        pub, _ = await start(nc, stream, 100, gap="ok")
        flushing = asyncio.create_task(pub.flush())
        stream.done(await stream.heard(), 1)
        await flushing
        committing = asyncio.create_task(pub.commit("a", b"2"))
        await stream.heard(b"2")
        await lose_ack(net, pub, committing)


@virtual_clock
async def test_commit_waits_for_the_ack_of_its_batch() -> None:
    """Not for that of the batch which was ending while it waited."""
    async with scripted_network(FAST) as net:
        nc, stream = await net.connect(), FastScript(net)
        pub, _ = await start(nc, stream, 100, gap="ok")
        end = await stream.heard(timeout=10)  # an idle batch is committed
        committing = asyncio.create_task(pub.commit("a", b"last"))
        await advance(STEP)
        stream.done(end, 1)
        await stream.heard(b"last")
        await lose_ack(net, pub, committing)


@virtual_clock
async def test_allowed_gaps_are_counted() -> None:
    async with scripted_network(FAST) as net:
        nc, stream = await net.connect(), FastScript(net)
        pub, _ = await start(nc, stream, 100, gap="ok")
        for number in range(2, 8):
            await pub.publish("a", b"%d" % number)
        ops = await stream.heard_all(6)
        stream.gap(ops[3], 3, 5)
        finishing = asyncio.create_task(pub.flush())
        stream.done(await stream.heard(), 7)
        await finishing
        assert pub.lost == 2
        assert await stream.silent(1.0)
        await leave(pub)


@virtual_clock
async def test_reconnect_asks_the_stream_before_sending() -> None:
    async with scripted_network(FAST) as net:
        nc, stream = await net.connect(), FastScript(net)
        pub, _ = await start(nc, stream, 100)
        for number in range(2, 5):
            await pub.publish("a", b"%d" % number)
        await stream.heard_all(3)
        net.down()
        await advance(0.1)
        await pub.publish("a", b"5")
        net.up()
        ping = await stream.heard()
        assert word(ping) == (500, 4, 4)
        assert await stream.silent(0.5)
        stream.flow(ping, 0, 100)  # nothing is missing
        assert (word(await stream.heard()), pub.pending) == ((500, 5, 1), 5)
        await leave(pub)


@virtual_clock
async def test_forgotten_batch_is_uncertain_without_ids() -> None:
    unknown = {"error": {"code": 400, "err_code": 10208, "description": "unknown"}, "stream": "S", "seq": 0}
    async with scripted_network(FAST) as net:
        nc, stream = await net.connect(), FastScript(net)
        pub, _ = await start(nc, stream, 100)
        stream.say((await publish_and_hear(pub, stream)), unknown)
        await advance(STEP)
        with pytest.raises(PublishFailed) as caught:
            await pub.flush()
        assert [type(failed.error) for failed in caught.value.failures] == [PublishUncertain] * 2
        await leave(pub)
    async with scripted_network(FAST) as net:
        nc, stream = await net.connect(), FastScript(net)
        pub, first = await start(nc, stream, 100, auto_msg_id=True)
        stream.say((await publish_and_hear(pub, stream)), unknown)
        again = await stream.heard()
        assert (word(again)[2], again.headers) == (0, first.headers)
        await leave(pub)
    async with scripted_network(FAST) as net:
        nc, stream = await net.connect(), FastScript(net)
        pub, _ = await start(nc, stream, 100, gap="ok")
        stream.say((await publish_and_hear(pub, stream)), unknown)
        await advance(STEP)
        assert (pub.lost, pub.pending) == (2, 0)
        await leave(pub)


async def publish_and_hear(pub: FastPublisher, stream: FastScript) -> Op:
    await pub.publish("a", b"2")
    return await stream.heard(b"2")


@pytest.mark.parametrize("auto_msg_id", [False, True])
@virtual_clock
async def test_silence_ends_at_the_timeout_as_uncertain(auto_msg_id: bool) -> None:
    async with scripted_network(FAST) as net:
        nc = await net.connect()
        pub = nc.jetstream().fast_publisher(timeout=4, auto_msg_id=auto_msg_id)
        async with pub:
            started = asyncio.get_running_loop().time()
            with pytest.raises(PublishTimeout):
                await pub.publish("a")
            assert asyncio.get_running_loop().time() - started == pytest.approx(5, abs=1.1)


@virtual_clock
async def test_an_election_is_waited_for() -> None:
    async with scripted_network(FAST) as net:
        nc, stream = await net.connect(), FastScript(net)
        pub = await nc.jetstream(timeout=20).fast_publisher().__aenter__()
        first = asyncio.create_task(pub.publish("a", b"1"))
        stream.nobody(await stream.heard())
        op = await stream.heard()
        assert word(op) == (500, 1, 0)
        stream.flow(op, 0, 100)
        await first
        lost = await publish_and_hear(pub, stream)
        for _ in range(5):
            stream.nobody(lost)
            lost = await stream.heard()
            assert word(lost) == (500, 2, 4)
        stream.gap(lost, 2, 3)
        stream.done(lost, 1)
        again = await stream.heard()
        assert (word(again), again.payload) == ((500, 1, 0), b"2")
        await leave(pub)


@pytest.mark.parametrize("auto_msg_id", [False, True])
@virtual_clock
async def test_missing_stream_between_batches_times_out(auto_msg_id: bool) -> None:
    async with scripted_network(FAST) as net:
        nc, stream = await net.connect(), FastScript(net)
        pub = await nc.jetstream(timeout=4).fast_publisher(auto_msg_id=auto_msg_id).__aenter__()
        first = asyncio.create_task(pub.publish("a", b"1"))
        stream.flow(await stream.heard(), 0, 100)
        await first
        flushing = asyncio.create_task(pub.flush())
        stream.done(await stream.heard(), 1)
        await flushing
        await advance(0.8)  # into the second that began with the first message
        await pub.publish("a", b"2")
        await pub.publish("a", b"3")
        started = asyncio.get_running_loop().time()
        flushing = asyncio.create_task(pub.flush())

        async def nobody() -> None:
            while True:
                stream.nobody(await stream.heard())

        deaf = asyncio.create_task(nobody())
        with pytest.raises(PublishFailed) as caught:
            await flushing
        deaf.cancel()
        assert 4 <= asyncio.get_running_loop().time() - started <= 5.1
        kinds = [(failed.number, type(failed.error)) for failed in caught.value.failures]
        assert kinds == [(2, NoStream), (3, JetStreamError)]
        with pytest.raises(LocalProtocolError, match="no stream has the subject"):
            await pub.publish("a", b"4")
        await leave(pub)


@virtual_clock
async def test_a_busy_stream_is_given_time() -> None:
    async with scripted_network(FAST) as net:
        nc, stream = await net.connect(), FastScript(net)
        pub = await nc.jetstream(timeout=20).fast_publisher().__aenter__()
        first = asyncio.create_task(pub.publish("a", b"1"))
        for _ in range(3):
            stream.refuse(await stream.heard(), 10211, "too many inflight", 429)
        stream.flow(await stream.heard(), 0, 100)
        assert await first == 1
        await leave(pub)


@virtual_clock
async def test_a_commit_whose_answer_was_lost_is_sent_again() -> None:
    async with scripted_network(FAST) as net:
        nc, stream = await net.connect(), FastScript(net)
        pub, _ = await start(nc, stream, 100)
        committing = asyncio.create_task(pub.commit("a", b"2"))
        assert word(await stream.heard()) == (500, 2, 2)
        again = await stream.heard()
        assert (word(again), again.payload) == ((500, 2, 2), b"2")
        stream.done(again, 2)
        assert (await committing).count == 2
        flushing = asyncio.create_task(pub.publish("a", b"3"))
        op = await stream.heard()
        stream.flow(op, 0, 100)
        await flushing
        flush = asyncio.create_task(pub.flush())
        assert word(await stream.heard()) == (500, 2, 3)
        net.down()
        await advance(0.1)
        net.up()
        end = await stream.heard()
        assert word(end) == (500, 2, 3)
        stream.done(end, 1)
        await flush
        await leave(pub)


@virtual_clock
async def test_server_without_fast_ingest_is_noticed() -> None:
    async with scripted_network(Behaviour(greeting={"version": "2.12.8", "api_lvl": 3})) as net:
        nc = await net.connect()
        with pytest.raises(UnsupportedByServer, match=r"2\.14"):
            async with nc.jetstream().fast_publisher():
                pass
    async with scripted_network(FAST) as net:
        nc, stream = await net.connect(), FastScript(net)
        async with nc.jetstream().fast_publisher() as pub:
            first = asyncio.create_task(pub.publish("a", b"1"))
            stream.ack(await stream.heard(), 7)
            with pytest.raises(UnsupportedByServer, match="stored the message alone"):
                await first
            assert pub.pending == 0
            with pytest.raises(UnsupportedByServer):
                await pub.publish("a", b"2")


@virtual_clock
async def test_a_denied_subject_or_a_closed_client_ends_it() -> None:
    async with scripted_network(FAST) as net:
        nc, stream = await net.connect(), FastScript(net)
        pub = nc.jetstream().fast_publisher()
        async with pub:
            first = asyncio.create_task(pub.publish("secret"))
            await stream.heard()
            net.server.err('Permissions Violation for Publish to "secret"')
            with pytest.raises(PermissionDenied):
                await first
    async with scripted_network(FAST) as net:
        nc, stream = await net.connect(), FastScript(net)
        pub, _ = await start(nc, stream, 100)
        await nc.close()
        with pytest.raises(PublishFailed):
            await pub.flush()
        with pytest.raises(ConnectionClosed):
            await pub.publish("a")


@virtual_clock
async def test_answers_that_make_no_sense_do_no_harm() -> None:
    async with scripted_network(FAST) as net:
        nc, stream = await net.connect(), FastScript(net)
        pub, op = await start(nc, stream, 100)
        inbox = ".".join(op.args[1].split(".")[:2])
        for token in ("x", "a.b.c.d.e.f", f"{batch_of(op)}.500.fail.x.1.$FI", "other.500.fail.1.1.$FI"):
            net.server.send(f"MSG {inbox}.{token} 1 2\r\n{{}}\r\n".encode())
        await publish_and_hear(pub, stream)
        stream.say(op, {"type": "ack", "seq": -1, "msgs": "many"})
        await advance(STEP)
        with pytest.raises(PublishFailed):
            await pub.flush()
        await leave(pub)
