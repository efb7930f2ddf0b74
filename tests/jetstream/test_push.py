"""Push consumers: flow control that holds the server back, heartbeats, groups, and consumers made by others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import natsproto
from natsproto import Client
from natsproto.errors import (
    ConfigError,
    ConsumerDeleted,
    ConsumerGone,
    ConsumerNotFound,
    HeartbeatMissed,
    StreamNotFound,
)
from natsproto.jetstream._consumer.push.push import PushConsumer
from tests.core.helpers import ScriptedNetwork, scripted_network, turns_until
from tests.jetstream.reading import api_calls, crash, events, known, make, notices, numbers, open_subscriptions, store
from tests.kit.clock import advance, virtual_clock
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from natsproto.jetstream._context import JetStream
    from natsproto.testing._server import Server

LONG = 30.0


async def test_messages_are_pushed_and_acknowledged(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream, 500)
    push = await stream.create_push_consumer("d")
    async with push.messages() as messages:
        for number in range(1, 501):
            message = await messages.next(timeout=LONG)
            assert message.data == b"%d" % number
            await message.ack()
    await known(push, lambda info: not info.num_ack_pending)
    assert open_subscriptions(nats_client) == 0


async def test_slow_reader_holds_the_server_back(jetstream: JetStream) -> None:
    stream = await make(jetstream)
    await store(stream, range(1, 3001), size=2000)
    push = await stream.create_push_consumer(ack_policy="none", flow_control=True, idle_heartbeat=1.0)
    async with push.messages() as messages:
        await messages.next(timeout=LONG)
        async with (await stream.create_push_consumer(ack_policy="none")).messages(stop_after=3000) as unhindered:
            assert len([message async for message in unhindered]) == 3000
        assert messages.pending < 2900, "as long as it took another one to get everything"
        seen = [1, *numbers([await messages.next(timeout=LONG) for _ in range(2999)])]
    assert seen == list(range(1, 3001))


async def test_push_without_flow_control(jetstream: JetStream) -> None:
    stream = await make(jetstream, 20_000)
    push = await stream.create_push_consumer(ack_policy="none")
    async with push.messages(stop_after=20_000) as messages:
        assert numbers([message async for message in messages]) == list(range(1, 20_001))


async def test_members_of_a_group_share_the_messages(jetstream: JetStream, nats_server: Server) -> None:
    stream = await make(jetstream)
    first = await stream.create_push_consumer(
        durable_name="d", deliver_subject="deliver.d", deliver_group="g", flow_control=True, idle_heartbeat=1.0
    )
    seen: list[list[bytes]] = [[], []]
    async with natsproto.connect(nats_server.url) as nc:
        other = await (await nc.jetstream().stream("S")).push_consumer("d")
        assert (other.deliver_subject, other.deliver_group) == ("deliver.d", "g")
        async with (
            first.consume(lambda message: seen[0].append(message.data)),
            other.consume(lambda message: seen[1].append(message.data)),
        ):
            await nc.flush()
            await store(stream, range(1, 401))
            await eventually(lambda: sum(map(len, seen)) == 400)
    assert all(seen)
    assert sorted(int(data) for part in seen for data in part) == list(range(1, 401))


async def test_existing_consumer_is_bound_without_asking(jetstream: JetStream, nats_client: Client) -> None:
    stream = await make(jetstream, 2)
    await stream.create_push_consumer(durable_name="d", deliver_subject="deliver.d", ack_wait=60)
    async with api_calls(nats_client) as calls:
        bound = await (await jetstream.stream("S", bind=True)).push_consumer("d", deliver_subject="deliver.d")
        async with bound.messages(stop_after=2) as messages:
            assert numbers([message async for message in messages]) == [1, 2]
        await nats_client.flush()
    assert set(calls) <= {"$JS.API.CONSUMER.INFO.S.d"}, "only ack_wait is looked up, in the background"
    with pytest.raises(ConfigError, match=r"open it with push_consumer\(name\)"):
        await stream.consumer("d")
    with pytest.raises(ConfigError, match="is for create_push_consumer"):
        await stream.create_consumer(durable_name="e", deliver_subject="deliver.e")
    with pytest.raises(ConsumerNotFound):
        await stream.push_consumer("nobody")
    await stream.create_consumer(durable_name="pull")
    with pytest.raises(ConfigError, match="is not a push consumer"):
        await stream.push_consumer("pull")
    with pytest.raises(ConfigError):
        bound.messages(stop_after=-1)


async def test_push_unread_messages_go_back_or_wait(jetstream: JetStream) -> None:
    stream = await make(jetstream, 10)
    push = await stream.create_push_consumer(durable_name="d", ack_wait=60)
    async with push.messages() as messages:
        await (await messages.next(timeout=LONG)).ack()
        await eventually(lambda: messages.pending == 9)
    async with push.messages(stop_after=9) as messages:
        again = [message async for message in messages]
    assert sorted(numbers(again)) == list(range(2, 11))
    assert {message.metadata.num_delivered for message in again} == {2}
    plain = await stream.create_push_consumer(durable_name="e", ack_policy="none")
    async with plain.messages() as messages:
        await messages.next(timeout=LONG)
        await eventually(lambda: messages.pending == 9)
    async with plain.messages(stop_after=4) as messages:
        assert numbers([message async for message in messages]) == [2, 3, 4, 5]
    async with plain.messages(stop_after=5) as messages:
        assert numbers([message async for message in messages]) == [6, 7, 8, 9, 10]


async def test_pushing_goes_on_over_a_crash(jetstream: JetStream, nats_server: Server) -> None:
    stream = await make(jetstream, 3, storage="file")
    push = await stream.create_push_consumer(durable_name="d", flow_control=True, idle_heartbeat=0.5)
    async with push.messages() as messages:
        assert numbers([await messages.next(timeout=LONG) for _ in range(3)]) == [1, 2, 3]
        await crash(nats_server, stream)
        await store(stream, [4])
        while (await messages.next(timeout=LONG)).data != b"4":
            pass


@pytest.mark.slow
@pytest.mark.parametrize("what", ["consumer", "stream"])
async def test_push_deletion_is_noticed_by_heartbeats(jetstream: JetStream, nats_client: Client, what: str) -> None:
    stream = await make(jetstream, 1)
    push = await stream.create_push_consumer(durable_name="d", idle_heartbeat=0.1)
    async with events(nats_client) as seen, push.messages() as messages:
        await messages.next(timeout=LONG)
        await (push.delete() if what == "consumer" else jetstream.delete_stream("S"))
        with pytest.raises(ConsumerGone):
            await messages.next(timeout=LONG)
    *missed, last = [type(notice.error) for notice in notices(seen)]
    gone = ConsumerDeleted if what == "consumer" else ConsumerGone
    assert (set(missed), last) == ({HeartbeatMissed}, gone)  # on a busy machine some come late before


async def test_ordered_push_reader_ends_with_its_stream(jetstream: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("natsproto.jetstream._consumer.ordered.ordered_cursor.PUSH_HEARTBEAT_S", 0.1)
    stream = await make(jetstream, 1)
    async with stream.ordered_consumer(push=True).messages() as messages:
        await messages.next(timeout=LONG)
        await jetstream.delete_stream("S")
        with pytest.raises(StreamNotFound):
            await messages.next(timeout=LONG)


# ---------------------------------------------------------------- on a scripted server


def deliver(net: ScriptedNetwork, payload: bytes = b"", *, reply: str = "", headers: bytes | None = None) -> None:
    """To whoever is subscribed to the deliver subject."""
    for sid, interest in net.server.current.interest.items():
        if interest.tokens == ("deliver",):
            net.server.deliver(sid, "s.a", payload, reply=reply, headers=headers)


MAX_FLOW = b"NATS/1.0 100 FlowControl Request\r\n\r\n"


def heartbeat(stalled: str = "") -> bytes:
    more = f"Nats-Consumer-Stalled: {stalled}\r\n" if stalled else ""
    return f"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 2\r\nNats-Last-Stream: 2\r\n{more}\r\n".encode()


def ack_subject(number: int) -> str:
    return f"$JS.ACK.S.C.1.{number}.{number}.1795000000000000000.0"


@virtual_clock
async def test_flow_control_is_answered_after_reading() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        js = nc.jetstream()
        stream = await js.stream("S", bind=True)
        push = await stream.push_consumer("C", deliver_subject="deliver")
        async with push.messages() as messages:
            await nc.flush()
            server = net.server
            deliver(net, b"1", reply=ack_subject(1))
            deliver(net, b"2", reply=ack_subject(2))
            deliver(net, b"", reply="$JS.FC.one", headers=MAX_FLOW)
            deliver(net, b"3", reply=ack_subject(3))
            await turns_until(lambda: messages.pending == 3)
            read = messages.__aiter__()
            assert (await anext(read)).data == b"1"
            await nc.flush()
            before = server.count("PUB")  # the look-up of ack_wait
            assert before <= 1
            assert (await anext(read)).data == b"2"
            assert (await anext(read)).data == b"3"
            waiting = asyncio.ensure_future(anext(read))
            await server.expect("PUB", "$JS.FC.one")
            deliver(net, b"", headers=heartbeat("$JS.FC.two"))
            await server.expect("PUB", "$JS.FC.two")
            deliver(net, b"", headers=heartbeat("$JS.FC.two"))
            deliver(net, b"", headers=heartbeat())
            await nc.flush()
            assert server.count("PUB") == before + 2, "each question is answered once"
            waiting.cancel()
        await nc.close()


@virtual_clock
async def test_three_heartbeats_may_be_late() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        stream = await nc.jetstream().stream("S", bind=True)
        push = await stream.push_consumer("C", deliver_subject="deliver", idle_heartbeat=5.0)
        loop = asyncio.get_running_loop()
        async with events(nc) as seen, push.messages() as messages:
            await nc.flush()
            for _ in range(10):
                await advance(14.0)
                deliver(net, b"", headers=heartbeat())
            await nc.flush()
            assert notices(seen) == []
            heard = loop.time()
            await advance(14.5)
            assert notices(seen) == []
            await advance(1.0)
            assert len(notices(seen)) == 1
            assert loop.time() - heard == pytest.approx(15.5)
            assert messages.pending == 0
            assert isinstance(push, PushConsumer)
        await nc.close()
