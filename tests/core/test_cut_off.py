"""The rules by which a client leaves a server that is cut off."""

from __future__ import annotations

import pytest

from natsproto._core.cut_off import (
    MAX_PROBES,
    MOVE_INTERVAL_S,
    PROBE_SPREAD_S,
    PROBE_TIMEOUT_S,
    ApiAnswer,
    Finding,
    ProbePlan,
    Verdict,
    judge,
)
from natsproto.protocol.addresses import parse_servers

FIRST, SECOND = parse_servers("nats://first:4222,nats://second:4222")
OK, FAILED, DENIED = ApiAnswer.OK, ApiAnswer.FAILED, ApiAnswer.DENIED


def found(answer: ApiAnswer, *, here: bool = False, others: bool = False, second: bool = False) -> Finding:
    return Finding(address=SECOND if second else FIRST, answer=answer, reaches_here=here, reaches_others=others)


@pytest.mark.parametrize(
    ("here", "findings", "verdict"),
    [
        (FAILED, [found(OK, others=True)], Verdict.MOVE),
        (FAILED, [found(OK, others=True, here=True)], Verdict.MOVE),
        (FAILED, [found(OK), found(FAILED, second=True)], Verdict.UNDECIDED),  # a leader that was cut off
        (FAILED, [found(FAILED), found(FAILED, second=True)], Verdict.UNDECIDED),
        (FAILED, [], Verdict.STAY),
        (FAILED, [found(DENIED)], Verdict.UNDECIDED),
        (DENIED, [found(OK, others=True)], Verdict.STAY),
        (OK, [found(OK, here=True, others=True)], Verdict.STAY),
        (OK, [found(OK), found(OK, here=True, second=True)], Verdict.STAY),
        (OK, [found(OK, others=True), found(OK, others=True, second=True)], Verdict.MOVE),
        (OK, [found(OK)], Verdict.UNDECIDED),  # of two servers neither is the larger part
        (OK, [found(FAILED, others=True)], Verdict.UNDECIDED),
    ],
)
def test_verdict(here: ApiAnswer, findings: list[Finding], verdict: Verdict) -> None:
    judged, address = judge(here, findings)
    assert judged is verdict
    assert (address is not None) is (verdict is Verdict.MOVE)


def test_server_that_works_is_the_destination() -> None:
    assert judge(FAILED, [found(FAILED, others=True), found(OK, others=True, second=True)]) == (Verdict.MOVE, SECOND)


def test_first_probe_is_spread() -> None:
    assert ProbePlan().on_silence(0.0, 0.0) == 0.0
    assert ProbePlan().on_silence(0.0, 0.5) == PROBE_SPREAD_S / 2


def test_moves_are_a_minute_apart() -> None:
    plan = ProbePlan()
    plan.on_silence(0.0, 0.0)
    assert plan.on_verdict(Verdict.MOVE, 1.0) is None
    assert plan.on_silence(1.0 + MOVE_INTERVAL_S - 0.1, 0.0) is None
    assert plan.on_silence(1.0 + MOVE_INTERVAL_S, 0.0) is not None


def test_undecided_probes_are_repeated_some_times() -> None:
    plan = ProbePlan()
    plan.on_silence(0.0, 0.0)
    pauses = []
    while (pause := plan.on_verdict(Verdict.UNDECIDED, 0.0)) is not None:
        pauses.append(pause)
    assert len(pauses) == MAX_PROBES - 1
    assert sum(pauses) + MAX_PROBES * PROBE_TIMEOUT_S > 12  # an election takes 9 s; what is not decided takes its time
    assert plan.on_silence(9.9, 0.0) is None
    assert plan.on_silence(10.0, 0.0) is not None


def test_silences_for_other_reasons_cause_few_probes() -> None:
    plan = ProbePlan()
    probes = 0
    for second in range(3600):
        if plan.on_silence(float(second), 0.0) is not None:
            probes += 1
            assert plan.on_verdict(Verdict.STAY, float(second)) is None
    assert probes < 70
