"""Processors on the real server: one worker, and what it does with handlers, streams and limits that do not fit."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import natsproto
from natsproto import Event, LoopBlocked
from natsproto.errors import (
    ConfigError,
    ConnectionClosed,
    HandlerTimeout,
    InvalidSubject,
    LocalProtocolError,
    PayloadTooLarge,
    StateTooLarge,
)
from natsproto.jetstream import JetStream, JsMessage, Stream
from natsproto.processor import KeyedState, Outputs
from natsproto.retry import DeadLetter, MessageDeadLettered, MessageRetried, RetryPolicy
from natsproto.testing import FaultProxy, Server, run_server
from tests.kit.waiting import until
from tests.processor.helpers import copy, copying, outputs, publish_inputs, run_until, running
from tests.processor.processes import check_sink, create_streams, is_complete, sums
from tests.processor.processes import publish_sums as publish_sums

Handler = Callable[[JsMessage, KeyedState, Outputs], Awaitable[object]]
SINK = {"subjects": ["out.>", "$CURSOR.OUT.>"], "allow_atomic": True}


# ---------------------------------------------------------------- once


async def test_outputs_state_and_position_stay_together(jetstream: JetStream, seed: int) -> None:
    source, sink = await create_streams(jetstream, 1)
    await publish_sums(jetstream, random.Random(seed), 1500)
    processor = sums(jetstream, 1)
    await run_until(processor, lambda: processor.handled == 1500)
    await check_sink(source, sink)
    assert (processor.partitions, processor.handled) == ((), 1500)
    marked = await sink.get_last_message("$CURSOR.OUT.sums.0.cursor")
    assert (marked.data, marked.headers["Natsproto-Cursor"]) == (b"1500", "int")


async def test_next_run_continues_with_the_state(jetstream: JetStream, seed: int) -> None:
    rng = random.Random(seed)
    source, sink = await create_streams(jetstream, 3)
    for number in [rng.randrange(1, 400) for _ in range(4)]:
        await publish_sums(jetstream, rng, number)
        processor = sums(jetstream, 3)
        await run_until(processor, lambda: processor.handled == number)  # noqa: B023
        await check_sink(source, sink)


async def test_workers_share_the_partitions(jetstream: JetStream, seed: int) -> None:
    rng = random.Random(seed)
    source, sink = await create_streams(jetstream, 4)
    first, second = sums(jetstream, 4), sums(jetstream, 4)
    async with running(first), asyncio.timeout(60):
        await publish_sums(jetstream, rng, 300)
        await until(lambda: first.partitions == (0, 1, 2, 3), 30)
        async with running(second):
            shares = [(0, 2), (1, 3)]
            await until(lambda: sorted([first.partitions, second.partitions]) == shares, 30)
            await publish_sums(jetstream, rng, 300)
            await until(lambda: first.handled + second.handled == 600, 30)
        await until(lambda: first.partitions == (0, 1, 2, 3), 30)
    await check_sink(source, sink)


async def test_partition_that_two_work_on_is_fenced(
    jetstream: JetStream, streams: tuple[Stream, Stream], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that do not hear of each other."""
    monkeypatch.setattr("natsproto.processor._partition._STAND_BY_S", 0.02)
    rng = random.Random(seed)

    async def number(message: JsMessage, state: KeyedState, out: Outputs) -> None:
        count = int(state.get("count", b"0")) + 1
        state["count"] = b"%d" % count
        await asyncio.sleep(rng.choice((0, 0, 0.001)))
        out.add("out.x", b"%d %d" % (int(message.data), count))

    monkeypatch.setattr("natsproto.processor._members.Members._on_message", lambda *_: None)
    first, second = copying(jetstream, number), copying(jetstream, number)
    async with running(first), running(second), asyncio.timeout(60):
        for start in range(0, 400, 40):
            await publish_inputs(jetstream, range(start, start + 40))
            await asyncio.sleep(0.01)
        while first.handled + second.handled < 400:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert await outputs(streams[1]) == [b"%d %d" % (one, one + 1) for one in range(400)]


@pytest.mark.slow
@pytest.mark.smoke
async def test_sink_that_was_put_back_is_written_again(tmp_path: Path, seed: int) -> None:
    """The outputs, the state and the positions of the sink go back together."""
    folder = tmp_path / "store"
    async with (
        run_server(jetstream=True, store_dir=folder) as server,
        natsproto.connect(server.url, reconnect_wait=0.02) as nc,
    ):
        js = nc.jetstream()
        source, sink = await create_streams(js, 2)
        rng = random.Random(seed)
        await publish_sums(js, rng, 700)
        processor = sums(js, 2)
        (path,) = folder.rglob("streams/OUT")
        async with running(processor), asyncio.timeout(60):
            while not processor.handled:  # noqa: ASYNC110
                await asyncio.sleep(0)
            server.kill()
            shutil.copytree(path, tmp_path / "before")
            await server.restart()
            while processor.handled < 700:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            server.kill()
            shutil.rmtree(path)
            shutil.copytree(tmp_path / "before", path)
            await server.restart()
            await publish_sums(js, rng, 100)
            while not await is_complete(source, sink):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await check_sink(source, sink)
        assert processor.handled > 800


# ---------------------------------------------------------------- state


async def test_state_is_a_mapping(jetstream: JetStream, streams: tuple[Stream, Stream]) -> None:
    seen: list[object] = []
    kept: list[tuple[KeyedState, Outputs]] = []

    async def handle(message: JsMessage, state: KeyedState, out: Outputs) -> None:
        kept.append((state, out))
        match message.data:
            case b"0":
                state["a"], state["b.c"] = b"1", memoryview(b"2")  # type: ignore[assignment]
                seen.append((sorted(state), len(state), state.get("x"), state.get("x", b"-"), "b.c" in state))
                del state["a"]
                seen.append((dict(state), repr(state)))
                with pytest.raises(KeyError):
                    del state["a"]
                with pytest.raises(KeyError):
                    state["a"]
            case b"1":
                seen.append((dict(state), len(out)))
                state.update({"a": b"3", "d": b"4"})
                del state["b.c"]
            case _:
                seen.append(dict(state))

    await publish_inputs(jetstream, range(2))
    processor = copying(jetstream, handle)
    await run_until(processor, lambda: processor.handled == 2)
    assert processor.state_bytes == 0
    await publish_inputs(jetstream, range(2, 3))
    processor = copying(jetstream, handle)
    async with running(processor), asyncio.timeout(30):
        while processor.handled < 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert processor.state_bytes == 4
    assert seen == [
        (["a", "b.c"], 2, None, b"-", True),
        ({"b.c": b"2"}, "KeyedState(1 keys)"),
        ({"b.c": b"2"}, 0),
        {"a": b"3", "d": b"4"},
    ]
    state, out = kept[0]
    with pytest.raises(LocalProtocolError, match="has returned"):
        state["late"] = b""
    with pytest.raises(LocalProtocolError, match="has returned"):
        out.add("out.late")


async def test_failed_call_changes_nothing(jetstream: JetStream, streams: tuple[Stream, Stream]) -> None:
    seen: list[dict[str, bytes]] = []

    async def handle(message: JsMessage, state: KeyedState, out: Outputs) -> None:
        seen.append(dict(state))
        state["n"] = message.data
        out.add("out.x", message.data)
        if len(seen) == 2:
            del state["n"]
            raise ZeroDivisionError

    await publish_inputs(jetstream, range(3))
    policy = RetryPolicy(dead_letter_subject="out.dead", first_delay=0.001)
    processor = copying(jetstream, handle, retry=policy)
    await run_until(processor, lambda: processor.handled == 3)
    assert seen == [{}, {"n": b"0"}, {"n": b"0"}, {"n": b"1"}]
    assert await outputs(streams[1]) == [b"0", b"1", b"2"]


async def test_state_is_bounded(jetstream: JetStream, streams: tuple[Stream, Stream]) -> None:
    async def handle(message: JsMessage, state: KeyedState, out: Outputs) -> None:
        out.add("out.x", message.data)
        try:
            state[f"key{message.data.decode()}"] = bytes(40)
        except StateTooLarge:
            pass  # it ends the processor all the same

    await publish_inputs(jetstream, range(10))
    with pytest.raises(StateTooLarge, match="partition 0 would have 132 bytes, above the limit of 100") as caught:
        await copying(jetstream, handle, max_state_bytes=100).run()
    assert (caught.value.processor, caught.value.size, caught.value.limit) == ("p", 132, 100)
    processor = copying(jetstream, handle, max_state_bytes=10_000)
    await run_until(processor, lambda: processor.handled == 10)
    assert await outputs(streams[1]) == [b"%d" % one for one in range(10)]
    with pytest.raises(StateTooLarge):  # as it is read
        await copying(jetstream, handle, max_state_bytes=300).run()


async def test_keys_and_values_are_checked(jetstream: JetStream, streams: tuple[Stream, Stream]) -> None:
    checked = 0

    async def handle(message: JsMessage, state: KeyedState, out: Outputs) -> None:
        nonlocal checked
        for key in ("", "a b", "a.", ".a", "a..b", "*", "a.>", "ä\n"):
            with pytest.raises(InvalidSubject):
                state[key] = b""
        with pytest.raises(TypeError):
            state["a"] = "text"  # type: ignore[assignment]
        with pytest.raises(PayloadTooLarge):
            state["a"] = bytes(2**20)
        with pytest.raises(PayloadTooLarge):
            out.add("out.x", bytes(2**20))
        for subject in ("other", "$CURSOR.OUT.p.0.cursor", "$CURSOR.OUT.p.0.state.a"):
            with pytest.raises(ConfigError, match="must be one of the sink's"):
                out.add(subject)
        with pytest.raises(InvalidSubject):
            out.add("out.*")
        state["a"] = bytes(2**20 - 1000)
        out.add("out.x", bytes(2**20 - 1000), headers={"A": "b"})
        checked += 1

    await publish_inputs(jetstream, range(2))
    processor = copying(jetstream, handle)
    await run_until(processor, lambda: processor.handled == 2)
    assert checked == 2
    assert [message.headers["A"] async for message in streams[1].get_batch(subject="out.>")] == ["b", "b"]


async def test_messages_of_one_call_stay_together(jetstream: JetStream, streams: tuple[Stream, Stream]) -> None:
    """Calls with up to 999 outputs and keys are not split over batches."""
    rng = random.Random(4)
    numbers = [rng.choice((1, 300, 600, 998)) for _ in range(12)]

    async def handle(message: JsMessage, state: KeyedState, out: Outputs) -> None:
        state["n"] = message.data
        for _ in range(numbers[int(message.data)]):
            out.add("out.x", message.data)

    await publish_inputs(jetstream, range(12))
    processor = copying(jetstream, handle)
    await run_until(processor, lambda: processor.handled == 12)
    assert await outputs(streams[1]) == [b"%d" % one for one in range(12) for _ in range(numbers[one])]


# ---------------------------------------------------------------- handlers that fail


async def test_error_of_the_handler_ends_the_run(jetstream: JetStream, streams: tuple[Stream, Stream]) -> None:
    async def handle(message: JsMessage, state: KeyedState, out: Outputs) -> None:
        out.add("out.x", message.data)
        if message.data == b"2":
            raise KeyError("no such customer")

    await publish_inputs(jetstream, range(5))
    for _ in range(2):
        with pytest.raises(KeyError, match="no such customer") as caught:
            await copying(jetstream, handle).run()
        assert caught.value.__notes__ == ["processor 'p', partition 0: message 3 of stream 'IN' ('in.a')"]
        assert await outputs(streams[1]) == [b"0", b"1"]


async def test_too_many_outputs_are_an_error_of_the_message(
    jetstream: JetStream, streams: tuple[Stream, Stream]
) -> None:
    async def handle(message: JsMessage, state: KeyedState, out: Outputs) -> None:
        for _ in range(1000 if message.data == b"1" else 1):
            out.add("out.x", message.data)

    await publish_inputs(jetstream, range(3))
    processor = copying(
        jetstream, handle, retry=RetryPolicy(dead_letter_subject="out.dead", give_up_on=LocalProtocolError)
    )
    await run_until(processor, lambda: processor.handled == 3)
    assert await outputs(streams[1], "out.x") == [b"0", b"2"]
    assert [DeadLetter.of(one).error_type async for one in streams[1].get_batch(subject="out.dead")] == [
        "natsproto.errors.LocalProtocolError"
    ]


async def test_message_that_always_fails_is_a_dead_letter(jetstream: JetStream, streams: tuple[Stream, Stream]) -> None:
    events: list[Event] = []
    jetstream.connection.add_listener(events.append)

    async def handle(message: JsMessage, state: KeyedState, out: Outputs) -> None:
        state["n"] = message.data
        out.add("out.x", message.data)
        if message.data == b"2":
            raise ValueError("poison")

    await jetstream.publish("in.a", b"0", headers={"Source": "x"})
    await publish_inputs(jetstream, range(1, 5))
    processor = copying(
        jetstream, handle, retry=RetryPolicy(dead_letter_subject="out.dead", max_attempts=3, first_delay=0.001)
    )
    await run_until(processor, lambda: processor.handled == 5)
    assert await outputs(streams[1], "out.x") == [b"0", b"1", b"3", b"4"]
    (letter,) = [DeadLetter.of(message) async for message in streams[1].get_batch(subject="out.dead")]
    assert (letter.subject, letter.data, letter.stream, letter.seq) == ("in.a", b"2", "IN", 3)
    assert (letter.consumer, letter.attempts, letter.error) == ("p", 3, "poison")
    retried = [event for event in events if isinstance(event, MessageRetried)]
    assert [(event.seq, event.attempt, event.consumer) for event in retried] == [(3, 1, "p"), (3, 2, "p")]
    (dead,) = [event for event in events if isinstance(event, MessageDeadLettered)]
    assert (dead.seq, dead.attempts, dead.dead_letter_subject) == (3, 3, "out.dead")


async def test_free_errors_use_up_no_attempt(jetstream: JetStream, streams: tuple[Stream, Stream]) -> None:
    calls = 0

    async def handle(message: JsMessage, state: KeyedState, out: Outputs) -> None:
        nonlocal calls
        calls += 1
        if calls < 9:
            raise ConnectionRefusedError
        out.add("out.x", message.data)

    await publish_inputs(jetstream, range(1))
    policy = RetryPolicy(dead_letter_subject="out.dead", max_attempts=1, delays=[0.001], free=ConnectionRefusedError)
    processor = copying(jetstream, handle, retry=policy)
    await run_until(processor, lambda: processor.handled == 1)
    assert (calls, await outputs(streams[1])) == (9, [b"0"])


async def test_handler_that_hangs_is_ended_by_its_timeout(jetstream: JetStream, streams: tuple[Stream, Stream]) -> None:
    async def handle(message: JsMessage, state: KeyedState, out: Outputs) -> None:
        out.add("out.x", message.data)
        if message.data == b"1":
            await asyncio.Event().wait()

    await publish_inputs(jetstream, range(2))
    with pytest.raises(HandlerTimeout, match=r"longer than 0.05 s"):
        await copying(jetstream, handle, timeout=0.05).run()
    assert await outputs(streams[1]) == [b"0"]


async def test_cancelled_await_is_an_error_of_the_handler(jetstream: JetStream, streams: tuple[Stream, Stream]) -> None:
    async def handle(message: JsMessage, state: KeyedState, out: Outputs) -> None:
        other = asyncio.create_task(asyncio.Event().wait())
        other.cancel()
        await other

    await publish_inputs(jetstream, range(1))
    with pytest.raises(RuntimeError, match="was cancelled by something"):
        await copying(jetstream, handle).run()


async def test_stopping_waits_for_the_message_in_hand(jetstream: JetStream, streams: tuple[Stream, Stream]) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def handle(message: JsMessage, state: KeyedState, out: Outputs) -> None:
        begun.set()
        await go_on.wait()
        out.add("out.x", message.data)

    await publish_inputs(jetstream, range(5))
    stop = asyncio.Event()
    processor = copying(jetstream, handle)
    task = asyncio.create_task(processor.run(until=stop))
    await begun.wait()
    stop.set()
    await jetstream.connection.flush()
    assert not task.done()
    go_on.set()
    await task
    assert await outputs(streams[1]) == [b"0"]
    assert processor.handled == 1


async def test_stopping_ends_a_pause(jetstream: JetStream, streams: tuple[Stream, Stream]) -> None:
    begun = asyncio.Event()

    async def handle(message: JsMessage, state: KeyedState, out: Outputs) -> None:
        out.add("out.x", message.data)
        if message.data == b"1":
            begun.set()
            raise OSError

    await publish_inputs(jetstream, range(5))
    stop = asyncio.Event()
    policy = RetryPolicy(dead_letter_subject="out.dead", first_delay=3600, max_delay=3600)
    task = asyncio.create_task(copying(jetstream, handle, retry=policy).run(until=stop))
    await begun.wait()
    stop.set()
    await task
    assert await outputs(streams[1]) == [b"0"]


async def test_cancelled_run_stores_nothing_more(jetstream: JetStream, streams: tuple[Stream, Stream]) -> None:
    begun = asyncio.Event()

    async def handle(message: JsMessage, state: KeyedState, out: Outputs) -> None:
        begun.set()
        await asyncio.Event().wait()

    await publish_inputs(jetstream, range(1))
    task = asyncio.create_task(copying(jetstream, handle).run())
    await begun.wait()
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert await outputs(streams[1]) == []


async def test_processor_runs_once_at_a_time(jetstream: JetStream, streams: tuple[Stream, Stream]) -> None:
    processor = copying(jetstream, copy)
    async with running(processor):
        await asyncio.sleep(0)
        with pytest.raises(LocalProtocolError, match="running already"):
            await processor.run()


@pytest.mark.slow
async def test_handler_that_holds_the_loop_is_named(jetstream: JetStream, streams: tuple[Stream, Stream]) -> None:
    events: list[Event] = []
    jetstream.connection.add_listener(events.append)

    async def handle(message: JsMessage, state: KeyedState, out: Outputs) -> None:
        time.sleep(1.1)  # noqa: ASYNC251  # the watch's own second

    await publish_inputs(jetstream, range(1))
    processor = copying(jetstream, handle)
    await run_until(processor, lambda: any(isinstance(event, LoopBlocked) and event.handler for event in events))
    (named,) = [event for event in events if isinstance(event, LoopBlocked) and event.handler]
    assert named.handler == "processor 'p', partition 0"


@pytest.mark.parametrize("drains", [True, False])
async def test_client_that_ends_first(nats_server: Server, streams: tuple[Stream, Stream], drains: bool) -> None:
    """Draining finishes what is in hand; closing raises."""
    begun = asyncio.Event()

    async def handle(message: JsMessage, state: KeyedState, out: Outputs) -> None:
        begun.set()
        out.add("out.x", message.data)
        await asyncio.sleep(0)

    nc = await natsproto.connect(nats_server.url)
    await publish_inputs(nc.jetstream(), range(2000))
    processor = copying(nc.jetstream(), handle)
    task = asyncio.create_task(processor.run())
    await begun.wait()
    await (nc.drain() if drains else nc.close())
    await asyncio.wait({task}, timeout=30)
    assert task.done()
    if task.exception() is not None:
        assert isinstance(task.exception(), ConnectionClosed)
    stored = await outputs(streams[1])
    assert stored == [b"%d" % one for one in range(len(stored))]
    assert len(stored) >= processor.handled


async def test_batch_ends_after_half_a_second(
    jetstream: JetStream, streams: tuple[Stream, Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages of slow handlers do not wait for a full batch."""
    monkeypatch.setattr("natsproto.processor._partition.MAX_BATCH_S", 0.0)
    seen: list[int] = []

    async def handle(message: JsMessage, state: KeyedState, out: Outputs) -> None:
        seen.append(len(await outputs(streams[1])))
        out.add("out.x", message.data)

    await publish_inputs(jetstream, range(5))
    processor = copying(jetstream, handle)
    await run_until(processor, lambda: processor.handled == 5)
    assert seen == [0, 1, 2, 3, 4]


@pytest.mark.slow
async def test_sink_whose_messages_expire_keeps_the_state(jetstream: JetStream) -> None:
    await jetstream.create_stream("IN", subjects=["in.>"])
    sink = await jetstream.create_stream(
        "OUT", subjects=["out.>", "$CURSOR.OUT.>"], allow_atomic=True, max_age=1, allow_msg_ttl=True
    )

    async def handle(message: JsMessage, state: KeyedState, out: Outputs) -> None:
        out.add("out.x", state.get("last", b"-"))
        state["last"] = message.data

    for number in range(2):
        await publish_inputs(jetstream, range(number, number + 1))
        processor = copying(jetstream, handle)
        await run_until(processor, lambda: processor.handled == 1)  # noqa: B023
        wanted = [b"-", b"0"][number]
        assert (await sink.get_last_message("out.x")).data == wanted
        async with asyncio.timeout(30):
            while await outputs(sink):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_lost_connection_reads_the_state_again(
    nats_server: Server, jetstream: JetStream, streams: tuple[Stream, Stream]
) -> None:
    """Another worker may have stored more meanwhile, at any sequence."""
    seen: list[bytes] = []

    async def handle(message: JsMessage, state: KeyedState, out: Outputs) -> None:
        seen.append(state.get("last", b"-"))
        state["last"] = message.data

    async with (
        FaultProxy(nats_server.host, nats_server.port) as proxy,
        natsproto.connect(proxy.url, reconnect_wait=0.01) as nc,
    ):
        processor = copying(nc.jetstream(), handle)
        async with running(processor), asyncio.timeout(60):
            await publish_inputs(jetstream, range(1))
            await until(lambda: processor.handled == 1, 30)
            cursor = await jetstream.cursor("OUT", "p-0", subject="$CURSOR.OUT.p.0.cursor")
            proxy.cut()
            await until(lambda: not nc.is_connected, 30)
            async with cursor.advance(to=2) as batch:
                await batch.publish("$CURSOR.OUT.p.0.state.last", b"other")
            await publish_inputs(jetstream, range(1, 3))
            await until(lambda: processor.handled == 2, 30)
    assert seen[0] == b"-"
    assert seen[-1] == b"other"
