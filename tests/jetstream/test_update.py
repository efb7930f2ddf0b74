"""Updates change the fields that are given, and no others."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import natsproto
from natsproto import errors
from natsproto.errors import ConfigError
from natsproto.jetstream import (
    ConsumerConfig,
    KeyValueConfig,
    PullConsumer,
    PushConsumer,
    Republish,
    StreamConfig,
    StreamConsumerLimits,
)
from natsproto.jetstream._context import JetStream
from natsproto.testing._server import Server
from tests.jetstream.test_management import EVERY_FIELD, without_server_words


async def test_stream_update_changes_only_the_given_fields(jetstream: JetStream) -> None:
    await jetstream.create_stream(EVERY_FIELD)
    stream = await jetstream.stream("ALL")
    for update in (
        lambda: jetstream.update_stream("ALL", description="new"),
        lambda: jetstream.update_stream(name="ALL", description="new"),
        lambda: jetstream.update_stream("ALL", name="ALL"),
        lambda: stream.update(description="new"),
    ):
        await update()
        found = (await stream.info()).config
        assert without_server_words(found) == without_server_words(EVERY_FIELD.replace(description="new"))
    changed = await jetstream.update_stream("ALL", max_msgs=9)
    assert changed.cached_info.config.max_msgs == 9


async def test_shorter_max_age_shortens_the_duplicate_window(jetstream: JetStream) -> None:
    stream = await jetstream.create_stream(name="S", subjects=["s"], storage="memory")
    for age, window in ((300, 120), (60, 60), (90, 60)):
        await jetstream.update_stream("S", max_age=age)
        found = (await stream.info()).config
        assert (found.max_age, found.duplicate_window) == (age, window)
    await stream.update(max_age=20)
    with pytest.raises(errors.InvalidStreamConfig, match="duplicates window"):
        await stream.update(max_age=10, duplicate_window=15)
    assert (await stream.info()).config.duplicate_window == 20


async def test_whole_stream_config_replaces_all_fields(jetstream: JetStream) -> None:
    await jetstream.create_stream(name="S", subjects=["s"], storage="memory", max_msgs=10)
    stream = await jetstream.update_stream(StreamConfig(name="S", subjects=["s"], storage="memory"), max_bytes=1000)
    assert (stream.cached_info.config.max_msgs, stream.cached_info.config.max_bytes) == (-1, 1000)


async def test_nested_record_is_replaced_whole(jetstream: JetStream) -> None:
    limits = StreamConsumerLimits(inactive_threshold=60, max_ack_pending=5)
    await jetstream.create_stream(name="S", subjects=["s"], consumer_limits=limits)
    stream = await jetstream.update_stream("S", consumer_limits=StreamConsumerLimits(max_ack_pending=6))
    assert stream.cached_info.config.consumer_limits == StreamConsumerLimits(max_ack_pending=6)


async def test_consumer_update_changes_only_the_given_fields(jetstream: JetStream) -> None:
    stream = await jetstream.create_stream(name="S", subjects=["s.>"], storage="memory")
    config = ConsumerConfig(
        durable_name="c",
        deliver_policy="by_start_time",
        opt_start_time=datetime(2024, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
        filter_subject="s.a",
        max_deliver=4,
        max_ack_pending=7,
        headers_only=True,
        sample_freq="30%",
        metadata={"a": "1"},
    )
    before = (await stream.create_consumer(config)).cached_info.config
    for changed in (
        await stream.update_consumer("c", ack_wait=10),
        await stream.update_consumer(durable_name="c", ack_wait=10),
        await stream.update_consumer(name="c", ack_wait=10),
    ):
        assert changed.cached_info.config == before.replace(ack_wait=10)
    assert (await stream.consumer_info("c")).config == before.replace(ack_wait=10)


async def test_new_filters_of_a_consumer_replace_the_old(jetstream: JetStream) -> None:
    stream = await jetstream.create_stream(name="S", subjects=["s.>"], storage="memory")
    await stream.create_consumer(durable_name="c", filter_subject="s.a", max_deliver=3)
    both = await stream.update_consumer("c", filter_subjects=["s.a", "s.b"])
    assert (both.cached_info.config.filters, both.cached_info.config.max_deliver) == (("s.a", "s.b"), 3)
    one = await stream.update_consumer("c", filter_subject="s.c")
    assert (one.cached_info.config.filters, one.cached_info.config.max_deliver) == (("s.c",), 3)


async def test_update_returns_the_consumers_kind_of_handle(jetstream: JetStream) -> None:
    stream = await jetstream.create_stream("S", subjects=["s"], storage="memory")
    await stream.create_consumer("pulled")
    await stream.create_push_consumer("pushed")
    assert isinstance(await stream.update_consumer("pulled", max_deliver=3), PullConsumer)
    pushed = await stream.update_consumer("pushed", max_deliver=3)
    assert isinstance(pushed, PushConsumer)
    await jetstream.publish("s", b"1")
    async with pushed.messages() as messages:
        assert (await messages.next(timeout=5)).data == b"1"


async def test_bucket_update_changes_only_the_given_fields(jetstream: JetStream) -> None:
    republish = Republish(src=">", dest="copy.>")
    wanted = KeyValueConfig(
        bucket="b", history=5, ttl=3600, limit_marker_ttl=2, storage="memory", max_value_size=100, republish=republish
    )
    kv = await jetstream.create_key_value(wanted)
    for number in range(5):
        await kv.put("a", b"%d" % number)
    await (await jetstream.stream("KV_b")).update(duplicate_window=7, max_msgs=1000)  # as another client may
    for changed in (
        await jetstream.update_key_value("b", description="x"),
        await jetstream.update_key_value(bucket="b", description="x"),
    ):
        found = (await changed.status()).stream.config
        assert KeyValueConfig.from_stream(found).replace(metadata={}) == wanted.replace(description="x")
        assert (found.duplicate_window, found.max_msgs) == (7, 1000)
    assert len(await kv.history("a")) == 5


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"history": 3}, "max_msgs_per_subject", 3),
        ({"ttl": 60}, "max_age", 60),
        ({"ttl": 60}, "duplicate_window", 60),
        ({"max_value_size": 10}, "max_msg_size", 10),
        ({"max_bytes": 5000}, "max_bytes", 5000),
        ({"compression": True}, "compression", "s2"),
        ({"limit_marker_ttl": 3}, "subject_delete_marker_ttl", 3),
        ({"limit_marker_ttl": 3}, "allow_msg_ttl", True),
        ({"republish": Republish(dest="copy.>")}, "republish", Republish(dest="copy.>", src=">")),
        ({"allow_atomic": True}, "allow_atomic", True),
    ],
    ids=str,
)
async def test_every_field_of_a_bucket_can_be_changed(
    jetstream: JetStream, change: dict[str, object], field: str, value: object
) -> None:
    await jetstream.create_key_value(bucket="b", description="x")
    kv = await jetstream.update_key_value("b", **change)  # type: ignore[arg-type]
    status = await kv.status()
    assert getattr(status.stream.config, field) == value
    assert status.config.description == "x"


async def test_markers_of_a_bucket_can_be_turned_off(jetstream: JetStream) -> None:
    await jetstream.create_key_value(bucket="b", limit_marker_ttl=2, history=3)
    status = await (await jetstream.update_key_value("b", limit_marker_ttl=0)).status()
    assert (status.limit_marker_ttl, status.history, status.stream.config.allow_msg_ttl) == (0, 3, True)


async def test_mirror_of_a_bucket_stays_a_mirror(jetstream: JetStream) -> None:
    await jetstream.create_key_value(bucket="origin")
    await jetstream.create_key_value(bucket="copy", mirror=natsproto.jetstream.StreamSource(name="origin"))
    found = (await (await jetstream.update_key_value("copy", description="x")).status()).stream.config
    assert (found.mirror.name if found.mirror else "", found.subjects, found.mirror_direct) == ("KV_origin", (), True)


async def test_store_update_changes_only_the_given_fields(jetstream: JetStream) -> None:
    await jetstream.create_object_store(bucket="o", ttl=3600, storage="memory", max_bytes=100_000)
    await (await jetstream.stream("OBJ_o")).update(max_msgs=1000)
    for store in (
        await jetstream.update_object_store("o", description="x"),
        await jetstream.update_object_store(bucket="o"),
    ):
        status = await store.status()
        config = status.stream.config
        assert (status.description, config.max_age, config.max_bytes, config.max_msgs) == ("x", 3600, 100_000, 1000)


async def test_update_of_what_is_missing_says_so(jetstream: JetStream) -> None:
    stream = await jetstream.create_stream(name="S", subjects=["s.>"], storage="memory")
    with pytest.raises(errors.StreamNotFound):
        await jetstream.update_stream("T", max_msgs=1)
    with pytest.raises(errors.ConsumerNotFound):
        await stream.update_consumer("c", max_deliver=1)
    with pytest.raises(errors.BucketNotFound):
        await jetstream.update_key_value("b", history=1)
    with pytest.raises(errors.BucketNotFound):
        await jetstream.update_object_store("o", description="x")


async def test_bad_update_is_refused_before_it_is_sent(nats_server: Server) -> None:
    sent: list[str] = []
    async with natsproto.connect(nats_server.url) as client:
        jetstream = client.jetstream(trace=lambda exchange: sent.append(exchange.subject))
        stream = await jetstream.stream("S", bind=True)
        for call in (
            lambda: jetstream.update_stream("S", name="T"),
            lambda: jetstream.update_stream("S", subjects=["a b"]),
            lambda: stream.update(name="T"),
            lambda: stream.update_consumer("c", name="d"),
            lambda: stream.update_consumer("c", filter_subject="a", filter_subjects=["b"]),
            lambda: jetstream.update_key_value("b", bucket="c"),
            lambda: jetstream.update_key_value("b", history=65),
            lambda: jetstream.update_key_value("b", limit_marker_ttl=0.5),
            lambda: jetstream.update_object_store("a b", description="x"),
        ):
            with pytest.raises(ConfigError):
                await call()
        for nameless in (
            jetstream.update_stream,
            stream.update_consumer,
            jetstream.update_key_value,
            jetstream.update_object_store,
        ):
            with pytest.raises(TypeError, match="is needed to update it: pass it first"):
                await nameless(description="x")
            with pytest.raises(TypeError):
                await nameless(5)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="did you mean 'description'"):
                await nameless("x", descriptoin="x")  # type: ignore[call-arg]
    assert sent == []


async def test_first_argument_of_create_is_the_name(jetstream: JetStream) -> None:
    stream = await jetstream.create_stream("ORDERS", storage="memory")
    assert stream.cached_info.config.subjects == ("ORDERS",)
    assert (await jetstream.create_or_update_stream("ORDERS", subjects=["o"], storage="memory")).name == "ORDERS"
    assert (await jetstream.create_key_value("cfg", storage="memory")).bucket == "cfg"
    assert (await jetstream.create_object_store("files", storage="memory")).bucket == "files"
    assert (await jetstream.create_key_value(KeyValueConfig(bucket="cfg", storage="memory"))).bucket == "cfg"
    for call in (jetstream.create_stream("a", name="b"), jetstream.create_key_value("a", bucket="b")):
        with pytest.raises(ConfigError, match="differs from 'a': give one of them"):
            await call
