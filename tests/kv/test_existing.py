"""Creating a bucket that exists already, made by another client or by this one, and what differs."""

from __future__ import annotations

import nats
import pytest

import natsproto
from natsproto import errors
from natsproto.jetstream import JetStream, Republish
from natsproto.testing import Server, run_server

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
    with pytest.raises(errors.BucketExists) as caught:
        await jetstream.create_key_value(bucket="b", history=3, ttl=60, max_bytes=1000)
    assert caught.value.differences == ("max_bytes=-1 instead of 1000", "history=5 instead of 3")
    assert isinstance(caught.value.__cause__, errors.StreamExists)
    await jetstream.create_object_store(bucket="o")
    with pytest.raises(errors.BucketExists, match=r"storage=file instead of memory: update it"):
        await jetstream.create_object_store(bucket="o", storage="memory")


async def test_existing_stream_error_names_fields(jetstream: JetStream) -> None:
    await jetstream.create_stream(name="S", subjects=["s.>"], max_age=60, metadata={"a": "1"})
    with pytest.raises(errors.StreamExists) as caught:
        await jetstream.create_stream(name="S", subjects=["s.a"], max_msgs=5)
    assert caught.value.differences == (
        "subjects=['s.>'] instead of ['s.a']",
        "max_age=60.0 instead of the default",
        "max_msgs=-1 instead of 5",
        "metadata={'a': '1'} instead of {}",
    )
    assert str(caught.value).endswith(": update it, or create it under another name")


@pytest.mark.parametrize("kind", ["key_value", "object_store"])
@pytest.mark.parametrize("verb", ["create", "create_or_update"])
async def test_refused_bucket_error_has_the_reason(jetstream: JetStream, verb: str, kind: str) -> None:
    write = getattr(jetstream, f"{verb}_{kind}")
    with pytest.raises(errors.InvalidStreamConfig, match="replicas > 1 not supported in non-clustered mode"):
        await write(bucket="b", num_replicas=3)
    if kind == "key_value":
        with pytest.raises(errors.InvalidStreamConfig, match="republish destination forms a cycle"):
            await write(bucket="b", republish=Republish(src=">", dest="$KV.b.>"))


async def test_existing_bucket_is_refused_without_its_info() -> None:
    config = """authorization { users: [
      { user: all, password: x }
      { user: blind, password: x, permissions: { publish: { deny: "$JS.API.STREAM.INFO.>" } } }
    ] }"""
    async with run_server(jetstream=True, config=config) as server:
        for user, history in (("all", 5), ("blind", 3)):
            async with natsproto.connect(server.url, user=user, password="x") as nc:
                creating = nc.jetstream().create_key_value(bucket="b", history=history)
                if user == "all":
                    await creating
                else:
                    with pytest.raises(errors.BucketExists, match="with another configuration"):
                        await creating
