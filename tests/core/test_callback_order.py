"""In which order the callbacks of different subscriptions begin."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproto.protocol.frames import Message
from tests.core.helpers import scripted_network, turns_until
from tests.kit.examples import examples

SUBSCRIPTIONS = 6

reads = st.lists(st.lists(st.integers(0, SUBSCRIPTIONS - 1), min_size=1, max_size=40), min_size=1, max_size=4)
"""To which subscription each message of each read goes."""


@pytest.mark.parametrize("kind", ["def", "async def"])
@given(plan=reads)
@examples(60)
def test_callback_order(kind: str, plan: list[list[int]]) -> None:
    """Strict within a subscription; across them as their first messages in the read."""

    async def main() -> None:
        called: list[tuple[int, int]] = []

        def heard(message: Message) -> None:
            called.append((int(message.subject), int(message.data)))

        async def heard_later(message: Message) -> None:
            called.append((int(message.subject), int(message.data)))
            await asyncio.sleep(0)

        async with scripted_network() as net:
            nc = await net.connect()
            for number in range(SUBSCRIPTIONS):
                await nc.subscribe(str(number), cb=heard if kind == "def" else heard_later)
            sids = [(await net.server.expect("SUB", str(number))).args[-1] for number in range(SUBSCRIPTIONS)]
            for read in plan:
                called.clear()
                net.peer.send(
                    b"".join(
                        b"MSG %d %b %d\r\n%d\r\n" % (to, sids[to].encode(), len(str(at)), at)
                        for at, to in enumerate(read)
                    )
                )
                await turns_until(lambda: len(called) == len(read))  # noqa: B023  # it is over before the next one
                for number in range(SUBSCRIPTIONS):
                    assert [at for to, at in called if to == number] == [
                        at for at, to in enumerate(read) if to == number
                    ]
                assert list(dict.fromkeys(to for to, _ in called)) == list(dict.fromkeys(read))

    asyncio.run(main())
