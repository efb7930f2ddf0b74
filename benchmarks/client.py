"""One repetition of one scenario for one client, in this process; prints one line of JSON.

``python -m benchmarks.client --impl nats-py --loop uvloop --scenario pub_128 --url nats://127.0.0.1:4222``
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable

from benchmarks.implementation import Figures, Implementation, Run, peer_of, resident_mb
from benchmarks.scenarios import SCENARIOS, Scenario, scaled

__all__ = ["IMPLEMENTATIONS", "LOOPS", "load", "main"]

IMPLEMENTATIONS = ("natsproto", "nats-py")
LOOPS = ("uvloop", "asyncio")

_RUN_SECONDS = 120.0


def load(name: str) -> Implementation:
    """The named implementation. Only its client is imported, so that memory and start-up are its own."""
    if name == "natsproto":
        from benchmarks.impl_natsproto import NATSPROTO

        return NATSPROTO
    if name == "nats-py":
        from benchmarks.impl_natspy import NATS_PY

        return NATS_PY
    raise ValueError(f"{name!r} is none of {', '.join(IMPLEMENTATIONS)}")


def _loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop]:
    if name == "uvloop":
        import uvloop

        return uvloop.new_event_loop
    return asyncio.new_event_loop


async def _perform(implementation: Implementation, run: Run) -> Figures:
    function = implementation.function(run.scenario)
    if function is None:
        raise RuntimeError(f"{implementation.name} has no {run.scenario.does!r}")
    async with asyncio.timeout(_RUN_SECONDS):
        return await function(run)


def _measure(
    implementation: Implementation, scenario: Scenario, url: str, loop: str, count: int, server_pid: int | None
) -> Figures:
    with peer_of(scenario, url, count) as peer, asyncio.Runner(loop_factory=_loop_factory(loop)) as runner:
        run = Run(scenario=scenario, url=url, count=count, peer_or_none=peer, server_pid=server_pid)
        return runner.run(_perform(implementation, run)) | {"rss_mb": resident_mb(peak=True)}


def main(argv: list[str] | None = None) -> None:
    """Measure once and print the figures."""
    by_name = {scenario.name: scenario for scenario in SCENARIOS}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.client", description=__doc__)
    parser.add_argument("--impl", choices=IMPLEMENTATIONS, required=True)
    parser.add_argument("--loop", choices=LOOPS, default="asyncio")
    parser.add_argument("--scenario", choices=by_name, required=True, metavar="NAME")
    parser.add_argument("--url", required=True, help="of a running nats-server")
    parser.add_argument("--server-pid", type=int, help="of that nats-server, to tell its share of the work")
    parser.add_argument("--divisor", type=int, default=1, help="do this many times fewer operations")
    args = parser.parse_args(argv)
    scenario = by_name[args.scenario]
    count = scaled(scenario, args.divisor)
    figures = _measure(load(args.impl), scenario, args.url, args.loop, count, args.server_pid)
    line = {"impl": args.impl, "loop": args.loop, "scenario": scenario.name, "count": count, "figures": figures}
    sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
