"""Counters and schedules on a real server."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from natsproto.errors import (
    ConfigError,
    CounterRefused,
    InvalidReply,
    MessageNotFound,
    NoStream,
    PublishFailed,
    ScheduleRefused,
    WrongLastSequence,
)
from natsproto.jetstream._context import JetStream
from natsproto.jetstream._publish.schedule import Schedule
from natsproto.jetstream._stream.stream import Stream
from natsproto.jetstream._values.config_parts import StreamSource, SubjectTransform

BIG = 10**50


@pytest.fixture
async def hits(jetstream: JetStream) -> JetStream:
    await jetstream.create_stream(
        name="HITS", subjects=["hits.>"], storage="memory", allow_msg_counter=True, allow_direct=True
    )
    return jetstream


@pytest.fixture
async def plans(jetstream: JetStream) -> Stream:
    return await jetstream.create_stream(
        name="PLANS",
        subjects=["plans.>", "orders.>"],
        storage="memory",
        allow_msg_schedules=True,
        allow_msg_ttl=True,
        allow_direct=True,
    )


# ---------------------------------------------------------------- counters


async def test_a_counter_adds_up_numbers_of_any_size(hits: JetStream) -> None:
    assert [await hits.counter_add("hits.a", n) for n in (1, BIG, -1, 0, -2 * BIG)] == [1, BIG + 1, BIG, BIG, -BIG]
    assert await hits.counter_add("hits.b") == 1
    value = await hits.counter_get("hits.a")
    assert (value.subject, value.value, value.increment, value.stream, value.seq) == (
        "hits.a",
        -BIG,
        -2 * BIG,
        "HITS",
        5,
    )
    assert value.sources == {}


async def test_counter_step_with_an_id_is_added_once(hits: JetStream) -> None:
    assert await hits.counter_add("hits.a", 5, msg_id="x") == 5
    assert await hits.counter_add("hits.a", 2) == 7
    assert await hits.counter_add("hits.a", 5, msg_id="x") == 5
    assert (await hits.counter_get("hits.a")).value == 7


async def test_all_counters_of_a_stream_as_of_one_moment(hits: JetStream) -> None:
    for number in range(10):
        await hits.counter_add(f"hits.{number}", number)
    assert {c.subject: c.value async for c in hits.counters("HITS")} == {f"hits.{n}": n for n in range(10)}
    assert [c.value async for c in hits.counters("HITS", ["hits.3", "hits.5"])] == [3, 5]
    with pytest.raises(MessageNotFound):
        await hits.counter_get("hits.none")


async def test_an_aggregate_tells_what_came_from_where(hits: JetStream) -> None:
    await hits.create_stream(
        name="SUM",
        storage="memory",
        allow_msg_counter=True,
        allow_direct=True,
        sources=[
            StreamSource(name="HITS", subject_transforms=[SubjectTransform(src="hits.*", dest="sum")]),
        ],
    )
    await hits.counter_add("hits.es", 3)
    await hits.counter_add("hits.de", 4)
    await hits.counter_add("hits.es", 5)
    async with asyncio.timeout(30):
        while True:
            try:
                value = await hits.counter_get("sum", stream="SUM")
            except MessageNotFound:
                continue
            if value.value == 12:
                break
    assert value.sources == {"HITS": {"hits.es": 8, "hits.de": 4}}


async def test_what_is_no_counter_is_refused(hits: JetStream) -> None:
    with pytest.raises(ConfigError):
        await hits.counter_add("hits.a", 1.5)  # type: ignore[arg-type]
    await hits.create_stream(name="PLAIN", subjects=["plain"], storage="memory", allow_direct=True)
    with pytest.raises(CounterRefused) as caught:
        await hits.counter_add("plain", 1)
    assert caught.value.err_code == 10168
    await hits.publish("plain", b"text")
    with pytest.raises(InvalidReply):
        await hits.counter_get("plain")
    with pytest.raises(CounterRefused) as other:
        await hits.publish("hits.a", b"text")
    assert other.value.err_code == 10169
    with pytest.raises(CounterRefused) as payload:
        await hits.publish("hits.a", b"text", headers={"Nats-Incr": "1"})
    assert payload.value.err_code == 10170
    with pytest.raises(CounterRefused) as expecting:
        await hits.publish("hits.a", headers={"Nats-Incr": "1"}, expected_last_seq=0)
    assert expecting.value.err_code == 10171
    with pytest.raises(NoStream):
        await hits.counter_get("nowhere")


# ---------------------------------------------------------------- schedules


@pytest.mark.slow
async def test_scheduled_message_is_published_later(jetstream: JetStream, plans: Stream) -> None:
    await jetstream.publish(
        "plans.1", b"42", headers={"Trace": "x"}, schedule=Schedule.after(0.2, ttl=60), schedule_target="orders.eu"
    )
    consumer = await plans.create_consumer(filter_subjects=["orders.eu"], ack_policy="none")
    message = await consumer.next(timeout=10)
    assert (message.subject, message.data, message.headers["Trace"]) == ("orders.eu", b"42", "x")
    assert (message.headers["Nats-Scheduler"], message.headers["Nats-Schedule-Next"]) == ("plans.1", "purge")
    assert message.headers["Nats-TTL"] in ("60", "1m", "1m0s", "60s")
    with pytest.raises(MessageNotFound):  # noqa: PT012
        while True:  # the one is stored before the other is gone
            await plans.get_last_message("plans.1")


async def test_a_moment_that_has_passed_is_now(jetstream: JetStream, plans: Stream) -> None:
    yesterday = datetime.now(UTC) - timedelta(days=1)
    await jetstream.publish("plans.1", b"late", schedule=Schedule.at(yesterday, target="orders.eu"))
    consumer = await plans.create_consumer(filter_subjects=["orders.eu"], ack_policy="none")
    assert (await consumer.next(timeout=10)).data == b"late"


async def test_a_repeated_schedule_samples_another_subject(jetstream: JetStream, plans: Stream) -> None:
    await jetstream.publish("orders.raw", b"newest")
    every = Schedule.every(1, target="orders.sampled", source="orders.raw", rollup=True)
    await jetstream.publish("plans.sample", b"fallback", schedule=every)
    consumer = await plans.create_consumer(filter_subjects=["orders.sampled"], ack_policy="none")
    first = await consumer.next(timeout=10)
    assert (first.data, first.headers["Nats-Rollup"]) == (b"newest", "sub")
    assert await jetstream.cancel_schedule("plans.sample")


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule.cron("0 30 9 * * mon-fri"),
        Schedule.cron("*/5 0-30 9,17 1 jan *", time_zone="Europe/Berlin"),
        Schedule(pattern="@daily", time_zone="America/New_York"),
        Schedule.yearly(),
        Schedule.monthly(),
        Schedule.weekly(),
        Schedule.daily(),
        Schedule.hourly(),
        Schedule.every(1.5),
        Schedule.at(datetime(2099, 1, 1, tzinfo=UTC)),
        Schedule(pattern="@midnight"),
        Schedule(pattern="@annually"),
    ],
)
async def test_every_kind_of_schedule_is_taken(jetstream: JetStream, plans: Stream, schedule: Schedule) -> None:
    assert (await jetstream.publish("plans.1", b"x", schedule=schedule, schedule_target="orders.eu")).stream == "PLANS"
    assert await jetstream.cancel_schedule("plans.1")
    assert not await jetstream.cancel_schedule("plans.1", stream="PLANS")


async def test_counter_and_schedule_refused_by_the_server(jetstream: JetStream, plans: Stream) -> None:
    with pytest.raises(ScheduleRefused) as target:
        await jetstream.publish("plans.1", schedule="@daily", schedule_target="elsewhere")
    assert target.value.err_code == 10190
    with pytest.raises(ScheduleRefused) as pattern:
        await jetstream.publish("plans.1", schedule="61 * * * * *", schedule_target="orders.eu")
    assert pattern.value.err_code == 10189
    await jetstream.create_stream(name="PLAIN", subjects=["plain.>"], storage="memory")
    with pytest.raises(ScheduleRefused) as disabled:
        await jetstream.publish("plain.1", schedule="@daily", schedule_target="plain.2")
    assert disabled.value.err_code == 10188


async def test_a_message_can_take_the_place_of_a_schedule(jetstream: JetStream, plans: Stream) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    ack = await jetstream.publish("plans.1", b"42", schedule=Schedule.at(tomorrow, target="orders.eu"))
    await jetstream.replace_schedule(
        "plans.1",
        "orders.cancelled",
        b"never mind",
        headers={"Why": "weather"},
        expected_last_subject_seq=ack.seq,
        expected_last_subject_seq_subject="plans.1",
    )
    assert [message.subject async for message in plans.get_batch()] == ["orders.cancelled"]
    assert (await plans.get_last_message("orders.cancelled")).headers["Why"] == "weather"
    with pytest.raises(WrongLastSequence):
        await jetstream.replace_schedule(
            "plans.1", "orders.eu", expected_last_subject_seq=ack.seq, expected_last_subject_seq_subject="plans.1"
        )
    with pytest.raises(ConfigError):
        await jetstream.replace_schedule("plans.1", "plans.1")
    with pytest.raises(ConfigError):
        await jetstream.replace_schedule("plans.1", "orders.eu", headers={"Nats-Scheduler": "x"})


async def test_schedules_go_through_a_window_too(jetstream: JetStream, plans: Stream) -> None:
    async with jetstream.publisher() as pub:
        for number in range(20):
            await pub.publish(f"plans.{number}", b"x", schedule=Schedule.daily(target="orders.eu"), ttl=3600)
    assert (await plans.info()).state.messages == 20
    with pytest.raises(PublishFailed):
        async with jetstream.publisher() as pub:
            await pub.publish("plans.1", schedule="@daily", schedule_target="elsewhere")
