"""Streams for processors."""

from __future__ import annotations

import pytest

from natsproto.jetstream import JetStream, Stream


@pytest.fixture
async def streams(jetstream: JetStream) -> tuple[Stream, Stream]:
    source = await jetstream.create_stream("IN", subjects=["in.>"])
    return source, await jetstream.create_stream("OUT", subjects=["out.>", "$CURSOR.OUT.>"], allow_atomic=True)
