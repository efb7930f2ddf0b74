"""A history of calls, and what is wrong with it.

Owns the calls of a run, each with both ends in time and its outcome; a file of them can be judged again. The checks are
pure: they get a history and return sentences. A call that may or may not have had its effect is UNKNOWN, and so is one
that never ended. What the servers have at the end is in the history too, as calls of the kind "final".

| kind | key | value | detail |
|---|---|---|---|
| add | counter | what identifies it | |
| put, cas | register | what is written | cas: what it replaces |
| get | register | what was read | |
| batch | stream | what identifies the batch | its size |
| publish | stream | payload | |
| enqueue, handle | queue | payload | |
| seen | reader, subject | payload | the sequence |
| hold | lock | who | the token |
| fault | what | | |
| election | stream | its new leader | |
| pause | | | |
| final | count: counter; register: register; stored: stream | number; value; payloads | |
"""

from __future__ import annotations

import itertools
import json
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from natsproto.errors import NatsError, PublishUncertain, WrongRevision

EXAMPLES = 3
SETTLE_S = 10.0
"""Seconds after a fault in which servers still elect leaders; a deposed one believes in itself for so long. An election
is known when it ends, and begins as long before that at the most.
"""


class Outcome(StrEnum):
    """How a call ended for its caller."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(slots=True, kw_only=True)
class Call:
    """One call. Times are seconds of one clock; ``ended`` is None for a call that never ended."""

    kind: str
    key: str = ""
    value: Any = None
    detail: Any = None
    began: float
    ended: float | None = None
    outcome: Outcome = Outcome.UNKNOWN
    error: str = ""
    doubts: list[str] = field(default_factory=list)
    """Refusals of this call that contradicted what its client knew."""

    def end(self, now: float, error: BaseException | None = None) -> None:
        """It ended well, or with this error."""
        self.ended = now
        self.outcome = outcome_of(error)
        self.error = "" if error is None else f"{_name(error)}: {error}"

    @property
    def error_name(self) -> str:
        """The class of the error."""
        return self.error.partition(":")[0]


def outcome_of(error: BaseException | None) -> Outcome:
    """What an error tells of the effect: every NatsError but PublishUncertain says that there is none."""
    if error is None:
        return Outcome.OK
    certain = isinstance(error, NatsError) and not isinstance(error, PublishUncertain)
    return Outcome.FAILED if certain else Outcome.UNKNOWN


def _name(error: BaseException) -> str:
    """The class of an error, and whether the revision it names is below the expected one."""
    name = type(error).__name__
    if isinstance(error, WrongRevision) and error.actual is not None and error.expected is not None:
        return f"{name} ({'below' if error.actual < error.expected else 'not below'})"
    return name


class History:
    """Calls in the order of their beginning."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.calls: list[Call] = []
        self.finals: list[Call] = []
        self.clock = clock

    def begin(self, kind: str, key: str = "", value: Any = None, detail: Any = None) -> Call:
        """Record a call that begins now."""
        call = Call(kind=kind, key=key, value=value, detail=detail, began=self.clock())
        self.calls.append(call)
        return call

    @contextmanager
    def call(self, kind: str, key: str = "", value: Any = None, detail: Any = None) -> Iterator[Call]:
        """Record the block as a call. A NatsError ends the call and the block."""
        call = self.begin(kind, key, value, detail)
        try:
            yield call
        except NatsError as exc:
            call.end(self.clock(), exc)
        else:
            call.end(self.clock())

    def final(self, key: str, value: Any) -> None:
        """Record what the servers have at the end."""
        call = self.begin("final", key, value)
        call.end(self.clock())
        self.finals.append(call)

    def of(self, *kinds: str) -> list[Call]:
        """The calls of these kinds."""
        return [call for call in self.calls if call.kind in kinds]

    def save(self, path: Path) -> None:
        """Write a line of JSON for each call."""
        path.write_text("".join(json.dumps(asdict(call)) + "\n" for call in self.calls))

    @classmethod
    def load(cls, path: Path) -> History:
        """Read such a file."""
        history = cls(lambda: 0.0)
        for line in path.read_text().splitlines():
            fields = json.loads(line)
            history.calls.append(Call(**{**fields, "outcome": Outcome(fields["outcome"])}))
        history.finals = history.of("final")
        return history


def judge(history: History) -> list[str]:
    """Everything that is wrong, in sentences."""
    checks = (additions, messages, batches, queues, orders, locks, registers, uncertainties)
    return [fault for check in checks for fault in check(history)]


def additions(history: History) -> list[str]:
    """A counter is at least what was told, and at most that and what is unknown."""
    faults = []
    for key, calls in _by_key(history.of("add")).items():
        told, unknown = _count(calls, Outcome.OK), _count(calls, Outcome.UNKNOWN)
        stored = _final(history, f"count {key}")
        if stored is not None and not told <= stored <= told + unknown:
            faults.append(f"additions to {key}: told {told} <= stored {stored} <= told + unknown {told + unknown}")
    return faults


def messages(history: History) -> list[str]:
    """What was acknowledged is stored, what was refused is not, and nothing is stored twice."""
    faults = []
    for key, calls in _by_key(history.of("publish", "put", "cas")).items():
        stored = _stored(history, key)
        if stored is None:
            continue
        lost = [call for call in calls if call.outcome is Outcome.OK and not stored[call.value]]
        faults += _faults(f"{key}: acknowledged and lost", lost)
        lies = [call for call in calls if call.outcome is Outcome.FAILED and stored[call.value]]
        for name, some in _grouped(lies, lambda call: call.error_name).items():
            faults += _faults(f"{key}: told as {name} and stored", some)
        faults += _faults(f"{key}: stored twice", [call for call in calls if stored[call.value] > 1])
    return faults


def batches(history: History) -> list[str]:
    """A batch is stored whole or not at all, and once; its value is what each of its messages begins with."""
    faults = []
    for key, calls in _by_key(history.of("batch")).items():
        stored = _stored(history, key)
        if stored is None:
            continue
        groups: Counter[str] = Counter()
        for payload, times in stored.items():
            groups[payload.partition(":")[0]] += times
        for what, wrong in (
            ("acknowledged and lost", lambda call, there: call.outcome is Outcome.OK and not there),
            ("refused and stored", lambda call, there: call.outcome is Outcome.FAILED and there),
            ("stored twice", lambda call, there: there > call.detail),
            ("torn", lambda call, there: 0 < there < call.detail),
        ):
            faults += _faults(f"batches of {key}: {what}", [call for call in calls if wrong(call, groups[call.value])])
    return faults


def queues(history: History) -> list[str]:
    """Everything acknowledged in a work queue is handled, and nothing that was refused."""
    faults = []
    for key, calls in _by_key(history.of("enqueue")).items():
        handled = {call.value for call in history.of("handle") if call.key == key}
        faults += _faults(
            f"queue {key}: never handled",
            [call for call in calls if call.outcome is Outcome.OK and call.value not in handled],
        )
        faults += _faults(
            f"queue {key}: refused and handled",
            [call for call in calls if call.outcome is Outcome.FAILED and call.value in handled],
        )
    return faults


def orders(history: History) -> list[str]:
    """A reader sees each key in the order of the stream, and nothing twice."""
    faults = []
    for key, calls in _by_key(history.of("seen")).items():
        late = [call for before, call in itertools.pairwise(calls) if call.detail <= before.detail]
        faults += _faults(f"reader {key}: out of order or twice", late)
    return faults


def locks(history: History) -> list[str]:
    """Never two hold a lock at one time, and every token is higher than those before."""
    faults = []
    for key, calls in _by_key(history.of("hold")).items():
        held = sorted(calls, key=lambda call: call.began)
        for before, call in itertools.pairwise(held):
            if before.ended is None or call.began < before.ended:
                faults.append(f"lock {key}: {call.value} at {call.began:.3f} beside {before.value}")
            if call.detail <= before.detail:
                faults.append(f"lock {key}: token {call.detail} after {before.detail}")
    return faults


def registers(history: History) -> list[str]:
    """There is an order of the writes of a key that explains every read, with the effects within the calls."""
    faults = []
    for key, calls in _by_key(history.of("put", "cas", "get")).items():
        final = [call for call in history.finals if call.key == f"register {key}"]
        if final and not is_linearizable([*calls, *final]):
            faults.append(f"register {key}: no order of its {len(calls)} calls explains what was read")
    return faults


def is_linearizable(calls: list[Call]) -> bool:
    """Whether a register has an order of these calls (Wing and Gong, with the memory of Lowe). Values are unique.

    Refused calls have no effect. An unknown one has its effect at any time after its beginning, or none; one whose
    value nobody has seen explains nothing, and is left out.
    """
    seen = {call.value for call in calls if call.kind in ("get", "final")}
    seen |= {call.detail for call in calls if call.kind == "cas" and call.outcome is not Outcome.FAILED}
    live = [
        call
        for call in calls
        if call.outcome is Outcome.OK or (call.outcome is Outcome.UNKNOWN and call.kind != "get" and call.value in seen)
    ]
    live.sort(key=lambda call: call.began)
    ends = [call.ended if call.outcome is Outcome.OK and call.ended is not None else float("inf") for call in live]
    needed = sum(1 << number for number, call in enumerate(live) if call.outcome is Outcome.OK)
    stack: list[tuple[int, Any]] = [(0, None)]
    known = set(stack)
    while stack:
        done, value = stack.pop()
        if done & needed == needed:
            return True
        open_calls = [number for number in range(len(live)) if not done >> number & 1]
        limit = min(ends[number] for number in open_calls)
        for number in open_calls:
            call = live[number]
            if call.began > limit:
                break
            if call.kind in ("get", "final"):
                if call.value != value:
                    continue
                after = value
            elif call.kind == "cas" and call.detail != value:
                continue
            else:
                after = call.value
            state = (done | 1 << number, after)
            if state not in known:
                known.add(state)
                stack.append(state)
    return False


def uncertainties(history: History) -> list[str]:
    """Calls end without saying what they have done only when no server answered: they were in flight at a fault, at an
    election that servers held by themselves, or when the whole machine stood still.
    """
    if not history.of("fault"):
        return []
    kinds = ("add", "put", "cas", "batch", "publish", "enqueue")
    unknown = [call for call in history.of(*kinds) if call.outcome is Outcome.UNKNOWN and call.ended is not None]
    silences = [(call.began, _end(call) + SETTLE_S) for call in history.of("fault", "pause")]
    silences += [(call.began - SETTLE_S, _end(call) + SETTLE_S) for call in history.of("election")]
    near = {id(call) for call in _overlapping(unknown, silences)}
    return _faults("uncertain, and no fault was near", [call for call in unknown if id(call) not in near])


def in_flight_at_faults(history: History, calls: list[Call]) -> int:
    """How many of the calls overlap a fault, or the two seconds after it."""
    return len(_overlapping(calls, [(fault.began, _end(fault) + 2.0) for fault in history.of("fault")]))


def _end(call: Call) -> float:
    return float("inf") if call.ended is None else call.ended


def _overlapping(calls: list[Call], spans: list[tuple[float, float]]) -> list[Call]:
    """The calls that overlap one of these spans of time."""
    merged: list[list[float]] = []
    for began, until in sorted(spans):
        if merged and began <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], until)
        else:
            merged.append([began, until])
    ends = [until for _, until in merged]
    overlapping = []
    for call in calls:
        at = bisect_left(ends, call.began)  # the first fault that ends after the beginning
        if at < len(merged) and (call.ended is None or call.ended >= merged[at][0]):
            overlapping.append(call)
    return overlapping


def _by_key(calls: list[Call]) -> dict[str, list[Call]]:
    return _grouped(calls, lambda call: call.key)


def _grouped(calls: list[Call], group: Callable[[Call], str]) -> dict[str, list[Call]]:
    found = defaultdict(list)
    for call in calls:
        found[group(call)].append(call)
    return dict(found)


def _count(calls: list[Call], outcome: Outcome) -> int:
    return sum(call.outcome is outcome for call in calls)


def _final(history: History, key: str) -> Any:
    return next((call.value for call in history.finals if call.key == key), None)


def _stored(history: History, key: str) -> Counter[str] | None:
    found = _final(history, f"stored {key}")
    return None if found is None else Counter(found)


def _faults(what: str, calls: list[Call]) -> list[str]:
    if not calls:
        return []
    some = "; ".join(f"{call.value} ({call.error or call.outcome.value})" for call in calls[:EXAMPLES])
    return [f"{what}: {len(calls)}, such as {some}"]
