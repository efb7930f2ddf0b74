"""Where tests against a real server run: on both event loops, and nothing may be left behind.

Owns the loop of a test and what is checked when it is over.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar, Unpack, cast

import pytest
import uvloop

from natsproto import sync
from natsproto._client import Client, connect
from natsproto._options.options import OptionArgs
from tests.faults.helpers import descriptors

P = ParamSpec("P")
Answer = TypeVar("Answer")
Run = Callable[[Coroutine[object, object, None]], None]

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.SelectorEventLoop,
    "uvloop": uvloop.new_event_loop,
}


def both_loops(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Makes an async test two plain ones, on asyncio's loop and on uvloop, both in every run.

    For one representative file a verb; ``also_uvloop`` is for the others. Fixtures come by name (async ones would
    live on another loop). When the test is over no task may live, no descriptor be open that was not before, and
    nothing may have been reported to the loop's exception handler.
    """

    return _on(test, *LOOPS)


def also_uvloop(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """As ``both_loops``, on uvloop in the long run only."""
    return _on(test, "asyncio", pytest.param("uvloop", marks=pytest.mark.variant))


def _on(test: Callable[P, Awaitable[None]], *loops: object) -> Callable[P, None]:
    @functools.wraps(test)
    def run(loop_name: str, *args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
            runner.run(asyncio.sleep(0))  # the first loop of uvloop opens a pipe for good
        before = descriptors()
        with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
            runner.run(_checked(lambda: test(*args, **kwargs)))
        gc.collect()
        assert descriptors() <= before, "descriptors left open"

    parameters = inspect.signature(test).parameters.values()
    name = inspect.Parameter("loop_name", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = inspect.Signature([*parameters, name])  # type: ignore[attr-defined]
    return cast("Callable[P, None]", pytest.mark.parametrize("loop_name", loops)(run))


async def _checked(test: Callable[[], Awaitable[None]]) -> None:
    complaints: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    await test()
    await asyncio.sleep(0)
    gc.collect()
    for _ in range(20):  # cancelled tasks and closed sockets end in the turns that follow
        if len(asyncio.all_tasks()) == 1:
            break
        await asyncio.sleep(0)
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert left == [], f"tasks left behind: {left}"
    assert complaints == [], f"the loop was told of: {complaints}"


def loops() -> list[str]:
    """The names of the threads in which blocking clients run."""
    return [thread.name for thread in threading.enumerate() if thread.name == "natsproto sync"]


@asynccontextmanager
async def client(url: str, **options: Unpack[OptionArgs]) -> AsyncIterator[Client]:
    """A connected client, closed at the end in any case."""
    nc = await connect(url, **options)
    try:
        yield nc
    finally:
        await nc.close()


async def answered(ask: Callable[[], AsyncIterator[Answer]], count: int = 1) -> list[Answer]:
    """All answers. Asks again while there are too few: on a machine that stalls some come after the wait for them."""
    while len(found := [answer async for answer in ask()]) < count:
        pass
    return found


def filled_stream(nc: sync.Client, count: int) -> sync.Stream:
    """Create a stream with the messages 0, 1 ... of the subject ``s``, through the blocking client."""
    js = nc.jetstream()
    stream = js.create_stream(name="S", subjects=["s"], storage="memory")
    for number in range(count):
        js.publish("s", b"%d" % number)
    return stream
