"""Differences of core subscriptions, requests, statistics and errors."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import urllib.request
from typing import Any

from natsproto.testing import Direction, FaultProxy, Server
from tests.compat.differences import shows
from tests.compat.scenarios import CallbackLog, raised
from tests.kit.waiting import until


async def server_subjects(server: Server) -> list[str]:
    """The subjects of all clients, as the server lists them."""

    def read() -> Any:
        with urllib.request.urlopen(f"{server.monitoring_url}/connz?subs=1", timeout=5) as reply:
            return json.load(reply)

    listed = await asyncio.to_thread(read)
    return [subject for one in listed["connections"] for subject in one.get("subscriptions_list") or []]


@shows("Subjects on publish", theirs="", ours="BadSubjectError")
async def published_subject(package: Any, server: Server) -> str:
    async with await package.connect(server.url) as nc:
        return await raised(nc.publish("a.*"))


@shows("Full subscriptions", theirs=9, ours=1)
async def full_subscription(package: Any, server: Server) -> int:
    """The calls of ``error_cb`` for nine dropped messages."""
    log = CallbackLog()
    async with await package.connect(server.url, **log.callbacks()) as nc:
        await nc.subscribe("s", pending_msgs_limit=1)
        last = await nc.subscribe("s")
        for _ in range(10):
            await nc.publish("s")
        await nc.flush()
        await until(lambda: last.pending_msgs == 10)
        await until(lambda: bool(log.errors))
        return len(log.errors)


@shows("`flush()` right after `publish()` or `subscribe()`", theirs=[b"PING", b"PUB"], ours=[b"PUB", b"PING"])
async def flushed(package: Any, server: Server) -> list[bytes]:
    """What a client sends, in order."""
    async with FaultProxy(server.host, server.port, record=True) as proxy, await package.connect(proxy.url) as nc:
        await nc.flush()
        seen = proxy.link.seen[Direction.TO_SERVER]
        before = len(seen)
        await nc.publish("s")
        await nc.flush()
        await nc.flush()
        return [line.split()[0] for line in bytes(seen[before:]).splitlines() if line][:2]


@shows("`pending_bytes_limit`", theirs=1, ours=0)
async def pending_bytes(package: Any, server: Server) -> int:
    """The messages that are kept, if the limit holds a payload without its subject."""
    async with await package.connect(server.url) as nc:
        sub = await nc.subscribe("a.subject.of.more.than.twenty.letters", pending_bytes_limit=20)
        last = await nc.subscribe(">")
        await nc.publish("a.subject.of.more.than.twenty.letters", b"ten bytes.")
        await nc.flush()
        await until(lambda: last.pending_msgs > 0)
        return int(sub.pending_msgs)


@shows("`drain()` of a subscription with unread messages", theirs=("waits", 1), ours=("ends", 1))
async def drain_iterated(package: Any, server: Server) -> tuple[str, int]:
    """Whether it waits for a message that is not read yet, and how many can be read afterwards."""
    async with await package.connect(server.url) as nc:
        sub = await nc.subscribe("s")
        messages = sub.messages
        await nc.publish("s")
        await nc.flush()
        await until(lambda: sub.pending_msgs == 1)
        draining = asyncio.create_task(sub.drain())
        done, _ = await asyncio.wait([draining], timeout=2)
        read = 0
        async for _ in messages:
            read += 1
            break
        await draining
        return "ends" if done else "waits", read


@shows("`next_msg()` after the last message", theirs="TimeoutError", ours="BadSubscriptionError")
async def after_the_last(package: Any, server: Server) -> str:
    async with await package.connect(server.url) as nc:
        sub = await nc.subscribe("s")
        await sub.unsubscribe(limit=1)
        await nc.publish("s")
        await sub.next_msg(timeout=5)
        return await raised(sub.next_msg(timeout=0.1))


@shows("`next_msg()` of a subscription with a future", theirs="TimeoutError", ours="Error")
async def next_of_future(package: Any, server: Server) -> str:
    async with await package.connect(server.url) as nc:
        sub = await nc.subscribe("s", future=asyncio.get_running_loop().create_future())
        return await raised(sub.next_msg(timeout=0.1))


@shows("A second message of a subscription with a future", theirs="TimeoutError", ours="")
async def second_of_future(package: Any, server: Server) -> str:
    """What reading another subscription after it raises."""
    async with await package.connect(server.url) as nc:
        await nc.subscribe("s", future=asyncio.get_running_loop().create_future())
        other = await nc.subscribe("t")
        for subject in ("s", "s", "t"):
            await nc.publish(subject)
        return await raised(other.next_msg(timeout=2))


@shows("`subscribe(max_msgs=...)`", theirs=["s"], ours=[])
async def max_msgs(package: Any, server: Server) -> list[str]:
    """What the server lists after the last message."""
    async with await package.connect(server.url) as nc:
        sub = await nc.subscribe("s", max_msgs=1)
        await nc.publish("s")
        await sub.next_msg(timeout=5)
        await nc.flush()
        return await server_subjects(server)


@shows(
    "Inboxes of `request(old_style=True)` without a reply, and of `keys()` and `history()` without a value",
    theirs=1,
    ours=0,
)
async def inboxes(package: Any, server: Server) -> int:
    async with await package.connect(server.url) as nc:
        await raised(nc.request("nobody", timeout=0.1, old_style=True))
        await nc.flush()
        return sum(not subject.endswith("*") for subject in await server_subjects(server))


@shows("Statistics", theirs=2, ours=1)
async def statistics(package: Any, server: Server) -> int:
    """The messages that a client has sent after a message of the program and a request to JetStream."""
    async with await package.connect(server.url) as nc:
        await nc.jetstream().account_info()
        await nc.publish("s")
        return int(nc.stats["out_msgs"])


@shows(
    "Texts of errors about arguments",
    theirs="nats: invalid header: 'k:'",
    ours="nats: invalid header: \"header name 'k:': must be printable ASCII without spaces and colons\"",
)
async def text(package: Any, server: Server) -> str:
    async with await package.connect(server.url) as nc:
        try:
            await nc.publish("s", headers={"k:": "v"})
        except package.errors.BadHeaderError as exc:
            return str(exc)
    return ""


@shows(
    "A call with several mistakes, such as an invalid subject after `close()`",
    theirs="ConnectionClosedError",
    ours="BadHeaderError",
)
async def mistakes(package: Any, server: Server) -> str:
    nc = await package.connect(server.url)
    await nc.close()
    return await raised(nc.publish("s", headers={"k:": "v"}))


@shows("`nats.aio.errors`", theirs=False, ours=True)
async def old_errors(package: Any, server: Server) -> bool:
    old = importlib.import_module(f"{package.__name__}.aio.errors")
    return issubclass(package.errors.TimeoutError, old.ErrTimeout)


@shows("Enumerations", theirs="AckPolicy.ALL", ours="all")
async def enumerations(package: Any, server: Server) -> str:
    return str(package.js.api.AckPolicy.ALL)


@shows(
    "`respond()` and `ack()` to a reply subject of an API or a store, such as `$KV.cfg.admin`",
    theirs=b"stolen",
    ours=b"mine",
)
async def guarded_reply(package: Any, server: Server) -> bytes:
    async with await package.connect(server.url) as nc:
        kv = await nc.jetstream().create_key_value(bucket="cfg")
        await kv.put("admin", b"mine")
        sub = await nc.subscribe("service")
        await nc.publish("service", reply="$KV.cfg.admin")
        await (await sub.next_msg(timeout=5)).respond(b"stolen")
        await nc.flush()
        return bytes((await kv.get("admin")).value)


@shows("`unsubscribe()` in the callback of the subscription", theirs=3, ours=1)
async def ended_by_callback(package: Any, server: Server) -> int:
    """The calls for three messages that have arrived before the first one ends."""
    all_there, count = asyncio.Event(), 0

    async def handler(msg: Any) -> None:
        nonlocal count
        count += 1
        await all_there.wait()
        await raised(sub.unsubscribe())

    async with await package.connect(server.url) as nc:
        sub = await nc.subscribe("a", cb=handler)
        for _ in range(3):
            await nc.publish("a")
        await until(lambda: count == 1 and sub.pending_msgs == 2)
        all_there.set()
        for _ in range(20):  # each lets a callback run
            await asyncio.sleep(0.01)
    return count


@shows("`unsubscribe(limit=...)` of more than 999,999,999", theirs="TimeoutError", ours="")
async def large_limit(package: Any, server: Server) -> str:
    async with await package.connect(server.url) as nc:
        sub = await nc.subscribe("a")
        await sub.unsubscribe(limit=10**9)
        await nc.flush()
        await nc.publish("a")
        return await raised(sub.next_msg(timeout=2))


@shows("`NUID` after `os.fork()`", theirs=True, ours=False)
async def forked_ids(package: Any, server: Server) -> bool:
    """Whether a child makes the ids of its parent."""
    nuid = importlib.import_module(f"{package.__name__}.nuid").NUID()
    nuid.next()
    return of_child(nuid) == bytes(nuid.next())


def of_child(nuid: Any) -> bytes:
    """The next id that a fork of this process makes."""
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        os.write(writer, bytes(nuid.next()))
        os._exit(0)
    os.close(writer)
    os.waitpid(process, 0)
    with open(reader, "rb") as pipe:
        return pipe.read()
