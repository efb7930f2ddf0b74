"""Nothing is believed from a stranger who has seen only earlier reply subjects or message ids, whatever he may do."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

import natsproto
from natsproto import Client, Message
from natsproto._core.socket.wire import RANDOM_BITS
from natsproto.errors import KeyExists
from natsproto.jetstream import FastPublisher, JetStream, Publisher
from natsproto.testing import run_server
from tests.hostile.helpers import Ears, Peers, Stranger, following, following_ids, peers

ROUNDS = 4
"""Strangers with drawn permissions in a run."""


async def next_messages(messages: asyncio.Queue[Message], count: int) -> list[Message]:
    return [await asyncio.wait_for(messages.get(), 5) for _ in range(count)]


async def forge(users: Peers, seen: list[str], data: bytes, chance: random.Random) -> None:
    """The stranger publishes to every reply subject that may follow, and the client receives all of it."""
    assert seen
    for subject in following(seen, chance):
        await users.stranger.publish(subject, data)
    await users.stranger.flush()
    await users.client.flush()


async def listen(stranger: Client, permissions: Stranger) -> Ears:
    """Subscribe to all that the stranger may see."""
    ears = Ears()
    for subject in permissions.subscribe:
        stranger.subscribe(subject, cb=ears)
    await stranger.flush()
    return ears


async def answer_requests(users: Peers) -> asyncio.Queue[Message]:
    """The service answers svc.>, which strangers see, at once; requests to others.> come into the queue."""
    messages: asyncio.Queue[Message] = asyncio.Queue()

    async def answer(message: Message) -> None:
        await message.respond(b'{"stream":"TRUE","seq":1}')

    users.service.subscribe("svc.>", cb=answer)
    users.service.subscribe("others.>", cb=messages.put_nowait)
    await users.service.flush()
    return messages


@pytest.mark.parametrize("number", range(ROUNDS))
async def test_no_forged_reply_is_believed(number: int, seed: int) -> None:
    chance = random.Random(seed + number)
    permissions = Stranger.drawn(chance)
    print(permissions)
    async with peers(permissions) as users:
        messages, ears = await answer_requests(users), await listen(users.stranger, permissions)
        for _ in range(chance.randint(1, 3)):
            await users.client.request("svc.seen")
        await users.stranger.flush()
        requests = [asyncio.ensure_future(users.client.request(f"others.{n}", timeout=10)) for n in range(20)]
        received = await next_messages(messages, 20)
        await forge(users, ears.seen, b"forged", chance)
        for message in received:
            await message.respond(b"true")
        assert [reply.data for reply in await asyncio.gather(*requests)] == [b"true"] * 20


@pytest.mark.parametrize("number", range(ROUNDS))
async def test_no_forged_ack_is_believed(number: int, seed: int) -> None:
    chance = random.Random(seed + number)
    permissions = Stranger.drawn(chance)
    print(permissions)
    async with peers(permissions) as users, users.client.jetstream().publisher() as pub:
        messages, ears = await answer_requests(users), await listen(users.stranger, permissions)
        for _ in range(chance.randint(1, 3)):
            await (await pub.publish("svc.seen"))
        await users.stranger.flush()
        futures = [await pub.publish(f"others.{n}") for n in range(20)]
        received = await next_messages(messages, 20)
        await forge(users, ears.seen, b'{"stream":"FORGED","seq":1}', chance)
        assert [future.done() for future in futures] == [False] * 20
        for message in received:
            await message.respond(b'{"stream":"TRUE","seq":1}')
        assert {(await future).stream for future in futures} == {"TRUE"}


def window(js: JetStream) -> Publisher:
    return js.publisher(auto_msg_id=True)


def fast(js: JetStream) -> FastPublisher:
    return js.fast_publisher(auto_msg_id=True)


@pytest.mark.parametrize("make", [window, fast])
async def test_no_message_is_swallowed_by_a_guessed_id(
    make: Callable[[JetStream], Publisher | FastPublisher], seed: int
) -> None:
    permissions = Stranger(("orders.>", "_INBOX.>"), ("orders.>", "_INBOX.>"))
    async with peers(permissions) as users:
        js = users.client.jetstream()
        stream = await js.create_stream(name="ORDERS", subjects=["orders.>"], allow_batched=True)
        ears = Ears()
        users.stranger.subscribe("orders.>", cb=ears)
        await users.stranger.flush()
        async with make(js) as pub:
            for number in range(3):
                await pub.publish("orders.a", b"%d" % number)
            await pub.flush()
            await users.stranger.flush()
            assert len(ears.ids) == 3
            for msg_id in following_ids(ears.ids, random.Random(seed)):
                await users.stranger.publish("orders.a", b"forged", headers={"Nats-Msg-Id": msg_id})
            await users.stranger.flush()
            for number in range(3, 23):
                await pub.publish("orders.a", b"%d" % number)
            await pub.flush()
        last = (await stream.info()).state.last_seq
        stored = [(await stream.get_message(seq)).data for seq in range(1, last + 1)]
        assert [data for data in stored if data != b"forged"] == [b"%d" % number for number in range(23)]


async def test_allow_responses_is_the_cure() -> None:
    """Who receives the message itself may answer it, and with this permission nothing else."""
    users = """authorization { users: [
      { user: service, password: x, permissions: {
          subscribe: "orders.>"
          allow_responses: { max: 2, expires: "10s" }
      } }
      { user: shop, password: x, permissions: {
          publish: "orders.>"
          subscribe: "_INBOX_shop.>"
      } }
    ] }"""
    with run_server(config=users) as server:
        async with (
            natsproto.connect(server.url, user="shop", password="x", inbox_prefix="_INBOX_shop") as shop,
            natsproto.connect(server.url, user="service", password="x") as service,
        ):
            inbox = service.subscribe("orders.>")
            await service.flush()
            request = asyncio.ensure_future(shop.request("orders.a"))
            message = await inbox.next(5)
            assert message.reply is not None
            violations: list[natsproto.Event] = []
            service.add_listener(violations.append)
            for number in range(4):
                await message.respond(b"%d" % number)
            await service.publish(message.reply + "1", b"forged")
            await service.flush()
            assert (await request).data == b"0"
            assert len(violations) == 3


async def test_no_write_is_recognised_by_a_guessed_id(seed: int) -> None:
    """A peer that may write the bucket cannot make the client believe that it has created the key itself."""
    permissions = Stranger(("$KV.b.>",), ("$KV.b.>",))
    chance = random.Random(seed)
    async with peers(permissions) as users:
        bucket = await users.client.jetstream().create_key_value(bucket="b")
        seen: list[str] = []
        users.stranger.subscribe("$KV.b.*", cb=lambda message: seen.append(message.headers["Natsproto-Write"]))
        await users.stranger.flush()
        for number in range(chance.randint(1, 3)):
            await bucket.create(f"seen{number}", b"client")
        await users.stranger.flush()
        name, number_text, *rest = seen[-1][:8], *seen[-1][8:].split(".")
        for ahead in range(1, 9):  # the create that follows next, and those after it
            following_number = f"{name}{int(number_text, 16) + ahead:x}"
            bits = chance.choice([*rest, f"{chance.getrandbits(RANDOM_BITS):x}"])
            guess = f"{following_number}.{bits}" if rest else following_number
            await users.stranger.publish(f"$KV.b.other{ahead}", b"stranger", headers={"Natsproto-Write": guess})
        await users.stranger.flush()
        for ahead in range(1, 9):
            with pytest.raises(KeyExists):
                await bucket.create(f"other{ahead}", b"client")
