"""Push and pull subscriptions of nats-py on natsproto: options, binding, limits, and their ends."""

from __future__ import annotations

import asyncio
import math
import random
from typing import Any

import pytest

from natsproto.compat import nats
from natsproto.compat.nats.aio.msg import Msg
from natsproto.compat.nats.js import JetStreamContext, api
from natsproto.compat.nats.js import errors as js_errors
from natsproto.testing import Server
from tests.compat.scenarios import CallbackLog


@pytest.fixture
async def js(nc: nats.NATS) -> JetStreamContext:
    context = nc.jetstream()
    await context.add_stream(name="S", subjects=["s.>"], allow_direct=True)
    for number in range(5):
        await context.publish(f"s.{number % 2}", b"%d" % number)
    return context


@pytest.mark.differs("pending_bytes of a push subscription")
async def test_push_options_reach_the_consumer(js: JetStreamContext) -> None:
    sub = await js.subscribe(
        "s.>",
        config=api.ConsumerConfig(description="all", ack_policy=api.AckPolicy.NONE),
        deliver_policy=api.DeliverPolicy.LAST,
        headers_only=True,
        idle_heartbeat=5,
        flow_control=True,
        inactive_threshold=60,
        stream="S",
    )
    config = (await sub.consumer_info()).config
    assert (config.description, config.deliver_policy, config.headers_only) == ("all", "last", True)
    assert (config.idle_heartbeat, config.flow_control, config.inactive_threshold) == (5, True, 60)
    msg = await sub.next_msg()
    assert (msg.data, msg.headers) == (b"", {"Nats-Msg-Size": "1"})
    with pytest.raises(NotImplementedError):
        _ = sub.pending_bytes
    await sub.drain()


async def test_push_filters_several_subjects(js: JetStreamContext) -> None:
    config = api.ConsumerConfig(filter_subjects=["s.1", "s.9"])
    sub = await js.subscribe("s.>", config=config)
    assert [(await sub.next_msg()).data for _ in range(2)] == [b"1", b"3"]
    await sub.unsubscribe()


@pytest.mark.parametrize(
    ("group", "queue", "reason"),
    [
        (None, "q", "consumer without a deliver group"),
        ("q", None, "consumer with a deliver group q"),
        ("q", "other", "queue subscription other for a consumer with a deliver group q"),
    ],
)
async def test_push_bind_needs_the_same_group(
    group: str | None, queue: str | None, reason: str, js: JetStreamContext
) -> None:
    name = queue or "d"  # a queue's consumer has the queue's name
    await js.add_consumer("S", durable_name=name, deliver_subject="to.me", deliver_group=group)
    with pytest.raises(js_errors.Error, match=reason):
        await js.subscribe("s.>", durable=None if queue else "d", queue=queue)


async def test_queue_and_durable_must_be_one_name(js: JetStreamContext) -> None:
    with pytest.raises(js_errors.Error, match="cannot create queue subscription 'q' to consumer 'd'"):
        await js.subscribe("s.>", durable="d", queue="q")
    with pytest.raises(TypeError, match="deliver_subject"):
        await js.subscribe_bind("S", api.ConsumerConfig(), "d")


@pytest.mark.differs("`subscribe_bind(ordered_consumer=True)`")
async def test_ordered_bind_reads_from_a_sequence(js: JetStreamContext) -> None:
    config = api.ConsumerConfig(
        deliver_subject="unused", deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=4
    )
    sub = await js.subscribe_bind("S", config, "ordered", ordered_consumer=True)
    assert [(await sub.next_msg()).data for _ in range(2)] == [b"3", b"4"]
    with pytest.raises(nats.errors.TimeoutError):
        await sub.next_msg(timeout=0.01)


@pytest.mark.differs("`unsubscribe()` in the callback of the subscription")
async def test_push_callback_ends_itself(js: JetStreamContext) -> None:
    seen: list[bytes] = []
    ended = asyncio.Event()

    async def handler(msg: Msg) -> None:
        seen.append(msg.data)
        await sub.unsubscribe()
        ended.set()

    sub = await js.subscribe("s.>", cb=handler, manual_ack=True)
    await ended.wait()
    await js.publish("s.a", b"more")
    with pytest.raises(nats.errors.BadSubscriptionError):
        await sub.unsubscribe()
    assert seen == [b"0"]


async def test_push_callback_that_raises_goes_on(nats_server: Server) -> None:
    log = CallbackLog()
    nc = await nats.connect(nats_server.url, **log.callbacks())
    js = nc.jetstream()
    await js.add_stream(name="S", subjects=["s"])
    done = asyncio.Event()

    async def handler(msg: Msg) -> None:
        if msg.data == b"bad":
            raise ValueError("not this one")
        done.set()

    sub = await js.subscribe("s", durable="d", cb=handler)
    await js.publish("s", b"bad")
    await js.publish("s", b"good")
    await done.wait()
    await sub.drain()
    assert [str(error) for error in log.errors] == ["not this one"]
    while (await js.consumer_info("S", "d")).num_ack_pending != 1:  # the server counts acks in its own time
        pass
    await nc.close()


@pytest.mark.differs("`close()` and `drain()`")
async def test_push_drain_times_out(nats_server: Server) -> None:
    nc = await nats.connect(nats_server.url, drain_timeout=0.01)
    js = nc.jetstream()
    await js.add_stream(name="S", subjects=["s"])
    started, never = asyncio.Event(), asyncio.Event()

    async def handler(msg: Msg) -> None:
        started.set()
        await never.wait()

    sub = await js.subscribe("s", cb=handler)
    await js.publish("s")
    await started.wait()
    with pytest.raises(nats.errors.DrainTimeoutError):
        await sub.drain()
    with pytest.raises(nats.errors.BadSubscriptionError):
        await sub.unsubscribe()
    await nc.close()


@pytest.mark.differs("A heartbeat missed by a push consumer")
async def test_push_consumer_that_is_deleted_is_reported(nats_server: Server) -> None:
    log = CallbackLog()
    nc = await nats.connect(nats_server.url, **log.callbacks())
    js = nc.jetstream()
    await js.add_stream(name="S", subjects=["s"])

    async def handler(msg: Msg) -> None: ...

    await js.subscribe("s", durable="d", cb=handler, idle_heartbeat=0.1)
    await js.delete_consumer("S", "d")
    while not log.errors:
        await log.changed()
    assert isinstance(log.errors[0], nats.errors.Error)
    await nc.close()


# ---------------------------------------------------------------- pulling


@pytest.mark.differs("`delivered` of a pull subscription")
async def test_pull_without_a_durable_name(js: JetStreamContext) -> None:
    sub = await js.pull_subscribe("s.1", config=api.ConsumerConfig(inactive_threshold=60))
    info = await sub.consumer_info()
    assert (info.config.durable_name, info.config.filter_subject, info.config.inactive_threshold) == (None, "s.1", 60)
    assert [msg.data for msg in await sub.fetch(5)] == [b"1", b"3"]
    assert (sub.pending_msgs, sub.pending_bytes, sub.delivered) == (0, 0, 2)


async def test_pull_binds_to_a_consumer(js: JetStreamContext) -> None:
    await js.pull_subscribe("s.>", "d", stream="S")
    again = await js.pull_subscribe("s.>", "d", stream="S", inbox_prefix=b"_MINE.")
    assert [msg.data for msg in await again.fetch(1)] == [b"0"]
    by_name = await js.pull_subscribe_bind(name="d", stream="S")
    assert [msg.data for msg in await by_name.fetch(1)] == [b"1"]
    with pytest.raises(ValueError, match="stream name is required"):
        await js.pull_subscribe_bind("d")


async def test_pull_arguments_are_checked(js: JetStreamContext) -> None:
    sub = await js.pull_subscribe("s.>", "d")
    with pytest.raises(ValueError, match="timeout"):
        await sub.fetch(1, timeout=0)
    with pytest.raises(js_errors.APIError, match="heartbeat value too large"):
        await sub.fetch(1, timeout=1, heartbeat=0.5)
    assert [msg.data for msg in await sub.fetch(1, timeout=None)] == [b"0"]


@pytest.mark.differs("Calls that wait for a reply when the client is closed")
async def test_pull_subscription_ends_once(js: JetStreamContext, nc: nats.NATS) -> None:
    sub = await js.pull_subscribe("s.>", "d")
    other = await js.pull_subscribe("s.9", "other")
    await sub.unsubscribe()
    for call in (sub.unsubscribe(), sub.fetch()):
        with pytest.raises(nats.errors.BadSubscriptionError):
            await call
    fetching = asyncio.create_task(other.fetch(1, timeout=30))
    await nc.flush()
    await nc.close()
    with pytest.raises(nats.errors.ConnectionClosedError):
        await fetching
    for call in (other.unsubscribe(), other.fetch()):
        with pytest.raises(nats.errors.ConnectionClosedError):
            await call


@pytest.mark.differs("`fetch()` from a consumer that is deleted meanwhile, or that is a push consumer")
async def test_pull_of_a_deleted_consumer_is_reported(js: JetStreamContext, nc: nats.NATS) -> None:
    sub = await js.pull_subscribe("s.9", "d")
    fetching = asyncio.create_task(sub.fetch(1, timeout=30))
    while (await sub.consumer_info()).num_waiting == 0:
        pass
    await js.delete_consumer("S", "d")
    with pytest.raises(js_errors.ServiceUnavailableError) as caught:
        await fetching
    assert caught.value.description == "Consumer Deleted"


@pytest.mark.differs("`fetch()` from a consumer that is deleted meanwhile, or that is a push consumer")
async def test_pull_of_a_push_consumer_says_what_it_is(js: JetStreamContext) -> None:
    await js.add_consumer("S", durable_name="d", deliver_subject="to.me")
    sub = await js.pull_subscribe("s.9", "d")
    with pytest.raises(js_errors.ServiceUnavailableError) as caught:
        await sub.fetch(1, timeout=30)
    assert caught.value.description == "Consumer is push based"


# ---------------------------------------------------------------- publishing and the manager


async def test_publish_async_stalls_at_its_limit(nats_server: Server, nc: nats.NATS, seed: int) -> None:
    limit = random.Random(seed).randint(1, 5)
    js = nc.jetstream(publish_async_max_pending=limit)
    await js.add_stream(name="S", subjects=["s"])
    nats_server.freeze()
    futures = [await js.publish_async("s", b"%d" % number) for number in range(limit)]
    assert js.publish_async_pending() == limit
    with pytest.raises(js_errors.TooManyStalledMsgsError, match="stalled"):
        await js.publish_async("s", b"more", wait_stall=0.01)
    nats_server.thaw()
    await js.publish_async_completed()
    assert [future.result().seq for future in futures] == list(range(1, limit + 1))
    with pytest.raises(nats.errors.BadSubjectError):
        await js.publish_async("s s")
    assert (await (await js.publish_async("s", b"again"))).seq == limit + 1  # what failed holds no place


async def test_publish_async_future_may_be_cancelled(nats_server: Server, nc: nats.NATS) -> None:
    js = nc.jetstream()
    await js.add_stream(name="S", subjects=["s"])
    nats_server.freeze()
    given_up = await js.publish_async("s", b"1")
    given_up.cancel()
    nats_server.thaw()
    assert (await (await js.publish_async("s", b"2"))).seq == 2
    assert js.publish_async_pending() == 0


async def test_message_ttl_reaches_the_server(nc: nats.NATS) -> None:
    js = nc.jetstream()
    await js.add_stream(name="S", subjects=["s"], allow_msg_ttl=True)
    await js.publish("s", b"", msg_ttl=60)
    await (await js.publish_async("s", b"", msg_ttl=90))
    assert [(await js.get_msg("S", seq)).headers["Nats-TTL"] for seq in (1, 2)] == ["60", "90"]


async def test_get_msg_in_every_way(js: JetStreamContext) -> None:
    for direct in (False, True):
        by_sequence = await js.get_msg("S", seq=2, direct=direct)
        assert (by_sequence.subject, by_sequence.seq, by_sequence.sequence) == ("s.1", 2, 2)
        assert (by_sequence.data, by_sequence.time.tzinfo is not None) == (b"1", True)
        assert (await js.get_last_msg("S", "s.0", direct=direct)).data == b"4"
        assert (await js.get_msg("S", seq=2, subject="s.0", next=True, direct=direct)).data == b"2"
        with pytest.raises(js_errors.NotFoundError):
            await js.get_msg("S", seq=99, direct=direct)
    assert (by_sequence.header or {})["Nats-Stream"] == "S"
    with pytest.raises(js_errors.APIError):
        await js.get_msg("S", direct=True)


async def test_consumer_names_in_every_form(js: JetStreamContext) -> None:
    for config in (
        api.ConsumerConfig(durable_name="durable"),
        api.ConsumerConfig(name="named", filter_subject="s.1"),
        api.ConsumerConfig(name="all", filter_subject=">"),
        api.ConsumerConfig(),
    ):
        info = await js.add_consumer("S", config)
        assert (config.name or config.durable_name or info.name) == info.name
    assert len(await js.consumers_info("S", offset=1)) == 3
    with pytest.raises(ValueError, match="invalid consumer name: 'a b'"):
        await js.add_consumer("S", name="a b")
    with pytest.raises(ValueError, match="stream name is required"):
        await js.add_consumer("")


async def test_consumer_reset_to_no_place_is_refused(js: JetStreamContext) -> None:
    await js.add_consumer("S", durable_name="d", deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=3)
    with pytest.raises(js_errors.ConsumerInvalidResetError):
        await js.reset_consumer("S", "d", seq=1)


async def test_stream_subject_and_purge(js: JetStreamContext) -> None:
    info = await js.stream_info("S", subjects_filter=">")
    assert info.state.subjects == {"s.0": 3, "s.1": 2}
    assert await js.purge_stream("S", subject="s.0", keep=1)
    assert [info.state.messages for info in await js.streams_info_iterator()] == [3]
    with pytest.raises(js_errors.NotFoundError):
        await js.find_stream_name_by_subject("nowhere")


async def test_manager_of_an_absent_domain(nc: nats.NATS) -> None:
    assert (await nc.jsm().account_info()).streams == 0
    for manager in (nc.jetstream(domain="moon"), nc.jsm(prefix="$JS.moon.API")):
        with pytest.raises(js_errors.ServiceUnavailableError):
            await manager.account_info()


@pytest.mark.differs("Timeouts of `jetstream()` and `jsm()` that are no positive numbers")
@pytest.mark.parametrize("timeout", [math.nan, math.inf, -1, True, "1"])
async def test_timeout_of_a_manager_is_checked(nc: nats.NATS, timeout: Any) -> None:
    with pytest.raises(ValueError, match="nats: timeout must be a positive number of seconds"):
        await nc.jsm(timeout=timeout).account_info()
    with pytest.raises(nats.errors.NoRespondersError):
        await nc.request("nobody", timeout=5)


async def test_manager_without_a_timeout(nc: nats.NATS) -> None:
    assert (await nc.jsm(timeout=None).account_info()).streams == 0
    assert (await nc.jetstream(timeout=None).account_info()).streams == 0


@pytest.mark.differs("`unsubscribe(limit=...)` of more than 999,999,999")
async def test_limit_beyond_what_servers_count(nc: nats.NATS) -> None:
    limited, other = await nc.subscribe("a", max_msgs=10**9), await nc.subscribe("a")
    await other.unsubscribe(limit=10**9)
    await nc.publish("a", b"1")
    assert [(await sub.next_msg(timeout=30)).data for sub in (limited, other)] == [b"1", b"1"]


@pytest.mark.parametrize(
    ("wrong", "reason"), [({"compression": "zip"}, "store compression"), ({"metadata": ["a"]}, "metadata format")]
)
async def test_stream_config_is_checked(wrong: dict[str, Any], reason: str, nc: nats.NATS) -> None:
    with pytest.raises(ValueError, match=reason):
        await nc.jetstream().add_stream(name="S", **wrong)
