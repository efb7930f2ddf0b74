"""Sequences that go back: a server that lost the end of its store, and all that only looks like it."""

from __future__ import annotations

import asyncio
import resource
import shutil
from pathlib import Path

import pytest

import natsproto
from natsproto import Reconnected
from natsproto.errors import NatsError, PublishFailed, PublishTimeout, StreamWentBack
from natsproto.jetstream import JetStream, StreamLostMessages
from natsproto.jetstream._api.sequence_log import SequenceLog
from natsproto.jetstream._values.info import PubAck
from natsproto.testing import run_server
from tests.faults.helpers import EventRecorder
from tests.kit.waiting import eventually


def test_log_compares_only_what_was_sent_later() -> None:
    log = SequenceLog()
    assert log.on_ack(PubAck(stream="S", seq=5), 1.0, 2.0) is None
    assert log.on_ack(PubAck(stream="S", seq=4), 1.5, 2.5) is None, "it was in flight"
    assert log.on_ack(PubAck(stream="S", seq=3, duplicate=True), 3.0, 4.0) is None
    assert log.on_ack(PubAck(stream="T", seq=1), 3.0, 4.0) is None
    assert log.on_ack(PubAck(stream="S", seq=1, domain="hub"), 3.0, 4.0) is None
    assert log.on_ack(PubAck(stream="S", seq=5), 3.0, 4.0) == (5, 2.0)
    assert log.on_ack(PubAck(stream="S", seq=6), 5.0, 6.0) is None


@pytest.mark.parametrize("way", ["publish", "window", "bucket"])
async def test_a_store_that_goes_back_is_reported_once(
    tmp_path: Path, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    store, saved = tmp_path / "store", tmp_path / "saved"
    recorder = EventRecorder()
    async with (
        run_server(jetstream=True, store_dir=store) as server,
        natsproto.connect(server.url, on_event=recorder, reconnect_wait=0.02) as nc,
    ):
        js = nc.jetstream(timeout=30)
        await js.create_stream("S", subjects=["s"], storage="file")
        kv = await js.create_key_value("b", storage="file")

        async def publish() -> None:
            if way == "publish":
                await js.publish("s", msg_id=f"{asyncio.get_running_loop().time()}")
            elif way == "bucket":
                await kv.put("k", b"v")
            else:
                async with js.publisher(auto_msg_id=True) as pub:
                    await pub.publish("s")

        for _ in range(2):
            await publish()
        server.kill()
        shutil.copytree(store, saved)
        await server.restart()
        await recorder.wait(Reconnected)
        for _ in range(3):
            await publish()
        server.kill()
        shutil.rmtree(store)
        shutil.copytree(saved, store)
        await server.restart()
        await recorder.wait(Reconnected, 2)
        with pytest.raises(StreamWentBack) as caught:
            await publish()
        await publish()
    name = "KV_b" if way == "bucket" else "S"
    assert (caught.value.stream, caught.value.seq, caught.value.last_lost) == (name, 3, 5)
    lost = [event for event in recorder.events if isinstance(event, StreamLostMessages)]
    assert [(event.stream, event.first_lost, event.last_lost) for event in lost] == [(name, 3, 5)]
    assert f"stream {name} lost its messages 3 to 5, which were acknowledged" in caplog.messages


async def test_what_only_looks_like_it_raises_no_alarm(jetstream: JetStream) -> None:
    stream = await jetstream.create_stream("S", subjects=["s.>"], allow_msg_ttl=True)
    for number in range(5):
        await jetstream.publish("s.a", msg_id=f"{number}")
    assert (await jetstream.publish("s.a", msg_id="1")).duplicate
    await stream.purge()
    assert (await jetstream.publish("s.a", ttl=1)).seq == 6
    await jetstream.delete_stream("S")
    await jetstream.create_stream("S", subjects=["s.>"])
    assert (await jetstream.publish("s.a")).seq == 1
    async with jetstream.publisher() as pub:
        futures = [await pub.publish("s.b") for _ in range(500)]
        await asyncio.gather(*(jetstream.publish("s.c") for _ in range(100)))
    assert all(future.exception() is None for future in futures)


async def test_a_lock_refuses_a_token_that_went_back(tmp_path: Path) -> None:
    store, saved = tmp_path / "store", tmp_path / "saved"
    async with (
        run_server(jetstream=True, store_dir=store) as server,
        natsproto.connect(server.url, reconnect_wait=0.02) as nc,
    ):
        kv = await nc.jetstream(timeout=30).create_key_value("b", storage="file", limit_marker_ttl=10)
        lock = kv.lock("k", ttl=5)
        server.kill()
        shutil.copytree(store, saved)
        await server.restart()
        for _ in range(3):
            await lock.acquire()
            await lock.release()
        token = lock.token
        server.kill()
        await eventually(lambda: not nc.is_connected)
        shutil.rmtree(store)
        shutil.copytree(saved, store)
        await server.restart()
        fresh = await nc.jetstream(timeout=30).key_value("b")  # has not seen the sequences before
        assert await fresh.put("other", b"") < token
        lock._bucket.api.sequences._highest.clear()  # nor has this context, but for the lock
        with pytest.raises(StreamWentBack):
            await lock.acquire()
        assert not lock.is_held


def test_log_counts_timeouts_in_a_row() -> None:
    log = SequenceLog()
    assert [log.on_timeout(1.0, 0.5), log.on_timeout(2.0, 0.5)] == [0, 0], "the server has not answered a ping since"
    assert log.on_timeout(3.0, 1.5) == 3
    log.on_ack(PubAck(stream="S", seq=5), 4.0, 4.5)
    assert log.on_timeout(5.0, 6.0) == 1


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits the size of a server's files")
@pytest.mark.parametrize("way", ["publish", "window"])
async def test_full_disk_is_told(way: str) -> None:
    """The server answers everything else, and nothing for a message that it cannot write."""
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream()
        await js.create_stream("S", subjects=["s"], storage="file")
        await js.publish("s")
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
        errors: list[NatsError] = []

        async def publish() -> None:
            if way == "publish":
                await js.publish("s", bytes(200_000), timeout=0.6)
            else:
                async with js.publisher(timeout=0.6) as publisher:
                    await publisher.publish("s", bytes(200_000))

        for _ in range(4):
            with pytest.raises((PublishTimeout, PublishFailed)) as caught:
                await publish()
            error = caught.value
            errors.append(error.failures[0].error if isinstance(error, PublishFailed) else error)
        assert "no_ack" in str(errors[0])
        assert "number 4 in a row, while the server answers pings: its disk may be full" in str(errors[-1])
        await js.account_info()
