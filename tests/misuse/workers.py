"""Bad handlers, executors, threads and windows are refused by name before anything is sent, wherever they are passed.

The places are compared with the public API, so that a new one is not forgotten.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from natsproto import Message, middleware, otel, sync
from natsproto.errors import ConfigError
from natsproto.jetstream import OrderedConsumer, groups
from natsproto.jetstream.groups import ElasticGroup
from tests.misuse.programs import generator
from tests.misuse.wrong import Ground, Wrong
from tests.tools.public_api import SNAPSHOT

Place = Callable[..., object]
"""Passes the arguments ``handler``, ``executor``, ... on to the public call."""

OTHER = {
    **dict.fromkeys(("Endpoint.stats", "sync.Endpoint.stats"), "the handler gets an endpoint"),
    **dict.fromkeys(("spark.map_async", "spark.run_partition", "spark.arrow_partition"), "they get rows of Spark"),
    "Retry.handle": "it calls the handler at once, with the message at hand",
}
"""Calls with arguments of these names that are something else."""


async def asynchronous(message: Message) -> None: ...


def returns_nothing(message: Message) -> None: ...


WRONG: dict[str, list[tuple[dict[str, Any], type[Exception]]]] = {
    "handler": [({"handler": one}, TypeError) for one in (lambda: None, lambda a, b, c: None, generator, 1)],
    "executor": [({"handler": asynchronous, "executor": True}, ConfigError), ({"executor": 8}, ConfigError)],
    "threads": [({"threads": count}, ConfigError) for count in (0, -1, True, 1.5)],
    "concurrency": [({"concurrency": count}, ConfigError) for count in (0, -1, True, 1.5)],
    "max_wait": [
        ({"max_wait": -1}, ConfigError),
        ({"max_wait": float("nan")}, ConfigError),
        ({"max_wait": 4}, ConfigError),
    ],
}
"""By argument: wrong arguments, which this argument is to blame for, and the error."""


NAMES = {**{name: {name} for name in WRONG}, "handler": {"handler", "cb", "function"}}
"""By argument: its names in the API."""


def places_of_api() -> dict[str, set[str]]:
    """Calls of the public API that take one of these arguments, by the name of the class and their own."""
    found: dict[str, set[str]] = {}
    module = kind = ""
    for line in SNAPSHOT.read_text().splitlines():
        if match := re.match(r"# (\S+)", line):
            module, kind = match[1].removeprefix("natsproto").removeprefix("."), ""
        elif match := re.match(r"class (\w+)", line):
            kind = match[1]
        elif match := re.match(r"(?: {4})?(?:async )?(\w+)\(", line):
            owner = kind if line.startswith(" ") else module
            given = set(re.findall(r"\b(\w+): (?!None)", line))
            arguments = {argument for argument, names in NAMES.items() if given & names}
            if arguments - {"concurrency"} and match[1] != "__init__":
                side = "sync." if module == "sync" else ""
                found[f"{side}{owner}.{match[1]}"] = arguments
    return found


async def make_places(nc: Any, blocking: sync.Client, stack: AsyncExitStack) -> dict[str, Place]:
    """The calls, with all that they need."""
    js = nc.jetstream()
    stream = await js.create_stream("S", subjects=["s.*"], allow_direct=True)
    consumer = await stream.create_consumer("c")
    push = await stream.create_push_consumer(durable_name="p", deliver_subject="to.p")
    ordered = await stack.enter_async_context(stream.ordered_consumer())
    assert isinstance(ordered, OrderedConsumer)
    messages = await stack.enter_async_context(consumer.messages())
    kv = await js.create_key_value("b")
    store = await js.create_object_store("o")
    group = await ElasticGroup.create(js, "S", "g", max_members=2, filters={"s.*": [1]})
    svc = await stack.enter_async_context(nc.add_service("svc", "1.0.0"))
    blocking_stream = await asyncio.to_thread(lambda: blocking.jetstream().stream("S"))
    pull = await asyncio.to_thread(blocking_stream.consumer, "c")
    read = await asyncio.to_thread(pull.messages().__enter__)
    served = await asyncio.to_thread(blocking.add_service("s", "1.0.0").__enter__)
    stack.push_async_callback(asyncio.to_thread, read.stop)

    return {
        "Connection.subscribe": lambda handler, **options: nc.subscribe("a", cb=handler, **options),
        "Typed.subscribe": lambda handler: nc.typed(int).subscribe("a", cb=handler),
        "Typed.handler": lambda handler: nc.typed(int).handler(handler),
        "Messages.batches": lambda handler, **options: messages.batches(**options),
        "PullConsumer.consume": consumer.consume,
        "PullConsumer.consume_batches": consumer.consume_batches,
        "PushConsumer.consume": push.consume,
        "OrderedConsumer.consume": ordered.consume,
        "KeyValue.watch": lambda handler: kv.watch(cb=handler),
        "ObjectStore.watch": lambda handler: store.watch(cb=handler),
        "TypedJetStream.handler": lambda handler: js.typed(int).handler(handler),
        "Group.consume": lambda handler, **options: group.consume("a", handler, **options),
        "ElasticGroup.join": group.join,
        "jetstream.groups.join": lambda handler: groups.join(stream, "g", handler),
        "middleware.in_threads": middleware.in_threads,
        "middleware.with_middleware": middleware.with_middleware,
        "otel.process": otel.process,
        "Telemetry.process": otel.Telemetry().process,
        "Group.add_endpoint": lambda handler, **options: svc.group("g").add_endpoint("e", handler, **options),
        "Group.endpoint": lambda handler, **options: svc.group("g").endpoint("e", **options)(handler),
        "sync.PullConsumer.consume": pull.consume,
        "sync.PullConsumer.consume_batches": pull.consume_batches,
        "sync.Stream.join_group": lambda handler, **options: blocking_stream.join_group("g", handler, **options),
        "sync.Messages.batches": lambda handler, **options: read.batches(**options),
        "sync.Group.add_endpoint": lambda handler, **options: served.add_endpoint("e", handler, **options),
    }


async def of_workers(on: Ground, stack: AsyncExitStack) -> list[Wrong]:
    """Every place with every wrong value of its arguments."""
    places, api = await make_places(on.nc, on.blocking, stack), places_of_api()
    assert set(places) == set(api) - set(OTHER)
    found = []
    for name, place in places.items():
        for argument in api[name]:
            for wrong, expected in WRONG[argument]:
                if name == "sync.Group.add_endpoint" and wrong.get("handler") is generator:
                    continue  # it answers in parts
                call = partial(place, **{"handler": returns_nothing, **wrong})

                async def made(call: Callable[[], object] = call, is_sync: bool = name.startswith("sync.")) -> object:
                    return await asyncio.to_thread(call) if is_sync else call()

                words = "|".join(NAMES[argument])
                found.append(Wrong(f"{name}({wrong})", made, (expected,), rf"\b(?:{words})\b"))
    return found
