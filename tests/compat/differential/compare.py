"""Runs a sequence with both packages, twice each, and lists what differs.

The second run finds what the first one left: consumers, streams, buckets. Owns the comparison; ``rows`` says which
differences are allowed.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from natsproto.testing import FaultProxy
from tests.compat.differential.run import Called, Run, Step
from tests.compat.differential.world import USERS, TwoAccounts
from tests.compat.scenarios import with_both

SLOWER_S, FASTER_S = 1.5, 2.5
"""Seconds that a call may take longer than in nats-py, and less long: a wait that is missing."""

LATER_STEPS = 1
"""Steps that a callback may come earlier or later than in nats-py: between two steps is a moment."""

RUNS = 2


class Difference(NamedTuple):
    """What differs: ``step`` is None for what was compared at the end of a run."""

    run: int
    what: str
    step: Step | None
    theirs: Any
    ours: Any
    earlier: tuple[Step, ...] = ()
    """The steps before it in the sequence, and in the runs before."""

    def __str__(self) -> str:
        where, theirs, ours = narrowed(self.theirs, self.ours)
        return f"run {self.run}, {self.what}{where}:\n    nats-py: {theirs!r}\n    here:    {ours!r}"


def narrowed(theirs: Any, ours: Any, where: str = "") -> tuple[str, Any, Any]:
    """The only part that differs and its place, or both as they are."""
    if isinstance(theirs, dict) and isinstance(ours, dict) and theirs.keys() == ours.keys():
        parts = {str(name): (theirs[name], ours[name]) for name in theirs if theirs[name] != ours[name]}
    elif type(theirs) is type(ours) and isinstance(theirs, (list, tuple)) and len(theirs) == len(ours):
        parts = {str(place): both for place, both in enumerate(zip(theirs, ours, strict=True)) if both[0] != both[1]}
    else:
        parts = {}
    if len(parts) != 1:
        return where, theirs, ours
    ((name, both),) = parts.items()
    return narrowed(*both, f"{where}[{name}]")


class Report(NamedTuple):
    """What is known of one run after it."""

    outcomes: list[Any]
    logs: dict[str, list[Called]]
    at_end: dict[str, Any]


async def run_once(world: TwoAccounts, steps: list[Step], package: Any) -> Report:
    """Perform the steps with one package, in its account."""
    account = package.__name__
    async with FaultProxy(world.server.host, world.server.port) as proxy:
        run = Run(package, world, proxy, USERS[account])
        try:
            await run.perform(steps)
            await world.wait_connected(account, run.open_clients)
            at_end: dict[str, Any] = {
                "connz": await world.connections(account),
                "subsz": await world.subscriptions(account),
                "streams": await world.streams(USERS[account]),
            }
            await run.unsubscribe_all()
            at_end["inboxes without a subscription"] = await world.count_inboxes(account)
        finally:
            await run.finish()
        at_end["streams after the end"] = await world.streams(USERS[account])
        await world.delete_ephemeral(USERS[account])
        await world.wait_connected(account, 0)
        at_end["connz after the end"] = await world.connections(account)
    return Report(run.outcomes, run.logs, at_end)


async def differences(world: TwoAccounts, steps: list[Step]) -> list[Difference]:
    """Perform the steps RUNS times with each package on empty accounts, and compare."""
    await world.clean()
    found: list[Difference] = []
    for number in range(1, RUNS + 1):
        found += compare(number, *await with_both(partial(run_once, world, steps)))
    return found


def far_apart(log: list[Called], other: list[Called]) -> list[Called]:
    """The calls that came at other steps than the same ones in the other log."""
    steps: dict[str, list[int]] = {}
    for call in other:
        steps.setdefault(repr(call.value), []).append(call.step)
    found = []
    for call in log:
        there = steps.get(repr(call.value))
        if there and abs(there.pop(0) - call.step) > LATER_STEPS:
            found.append(call)
    return found


def compare(number: int, theirs: Report, ours: Report) -> list[Difference]:
    """What differs between two runs of the same sequence."""
    found = []
    steps = tuple(outcome.step for outcome in theirs.outcomes)
    for place, (one, other) in enumerate(zip(theirs.outcomes, ours.outcomes, strict=True)):
        earlier = (*steps * (number - 1), *steps[:place])
        if one.result != other.result:
            found.append(Difference(number, f"step {place} {one.step}", one.step, one.result, other.result, earlier))
        elif not -FASTER_S < other.seconds - one.seconds < SLOWER_S:
            took = f"step {place} {one.step} took"
            found.append(Difference(number, took, one.step, f"{one.seconds:.2f} s", f"{other.seconds:.2f} s", earlier))
    compared = {name: (theirs.at_end[name], ours.at_end[name]) for name in theirs.at_end}
    for name in sorted({*theirs.logs, *ours.logs}):
        one, other = theirs.logs.get(name, []), ours.logs.get(name, [])
        compared[f"callbacks of {name}"] = [call.value for call in one], [call.value for call in other]
        compared[f"times of the callbacks of {name}"] = far_apart(one, other), far_apart(other, one)
    return found + [
        Difference(number, name, None, *both, steps) for name, both in compared.items() if both[0] != both[1]
    ]
