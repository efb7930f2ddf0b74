"""The checker of histories finds what is wrong, and nothing else."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from natsproto.errors import NoStream, PublishUncertain, WrongRevision
from tests.kit.history import Call, History, Outcome, is_linearizable, judge

OK, FAILED, UNKNOWN = Outcome


def write_call(value: str, began: float, ended: float, outcome: Outcome = OK, expected: str | None = "put") -> Call:
    kind = "put" if expected == "put" else "cas"
    return Call(kind=kind, key="r", value=value, detail=expected, began=began, ended=ended, outcome=outcome)


def read_call(value: str | None, began: float, ended: float) -> Call:
    return Call(kind="get", key="r", value=value, began=began, ended=ended, outcome=OK)


def history_of(*calls: tuple[str, str, Any, Any, Outcome], **final: Any) -> History:
    history = History(itertools.count().__next__)
    for kind, key, value, detail, outcome in calls:
        call = history.begin(kind, key, value, detail)
        call.end(history.clock())
        call.outcome = outcome
    for key, value in final.items():
        history.final(key.replace("_", " "), value)
    return history


# ---------------------------------------------------------------- registers


@pytest.mark.parametrize(
    ("calls", "explained"),
    [
        ([write_call("a", 0, 1), read_call("a", 2, 3)], True),
        ([write_call("a", 0, 1), read_call(None, 2, 3)], False),
        ([write_call("a", 0, 5), read_call(None, 1, 2), read_call("a", 3, 4)], True),
        ([write_call("a", 0, 5), read_call("a", 1, 2), read_call(None, 3, 4)], False),
        ([write_call("a", 0, 1, UNKNOWN), read_call(None, 2, 3), read_call("a", 4, 5)], True),
        ([write_call("a", 0, 1, FAILED), read_call("a", 2, 3)], False),
        ([write_call("a", 0, 1), write_call("b", 2, 3, OK, "a"), read_call("b", 4, 5)], True),
        ([write_call("a", 0, 1), write_call("b", 0, 3, OK, "a"), write_call("c", 0, 3, OK, "a")], False),
        (
            [
                write_call("a", 0, 1),
                write_call("b", 2, 3, UNKNOWN, "a"),
                write_call("c", 4, 5, OK, "b"),
                read_call("c", 6, 7),
            ],
            True,
        ),
        (
            [
                write_call("a", 0, 1),
                write_call("b", 2, 3, UNKNOWN, "a"),
                write_call("c", 4, 5, OK, "a"),
                read_call("b", 6, 7),
            ],
            False,
        ),
    ],
)
def test_registers(calls: list[Call], explained: bool) -> None:
    assert is_linearizable(calls) is explained


def test_drawn_histories_of_a_register_are_explained(seed: int) -> None:
    """A real register, with calls that overlap: whatever happens at a moment within each call has an explanation."""
    chance = random.Random(seed)
    value: str | None = None
    calls: list[Call] = []
    at = 0.0
    for number in range(60):
        at += chance.random()
        before, after = at - 2 * chance.random(), at + 2 * chance.random()
        kind = chance.choice(["put", "cas", "get", "lost"])
        if kind == "get":
            calls.append(read_call(value, before, after))
        elif kind == "lost":
            calls.append(write_call(f"{number}", before, after, UNKNOWN, value))
            value = f"{number}" if chance.random() < 0.5 else value
        else:
            calls.append(write_call(f"{number}", before, after, OK, "put" if kind == "put" else value))
            value = f"{number}"
    assert is_linearizable(calls)
    late = max(call.ended or 0 for call in calls) + 1
    assert not is_linearizable([*calls, write_call("x", late, late + 1), read_call(value, late + 2, late + 3)])


# ---------------------------------------------------------------- the others


@pytest.mark.parametrize(
    ("history", "wrong"),
    [
        (history_of(*[("add", "c", i, None, o) for i, o in enumerate((OK, FAILED, UNKNOWN))], count_c=2), ""),
        (history_of(*[("add", "c", i, None, o) for i, o in enumerate((OK, FAILED, UNKNOWN))], count_c=3), "additions"),
        (history_of(*[("add", "c", i, None, o) for i, o in enumerate((OK, FAILED, UNKNOWN))], count_c=0), "additions"),
        (history_of(("publish", "s", "a", None, OK), stored_s=["a"]), ""),
        (history_of(("publish", "s", "a", None, UNKNOWN), stored_s=[]), ""),
        (history_of(("publish", "s", "a", None, OK), stored_s=[]), "acknowledged and lost"),
        (history_of(("publish", "s", "a", None, FAILED), stored_s=["a"]), "and stored"),
        (history_of(("publish", "s", "a", None, UNKNOWN), stored_s=["a", "a"]), "stored twice"),
        (history_of(("batch", "s", "a", 2, OK), stored_s=["a:0", "a:1"]), ""),
        (history_of(("batch", "s", "a", 2, UNKNOWN), stored_s=[]), ""),
        (history_of(("batch", "s", "a", 2, OK), stored_s=[]), "acknowledged and lost"),
        (history_of(("batch", "s", "a", 2, OK), stored_s=["a:0", "a:1", "a:0", "a:1"]), "stored twice"),
        (history_of(("batch", "s", "a", 2, FAILED), stored_s=["a:0", "a:1"]), "refused and stored"),
        (history_of(("batch", "s", "a", 2, UNKNOWN), stored_s=["a:0"]), "torn"),
        (history_of(("enqueue", "q", "a", None, OK), ("handle", "q", "a", None, OK)), ""),
        (history_of(("enqueue", "q", "a", None, OK)), "never handled"),
        (history_of(("enqueue", "q", "a", None, FAILED), ("handle", "q", "a", None, OK)), "refused and handled"),
        (history_of(("seen", "k", "a", 1, OK), ("seen", "l", "b", 5, OK), ("seen", "k", "c", 2, OK)), ""),
        (history_of(("seen", "k", "a", 2, OK), ("seen", "k", "b", 1, OK)), "out of order"),
        (history_of(("hold", "l", "a", 1, OK), ("hold", "l", "b", 2, OK)), ""),
        (history_of(("hold", "l", "a", 2, OK), ("hold", "l", "b", 1, OK)), "token 1 after 2"),
    ],
)
def test_checks(history: History, wrong: str) -> None:
    faults = judge(history)
    assert wrong in faults[0] if faults else wrong == "", faults


@pytest.mark.parametrize(("began", "ended", "wrong"), [(9, 12, False), (25, 27, False), (31, 34, True), (1, 4, True)])
def test_uncertain_calls_are_near_a_fault(began: float, ended: float, wrong: bool) -> None:
    history = History(iter([]).__next__)
    history.calls.append(Call(kind="fault", key="kill", began=11, ended=20, outcome=OK))
    history.calls.append(Call(kind="publish", key="s", value="a", began=began, ended=ended))
    assert bool(judge(history)) is wrong


@pytest.mark.parametrize(
    ("kind", "began", "ended", "wrong"),
    [("election", 22, 25, False), ("election", 15, 19, True), ("pause", 22, 25, True), ("pause", 39, 41, False)],
)
def test_uncertain_calls_are_explained_by_silence(kind: str, began: float, ended: float, wrong: bool) -> None:
    """An election is known when it ends; it began up to ten seconds before."""
    history = History(iter([]).__next__)
    history.calls.append(Call(kind="fault", key="kill", began=100, ended=101, outcome=OK))
    history.calls.append(Call(kind=kind, key="s", began=30, ended=30, outcome=OK))
    history.calls.append(Call(kind="publish", key="s", value="a", began=began, ended=ended))
    assert bool(judge(history)) is wrong


def test_two_holders_at_once_are_found() -> None:
    history = history_of(("hold", "l", "a", 1, OK), ("hold", "l", "b", 2, OK))
    history.calls[0].ended = None
    assert "beside a" in judge(history)[0]


def test_errors_tell_outcomes(tmp_path: Path) -> None:
    history = History(itertools.count().__next__)
    errors = [None, NoStream("s"), WrongRevision("b", "k", 1, 2), PublishUncertain("s", "why")]
    for number, error in enumerate(errors):
        with history.call("publish", "s", f"{number}"):
            if error is not None:
                raise error
    history.final("stored s", ["0", "1"])
    assert [call.outcome for call in history.of("publish")] == [OK, FAILED, FAILED, UNKNOWN]
    history.save(tmp_path / "h.jsonl")
    loaded = History.load(tmp_path / "h.jsonl")
    assert loaded.calls == history.calls
    assert judge(loaded) == judge(history) != []
