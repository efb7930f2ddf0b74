"""Every time, count and name that a public call takes: nonsense is refused by name, and nothing is sent for it.

The calls are found by their signatures: a new one is tested by being there.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import re
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from natsproto import Client
from natsproto.errors import ConfigError, InvalidSubject

NEVER = datetime(2100, 1, 1, tzinfo=UTC)
SECONDS: list[object] = ["1", [1], b"1", math.nan, math.inf, -1, -0.001, timedelta(seconds=-1), 10**400]
COUNTS: list[object] = ["1", [1], b"1", 1.5, 0.0, False, math.nan, -(2**70), 2**70]
NAMES: list[object] = [
    5,
    b"a",
    ["a"],
    "a b",
    "a\tb",
    "a\r\nPUB stolen 0\r\n\r\n",
    "a\x00b",
    "\ud800",
    "a..b",
    "x" * 70_000,
]
NAMED = frozenset(("subject", "stream", "consumer", "bucket", "key", "replaced", "subjects_filter"))
NOTHING = frozenset(("min_pending", "min_ack_pending", "priority"))
"""Counts for which 0.0 and False are 0: not given."""
LOCAL = frozenset(("pending_msgs_limit", "pending_bytes_limit", "concurrency", "offset", "length"))
"""Counts that no server gets to see, which may be of any size."""
CALLED = {
    "revision": ("seq", "expected_last_subject_seq"),
    "up_to_revision": ("up_to_seq",),
    "resume_from": ("start_seq",),
    "stream": ("subject",),
    "key": ("subject",),
}
"""Other names of an argument, which its error may have: a revision is a sequence, and a name is a part of a subject."""
SAMPLES: dict[str, object] = {
    "subject": "s.a", "stream": "S", "name": "S", "consumer": "c", "bucket": "B", "key": "k", "value": b"v",
    "revision": 1, "path": "nowhere",
    "seq": 1, "server": "n", "peer": "p", "account": "A", "quorum": 1, "group": "g", "priority_group": "g",
    "replaced": "s.b", "version": "1.0.0", "keys": ["k"], "subjects": ["s.a"], "source": b"x", "until": NEVER,
    "target": "o", "store": "B", "handler": print, "function": print, "callback": print, "fn": print,
}  # fmt: skip
CONFIGURE: dict[str, dict[str, object]] = {
    "stream": {"name": "S"}, "consumer": {"durable_name": "c"}, "key_value": {"bucket": "B"},
    "object_store": {"bucket": "B"},
}  # fmt: skip
OTHERWISE = {
    "Client.health": "tells what is wrong instead of raising it",
    "JetStream.restore_stream": "reads the folder first",
    "OrderedConsumer.info": "has no consumer yet",
    "Lock.put": "is not held",
}
READS_FIRST = ("Stream.update",)  # what is stored, which the arguments change


def values(parameter: inspect.Parameter) -> list[object]:
    """What it may not be."""
    annotation = str(parameter.annotation)
    if "Iterable" in annotation:
        return []
    if "Duration" in annotation or "timedelta" in annotation:
        return SECONDS
    if annotation in ("int", "int | None"):
        if parameter.name == "n":
            return []  # a counter is of any size
        name = parameter.name
        return [value for value in COUNTS if (value or name not in NOTHING) and (value != 2**70 or name not in LOCAL)]
    return NAMES if parameter.name in NAMED and annotation in ("str", "str | None") else []


def wrong_calls(thing: object) -> Iterator[tuple[str, str, Callable[[], object]]]:
    """Its public calls, each with one argument that is wrong."""
    for name, function in inspect.getmembers(type(thing), inspect.isfunction):
        called = f"{type(thing).__name__}.{name}"
        if name.startswith("_") or called in OTHERWISE:
            continue
        parameters = list(inspect.signature(function).parameters.values())[1:]
        if not any(map(values, parameters)):
            continue
        kind = name.removeprefix("create_or_update_").removeprefix("create_").removeprefix("update_")
        needed: dict[str, object] = CONFIGURE.get(kind, {}) if kind != name else {}
        needed = needed | {
            each.name: SAMPLES[each.name]
            for each in parameters
            if each.default is each.empty and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        }
        for wrong in parameters:
            for value in values(wrong):
                arguments = {**needed, wrong.name: value}
                yield f"{called}({wrong.name}={value!r:.40})", wrong.name, partial(getattr(thing, name), **arguments)


async def use(thing: Any) -> None:
    """Reads it, enters it, awaits it or decorates with it: whichever it is for."""
    if hasattr(thing, "__aenter__"):
        async with thing:
            pass
    elif hasattr(thing, "__aiter__"):
        async for _ in thing:
            break
    elif isinstance(thing, Awaitable):
        await thing
    elif inspect.isfunction(thing):
        thing(print)


async def things(nc: Client) -> list[object]:
    js = nc.jetstream()
    stream = await js.create_stream(name="S", subjects=["s.>"], storage="memory", allow_direct=True)
    await js.publish("s.a", b"1")
    bucket = await js.create_key_value(bucket="B", limit_marker_ttl=60, allow_atomic=True)
    consumer = await stream.create_consumer(durable_name="c")
    read = [await nc.subscribe("silent"), stream.ordered_consumer(), await consumer.next(timeout=30)]
    stores = [bucket, bucket.lock("l"), await js.create_object_store(bucket="B")]
    return [nc, js, stream, consumer, *read, *stores, await nc.add_service("calc", "1.0.0")]


async def refusal(call: Callable[[], object]) -> str:
    """What is said against the argument; with other errors, or none, something else."""
    try:
        async with asyncio.timeout(30):
            await use(call())
    except (ConfigError, InvalidSubject, TypeError) as error:
        return str(error)
    except Exception as error:
        return f"raised {type(error).__name__}"
    return "accepted"


async def test_any_wrong_argument_is_refused(
    nats_client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kinds = await things(nats_client)
    await nats_client.flush()
    passed, tried = list[str](), 0
    for name, argument, call in chain.from_iterable(map(wrong_calls, kinds)):
        sent = nats_client.stats.out_msgs
        said = await refusal(call)
        named = any(re.search(rf"\b{word}\b", said) for word in (argument, *CALLED.get(argument, ())))
        if not named or (nats_client.stats.out_msgs != sent and not name.startswith(READS_FIRST)):
            passed.append(f"{name}: {said}, {nats_client.stats.out_msgs - sent} sent")
        tried += 1
    assert not passed, "\n".join(passed)
    assert tried > 1000
