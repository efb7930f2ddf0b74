"""A real server that is killed and started again: what comes back, what waits, what is said."""

from __future__ import annotations

import asyncio
import collections
import random
from collections.abc import Callable

import pytest

import natsproto
from natsproto._client import Client
from natsproto._core.engine.engine import State
from natsproto._core.events import Closed, Disconnected, Event, Reconnected, Reconnecting
from natsproto.errors import (
    ConnectFailed,
    ConnectionClosed,
    ConnectionLost,
    DrainTimeout,
    NatsError,
    NoResponders,
    OutboxFull,
    RequestTimeout,
)
from natsproto.protocol.frames import Message
from natsproto.testing import FaultProxy, Server, run_server
from tests.faults.helpers import EventRecorder, free_port
from tests.kit.waiting import until
from tests.server.helpers import both_loops, client


async def kill(server: Server, *clients: Client) -> None:
    """Kills the server, and returns when the clients know."""
    server.kill()
    await until(lambda: not any(nc.is_connected for nc in clients))


async def restart(server: Server, *clients: Client) -> None:
    """Starts it again, and returns when the clients are back."""
    await server.restart()
    for nc in clients:
        await nc.flush(timeout=10)


# ---------------------------------------------------------------- what comes back


@both_loops
async def test_after_a_kill_everything_goes_on_where_it_was(nats_server: Server) -> None:
    recorder = EventRecorder()
    async with client(nats_server.url, on_event=recorder) as nc:
        called: list[bytes] = []
        read = await nc.subscribe("a.*")
        await nc.subscribe("a.>", cb=lambda message: called.append(message.data))
        await nc.subscribe("svc", queue="q", cb=lambda message: message.respond(b"pong"))
        assert (await nc.request("svc", timeout=5)).data == b"pong"
        for round_ in range(3):
            await kill(nats_server, nc)
            await restart(nats_server, nc)
            await nc.publish("a.b", b"%d" % round_)
            assert (await read.next(timeout=5)).data == b"%d" % round_
            assert (await nc.request("svc", timeout=5)).data == b"pong"
        assert called == [b"0", b"1", b"2"]
        assert nc.stats.reconnects == 3
        kinds = [type(event) for event in recorder.events if not isinstance(event, Reconnecting)]
        assert [kind.__name__ for kind in kinds if kind in (Disconnected, Reconnected)] == [
            "Disconnected",
            "Reconnected",
        ] * 3
        assert all(isinstance(event.cause, ConnectionLost) for event in recorder.of(Disconnected))


async def test_many_subscriptions_come_back_in_slices(nats_server: Server, seed: int) -> None:
    """Subscriptions that begin, end and get a limit between two slices are as the user left them."""
    rng = random.Random(seed)
    got: collections.Counter[str] = collections.Counter()

    def count(message: Message) -> None:
        got[message.subject] += 1

    async with client(nats_server.url) as nc, client(nats_server.url) as other:
        live = {f"many.{number}": await nc.subscribe(f"many.{number}", cb=count) for number in range(4500)}
        limits: dict[str, int] = {}
        await kill(nats_server, nc)
        restarting = asyncio.ensure_future(restart(nats_server, nc, other))
        changes = 0
        while not nc.is_connected:
            await asyncio.sleep(0)
            if nc._engine._new_session is None:
                continue
            changes += 1
            gone, limited = rng.sample(sorted(live.keys() - limits.keys()), 2)
            await live.pop(gone).unsubscribe()
            await live[limited].unsubscribe(max_messages=2)
            limits[limited] = 2
            live[f"new.{changes}"] = await nc.subscribe(f"new.{changes}", cb=count)
        await restarting
        assert changes >= 3
        for number in range(3 * 4500):
            await other.publish(f"many.{number % 4500}")
        for number in range(changes):
            await other.publish(f"new.{number + 1}")
        await other.flush()
        await nc.flush()
        for name in live:
            await until(lambda name=name: got[name] == limits.get(name, 1 if name.startswith("new") else 3))  # type: ignore[misc]
        assert sum(got.values()) == sum(got[name] for name in live)


@both_loops
async def test_an_auto_unsubscribe_counts_over_a_restart(nats_server: Server) -> None:
    async with client(nats_server.url) as nc, client(nats_server.url) as other:
        read = await nc.subscribe("a", max_messages=10)
        called: list[Message] = []
        await nc.subscribe("a", cb=called.append, max_messages=5)
        await nc.flush()
        for _ in range(4):
            await other.publish("a", b"before")
        await other.flush()
        await nc.flush()
        await kill(nats_server, nc, other)
        await restart(nats_server, nc, other)
        for _ in range(20):
            await other.publish("a", b"after")
        await other.flush()
        async with asyncio.timeout(10):
            assert [m.data async for m in read] == [b"before"] * 4 + [b"after"] * 6
        await nc.flush()
        assert [m.data for m in called] == [b"before"] * 4 + [b"after"]


@both_loops
async def test_publish_and_subscribe_in_an_outage(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        before = await nc.subscribe("a")
        gone = await nc.subscribe("a")
        await nc.flush()
        await kill(nats_server, nc)
        await nc.publish("a", b"1")
        during = await nc.subscribe("a")
        await gone.unsubscribe()
        await nc.publish("a", b"2")
        await restart(nats_server, nc)
        for sub in (before, during):
            assert [(await sub.next(timeout=5)).data for _ in range(2)] == [b"1", b"2"]
        assert gone.pending_msgs == 0
        await nc.publish("a", b"3")
        await nc.flush()
        assert (before.pending_msgs, during.pending_msgs, gone.pending_msgs) == (1, 1, 0)


@both_loops
async def test_outbox_of_an_outage_arrives_once_in_order(nats_server: Server) -> None:
    sizes = [0, 1, 100, 65_536, 300_000, 5] * 5
    async with client(nats_server.url) as nc:
        sub = await nc.subscribe("a")
        await nc.flush()
        await kill(nats_server, nc)
        for number, size in enumerate(sizes):
            await nc.publish("a", b"%d" % (number % 10) * size, headers={"n": str(number)})
        assert nc.stats.buffered_msgs == len(sizes)
        await restart(nats_server, nc)
        for number, size in enumerate(sizes):
            message = await sub.next(timeout=5)
            assert (message.headers["n"], len(message.data)) == (str(number), size)
            assert message.data == b"%d" % (number % 10) * size
        await nc.flush()
        assert sub.pending_msgs == 0


@both_loops
async def test_outbox_full_in_an_outage(nats_server: Server) -> None:
    async with client(nats_server.url, outbox_limit=64 * 1024) as nc:
        sub = await nc.subscribe("a")
        await kill(nats_server, nc)
        taken = 64 * 1024 // len(b"PUB a 1004\r\n0000\r\n" + bytes(1000))
        for number in range(taken):
            await nc.publish("a", b"%04d" % number + bytes(1000))
        with pytest.raises(OutboxFull, match="65536"):
            await nc.publish("a", bytes(1004))
        await restart(nats_server, nc)
        got = [(await sub.next(timeout=5)).data[:4] for _ in range(taken)]
        assert got == [b"%04d" % number for number in range(taken)]
        await nc.publish("a", bytes(100_000))
        assert len((await sub.next(timeout=5)).data) == 100_000


# ---------------------------------------------------------------- what one may do meanwhile


@both_loops
async def test_requests_over_an_outage(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        await nc.subscribe("deaf")
        await nc.subscribe("svc", cb=lambda message: message.respond(b"pong"))
        pending = [asyncio.create_task(nc.request("deaf", timeout=30)) for _ in range(5)]
        await nc.flush()
        loop = asyncio.get_running_loop()
        began = loop.time()
        nats_server.kill()
        results = await asyncio.gather(*pending, return_exceptions=True)
        assert [type(result) for result in results] == [ConnectionLost] * 5
        assert loop.time() - began < 10
        waiting = asyncio.create_task(nc.request("svc", timeout=30))
        await asyncio.sleep(0)
        await nats_server.restart()
        assert (await waiting).data == b"pong"


@both_loops
async def test_request_in_an_outage_times_out(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        await kill(nats_server, nc)
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(RequestTimeout):
            await nc.request("svc", timeout=0.2)
        with pytest.raises(RequestTimeout):
            await nc.flush(timeout=0.2)
        assert 0.4 <= loop.time() - began + 0.01 < 10
        await restart(nats_server, nc)
        with pytest.raises(NoResponders):
            await nc.request("svc", timeout=5)


@both_loops
async def test_a_subscription_can_be_drained_over_a_restart(nats_server: Server) -> None:
    handled: list[bytes] = []

    async def slowly(message: Message) -> None:
        await asyncio.sleep(0.001)
        handled.append(message.data)

    async with client(nats_server.url) as nc:
        sub = await nc.subscribe("a", cb=slowly)
        for number in range(20):
            await nc.publish("a", b"%d" % number)
        await nc.flush()
        await kill(nats_server, nc)
        draining = asyncio.create_task(sub.drain(timeout=20))
        await asyncio.sleep(0)
        await restart(nats_server, nc)
        await draining
        assert handled == [b"%d" % number for number in range(20)]
        assert sub.closed
        with pytest.raises(NoResponders):
            await nc.request("a", timeout=5)


@both_loops
async def test_drain_in_an_outage_sends_the_outbox_later(nats_server: Server) -> None:
    async with client(nats_server.url) as other:
        sub = await other.subscribe("a")
        nc = await natsproto.connect(nats_server.url)
        await nc.subscribe("b", cb=lambda _: None)
        await kill(nats_server, nc, other)
        await nc.publish("a", b"kept")
        draining = asyncio.create_task(nc.drain(timeout=20))
        await asyncio.sleep(0)
        assert str(nc.state) == "draining"
        with pytest.raises(ConnectionClosed):
            await nc.subscribe("c")
        await nats_server.restart()
        await draining
        assert nc.state is State.CLOSED
        await other.flush(timeout=10)
        # Whether other was back in time to hear it is chance; that it was sent is not.
        assert nc.stats.buffered_msgs == 0
        assert nc.stats.out_msgs == 1
        await sub.unsubscribe()


@both_loops
async def test_draining_while_down_gives_up_at_its_deadline(nats_server: Server) -> None:
    nc = await natsproto.connect(nats_server.url)
    await kill(nats_server, nc)
    await nc.publish("a", b"lost")
    with pytest.raises(DrainTimeout, match="1 messages not sent"):
        await nc.drain(timeout=0.3)
    assert nc.state is State.CLOSED


@both_loops
async def test_close_in_an_outage_is_immediate(nats_server: Server) -> None:
    nc = await natsproto.connect(nats_server.url)
    sub = await nc.subscribe("a")
    await kill(nats_server, nc)
    loop = asyncio.get_running_loop()
    waiting = [
        asyncio.create_task(nc.request("svc", timeout=30)),
        asyncio.create_task(nc.flush(timeout=30)),
        asyncio.create_task(sub.next()),
    ]
    await asyncio.sleep(0)
    began = loop.time()
    await nc.close()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert loop.time() - began < 10
    assert all(isinstance(result, NatsError) for result in results)
    assert [type(result) for result in results[:2]] == [ConnectionClosed] * 2


@both_loops
async def test_readers_wait_over_the_outage_without_noticing(nats_server: Server) -> None:
    async with client(nats_server.url) as nc:
        sub = await nc.subscribe("a", max_messages=6)
        got: list[bytes] = []

        async def reader() -> None:
            async for message in sub:
                got.append(message.data)  # noqa: PERF401  (read as it comes)

        task = asyncio.create_task(reader())
        for round_ in range(3):
            for _ in range(2):
                await nc.publish("a", b"%d" % round_)
            await nc.flush()
            if round_ < 2:
                await kill(nats_server, nc)
                await restart(nats_server, nc)
        async with asyncio.timeout(10):
            await task
        assert got == [b"0", b"0", b"1", b"1", b"2", b"2"]


# ---------------------------------------------------------------- other servers


@both_loops
async def test_next_server_takes_over_at_once() -> None:
    async with run_server() as first, run_server() as second:
        recorder = EventRecorder(Reconnected)
        servers = [first.url, second.url]
        nc = await natsproto.connect(
            servers, randomize=False, on_event=recorder, reconnect_wait=60, reconnect_wait_max=60
        )
        async with nc.subscribe("a") as sub:
            assert nc.connected_url == first.url
            first.kill()
            back = await recorder.wait(Reconnected)
            assert nc.connected_url == second.url
            assert back.outage < 10
            await nc.publish("a", b"x")
            assert (await sub.next(timeout=5)).data == b"x"
        await nc.close()


@both_loops
async def test_silent_server_does_not_hold_up_the_others() -> None:
    """The first server of the list accepts and is silent: the second one has us after connect_timeout."""
    async with run_server() as server, FaultProxy(server.host, server.port) as proxy:
        proxy.stall()
        nc = await natsproto.connect([proxy.url, server.url], randomize=False, connect_timeout=1)
        assert nc.connected_url == server.url
        await nc.close()


@both_loops
async def test_set_servers_counts_at_the_next_reconnect() -> None:
    async with run_server() as first, run_server() as second:
        recorder = EventRecorder(Reconnected)
        nc = await natsproto.connect(first.url, on_event=recorder)
        nc.set_servers(second.url)
        assert nc.connected_url == first.url
        await nc.reconnect()
        await recorder.wait(Reconnected)
        assert nc.connected_url == second.url
        await nc.close()


# ---------------------------------------------------------------- the first connect


@both_loops
async def test_connect_to_a_dead_port_names_the_cause() -> None:
    port = free_port()
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(ConnectFailed) as failed:
        await natsproto.connect(f"nats://127.0.0.1:{port}", connect_timeout=30)
    assert loop.time() - began < 10
    [(address, cause)] = failed.value.attempts
    assert address == f"127.0.0.1:{port}"
    assert isinstance(cause, ConnectionRefusedError)
    assert address in str(failed.value)
    assert str(cause) in str(failed.value)


@both_loops
async def test_every_dead_address_is_listed() -> None:
    ports = [free_port() for _ in range(3)]
    with pytest.raises(ConnectFailed) as failed:
        await natsproto.connect([f"nats://127.0.0.1:{port}" for port in ports])
    assert {address for address, _ in failed.value.attempts} == {f"127.0.0.1:{port}" for port in ports}
    assert all(f"127.0.0.1:{port}" in str(failed.value) for port in ports)


@both_loops
async def test_a_silent_server_fails_at_the_timeout(nats_server: Server) -> None:
    async with FaultProxy(nats_server.host, nats_server.port) as proxy:
        proxy.stall()
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(ConnectFailed, match="waiting for INFO"):
            await natsproto.connect(proxy.url, connect_timeout=1.5)
        assert 1.49 <= loop.time() - began < 10


@both_loops
async def test_the_monitoring_port_is_named(nats_server: Server) -> None:
    port = nats_server.monitoring_url.rpartition(":")[2]
    for user in (None, "ann"):
        with pytest.raises(ConnectFailed, match="monitoring port"):
            await natsproto.connect(f"nats://127.0.0.1:{port}", connect_timeout=1, user=user, password=user)


@both_loops
async def test_a_name_that_does_not_exist_fails_in_words() -> None:
    with pytest.raises(ConnectFailed) as failed:
        await natsproto.connect("nats://no-such-host.invalid:4222", connect_timeout=5)
    [(address, cause)] = failed.value.attempts
    assert address == "no-such-host.invalid:4222"
    assert isinstance(cause, OSError | RequestTimeout)
    await asyncio.get_running_loop().shutdown_default_executor()


@both_loops
async def test_first_connect_retried_until_the_server_is_up() -> None:
    async with run_server() as server:
        server.kill()
        nc = await natsproto.connect(server.url, retry_on_failed_connect=True)
        sub = await nc.subscribe("a")
        await nc.publish("a", b"early")
        assert not nc.is_connected
        await server.restart()
        assert (await sub.next(timeout=10)).data == b"early"
        await nc.close()


# ---------------------------------------------------------------- the end of patience


@pytest.mark.parametrize(
    "options", [{"allow_reconnect": False}, {"max_reconnect_attempts": 2, "reconnect_wait": 0.01, "jitter": 0}], ids=str
)
@both_loops
async def test_when_no_server_comes_back_all_are_informed(nats_server: Server, options: dict[str, object]) -> None:
    reported: list[Event] = []
    nc = await natsproto.connect(nats_server.url, on_event=reported.append, **options)  # type: ignore[arg-type]
    sub = await nc.subscribe("a")
    events = nc.events()
    nats_server.kill()
    async with asyncio.timeout(10):
        reason = await nc.wait_closed()
        assert reason is not None
        assert [event async for event in events][-1] == Closed(reason=reason)
    assert reported[-1] == Closed(reason=reason)
    with pytest.raises(NatsError):
        await sub.next(timeout=1)
    calls: list[Callable[[], object]] = [lambda: nc.publish_nowait("a"), lambda: nc.subscribe("a")]
    for call in calls:
        with pytest.raises(ConnectionClosed):
            call()
    with pytest.raises(ConnectionClosed):
        await nc.request("a", timeout=1)
    with pytest.raises(ConnectionClosed):
        await nc.flush(timeout=1)
    await nc.close()
