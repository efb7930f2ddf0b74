"""The seam for tracing: every sending ends once, with its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from natsproto import Client
from natsproto._core.instrumentation import BatchReports, Instrumentation, ReaderInfo, Sending, SendOperation
from natsproto.errors import InvalidSubject, NoResponders, PublishFailed, RequestTimeout, WrongLastSequence
from natsproto.jetstream import JetStream
from natsproto.jetstream._values.info import PubAck
from natsproto.protocol.frames import Message, Payload
from natsproto.protocol.headers import HeadersLike
from tests.kit.waiting import until

TAGGED = [("Tag", "seam")]


class Recorded(Sending):
    """A sending that records its ends."""

    def __init__(self, what: str, ends: list[tuple[str, str]]) -> None:
        super().__init__(TAGGED)
        self._what, self._ends, self._ended = what, ends, False

    def end(self, outcome: object = None) -> None:
        if not self._ended:
            self._ended = True
            self._ends.append((self._what, "" if outcome is None else type(outcome).__name__))


class RecordingReports(BatchReports):
    """An instrumentation of which each call is recorded."""

    def __init__(self) -> None:
        self.ends: list[tuple[str, str]] = []
        self.reads: list[tuple[str, str | None, int, str]] = []

    def sending(
        self, operation: SendOperation = "send", subject: str = "batch", payload: Payload = b"", headers: object = None
    ) -> Sending:
        return Recorded(f"{operation} {subject}", self.ends)

    def adding(self, subject: str, payload: Payload, headers: HeadersLike | None) -> Sending:
        return Recorded(f"add {subject}", self.ends)

    def batch(self) -> BatchReports:
        return self

    def responding(self, headers: HeadersLike | None) -> HeadersLike | None:
        return TAGGED

    def settling(self, message: Message, words: bytes) -> Sending:
        return Recorded(f"settle {words.decode()}", self.ends)

    def of_subscription(self, subject: str) -> Instrumentation | None:
        return None if subject.startswith("silent") else self

    def received(
        self,
        messages: Sequence[Message],
        asked_at: int,
        reader: ReaderInfo,
        *,
        batch: bool,
        error: BaseException | None = None,
    ) -> None:
        assert batch or len(messages) == 1
        assert asked_at > 10**18
        self.reads.append((reader.name, reader.group, len(messages), "" if error is None else type(error).__name__))


def instrument(nc: Client) -> RecordingReports:
    recorder = RecordingReports()
    nc._instrumentation = recorder
    return recorder


async def test_core_sendings_end_with_their_outcome(nats_client: Client) -> None:
    recorder = instrument(nats_client)
    async with nats_client.subscribe("a", queue="q") as sub, nats_client.subscribe("silent") as silent:
        await nats_client.publish("a", b"1", reply="b")
        nats_client.publish_nowait("a", bytearray(b"2"))
        await nats_client.publish("silent")
        received = [await sub.next(timeout=5), await sub.next(timeout=5), await silent.next(timeout=5)]
        assert [message.headers["Tag"] for message in received] == ["seam"] * 3
        assert (received[0].reply, received[1].data) == ("b", b"2")
    with pytest.raises(InvalidSubject):
        await nats_client.publish("a b")
    with pytest.raises(NoResponders):
        await nats_client.request("nobody", timeout=5)
    task = asyncio.ensure_future(nats_client.request("b", timeout=5))
    async with nats_client.subscribe("b") as asked:
        await asked.next(timeout=5)
        task.cancel()
        await asyncio.wait([task])
    assert recorder.ends == [
        *[("send a", ""), ("send a", ""), ("send silent", ""), ("send a b", "InvalidSubject")],
        *[("request nobody", "NoResponders"), ("request b", "CancelledError")],
    ]
    assert recorder.reads == [("a", "q", 1, ""), ("a", "q", 1, ""), ("b", None, 1, "")]


async def test_stream_sendings_end_with_the_ack(nats_client: Client, jetstream: JetStream) -> None:
    await jetstream.create_stream(name="S", subjects=["s.>"], allow_atomic=True, allow_batched=True)
    recorder = instrument(nats_client)
    await jetstream.publish("s.1")
    with pytest.raises(WrongLastSequence):
        await jetstream.publish("s.2", expected_last_seq=77)
    async with jetstream.publisher() as publisher:
        await publisher.publish("s.3")
        await publisher.publish("s.4", expected_last_seq=77)
        assert len(recorder.ends) == 2, "the acknowledgements come later"
        with pytest.raises(PublishFailed):
            await publisher.flush()
    await until(lambda: len(recorder.ends) == 4)
    assert recorder.ends == [
        *[("publish s.1", "PubAck"), ("publish s.2", "WrongLastSequence")],
        *[("publish s.3", "PubAck"), ("publish s.4", "WrongLastSequence")],
    ]
    recorder.ends.clear()
    async with jetstream.atomic_batch() as batch:
        await batch.publish("s.5")
        with pytest.raises(InvalidSubject):
            await batch.publish("s 6")
        await batch.publish("s.7")
    assert recorder.ends == [("add s.5", ""), ("add s 6", "InvalidSubject"), ("add s.7", ""), ("send batch", "PubAck")]
    recorder.ends.clear()
    async with jetstream.fast_publisher() as fast:
        await fast.publish("s.8")
        with pytest.raises(InvalidSubject):
            await fast.publish("s 9")
        await fast.flush()
        assert isinstance(await fast.commit("s.10"), PubAck)
    sent = ("send batch", "PubAck")
    assert recorder.ends == [("add s.8", ""), ("add s 9", "InvalidSubject"), sent, ("add s.10", ""), sent, sent]
    stored = [await (await jetstream.stream("S")).get_message(seq) for seq in range(1, 7)]
    assert [message.headers["Tag"] for message in stored] == ["seam"] * 6


async def test_readers_of_consumers_report_what_they_get(nats_client: Client, jetstream: JetStream) -> None:
    stream = await jetstream.create_stream(name="S", subjects=["s"], storage="memory")
    for _ in range(8):
        await jetstream.publish("s")
    consumer = await stream.create_consumer(durable_name="d")
    recorder = instrument(nats_client)
    fetched = await consumer.fetch(2, timeout=5)
    async for message in consumer.fetch(2, timeout=5):
        fetched.append(message)
    async with consumer.messages() as messages:
        fetched.append(await messages.next(timeout=5))
        async for message in messages:
            fetched.append(message)
            break
        await nats_client.flush()  # until the loop has closed it, it is another reader, which gets its part
        async for batch in messages.batches(2):
            fetched += batch
            break
    with pytest.raises(RequestTimeout):
        await consumer.next(timeout=0)
    for message in fetched:
        await message.ack()
    await consumer.delete()
    with pytest.raises(Exception, match="consumer") as raised:
        await consumer.fetch(1, timeout=5)
    counts = [count for _, _, count, _ in recorder.reads]
    assert {(name, group) for name, group, _, _ in recorder.reads} == {("S", "d")}
    assert counts == [2, 1, 1, 1, 1, len(fetched) - 6, 0, 0]
    assert recorder.reads[-1][3] == type(raised.value).__name__
    assert recorder.ends == [("settle +ACK", "")] * len(fetched)
