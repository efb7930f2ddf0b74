"""Every server in use is managed: what it knows works, what it does not know is refused at once and by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from natsproto import Client, errors
from natsproto.errors import UnsupportedByServer
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._publish.headers import ExpectationArgs, MessageArgs
from natsproto.jetstream._publish.schedule import Schedule
from natsproto.jetstream._values.config import ConsumerConfig, StreamConfig
from natsproto.jetstream._values.config_parts import Republish, StreamConsumerLimits, SubjectTransform
from tests.jetstream.reading import store_each
from tests.kit.servers import SERIES, client_of, level, works_since


@pytest.fixture(params=SERIES)
async def nc(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    async with client_of(request.param) as client:
        yield client


STREAM = StreamConfig(
    name="S",
    description="all that 2.10 knows",
    subjects=["s.>"],
    max_consumers=70,
    max_msgs=1000,
    max_bytes=1_000_000,
    max_age=3600.5,
    max_msgs_per_subject=100,
    max_msg_size=4096,
    discard="new",
    discard_new_per_subject=True,
    storage="file",
    duplicate_window=60.25,
    compression="s2",
    first_seq=1,
    subject_transform=SubjectTransform(src="s.*", dest="s.{{wildcard(1)}}"),
    republish=Republish(src="s.*", dest="again.{{wildcard(1)}}"),
    allow_direct=True,
    allow_rollup_hdrs=True,
    consumer_limits=StreamConsumerLimits(inactive_threshold=60.0, max_ack_pending=500),
    metadata={"owner": "tests"},
)


def same(asked: StreamConfig | ConsumerConfig, got: StreamConfig | ConsumerConfig, *decided: str) -> None:
    for name in type(asked)._fields:
        if name not in {"metadata", "first_seq", *decided}:
            assert getattr(got, name) == getattr(asked, name), name
    assert asked.metadata.items() <= got.metadata.items()


async def test_streams_are_managed_on_every_server(nc: Client) -> None:
    js = nc.jetstream()
    assert (await js.account_info()).streams == 0
    stream = await js.create_stream(STREAM)
    same(STREAM, stream.cached_info.config)
    same(STREAM, (await js.update_stream((await stream.info()).config)).cached_info.config)
    assert (await stream.update(max_msgs=500)).config.max_msgs == 500
    await js.create_or_update_stream(STREAM)
    await js.create_or_update_stream(name="T", storage="memory")
    assert {info.name async for info in js.streams()} == {"S", "T"}
    assert {name async for name in js.stream_names()} == {"S", "T"}
    assert await js.stream_name_by_subject("s.a") == "S"
    await store_each(nc, "s.a", "s.b", "s.a", "s.c")
    await stream.delete_message(2)
    state = (await stream.info(deleted_details=True, subjects_filter=">")).state
    assert (dict(state.subjects), state.deleted) == ({"s.a": 2, "s.c": 1}, (2,))
    assert await stream.purge(subject="s.a", keep=1) == 1
    await js.delete_stream("T")
    with pytest.raises(errors.StreamNotFound):
        await js.stream("T")
    with pytest.raises(errors.StreamExists):
        await js.create_stream(STREAM.replace(description="another"))
    assert (await stream.seal()).config.sealed


async def test_consumers_are_managed_on_every_server(nc: Client) -> None:
    stream = await nc.jetstream().create_stream(STREAM)
    wanted = ConsumerConfig(
        durable_name="c",
        description="all that 2.10 knows",
        deliver_policy="by_start_time",
        opt_start_time=datetime(2024, 1, 2, tzinfo=UTC),
        max_deliver=4,
        backoff=[0.5, 1.5, 2.25],
        ack_wait=0.5,
        filter_subjects=["s.a", "s.b"],
        sample_freq="50%",
        max_waiting=20,
        max_ack_pending=30,
        headers_only=True,
        max_batch=40,
        max_expires=50.5,
        max_bytes=60_000,
        inactive_threshold=50.0,
        num_replicas=1,
        mem_storage=True,
        metadata={"owner": "tests"},
    )
    consumer = await stream.create_consumer(wanted)
    same(wanted, consumer.cached_info.config, "name")
    same(wanted, (await stream.update_consumer((await consumer.info()).config)).cached_info.config, "name")
    with pytest.raises(errors.ConsumerExists):
        await stream.create_consumer(wanted, max_deliver=5)
    with pytest.raises(errors.ConsumerNotFound):
        await stream.update_consumer(wanted, durable_name="d")
    await stream.create_or_update_consumer(durable_name="d", filter_subject="s.a")
    assert {info.name async for info in stream.consumers()} == {"c", "d"}
    assert {name async for name in stream.consumer_names()} == {"c", "d"}
    later = datetime.now(UTC) + timedelta(hours=1)
    if await works_since(nc, (2, 11), consumer.pause(later)):
        assert (await consumer.info()).paused
    await works_since(nc, (2, 11), consumer.resume())
    await works_since(nc, (2, 14), consumer.reset())
    there = await works_since(nc, (2, 11), stream.create_consumer(durable_name="e", pause_until=later))
    assert ("e" in [name async for name in stream.consumer_names()]) == there
    pinned = ConsumerConfig(durable_name="f", priority_groups=["g"], priority_policy="pinned_client")
    if await works_since(nc, (2, 11), stream.create_consumer(pinned)):
        await stream.unpin_consumer("f", "g")
    prioritized = ConsumerConfig(durable_name="g", priority_groups=["g"], priority_policy="prioritized")
    await works_since(nc, (2, 12), stream.create_consumer(prioritized))
    await consumer.delete()


async def test_wildcard_filter_in_the_request_subject(nc: Client) -> None:
    stream = await nc.jetstream().create_stream(name="S", subjects=["s.>"], storage="memory")
    await store_each(nc, "s.a.1", "s.b.1", "s.a.2")
    async with nc.subscribe("$JS.API.CONSUMER.CREATE.>") as requests:
        for name, subject in (("c", "s.a.*"), ("d", "s.>"), ("e", ">"), ("f", "s.*.1")):
            consumer = await stream.create_consumer(name=name, inactive_threshold=30, filter_subject=subject)
            assert consumer.cached_info.config.filter_subject == subject
            assert consumer.cached_info.num_pending == {"c": 2, "f": 2}.get(name, 3)
            assert (await requests.next(timeout=20)).subject == f"$JS.API.CONSUMER.CREATE.S.{name}.{subject}"
            await stream.update_consumer(consumer.cached_info.config, description="again")
            await requests.next(timeout=20)


@pytest.mark.parametrize(
    ("since", "fields"),
    [
        ((2, 11), {"allow_msg_ttl": True}),
        ((2, 11), {"allow_msg_ttl": True, "subject_delete_marker_ttl": 5.0, "allow_rollup_hdrs": True}),
        ((2, 12), {"allow_msg_counter": True}),
        ((2, 12), {"allow_atomic": True}),
        ((2, 12), {"allow_msg_schedules": True, "allow_rollup_hdrs": True}),
        ((2, 12), {"persist_mode": "async"}),
        ((2, 14), {"allow_batched": True}),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
async def test_newer_stream_fields_arrive_or_are_refused(
    nc: Client, since: tuple[int, int], fields: dict[str, Any]
) -> None:
    js = nc.jetstream()
    there = await works_since(nc, since, js.create_stream(StreamConfig(name="S").replace(**fields)))
    assert [name async for name in js.stream_names()] == ["S"] * there


@pytest.mark.smoke
async def test_messages_are_got_from_every_server(nc: Client) -> None:
    js = nc.jetstream()
    stream = await js.create_stream(name="S", subjects=["s.>"], storage="memory", allow_direct=True)
    await store_each(nc, *(f"s.{'abc'[number % 3]}" for number in range(30)))
    await stream.delete_message(5)
    for direct in (True, False):
        assert (await stream.get_message(7, direct=direct)).data == b"7"
        assert (await stream.get_last_message("s.b", direct=direct)).seq == 29
        assert (await stream.get_next_message("s.b", start_seq=4, direct=direct)).seq == 8
        moment = (await stream.get_message(7, direct=direct)).time
        assert moment == (await stream.get_message(7)).time
        await works_since(nc, (2, 11), stream.get_next_message(start_time=moment, direct=direct))
    assert [message.seq async for message in stream.get_batch()] == [seq for seq in range(1, 31) if seq != 5]
    assert [message.seq async for message in stream.get_batch(subject="s.b", batch=3)] == [2, 8, 11]

    async def last_messages(**up_to: object) -> list[int]:
        return [message.seq async for message in stream.get_last_messages(["s.*"], **up_to)]  # type: ignore[arg-type]

    if await works_since(nc, (2, 11), last_messages()):
        assert await last_messages() == [28, 29, 30]
        assert await last_messages(up_to_seq=15) == [13, 14, 15]
        assert await last_messages(up_to_time=moment) == [2, 6, 7]
        assert await last_messages(batch=2) == [28, 29]


async def test_headers_can_be_left_out_on_every_server(nc: Client) -> None:
    js = nc.jetstream()
    stream = await js.create_stream(name="S", subjects=["s"], storage="memory", allow_direct=True)
    await js.publish("s", b"1", headers={"A": "b"})
    whole = await stream.get_message(1)
    for bare in (
        await stream.get_message(1, headers=False),
        await stream.get_last_message("s", headers=False),
        await stream.get_next_message(headers=False),
    ):
        assert (bare.seq, bare.subject, bare.data, list(bare.headers)) == (1, "s", b"1", [])
        assert bare.time == whole.time
    assert whole.headers["A"] == "b"


async def test_pages_of_last_messages_on_every_server(nc: Client) -> None:
    stream = await nc.jetstream().create_stream(name="S", subjects=["s.>"], storage="memory", allow_direct=True)
    for number in range(1, 1001):
        await nc.publish(f"s.{number}", bytes(20_000))
    await nc.request("s.1000", bytes(20_000))

    async def read() -> tuple[int, list[int]]:
        pages, found = 0, []
        async for batch in stream.get_last_messages(["s.>"]).batches():
            pages += 1
            found += [message.seq for message in batch]
        return pages, found

    if await works_since(nc, (2, 11), read()):
        pages, found = await read()
        assert pages > 1
        assert found == [*range(1, 1000), 1001]


async def test_messages_are_published_to_every_server(nc: Client) -> None:
    js = nc.jetstream()
    stream = await js.create_stream(name="S", subjects=["s.>"], storage="memory")
    assert (await js.publish("s.a", b"1", msg_id="1", expected_stream="S", expected_last_seq=0)).seq == 1
    assert (await js.publish("s.a", b"1", msg_id="1")).duplicate
    assert (await js.publish("s.a", b"2", expected_last_subject_seq=1, expected_last_msg_id="1")).seq == 2
    for wrong in ({"expected_last_seq": 1}, {"expected_last_subject_seq": 1}, {"expected_last_msg_id": "1"}):
        with pytest.raises(errors.WrongExpectation):
            await js.publish("s.a", b"3", **wrong)
    for auto_msg_id in (False, True):
        async with js.publisher(max_pending=7, auto_msg_id=auto_msg_id) as pub:
            futures = [await pub.publish(f"s.{number}", b"x") for number in range(50)]
        assert [(await future).seq - futures[0].result().seq for future in futures] == list(range(50))
    async with js.publisher() as pub:
        await pub.publish("s.b")
    assert (await stream.info()).state.messages == 103

    async def atomic() -> None:
        async with js.atomic_batch() as batch:
            await batch.publish("s.c", b"1")
            await batch.publish("s.c", b"2")

    async def fast(subject: str) -> None:
        async with js.fast_publisher() as pub:
            for number in range(1500):
                await pub.publish(subject, b"%d" % number)

    if level(nc) < (2, 12):
        with pytest.raises(UnsupportedByServer, match=r"nats-server 2\.12 is needed"):
            await atomic()
    else:
        with pytest.raises(errors.BatchRefused):
            await atomic()
        await stream.update(allow_atomic=True)
        await atomic()
        await js.create_stream(name="C", subjects=["c.>"], storage="memory", allow_msg_counter=True, allow_direct=True)
        assert await js.counter_add("c.a", 2**70) == 2**70
        assert (await js.counter_get("c.a")).value == 2**70
        await js.create_stream(name="T", subjects=["t.>"], storage="memory", allow_msg_schedules=True)
        await js.publish("t.when", b"later", schedule=Schedule.after(3600, target="t.then"))
        assert await js.cancel_schedule("t.when")
    if level(nc) < (2, 14):
        with pytest.raises(UnsupportedByServer, match=r"nats-server 2\.14 is needed"):
            await fast("s.d")
    else:
        await js.create_stream(name="F", subjects=["f.>"], storage="memory", allow_batched=True)
        await fast("f.a")
        async with js.fast_publisher() as one:
            await one.publish("f.b")
        assert (await (await js.stream("F")).info()).state.messages == 1501
    held = (await stream.info()).state.messages
    assert held == (103 if level(nc) < (2, 12) else 105)


async def test_headers_the_server_ignores_are_not_sent(nc: Client) -> None:
    js = nc.jetstream()
    stream = await js.create_stream(name="S", subjects=["s.>"], storage="memory")
    await js.publish("s.a", b"1")
    expected: MessageArgs = {"expected_last_subject_seq": 0, "expected_last_subject_seq_subject": "s.a"}
    later = Schedule.after(3600, target="s.c")
    for since, subject, args, refusal in (
        ((2, 11), "s.b", MessageArgs(ttl=1), errors.TtlRefused),
        ((2, 11), "s.b", expected, errors.WrongLastSequence),
        ((2, 12), "s.b", MessageArgs(schedule=later), errors.ScheduleRefused),
    ):
        refused = refusal if level(nc) >= since else UnsupportedByServer
        with pytest.raises(refused):
            await js.publish(subject, b"2", **args)
        with pytest.raises(refused):
            await publish_through_a_window(js, subject, args)
    with pytest.raises(errors.CounterRefused if level(nc) >= (2, 12) else UnsupportedByServer):
        await js.counter_add("s.b", 1)
    with pytest.raises(errors.ScheduleRefused if level(nc) >= (2, 14) else UnsupportedByServer):
        await js.replace_schedule("s.b", "s.c")
    assert (await stream.info()).state.last_seq == 1


async def publish_through_a_window(js: JetStream, subject: str, args: ExpectationArgs) -> None:
    async with js.publisher() as pub:
        future = await pub.publish(subject, b"2", **args)
        await future


async def test_backup_and_restore_on_every_server(nc: Client, tmp_path: Path) -> None:
    js = nc.jetstream()
    stream = await js.create_stream(STREAM)
    await store_each(nc, *(f"s.{number}" for number in range(500)))
    await stream.create_consumer(durable_name="c")
    await stream.backup(tmp_path / "s", check=True, chunk_size=1024)
    await js.create_stream(name="KEEP", subjects=["k"])  # a server removes the folder of the last stream late
    await js.delete_stream("S")
    again = await js.restore_stream(tmp_path / "s")
    state = (await again.info()).state
    assert (state.messages, state.last_seq) == (500, 500)
    assert (await again.get_message(250)).data == b"250"
    assert [name async for name in again.consumer_names()] == ["c"]
    with pytest.raises(errors.StreamExists):
        await js.restore_stream(tmp_path / "s")
    memory = await js.create_stream(name="M", storage="memory")
    await works_since(nc, (2, 15), memory.backup(tmp_path / "m"))
