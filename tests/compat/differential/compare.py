"""Runs a sequence with both packages, twice each, and lists what differs.

The second run finds what the first one left: consumers, streams, buckets. Owns the comparison; ``rows`` says which
differences are allowed.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from tests.compat.differential.run import Run, Step
from tests.compat.differential.world import USERS, World, proxied

THEIRS, OURS = "nats", "natsproto.compat.nats"
SLOWER_S, FASTER_S = 1.0, 2.5
"""Seconds that a call may take longer than in nats-py, and less long: a wait that is missing."""

RUNS = 2


class Difference(NamedTuple):
    """What differs: ``step`` is None for what was compared at the end of a run."""

    run: int
    what: str
    step: Step | None
    theirs: Any
    ours: Any
    earlier: tuple[Step, ...] = ()
    """The steps before it in the sequence."""

    def __str__(self) -> str:
        return f"run {self.run}, {self.what}:\n    nats-py: {self.theirs!r}\n    here:    {self.ours!r}"


class Report(NamedTuple):
    """What is known of one run after it."""

    outcomes: list[Any]
    logs: dict[str, list[Any]]
    at_end: dict[str, Any]


async def run_once(world: World, package: str, account: str, steps: list[Step]) -> Report:
    """Perform the steps with one package."""
    async with proxied(world) as proxy:
        run = Run(importlib.import_module(package), world.server, proxy, USERS[account])
        if package == THEIRS:
            importlib.import_module("nats.micro")
        else:
            importlib.import_module("natsproto.compat.nats.micro")
        try:
            await run.perform(steps)
            at_end: dict[str, Any] = {
                "connz": await world.connections(account),
                "subsz": await world.subscriptions(account),
                "streams": await world.streams(USERS[account]),
            }
        finally:
            await run.finish()
        at_end["streams after the end"] = await world.streams(USERS[account])
        await world.wait_disconnected(account)
    return Report(run.outcomes, run.logs, at_end)


async def differences(world: World, steps: list[Step]) -> list[Difference]:
    """Perform the steps RUNS times with each package on empty accounts, and compare."""
    await world.clean()
    found: list[Difference] = []
    for number in range(1, RUNS + 1):
        theirs = await run_once(world, THEIRS, "theirs", steps)
        ours = await run_once(world, OURS, "ours", steps)
        found += compare(number, theirs, ours)
    return found


def compare(number: int, theirs: Report, ours: Report) -> list[Difference]:
    """What differs between two runs of the same sequence."""
    found = []
    for place, (one, other) in enumerate(zip(theirs.outcomes, ours.outcomes, strict=True)):
        earlier = tuple(outcome.step for outcome in theirs.outcomes[:place])
        if one.result != other.result:
            found.append(Difference(number, f"step {place} {one.step}", one.step, one.result, other.result, earlier))
        elif not -FASTER_S < other.seconds - one.seconds < SLOWER_S:
            took = f"step {place} {one.step} took"
            found.append(Difference(number, took, one.step, f"{one.seconds:.2f} s", f"{other.seconds:.2f} s", earlier))
    steps = tuple(outcome.step for outcome in theirs.outcomes)
    names = sorted({*theirs.logs, *ours.logs})
    compared = {f"callbacks of {name}": (theirs.logs.get(name, []), ours.logs.get(name, [])) for name in names}
    compared |= {name: (theirs.at_end[name], ours.at_end[name]) for name in theirs.at_end}
    return found + [
        Difference(number, name, None, *both, steps) for name, both in compared.items() if both[0] != both[1]
    ]
