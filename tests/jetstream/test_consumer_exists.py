"""ConsumerExists says what differs between the existing consumer and the one that was asked for."""

from __future__ import annotations

import pickle

import pytest

from natsproto import errors
from natsproto.jetstream import ConsumerConfig, JetStream
from tests.jetstream.reading import make


async def test_existing_consumer_error_names_fields(jetstream: JetStream) -> None:
    stream = await make(jetstream)
    await stream.create_consumer(
        durable_name="c", max_deliver=5, filter_subjects=["s.a", "s.b"], ack_wait=60, metadata={"a": "1"}
    )
    with pytest.raises(errors.ConsumerExists) as caught:
        await stream.create_consumer(durable_name="c", max_deliver=3, headers_only=True)
    assert caught.value.differences == (
        "ack_wait=60.0 instead of the default",
        "filter_subjects=('s.a', 's.b') instead of the default",
        "headers_only=False instead of True",
        "max_deliver=5 instead of 3",
        "metadata={'a': '1'} instead of {}",
    )
    assert "already exists, with ack_wait=60.0 instead of the default, " in str(caught.value)
    assert str(caught.value).endswith("update it, or create it under another name")
    with pytest.raises(errors.ConsumerExists, match="max_deliver=5 instead of the default, metadata"):
        await stream.create_consumer(durable_name="c", filter_subjects=["s.b", "s.a"], ack_wait=60)
    await stream.create_consumer(durable_name="n", ack_policy="none")
    with pytest.raises(errors.ConsumerExists, match=r"with ack_policy=none instead of the default \("):
        await stream.create_consumer(durable_name="n", ack_policy="explicit")


async def test_existing_push_consumer_error_says_so(jetstream: JetStream) -> None:
    stream = await make(jetstream)
    await stream.create_push_consumer(durable_name="p", deliver_subject="to.p")
    with pytest.raises(errors.ConsumerExists, match=r"as a push consumer .deliver_subject 'to.p'.") as caught:
        await stream.create_consumer(durable_name="p")
    assert str(caught.value).endswith(": open it with push_consumer(name), or create one under another name")
    assert (caught.value.deliver_subject, caught.value.differences) == ("to.p", ())
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    await stream.create_consumer(durable_name="c")
    with pytest.raises(errors.ConsumerExists, match=r"deliver_subject='' instead of 'to.c'"):
        await stream.create_push_consumer(durable_name="c", deliver_subject="to.c")


async def test_first_argument_is_the_durable_name(jetstream: JetStream) -> None:
    stream = await jetstream.create_stream(name="S", subjects=["s.>"], storage="memory")
    for create in (stream.create_consumer, stream.create_or_update_consumer):
        consumer = await create("billing", filter_subject="s.eu")
        assert consumer.cached_info.config.durable_name == "billing"
        assert not consumer.cached_info.config.inactive_threshold
        with pytest.raises(errors.ConfigError, match="differs from 'billing': give one of them"):
            await create("billing", durable_name="shipping")
        with pytest.raises(TypeError, match="the first argument must be the durable_name or a ConsumerConfig, not int"):
            await create(5)  # type: ignore[arg-type]


async def test_name_that_looks_durable_is_refused(jetstream: JetStream) -> None:
    stream = await jetstream.create_stream(name="S", subjects=["s.>"], storage="memory")
    for create in (stream.create_consumer, stream.create_or_update_consumer, stream.create_push_consumer):
        with pytest.raises(errors.ConfigError, match="deletes a consumer with only a name after 5 s without a reader"):
            await create(name="c")
        with pytest.raises(errors.ConfigError, match="pass the name first, or as durable_name=, to keep it"):
            await create(ConsumerConfig(name="c"))
    assert [name async for name in stream.consumer_names()] == []
    await stream.create_consumer(name="c", inactive_threshold=60)
    await stream.create_consumer(name="d", durable_name="d")
    await stream.create_push_consumer(name="p", inactive_threshold=60)
    assert (await stream.update_consumer("c", max_deliver=4)).cached_info.config.inactive_threshold == 60
