"""Members of a group whose end nobody has seen: the others search for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import natsproto
from natsproto.jetstream.groups._presence import PRESENCE_BUCKET
from natsproto.testing import FaultProxy
from tests.jetstream.reading import ignore
from tests.jetstream.test_group_join import LONG, has, joined
from tests.jetstream.test_groups import orders
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from natsproto.jetstream._context import JetStream
    from natsproto.testing._server import Server


async def test_key_that_vanished_without_a_marker(jetstream: JetStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """The marker of an expired key is gone after ten seconds; a watch may be interrupted for longer."""
    monkeypatch.setattr("natsproto.jetstream.groups._coordinator.AUDIT_INTERVAL_S", 0.2)
    js = jetstream
    await orders(js)
    async with joined(js, ignore) as member:
        await eventually(lambda: has(member, 12), LONG)
        presence = await js.key_value(PRESENCE_BUCKET)
        await presence.put("O.g.join-ghost", b"", ttl=300)
        await eventually(lambda: has(member, 6), LONG)
        await presence.stream.purge(subject="$KV.natsproto-group-presence.O.g.join-ghost")
        await eventually(lambda: has(member, 12), LONG)


@pytest.mark.slow
async def test_member_that_dies_while_another_is_away(
    nats_server: Server, jetstream: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key ends, and the marker of that, while the survivor cannot see it. The survivor's renewals are changes, too,
    and they do not put off the search for missed members.
    """
    monkeypatch.setattr("natsproto.jetstream.groups._coordinator.AUDIT_INTERVAL_S", 3.0)  # a renewal comes each 2 s
    monkeypatch.setattr("natsproto.jetstream.groups._coordinator.LEASE_MARGIN_S", 300.0)
    await orders(jetstream)
    async with (
        FaultProxy(nats_server.host, nats_server.port) as dying,
        FaultProxy(nats_server.host, nats_server.port) as away,
        natsproto.connect(dying.url) as nc_dying,
        natsproto.connect(away.url) as nc_away,
        joined(nc_away.jetstream(), ignore, ttl=6) as survivor,
        joined(nc_dying.jetstream(), ignore, ttl=6) as dead,
    ):
        await eventually(lambda: has(survivor, 6) and has(dead, 6), LONG)
        dying.refuse()
        dying.cut()
        away.refuse()
        away.cut()
        await eventually(lambda: not nc_away.is_connected, LONG)
        presence = await jetstream.key_value(PRESENCE_BUCKET)
        await presence.stream.purge(subject=f"$KV.{PRESENCE_BUCKET}.O.g.{dead.name}")
        await away.allow()
        await eventually(lambda: has(survivor, 12), LONG)
        await nc_dying.close()
