"""A stream that is only called like a bucket is none: what is written to it would go elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from natsproto.errors import BucketNotFound
from natsproto.jetstream import StreamSource

if TYPE_CHECKING:
    from natsproto.jetstream._context import JetStream


async def test_key_value_foreign_stream_refused(jetstream: JetStream) -> None:
    await jetstream.create_stream(name="KV_X", subjects=["orders.>"], storage="memory")
    with pytest.raises(BucketNotFound, match=r"'KV_X' holds orders\.>, not \$KV\.X\.>") as caught:
        await jetstream.key_value("X")
    assert caught.value.bucket == "X"
    await jetstream.create_stream(name="KV_Y", mirror=StreamSource(name="KV_X"), storage="memory")
    await jetstream.create_stream(name="O", subjects=["o"], storage="memory")
    await jetstream.create_stream(name="KV_Z", mirror=StreamSource(name="O"), storage="memory")
    with pytest.raises(BucketNotFound, match="mirror of 'O'"):
        await jetstream.key_value("Z")


async def test_object_store_foreign_stream_refused(jetstream: JetStream) -> None:
    await jetstream.create_stream(name="OBJ_X", subjects=["orders.>"], storage="memory")
    with pytest.raises(BucketNotFound, match=r"'OBJ_X' holds orders\.>, not \$O\.X\.>"):
        await jetstream.object_store("X")


async def test_buckets_of_all_kinds_open(jetstream: JetStream) -> None:
    await jetstream.create_key_value(bucket="a", storage="memory")
    await jetstream.create_key_value(bucket="m", mirror=StreamSource(name="a"), storage="memory")
    await jetstream.create_key_value(bucket="s", sources=[StreamSource(name="a")], storage="memory")
    await jetstream.create_object_store(bucket="o", storage="memory")
    await jetstream.create_stream(name="KV_w", subjects=["$KV.w.*", "other"], storage="memory")
    for bucket in "amsw":
        assert (await jetstream.key_value(bucket)).bucket == bucket
    assert (await jetstream.object_store("o")).bucket == "o"
