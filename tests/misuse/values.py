"""Calls of JetStream, each with values of the wrong kind: refused by name, before a byte is written."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from natsproto.errors import ConfigError
from tests.kit.public_calls import use
from tests.misuse.wrong import Ground, Wrong

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
NO_LIMIT = ("max_pending", "max_messages", "attempts")
"""Calls in which 2**70 is as good as no limit."""


async def of_values(on: Ground) -> list[Wrong]:
    """The calls with their values."""
    js = on.nc.jetstream()
    stream = await js.create_stream(name="S", subjects=["s"], storage="memory", allow_direct=True)

    async def made(call: Call, value: object) -> None:
        await use(call(js, stream, value))

    return [
        Wrong(f"{name}: {value!r:.40}", partial(made, call, value), (ConfigError, TypeError))
        for name, (values, call) in CALLS.items()
        for value in values
        if not (value == 2**70 and name.endswith(NO_LIMIT))
    ]
