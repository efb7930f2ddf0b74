"""Arguments of the wrong kind are refused at once, by name, before a byte is written."""

from __future__ import annotations

import math
from collections.abc import AsyncIterable, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from natsproto import Client
from natsproto.errors import ConfigError, NatsError

if TYPE_CHECKING:
    from natsproto.jetstream._context import JetStream
    from natsproto.jetstream._stream.stream import Stream

Call = Callable[["JetStream", "Stream", object], object]

NUMBERS: list[object] = [None, "1", 1.5, math.nan, True, [], -2, 2**70]
"""None comes first: some calls have a default of their own for it."""
DURATIONS: list[object] = ["1", [], b"x", math.nan, math.inf, -1, timedelta(seconds=-1), True]
MOMENTS: list[object] = ["now", 1, 1.5, [], timedelta(1), datetime(2030, 1, 1)]
SUBJECTS: list[object] = [None, 1, "", "a b", "a..b", ".a", "a.", "a\r\nPUB x 0\r\n\r\n", "\ud800", "x" * 70_000, []]
WORDS: list[object] = [*SUBJECTS, "a.b", "*", ">"]
CONFIGS: list[object] = ["S", 1, {}, [], {"name": "S"}, datetime(2030, 1, 1)]

CALLS: dict[str, tuple[list[object], Call]] = {
    "create_stream": (CONFIGS[1:], lambda js, s, v: js.create_stream(v)),  # type: ignore[arg-type]
    "update": (CONFIGS, lambda js, s, v: s.update(v)),  # type: ignore[arg-type]
    "create_consumer": (CONFIGS[1:], lambda js, s, v: s.create_consumer(v)),  # type: ignore[arg-type]
    "stream": (WORDS, lambda js, s, v: js.stream(v)),  # type: ignore[arg-type]
    "publish": (SUBJECTS, lambda js, s, v: js.publish(v)),  # type: ignore[arg-type]
    "publish retry_attempts": (NUMBERS[1:], lambda js, s, v: js.publish("s", retry_attempts=v)),  # type: ignore[arg-type]
    "publish retry_wait": (DURATIONS, lambda js, s, v: js.publish("s", retry_wait=v)),  # type: ignore[arg-type]
    "publish timeout": ([*DURATIONS, 0], lambda js, s, v: js.publish("s", timeout=v)),  # type: ignore[arg-type]
    "publisher max_pending": ([*NUMBERS, 0], lambda js, s, v: js.publisher(max_pending=v)),  # type: ignore[arg-type]
    "publisher retry_attempts": (NUMBERS[1:], lambda js, s, v: js.publisher(retry_attempts=v)),  # type: ignore[arg-type]
    "fast_publisher flow": ([*NUMBERS, 0], lambda js, s, v: js.fast_publisher(flow=v)),  # type: ignore[arg-type]
    "fast_publisher retry_attempts": (
        NUMBERS,
        lambda js, s, v: js.fast_publisher(retry_attempts=v),  # type: ignore[arg-type]
    ),
    "atomic_batch max_messages": (
        [*NUMBERS, 0],
        lambda js, s, v: js.atomic_batch(max_messages=v),  # type: ignore[arg-type]
    ),
    "atomic_batch retry_attempts": (NUMBERS, lambda js, s, v: js.atomic_batch(retry_attempts=v)),  # type: ignore[arg-type]
    "get_message": ([*NUMBERS, 0], lambda js, s, v: s.get_message(v)),  # type: ignore[arg-type]
    "get_last_message": (SUBJECTS, lambda js, s, v: s.get_last_message(v)),  # type: ignore[arg-type]
    "get_next_message start_time": (
        MOMENTS,
        lambda js, s, v: s.get_next_message(start_time=v),  # type: ignore[arg-type]
    ),
    "get_batch timeout": (DURATIONS, lambda js, s, v: s.get_batch(timeout=v)),  # type: ignore[arg-type]
    "get_last_messages up_to_time": (
        MOMENTS,
        lambda js, s, v: s.get_last_messages(["s"], up_to_time=v),  # type: ignore[arg-type]
    ),
    "pause_consumer": (MOMENTS, lambda js, s, v: s.pause_consumer("c", v)),  # type: ignore[arg-type]
}


async def use(thing: object) -> None:
    """Awaits, enters or reads it, as its kind is used."""
    if isinstance(thing, AbstractAsyncContextManager):
        async with thing:
            pass
    elif isinstance(thing, Awaitable):
        await thing
    elif isinstance(thing, AsyncIterable):
        async for _ in thing:
            pass


@pytest.mark.parametrize("name", CALLS)
async def test_bad_arguments_are_refused_before_sending(jetstream: JetStream, nats_client: Client, name: str) -> None:
    stream = await jetstream.create_stream(name="S", subjects=["s"], storage="memory", allow_direct=True)
    values, call = CALLS[name]
    for value in values:
        if value == 2**70 and name.endswith(("max_pending", "max_messages", "attempts")):
            continue  # as good as no limit
        sent = nats_client.stats.out_msgs
        with pytest.raises((ConfigError, TypeError)):
            await use(call(jetstream, stream, value))
        assert nats_client.stats.out_msgs == sent, f"{value!r} was sent"


@pytest.mark.parametrize("domain", ["", "a.b", "*", ">", "a b", 5, []])
def test_a_domain_is_one_word(nats_client: Client, domain: object) -> None:
    with pytest.raises((ConfigError, TypeError)):
        nats_client.jetstream(domain=domain)  # type: ignore[arg-type]


@pytest.mark.parametrize("prefix", ["a..b", "a.*", "a b", 5, []])
def test_a_prefix_is_a_subject(nats_client: Client, prefix: object) -> None:
    with pytest.raises((NatsError, TypeError)):
        nats_client.jetstream(prefix=prefix)  # type: ignore[arg-type]


MISSPELT: dict[str, tuple[str, Callable[[JetStream, Stream], object]]] = {
    "create_stream": ("'subject'; did you mean 'subjects'", lambda js, s: js.create_stream(name="A", subject="a")),  # type: ignore[call-arg]
    "update_stream": ("'replicas'; did you mean 'num_replicas'", lambda js, s: js.update_stream(name="A", replicas=1)),  # type: ignore[call-arg]
    "Stream.update": ("'max_messages'; did you mean 'max_msgs'", lambda js, s: s.update(max_messages=1)),  # type: ignore[call-arg]
    "create_consumer": ("'durable'; did you mean 'durable_name'", lambda js, s: s.create_consumer(durable="c")),  # type: ignore[call-arg]
    "ordered_consumer": (
        "'filter_subjets'; did you mean 'filter_subjects'",
        lambda js, s: s.ordered_consumer(filter_subjets=["a"]),  # type: ignore[call-arg]
    ),
    "create_key_value": (
        "'histroy'; did you mean 'history'",
        lambda js, s: js.create_key_value(bucket="b", histroy=2),  # type: ignore[call-arg]
    ),
    "without bucket": (
        "needs bucket=, has no field 'buckt'; did you mean 'bucket'",
        lambda js, s: js.create_key_value(buckt="b"),  # type: ignore[call-arg]
    ),
    "create_object_store": (
        "'max_byte'; did you mean 'max_bytes'",
        lambda js, s: js.create_object_store(bucket="b", max_byte=1),  # type: ignore[call-arg]
    ),
    "publish": ("'msgid' .*; did you mean 'msg_id'", lambda js, s: js.publish("s", b"", msgid="1")),  # type: ignore[call-arg]
    "nothing like it": ("'zzz'; it has extra, name, .*", lambda js, s: js.create_stream(name="A", zzz=1)),  # type: ignore[call-arg]
}


@pytest.mark.parametrize("name", MISSPELT)
async def test_misspelt_field(jetstream: JetStream, name: str) -> None:
    stream = await jetstream.create_stream(name="S", subjects=["s"])
    said, call = MISSPELT[name]
    with pytest.raises(TypeError, match=said):
        await use(call(jetstream, stream))
