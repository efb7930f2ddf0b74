"""Every public call of every object of a client, in another thread's event loop and in a forked process: it is refused,
and nothing of the client changes.

The calls are found by their signatures: a new one is tested by being there.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import natsproto
from natsproto import Client
from natsproto.errors import LocalProtocolError
from natsproto.jetstream import groups
from natsproto.outbox import Journal
from natsproto.service import Request
from natsproto.testing import Server, run_server
from tests.kit.public_calls import CONFIGURE, SAMPLES, things
from tests.kit.waiting import until

ANYWHERE = frozenset({
    *("add_listener", "new_inbox", "jetstream", "system", "typed", "message", "ordered_consumer", "health"),
    *("json", "keep_alive", "info", "stats", "reset", "group", "endpoint", "atomic", "atomic_batch"),
})  # fmt: skip
"""They only make an object or return what is known."""
FIRST = {
    "restore_stream": "reads a folder first",
    "put_file": "reads a file first",
    "set_servers": "checks its argument first",
    "info of OrderedConsumer": "has no consumer yet",
    "respond of JsMessage": "never responds",
    "put of Lock": "is not held",
    "ready of KeyWatcher": "is ready",
    "ready of ObjectWatcher": "is ready",
    "of Admin": "needs the system account",
    "server of System": "checks its argument first",
    "__aenter__ of Client": "is open",
    "__aenter__ of Journal": "is open",
    "__aenter__ of Service": "runs already",
    "__aenter__ of Subscription": "runs already",
    "__aenter__ of KeyWatcher": "runs already",
    "__aenter__ of ObjectWatcher": "runs already",
    "__aenter__ of AtomicBatch": "sends nothing",
    "__aenter__ of KeyValueBatch": "sends nothing",
    "__aenter__ of JoinedMember": "runs already",
    "__aenter__ of OrderedConsumer": "sends nothing",
    "__aiter__ of OrderedConsumer": "is a mistake",
    "__aiter__ of PullConsumer": "is a mistake",
}
"""Calls that do or find something else before they could change anything."""


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with run_server(jetstream=True) as running:
        yield running


async def running_things(nc: Client, stack: AsyncExitStack, handled: set[str]) -> list[object]:
    """Objects that run: readers, publishers, a member of a group, a service."""
    js = nc.jetstream()
    stream, bucket, store = await js.stream("S"), await js.key_value("B"), await js.object_store("B")

    async def handle(name: str, message: Any) -> None:
        handled.add(name)

    async def consumer(name: str) -> Any:
        return await stream.create_consumer(durable_name=name, deliver_policy="new")

    entered: list[Any] = [
        (await consumer("c1")).consume(partial(handle, "consume")),
        (await consumer("c2")).consume_batches(partial(handle, "batches"), max_wait=0.01),
        (await consumer("c3")).messages(),
        stream.ordered_consumer().messages(),
        *(bucket.watch(), bucket.watch(cb=partial(handle, "watch")), store.watch()),
        *(js.publisher(), js.fast_publisher(), js.atomic_batch(), bucket.atomic()),
        groups.join(stream, "g", partial(handle, "member")),
    ]
    for one in entered:
        await stack.enter_async_context(one)
    service = await nc.add_service("x", "1.0.0")

    async def answer(request: Request) -> None:
        await request.respond(b"1")

    endpoint = service.add_endpoint("e", answer)
    made = [
        await nc.subscribe("cb", cb=partial(handle, "callback")),
        service,
        endpoint,
        service.group("g"),
        nc.stream("e"),
    ]
    return [*entered, *made, nc.system(), js.admin]


def calls(thing: object) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Its public calls, ``async with`` and ``async for``."""
    for name, function in inspect.getmembers(type(thing), inspect.isfunction):
        is_exit = name == "__aexit__"
        if name.startswith("_") and name not in ("__aenter__", "__aiter__") and not is_exit:
            continue
        kind = name.removeprefix("create_or_update_").removeprefix("create_").removeprefix("update_")
        needed: dict[str, object] = dict(CONFIGURE.get(kind, {})) if kind != name else {}
        for each in [] if is_exit else list(inspect.signature(function).parameters.values())[1:]:
            if each.default is each.empty and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
                needed.setdefault(each.name, SAMPLES.get(each.name, print))
        arguments = (ValueError, ValueError("x"), None) if is_exit else ()
        yield f"{name} of {type(thing).__name__}", partial(getattr(thing, name), *arguments, **needed)


async def begin_call(call: Callable[[], Any]) -> None:
    made = call()
    async with asyncio.timeout(2):
        if hasattr(made, "__aenter__"):
            await made.__aenter__()
        elif hasattr(made, "__aiter__"):
            async for _ in made:
                break
        elif inspect.isawaitable(made):
            await made


def wrong_ends(found: list[tuple[str, Callable[[], Any]]]) -> list[str]:
    """Make the calls in an event loop of this thread; return those that are not refused."""
    wrong = []
    for name, call in found:
        verb, _, thing = name.partition(" of ")
        if verb in ANYWHERE or name in FIRST or verb in FIRST or f"of {thing}" in FIRST:
            continue
        try:
            asyncio.run(begin_call(call))
            end = "accepted"
        except LocalProtocolError as exc:
            is_of_callback = thing == "Subscription" and "it has a callback" in str(exc)
            end = "" if "outside its event loop" in str(exc) or is_of_callback else repr(exc)
        except Exception as exc:
            end = repr(exc)
        if end:
            wrong.append(f"{name}: {end}")
    return wrong


async def in_a_thread(nc: Client, found: list[tuple[str, Callable[[], Any]]]) -> list[str]:
    """The client's loop stands still meanwhile: a message that it is about to send would let others pass."""
    await until(lambda: not nc._outbox._corked)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(wrong_ends, found).result()


async def in_a_fork(nc: Client, found: list[tuple[str, Callable[[], Any]]]) -> list[str]:
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            asyncio.events._set_running_loop(None)
            ended = wrong_ends(found)
        except BaseException as exc:
            ended = [repr(exc)]
        os.write(write, json.dumps(ended).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = await asyncio.to_thread(pipe.read)
    result: list[str] = json.loads(text)
    return result


@pytest.mark.parametrize("where", [in_a_thread, in_a_fork])
async def test_every_call_from_elsewhere_is_refused(server: Server, where: Any, tmp_path: Path) -> None:
    handled: set[str] = set()
    async with natsproto.connect(server.url) as nc, AsyncExitStack() as stack:
        js = nc.jetstream()
        found = await things(nc)
        await js.create_stream(name="F", subjects=["f"], allow_batched=True)
        found += await running_things(nc, stack, handled)
        found.append(await stack.enter_async_context(Journal(tmp_path / "edge.db")))
        every = [each for thing in found for each in calls(thing)]
        assert len(every) > 250
        wrong = await where(nc, every)
        assert not wrong, "\n".join(wrong)
        assert nc.state is natsproto.State.OPEN
        await js.publish("s.a", b"1")
        await (await js.key_value("B")).put("k", b"1")
        await nc.publish("cb")
        assert (await nc.request("e", timeout=5)).data == b"1"
        await until(lambda: handled == {"consume", "batches", "watch", "member", "callback"})
