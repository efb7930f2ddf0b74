"""Refusals that are not certain: a deposed leader refuses a write that the stream has stored."""

from __future__ import annotations

import pytest

import natsproto
from natsproto.testing import Server
from tests.kit.second_responder import deposed_leader


@pytest.mark.parametrize("code", [10071, 10164])
@pytest.mark.parametrize("truth", [0.01, None])
async def test_stored_update_is_no_wrong_revision(nats_server: Server, code: int, truth: float | None) -> None:
    async with natsproto.connect(nats_server.url) as nc, natsproto.connect(nats_server.url) as other:
        kv = await nc.jetstream().create_key_value(bucket="b", storage="memory")
        revision = await kv.put("k", b"0")
        async with deposed_leader(other, kv.stream) as leader:
            leader.truth = truth
            for number in range(1, 6):
                leader.refusals.append((code, revision - 1))
                revision = await kv.update("k", b"%d" % number, revision)
            entry = await kv.get("k")
    assert (entry.value, entry.revision, leader.refused) == (b"5", revision, 5)
    assert "Natsproto-Write" not in entry.headers
