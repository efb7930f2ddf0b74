"""What shows each row of tests.compat.differences.table: something that ends in two ways, with nats-py and here.

Owns the list of them. A row that is no longer true, or that nothing shows, fails test_differences.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from natsproto.testing import Server

Scenario = Callable[[Any, Server], Awaitable[Any]]


class Shown(NamedTuple):
    """A scenario, called with the package and a server with JetStream, and what it returns."""

    row: str
    scenario: Scenario
    theirs: Any
    ours: Any


SHOWN: list[Shown] = []


def shows(row: str, *, theirs: Any, ours: Any) -> Callable[[Scenario], Scenario]:
    """Decorate a scenario of the row that returns ``theirs`` with nats-py and ``ours`` here."""

    def decorate(scenario: Scenario) -> Scenario:
        SHOWN.append(Shown(row, scenario, theirs, ours))
        return scenario

    return decorate
