"""Programs cannot tell natsproto.compat.nats from nats-py, except by the rows of tests.compat.differences.table.

Each sequence runs twice in a row with each package. ``make hunt ARGS=tests/compat`` draws others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.compat.differences.table import SAFER
from tests.compat.differential.compare import Difference, differences
from tests.compat.differential.draw import Draw
from tests.compat.differential.known import CONNECT, KNOWN, PUSH, STREAM
from tests.compat.differential.rows import CASES, unexplained
from tests.compat.differential.run import Step
from tests.compat.differential.world import TwoAccounts, running_world

pytestmark = [
    pytest.mark.differs("it compares both packages itself"),
    pytest.mark.filterwarnings("ignore"),  # nats-py leaves sockets and tasks behind
    pytest.mark.timeout(300),
]

LENGTH = 14
DRAWN = 6
TIMES = 3
"""A difference counts if it is there so many times in a row: deliveries and timeouts race on a busy machine."""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def world(silent_logs: None) -> AsyncIterator[TwoAccounts]:
    async with running_world() as running:
        yield running


async def confirmed(world: TwoAccounts, steps: list[Step]) -> list[Difference]:
    """The differences of the sequence that no row names, if it has some every time."""
    found: list[Difference] = []
    for _ in range(TIMES):
        found = unexplained(await differences(world, steps))
        if not found:
            break
    return found


def explain(steps: list[Step], found: list[Difference]) -> str:
    lines = [f"{place:2} {step}"[:200] for place, step in enumerate(steps)]
    return "\n".join([*lines, *map(str, found)])


def test_cases_are_rows_of_the_list() -> None:
    assert {*CASES} <= {*SAFER}


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("defect", KNOWN)
async def test_known_sequences(world: TwoAccounts, defect: str) -> None:
    """Those that have found defects."""
    found = await confirmed(world, KNOWN[defect])
    assert not found, explain(KNOWN[defect], found)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("number", [0, 2, 3, 9, 23, 26])
async def test_some_sequences(world: TwoAccounts, number: int) -> None:
    """Some of each subject."""
    steps = Draw(number).sequence(LENGTH)
    found = await confirmed(world, steps)
    assert not found, explain(steps, found)


@pytest.mark.hunt
@pytest.mark.asyncio(loop_scope="module")
async def test_drawn_sequences(world: TwoAccounts, seed: int) -> None:
    for number in range(seed, seed + DRAWN):
        steps = Draw(number).sequence(LENGTH)
        found = await confirmed(world, steps)
        assert not found, f"Draw({number})\n{explain(steps, found)}"


@pytest.mark.asyncio(loop_scope="module")
async def test_kit_finds_a_difference(world: TwoAccounts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its row, the text of an error is one."""
    monkeypatch.setattr("tests.compat.differential.rows.CASES", {})
    publish = {"client": 0, "subject": "a", "data": b"", "reply": "", "headers": {"k:": "v"}}
    found = await confirmed(world, [Step("connect", {"client": 0, "options": {}}), Step("publish", publish)])
    assert [one.what[:14] for one in found] == ["step 1 publish", "step 1 publish"]


async def nothing(*_: Any, **__: Any) -> None:
    """In place of something that compat does."""


COMPAT = "natsproto.compat.nats"
CLOSE = Step("close", {"client": 0})
ADD = Step("add_consumer", {"client": 0, "stream": "S", "config": {"durable_name": "d"}})
DELETE = Step("manage", {"client": 0, "call": "delete_consumer", "arguments": {"stream": "S", "consumer": "d"}})
SUBSCRIBE = Step("subscribe", {"client": 0, "sub": "sub0", "subject": "a", "queue": "", "kind": "none", "limits": {}})
OMITTED = {
    "callbacks of client 0": ("natsproto.compat._callbacks.Callbacks._call", [CONNECT, CLOSE]),
    "connz": (
        f"{COMPAT}.aio.subscription.Subscription._end",
        [CONNECT, SUBSCRIBE, Step("unsubscribe", {"sub": "sub0", "limit": 0})],
    ),
    "inboxes without a subscription": (f"{COMPAT}.js.subscriptions.PushSubscription._end", [CONNECT, STREAM, PUSH]),
    "streams": (f"{COMPAT}.js.manager.JetStreamManager.delete_consumer", [CONNECT, STREAM, ADD, DELETE]),
}
"""What shows that something is left out, by what was compared."""


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("what", OMITTED)
async def test_kit_finds_what_is_left_out(world: TwoAccounts, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    method, steps = OMITTED[what]
    assert not await confirmed(world, steps)
    monkeypatch.setattr(method, nothing)
    assert what in [one.what for one in unexplained(await differences(world, steps))]
