"""A worker that starts once starts again, wherever its names stand: in arguments, in ``config``, or in both.

Owns the products of the places where a name can be given, each started three times with nats-py and here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from itertools import product
from typing import Any

import pytest

from natsproto.testing import Server
from tests.compat.scenarios import with_both

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("silent_logs"),
    pytest.mark.differs("it compares both packages itself"),
    pytest.mark.filterwarnings("ignore"),  # nats-py leaves sockets and tasks behind
]

STARTS = 3
AT_ONCE = 8
IN_VAIN = "ServiceUnavailableError"
"""What fetching from a push consumer raises, instead of TimeoutError after the time."""

Places = dict[str, str]
"""Where names are given: ``durable``, or with a dot, ``.durable_name``, for a field of ``config``."""

PUSH = {
    "queue": ["", "q"],
    "durable": ["", "d"],
    ".durable_name": ["", "d"],
    ".name": ["", "d", "n"],
    ".deliver_group": ["", "q", "g"],
    ".deliver_subject": ["", "box"],
}
PULL = {
    "durable": ["", "d"],
    ".durable_name": ["", "d", "e"],
    ".name": ["", "d", "n"],
    ".deliver_group": ["", "q"],
    ".deliver_subject": ["", "box"],
}


def every(places: dict[str, list[str]]) -> Iterator[Places]:
    for values in product(*places.values()):
        yield {place: value for place, value in zip(places, values, strict=True) if value}


async def subscribed(package: Any, nc: Any, subject: str, places: Places, *, pulls: bool) -> Any:
    fields = {place[1:]: value for place, value in places.items() if place[0] == "."}
    if "deliver_subject" in fields:
        fields["deliver_subject"] += subject  # two streams do not deliver to one
    js = nc.jetstream()
    start = js.pull_subscribe if pulls else js.subscribe
    named = {place: value for place, value in places.items() if place[0] != "."}
    return await start(subject, config=package.js.api.ConsumerConfig(**fields) if fields else None, **named)


async def outcome_of(subscriptions: list[Any], *, pulls: bool) -> str:
    """Whether one of them gets the message that was published: "works" or the error of the last."""
    found = ""
    for subscription in reversed(subscriptions):
        try:
            if pulls:
                (message,) = await subscription.fetch(1, 0.5)
            else:
                message = await subscription.next_msg(0.5)
            await message.ack_sync(5)
        except Exception as exc:
            found = type(exc).__name__
        else:
            return "works"
    return found


async def starts(package: Any, server: Server, stream: str, places: Places, *, beside: bool, pulls: bool) -> list[str]:
    """How each start ends. Those before have ended, or with ``beside`` are still there."""
    ends = []
    async with AsyncExitStack() as stack, await package.connect(server.url) as admin:
        await admin.jetstream().add_stream(name=stream, subjects=[stream])
        running: list[Any] = []
        for _ in range(STARTS):
            async with AsyncExitStack() as own:
                nc = await (stack if beside else own).enter_async_context(await package.connect(server.url))
                try:
                    subscription = await subscribed(package, nc, stream, places, pulls=pulls)
                except Exception as exc:
                    ends.append(type(exc).__name__)
                    continue
                running = [*running, subscription] if beside else [subscription]
                await admin.jetstream().publish(stream, b"work", timeout=5)
                ends.append(await outcome_of(running, pulls=pulls))
    return ends


@pytest.mark.parametrize("beside", [False, True], ids=["after", "beside"])
@pytest.mark.parametrize("kind", ["push", "pull"])
async def test_worker_that_starts_once_starts_again(server: Server, kind: str, beside: bool) -> None:
    free = asyncio.Semaphore(AT_ONCE)
    pulls = kind == "pull"
    combinations = list(every(PULL if pulls else PUSH))

    async def ends(number: int, places: Places, package: Any) -> list[str]:
        async with free, asyncio.timeout(60):
            stream = f"{package.__name__[:5]}-{kind}-{number}-{beside}"
            return await starts(package, server, stream, places, beside=beside, pulls=pulls)

    found = await asyncio.gather(
        *(with_both(partial(ends, number, places)) for number, places in enumerate(combinations))
    )
    wrong = []
    for places, (theirs, ours) in zip(combinations, found, strict=True):
        as_theirs = [
            IN_VAIN if pulls and ".deliver_subject" in places and end == "TimeoutError" else end for end in theirs
        ]
        worse = any(our not in ("works", their) for our, their in zip(ours, as_theirs, strict=True))
        if worse or (not beside and len({*ours}) > 1):
            wrong.append(f"{places}: with nats-py {theirs}, here {ours}")
    assert not wrong, "\n".join(wrong)
    assert sum(ours == ["works"] * STARTS for _, ours in found) > len(found) // 8  # they are not all refused
