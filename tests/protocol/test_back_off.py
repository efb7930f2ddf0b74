"""The waits of an outage: short for about ten seconds, then doubled up to the cap."""

from __future__ import annotations

from natsproto.protocol.pool import EARLY_ROUNDS
from tests.protocol.test_pool import pool_of, step


def test_waits_double_to_the_cap_after_each_round() -> None:
    pool = pool_of("a")
    list(pool.one_pass())
    waits = [step(pool)[1] for _ in range(EARLY_ROUNDS + 3)]
    assert waits == [0.05, 0.1, 0.2, 0.4, 0.8, *[1.0] * (EARLY_ROUNDS - 5), 2.0, 4.0, 4.0]
    assert 10 < sum(waits[:EARLY_ROUNDS]) < 11


def test_long_waits_double_from_the_beginning() -> None:
    pool = pool_of("a", wait=1.0, wait_cap=30.0)
    list(pool.one_pass())
    assert [step(pool)[1] for _ in range(6)] == [1, 2, 4, 8, 16, 30]


def test_wait_above_the_cap_is_kept() -> None:
    pool = pool_of("a", wait=10.0, wait_cap=4.0)
    list(pool.one_pass())
    assert [step(pool)[1] for _ in range(2)] == [10, 10]
