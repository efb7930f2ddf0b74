"""No peer lends the client's permissions: not with the reply subjects of its messages, nor with flow control."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

import natsproto
from natsproto import Client, Message
from natsproto.compat import nats
from natsproto.compat.nats.aio.msg import Msg
from natsproto.errors import ServiceError
from natsproto.jetstream import AckPolicy
from natsproto.service import Request
from natsproto.testing import Server
from tests.hostile.helpers import Peers, Stranger, peers

PERMISSIONS = Stranger(("_INBOX.>",), ("svc.>", "$SRV.>", "deliver.>"))
"""A stranger who may use services, and neither stores nor APIs."""

TARGETS = (
    "$KV.cfg.admin",
    "$JS.API.STREAM.DELETE.KV_cfg",
    "$JS.hub.API.STREAM.DELETE.KV_cfg",
    "$JS.API.STREAM.PURGE.KV_cfg",
    "$O.files.M.bmFtZQ==",
    "$O.files.C.x",
    "$SRV.STOP",
    "$SYS.REQ.ACCOUNT.PING",
    "$JS.hub.API.$KV.cfg.admin",
)

CONTROL = ("$SRV.PING", "$SRV.INFO.echo", "$SRV.STATS")
"""Subjects to which services respond without a handler."""

Responder = Callable[[Client, Server], Awaitable[object]]


async def callback(service: Client, server: Server) -> None:
    async def echo(message: Message) -> None:
        await message.respond(message.data, headers={"A": "b"} if message.data == b"headers" else None)

    service.subscribe("svc.a", cb=echo)


async def endpoint(service: Client, server: Server) -> None:
    async def echo(request: Request) -> None:
        if request.data == b"error":
            raise ServiceError(400, "no")
        if request.data == b"bug":
            raise RuntimeError("a bug")
        await request.respond(request.data)

    added = await service.add_service(name="echo", version="1.0.0")
    added.add_endpoint("a", echo, subject="svc.a")


@asynccontextmanager
async def nats_py(server: Server, answer: Callable[[Msg], Awaitable[None]]) -> AsyncIterator[None]:
    """A service written for nats-py."""
    client = await nats.connect(server.url, user="service", password="x")
    try:
        await client.subscribe("svc.a", cb=answer)
        await client.flush()
        yield
    finally:
        await client.close()


async def attack(users: Peers, chance: random.Random) -> None:
    """The stranger sends messages with reply subjects that are not his, and one good request."""
    for _ in range(40):
        subject = chance.choice(("svc.a", "svc.a", *CONTROL))
        payload = chance.choice((b"x", b"", b"headers", b"error", b"bug"))
        await users.stranger.publish(subject, payload, reply=chance.choice(TARGETS))
    await users.stranger.flush()
    assert (await users.stranger.request("svc.a", b"good", timeout=5)).data == b"good"


@asynccontextmanager
async def watched() -> AsyncIterator[tuple[Peers, list[str]]]:
    """Three users, a bucket with a value, and the subjects of APIs and stores that are published to."""
    async with peers(PERMISSIONS) as users:
        bucket = await users.client.jetstream().create_key_value(bucket="cfg")
        await bucket.put("admin", b"client")
        published: list[str] = []

        def note(message: Message) -> None:
            if message.subject.startswith("$") and message.subject not in CONTROL:
                published.append(message.subject)

        async with users.client.subscribe(">", cb=note):
            await users.client.flush()
            yield users, published
            await users.client.flush()
        assert (await bucket.get("admin")).value == b"client"


@pytest.mark.parametrize("start", [callback, endpoint])
async def test_no_response_goes_to_an_api(start: Responder, seed: int) -> None:
    async with watched() as (users, published):
        await start(users.service, users.server)
        await users.service.flush()
        await attack(users, random.Random(seed))
        await users.service.flush()
        await users.client.flush()
        assert published == []


async def test_no_response_of_compat_goes_to_an_api(seed: int) -> None:
    async def answer(message: Msg) -> None:
        if message.data == b"good":
            await message.respond(message.data)
        elif message.data == b"x":
            await message.ack()
        elif message.data == b"error":
            await message.nak()
        else:
            await message.respond(b"answer")

    async with watched() as (users, published), nats_py(users.server, answer):
        await attack(users, random.Random(seed))
        await users.client.flush()
        assert published == []


async def test_invalid_reply_does_not_end_a_responder() -> None:
    """The server accepts any reply subject; one that cannot be published to is not the responder's mistake."""
    async with peers(PERMISSIONS) as users:
        events: list[natsproto.Event] = []
        users.service.add_listener(events.append)
        inbox = users.service.subscribe("svc.a")
        await users.service.flush()
        for reply in (b"a.*", b">", b"a..b", b"\xff.a"):
            users.stranger._outbox.put(b"PUB svc.a %b 1\r\n" % reply, b"x")
        answer = asyncio.ensure_future(users.stranger.request("svc.a", b"good"))
        async for message in inbox:
            await message.respond(message.data)
            if message.data == b"good":
                break
        assert (await answer).data == b"good"
        assert [type(event) for event in events] == [natsproto.ReplyRefused]


async def test_option_allows_replies_to_apis() -> None:
    async with (
        peers(PERMISSIONS) as users,
        natsproto.connect(users.server.url, user="service", password="x", allow_api_replies=True) as service,
        users.client.subscribe("$KV.cfg.admin") as published,
    ):
        await callback(service, users.server)
        await service.flush()
        await users.client.flush()
        await users.stranger.publish("svc.a", b"written", reply="$KV.cfg.admin")
        assert (await published.next(5)).data == b"written"


@pytest.mark.parametrize("target", TARGETS)
async def test_flow_control_publishes_to_no_api(target: str) -> None:
    async with watched() as (users, published):
        js = users.client.jetstream()
        stream = await js.create_stream(name="S", subjects=["s"])
        consumer = await stream.create_push_consumer(
            durable_name="c", deliver_subject="deliver.c", flow_control=True, idle_heartbeat=1
        )
        async with consumer.messages() as messages:
            status = "NATS/1.0 100 FlowControl Request\r\n\r\n"
            stalled = f"NATS/1.0 100 Idle Heartbeat\r\nNats-Consumer-Stalled: {target}\r\n\r\n"
            for block, reply in ((status, f"{target} "), (stalled, "")):
                users.stranger._outbox.put(f"HPUB deliver.c {reply}{len(block)} {len(block)}\r\n{block}".encode(), b"")
            await users.stranger.flush()
            await js.publish("s", b"real")
            assert (await anext(aiter(messages))).data == b"real"
        await users.client.flush()
        assert target not in published


async def test_push_consumer_is_read_by_subscribe() -> None:
    """Flow control and acknowledgements are answered with respond(), as programs for plain NATS do."""
    async with peers(PERMISSIONS) as users:
        js = users.client.jetstream()
        stream = await js.create_stream(name="API", subjects=["s"])
        for number in range(300):
            await js.publish("s", bytes(4096) + b"%d" % number)
        received = flow_control = 0
        async with users.service.subscribe("deliver.c") as inbox:
            await users.service.flush()
            await stream.create_push_consumer(
                durable_name="c",
                deliver_subject="deliver.c",
                flow_control=True,
                idle_heartbeat=1,
                ack_policy=AckPolicy.EXPLICIT,
            )
            while received < 300:
                message = await inbox.next(5)
                if message.headers._status == 100:
                    flow_control += message.has_reply
                    if message.has_reply:
                        await message.respond()
                else:
                    received += 1
                    await message.respond(b"+ACK")
        assert flow_control
        async with asyncio.timeout(5):
            while (await stream.consumer_info("c")).num_ack_pending:
                pass
