"""Creating a bucket that exists already, made by another client or by this one, and what differs."""

from __future__ import annotations

import nats
import pytest

from natsproto import errors
from natsproto.jetstream import JetStream
from natsproto.testing import Server

pytestmark = pytest.mark.usefixtures("nats_server")


async def test_bucket_of_nats_py_can_be_created_again(jetstream: JetStream, nats_server: Server) -> None:
    other = await nats.connect(nats_server.url)
    await (await other.jetstream().create_key_value(bucket="cfg", history=5)).put("a", b"1")
    for create in (jetstream.create_key_value, jetstream.create_or_update_key_value):
        kv = await create(bucket="cfg", history=5)
        assert (await kv.get("a")).value == b"1"
    assert (await (await jetstream.stream("KV_cfg")).info()).config.allow_msg_ttl, "which cannot be unset"
    assert (await (await jetstream.update_key_value(bucket="cfg", history=6)).status()).config.history == 6
    await other.jetstream().create_object_store(bucket="files")
    await jetstream.create_object_store(bucket="files")
    await other.close()


async def test_existing_bucket_that_differs_is_refused(jetstream: JetStream) -> None:
    await jetstream.create_key_value(bucket="b", history=5, ttl=60)
    await jetstream.create_key_value(bucket="b", history=5, ttl=60)
    with pytest.raises(errors.StreamNameInUse) as caught:
        await jetstream.create_key_value(bucket="b", history=3, ttl=60, max_bytes=1000)
    assert caught.value.differences == ("max_bytes is -1, not 1000", "max_msgs_per_subject is 5, not 3")
    await jetstream.create_object_store(bucket="o")
    with pytest.raises(errors.StreamNameInUse, match=r"its storage is file, not memory \("):
        await jetstream.create_object_store(bucket="o", storage="memory")


async def test_existing_stream_error_names_fields(jetstream: JetStream) -> None:
    await jetstream.create_stream(name="S", subjects=["s.>"], max_age=60, metadata={"a": "1"})
    with pytest.raises(errors.StreamNameInUse) as caught:
        await jetstream.create_stream(name="S", subjects=["s.a"], max_msgs=5)
    assert caught.value.differences == (
        "subjects is ['s.>'], not ['s.a']",
        "max_age is 60.0, not the default",
        "max_msgs is -1, not 5",
        "metadata is {'a': '1'}, not {}",
    )
    assert str(caught.value).endswith(": update it, or create it under another name")
