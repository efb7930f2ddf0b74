"""How the features of core, streams, publishing and consumers are used; what comes before ``yield`` prepares."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any

from natsproto import Message
from natsproto.jetstream import Schedule, StreamSource, StreamSourceConsumer
from tests.kit.features import FeatureGround, feature

Steps = AsyncGenerator[None]

# ---------------------------------------------------------------- core


@feature("publish, subscribe, requests, headers", "core", "2.10")
async def core(world: FeatureGround) -> Steps:
    yield
    async with world.nc.subscribe("echo", cb=lambda message: message.respond(message.data)):
        assert (await world.nc.request("echo", b"1", headers={"a": "b"}, timeout=5)).data == b"1"


@feature("services", "core", "2.10")
async def services(world: FeatureGround) -> Steps:
    yield
    async with world.nc.add_service("echo", "1.0.0") as service:
        service.add_endpoint("echo", lambda request: request.respond(request.data))
        await world.nc.flush()
        assert (await world.nc.request("echo", b"1", timeout=5)).data == b"1"


async def _traced(world: FeatureGround, *, deliver: bool) -> None:
    heard: list[Message] = []
    async with world.nc.subscribe("pay", cb=heard.append):
        await world.nc.flush()
        world.begin()
        found = await world.nc.trace("pay", b"100", deliver=deliver, timeout=5)
        await world.nc.flush()
        assert found.complete
        assert len(found.deliveries) == 1
    assert len(heard) == deliver


@feature("`nc.trace`", "core", "2.11")
async def trace(world: FeatureGround) -> Steps:
    yield
    await _traced(world, deliver=False)


@feature("`nc.trace(deliver=True)`", "core", "2.11")
async def trace_delivering(world: FeatureGround) -> Steps:
    yield
    await _traced(world, deliver=True)


# ---------------------------------------------------------------- streams


@feature("all fields of `StreamConfig` not named below", "streams", "2.10")
async def plain_stream(world: FeatureGround) -> Steps:
    yield
    stream = await world.js.create_stream(
        name="S", subjects=["s.>"], compression="s2", first_seq=5, metadata={"a": "b"}, allow_direct=True
    )
    await stream.update(max_msgs=7)
    assert (await (await world.admin.stream("S")).info()).config.max_msgs == 7


@feature("`get_message`, `get_batch`", "streams", "2.10")
async def batch_get(world: FeatureGround) -> Steps:
    await world.stream()
    await world.fill("s.a", "s.b")
    yield
    stream = await world.js.stream("S")
    assert [message.seq async for message in stream.get_batch()] == [1, 2]
    assert (await stream.get_message(2)).subject == "s.b"


@feature("`backup` and `restore_stream`", "streams", "2.10")
async def backup(world: FeatureGround) -> Steps:
    await world.stream(storage="file")
    await world.fill("s.a")
    yield
    with tempfile.TemporaryDirectory() as folder:
        await (await world.js.stream("S")).backup(f"{folder}/S")
        await world.js.create_stream(name="KEEP", subjects=["k"])  # a server removes the folder of the last stream late
        await world.js.delete_stream("S")
        await world.js.restore_stream(f"{folder}/S")
    assert (await world.last("s.a")).data == b"s.a"


@feature("`backup` of a stream in memory", "streams", "2.15")
async def memory_backup(world: FeatureGround) -> Steps:
    await world.stream()
    stream = await world.js.stream("S")
    yield
    with tempfile.TemporaryDirectory() as folder:
        await stream.backup(f"{folder}/S")


def _restored(title: str, since: str, /, **changes: Any) -> None:
    @feature(title, "streams", since)
    async def restore(world: FeatureGround) -> Steps:
        await world.stream(storage="file")
        with tempfile.TemporaryDirectory() as folder:
            await (await world.admin.stream("S")).backup(f"{folder}/S")
            await world.admin.create_stream(name="KEEP", subjects=["k"])
            await world.admin.delete_stream("S")
            yield
            got = (await (await world.js.restore_stream(f"{folder}/S", **changes)).info()).config
            assert {field: getattr(got, field) for field in changes} == changes


_restored("another name in `restore_stream`", "2.15", name="T")
_restored("`allow_batched` in `restore_stream`", "2.14", allow_batched=True)


STREAM_FIELDS: list[tuple[str, str, dict[str, Any]]] = [
    ("`allow_msg_ttl`", "2.11", {"allow_msg_ttl": True}),
    ("`subject_delete_marker_ttl`", "2.11", {"subject_delete_marker_ttl": 5.0, "allow_rollup_hdrs": True}),
    ("`allow_msg_counter`", "2.12", {"allow_msg_counter": True}),
    ("`allow_atomic`", "2.12", {"allow_atomic": True}),
    ("`allow_msg_schedules`", "2.12", {"allow_msg_schedules": True, "allow_rollup_hdrs": True}),
    ("`persist_mode`", "2.12", {"persist_mode": "async", "storage": "file"}),
    ("`allow_batched`", "2.14", {"allow_batched": True}),
]
CHANGED = ("allow_msg_ttl", "subject_delete_marker_ttl", "allow_atomic", "allow_msg_schedules", "allow_batched")


def _stream_field(name: str, since: str, fields: dict[str, Any]) -> None:
    field = name.strip("`")

    @feature(name, "streams", since)
    async def create(world: FeatureGround) -> Steps:
        yield
        await world.js.create_stream(name="S", subjects=["s.>"], **fields)
        got = (await (await world.admin.stream("S")).info()).config
        assert getattr(got, field) == fields[field]

    if field in CHANGED:

        @feature(f"{name} in `update`", "streams", since)
        async def update(world: FeatureGround) -> Steps:
            await world.stream()
            stream = await world.js.stream("S")
            yield
            await stream.update(**fields)
            got = (await (await world.admin.stream("S")).info()).config
            assert getattr(got, field) == fields[field]


for _name, _since, _fields in STREAM_FIELDS:
    _stream_field(_name, _since, _fields)


@feature("`consumer` of a source", "streams", "2.14")
async def source_consumer(world: FeatureGround) -> Steps:
    await world.stream()
    yield
    through = StreamSourceConsumer(name="C", deliver_subject="copies")
    await world.js.create_stream(name="T", sources=[StreamSource(name="S", consumer=through)])
    (source,) = (await (await world.admin.stream("T")).info()).config.sources
    assert source.consumer == through


@feature("`consumer` of a mirror", "streams", "2.14")
async def mirror_consumer(world: FeatureGround) -> Steps:
    await world.stream()
    yield
    through = StreamSourceConsumer(name="C", deliver_subject="copies")
    await world.js.create_stream(name="T", mirror=StreamSource(name="S", consumer=through))
    mirror = (await (await world.admin.stream("T")).info()).config.mirror
    assert mirror is not None
    assert mirror.consumer == through


@feature("`pedantic` for streams", "streams", "2.11")
async def pedantic_stream(world: FeatureGround) -> Steps:
    yield
    await world.js.create_stream(name="S", subjects=["s.>"], pedantic=True)


@feature("`start_time` of `get_next_message`", "streams", "2.11")
async def start_time(world: FeatureGround) -> Steps:
    await world.stream()
    await world.fill("s.a", "s.b")
    moment = (await world.last("s.b")).time
    stream = await world.js.stream("S")
    yield
    assert (await stream.get_next_message(start_time=moment)).seq == 2


@feature("`start_time` of `get_batch`", "streams", "2.11")
async def batch_start_time(world: FeatureGround) -> Steps:
    await world.stream()
    await world.fill("s.a", "s.b")
    moment = (await world.last("s.b")).time
    stream = await world.js.stream("S")
    yield
    assert [message.seq async for message in stream.get_batch(start_time=moment)] == [2]


@feature("`get_last_messages`", "streams", "2.11")
async def last_messages(world: FeatureGround) -> Steps:
    await world.stream()
    await world.fill("s.a", "s.b", "s.a")
    stream = await world.js.stream("S")
    yield
    assert [message.seq async for message in stream.get_last_messages(["s.*"])] == [2, 3]


# ---------------------------------------------------------------- publishing


@feature("`js.publish` with ids and expectations, `js.publisher`", "publishing", "2.10")
async def publish(world: FeatureGround) -> Steps:
    await world.stream()
    yield
    assert (await world.js.publish("s.a", b"1", msg_id="1", expected_last_seq=0)).seq == 1
    async with world.js.publisher() as publisher:
        future = await publisher.publish("s.a", b"2")
        assert (await future).seq == 2


@feature("`ttl`", "publishing", "2.11")
async def message_ttl(world: FeatureGround) -> Steps:
    await world.stream(allow_msg_ttl=True)
    yield
    await world.js.publish("s.a", b"1", ttl=60)
    assert (await world.last("s.a")).headers["Nats-TTL"] == "60"


@feature("`ttl` in a window", "publishing", "2.11")
async def window_ttl(world: FeatureGround) -> Steps:
    await world.stream(allow_msg_ttl=True)
    yield
    async with world.js.publisher() as publisher:
        await (await publisher.publish("s.a", b"1", ttl=60))
    assert (await world.last("s.a")).headers["Nats-TTL"] == "60"


@feature("`expected_last_subject_seq_subject`", "publishing", "2.11")
async def expected_subject(world: FeatureGround) -> Steps:
    await world.stream()
    await world.fill("s.a")
    yield
    await world.js.publish("s.b", b"1", expected_last_subject_seq=1, expected_last_subject_seq_subject="s.a")


@feature("counters", "publishing", "2.12")
async def counters(world: FeatureGround) -> Steps:
    await world.stream(allow_msg_counter=True)
    yield
    assert await world.js.counter_add("s.a", 2) == 2


@feature("atomic batches", "publishing", "2.12")
async def atomic_batch(world: FeatureGround) -> Steps:
    await world.stream(allow_atomic=True)
    yield
    async with world.js.atomic_batch() as batch:
        await batch.publish("s.a", b"1")
        await batch.publish("s.b", b"2")
    assert (await world.last("s.b")).seq == 2


@feature("fast ingest", "publishing", "2.14")
async def fast_batch(world: FeatureGround) -> Steps:
    await world.stream(allow_batched=True)
    yield
    async with world.js.fast_publisher() as publisher:
        for _ in range(3):
            await publisher.publish("s.a", b"1")
    assert (await world.last("s.a")).seq == 3


SCHEDULES: list[tuple[str, str, Any]] = [
    ("`Schedule.at` and `after`", "2.12", lambda: Schedule.after(1, target="s.then")),
    ("`Schedule.at` with a `ttl`", "2.12", lambda: Schedule.after(1, target="s.then", ttl=60)),
    ("`Schedule.every`", "2.14", lambda: Schedule.every(1, target="s.then")),
    ("`Schedule.cron`", "2.14", lambda: Schedule.cron("* * * * * *", target="s.then")),
    ("`Schedule.hourly` …", "2.14", lambda: Schedule.hourly(target="s.then")),
    ("time zones", "2.14", lambda: Schedule.cron("* * * * * *", time_zone="Europe/Berlin", target="s.then")),
    ("`source` of a schedule", "2.14", lambda: Schedule.after(1, target="s.then", source="s.from")),
    ("`rollup` of a schedule", "2.14", lambda: Schedule.after(1, target="s.then", rollup=True)),
    ("a pattern of its own", "2.14", lambda: "@every 1s"),
]


def _schedule(name: str, since: str, make: Any) -> None:
    @feature(name, "schedules", since)
    async def schedule(world: FeatureGround) -> Steps:
        await world.stream(allow_msg_schedules=True, allow_rollup_hdrs=True, allow_msg_ttl=True)
        await world.fill("s.from")
        made = make()
        yield
        await world.js.publish(
            "s.when", b"later", schedule=made, schedule_target="s.then" if made == str(made) else None
        )
        if "hourly" not in name:
            assert await world.delivered("s.then")


for _name, _since, _make in SCHEDULES:
    _schedule(_name, _since, _make)


@feature("`js.cancel_schedule`", "schedules", "2.12")
async def cancel_schedule(world: FeatureGround) -> Steps:
    await world.stream(allow_msg_schedules=True)
    yield
    await world.js.publish("s.when", b"later", schedule=Schedule.after(3600, target="s.then"))
    assert await world.js.cancel_schedule("s.when")


@feature("`js.replace_schedule`", "schedules", "2.14")
async def replace_schedule(world: FeatureGround) -> Steps:
    await world.stream(allow_msg_schedules=True, allow_rollup_hdrs=True)
    if world.knows("2.12"):
        await world.admin.publish("s.when", b"later", schedule=Schedule.after(3600, target="s.then"))
    yield
    await world.js.replace_schedule("s.when", "s.then", b"now")
    assert not await world.admin.cancel_schedule("s.when")


# ---------------------------------------------------------------- consumers


@feature("pull, push and ordered consumers", "consumers", "2.10")
async def consumers(world: FeatureGround) -> Steps:
    await world.stream()
    await world.fill("s.a")
    yield
    stream = await world.js.stream("S")
    consumer = await stream.create_consumer(durable_name="C", filter_subjects=["s.a", "s.b"], metadata={"a": "b"})
    (message,) = await consumer.fetch(1, timeout=5)
    await message.ack()
    async with stream.ordered_consumer().messages() as messages:
        assert (await messages.next(5)).seq == 1


CONSUMER_FIELDS: list[tuple[str, str, dict[str, Any]]] = [
    ("`pause_until`", "2.11", {"pause_until": datetime.now(UTC) + timedelta(hours=1)}),
    ("priority groups: `overflow`", "2.11", {"priority_groups": ["g"], "priority_policy": "overflow"}),
    ("priority groups: `pinned_client`", "2.11", {"priority_groups": ["g"], "priority_policy": "pinned_client"}),
    ("priority groups: `prioritized`", "2.12", {"priority_groups": ["g"], "priority_policy": "prioritized"}),
]


def _consumer_field(name: str, since: str, fields: dict[str, Any]) -> None:
    @feature(name, "consumers", since)
    async def create(world: FeatureGround) -> Steps:
        await world.stream()
        stream = await world.js.stream("S")
        yield
        await stream.create_consumer(durable_name="C", **fields)
        assert [name async for name in (await world.admin.stream("S")).consumer_names()] == ["C"]


for _name, _since, _fields in CONSUMER_FIELDS:
    _consumer_field(_name, _since, _fields)


@feature("priority groups in `update_consumer`", "consumers", "2.11")
async def updated_priority(world: FeatureGround) -> Steps:
    await world.stream()
    await world.consumer()
    stream = await world.js.stream("S")
    yield
    await stream.update_consumer("C", priority_groups=["g"], priority_policy="overflow")


@feature("`ack_policy=flow_control`", "consumers", "2.14")
async def flow_control(world: FeatureGround) -> Steps:
    await world.stream()
    stream = await world.js.stream("S")
    yield
    await stream.create_push_consumer(
        durable_name="C", deliver_subject="copies", ack_policy="flow_control", flow_control=True, idle_heartbeat=1
    )


@feature("`pedantic` for consumers", "consumers", "2.11")
async def pedantic_consumer(world: FeatureGround) -> Steps:
    await world.stream()
    stream = await world.js.stream("S")
    yield
    await stream.create_consumer(durable_name="C", pedantic=True)


@feature("`pause`", "consumers", "2.11")
async def pause(world: FeatureGround) -> Steps:
    await world.stream()
    await world.consumer()
    stream = await world.js.stream("S")
    yield
    assert (await stream.pause_consumer("C", datetime.now(UTC) + timedelta(hours=1))).paused


@feature("`resume`", "consumers", "2.11")
async def resume(world: FeatureGround) -> Steps:
    await world.stream()
    await world.consumer()
    stream = await world.js.stream("S")
    yield
    assert not (await stream.resume_consumer("C")).paused


@feature("`unpin`", "consumers", "2.11")
async def unpin(world: FeatureGround) -> Steps:
    await world.stream()
    await world.consumer(priority_groups=["g"], priority_policy="pinned_client")
    stream = await world.js.stream("S")
    yield
    await stream.unpin_consumer("C", "g")


@feature("`reset`", "consumers", "2.14")
async def reset(world: FeatureGround) -> Steps:
    await world.stream()
    await world.consumer()
    stream = await world.js.stream("S")
    yield
    await stream.reset_consumer("C")
