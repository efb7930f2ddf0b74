"""A server that allows so many subscriptions and no more: who was refused hears of it, the others lose nothing."""

from __future__ import annotations

import asyncio
import random
from functools import partial

import pytest

from natsproto import Client
from natsproto._core.events import ServerErrorEvent
from natsproto._core.inbox.subscription import Subscription
from natsproto.errors import ConfigError, TooManySubscriptions
from natsproto.testing import run_server
from tests.faults.helpers import SOON, EventRecorder
from tests.kit.waiting import until
from tests.server.helpers import both_loops, client

LIMIT = 10
CONFIG = f"max_subscriptions: {LIMIT}\n"


async def open_subscriptions(subscriptions: list[Subscription], open_ones: int) -> list[Subscription]:
    """The open ones, once there are so many."""
    await until(lambda: sum(not sub.closed for sub in subscriptions) == open_ones)
    return [sub for sub in subscriptions if not sub.closed]


@both_loops
async def test_max_subscriptions_ends_the_refused() -> None:
    recorder = EventRecorder(ServerErrorEvent)
    with run_server(config=CONFIG) as server:
        async with client(server.url, on_event=recorder) as nc:
            subs = [await nc.subscribe(f"a.{number}") for number in range(LIMIT + 5)]
            assert await open_subscriptions(subs, LIMIT) == subs[:LIMIT]
            for sub in subs[LIMIT:]:
                with pytest.raises(
                    TooManySubscriptions, match=f"'{sub.subject}' rejected.*max_subscriptions"
                ) as refused:
                    await sub.next(timeout=SOON)
                assert refused.value is sub.error
                assert refused.value.subject == sub.subject
            assert [event.error for event in recorder.of(ServerErrorEvent)] == [sub.error for sub in subs[LIMIT:]]
            for sub in subs[:LIMIT]:
                await nc.publish(sub.subject, b"x")
                assert (await sub.next(timeout=SOON)).data == b"x"
            await subs[0].unsubscribe()
            again = await nc.subscribe("again")
            await nc.publish("again", b"y")
            assert (await again.next(timeout=SOON)).data == b"y"


@both_loops
async def test_max_subscriptions_fails_requests() -> None:
    with run_server(config=CONFIG) as server:
        async with client(server.url) as nc, client(server.url) as other:
            await other.subscribe("svc", cb=lambda message: message.respond(b"pong"))
            await other.flush()
            subs = [await nc.subscribe(f"a.{number}") for number in range(LIMIT)]
            await nc.flush()
            for _ in range(2):
                async with asyncio.timeout(SOON):
                    with pytest.raises(TooManySubscriptions, match="_INBOX"):
                        await nc.request("svc", timeout=60)
            assert not any(sub.closed for sub in subs)
            await subs[3].unsubscribe()
            assert (await nc.request("svc", timeout=SOON)).data == b"pong"


@both_loops
async def test_max_subscriptions_at_a_reconnect() -> None:
    """A server that allows less than the one before."""
    with run_server() as roomy, run_server(config=CONFIG) as strict:
        async with client(roomy.url) as nc:
            subs = [await nc.subscribe(f"a.{number}") for number in range(3 * LIMIT)]
            limited = [await nc.subscribe(f"b.{number}", max_messages=2) for number in range(3)]
            await nc.flush()
            nc.set_servers(strict.url)
            await nc.reconnect()
            await nc.flush(timeout=SOON)
            assert await open_subscriptions([*subs, *limited], LIMIT) == subs[:LIMIT]


@both_loops
async def test_max_subscriptions_random() -> None:
    """Whoever is open gets its message, whatever was subscribed and ended around it."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with run_server(config=CONFIG) as server:
        async with client(server.url) as nc, client(server.url) as other:
            for round_ in range(15):
                subs: list[Subscription] = []
                for number in range(rng.randrange(3 * LIMIT)):
                    live = [sub for sub in subs if not sub.closed]
                    if live and rng.random() < 0.3:
                        await rng.choice(live).unsubscribe()
                    else:
                        most = rng.choice([None, None, 3])
                        subs.append(await nc.subscribe(f"r.{round_}.{number}", max_messages=most))
                    if rng.random() < 0.1:
                        await nc.flush()
                    elif rng.random() < 0.1:
                        await asyncio.sleep(0)
                await until(lambda: not nc._engine.registry.rejected_subs._is_checking)
                await nc.flush()
                await until(lambda: not nc._engine.registry.rejected_subs._is_checking)
                live = [sub for sub in subs if not sub.closed]
                assert len(live) <= LIMIT
                for sub in live:
                    await other.publish(sub.subject, b"x")
                await other.flush()
                for sub in live:
                    assert (await sub.next(timeout=SOON)).data == b"x"
                    await sub.unsubscribe()


async def test_longest_number_of_an_auto_unsubscribe(nats_client: Client) -> None:
    sub = await nats_client.subscribe("a", max_messages=999_999_999)
    await nats_client.publish("a", b"1")
    assert (await sub.next(timeout=30)).data == b"1"
    for call in (sub.unsubscribe, partial(nats_client.subscribe, "a")):
        with pytest.raises(ConfigError, match="max_messages"):
            await call(max_messages=10**9)  # it would end at once
    await nats_client.publish("a", b"2")
    assert [message.data for message in await anext(sub.batches(10**9))] == [b"2"]  # no server reads this number
