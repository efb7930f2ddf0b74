"""Every time, count and name that a public call takes: nonsense is refused by name, and nothing is sent for it.

The calls are found by their signatures: a new one is tested by being there.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from itertools import chain

from natsproto.errors import ConfigError, InvalidSubject
from tests.kit.public_calls import CONFIGURE, SAMPLES, things, use
from tests.misuse.wrong import Ground, Wrong

SECONDS: list[object] = ["1", [1], b"1", math.nan, math.inf, -1, -0.001, timedelta(seconds=-1), 10**400]
COUNTS: list[object] = ["1", [1], b"1", 1.5, 0.0, False, math.nan, -(2**70), 2**70]
NAMES: list[object] = [
    5,
    b"a",
    ["a"],
    "a b",
    "a\tb",
    "a\r\nPUB stolen 0\r\n\r\n",
    "a\x00b",
    "\ud800",
    "a..b",
    "x" * 70_000,
]
NAMED = frozenset(("subject", "stream", "consumer", "bucket", "key", "replaced", "subjects_filter"))
NOTHING = frozenset(("min_pending", "min_ack_pending", "priority"))
"""Counts for which 0.0 and False are 0: not given."""
LOCAL = frozenset(("pending_msgs_limit", "pending_bytes_limit", "concurrency", "offset", "length"))
"""Counts that no server gets to see, which may be of any size."""
CALLED = {
    "revision": ("seq", "expected_last_subject_seq"),
    "up_to_revision": ("up_to_seq",),
    "resume_from": ("start_seq",),
    "stream": ("subject",),
    "key": ("subject",),
}
"""Other names of an argument, which its error may have: a revision is a sequence, and a name is a part of a subject."""
OTHERWISE = {
    "Client.health": "tells what is wrong instead of raising it",
    "JetStream.restore_stream": "reads the folder first",
    "OrderedConsumer.info": "has no consumer yet",
    "Lock.put": "is not held",
}
READS_FIRST = ("Stream.update",)  # what is stored, which the arguments change


def values(parameter: inspect.Parameter) -> list[object]:
    """What it may not be."""
    annotation = str(parameter.annotation)
    if "Iterable" in annotation:
        return []
    if "Duration" in annotation or "timedelta" in annotation:
        return SECONDS
    if annotation in ("int", "int | None"):
        if parameter.name == "n":
            return []  # a counter is of any size
        name = parameter.name
        return [value for value in COUNTS if (value or name not in NOTHING) and (value != 2**70 or name not in LOCAL)]
    return NAMES if parameter.name in NAMED and annotation in ("str", "str | None") else []


def wrong_calls(thing: object) -> Iterator[tuple[str, str, Callable[[], object]]]:
    """Its public calls, each with one argument that is wrong."""
    for name, function in inspect.getmembers(type(thing), inspect.isfunction):
        called = f"{type(thing).__name__}.{name}"
        if name.startswith("_") or called in OTHERWISE:
            continue
        parameters = list(inspect.signature(function).parameters.values())[1:]
        if not any(map(values, parameters)):
            continue
        kind = name.removeprefix("create_or_update_").removeprefix("create_").removeprefix("update_")
        needed: dict[str, object] = CONFIGURE.get(kind, {}) if kind != name else {}
        needed = needed | {
            each.name: SAMPLES[each.name]
            for each in parameters
            if each.default is each.empty and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        }
        for wrong in parameters:
            for value in values(wrong):
                arguments = {**needed, wrong.name: value}
                yield f"{called}({wrong.name}={value!r:.40})", wrong.name, partial(getattr(thing, name), **arguments)


async def of_signatures(on: Ground) -> list[Wrong]:
    """Every public call of every object, with each wrong value of each argument."""
    found = []
    for name, argument, call in chain.from_iterable(map(wrong_calls, await things(on.nc))):

        async def made(call: Callable[[], object] = call) -> None:
            await use(call())

        words = "|".join((argument, *CALLED.get(argument, ())))
        errors = (ConfigError, InvalidSubject, TypeError)
        found.append(Wrong(name, made, errors, rf"\b(?:{words})\b", sends=name.startswith(READS_FIRST)))
    assert len(found) > 1000
    return found
