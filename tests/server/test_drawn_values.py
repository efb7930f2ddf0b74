"""Values that are drawn: sizes, times, counts and names, good and bad, against the real server.

Each of them is refused with an error of natsproto, or the server has exactly what was asked for. ``make hunt`` draws
others in each round; the seed is printed where a test fails.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from math import isclose

from natsproto import Client
from natsproto.errors import ApiError, ConfigError, InvalidSubject, NatsError, PullRefused
from natsproto.jetstream import ConsumerConfig, StreamConfig
from natsproto.jetstream.kv import KeyValue

DRAWS = 60
LETTERS = "abAB09-_/=.*> \t\r\n\0\\:,é漢\U0001f600\ud800"


class Chance(random.Random):
    """Draws what users write, and what they should not."""

    def name(self) -> str:
        """Nearly always of plain letters; seldom empty, long or with characters that mean something."""
        letters = LETTERS if self.random() < 0.3 else "abcXYZ019-_"
        return "".join(self.choices(letters, k=self.choice([0, 1, 2, 8, 8, 8, 30, 250, 400])))

    def count(self, most: int = 2**31 - 1) -> int:
        """Spread over all magnitudes, with the borders."""
        return self.choice([-2, -1, 0, 1, 2, most, most + 1, self.randrange(10), int(most ** self.random())])

    def seconds(self) -> float:
        """From a nanosecond to centuries, whole and broken."""
        drawn = 10 ** self.uniform(-9, 10)
        return self.choice([0, 1e-9, 0.1, 1, drawn, round(drawn, 3), round(drawn), -drawn, float("inf"), float("nan")])


def differences(asked: dict[str, object], config: StreamConfig | ConsumerConfig) -> dict[str, tuple[object, object]]:
    """The fields that the server holds otherwise than they were given; a value of nothing leaves it to the server."""
    found: dict[str, tuple[object, object]] = {}
    for name, value in asked.items():
        held = getattr(config, name)
        if name == "metadata":
            held = {key: text for key, text in held.items() if not key.startswith("_nats.")}
        same = isclose(held, value, rel_tol=1e-14, abs_tol=5e-10) if isinstance(value, float) else held == value
        if value and value != -1 and not same:
            found[name] = value, held
    return found


async def outcome(ask: Callable[[], object]) -> object:
    """What a coroutine returns, or the error of natsproto that it raises: every other one fails the test."""
    try:
        return await ask()  # type: ignore[misc]
    except NatsError as error:
        return error


async def test_drawn_streams_are_as_asked_for(nats_client: Client, seed: int) -> None:
    js, chance, made = nats_client.jetstream(), Chance(seed), 0
    fields: dict[str, Callable[[], object]] = {
        "description": chance.name,
        "max_msgs": lambda: chance.count(2**63 - 1),
        "max_bytes": lambda: chance.count(2**40),
        "max_msgs_per_subject": lambda: chance.count(2**63 - 1),
        "max_msg_size": chance.count,
        "max_consumers": chance.count,
        "max_age": chance.seconds,
        "duplicate_window": chance.seconds,
        "first_seq": lambda: chance.count(2**64 - 1),
        "metadata": lambda: {chance.name(): chance.name()},
    }
    for _ in range(DRAWS):
        asked: dict[str, object] = {name: draw() for name, draw in fields.items() if chance.random() < 0.2}
        name = chance.name()
        got = await outcome(lambda: js.create_stream(name=name, subjects=["drawn.>"], storage="memory", **asked))  # type: ignore[arg-type]  # noqa: B023
        if isinstance(got, NatsError):
            assert isinstance(got, ConfigError | InvalidSubject | ApiError), (name, asked)
            continue
        info = await (await js.stream(name)).info()
        assert (info.config.name, differences(asked, info.config)) == (name, {}), asked
        await js.delete_stream(name)
        made += 1
    assert made > DRAWS // 10, "most of what is drawn should be good"


async def test_drawn_consumers_are_as_asked_for(nats_client: Client, seed: int) -> None:
    js, chance, made = nats_client.jetstream(), Chance(seed), 0
    stream = await js.create_stream(name="S", subjects=["s.>"], storage="memory")
    fields: dict[str, Callable[[], object]] = {
        "description": chance.name,
        "ack_wait": chance.seconds,
        "inactive_threshold": chance.seconds,
        "max_expires": chance.seconds,
        "max_deliver": chance.count,
        "max_ack_pending": chance.count,
        "max_waiting": chance.count,
        "max_batch": chance.count,
        "max_bytes": chance.count,
        "filter_subject": lambda: chance.choice(["s.a", "s.*", "s.>", f"s.{chance.name()}"]),
        "metadata": lambda: {chance.name(): chance.name()},
    }
    for _ in range(DRAWS):
        asked = {name: draw() for name, draw in fields.items() if chance.random() < 0.2}
        name = chance.name()
        got = await outcome(lambda: stream.create_consumer(durable_name=name, **asked))  # type: ignore[arg-type]  # noqa: B023
        if isinstance(got, NatsError):
            assert isinstance(got, ConfigError | InvalidSubject | ApiError), (name, asked)
            continue
        info = await stream.consumer_info(name) if name else None
        if info is not None:
            assert (info.config.durable_name, differences(asked, info.config)) == (name, {}), asked
            await stream.delete_consumer(name)
            made += 1
    assert made > DRAWS // 10, "most of what is drawn should be good"


async def test_drawn_fetches_bring_what_there_is(nats_client: Client, seed: int) -> None:
    js, chance = nats_client.jetstream(), Chance(seed)
    stream = await js.create_stream(name="S", subjects=["s"], storage="memory")
    sizes = [chance.randrange(3000) for _ in range(100)]
    async with js.publisher() as publisher:
        for size in sizes:
            await publisher.publish("s", b"x" * size)
    fetched = 0
    for _ in range(DRAWS):
        consumer = await stream.create_consumer(ack_policy="none", inactive_threshold=60)
        count, max_bytes = chance.count(10_000), chance.choice([None, None, chance.count(300_000)])
        timeout, heartbeat = chance.choice([5, 0.05, chance.seconds()]), chance.choice([None, chance.seconds()])
        if timeout > 1 and count > len(sizes):
            continue  # it would wait for more
        try:
            async with asyncio.timeout(60):
                got = await consumer.fetch(count, timeout=timeout, max_bytes=max_bytes, heartbeat=heartbeat)
        except ConfigError:
            continue
        except PullRefused:
            assert max_bytes is not None
            assert max_bytes < sizes[0] + 200
            continue
        assert [len(message.data) for message in got] == sizes[: len(got)]
        assert len(got) <= count
        if max_bytes is None and timeout >= 5 and count <= len(sizes):
            assert len(got) == count
        fetched += bool(got)
    assert fetched > DRAWS // 10, "most of what is drawn should be good"


async def test_drawn_keys_hold_their_values(nats_client: Client, seed: int) -> None:
    chance, held = Chance(seed), dict[str, bytes]()
    bucket: KeyValue[bytes] = await nats_client.jetstream().create_key_value(bucket="B", storage="memory")
    for _ in range(DRAWS):
        key, value = chance.name(), chance.randbytes(chance.choice([0, 1, 100, 70_000]))
        with suppress(ConfigError, InvalidSubject):
            await bucket.put(key, value)
            held[key] = value
    assert {key: (await bucket.get(key)).value for key in held} == held
    assert sorted([key async for key in bucket.keys()])  # noqa: SIM118  # a bucket is no dict == sorted(held)
    assert len(held) > DRAWS // 10


async def test_drawn_objects_come_back(nats_client: Client, seed: int) -> None:
    chance, held = Chance(seed), dict[str, bytes]()
    store = await nats_client.jetstream().create_object_store(bucket="O", storage="memory")
    for _ in range(DRAWS // 2):
        name, content = chance.name(), chance.randbytes(chance.choice([0, 1, 1000, chance.randrange(400_000)]))
        chunk = chance.choice([None, None, chance.count(200_000)])
        if chunk is not None and 0 < chunk < len(content) // 100:
            continue  # thousands of messages
        with suppress(ConfigError, InvalidSubject):
            await store.put(name, content, chunk_size=chunk, description=chance.name())
            held[name] = content
    assert {name: await store.get_bytes(name) for name in held} == held
    assert sorted([info.name async for info in store.list()]) == sorted(held)
    assert len(held) > DRAWS // 20


async def test_drawn_messages_arrive_as_they_were(nats_client: Client, seed: int) -> None:
    chance, sent = Chance(seed), list[tuple[str, dict[str, str], bytes]]()
    sub = await nats_client.subscribe("drawn.>")
    for _ in range(5 * DRAWS):
        subject = f"drawn.{chance.name()}"
        headers = {chance.name(): chance.name() for _ in range(chance.choice([0, 0, 1, 3]))}
        payload = chance.randbytes(chance.choice([0, 1, 100, 5000]))
        with suppress(NatsError):
            await nats_client.publish(subject, payload, headers=headers)
            sent.append((subject, {name: value.strip(" \t") for name, value in headers.items()}, payload))
    got = [await sub.next(timeout=30) for _ in sent]
    assert [(message.subject, dict(message.headers), message.data) for message in got] == sent
    assert len(sent) > DRAWS
