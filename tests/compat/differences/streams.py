"""Differences of JetStream."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from natsproto.testing import Direction, End, FaultProxy, Server
from tests.compat.differences import shows
from tests.compat.scenarios import CallbackLog, raised
from tests.kit.waiting import until

FAST = {"reconnect_time_wait": 0.01, "max_reconnect_attempts": -1}


async def stream_of(package: Any, nc: Any, count: int = 0) -> Any:
    """The context, with a stream S of the subject s and so many messages."""
    js = nc.jetstream()
    await js.add_stream(name="S", subjects=["s"])
    for number in range(count):
        await js.publish("s", b"%d" % number)
    return js


def publish_count(proxy: FaultProxy, prefix: bytes = b"") -> int:
    """How often the client has published to subjects that begin so."""
    sent = b"".join(bytes(link.seen[Direction.TO_SERVER]) for link in proxy.history)
    return sum(line.startswith((b"PUB " + prefix, b"HPUB " + prefix)) for line in sent.split(b"\r\n"))


@shows("Messages around a lost connection", theirs=[b"0"], ours=[b"0", b"1"])
async def ordered_after_outage(package: Any, server: Server) -> list[bytes]:
    """What an ordered consumer reads of two messages, if the connection is lost with the second one."""
    async with FaultProxy(server.host, server.port) as proxy, await package.connect(server.url) as other:
        js = await stream_of(package, other, 1)
        log = CallbackLog()
        nc = await package.connect(proxy.url, **FAST, **log.callbacks())
        sub = await nc.jetstream().subscribe("s", ordered_consumer=True)
        found = [(await sub.next_msg(timeout=5)).data]
        proxy.stall(Direction.TO_CLIENT)
        await js.publish("s", b"1")
        await other.flush()
        proxy.cut(End.RST)  # the server has sent the message
        proxy.heal()
        await log.until("reconnected_cb")
        try:
            found.append((await sub.next_msg(timeout=3)).data)
        except package.errors.TimeoutError:
            pass
        await nc.close()
    return found


@shows("`js.subscribe(queue=...)` from several clients at once", theirs=1, ours=2)
async def queue_at_once(package: Any, server: Server) -> int:
    """The fewest subscriptions that get some of 20 messages."""
    async with await package.connect(server.url) as one, await package.connect(server.url) as two:
        js = await stream_of(package, one)
        counts: list[int] = []
        for number in range(3):  # it is a race
            queue = f"q{number}"
            both = (nc.jetstream().subscribe("s", queue=queue, stream="S") for nc in (one, two))
            subs = await asyncio.gather(*both, return_exceptions=True)
            for _ in range(20):
                await js.publish("s")
            bound = [sub for sub in subs if not isinstance(sub, BaseException)]
            await until(lambda: sum(sub.pending_msgs for sub in bound) >= 20)  # noqa: B023
            counts.append(sum(sub.pending_msgs > 0 for sub in bound))
            await js.purge_stream("S")
        return min(counts)


@shows("`pending_msgs_limit` of JetStream subscriptions", theirs=1, ours=5)
async def pending_limit(package: Any, server: Server) -> int:
    """The messages that can be read of five."""
    log = CallbackLog()
    async with await package.connect(server.url, **log.callbacks()) as nc:
        js = await stream_of(package, nc, 5)
        sub = await js.subscribe("s", pending_msgs_limit=1)
        await until(lambda: len(log.errors) == 4 or sub.pending_msgs == 5)
        count = 0
        while not await raised(sub.next_msg(timeout=0.5)):
            count += 1
        return count


@shows("A heartbeat missed by a push consumer", theirs="TimeoutError", ours="ServiceUnavailableError")
async def missed_heartbeat(package: Any, server: Server) -> str:
    """What reading raises after the consumer was deleted."""
    async with await package.connect(server.url) as nc:
        js = await stream_of(package, nc)
        sub = await js.subscribe("s", durable="d", idle_heartbeat=0.2)
        await js.delete_consumer("S", "d")
        return await raised(sub.next_msg(timeout=4))


@shows(
    "`fetch()` from a consumer that is deleted meanwhile, or that is a push consumer",
    theirs=["", "TimeoutError", ""],
    ours=["ServiceUnavailableError"] * 3,
)
async def fetched_in_vain(package: Any, server: Server) -> list[str]:
    """What fetching raises: several messages, one of a push consumer, and several of one that was deleted."""
    async with await package.connect(server.url) as nc:
        js = await stream_of(package, nc)
        await js.add_consumer("S", durable_name="push", deliver_subject="x")
        sub = await js.pull_subscribe("s", "push")
        found = [await raised(sub.fetch(2, timeout=0.3)), await raised(sub.fetch(1, timeout=0.3))]
        sub = await js.pull_subscribe("s", "d")
        fetching = asyncio.create_task(raised(sub.fetch(2, timeout=3)))
        while not (await sub.consumer_info()).num_waiting:  # the pull is there
            pass
        await js.delete_consumer("S", "d")
        return [*found, await fetching]


@shows("Retries", theirs=1, ours=3)
async def retries(package: Any, server: Server) -> int:
    """How often a message without a stream is sent."""
    async with FaultProxy(server.host, server.port, record=True) as proxy:
        nc = await package.connect(proxy.url)
        await raised(nc.jetstream().publish("nothing", b"x"))
        await nc.close()
        return publish_count(proxy, b"nothing")


@shows("The configuration of ordered consumers", theirs=(5, 5), ours=(1, 300))
async def ordered_config(package: Any, server: Server) -> tuple[float, float]:
    """Seconds between heartbeats, and until it is gone."""
    async with await package.connect(server.url) as nc:
        js = await stream_of(package, nc)
        sub = await js.subscribe("s", ordered_consumer=True)
        config = (await sub.consumer_info()).config
        return config.idle_heartbeat, config.inactive_threshold


@shows("Replies to JetStream calls that are not JSON", theirs="JSONDecodeError", ours="Error")
async def not_json(package: Any, server: Server) -> str:
    async with await package.connect(server.url) as nc:

        async def reply(msg: Any) -> None:
            await msg.respond(b"no JSON")

        await nc.subscribe("s", cb=reply)
        return await raised(nc.jetstream().publish("s"))


@shows(
    "Requests, `js.publish` and other calls that time out while the client reconnects",
    theirs=("TimeoutError", 1),
    ours=("TimeoutError", 0),
)
async def sent_later(package: Any, server: Server) -> tuple[str, int]:
    """What a publish in an outage raises, and how many messages are stored before the next one."""
    async with FaultProxy(server.host, server.port) as proxy:
        log = CallbackLog()
        nc = await package.connect(proxy.url, **FAST, **log.callbacks())
        js = await stream_of(package, nc)
        proxy.refuse()
        proxy.cut()
        await log.until("disconnected_cb")
        error = await raised(js.publish("s", timeout=0.1))
        await proxy.allow()
        await log.until("reconnected_cb")
        stored = (await js.publish("s")).seq - 1
        await nc.close()
    return error, stored


@shows("`publish_async()` without an acknowledgement", theirs="waits", ours="TimeoutError")
async def unacknowledged(package: Any, server: Server) -> str:
    async with await package.connect(server.url) as nc:
        await nc.subscribe("silent")
        future = await nc.jetstream(timeout=0.2).publish_async("silent", b"x")
        await asyncio.wait([future], timeout=2)
        return type(future.exception()).__name__ if future.done() else "waits"


@shows("`pull_subscribe_bind()` without a consumer", theirs="None", ours="BadSubjectError")
async def bind_to_nothing(package: Any, server: Server) -> str:
    async with await package.connect(server.url) as nc:
        js = await stream_of(package, nc, 1)
        await js.add_consumer("S", durable_name="None", ack_policy="none")
        try:
            sub = await js.pull_subscribe_bind(stream="S")
        except Exception as exc:
            return type(exc).__name__
        return str((await sub.fetch(1))[0].metadata.consumer)


@shows("Consumers of watches, listings and ordered subscriptions", theirs=1, ours=0)
async def left_consumers(package: Any, server: Server) -> int:
    async with await package.connect(server.url) as nc:
        js = await stream_of(package, nc, 1)
        sub = await js.subscribe("s", ordered_consumer=True)
        await sub.next_msg(timeout=5)
        await sub.unsubscribe()
        for _ in range(100):  # so long may it take until the server has deleted it
            if not (left := await js.consumers_info("S")):
                break
            await asyncio.sleep(0.02)
        return len(left)


@shows("pending_bytes of a push subscription", theirs=True, ours="NotImplementedError")
async def push_pending_bytes(package: Any, server: Server) -> Any:
    async with await package.connect(server.url) as nc:
        js = await stream_of(package, nc, 1)
        sub = await js.subscribe("s")
        await until(lambda: sub.pending_msgs > 0)
        try:
            return sub.pending_bytes > 0
        except NotImplementedError as exc:
            return type(exc).__name__


@shows("`unsubscribe(limit=...)` of a push subscription that has received more", theirs=3, ours=2)
async def push_limit(package: Any, server: Server) -> int:
    """The messages that can be read."""
    async with await package.connect(server.url) as nc:
        js = await stream_of(package, nc, 3)
        sub = await js.subscribe("s")
        await until(lambda: sub.pending_msgs == 3)
        await sub.unsubscribe(limit=2)
        count = 0
        while not await raised(sub.next_msg(timeout=0.5)):
            count += 1
        return count


@shows("`delivered` of a pull subscription", theirs=3, ours=2)
async def pull_delivered(package: Any, server: Server) -> int:
    async with await package.connect(server.url) as nc:
        js = await stream_of(package, nc, 2)
        sub = await js.pull_subscribe("s", "d")
        await sub.fetch(5, timeout=2)
        await sub.consumer_info()  # the status has arrived before
        return int(sub.delivered)


@shows(
    "Timeouts of `jetstream()` and `jsm()` that are no positive numbers",
    theirs=["TimeoutError"] * 2,
    ours=["ValueError"] * 2,
)
async def wrong_timeouts(package: Any, server: Server) -> list[str]:
    async with await package.connect(server.url) as nc:

        async def ask(method: Any) -> None:
            await method(timeout=-1).account_info()

        return [await raised(ask(method)) for method in (nc.jetstream, nc.jsm)]


@shows("`js.subscribe(config=...)` with a durable name that exists", theirs="BadRequestError", ours="")
async def durable_of_config(package: Any, server: Server) -> str:
    async with await package.connect(server.url) as nc:
        js = await stream_of(package, nc)
        config = package.js.api.ConsumerConfig
        await js.subscribe("s", queue="q", config=config(durable_name="d"))
        return await raised(js.subscribe("s", queue="q", config=config(durable_name="d")))


@shows("`js.subscribe(config=...)` whose `deliver_group` is not its `queue`", theirs=["", "Error"], ours=["", ""])
async def group_of_config(package: Any, server: Server) -> list[str]:
    """How two starts of a worker end."""
    async with await package.connect(server.url) as nc:
        js = await stream_of(package, nc)
        config = package.js.api.ConsumerConfig
        return [await raised(js.subscribe("s", durable="d", config=config(deliver_group="q"))) for _ in range(2)]


@shows("Fields of newer servers that nats-py does not know", theirs=None, ours=["g"])
async def unknown_fields(package: Any, server: Server) -> Any:
    """The priority groups of a consumer after an update with the configuration that was read."""
    async with await package.connect(server.url) as nc:
        js = await stream_of(package, nc)
        config = {
            "durable_name": "d",
            "ack_policy": "explicit",
            "priority_groups": ["g"],
            "priority_policy": "overflow",
        }
        body = json.dumps({"stream_name": "S", "config": config}).encode()
        await nc.request("$JS.API.CONSUMER.CREATE.S.d", body, timeout=5)
        await raised(js.add_consumer("S", (await js.consumer_info("S", "d")).config))
        reply = json.loads((await nc.request("$JS.API.CONSUMER.INFO.S.d", b"", timeout=5)).data)
        return reply["config"].get("priority_groups")


@shows("`pending_msgs` of a pull subscription", theirs=1, ours=0)
async def pending_of_a_pull(package: Any, server: Server) -> int:
    """What is pending when a message has come after its fetch was cancelled."""
    async with await package.connect(server.url) as nc:
        js = await stream_of(package, nc)
        sub = await js.pull_subscribe("s", "d")
        fetching = asyncio.create_task(sub.fetch(1, timeout=30))
        while not (await sub.consumer_info()).num_waiting:  # the pull is there
            pass
        fetching.cancel()
        await asyncio.wait([fetching])
        await js.publish("s", b"x")
        for _ in range(20):  # it is on its way
            await nc.flush()
        return int(sub.pending_msgs)


@shows("`subscribe_bind(ordered_consumer=True)`", theirs="TimeoutError", ours="")
async def ordered_bind(package: Any, server: Server) -> str:
    async with await package.connect(server.url) as nc:
        js = await stream_of(package, nc, 1)
        config = package.js.api.ConsumerConfig(deliver_subject="unused")
        sub = await js.subscribe_bind("S", config, "ordered", ordered_consumer=True)
        return await raised(sub.next_msg(timeout=2))


@shows(
    "`publish_async()` of a message that is refused",
    theirs=("waits", ["BadRequestError"]),
    ours=("BadRequestError", ["BadRequestError"]),
)
async def refused_future(package: Any, server: Server) -> tuple[str, list[str]]:
    """What its future has, and what ``error_cb`` is told."""
    log = CallbackLog()
    async with await package.connect(server.url, **log.callbacks()) as nc:
        js = await stream_of(package, nc)
        future = await js.publish_async("s", b"x", stream="OTHER")
        await until(lambda: bool(log.errors))
        told = type(future.exception()).__name__ if future.done() else "waits"
        return told, [type(error).__name__ for error in log.errors]
