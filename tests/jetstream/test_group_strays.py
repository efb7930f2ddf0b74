"""Groups whose buckets somebody else may write to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import natsproto
from natsproto.errors import ConfigError, GroupChanged
from natsproto.jetstream import groups
from natsproto.jetstream.groups import GroupNotShared
from natsproto.jetstream.groups._presence import PRESENCE_BUCKET
from tests.jetstream.reading import ignore
from tests.jetstream.test_group_join import LONG, has, joined
from tests.jetstream.test_groups import orders
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from natsproto.jetstream._context import JetStream
    from natsproto.testing._server import Server

STRAYS = ("join-z/y", "z", "admin", "join-", "join-a=/b", "join-eternal", "join-old")


async def test_stray_keys_are_no_members(jetstream: JetStream, nats_server: Server) -> None:
    """All groups of an account share the bucket; whoever can write to it may write any key."""
    js = jetstream
    await orders(js)
    async with joined(js, ignore) as member:
        await eventually(lambda: has(member, 12), LONG)
        for name in STRAYS[:-1]:
            await js.publish(f"$KV.{PRESENCE_BUCKET}.O.g.{name}", b"{}")
        await js.publish(f"$KV.{PRESENCE_BUCKET}.O.g.join-old", b"{}", ttl=24 * 3600)
        await js.publish(f"$KV.{PRESENCE_BUCKET}.O.g.join-never", b"{}", ttl="never")
        async with joined(js, ignore) as second:
            await eventually(lambda: has(member, 6) and has(second, 6), LONG)
        await eventually(lambda: has(member, 12), LONG)


async def test_a_member_that_is_not_renewed_is_gone(jetstream: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server should have removed its key, and has not."""
    monkeypatch.setattr("natsproto.jetstream.groups._coordinator.AUDIT_INTERVAL_S", 0.2)
    monkeypatch.setattr("natsproto.jetstream.groups._coordinator.LEASE_MARGIN_S", -299.0)
    await orders(jetstream)
    async with joined(jetstream, ignore) as member:
        await eventually(lambda: has(member, 12), LONG)
        presence = await jetstream.key_value(PRESENCE_BUCKET)
        await presence.put("O.g.join-ghost", b"", ttl=300)
        await eventually(lambda: has(member, 6), LONG)
        await eventually(lambda: has(member, 12), LONG)
        assert (await presence.get("O.g.join-ghost")).data == b""


async def test_a_lease_is_an_hour_at_most(jetstream: JetStream) -> None:
    await orders(jetstream)
    with pytest.raises(ConfigError, match="an hour at most"):
        groups.join(await jetstream.stream("O"), "g", ignore, ttl=3601)


async def test_a_spoilt_configuration_is_an_event(jetstream: JetStream, nats_client: natsproto.Client) -> None:
    told: list[natsproto.Event] = []
    nats_client.add_listener(told.append)
    await orders(jetstream)

    async def body() -> None:
        async with joined(jetstream, ignore) as member:
            await eventually(lambda: has(member, 12), LONG)
            coordinator = member._coordinator
            assert coordinator is not None
            await (await jetstream.key_value("elastic-consumer-groups")).put("O.g", b'{"max_members": 2000000000}')
            await coordinator._share_out()
            await member.wait()

    with pytest.raises(GroupChanged, match="at most 10000 partitions"):
        await body()
    notices = [event for event in told if isinstance(event, GroupNotShared)]
    assert [(event.stream, event.group) for event in notices] == [("O", "g")]
