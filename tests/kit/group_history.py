"""What members of a group wrote while others died, froze and were cut off, and what is wrong with it.

Owns the lines that the processes of ``group_member`` have written, and what was done to them. The checks are pure.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

LATE_S = 0.15
"""Seconds that a process may stand still without counting as frozen."""


@dataclass
class Handling:
    """One call of a handler; ``ended`` is the time of the kill for one that never ended."""

    who: str
    key: str
    number: int
    began: float
    ended: float = float("inf")
    done: bool = False


@dataclass
class GroupHistory:
    """What was done to which process, and what each of them wrote."""

    published: dict[tuple[str, int], float] = field(default_factory=dict)
    killed: dict[str, float] = field(default_factory=dict)
    frozen: list[tuple[str, float, float]] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)

    def read(self, path: Path) -> None:
        """Read what the processes have written so far."""
        text = path.read_text() if path.exists() else ""
        self.lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def count(self, kind: str) -> int:
        """How many lines of a kind there are."""
        return sum(line["kind"] == kind for line in self.lines)

    def handlings(self) -> list[Handling]:
        """The calls, in the order of their beginnings."""
        calls: list[Handling] = []
        running: dict[tuple[str, str, int], Handling] = {}
        for line in self.lines:
            if line["kind"] == "begin":
                call = Handling(line["who"], line["key"], line["number"], line["at"])
                call.ended = self.killed.get(call.who, call.ended)
                calls.append(call)
                running[call.who, call.key, call.number] = call
            elif line["kind"] == "end":
                call = running.pop((line["who"], line["key"], line["number"]))
                call.ended, call.done = line["at"], line["done"]
        return sorted(calls, key=lambda call: call.began)

    def stood_still(self) -> list[tuple[str, float, float]]:
        """The times in which a process was frozen, or got no turn from its machine."""
        late = [
            (line["who"], line["at"] - line["seconds"], line["at"]) for line in self.lines if line["kind"] == "late"
        ]
        return [*self.frozen, *late]

    def missing(self) -> list[str]:
        """What nobody has handled to its end."""
        done = {(call.key, call.number) for call in self.handlings() if call.done}
        return [f"{key} {number}" for key, number in self.published if (key, number) not in done]

    def faults(self) -> list[str]:
        """Everything that is wrong, in sentences."""
        lost = self.missing()
        faults = [f"{len(lost)} never handled, such as {lost[0]}"] if lost else []
        return faults + self._overlaps() + self._disorder()

    def _overlaps(self) -> list[str]:
        """Never two handlers of a key at a time, except of a process that stood still while its handler ran."""
        still = defaultdict(list)
        for who, since, until in self.stood_still():
            still[who].append((since, until))
        calls = defaultdict(list)
        for call in self.handlings():
            if not any(since < call.ended and call.began < until for since, until in still[call.who]):
                calls[call.key].append(call)
        faults = []
        for key, some in calls.items():
            last = some[0]
            for call in some[1:]:
                if call.began < last.ended:
                    faults.append(
                        f"{key}: {call.who} began {call.number} at {call.began:.3f}, while {last.who} handled "
                        f"{last.number} from {last.began:.3f} to {last.ended:.3f}"
                    )
                last = max(last, call, key=lambda one: one.ended)
        return faults

    def _disorder(self) -> list[str]:
        """The first handlings of a key are in its order."""
        first: dict[str, dict[int, float]] = defaultdict(dict)
        for call in self.handlings():
            first[call.key].setdefault(call.number, call.began)
        return [
            f"{key}: {after} began before {before}"
            for key, some in first.items()
            for before, after in pairwise(sorted(some))
            if some[after] < some[before]
        ]

    def moves(self) -> list[float]:
        """For each kill, the seconds until others have begun with what waited of the keys of the dead one."""
        calls, waits = self.handlings(), []
        for who, killed_at in self.killed.items():
            theirs = {call.key for call in calls if call.who == who and killed_at - 1.0 < call.began}
            before = {(call.key, call.number) for call in calls if call.done and call.ended < killed_at}
            waiting = {one for one, at in self.published.items() if at < killed_at and one[0] in theirs} - before
            begun: dict[str, float] = {}
            for call in calls:
                if call.began > killed_at and (call.key, call.number) in waiting:
                    begun.setdefault(call.key, call.began)
            waits += [max(begun.values()) - killed_at] if begun else []
        return waits
