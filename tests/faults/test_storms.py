"""A thousand tasks cancelled at random moments, calm and with the connection cut under them: afterwards everything
works, nobody got another's reply, no cancellation was swallowed, nothing is left.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

import natsproto
from natsproto._client import Client
from natsproto._core.events import Disconnected
from natsproto.errors import ConnectionLost, NatsError
from natsproto.testing import Direction, End, FaultProxy, run_server
from tests.faults.helpers import EventRecorder, nothing_left, only_these_are_left, resident

TASKS = 1000
GROWTH = 10 * 1024 * 1024


class Crossed(AssertionError):
    """Somebody got what was meant for somebody else."""


async def _storm_request(nc: Client, number: int) -> None:
    while True:
        answer = await nc.request("echo", b"%d" % number, timeout=5)
        if answer.data != b"%d" % number:
            raise Crossed(f"{number} got {answer.data!r}")


async def _storm_publish(nc: Client, number: int) -> None:
    while True:
        await nc.publish("storm.nobody", b"x" * (number % 3000))


async def _storm_flush(nc: Client, _: int) -> None:
    while True:
        await nc.flush()


async def _storm_next(nc: Client, number: int) -> None:
    async with nc.subscribe(f"storm.{number}") as mine:
        while True:
            await nc.publish(f"storm.{number}", b"%d" % number)
            message = await mine.next()
            if message.data != b"%d" % number:
                raise Crossed(f"{number} got {message.data!r}")


async def _storm_iterate(nc: Client, number: int) -> None:
    async with nc.subscribe(f"storm.{number}") as mine:
        await nc.publish(f"storm.{number}", b"%d" % number)
        async for message in mine:
            if message.data != b"%d" % number:
                raise Crossed(f"{number} got {message.data!r}")
            await nc.publish(f"storm.{number}", b"%d" % number)


VERBS: list[Callable[[Client, int], Awaitable[None]]] = [
    _storm_request,
    _storm_publish,
    _storm_flush,
    _storm_next,
    _storm_iterate,
]


class Victim:
    """One task of the storm: runs a verb over and over until it is cancelled, whatever the network does to it."""

    def __init__(self, nc: Client, number: int) -> None:
        self.cancelled = False
        self._task = asyncio.create_task(self._run(VERBS[number % len(VERBS)], nc, number))

    async def _run(self, verb: Callable[[Client, int], Awaitable[None]], nc: Client, number: int) -> None:
        try:
            while True:
                with suppress(NatsError):
                    await verb(nc, number)
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled = True
            raise

    async def cancel(self) -> None:
        """Cancel it; it must end by that, at once."""
        self._task.cancel()
        done, _ = await asyncio.wait((self._task,), timeout=20)
        assert done, "a cancellation was swallowed"
        assert self._task.cancelled(), self._task.exception()


async def _storm(nc: Client, chance: random.Random, disturb: Callable[[int], None], enough: Callable[[], bool]) -> None:
    """A thousand victims, a few dozen at a time, each cancelled at a random one of the next turns.

    More come until it was ``enough``: how many turns a reconnection takes is up to the machine.
    """
    waiting = list(range(TASKS))
    living: list[Victim] = []
    while waiting or living:
        if not (waiting or enough()):
            waiting = list(range(TASKS))
        while waiting and len(living) < 40:
            living.append(Victim(nc, waiting.pop()))
            disturb(len(waiting))
        for _ in range(chance.randrange(6)):
            await asyncio.sleep(0)
        if chance.random() < 0.05:
            await asyncio.sleep(0.01)
        chance.shuffle(living)
        count = 1 + chance.randrange(20)
        gone, living = living[:count], living[count:]
        await asyncio.gather(*(victim.cancel() for victim in gone))


async def _calm(nc: Client) -> None:
    """Until a flush comes back: the client may not have noticed the last cut yet."""
    async with asyncio.timeout(20):
        while True:
            with suppress(ConnectionLost):
                await nc.flush()
                return


@pytest.mark.slow
@pytest.mark.parametrize("cuts", [0, 25], ids=["calm", "with cuts"])
async def test_thousand_cancellations_keep_connection(cuts: int, seed: int) -> None:
    chance = random.Random(seed)
    async with (
        run_server() as server,
        FaultProxy(server.host, server.port) as proxy,
        natsproto.connect(server.url) as helper,
    ):
        helper.subscribe("echo", cb=lambda message: message.respond(message.data))
        await helper.flush()
        before = resident()
        async with nothing_left():
            recorder = EventRecorder(Disconnected)
            nc = await natsproto.connect(proxy.url, on_event=recorder, reconnect_delay=lambda _: 0.002)

            def disturb(left: int) -> None:
                if cuts and left % (TASKS // cuts) == 0:
                    direction = chance.choice(list(Direction))
                    at = proxy.link.passed[direction] + chance.randrange(1, 3000)
                    proxy.cut_at(direction, at, chance.choice(list(End)))

            await _storm(nc, chance, disturb, lambda: len(recorder.of(Disconnected)) >= cuts // 2)
            proxy.heal()
            await _calm(nc)
            for number in range(50):
                assert (await nc.request("echo", b"%d" % number, timeout=20)).data == b"%d" % number
            # The helper's one, and the request inbox of the client: whoever was cancelled took his with him.
            await only_these_are_left(server, connections=2, subscriptions=2)
            assert not nc._engine.registry.subscriptions
            await nc.close()
            await proxy.wait(lambda: not proxy.links)
        assert resident() - before <= GROWTH
        await only_these_are_left(server, connections=1, subscriptions=1)
