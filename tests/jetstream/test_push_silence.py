"""A push reader whose consumer is gone, or is another one now, ends or goes on; it does not wait for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from natsproto import Client
from natsproto.errors import ConsumerDeleted, ConsumerGone, HeartbeatMissed
from tests.jetstream.reading import api_calls, events, make, notices, numbers, store
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from natsproto.jetstream._context import JetStream

LONG = 30.0
KINDS: dict[str, dict[str, object]] = {
    "defaults": {"idle_heartbeat": 0.1},
    "own subject": {"deliver_subject": "to.d"},
    "group": {"deliver_subject": "to.d", "deliver_group": "g", "idle_heartbeat": 0.1},
    "no heartbeats": {"idle_heartbeat": 0},
}
CHANGES = {
    "another subject": ({"deliver_subject": "other"}, r"sends its messages to 'other' now"),
    "another group": ({"deliver_subject": "to.d", "deliver_group": "h"}, r"to 'to.d' in the group 'h' now"),
    "pull": ({}, "it is a pull consumer now"),
}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("natsproto.jetstream._consumer.push.push_subscription.SILENCE_S", 0.1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["consumer", "stream", "both again", *CHANGES])
async def test_push_reader_ends_with_its_consumer(
    jetstream: JetStream, nats_client: Client, kind: str, what: str
) -> None:
    stream = await make(jetstream, 1)
    push = await stream.create_push_consumer("d", **KINDS[kind])  # type: ignore[arg-type]
    fields, reason = CHANGES.get(what, ({}, "d"))
    async with events(nats_client) as seen, push.messages() as messages:
        await (await messages.next(timeout=LONG)).ack_sync()
        if what in {"consumer", *CHANGES}:
            await push.delete()
        else:
            await jetstream.delete_stream("S")
        if what == "pull":
            await stream.create_consumer("d")
        elif what in CHANGES:
            await stream.create_push_consumer("d", **fields)  # type: ignore[arg-type]
        elif what == "both again":
            stream = await make(jetstream)
            await stream.create_push_consumer("d", deliver_subject="other")
        with pytest.raises(ConsumerGone, match=reason) as caught:
            await messages.next(timeout=LONG)
    if what == "consumer":
        assert type(caught.value) is ConsumerDeleted
    assert notices(seen)[-1].error is caught.value
    if kind != "defaults":
        assert len(notices(seen)) == 1, "no heartbeat was due"


@pytest.mark.parametrize("kind", KINDS)
async def test_push_reader_goes_on_without_heartbeats(jetstream: JetStream, nats_client: Client, kind: str) -> None:
    """The consumer is made again with the same subject and group, and no heartbeats: nothing is lost by that."""
    stream = await make(jetstream, 1)
    push = await stream.create_push_consumer("d", **KINDS[kind])  # type: ignore[arg-type]
    async with events(nats_client) as seen, push.messages() as messages:
        await (await messages.next(timeout=LONG)).ack_sync()
        async with api_calls(nats_client) as calls:
            await push.delete()
            await stream.create_push_consumer(
                "d",
                deliver_subject=push.deliver_subject,
                deliver_group=push.deliver_group,
                idle_heartbeat=0,
                deliver_policy="new",
            )
            await eventually(lambda: sum("CONSUMER.INFO" in call for call in calls) >= 3)
        await store(stream, [2])
        assert numbers([await messages.next(timeout=LONG)]) == [2]
        missed = [type(notice.error) for notice in notices(seen)]
        assert missed == ([HeartbeatMissed] if kind == "defaults" else []), "once: none is due any more"
        await push.delete()
        with pytest.raises(ConsumerGone):
            await messages.next(timeout=LONG)


async def test_members_of_a_group_miss_no_heartbeat(jetstream: JetStream, nats_client: Client) -> None:
    """Each heartbeat goes to one of them, so that one may get none for long."""
    stream = await make(jetstream)
    push = await stream.create_push_consumer("d", **KINDS["group"])  # type: ignore[arg-type]
    async with events(nats_client) as seen, api_calls(nats_client) as calls:
        async with push.messages(), push.messages(), push.messages(), push.messages():
            await eventually(lambda: len(calls) >= 5)
        assert notices(seen) == []
