"""Lines above the server's max_control_line, which it does not tell: one cut each, then nothing repeats it."""

from __future__ import annotations

import asyncio

import pytest

import natsproto
from natsproto._core.events import Disconnected, MessageDropped, Reconnected, ServerErrorEvent
from natsproto.errors import ConnectionLost, InvalidSubject, NatsError, ServerError
from natsproto.testing import run_server
from tests.faults.helpers import SOON, EventRecorder


@pytest.mark.parametrize("limit", [None, 16_384])
async def test_long_subjects_go_to_servers_that_take_them(limit: int | None) -> None:
    recorder = EventRecorder()
    config = f"max_control_line: {limit}" if limit else ""
    async with run_server(config=config) as server, natsproto.connect(server.url, on_event=recorder) as nc:
        subject = "x" * 5000
        if limit:
            async with nc.subscribe(subject) as exact, nc.subscribe(">", queue="q" * 5000) as everything:
                await nc.flush()
                await nc.publish(subject, b"1")
                assert (await exact.next(timeout=SOON)).subject == (await everything.next(timeout=SOON)).subject
                assert not recorder.of(Disconnected)
        else:
            await nc.publish(subject, b"1")
            await recorder.wait(Reconnected)
            for _ in range(3):
                with pytest.raises(InvalidSubject, match="longer than 4096 bytes: the server closed a connection"):
                    await nc.publish(subject[:4999], b"1")
                with pytest.raises(InvalidSubject, match="longer than 4096"):
                    nc.subscribe(subject[:4999])
            await nc.publish("x" * 4000, b"1")
            await nc.flush()
            assert len(recorder.of(Disconnected)) == 1


async def test_too_long_subscriptions_harm_no_other() -> None:
    recorder = EventRecorder()
    async with (
        run_server(config="max_control_line: 550") as server,
        natsproto.connect(server.url, on_event=recorder, reconnect_wait=0.05) as nc,
    ):
        fits, good = nc.subscribe("f" * 540), nc.subscribe("good")
        await nc.flush()
        long = [nc.subscribe(letter * size) for letter, size in (("a", 600), ("b", 700))]
        queued = nc.subscribe("c", queue="q" * 600)
        ended = [subscription.next(timeout=SOON) for subscription in (*long, queued)]
        errors = await asyncio.gather(*ended, return_exceptions=True)
        for error, subject in zip(errors, ("aaa", "bbb", "'c' queue 'qqq"), strict=True):
            assert isinstance(error, NatsError)
            assert "max_control_line" in str(error)
            assert subject in str(error)
        await nc.flush()
        for subject, subscription in (("good", good), ("f" * 540, fits)):
            await nc.publish(subject, b"1")
            assert (await subscription.next(timeout=SOON)).data == b"1"
        cuts = [event for event in recorder.of(Disconnected) if isinstance(event.cause, ServerError)]
        assert len(cuts) <= 3  # the others are broken pipes, which say nothing
        assert len([event for event in recorder.of(ServerErrorEvent) if "max_control_line" in str(event.error)]) == 3
        with pytest.raises(InvalidSubject, match="closed a connection"):
            nc.subscribe("d" * 650)


async def test_ended_subscription_condemns_no_other() -> None:
    """A SUB that is gone at the cut was the culprit; the longest one that is left is innocent."""
    recorder = EventRecorder()
    async with (
        run_server(config="max_control_line: 700") as server,
        natsproto.connect(server.url, on_event=recorder) as nc,
    ):
        innocent = nc.subscribe("i" * 650)
        await nc.flush()
        await nc.subscribe("g" * 800).unsubscribe()
        await recorder.wait(Reconnected)
        await nc.publish("i" * 650, b"1")
        assert (await innocent.next(timeout=SOON)).data == b"1"
        assert not recorder.of(ServerErrorEvent)


async def test_stores_and_streams_do_not_repeat_the_cut() -> None:
    recorder = EventRecorder()
    async with (
        run_server(jetstream=True, config="max_control_line: 1024") as server,
        natsproto.connect(server.url, on_event=recorder, reconnect_wait=0.05) as nc,
    ):
        js = nc.jetstream(timeout=5)
        await js.create_stream("S", subjects=["s.>"])
        kv = await js.create_key_value("B")
        subject = "s." + "x" * 2000
        with pytest.raises(NatsError):
            await js.publish(subject, b"1")
        with pytest.raises(NatsError):
            await js.publish(subject + "x", b"1", msg_id="1")
        async with js.publisher() as publisher:
            with pytest.raises(NatsError):
                await (await publisher.publish(subject, b"1", msg_id="2"))
        with pytest.raises(NatsError):
            await kv.put("k" * 2000, b"1")
        with pytest.raises(NatsError):
            await kv.get("k" * 2000)
        await js.publish("s.short", b"1")
        assert len(recorder.of(Disconnected)) <= 2


async def test_waiting_messages_are_dropped_with_an_event() -> None:
    recorder = EventRecorder()
    async with (
        run_server(config="max_control_line: 1024") as server,
        natsproto.connect(server.url, on_event=recorder) as nc,
    ):
        await nc.publish("x" * 2000, b"1")
        await recorder.wait(Reconnected)
        engine = nc._engine
        limit = engine.control_lines.line_limit
        assert limit.max == 2001
        engine.outbox.pause()
        limit.max, known = 65_536, limit.max  # as between servers, of which nothing is known
        await nc.publish("y" * 2100, b"1")
        answered = asyncio.create_task(nc.request("z" * 2100, timeout=SOON))
        await asyncio.sleep(0)
        assert engine.session is not None
        engine.session.end(ConnectionLost("a test ends it"))
        with pytest.raises(NatsError):
            await answered
        await recorder.wait(MessageDropped)
        dropped = recorder.of(MessageDropped)[0]
        assert (dropped.subject, type(dropped.error)) == ("y" * 2100, InvalidSubject)
        await nc.flush()
        assert limit.max == known
        assert len(recorder.of(Disconnected)) == 2


async def test_responses_to_long_replies_are_refused() -> None:
    """The reply is the choice of others: a response to it must not cost the connection."""
    recorder = EventRecorder()
    async with run_server() as server, natsproto.connect(server.url, on_event=recorder) as nc:

        async def answer(message: natsproto.Message) -> None:
            await message.respond(b"x" * 10_000)

        async with nc.subscribe("a", cb=answer):
            await nc.publish("a", b"", reply="r" * 4090)
            await nc.flush()
            assert await nc.request("a", timeout=SOON)
        assert not recorder.of(Disconnected)


async def test_error_of_the_subscription_is_a_server_error() -> None:
    async with run_server(config="max_control_line: 512") as server, natsproto.connect(server.url) as nc:
        with pytest.raises(ServerError, match="max_control_line"):
            await nc.subscribe("x" * 600).next(timeout=SOON)
