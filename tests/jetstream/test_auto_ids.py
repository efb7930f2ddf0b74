"""Automatic message ids of a window: sent again they are duplicates, sent once they cannot be."""

from __future__ import annotations

import asyncio

import pytest

from natsproto.errors import PublishUncertain
from tests.jetstream.script import jetstream_of
from tests.jetstream.test_publisher import ids, stage
from tests.kit.clock import advance, virtual_clock


@virtual_clock
async def test_auto_ids_carry_every_message_over_a_reconnect() -> None:
    async with stage() as (net, nc, stream), jetstream_of(nc, "a").publisher(auto_msg_id=True) as pub:
        plain = await pub.publish("a", b"1")
        headed = await pub.publish("a", b"2", headers={"A": "b"})
        named = await pub.publish("a", b"3", msg_id="own")
        first = ids(*await stream.heard_all(3))
        assert first[2] == "own"
        assert len(set(first)) == 3
        net.down()
        await advance(0.1)
        net.up()
        again = await stream.heard_all(3)
        assert ids(*again) == first
        for op in again:
            stream.ack(op)
        await asyncio.gather(plain, headed, named)


@virtual_clock
async def test_a_taken_automatic_id_is_uncertain() -> None:
    """Sent once, it cannot be a duplicate of itself; sent again, or with an id of the user, it can."""
    async with stage() as (net, nc, stream), jetstream_of(nc, "a").publisher(auto_msg_id=True) as pub:
        taken, named = await pub.publish("a", b"1"), await pub.publish("a", b"2", msg_id="own")
        slow = await pub.publish("a", b"3")
        one, two, _ = await stream.heard_all(3)
        stream.ack(one, 7, duplicate=True)
        stream.ack(two, 8, duplicate=True)
        assert (await named).duplicate
        with pytest.raises(PublishUncertain, match="as sequence 7"):
            await taken
        net.down()
        await advance(0.1)
        net.up()
        stream.ack(await stream.heard(b"3"), 9, duplicate=True)
        assert (await slow).seq == 9


@virtual_clock
async def test_a_refused_automatic_id_may_be_a_duplicate() -> None:
    async with stage() as (_, nc, stream), nc.jetstream().publisher(auto_msg_id=True) as pub:
        future = await pub.publish("a", b"1")
        stream.nobody(await stream.heard())
        await advance(1)
        stream.ack(await stream.heard(), 7, duplicate=True)
        assert (await future).duplicate
