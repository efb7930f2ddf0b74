"""What a type checker knows of streams. Never run; mypy --strict reads it."""

from collections.abc import AsyncGenerator, Mapping
from datetime import UTC, datetime, timedelta
from typing import assert_type

from natsproto import Client, Headers
from natsproto.jetstream._api.admin import Admin
from natsproto.jetstream._api.listing import Listing
from natsproto.jetstream._api.trace import ApiTrace
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._publish.ack_future import AckFuture
from natsproto.jetstream._stream.backup import Progress
from natsproto.jetstream._stream.batch_get import StoredMessages
from natsproto.jetstream._stream.direct_get import RawMessage
from natsproto.jetstream._stream.stream import Stream
from natsproto.jetstream._values.codec import Unlisted
from natsproto.jetstream._values.config import StreamConfig
from natsproto.jetstream._values.info import AccountInfo, ConsumerInfo, ConsumerPause, ConsumerReset, PubAck, StreamInfo
from natsproto.jetstream._values.policies import RetentionPolicy
from natsproto.jetstream._values.timestamp import Timestamp
from natsproto.jetstream.advisories import Advisories, Advisory


async def managing(nc: Client) -> None:
    js = nc.jetstream(domain="hub", timeout=timedelta(seconds=2))
    assert_type(js, JetStream)
    stream = await js.create_stream("S", subjects=["s.>"], storage="file", max_age=timedelta(hours=1))
    assert_type(stream, Stream)
    assert_type(await js.update_stream(StreamConfig(name="S"), max_msgs=5, timeout=1.5), Stream)
    assert_type(await js.create_or_update_stream(name="S", retention=RetentionPolicy.LIMITS), Stream)
    assert_type(await js.stream("S", bind=True), Stream)
    assert_type(await js.stream_name_by_subject("s.a"), str)
    assert_type(await js.account_info(), AccountInfo)
    assert_type(js.streams(subject="s.>"), Listing[StreamInfo])
    async for info in js.streams():
        assert_type(info, StreamInfo)
    assert_type(js.stream_names(), AsyncGenerator[str])
    await js.create_stream(name="S", sujects=["s"])  # type: ignore[call-arg]
    await js.create_stream(name="S", max_msgs="5")  # type: ignore[arg-type]
    await js.create_stream(name="S", retention="limits", storage=stream.cached_info.config.storage)
    await js.create_stream(name="S", retention="limit")  # type: ignore[arg-type]
    StreamConfig(name="S", retention="limit")  # type: ignore[arg-type]


async def looking(stream: Stream) -> None:
    info = await stream.info(deleted_details=True, subjects_filter=">")
    assert_type(info.config.max_age, float)
    assert_type(info.config.retention, RetentionPolicy | Unlisted)
    assert_type(info.state.subjects, Mapping[str, int])
    assert_type(info.state.first_ts, Timestamp | None)
    assert_type(stream.cached_info, StreamInfo)
    assert_type(await stream.update(max_msgs=5), StreamInfo)
    assert_type(await stream.purge(subject="s.a", keep=1), int)
    assert_type(await stream.backup("file", progress=lambda step: step.bytes), Progress)


async def getting(stream: Stream) -> None:
    message = await stream.get_message(1, direct=False)
    assert_type(message, RawMessage)
    assert_type(message.data, bytes)
    assert_type(message.time, Timestamp)
    assert_type(message.headers, Headers)
    assert_type(await stream.get_last_message("s.a"), RawMessage)
    assert_type(await stream.get_next_message(start_time=datetime.now(UTC)), RawMessage)
    assert_type(stream.get_batch(subject="s.a", batch=5), StoredMessages)
    async for one in stream.get_last_messages(["s.a"]):
        assert_type(one, RawMessage)
    async for batch in stream.get_batch().batches():
        assert_type(batch, list[RawMessage])
    await stream.get_message("1")  # type: ignore[arg-type]


async def consumers(stream: Stream) -> None:
    consumer = await stream.create_consumer(durable_name="c", ack_wait=timedelta(seconds=5), backoff=[1, 2.5])
    assert_type(consumer.cached_info, ConsumerInfo)
    assert_type(await consumer.pause(datetime.now(UTC)), ConsumerPause)
    assert_type(await consumer.reset(5), ConsumerReset)
    assert_type(stream.consumers(), Listing[ConsumerInfo])
    await stream.create_consumer(durable_nam="c")  # type: ignore[call-arg]
    await stream.create_consumer(ack_policy="explict")  # type: ignore[arg-type]


async def watching(js: JetStream) -> None:
    assert_type(js.admin, Admin)
    async with js.advisories() as events:
        assert_type(events, Advisories)
        async for event in events:
            assert_type(event, Advisory)


def looking_on(exchange: ApiTrace) -> None:
    assert_type(exchange.response, bytes)
    assert_type(exchange.error, BaseException | None)


def traced(client: Client) -> None:
    client.jetstream(trace=looking_on)
    client.jetstream(trace=len)  # type: ignore[arg-type]


async def publishing(js: JetStream) -> None:
    async with js.publisher() as window:
        assert_type(await window.publish("a"), AckFuture)
        assert_type(await (await window.publish("a")), PubAck)
    async with js.fast_publisher() as fast:
        assert_type(await fast.publish("a"), int)
        assert_type(await fast.commit("a"), PubAck)
    js.fast_publisher(gap="maybe")  # type: ignore[arg-type]
    await js.publish("a", msg_idd="1")  # type: ignore[call-arg]
