"""Runs the lines of ``lines`` and ``right`` as programs. Owns the names that these may use."""

from __future__ import annotations

import ast
import asyncio
import builtins
import inspect
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing
from functools import partial
from typing import Any

import natsproto
from natsproto import errors, jetstream, sync
from natsproto.middleware import with_middleware
from natsproto.otel import tracing
from natsproto.retry import Retry, RetryPolicy
from tests.misuse.lines import TABLES
from tests.misuse.wrong import Ground, Wrong


def generator(message: object, *more: object) -> Generator[object]:
    yield message


async def async_generator(message: object, *more: object) -> AsyncGenerator[object]:
    yield message


async def handle(message: object) -> None:
    await asyncio.sleep(0)


class Generating:
    """An object that is a generator function, and has one."""

    def __call__(self, message: object, *more: object) -> Generator[object]:
        yield message

    def method(self, message: object, *more: object) -> Generator[object]:
        yield message


async def line_names(on: Ground) -> dict[str, Any]:
    """What the lines may use."""
    nc, js, blocking_js = on.nc, on.nc.jetstream(), on.blocking.jetstream()
    await nc.subscribe("echo", cb=lambda message: message.respond(message.data))
    await nc.subscribe("silent")
    stream = await js.create_stream("S", subjects=["s.>"], storage="memory")
    await js.create_stream("D")
    for number in range(4):
        await js.publish("s.a", b"%d" % number)
    kv = await js.create_key_value("b", storage="memory")
    await kv.put("k", b"1")
    store = await js.create_object_store("o", storage="memory")
    await store.put("f", b"1")
    consumer, sub = await stream.create_consumer("c"), await nc.subscribe("a")
    await nc.publish("a", b"1")
    return {
        "natsproto": natsproto,
        "jetstream": jetstream,
        "sync": sync,
        "Retry": Retry,
        "RetryPolicy": RetryPolicy,
        "with_middleware": with_middleware,
        "tracing": tracing,
        "generator": generator,
        "async_generator": async_generator,
        "partial_generator": partial(generator),
        "an_object": Generating(),
        "handle": handle,
        "to_thread": asyncio.to_thread,
        "aclosing": aclosing,
        "nc": nc,
        "js": js,
        "stream": stream,
        "consumer": consumer,
        "kv": kv,
        "store": store,
        "sub": sub,
        "message": await consumer.next(),
        "entry": await kv.get("k"),
        "plain": await sub.next(5),
        "service": await nc.add_service("s", "1.0.0"),
        "blocking_nc": on.blocking,
        "blocking_js": blocking_js,
        "blocking_stream": await asyncio.to_thread(blocking_js.stream, "S"),
        "blocking_kv": await asyncio.to_thread(blocking_js.key_value, "b"),
        "blocking_store": await asyncio.to_thread(blocking_js.object_store, "o"),
    }


async def run_line(program: str, scope: dict[str, Any]) -> None:
    code = compile(program, "<guess>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    done = eval(code, dict(scope))
    if inspect.isawaitable(done):
        await done


def pattern(words: str) -> str:
    """The regular expression for the words of a line."""
    start, end = "^" * words.startswith("^"), "$" * words.endswith("$")
    return start + ".*".join(map(re.escape, words.removeprefix("^").removesuffix("$").split(" .. "))) + end


def entries_of(table: str) -> list[tuple[str, str, str, str]]:
    """The programs of a table, each with its guess, its error and the words."""
    found = []
    for line in table.strip().splitlines():
        template, *guesses, said = line.split(" | ")
        kind, _, words = said.partition(": ")
        found += [
            (template.replace("{}", guess) if guess else template, guess, kind, words)
            for guess in " ".join(guesses).split() or [""]
        ]
    return found


def of_table(name: str) -> Callable[[Ground], Awaitable[list[Wrong]]]:
    """The entries of one table."""

    async def entries(on: Ground) -> list[Wrong]:
        scope = await line_names(on)
        return [
            Wrong(
                program,
                partial(run_line, program, scope),
                (getattr(errors, kind, None) or getattr(builtins, kind),),
                pattern(words),
                guess,
                sends=name == "answered",
            )
            for program, guess, kind, words in entries_of(TABLES[name])
        ]

    return entries
