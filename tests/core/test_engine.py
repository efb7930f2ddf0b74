"""The engine: a client over all its connections, on a scripted server and virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from natsproto._client import Client
from natsproto._core.engine.engine import CLOSE_TIMEOUT_S, TRANSITIONS, State
from natsproto._core.events import (
    AttemptFailed,
    Closed,
    Connected,
    Disconnected,
    Event,
    HandlerFailed,
    LameDuck,
    PermissionViolation,
    Reconnected,
    Reconnecting,
    ServerErrorEvent,
    ServersDiscovered,
)
from natsproto._core.inbox.inbox_limits import SlowPolicy
from natsproto._core.outbox import CONGESTED_SIZE
from natsproto.errors import (
    ConnectFailed,
    ConnectionClosed,
    ConnectionLost,
    NatsError,
    OutboxFull,
    PermissionDenied,
    RequestTimeout,
    SlowConsumer,
    SubscriptionClosed,
)
from natsproto.protocol.frames import Message
from tests.core.helpers import HOST, PORT, client_lines, published_payloads, scripted_network, turns, turns_until
from tests.faults.helpers import EventRecorder
from tests.kit.clock import advance, virtual_clock
from tests.kit.failures import UnknownExit
from tests.kit.scripted import Behaviour, Op

# ---------------------------------------------------------------- states


def test_state_transitions_end_in_closed() -> None:
    assert set(TRANSITIONS) == set(State)
    assert TRANSITIONS[State.CLOSED] == frozenset()
    assert all(State.CLOSED in following for state, following in TRANSITIONS.items() if state is not State.CLOSED)
    assert TRANSITIONS[State.DRAINING] == {State.CLOSED}


@virtual_clock
async def test_a_life_in_events_and_states() -> None:
    recorder = EventRecorder()
    async with scripted_network() as net:
        nc = await net.connect(on_event=recorder)
        assert (nc.state, nc.is_connected) == (State.OPEN, True)
        (await net.server.connection()).close()
        await recorder.wait(Disconnected)
        assert (nc.state, nc.is_connected, nc.connected_url) == (State.RECONNECTING, False, "")
        await recorder.wait(Reconnected)
        assert (nc.state, nc.is_connected, nc.stats.reconnects) == (State.OPEN, True, 1)
        await nc.drain()
        assert (nc.state, nc.is_connected) == (State.CLOSED, False)
        kinds = [type(event) for event in recorder.events]
        assert kinds == [Connected, Disconnected, Reconnecting, Reconnected, Closed]
        assert recorder.of(Closed)[0].reason is None
        assert await nc.wait_closed() is None


# ---------------------------------------------------------------- reconnecting


@virtual_clock
async def test_subscriptions_are_restored_before_publishing() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        gone = await nc.subscribe("gone")
        await nc.subscribe("a", queue="q")
        await nc.flush()
        net.down()
        await turns_until(lambda: not nc.is_connected)
        await gone.unsubscribe()
        await nc.subscribe("b.*")
        for number in range(3):
            await nc.publish("x", b"%d" % number)
        net.up()
        await nc.flush()
        assert [line for line in client_lines(net, 1) if line != "PING"] == ["SUB a q 2", "SUB b.* 3", *["PUB x"] * 3]
        assert published_payloads(net) == [b"0", b"1", b"2"]


@virtual_clock
async def test_auto_unsubscribe_continues_after_reconnect() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        sub = await nc.subscribe("a", max_messages=10)
        for _ in range(4):
            await nc.publish("a", b"x")
        await nc.flush()
        assert sub.pending_msgs == 4
        net.down()
        await turns_until(lambda: not nc.is_connected)
        net.up()
        await nc.flush()
        assert "UNSUB 1 6" in client_lines(net, 1)
        for _ in range(9):
            await nc.publish("a", b"y")
        await nc.flush()
        assert [message.data for message in [m async for m in sub]] == [b"x"] * 4 + [b"y"] * 6


@virtual_clock
async def test_limit_set_while_down_reaches_next_server() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        sub = await nc.subscribe("a")
        await nc.publish("a", b"x")
        await nc.flush()
        net.down()
        await turns_until(lambda: not nc.is_connected)
        await sub.unsubscribe(max_messages=3)
        net.up()
        for _ in range(5):
            await nc.publish("a", b"y")
        await nc.flush()
        assert "UNSUB 1 2" in client_lines(net, 1)
        assert len([m async for m in sub]) == 3


@virtual_clock
async def test_auto_unsubscribe_limit_is_exact() -> None:
    async with scripted_network(Behaviour(route=False)) as net:
        nc = await net.connect()
        sub = await nc.subscribe("a", max_messages=3)
        await nc.flush()
        net.server.send(b"MSG a 1 1\r\nx\r\n" * 10)
        got = [message async for message in sub]
        assert (len(got), sub.delivered, nc.stats.in_msgs) == (3, 3, 10)


@virtual_clock
async def test_outbox_limit_while_down() -> None:
    async with scripted_network() as net:
        nc = await net.connect(outbox_limit=1000)
        net.down()
        await turns_until(lambda: not nc.is_connected)
        frame = len("PUB a 3\r\n000\r\n")
        taken = 1000 // frame
        for number in range(taken):
            await nc.publish("a", b"%03d" % number)
        with pytest.raises(OutboxFull) as full:
            await nc.publish("a", b"xxx")
        with pytest.raises(OutboxFull):
            nc.publish_nowait("a", b"xxx")
        with pytest.raises(OutboxFull):
            await nc.publish("a", b"xxx", headers={"k": "v"})
        assert full.value.limit == 1000
        assert nc.stats.buffered_msgs == taken
        assert nc.stats.buffered_bytes == taken * frame
        net.up()
        await nc.flush()
        assert published_payloads(net) == [b"%03d" % number for number in range(taken)]
        assert (nc.stats.buffered_msgs, nc.stats.out_msgs) == (0, taken)


@virtual_clock
async def test_messages_kept_over_outage_arrive_in_order() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        sent: list[bytes] = []
        for outage in range(5):
            for size in (0, 1, 70_000, 5):
                payload = b"%d" % (outage % 10) * size
                sent.append(payload)
                await nc.publish("a", payload)
            await nc.flush()
            net.down()
            await turns_until(lambda: not nc.is_connected)
            for size in (3, 100_000, 0):
                payload = b"w" * size
                sent.append(payload)
                await nc.publish("a", payload)
            net.up()
        await nc.flush()
        assert published_payloads(net) == sent


@pytest.mark.parametrize("end", ["reset", "cut", "protocol error"])
@virtual_clock
async def test_publish_after_break_waits_for_next_connection(end: str) -> None:
    """Also not in the few turns of the loop in which the break is known and nobody has been told."""
    async with scripted_network() as net:
        nc = await net.connect()
        await nc.flush()
        if end == "protocol error":
            net.peer.send(b"NONSENSE\r\n")
        else:
            net.peer.reset() if end == "reset" else net.peer.cut()
        kept: list[bytes] = []
        for turn in range(10):
            if not nc.is_connected:
                kept.append(b"%d" % turn)
                await nc.publish("a", kept[-1])
            await turns(1)
        assert kept
        await nc.flush()
        assert [op.payload for op in net.server.ops if op.connection == 1 and op.name == "PUB"] == kept


@virtual_clock
async def test_unconfirmed_messages_are_counted_at_break() -> None:
    recorder = EventRecorder(Disconnected)
    async with scripted_network() as net:
        nc = await net.connect(on_event=recorder)
        for _ in range(3):
            await nc.publish("a", b"x")
        await nc.flush()
        net.peer.stall()
        for _ in range(2):
            await nc.publish("a", b"y")
            await turns(2)
        net.down()
        lost = await recorder.wait(Disconnected)
        assert lost.in_flight + lost.buffered == 2
        net.up()
        await nc.flush()


@virtual_clock
async def test_pending_requests_fail_on_disconnect() -> None:
    async with scripted_network(Behaviour(route=False)) as net:
        nc = await net.connect()
        loop = asyncio.get_running_loop()
        requests = [asyncio.create_task(nc.request(f"a.{n}", timeout=30)) for n in range(20)]
        await net.server.expect("PUB", "a.19")
        began = loop.time()
        net.down()
        results = await asyncio.gather(*requests, return_exceptions=True)
        assert loop.time() == began
        assert all(type(result) is ConnectionLost for result in results)
        assert "request to 'a.7'" in str(results[7])
        net.up()
        await nc.flush()


def writes(nc: Client) -> list[bytes]:
    """What is written from now on, one by one."""
    session = nc._engine.session
    assert session is not None
    wire = session.wire
    assert wire is not None
    written: list[bytes] = []
    write = wire.write

    def watched(data: bytes) -> None:
        written.append(data)
        write(data)

    wire.write = watched  # type: ignore[method-assign]
    return written


@virtual_clock
async def test_requests_after_batched_replies_leave_together() -> None:
    async with scripted_network(Behaviour(route=False)) as net:
        nc = await net.connect()

        async def ask_twice() -> bytes:
            await nc.request("a", b"first", timeout=30)
            return (await nc.request("a", b"second", timeout=30)).data

        asking = [asyncio.create_task(ask_twice()) for _ in range(20)]

        async def answer_all(payload: bytes) -> None:
            asked = [await net.server.expect("PUB", "a", payload=payload) for _ in asking]
            (sid,) = net.server.current.interest
            net.server.send("".join(f"MSG {op.args[1]} {sid} 2\r\nok\r\n" for op in asked).encode())

        await answer_all(b"first")
        written = writes(nc)
        await answer_all(b"second")
        assert await asyncio.gather(*asking) == [b"ok"] * 20
        assert [data.count(b"second") for data in written] == [20]


@virtual_clock
async def test_requests_wait_over_outage_by_option() -> None:
    async with scripted_network(Behaviour(route=False)) as net:
        nc = await net.connect(fail_requests_on_disconnect=False)
        pending = asyncio.create_task(nc.request("a", timeout=30))
        op = await net.server.expect("PUB", "a")
        net.down()
        await turns_until(lambda: not nc.is_connected)
        net.up()
        await nc.flush()
        resubscribed = await net.server.expect("SUB", op.args[1].rpartition(".")[0] + ".*")
        net.server.deliver(resubscribed.args[1], op.args[1], b"late")
        assert (await pending).data == b"late"


@virtual_clock
async def test_request_while_down_is_sent_when_up() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        other = await net.connect(name="other")
        await other.subscribe("svc", cb=lambda message: message.respond(b"pong"))
        net.down()
        await turns_until(lambda: not nc.is_connected and not other.is_connected)
        pending = asyncio.create_task(nc.request("svc", b"ping", timeout=60))
        await turns(5)
        net.up()
        # The responder may be back later than the request: then nobody listens, and that is said.
        try:
            assert (await pending).data == b"pong"
        except NatsError as exc:
            assert type(exc).__name__ == "NoResponders"  # noqa: PT017


@virtual_clock
async def test_request_while_down_times_out() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        net.down()
        await turns_until(lambda: not nc.is_connected)
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(RequestTimeout):
            await nc.request("svc", timeout=3)
        assert loop.time() - began == pytest.approx(3, abs=1e-6)


@virtual_clock
async def test_the_next_server_of_the_list_takes_over() -> None:
    recorder = EventRecorder(Reconnected, AttemptFailed)
    async with scripted_network() as net:
        net.network.listen(HOST, 4223, net.server.accept)
        nc = await net.connect(f"nats://{HOST}:4222,nats://{HOST}:4223", randomize=False, on_event=recorder)
        assert nc.connected_url == f"nats://{HOST}:4222"
        sub = await nc.subscribe("a")
        net.down()
        back = await recorder.wait(Reconnected)
        assert back.server == f"{HOST}:4223"
        assert back.outage == 0, "the first attempt waits for nothing"
        await nc.publish("a", b"x")
        assert (await sub.next(timeout=5)).data == b"x"


@virtual_clock
async def test_exhausted_attempts_close_client() -> None:
    recorder = EventRecorder()
    async with scripted_network() as net:
        nc = await net.connect(on_event=recorder, max_reconnect_attempts=3)
        sub = await nc.subscribe("a")
        await nc.publish("a", b"unread")
        await nc.flush()
        reader = asyncio.create_task(_read_to_the_end(sub))
        flush = None
        net.down()
        await turns_until(lambda: not nc.is_connected)
        flush = asyncio.create_task(nc.flush(timeout=1000))
        reason = await nc.wait_closed()
        assert isinstance(reason, ConnectFailed)
        [(server, cause)] = reason.attempts
        assert server == f"{HOST}:{PORT}"
        assert isinstance(cause, ConnectionRefusedError)
        assert len(recorder.of(AttemptFailed)) == 3
        assert recorder.of(Closed)[0].reason is reason
        got, error = await reader
        assert [message.data for message in got] == [b"unread"]
        assert isinstance(error, ConnectionLost)
        with pytest.raises(ConnectionClosed):
            await flush
        with pytest.raises(ConnectionClosed):
            await nc.publish("a")


async def _read_to_the_end(sub: object) -> tuple[list[Message], BaseException | None]:
    got: list[Message] = []
    try:
        async for message in sub:  # type: ignore[attr-defined]
            got.append(message)  # noqa: PERF401  (what came before the error counts)
    except NatsError as exc:
        return got, exc
    return got, None


@virtual_clock
async def test_break_without_reconnect_closes_client() -> None:
    async with scripted_network() as net:
        nc = await net.connect(allow_reconnect=False)
        handled: list[bytes] = []

        async def slowly(message: Message) -> None:
            await advance(0.1)
            handled.append(message.data)

        await nc.subscribe("a", cb=slowly)
        for number in range(5):
            await nc.publish("a", b"%d" % number)
        await nc.flush()
        net.down()
        assert isinstance(await nc.wait_closed(), ConnectionLost)
        await advance(5)
        assert handled == [b"%d" % number for number in range(5)], "what was received is handled all the same"


@virtual_clock
async def test_first_connect_is_retried_in_background() -> None:
    recorder = EventRecorder()
    async with scripted_network() as net:
        net.down()
        nc = await net.connect(retry_on_failed_connect=True, on_event=recorder)
        assert nc.state is State.RECONNECTING
        await nc.publish("a", b"early")
        sub = await nc.subscribe("a")
        await advance(20)
        assert recorder.of(AttemptFailed)
        net.up()
        await nc.flush(timeout=10)
        assert (await sub.next(timeout=1)).data == b"early"


@virtual_clock
async def test_connect_failed_names_every_cause() -> None:
    recorder = EventRecorder()
    async with scripted_network() as net:
        net.network.black_hole("10.0.0.9", 4222)
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(ConnectFailed) as failed:
            await net.connect(
                "nats://10.0.0.7:4222,nats://10.0.0.9", randomize=False, connect_timeout=1.5, on_event=recorder
            )
        assert loop.time() - began == pytest.approx(1.5, abs=1e-6)
        assert failed.value.elapsed == pytest.approx(1.5, abs=1e-6)
        [(first, refused), (second, silent)] = failed.value.attempts
        assert (first, second) == ("10.0.0.7:4222", "10.0.0.9:4222")
        assert isinstance(refused, ConnectionRefusedError)
        assert isinstance(silent, RequestTimeout)
        assert all(part in str(failed.value) for part in ("10.0.0.7:4222", "10.0.0.9:4222", "Connect call failed"))
        assert [type(event) for event in recorder.events] == [AttemptFailed, AttemptFailed, Closed]


@virtual_clock
async def test_reconnect_changes_server_without_waiting() -> None:
    recorder = EventRecorder(Reconnected)
    async with scripted_network() as net:
        net.network.listen(HOST, 4223, net.server.accept)
        nc = await net.connect(f"nats://{HOST}:4222,nats://{HOST}:4223", randomize=False, on_event=recorder)
        await nc.reconnect()
        assert (await recorder.wait(Reconnected)).server == f"{HOST}:4223"
        net.network.refuse(HOST, 4223)
        net.down()
        await turns_until(lambda: not nc.is_connected)
        await advance(30)
        net.up()
        began = asyncio.get_running_loop().time()
        await nc.reconnect()
        await recorder.wait(Reconnected, 2)
        assert asyncio.get_running_loop().time() == began, "the back-off was cut short"


@virtual_clock
async def test_discovered_servers_are_used() -> None:
    recorder = EventRecorder()
    async with scripted_network(Behaviour(greeting={"connect_urls": [f"{HOST}:4224", f"{HOST}:4222"]})) as net:
        net.network.listen(HOST, 4224, net.server.accept)
        nc = await net.connect(on_event=recorder)
        assert recorder.of(ServersDiscovered)[0].servers == (f"{HOST}:4224",)
        assert nc.discovered_servers == (f"{HOST}:4224",)
        net.down()
        assert (await recorder.wait(Reconnected)).server == f"{HOST}:4224"


# ---------------------------------------------------------------- publishing under pressure


@virtual_clock
async def test_publish_waits_for_congested_server() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        await net.server.connection()
        net.peer.stall()

        async def publisher() -> None:
            for _ in range(200):
                await nc.publish("a", bytes(10_000))

        task = asyncio.create_task(publisher())
        await advance(10)
        assert not task.done()
        held = nc.stats.buffered_bytes
        assert held < 400_000, "bytes kept while the server takes nothing"
        net.peer.unstall()
        await task
        await nc.flush()
        assert [len(payload) for payload in published_payloads(net)] == [10_000] * 200


@virtual_clock
async def test_many_publishers_wait_under_pressure() -> None:
    async with scripted_network() as net:
        nc = await net.connect(outbox_limit=500_000)
        await net.server.connection()
        net.peer.stall()
        tasks = [asyncio.create_task(nc.publish("a", b"%04d" % n + bytes(2000))) for n in range(1000)]
        await advance(1)
        assert nc.stats.buffered_bytes < 500_000
        net.peer.unstall()
        await asyncio.gather(*tasks)
        await nc.flush()
        assert sorted(payload[:4] for payload in published_payloads(net)) == [b"%04d" % n for n in range(1000)]


@virtual_clock
async def test_flush_is_not_starved_by_publishing() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        await net.server.connection()
        stop = False

        async def publisher() -> None:
            while not stop:
                await nc.publish("a", bytes(50_000))

        async def slow_peer() -> None:
            while not stop:
                net.peer.unstall()
                await turns(2)
                net.peer.stall()
                await asyncio.sleep(0.01)

        tasks = [asyncio.create_task(publisher()), asyncio.create_task(slow_peer())]
        await advance(1)
        await nc.flush(timeout=2)
        stop = True
        net.peer.unstall()
        await asyncio.gather(*tasks)
        net.peer.unstall()


# ---------------------------------------------------------------- permissions and complaints


@virtual_clock
async def test_denied_request_fails_alone() -> None:
    async with scripted_network(Behaviour(route=False)) as net:
        nc = await net.connect()
        recorder = nc.events()
        denied = asyncio.create_task(nc.request("secret", timeout=30))
        other = asyncio.create_task(nc.request("open", timeout=30))
        op = await net.server.expect("PUB", "open")
        net.server.err('Permissions Violation for Publish to "secret"')
        with pytest.raises(PermissionDenied) as error:
            await denied
        assert (error.value.operation, error.value.subject) == ("publish to", "secret")
        assert isinstance(await anext(recorder), PermissionViolation)
        net.server.deliver(1, op.args[1], b"ok")
        assert (await other).data == b"ok"


@virtual_clock
async def test_a_denied_subscription_ends_with_the_reason() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        denied, fine = await nc.subscribe("secret.>"), await nc.subscribe("fine")
        reading = asyncio.create_task(denied.next())
        await nc.flush()
        net.server.err('Permissions Violation for Subscription to "secret.>"')
        with pytest.raises(PermissionDenied, match="secret"):
            await reading
        with pytest.raises(PermissionDenied):
            [message async for message in denied]
        assert denied.closed
        assert not fine.closed
        await nc.publish("fine", b"x")
        assert (await fine.next(timeout=1)).data == b"x"


@virtual_clock
async def test_denied_request_inbox_fails_requests() -> None:
    async with scripted_network(Behaviour(route=False)) as net:
        nc = await net.connect()
        pending = asyncio.create_task(nc.request("a", timeout=30))
        op = await net.server.expect("SUB")
        await net.server.expect("PUB", "a")
        net.server.err(f'Permissions Violation for Subscription to "{op.args[0]}"')
        with pytest.raises(PermissionDenied, match="_INBOX"):
            await pending
        again = asyncio.create_task(nc.request("a", timeout=30))
        op = await net.server.expect("PUB", "a")
        inbox = await net.server.expect("SUB")
        net.server.deliver(inbox.args[1], op.args[1], b"ok")
        assert (await again).data == b"ok"


@virtual_clock
async def test_other_complaints_are_reported_by_an_event() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        events = nc.events()
        await net.server.connection()
        net.server.err("Invalid Subject")
        event = await anext(events)
        assert isinstance(event, ServerErrorEvent)
        assert "Invalid Subject" in str(event.error)
        assert nc.is_connected


# ---------------------------------------------------------------- events


@virtual_clock
async def test_events_begin_at_the_call() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        first = nc.events()
        connection = await net.server.connection()
        connection.err("one")
        await turns(5)
        second = nc.events()
        connection.err("two")
        await turns(5)
        await nc.close()

        async def texts(events: object) -> list[str]:
            return [str(getattr(e, "error", type(e).__name__)) async for e in events]  # type: ignore[attr-defined]

        assert await texts(first) == ["server error: one", "server error: two", "Closed"]
        assert await texts(second) == ["server error: two", "Closed"]
        assert await texts(nc.events()) == ["Closed"], "one that comes too late is told that it is over"


@virtual_clock
async def test_abandoned_event_reader_costs_nothing() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        for _ in range(100):
            nc.events()
            reader = nc.events()
            await reader.aclose()
        del reader
        assert not list(nc._engine.event_bus._streams or ())


@pytest.mark.parametrize("kind", [ValueError, UnknownExit, asyncio.CancelledError])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("what", ["on_event", "listener"])
@virtual_clock
async def test_event_callback_error_is_logged(
    kind: type[BaseException], asynchronous: bool, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    def on_event(event: Event) -> Awaitable[None] | None:
        if asynchronous:
            return later(event)
        raise kind(f"about {type(event).__name__}")

    async def later(event: Event) -> None:
        raise kind(f"about {type(event).__name__}")

    caplog.set_level(logging.ERROR, "natsproto")
    async with scripted_network() as net:
        nc = await net.connect(on_event=on_event if what == "on_event" else None)
        if what == "listener":
            nc.add_listener(on_event)
        heard: list[Event] = []
        nc.add_listener(heard.append)
        for number in range(3):
            (await net.server.connection(number)).close()
            await turns_until(partial(_reconnected, nc, number + 1))
        await nc.flush()
        await nc.close()
    assert len(heard) == 3 * 3 + 1
    # What an async one does with its own cancellation is its own affair.
    if not (asynchronous and kind is asyncio.CancelledError):
        failed = sum(f"{what} failed" in record.message for record in caplog.records)
        assert failed == len(heard) + (what == "on_event")  # which hears of Connected as well


@virtual_clock
async def test_ended_listener_gets_no_events() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        heard: list[Event] = []
        unlisten = nc.add_listener(heard.append)
        unlisten()
        unlisten()
        await nc.close()
        assert heard == []


def _reconnected(nc: Client, times: int) -> bool:
    return nc.stats.reconnects == times


@virtual_clock
async def test_message_beyond_bytes_limit_costs_only_itself() -> None:
    recorder = EventRecorder(Disconnected)
    async with scripted_network() as net:
        nc = await net.connect(on_event=recorder)
        sub = await nc.subscribe("a", pending_bytes_limit=100)
        await nc.publish("a", bytes(1000))
        await nc.publish("a", b"small")
        assert (await sub.next(timeout=1)).data == b"small"
        assert (sub.dropped, recorder.events) == (1, [])


@virtual_clock
async def test_policy_error_ends_subscription_after_messages() -> None:
    async with scripted_network(Behaviour(route=False)) as net:
        nc = await net.connect()
        sub = await nc.subscribe("a", pending_msgs_limit=3, slow_policy="error")
        await nc.flush()
        net.server.send(b"MSG a 1 1\r\nx\r\n" * 5)
        got, error = await _read_to_the_end(sub)
        assert len(got) == 3
        assert isinstance(error, SlowConsumer)
        assert "UNSUB 1" in client_lines(net)


@virtual_clock
async def test_policy_pause_loses_nothing() -> None:
    async with scripted_network(Behaviour(route=False)) as net:
        nc = await net.connect()
        sub = await nc.subscribe("a", pending_msgs_limit=5, slow_policy=SlowPolicy.PAUSE)
        await nc.flush()
        for _ in range(100):
            net.server.send(b"MSG a 1 1\r\nx\r\n")
        await advance(1)
        assert sub.pending_msgs == 6
        for _ in range(100):
            await sub.next(timeout=1)
        assert (sub.delivered, sub.dropped) == (100, 0)


@virtual_clock
async def test_ended_paused_subscription_resumes_reading() -> None:
    async with scripted_network(Behaviour(route=False)) as net:
        nc = await net.connect()
        paused = await nc.subscribe("a", pending_msgs_limit=2, slow_policy="pause", max_messages=5)
        await nc.flush()
        net.server.send(b"MSG a 1 1\r\nx\r\n" * 9)
        await turns(5)
        assert paused.closed
        await nc.flush(timeout=5)
        assert paused.pending_msgs == 5


# ---------------------------------------------------------------- closing


@virtual_clock
async def test_close_ends_everything_that_waits_at_once() -> None:
    async with scripted_network(Behaviour(route=False, answer_ping=True)) as net:
        nc = await net.connect()
        connection = await net.server.connection()
        sub = await nc.subscribe("a")
        loop = asyncio.get_running_loop()
        connection.behaviour = Behaviour(answer_ping=False, route=False)
        requests = [asyncio.create_task(nc.request("x", timeout=30)) for _ in range(20)]
        flush, rtt = asyncio.create_task(nc.flush(timeout=30)), asyncio.create_task(nc.rtt(timeout=30))
        reader, following = asyncio.create_task(_read_to_the_end(sub)), asyncio.create_task(sub.next(timeout=30))
        events = asyncio.create_task(_kinds(nc))
        await turns(10)
        began = loop.time()
        await nc.close()
        results = await asyncio.gather(*requests, flush, rtt, following, return_exceptions=True)
        assert loop.time() == began
        assert [type(result) for result in results] == [ConnectionClosed] * 22 + [SubscriptionClosed]
        assert await reader == ([], None)
        assert (await events)[-1] is Closed


async def _kinds(nc: Client) -> list[type[Event]]:
    return [type(event) async for event in nc.events()]


@virtual_clock
async def test_close_sends_what_was_published_before() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        for number in range(100):
            await nc.publish("a", b"%d" % number)
        await nc.close()
        assert published_payloads(net) == [b"%d" % number for number in range(100)]


@virtual_clock
async def test_close_waits_two_seconds_for_stuck_server(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.get_running_loop()
    async with scripted_network() as net:
        nc = await net.connect()
        await net.server.connection()
        net.peer.stall()
        for _ in range(10):
            await nc.publish("a", bytes(10_000))
        began = loop.time()
        with caplog.at_level(logging.WARNING, "natsproto"):
            await nc.close()
        assert loop.time() - began == pytest.approx(CLOSE_TIMEOUT_S, abs=1e-6)
        assert "unsent" in caplog.text
        await turns(2)
        assert net.peer.at_end


@virtual_clock
async def test_flush_fails_at_once_on_close() -> None:
    loop = asyncio.get_running_loop()
    async with scripted_network() as net:
        nc = await net.connect()
        sub = await nc.subscribe("a")
        await nc.flush()
        net.peer.stall()
        while nc.stats.buffered_bytes < CONGESTED_SIZE:
            nc.publish_nowait("x", bytes(50_000))
        waiting = [asyncio.create_task(nc.publish("x", b"y")) for _ in range(5)]
        await turns(5)
        began = loop.time()
        closing = asyncio.create_task(nc.close())
        await turns(5)
        calls: list[Callable[[], Awaitable[object]]] = [
            nc.flush,
            nc.rtt,
            lambda: nc.request("a"),
            lambda: nc.publish("x"),
        ]
        for call in calls:
            with pytest.raises(ConnectionClosed):
                await call()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [ConnectionClosed] * 5
        await sub.drain()
        assert loop.time() == began
        await closing


@virtual_clock
async def test_close_ends_when_stuck_server_goes_away() -> None:
    loop = asyncio.get_running_loop()
    async with scripted_network() as net:
        nc = await net.connect()
        await net.server.connection()
        net.peer.stall()
        for _ in range(10):
            await nc.publish("a", bytes(10_000))
        began = loop.time()
        closing = asyncio.create_task(nc.close())
        await turns(5)
        net.down()
        await closing
        assert loop.time() == began


@virtual_clock
async def test_closing_while_down_says_what_was_never_sent(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.get_running_loop()
    async with scripted_network() as net:
        nc = await net.connect()
        net.down()
        await turns_until(lambda: not nc.is_connected)
        for _ in range(3):
            await nc.publish("a", b"x")
        began = loop.time()
        with caplog.at_level(logging.WARNING, "natsproto"):
            await nc.close()
        assert loop.time() == began
        assert "closed with 3 unsent messages" in caplog.text


@pytest.mark.parametrize("when", ["dialling", "in the handshake", "between two attempts"])
@virtual_clock
async def test_close_during_reconnect_leaves_nothing(when: str) -> None:
    async with scripted_network(Behaviour(), Behaviour(greeting=None)) as net:
        nc = await net.connect()
        await net.server.connection()
        net.down()
        if when == "dialling":
            net.network.black_hole(HOST, PORT)
        elif when == "in the handshake":
            net.up()
        await advance(1)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await nc.close()
        assert loop.time() == began
        await turns(3)
        assert all(peer.at_end for peer in net.network.peers)


@virtual_clock
async def test_close_again_and_at_the_same_time_is_fine() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        await asyncio.gather(*(nc.close() for _ in range(5)), *(nc.drain() for _ in range(5)))
        await nc.close()
        await nc.drain()


@virtual_clock
async def test_a_callback_may_close_the_client() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        closed = asyncio.Event()

        async def handler(_: Message) -> None:
            await nc.close()
            closed.set()

        await nc.subscribe("a", cb=handler)
        await nc.publish("a")
        await closed.wait()
        assert nc.state is State.CLOSED


@virtual_clock
async def test_close_cancels_running_callbacks() -> None:
    ended: list[str] = []
    started = 0

    async def hang(message: Message) -> None:
        nonlocal started
        started += 1
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            ended.append(message.subject)
            raise

    recorder = EventRecorder(HandlerFailed)
    async with scripted_network() as net:
        nc = await net.connect(on_event=recorder)
        left = await nc.subscribe("left", cb=hang)
        await nc.subscribe("live", cb=hang)
        for subject in ("left", "live"):
            for _ in range(3):
                await nc.publish(subject)
        await nc.flush()
        await turns_until(lambda: started == 2)
        await left.unsubscribe()
        before = asyncio.get_running_loop().time()
        await nc.close()
        assert asyncio.get_running_loop().time() == before
        assert sorted(ended) == ["left", "live"], "and nothing that was waiting behind them was begun"
        assert started == 2
        assert recorder.events == []


@virtual_clock
async def test_every_verb_raises_after_close() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        sub = await nc.subscribe("a")
        with pytest.raises(NatsError):
            await nc.request("nobody", timeout=1)
        await nc.close()
        message = Message("a", b"r", b"", None, nc)
        calls: list[Callable[[], object]] = [
            lambda: nc.publish("a", b"x"),
            lambda: nc.publish("a", b"x", headers={"k": "v"}),
            lambda: nc.publish_nowait("a", b"x"),
            lambda: nc.request("a", timeout=1),
            lambda: nc.subscribe("a"),
            lambda: nc.flush(),
            lambda: nc.rtt(),
            lambda: nc.reconnect(),
            lambda: message.respond(b"x"),
        ]
        for call in calls:
            with pytest.raises(ConnectionClosed):
                await _called(call)
        with pytest.raises(SubscriptionClosed):
            await sub.next()
        await sub.unsubscribe()
        await sub.drain()
        loop = asyncio.get_running_loop()
        timers = [t for t in loop._scheduled if not t.cancelled()]  # type: ignore[attr-defined]
        assert all("natsproto" not in repr(timer) for timer in timers)


async def _called(call: Callable[[], object]) -> None:
    result = call()
    if isinstance(result, Awaitable):
        await result


# ---------------------------------------------------------------- counting


@virtual_clock
async def test_the_counters_are_exact() -> None:
    async with scripted_network() as net:
        nc = await net.connect()
        sub = await nc.subscribe("abc")
        await nc.publish("abc", b"12345")
        await nc.publish("abc", b"12345", reply="r")
        await nc.publish("abc", b"12345", headers={"k": "v"})
        await nc.flush()
        head = len(b"NATS/1.0\r\nk: v\r\n\r\n")
        stats = nc.stats
        assert (stats.in_msgs, stats.out_msgs) == (3, 3)
        assert stats.in_bytes == (3 + 5) + (3 + 1 + 5) + (3 + head + 5)
        assert stats.in_bytes == sub.pending_bytes
        assert (stats.buffered_msgs, stats.buffered_bytes, stats.dropped, stats.reconnects) == (0, 0, 0, 0)
        wire = [op for op in net.server.ops if op.name in ("PUB", "HPUB")]
        assert stats.out_bytes == sum(map(_wire_size, wire))


def _wire_size(op: Op) -> int:
    sizes = f"{len(op.headers)} {len(op.headers) + len(op.payload)}" if op.headers else f"{len(op.payload)}"
    return len(f"{op.name} {' '.join(op.args)} {sizes}\r\n\r\n") + len(op.headers) + len(op.payload)


@virtual_clock
async def test_a_lame_duck_is_announced_once() -> None:
    recorder = EventRecorder(LameDuck)
    async with scripted_network() as net:
        await net.connect(on_event=recorder)
        await net.server.connection()
        net.server.info(ldm=True)
        net.server.info(ldm=True)
        await turns(5)
        assert len(recorder.events) == 1
