"""One client in a process of its own: set up once, then a repetition for each seed read from standard input.

Says ``ready`` when set up, then a line of JSON with the figures of each repetition.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable

from benchmarks.drivers import DRIVERS, Client, Run
from benchmarks.scenarios import SCENARIOS


def load(name: str, *, compat: bool = False) -> Client:
    """Only the client that is measured is imported; with ``compat`` natsproto stands in for nats-py."""
    if name == "natsproto" and compat:
        from natsproto.compat import install

        install()
    elif name.startswith("natsproto"):
        from benchmarks.client_natsproto import Natsproto

        return Natsproto()
    elif name == "natsio":
        from benchmarks.client_natsio import Natsio

        return Natsio()
    from benchmarks.client_natspy import NatsPy

    return NatsPy()


def _loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop]:
    if name == "uvloop":
        import uvloop

        return uvloop.new_event_loop
    return asyncio.new_event_loop


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def _serve(run: Run) -> None:
    driver = DRIVERS[run.scenario.does](run)
    await anext(driver)
    _say("ready")
    while line := await asyncio.to_thread(sys.stdin.readline):
        _say(json.dumps(await driver.asend(int(line))))


def main(client: str, loop: str, scenario: str, url: str, prefix: str, count: str) -> None:
    """Until standard input ends."""
    chosen = next(one for one in SCENARIOS if one.name == scenario)
    with asyncio.Runner(loop_factory=_loop_factory(loop)) as runner:
        runner.run(_serve(Run(load(client, compat=chosen.compat), chosen, url, prefix, int(count))))


if __name__ == "__main__":
    main(*sys.argv[1:])
