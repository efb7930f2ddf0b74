"""Is a write stored? Every row of the rule, and every way through it, without an event loop."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from itertools import count, product
from types import FunctionType
from typing import Any

import pytest

from natsproto.errors import (
    ApiError,
    BucketNotFound,
    NatsError,
    PublishUncertain,
    RequestTimeout,
    StreamNotFound,
)
from natsproto.jetstream import PubAck
from natsproto.jetstream._publish import outcome
from natsproto.jetstream._publish.outcome import (
    LOOKUP_WAITS_S,
    MAX_STALE_RESENDS,
    AwaitReply,
    Change,
    Decision,
    Evidence,
    Expectation,
    Leadership,
    NotStored,
    Resend,
    Situation,
    Step,
    UncertainRefusal,
    expectation_of,
    is_uncertain_commit,
    next_step,
    uncertain_refusal,
)
from natsproto.jetstream._values.error_codes import ErrCode, api_error

STALE, IN_PROCESS, OWN_COPY = UncertainRefusal.STALE, UncertainRefusal.IN_PROCESS, UncertainRefusal.OWN_COPY
EMPTY, COMMIT = UncertainRefusal.EMPTY, UncertainRefusal.COMMIT
UNCONFIRMED, MAJORITY = Leadership.UNCONFIRMED, Leadership.MAJORITY
UNDISPUTED, ONLY_SERVER = Leadership.UNDISPUTED, Leadership.ONLY_SERVER
STORED, NOT_STORED, UNKNOWN = Decision
ACK = PubAck(stream="S", seq=7)
MAX_TOTAL_WAIT_S = 1.3

SITUATIONS = [
    Situation(*values)
    for values in product(UncertainRefusal, (False, True), (False, True), (False, True), range(MAX_STALE_RESENDS + 1))
]
EVIDENCE = [
    Evidence(*values)
    for values in product((None, ACK), (False, True), (False, True), (False, True), (False, True), Leadership)
]


def paths(situation: Situation, evidence: Evidence) -> Iterator[list[Step]]:
    """The steps if every lookup shows nothing until the last ones show the evidence, from each wait on."""
    for first in range(5):
        steps: list[Step] = []
        found: Evidence | None = None
        while not steps or isinstance(steps[-1], AwaitReply):
            waits = len(steps)
            steps.append(next_step(situation, waits, found, pause=0.1))
            assert len(steps) < 8
            last = steps[-1]
            if isinstance(last, AwaitReply):
                found = evidence if last.looks_up and waits >= first else Evidence()
        yield steps


def test_every_path_ends_soon_and_with_a_reason() -> None:
    walked = 0
    for situation, evidence in product(SITUATIONS, EVIDENCE):
        for steps in paths(situation, evidence):
            walked += 1
            assert sum(step.seconds for step in steps if isinstance(step, AwaitReply)) <= MAX_TOTAL_WAIT_S
            end = steps[-1]
            if end is STORED:
                assert evidence.ack
            if end is NOT_STORED:
                assert situation.refusal is EMPTY or evidence.is_refuted or is_proof_of_absence(situation, evidence)
            if isinstance(end, Resend):
                assert is_protected(situation, evidence)
    print(f"{walked} paths")
    assert walked > 50_000


def is_proof_of_absence(situation: Situation, evidence: Evidence) -> bool:
    is_sole_refusal = evidence.leadership >= UNDISPUTED and situation.is_answered and not evidence.is_ambiguous
    is_missing = evidence.is_absent and evidence.leadership > UNCONFIRMED
    return is_missing or (situation.refusal in (STALE, OWN_COPY) and is_sole_refusal)


def is_protected(situation: Situation, evidence: Evidence) -> bool:
    """A copy cannot be stored twice, or there is none."""
    if situation.refusal is STALE:
        return situation.has_msg_id
    is_sole_refusal = evidence.leadership >= UNDISPUTED and situation.is_answered and not evidence.is_ambiguous
    return situation.refusal is IN_PROCESS and (situation.has_msg_id or situation.is_guarded or is_sole_refusal)


NOTHING = Evidence()


ROWS: list[tuple[Situation, int, Evidence | None, Step]] = [
    # the beginning
    (Situation(STALE), 0, None, AwaitReply(0.0, looks_up=True)),
    (Situation(STALE, has_msg_id=True), 0, None, AwaitReply(0.25, looks_up=False)),
    (Situation(IN_PROCESS), 0, None, AwaitReply(0.0, looks_up=True)),
    (Situation(IN_PROCESS, has_msg_id=True), 0, None, AwaitReply(0.1, looks_up=True)),
    (Situation(OWN_COPY), 0, None, AwaitReply(0.0, looks_up=True)),
    (Situation(EMPTY), 0, None, AwaitReply(0.0, looks_up=True)),
    (Situation(COMMIT), 0, None, AwaitReply(0.25, looks_up=True)),
    # nothing was found
    (Situation(STALE), 1, NOTHING, AwaitReply(0.25, looks_up=True)),
    (Situation(STALE), 2, NOTHING, AwaitReply(0.75, looks_up=True)),
    (Situation(STALE), 3, NOTHING, UNKNOWN),
    (Situation(STALE, has_msg_id=True), 1, NOTHING, Resend()),
    (Situation(STALE, has_msg_id=True, stale_resends=1), 1, NOTHING, Resend()),
    (Situation(STALE, has_msg_id=True, stale_resends=2), 0, None, AwaitReply(0.0, looks_up=True)),
    (Situation(STALE, has_msg_id=True, stale_resends=2), 3, NOTHING, UNKNOWN),
    (Situation(IN_PROCESS), 1, NOTHING, AwaitReply(0.01, looks_up=True)),
    (Situation(IN_PROCESS), 2, NOTHING, UNKNOWN),
    (Situation(IN_PROCESS, is_guarded=True), 2, NOTHING, Resend()),
    (Situation(IN_PROCESS, is_guarded=True), 2, Evidence(is_ambiguous=True), AwaitReply(0.25, looks_up=True)),
    (Situation(IN_PROCESS, is_guarded=True), 3, Evidence(is_ambiguous=True), Resend()),
    (Situation(IN_PROCESS, has_msg_id=True), 1, NOTHING, Resend()),
    (Situation(STALE, is_guarded=True), 3, NOTHING, UNKNOWN),
    (Situation(STALE), 3, Evidence(is_ambiguous=True), UNKNOWN),
    (Situation(OWN_COPY, has_msg_id=True), 0, None, AwaitReply(0.0, looks_up=True)),
    (Situation(OWN_COPY, is_answered=False), 2, NOTHING, AwaitReply(0.75, looks_up=True)),
    (Situation(OWN_COPY), 3, NOTHING, UNKNOWN),
    (Situation(EMPTY), 1, None, UNKNOWN),
    (Situation(EMPTY), 1, NOTHING, NOT_STORED),
    (Situation(COMMIT), 1, NOTHING, AwaitReply(0.75, looks_up=True)),
    (Situation(COMMIT), 2, NOTHING, UNKNOWN),
    # the message, or another in its place
    *[(Situation(refusal), 1, Evidence(ack=ACK), STORED) for refusal in UncertainRefusal],
    *[(Situation(refusal), 1, Evidence(is_refuted=True), NOT_STORED) for refusal in UncertainRefusal],
    # the only leader that there can have been
    *[(Situation(STALE), 1, Evidence(leadership=leader), NOT_STORED) for leader in (UNDISPUTED, ONLY_SERVER)],
    (Situation(STALE), 1, Evidence(leadership=MAJORITY), AwaitReply(0.25, looks_up=True)),
    (Situation(STALE, is_answered=False), 1, Evidence(leadership=UNDISPUTED), AwaitReply(0.25, looks_up=True)),
    (Situation(STALE), 1, Evidence(is_ambiguous=True, leadership=ONLY_SERVER), AwaitReply(0.25, looks_up=True)),
    *[(Situation(IN_PROCESS), 1, Evidence(leadership=leader), Resend()) for leader in (UNDISPUTED, ONLY_SERVER)],
    (Situation(IN_PROCESS), 1, Evidence(leadership=MAJORITY), AwaitReply(0.01, looks_up=True)),
    (Situation(OWN_COPY), 1, Evidence(is_replaced=True, leadership=UNDISPUTED), NOT_STORED),
    (Situation(OWN_COPY, is_answered=False), 1, Evidence(is_replaced=True, leadership=UNDISPUTED), UNKNOWN),
    (Situation(OWN_COPY), 1, Evidence(is_ambiguous=True, leadership=ONLY_SERVER), UNKNOWN),
    (Situation(COMMIT), 1, Evidence(leadership=ONLY_SERVER), AwaitReply(0.75, looks_up=True)),
    # absent, though it would have been kept
    (Situation(STALE), 2, Evidence(is_absent=True, leadership=MAJORITY), AwaitReply(0.75, looks_up=True)),
    (Situation(STALE), 3, Evidence(is_absent=True, leadership=MAJORITY), NOT_STORED),
    (Situation(STALE), 3, Evidence(is_absent=True), UNKNOWN),
    (Situation(STALE, is_answered=False), 1, Evidence(is_absent=True, leadership=UNDISPUTED), NOT_STORED),
    (Situation(OWN_COPY, is_answered=False), 3, Evidence(is_absent=True, leadership=MAJORITY), NOT_STORED),
    (Situation(IN_PROCESS, is_guarded=True), 2, Evidence(is_absent=True, leadership=MAJORITY), Resend()),
    (Situation(IN_PROCESS), 2, Evidence(is_absent=True, leadership=MAJORITY), UNKNOWN),
    (Situation(COMMIT), 1, Evidence(is_absent=True, leadership=MAJORITY), NOT_STORED),
    (Situation(COMMIT), 1, Evidence(is_absent=True), AwaitReply(0.75, looks_up=True)),
    # replaced by newer messages
    (Situation(OWN_COPY), 1, Evidence(is_replaced=True), AwaitReply(0.25, looks_up=True)),
    (Situation(OWN_COPY), 2, Evidence(is_replaced=True), UNKNOWN),
    (Situation(STALE), 2, Evidence(is_replaced=True), AwaitReply(0.75, looks_up=True)),
]


@pytest.mark.parametrize(("situation", "waits", "evidence", "step"), ROWS)
def test_row_of_the_rule(situation: Situation, waits: int, evidence: Evidence | None, step: Step) -> None:
    assert next_step(situation, waits, evidence, pause=0.1) == step


def test_waits_are_those_of_the_table() -> None:
    assert {refusal.name: waits for refusal, waits in LOOKUP_WAITS_S.items()} == {
        "STALE": (0.0, 0.25, 0.75),
        "IN_PROCESS": (0.0, 0.01),
        "OWN_COPY": (0.0, 0.25, 0.75),
        "EMPTY": (0.0,),
        "COMMIT": (0.25, 0.75),
    }


def wrong_last(last: int) -> ApiError:
    return api_error({"code": 400, "err_code": 10071, "description": f"wrong last sequence: {last}"})


IN_PROCESS_ERROR = api_error({"code": 400, "err_code": 10164, "description": "wrong last sequence"})
OTHERS = [
    api_error({"code": 400, "err_code": code, "description": "no"})
    for code in (10023, 10002, 10077, 10054, 10109, 10060, 10008, 10167)
]


REFUSALS: list[tuple[NatsError, int, bool, bool, UncertainRefusal | None]] = [
    (wrong_last(3), 5, False, False, STALE),
    (wrong_last(3), 5, True, True, STALE),
    (wrong_last(5), 5, False, False, None),
    (wrong_last(7), 5, False, True, None),
    (wrong_last(7), 5, True, False, OWN_COPY),
    (wrong_last(7), 0, True, True, OWN_COPY),
    (wrong_last(7), 0, False, True, EMPTY),
    (wrong_last(7), 0, False, False, None),
    (api_error({"code": 400, "err_code": 10071, "description": "wrong last sequence"}), 5, False, False, None),
    (IN_PROCESS_ERROR, 5, False, False, IN_PROCESS),
    *[(error, 5, True, True, None) for error in OTHERS],
    (RequestTimeout("r", 1.0), 5, True, True, None),
]


@pytest.mark.parametrize(("error", "expected", "may_be_stored", "has_own_id", "refusal"), REFUSALS)
def test_which_refusals_are_uncertain(
    error: NatsError, expected: int, may_be_stored: bool, has_own_id: bool, refusal: UncertainRefusal | None
) -> None:
    assert uncertain_refusal(error, expected, may_be_stored=may_be_stored, has_own_id=has_own_id) is refusal


INCOMPLETE = api_error({"code": 400, "err_code": ErrCode.ATOMIC_PUBLISH_INCOMPLETE_BATCH, "description": "no"})
COMMITS: list[tuple[ApiError, int, bool]] = [
    (INCOMPLETE, 0, True),
    (wrong_last(3), 5, True),
    (IN_PROCESS_ERROR, 0, True),
    (wrong_last(7), 5, False),
    *[(error, 5, False) for error in OTHERS],
]


@pytest.mark.parametrize(("error", "expected", "is_uncertain"), COMMITS)
def test_which_commits_are_uncertain(error: ApiError, expected: int, is_uncertain: bool) -> None:
    assert is_uncertain_commit(error, expected) is is_uncertain


class Mutation(ast.NodeTransformer):
    """Changes the node with this number: a comparison, "and" or "or", a number; or leaves an operand or branch out."""

    def __init__(self, number: int) -> None:
        self.left, self.changed = number, ""

    def _is_next(self, node: ast.AST) -> bool:
        self.left -= 1
        if self.left == 0:
            self.changed = f"line {getattr(node, 'lineno', 0)}: {ast.unparse(node)}"
        return self.left == 0

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        return ast.UnaryOp(ast.Not(), node) if self._is_next(node) else self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        if self._is_next(node):
            return ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        for index in range(len(node.values)):
            if self._is_next(node.values[index]):
                self.changed += " left out"
                rest = [value for at, value in enumerate(node.values) if at != index]
                return ast.BoolOp(node.op, rest) if len(rest) > 1 else rest[0]
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST:
        return ast.Pass() if self._is_next(node) else self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        is_number = isinstance(node.value, (int, float)) and self._is_next(node)
        return ast.Constant(not node.value if node.value is True else node.value + 1) if is_number else node  # type: ignore[operator]

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        return node


def mutants() -> Iterator[tuple[str, dict[str, Any]]]:
    """What was changed in a function or a constant of the rule, and the names of the module with it."""
    for name in ("next_step", "_judge", "uncertain_refusal", "is_uncertain_commit"):
        for number in count(1):
            mutation = Mutation(number)
            tree = mutation.visit(ast.parse(inspect.getsource(getattr(outcome, name))))
            if not mutation.changed:
                break
            names = dict(vars(outcome))
            exec(compile(ast.fix_missing_locations(tree), name, "exec"), names)
            yield f"{name}, {mutation.changed}", rebound(names)
    for refusal, waits in LOOKUP_WAITS_S.items():
        for changed in (
            waits[:-1],
            (*waits, 0.5),
            *((*waits[:at], waits[at] + 1, *waits[at + 1 :]) for at in range(len(waits))),
        ):
            yield (
                f"{refusal}: {changed}",
                rebound({**vars(outcome), "LOOKUP_WAITS_S": {**LOOKUP_WAITS_S, refusal: changed}}),
            )
    for name in ("FURTHER_REPLY_S", "MAX_STALE_RESENDS"):
        yield name, rebound({**vars(outcome), name: getattr(outcome, name) + 1})


def rebound(names: dict[str, Any]) -> dict[str, Any]:
    """The functions of the module, which now use these names."""
    for name, function in list(names.items()):
        if inspect.isfunction(function):
            names[name] = FunctionType(function.__code__, names, name, function.__defaults__)
            names[name].__kwdefaults__ = function.__kwdefaults__
    return names


def are_rows_true(names: dict[str, Any]) -> bool:
    try:
        return _are_rows_true(names)
    except (AttributeError, IndexError, NameError, TypeError):
        return False


def _are_rows_true(names: dict[str, Any]) -> bool:
    return (
        all(names["next_step"](*row[:3], pause=0.1) == row[3] for row in ROWS)
        and all(
            names["uncertain_refusal"](error, expected, may_be_stored=may_be_stored, has_own_id=has_own_id) is refusal
            for error, expected, may_be_stored, has_own_id, refusal in REFUSALS
        )
        and all(names["is_uncertain_commit"](error, expected) is uncertain for error, expected, uncertain in COMMITS)
    )


def test_no_change_of_the_rule_is_overlooked() -> None:
    assert are_rows_true(rebound(dict(vars(outcome))))
    survivors = {what: are_rows_true(names) for what, names in mutants()}
    print(f"{len(survivors)} changes")
    assert len(survivors) > 100
    assert not [what for what, is_overlooked in survivors.items() if is_overlooked]


def test_expectation_is_read_from_headers() -> None:
    assert expectation_of("a", [("Nats-Expected-Last-Sequence", "7")]) == Expectation(7, "")
    own = ("nats-expected-last-subject-sequence", "3")
    assert expectation_of("a", [own]) == Expectation(3, "a")
    assert expectation_of("a", [own, ("Nats-Expected-Last-Subject-Sequence-Subject", "b")]) == Expectation(3, "b")
    assert expectation_of("a", [("Nats-Expected-Last-Sequence", "x")]) == Expectation(0, "")


def unanswered(change: Change) -> None:
    change.uncertain = PublishUncertain("s", "cut")


def fail_after_silence(error: Exception) -> None:
    with Change("s") as change:
        unanswered(change)
        raise error


def test_error_after_an_unanswered_write_is_uncertain() -> None:
    with pytest.raises(PublishUncertain, match="cut, and then r"):
        fail_after_silence(RequestTimeout("r", 1.0))
    for error in (StreamNotFound(404, 10059, "no"), BucketNotFound("b"), ValueError("mine")):
        with pytest.raises(type(error)):
            fail_after_silence(error)
    certain = RequestTimeout("r", 1.0)
    with pytest.raises(RequestTimeout) as caught, Change("s"):
        raise certain
    assert caught.value is certain


def test_proof_needs_an_answered_write() -> None:
    error = wrong_last(7)
    assert Change("s").not_stored(error) == NotStored(error)
    change = Change("s")
    unanswered(change)
    with pytest.raises(PublishUncertain, match="cut, and then"):
        change.not_stored(error)
    uncertain = PublishUncertain("s", "cut")
    with pytest.raises(PublishUncertain) as caught:
        Change("s").not_stored(uncertain)
    assert caught.value is uncertain
    with pytest.raises(PublishUncertain), change:
        raise uncertain
    assert change.uncertain is uncertain
