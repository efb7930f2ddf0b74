"""Streams and consumers are managed as the server understands it, and every refusal is typed, worded and prompt."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import natsproto
from natsproto import Client, errors
from natsproto.errors import ConfigError, InvalidSubject, UnsupportedByServer
from natsproto.jetstream._values.arguments import ConsumerArgs, KeyValueArgs, ObjectStoreArgs, StreamArgs
from natsproto.jetstream._values.bucket_config import KeyValueConfig, ObjectStoreConfig
from natsproto.jetstream._values.codec import Record, decode, encode
from natsproto.jetstream._values.config import ConsumerConfig, StreamConfig
from natsproto.jetstream._values.config_parts import Republish, StreamConsumerLimits, StreamSource, SubjectTransform
from natsproto.testing import run_server
from tests.jetstream.reading import store_each
from tests.kit.servers import hub_and_leaf

if TYPE_CHECKING:
    from natsproto.jetstream._context import JetStream
    from natsproto.testing._server import Server

PROMPT = 15.0
"""Seconds within which a call that cannot succeed must have failed, on a busy machine."""
LONG = 50.0
"""Seconds after which it would time out."""


async def memory_stream(js: JetStream, name: str = "S", **fields: Any) -> natsproto.jetstream._stream.stream.Stream:
    config = StreamConfig(name=name, subjects=[f"{name.lower()}.>"], storage="memory")
    return await js.create_stream(config.replace(**fields))


def without_server_words(record: Record) -> dict[str, object]:
    """The fields, but for what the server adds to the metadata."""
    found = {name: getattr(record, name) for name in type(record)._fields}
    found["metadata"] = {key: text for key, text in record.metadata.items() if not key.startswith("_nats.")}  # type: ignore[attr-defined]
    return found


# ---------------------------------------------------------------- streams


EVERY_FIELD = StreamConfig(
    name="ALL",
    description="everything at once",
    subjects=["all.*", "more.>"],
    retention="interest",
    max_consumers=7,
    max_msgs=1000,
    max_bytes=1_000_000,
    max_age=3600.5,
    max_msgs_per_subject=10,
    max_msg_size=4096,
    discard="new",
    discard_new_per_subject=True,
    storage="file",
    no_ack=True,
    duplicate_window=60.25,
    compression="s2",
    first_seq=100,
    subject_transform=SubjectTransform(src="all.*", dest="all.{{wildcard(1)}}"),
    republish=Republish(src="all.*", dest="again.{{wildcard(1)}}", headers_only=True),
    allow_direct=True,
    deny_delete=True,
    deny_purge=True,
    consumer_limits=StreamConsumerLimits(inactive_threshold=60.0, max_ack_pending=500),
    metadata={"owner": "tests", "żółw": "ja"},
)
NEWER_FIELDS = (
    {"allow_msg_ttl": True, "subject_delete_marker_ttl": 30.0, "allow_rollup_hdrs": True},
    {"allow_msg_counter": True, "allow_direct": True},
    {"allow_atomic": True, "allow_msg_schedules": True, "allow_rollup_hdrs": True},
    {"persist_mode": "async", "storage": "file"},
    {"allow_batched": True, "mirror_direct": False},
)


async def test_stream_fields_come_back(jetstream: JetStream) -> None:
    stream = await jetstream.create_stream(EVERY_FIELD)
    assert without_server_words(stream.cached_info.config) == without_server_words(EVERY_FIELD)
    assert stream.cached_info.did_create


@pytest.mark.parametrize("fields", NEWER_FIELDS, ids=lambda fields: next(iter(fields)))
async def test_newer_stream_fields_come_back(jetstream: JetStream, fields: dict[str, Any]) -> None:
    wanted = StreamConfig(name="NEW", subjects=["new.>"]).replace(**fields)
    info = (await jetstream.create_stream(wanted)).cached_info
    assert {name: getattr(info.config, name) for name in fields} == {name: getattr(wanted, name) for name in fields}


async def test_mirror_and_sources_with_transforms_come_back(jetstream: JetStream, nats_client: Client) -> None:
    origin = await memory_stream(jetstream, "ORIGIN")
    await store_each(nats_client, "origin.a", "origin.b")
    start = (await origin.get_message(2)).time
    mirror = StreamSource(name="ORIGIN", opt_start_time=start)
    copy = await jetstream.create_stream(name="MIRROR", storage="memory", mirror=mirror)
    assert copy.cached_info.config.mirror == mirror
    sources = [
        StreamSource(
            name="ORIGIN", opt_start_seq=1, subject_transforms=[SubjectTransform(src="origin.>", dest="sum.>")]
        ),
        StreamSource(name="OTHER", filter_subject="other.b"),
    ]
    total = await jetstream.create_stream(name="SUM", storage="memory", sources=sources)
    assert total.cached_info.config.sources == tuple(sources)


async def test_source_of_another_domain_comes_back(jetstream: JetStream) -> None:
    source = StreamSource.in_domain("ORIGIN", "hub")
    stream = await jetstream.create_stream(name="COPY", storage="memory", mirror=source)
    assert stream.cached_info.config.mirror == source


async def test_unknown_stream_field_survives_an_update(jetstream: JetStream) -> None:
    """The server refuses the field by its name: it was sent."""
    stream = await memory_stream(jetstream)
    config = stream.cached_info.config.replace(extra={"of_the_future": {"deep": 1}})
    with pytest.raises(UnsupportedByServer, match='unknown field "of_the_future"'):
        await stream.update(config)


async def test_what_info_says_can_be_sent_back_unchanged(jetstream: JetStream) -> None:
    stream = await jetstream.create_stream(EVERY_FIELD)
    again = await jetstream.update_stream((await stream.info()).config)
    assert without_server_words(again.cached_info.config) == without_server_words(EVERY_FIELD)
    same = await jetstream.create_stream((await stream.info()).config)
    assert same.cached_info.created == stream.cached_info.created


async def test_stream_is_created_twice_with_the_same_config(jetstream: JetStream) -> None:
    await memory_stream(jetstream)
    await memory_stream(jetstream)
    with pytest.raises(errors.StreamExists, match="create stream 'S'"):
        await memory_stream(jetstream, max_msgs=5)


async def test_fields_win_over_the_configuration_they_amend(jetstream: JetStream) -> None:
    config = StreamConfig(name="S", subjects=["s"], max_msgs=1)
    stream = await jetstream.create_stream(config, max_msgs=2, storage="memory")
    found = stream.cached_info.config
    assert (found.max_msgs, found.storage, found.subjects) == (2, "memory", ("s",))


async def test_update_of_the_context_and_of_the_stream(
    jetstream: JetStream,
) -> None:
    stream = await memory_stream(jetstream, max_msgs=10, max_bytes=1000)
    changed = await stream.update(max_msgs=20)
    assert (changed.config.max_msgs, changed.config.max_bytes) == (20, 1000)
    whole = await jetstream.update_stream(StreamConfig(name="S", subjects=["s.>"], storage="memory", max_msgs=30))
    assert (whole.cached_info.config.max_msgs, whole.cached_info.config.max_bytes) == (30, -1)


async def test_stream_cannot_be_renamed_by_an_update(jetstream: JetStream) -> None:
    stream = await memory_stream(jetstream)
    with pytest.raises(ConfigError, match="cannot be renamed"):
        await stream.update(name="T")


async def test_create_or_update_does_what_is_needed(jetstream: JetStream) -> None:
    with pytest.raises(errors.StreamNotFound):
        await jetstream.update_stream("S")
    await jetstream.create_or_update_stream(name="S", storage="memory", max_msgs=1)
    stream = await jetstream.create_or_update_stream(name="S", storage="memory", max_msgs=2)
    assert stream.cached_info.config.max_msgs == 2


async def test_create_or_update_by_many_at_once(jetstream: JetStream) -> None:
    calls = (jetstream.create_or_update_stream(name="S", storage="memory", max_msgs=n) for n in range(1, 9))
    assert len(await asyncio.gather(*calls)) == 8


async def test_deleted_stream_is_not_found(jetstream: JetStream) -> None:
    stream = await memory_stream(jetstream)
    await stream.delete()
    for call in (jetstream.stream("S"), jetstream.delete_stream("S"), stream.info(), stream.delete()):
        with pytest.raises(errors.StreamNotFound, match="stream 'S'"):
            await call


async def test_bound_handles_ask_nothing(jetstream: JetStream, nats_client: Client) -> None:
    before = nats_client.stats.out_msgs
    stream = await jetstream.stream("NOWHERE", bind=True)
    consumer = await stream.consumer("nobody", bind=True)
    assert nats_client.stats.out_msgs == before
    with pytest.raises(errors.LocalProtocolError, match=r"call info\(\) first"):
        stream.cached_info  # noqa: B018
    with pytest.raises(errors.LocalProtocolError, match=r"call info\(\) first"):
        consumer.cached_info  # noqa: B018
    with pytest.raises(errors.StreamNotFound):
        await consumer.info()


async def test_names_are_checked_before_anything_is_sent(jetstream: JetStream, nats_client: Client) -> None:
    stream = await jetstream.stream("S", bind=True)
    before = nats_client.stats.out_msgs
    for name in ("a.b", "a b", "*", "a>", "", "x" * 256, "a/b", "a\\b", "a\r\nPUB x 0"):
        with pytest.raises(InvalidSubject, match="stream name"):
            await jetstream.create_stream(name=name)
        for call in (jetstream.stream, jetstream.delete_stream):
            with pytest.raises(InvalidSubject, match="stream name"):
                await call(name)
        for action in (stream.consumer, stream.delete_consumer, stream.consumer_info, stream.resume_consumer):
            with pytest.raises(InvalidSubject, match="consumer name"):
                await action(name)
        if name:
            with pytest.raises(InvalidSubject, match="consumer name"):
                await stream.create_consumer(durable_name=name)
    assert nats_client.stats.out_msgs == before


async def test_filters_and_sequences_are_checked(jetstream: JetStream, nats_client: Client) -> None:
    stream = await jetstream.stream("S", bind=True)
    before = nats_client.stats.out_msgs
    for call in (
        lambda: stream.purge(subject="a..b"),
        lambda: stream.info(subjects_filter="a b"),
        lambda: stream.get_last_message(""),
        lambda: stream.get_next_message("a.>.b"),
        lambda: jetstream.stream_name_by_subject("a\n"),
        lambda: stream.create_consumer(filter_subject="a..b"),
    ):
        with pytest.raises(InvalidSubject):
            await call()
    for number in (0, -1, 2**64):
        for action in (stream.get_message, stream.delete_message, lambda seq: stream.reset_consumer("c", seq)):
            with pytest.raises(ConfigError, match="sequence"):
                await action(number)
    with pytest.raises(TypeError, match="must be an int"):
        await stream.get_message(True)
    with pytest.raises(ConfigError, match="together"):
        await stream.purge(keep=1, seq=2)
    with pytest.raises(ConfigError, match="naive"):
        await stream.pause_consumer("c", datetime(2030, 1, 1))
    assert nats_client.stats.out_msgs == before


async def test_lists_go_on_behind_the_first_page(jetstream: JetStream) -> None:
    await asyncio.gather(*(memory_stream(jetstream, f"S{number}") for number in range(260)))
    wanted = {f"S{number}" for number in range(260)}
    listing = jetstream.streams()
    assert {info.name async for info in listing} == wanted
    assert (listing.missing, listing.offline) == ([], {})
    assert {name async for name in jetstream.stream_names()} == wanted


async def test_lists_of_nothing_are_empty(jetstream: JetStream) -> None:
    assert [info async for info in jetstream.streams()] == []
    assert [name async for name in jetstream.stream_names()] == []
    stream = await memory_stream(jetstream)
    assert [info async for info in stream.consumers()] == []
    assert [name async for name in stream.consumer_names()] == []


async def test_streams_are_found_by_subject(jetstream: JetStream) -> None:
    await memory_stream(jetstream, "A")
    await memory_stream(jetstream, "B")
    assert [info.name async for info in jetstream.streams(subject="a.1")] == ["A"]
    assert [name async for name in jetstream.stream_names(subject="b.>")] == ["B"]
    assert await jetstream.stream_name_by_subject("b.x.y") == "B"
    with pytest.raises(errors.NoStream, match="'c'"):
        await jetstream.stream_name_by_subject("c")


async def test_info_with_subjects_and_deleted_messages(jetstream: JetStream, nats_client: Client) -> None:
    stream = await memory_stream(jetstream)
    await store_each(nats_client, "s.a", "s.b", "s.a", "s.c")
    await stream.delete_message(3)
    plain = (await stream.info()).state
    assert (plain.messages, plain.subjects, plain.deleted, plain.num_deleted) == (3, {}, (), 1)
    asked = (await stream.info(deleted_details=True, subjects_filter="s.*")).state
    assert (asked.subjects, asked.deleted) == ({"s.a": 1, "s.b": 1, "s.c": 1}, (3,))
    assert stream.cached_info.state.subjects == {}, "what may be huge is not kept"
    assert [pair async for pair in stream.subjects("s.b")] == [("s.b", 1)]
    assert [pair async for pair in stream.subjects("x.>")] == []


async def test_all_subjects_of_several_pages_are_returned(jetstream: JetStream, nats_client: Client) -> None:
    stream = await memory_stream(jetstream)
    many = 100_100
    for number in range(many):
        if number % 5000 == 4999:  # the server takes in 10,000 unconfirmed messages
            await nats_client.request(f"s.{number}")
        else:
            await nats_client.publish(f"s.{number}")
    await nats_client.request("s.0")
    found = (await stream.info(subjects_filter=">", timeout=30)).state.subjects
    assert len(found) == many
    assert (found["s.0"], found["s.1"], sum(found.values())) == (2, 1, many + 1)
    count = 0
    async for _ in stream.subjects(timeout=30):
        count += 1
    assert count == many


async def test_purge_counts_what_it_removes(jetstream: JetStream, nats_client: Client) -> None:
    stream = await memory_stream(jetstream)
    await store_each(nats_client, *(["s.a", "s.b"] * 5))
    assert await stream.purge(subject="s.a", keep=2) == 3
    assert await stream.purge(seq=5) == 2
    assert await stream.purge(subject="s.b", seq=7) == 1
    for wrong in (0.0, False):
        with pytest.raises(TypeError, match="keep must be an int"):
            await stream.purge(keep=wrong)  # type: ignore[arg-type]
    assert await stream.purge(keep=None) == 4  # type: ignore[arg-type]
    assert await stream.purge() == 0


async def test_delete_message_with_and_without_erasing(jetstream: JetStream, nats_client: Client) -> None:
    stream = await memory_stream(jetstream)
    await store_each(nats_client, "s.a", "s.b")
    await stream.delete_message(1)
    await stream.delete_message(2, erase=True)
    assert (await stream.info()).state.messages == 0
    for number in (1, 2):
        with pytest.raises(errors.MessageNotFound, match=f"message {number} of stream 'S'"):
            await stream.get_message(number)
        with pytest.raises(errors.MessageNotFound):
            await stream.delete_message(number)


async def test_sealed_stream_takes_and_loses_nothing(jetstream: JetStream, nats_client: Client) -> None:
    stream = await memory_stream(jetstream)
    await store_each(nats_client, "s.a")
    assert (await stream.seal()).config.sealed
    assert b"sealed" in (await nats_client.request("s.a", b"no")).data
    for call in (stream.purge(), stream.delete_message(1)):
        with pytest.raises(errors.ApiError, match=r"sealed|not permitted"):
            await call
    assert (await stream.get_message(1)).data == b"1"


async def test_refusals_of_a_protected_stream_are_typed(jetstream: JetStream, nats_client: Client) -> None:
    stream = await memory_stream(jetstream, deny_delete=True, deny_purge=True)
    await store_each(nats_client, "s.a")
    for call in (stream.purge(), stream.delete_message(1)):
        with pytest.raises(errors.StreamProtected):
            await call


async def test_pedantic_server_refuses_what_it_would_adapt(jetstream: JetStream) -> None:
    config = StreamConfig(name="S", storage="memory", max_age=60)
    with pytest.raises(errors.BadRequest, match="pedantic"):
        await jetstream.create_stream(config, pedantic=True)
    stream = await jetstream.create_stream(config)
    assert stream.cached_info.config.duplicate_window == 60
    await stream.create_consumer("c", backoff=[1, 2], ack_wait=5, max_deliver=3)
    with pytest.raises(errors.BadRequest, match="pedantic"):
        await stream.create_consumer("d", backoff=[1, 2], ack_wait=5, max_deliver=3, pedantic=True)


async def test_account_info_counts_and_limits(jetstream: JetStream) -> None:
    await memory_stream(jetstream)
    info = await jetstream.account_info()
    assert (info.streams, info.limits.max_streams, info.api.level) == (1, -1, 5)


# ---------------------------------------------------------------- consumers


EVERY_CONSUMER_FIELD = ConsumerConfig(
    name="all",
    durable_name="all",
    description="everything",
    deliver_policy="by_start_sequence",
    opt_start_seq=3,
    ack_policy="explicit",
    ack_wait=0.5,
    max_deliver=4,
    backoff=[0.5, 1.5, 2.25],
    filter_subjects=["s.a", "s.b"],
    replay_policy="original",
    sample_freq="50%",
    max_waiting=20,
    max_ack_pending=30,
    headers_only=True,
    max_batch=40,
    max_expires=50.5,
    max_bytes=60_000,
    inactive_threshold=70.0,
    num_replicas=1,
    mem_storage=True,
    pause_until=datetime(2100, 1, 1, tzinfo=UTC),
    priority_groups=["jobs"],
    priority_policy="pinned_client",
    priority_timeout=80.0,
    metadata={"owner": "tests"},
)


async def test_every_field_of_a_pull_consumer_comes_back(jetstream: JetStream) -> None:
    stream = await memory_stream(jetstream)
    consumer = await stream.create_consumer(EVERY_CONSUMER_FIELD)
    assert without_server_words(consumer.cached_info.config) == without_server_words(EVERY_CONSUMER_FIELD)
    assert consumer.cached_info.paused


async def test_every_field_of_a_push_consumer_comes_back(jetstream: JetStream) -> None:
    stream = await memory_stream(jetstream)
    wanted = ConsumerConfig(
        name="push",
        deliver_policy="by_start_time",
        opt_start_time=datetime(2024, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
        ack_policy="none",
        filter_subject="s.a",
        rate_limit_bps=1_000_000,
        deliver_subject="deliver.here",
        deliver_group="g",
        flow_control=True,
        idle_heartbeat=1.5,
        inactive_threshold=5,
    )
    found = (await stream.create_push_consumer(wanted)).cached_info.config
    decided = {"ack_wait", "max_ack_pending", "max_deliver", "metadata", "extra"}
    assert {name: getattr(found, name) for name in ConsumerConfig._fields if name not in decided} == {
        name: getattr(wanted, name) for name in ConsumerConfig._fields if name not in decided
    }


async def test_consumer_is_named_by_the_server(jetstream: JetStream) -> None:
    stream = await memory_stream(jetstream)
    consumer = await stream.create_consumer()
    assert consumer.name
    assert (await stream.consumer_info(consumer.name)).config.durable_name == ""


async def test_create_update_and_create_or_update_consumers(jetstream: JetStream) -> None:
    stream = await memory_stream(jetstream)
    with pytest.raises(errors.ConsumerNotFound):
        await stream.update_consumer(durable_name="c")
    await stream.create_consumer(durable_name="c")
    await stream.create_consumer(durable_name="c")
    with pytest.raises(errors.ConsumerExists, match="consumer 'c' of stream 'S'"):
        await stream.create_consumer(durable_name="c", max_deliver=3)
    assert (await stream.update_consumer(durable_name="c", max_deliver=3)).cached_info.config.max_deliver == 3
    for number in (4, 5):
        consumer = await stream.create_or_update_consumer(durable_name="c", max_deliver=number)
        assert consumer.cached_info.config.max_deliver == number
    await stream.create_or_update_consumer(durable_name="d")
    assert {info.name async for info in stream.consumers()} == {"c", "d"}
    assert {name async for name in stream.consumer_names()} == {"c", "d"}
    await consumer.delete()
    await stream.delete_consumer("d")
    with pytest.raises(errors.ConsumerNotFound, match="consumer 'c' of stream 'S'"):
        await consumer.info()
    with pytest.raises(ConfigError, match="is needed to update"):
        await stream.update_consumer(ConsumerConfig(), max_deliver=1)


async def test_consumer_lists_have_several_pages(jetstream: JetStream) -> None:
    stream = await memory_stream(jetstream)
    await asyncio.gather(*(stream.create_consumer(name=f"c{number}", inactive_threshold=30) for number in range(260)))
    listing = stream.consumers()
    assert {info.name async for info in listing} == {f"c{number}" for number in range(260)}
    assert (listing.missing, listing.offline) == ([], {})


@pytest.mark.parametrize(
    "filters",
    [
        {"filter_subject": "s.a"},
        {"filter_subject": "s.*"},
        {"filter_subjects": ["s.a"]},
        {"filter_subjects": ["s.a", "s.b"]},
    ],
)
@pytest.mark.parametrize("name", ["", "c"])
async def test_filters_arrive_however_they_are_given(jetstream: JetStream, filters: ConsumerArgs, name: str) -> None:
    stream = await memory_stream(jetstream)
    consumer = await stream.create_consumer(ConsumerConfig(name=name, inactive_threshold=30), **filters)
    assert consumer.cached_info.config.filters == ConsumerConfig().replace(**filters).filters
    again = await stream.update_consumer(consumer.cached_info.config, name=consumer.name)
    assert again.cached_info.config.filters == ConsumerConfig().replace(**filters).filters


async def test_paused_consumer_says_so_until_it_is_resumed(jetstream: JetStream) -> None:
    stream = await memory_stream(jetstream)
    consumer = await stream.create_consumer(durable_name="c")
    until = datetime.now(UTC) + timedelta(hours=1)
    paused = await consumer.pause(until)
    assert (paused.paused, paused.pause_until) == (True, until)
    assert 3590 < paused.pause_remaining <= 3600
    assert (await consumer.info()).paused
    assert not (await consumer.resume()).paused
    assert (await stream.pause_consumer("c", until)).paused
    assert not (await stream.resume_consumer("c")).paused


async def test_reset_starts_a_consumer_again(jetstream: JetStream, nats_client: Client) -> None:
    stream = await memory_stream(jetstream)
    await store_each(nats_client, "s.a", "s.b", "s.c")
    consumer = await stream.create_consumer(durable_name="c", ack_policy="none")
    async with nats_client.subscribe("got", max_messages=3) as got:
        await nats_client.publish("$JS.API.CONSUMER.MSG.NEXT.S.c", b"3", reply="got")
        assert [message.data async for message in got] == [b"1", b"2", b"3"]
    assert (await consumer.info()).num_pending == 0
    assert (await consumer.reset(2)).reset_seq == 2
    assert consumer.cached_info.num_pending == 2
    assert (await stream.reset_consumer("c")).reset_seq == 2
    last = await stream.create_consumer(durable_name="last", deliver_policy="last")
    with pytest.raises(errors.InvalidConsumerConfig):
        await last.reset(1)


async def test_unpin_needs_a_group_of_the_consumer(jetstream: JetStream) -> None:
    stream = await memory_stream(jetstream)
    consumer = await stream.create_consumer(durable_name="c", priority_groups=["jobs"], priority_policy="pinned_client")
    await consumer.unpin("jobs")
    await stream.unpin_consumer("c", "jobs")
    with pytest.raises(errors.InvalidConsumerConfig):
        await consumer.unpin("other")
    with pytest.raises(InvalidSubject, match="priority group"):
        await consumer.unpin("a group")


async def test_arguments_are_the_fields_of_the_configs() -> None:
    for kind, arguments in (
        (StreamConfig, StreamArgs),
        (ConsumerConfig, ConsumerArgs),
        (KeyValueConfig, KeyValueArgs),
        (ObjectStoreConfig, ObjectStoreArgs),
    ):
        assert list(inspect.get_annotations(arguments)) == [name for name in kind._fields if name != "extra"]


# ---------------------------------------------------------------- when it cannot work


async def promptly(call: Awaitable[object], kind: type[Exception], words: str) -> None:
    loop = asyncio.get_running_loop()
    started = loop.time()
    with pytest.raises(kind, match=words):
        await call
    assert loop.time() - started < PROMPT


async def test_jetstream_that_is_off_is_said_at_once() -> None:
    async with run_server() as server, natsproto.connect(server.url) as nc:
        js = nc.jetstream(timeout=LONG)
        await promptly(js.account_info(), errors.JetStreamNotEnabled, "account info: .* JetStream is off")
        await promptly(js.create_stream(name="S"), errors.JetStreamNotEnabled, "create stream 'S'")
        await promptly(js.stream("S"), errors.JetStreamNotEnabled, "info of stream 'S'")
        stream = await js.stream("S", bind=True)
        await promptly(stream.get_message(1), errors.JetStreamNotEnabled, "message 1 of stream 'S'")
        await promptly(anext(aiter(stream.get_batch())), errors.JetStreamNotEnabled, "messages of stream 'S'")


async def test_not_enabled_has_the_servers_err_code() -> None:
    async with run_server() as server, natsproto.connect(server.url) as nc:
        with pytest.raises(errors.JetStreamNotEnabled) as caught:
            await nc.jetstream(timeout=LONG).account_info()
        assert (caught.value.code, caught.value.err_code) == (503, 10076)


@pytest.mark.parametrize("reply", [b'{"success": false}', b"{}", b'{"success": 1}', b'{"success": null}'])
async def test_delete_without_success_is_invalid(nats_client: Client, reply: bytes) -> None:
    async def answer(msg: natsproto.Message) -> None:
        await msg.respond(reply)

    await nats_client.subscribe("API.>", cb=answer)
    js = nats_client.jetstream(prefix="API")
    stream = await js.stream("S", bind=True)
    consumer = await stream.consumer("C", bind=True)
    for deleting in (
        js.delete_stream("S"),
        stream.delete_message(1),
        consumer.delete(),
        js.delete_key_value("B"),
        js.delete_object_store("B"),
        js.admin.step_down_stream_leader("S"),
    ):
        with pytest.raises(errors.InvalidReply, match="success"):
            await deleting


async def test_longest_max_age_is_written_back(jetstream: JetStream) -> None:
    longest = 2**63 - 1
    for ns in (longest, longest - 1, 10**18 + 1):
        config = decode(StreamConfig, {"name": "S", "max_age": ns, "subjects": ["s"], "storage": "memory"})
        config = (await (await jetstream.create_or_update_stream(config)).info()).config
        assert encode(config)["max_age"] == ns
        assert (await (await jetstream.update_stream(config)).info()).config == config


async def test_wrong_domain_is_said_at_once(nats_client: Client) -> None:
    js = nats_client.jetstream(domain="elsewhere", timeout=LONG)
    await promptly(js.account_info(), errors.JetStreamNotEnabled, r"\$JS\.elsewhere\.API.*the domain does not exist")


async def test_account_without_jetstream_is_reported_at_once() -> None:
    accounts = """
    accounts {
      A { jetstream: enabled, users: [{user: a, password: x}] }
      B { users: [{user: b, password: x}] }
    }"""
    async with (
        run_server(jetstream=True, config=accounts) as server,
        natsproto.connect(server.url, user="b", password="x") as nc,
    ):
        js = nc.jetstream(timeout=LONG)
        for call in (js.account_info(), js.create_stream(name="S"), js.stream("S")):
            await promptly(call, errors.JetStreamNotEnabled, "JetStream")


async def test_prefix_of_another_account() -> None:
    accounts = """
    accounts {
      OWNER {
        jetstream: enabled, users: [{user: owner, password: x}]
        exports: [{service: "$JS.API.>", response_type: stream}, {service: "s.>"}]
      }
      GUEST {
        users: [{user: guest, password: x}]
        imports: [
          {service: {account: OWNER, subject: "$JS.API.>"}, to: "JS.owner.API.>"}
          {service: {account: OWNER, subject: "s.>"}}
        ]
      }
    }"""
    async with (
        run_server(jetstream=True, config=accounts) as server,
        natsproto.connect(server.url, user="owner", password="x") as owner,
        natsproto.connect(server.url, user="guest", password="x") as guest,
    ):
        await memory_stream(owner.jetstream(), allow_direct=True)
        js = guest.jetstream(prefix="JS.owner.API")
        assert (await js.publish("s.a", b"1")).seq == 1
        stream = await js.stream("S")
        assert (await stream.get_message(1)).data == b"1"
        assert [message.data async for message in stream.get_batch()] == [b"1"]
        assert [message.data async for message in stream.get_last_messages(["s.>"])] == [b"1"]
        consumer = await stream.create_consumer("c", filter_subject="s.*", ack_policy="none")
        assert [message.data for message in await consumer.fetch(1, timeout=20)] == [b"1"]
        await promptly(guest.jetstream(timeout=LONG).account_info(), errors.JetStreamNotEnabled, "JetStream")


PERMISSIONS = """
authorization {
  users: [
    {user: full, password: x},
    {user: deaf, password: x, permissions: {publish: {allow: [">"]}, subscribe: {deny: ["_INBOX.>"]}}},
    {user: some, password: x, permissions: {publish: {allow: [
        "$JS.API.STREAM.INFO.S", "$JS.API.CONSUMER.CREATE.S.c.s.eu", "$JS.API.DIRECT.GET.S.s.eu"
    ]}}},
    {user: getter, password: x, permissions: {publish: {allow: ["$JS.API.DIRECT.GET.S"]}}},
    {user: wild, password: x, permissions: {publish: {allow: [
        "$JS.API.CONSUMER.CREATE.S.*.s.eu.>", "$JS.API.CONSUMER.MSG.NEXT.S.*"
    ]}}}
  ]
}"""


@pytest.fixture
async def guarded() -> AsyncIterator[Callable[[str], Awaitable[JetStream]]]:
    async with run_server(jetstream=True, config=PERMISSIONS) as server:
        clients: list[Client] = []

        async def context(user: str) -> JetStream:
            nc = await natsproto.connect(server.url, user=user, password="x")
            clients.append(nc)
            return nc.jetstream(timeout=LONG)

        yield context
        for nc in clients:
            await nc.close()


async def test_denied_call_says_so_at_once(guarded: Callable[[str], Awaitable[JetStream]], tmp_path: Path) -> None:
    js = await guarded("some")
    await promptly(js.create_stream(name="S"), errors.PermissionDenied, r"publish to '\$JS\.API\.STREAM\.CREATE\.S'")
    await promptly(anext(aiter(js.stream_names())), errors.PermissionDenied, "STREAM.NAMES")
    stream = await js.stream("S", bind=True)
    await promptly(stream.get_message(1), errors.PermissionDenied, "DIRECT.GET.S")
    await promptly(anext(aiter(stream.get_batch())), errors.PermissionDenied, "DIRECT.GET.S")
    await promptly(anext(aiter(stream.get_last_messages(["a"]))), errors.PermissionDenied, "DIRECT.GET.S")
    await promptly(stream.backup(tmp_path / "s"), errors.PermissionDenied, "STREAM.SNAPSHOT.S")
    assert os.listdir(tmp_path) == []


async def test_denied_inbox_says_so_at_once(guarded: Callable[[str], Awaitable[JetStream]]) -> None:
    js = await guarded("deaf")
    await promptly(js.account_info(), errors.PermissionDenied, "subscribe to '_INBOX")
    stream = await js.stream("S", bind=True)
    await promptly(anext(aiter(stream.get_batch())), errors.PermissionDenied, "subscribe to '_INBOX")


async def test_permissions_can_tell_subjects_apart(guarded: Callable[[str], Awaitable[JetStream]]) -> None:
    owner, guest = await guarded("full"), await guarded("some")
    await memory_stream(owner, allow_direct=True)
    await store_each(owner._connection, "s.eu", "s.us")  # type: ignore[arg-type]
    stream = await guest.stream("S")
    assert (await stream.get_last_message("s.eu")).data == b"1"
    await promptly(stream.get_last_message("s.us"), errors.PermissionDenied, "s.us")
    consumer = await stream.create_consumer(durable_name="c", filter_subject="s.eu")
    assert consumer.name == "c"
    await promptly(
        stream.create_consumer(durable_name="c", filter_subject="s.us"), errors.PermissionDenied, "CREATE.S.c.s.us"
    )


async def test_last_messages_need_direct_get_permission_only(
    guarded: Callable[[str], Awaitable[JetStream]],
) -> None:
    owner, guest = await guarded("full"), await guarded("getter")
    await memory_stream(owner, allow_direct=True)
    async with owner.publisher() as pub:
        for number in range(900):
            await pub.publish(f"s.{number}", bytes(20_000))
    stream = await guest.stream("S", bind=True)
    assert len([message.seq async for message in stream.get_last_messages(["s.*"])]) == 900


async def test_permissions_of_filters_with_wildcards(
    guarded: Callable[[str], Awaitable[JetStream]],
) -> None:
    owner, guest = await guarded("full"), await guarded("wild")
    await memory_stream(owner)
    await store_each(owner._connection, "s.eu.1", "s.us.1", "s.eu.2")  # type: ignore[arg-type]
    stream = await guest.stream("S", bind=True)
    for filter_subject in ("s.eu.*", "s.eu.>"):
        consumer = await stream.create_consumer("c", filter_subject=filter_subject, ack_policy="none")
        assert [message.data for message in await consumer.fetch(2, timeout=20)] == [b"1", b"3"]
        await (await owner.stream("S")).delete_consumer("c")
    for other in ("s.*.1", "s.>", ">"):
        await promptly(
            stream.create_consumer("c", filter_subject=other),
            errors.PermissionDenied,
            r"CREATE\.S\.c\.",
        )
    await promptly(stream.create_consumer("c"), errors.PermissionDenied, r"CREATE\.S\.c'")


async def test_request_demands_the_api_level_of_its_config(jetstream: JetStream, nats_client: Client) -> None:
    async with nats_client.subscribe("$JS.API.*.CREATE.>") as requests:
        stream = await memory_stream(jetstream, "A")
        await memory_stream(jetstream, "B", allow_msg_ttl=True)
        await memory_stream(jetstream, "C", allow_atomic=True, allow_msg_ttl=True)
        await memory_stream(jetstream, "D", allow_batched=True)
        await stream.create_consumer("a")
        await stream.create_consumer("b", priority_groups=["g"], priority_policy="overflow")
        asked = [(await requests.next(timeout=20)) for _ in range(6)]
    demanded = [request.headers.get("Nats-Required-Api-Level") for request in asked]
    assert demanded == [None, "1", "2", "4", None, "1"]


async def test_timeout_of_a_call_beats_the_context(nats_server: Server, nats_client: Client) -> None:
    js = nats_client.jetstream(timeout=LONG)
    stream = await memory_stream(js)
    nats_server.freeze()
    try:
        for call in (
            js.account_info(timeout=0.05),
            js.stream("S", timeout=timedelta(seconds=0.05)),
            stream.info(timeout=0.05),
            stream.get_message(1, timeout=0.05),
            stream.consumer_info("c", timeout=0.05),
            anext(aiter(stream.consumers(timeout=0.05))),
            anext(aiter(stream.get_batch(timeout=0.05, direct=True))),
            nats_client.jetstream(timeout=0.05).account_info(),
        ):
            await promptly(call, errors.RequestTimeout, "within 0.05 s")
    finally:
        nats_server.thaw()


# ---------------------------------------------------------------- domains


@pytest.fixture
async def leaf() -> AsyncIterator[Client]:
    """A client of a leaf node in the domain "edge", joined to a hub in the domain "hub"."""
    async with hub_and_leaf() as (_, near):
        yield near


async def test_domain_behind_a_leaf_node(leaf: Client, tmp_path: Path) -> None:
    far, near, local = leaf.jetstream(domain="hub"), leaf.jetstream(domain="edge"), leaf.jetstream()
    assert [(await js.account_info()).domain for js in (far, near, local)] == ["hub", "edge", "edge"]
    stream = await far.create_stream(name="S", subjects=["s.>"], storage="memory", allow_direct=True)
    with pytest.raises(errors.StreamNotFound):
        await near.stream("S")
    await store_each(leaf, "s.a", "s.b", "s.a")
    assert (await stream.get_message(2)).data == b"2"
    assert (await stream.get_last_message("s.a")).seq == 3
    assert (await stream.get_message(2, direct=False)).data == b"2"
    assert [message.seq async for message in stream.get_batch()] == [1, 2, 3]
    assert [message.seq async for message in stream.get_last_messages(["s.>"])] == [2, 3]
    consumer = await stream.create_consumer(durable_name="c", filter_subject="s.a")
    assert (await consumer.info()).num_pending == 2
    await stream.backup(tmp_path / "s")
    await far.delete_stream("S")
    restored = await far.restore_stream(tmp_path / "s")
    assert (await restored.info()).state.messages == 3
    assert [name async for name in near.stream_names()] == []


async def test_mirror_of_another_domain_fills_and_is_read(leaf: Client) -> None:
    far, near = leaf.jetstream(domain="hub"), leaf.jetstream(domain="edge")
    await far.create_stream(name="S", subjects=["s.>"], storage="memory")
    await store_each(leaf, "s.a", "s.b")
    mirror = await near.create_stream(name="COPY", storage="memory", mirror=StreamSource.in_domain("S", "hub"))
    while (info := await mirror.info()).state.messages < 2:
        pass  # each look is a round trip
    assert info.mirror is not None
    assert info.mirror.name == "S"
    assert (await mirror.get_message(2)).data == b"2"


@pytest.mark.parametrize(("filters", "err_code"), [({}, 10099), ({"filter_subject": "s.a"}, 10100)], ids=str)
async def test_second_consumer_of_a_work_queue(jetstream: JetStream, filters: dict[str, Any], err_code: int) -> None:
    stream = await memory_stream(jetstream, retention="workqueue")
    await stream.create_consumer("first", **filters)
    with pytest.raises(errors.InvalidConsumerConfig, match="use one consumer for all workers") as caught:
        await stream.create_consumer("second", **filters)
    assert caught.value.err_code == err_code
