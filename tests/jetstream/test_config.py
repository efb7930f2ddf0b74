"""Configurations: every field reaches a real server and comes back, and mistakes are told before anything is sent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproto.errors import ConfigError, InvalidSubject
from natsproto.jetstream._values.asset_names import (
    check_bucket_name,
    check_consumer_name,
    check_priority_group,
    check_stream_name,
)
from natsproto.jetstream._values.bucket_config import KeyValueConfig, ObjectStoreConfig
from natsproto.jetstream._values.codec import Record, decode, dumps, encode
from natsproto.jetstream._values.config import ConsumerConfig, StreamConfig
from natsproto.jetstream._values.config_parts import (
    ExternalStream,
    Placement,
    Republish,
    StreamConsumerLimits,
    StreamSource,
    StreamSourceConsumer,
    SubjectTransform,
)
from natsproto.jetstream._values.info import ConsumerInfo, StreamInfo
from natsproto.jetstream._values.policies import (
    AckPolicy,
    Compression,
    DeliverPolicy,
    DiscardPolicy,
    PersistMode,
    PriorityPolicy,
    ReplayPolicy,
    RetentionPolicy,
    StorageType,
)
from natsproto.jetstream._values.timestamp import Timestamp

if TYPE_CHECKING:
    from tests.jetstream.conftest import RawClient


def create_stream(raw: RawClient, config: StreamConfig) -> StreamInfo:
    config.check()
    return decode(StreamInfo, raw.ask(f"STREAM.CREATE.{config.name}", dumps(config)))


def update_stream(raw: RawClient, config: StreamConfig) -> StreamInfo:
    config.check()
    return decode(StreamInfo, raw.ask(f"STREAM.UPDATE.{config.name}", dumps(config)))


def create_consumer(raw: RawClient, stream: str, config: ConsumerConfig, action: str = "create") -> ConsumerInfo:
    config.check()
    name = config.name or config.durable_name
    request = dumps({"stream_name": stream, "config": config, "action": action})
    return decode(ConsumerInfo, raw.ask(f"CONSUMER.CREATE.{stream}.{name}", request))


def given_fields(asked: Record, answered: Record) -> dict[str, tuple[object, object]]:
    """What was asked for and answered otherwise, by field."""
    names = [name for name in type(asked)._fields if getattr(asked, name) != type(asked)._fields[name].default]
    return {
        name: (getattr(asked, name), getattr(answered, name))
        for name in names
        if name != "metadata" and getattr(asked, name) != getattr(answered, name)
    }


# ---------------------------------------------------------------- names


@pytest.mark.parametrize("check", [check_stream_name, check_consumer_name])
@pytest.mark.parametrize("name", ["", "a.b", "a*", ">", "a b", "a\tb", "a\r\nb", "a/b", "a\\b", "x" * 256, "é" * 128])
def test_invalid_name_is_refused_before_sending(check: type, name: str) -> None:
    with pytest.raises(InvalidSubject):
        check(name)


@pytest.mark.parametrize("check", [check_stream_name, check_consumer_name, check_bucket_name, check_priority_group])
def test_a_name_is_a_string(check: type) -> None:
    with pytest.raises(TypeError, match="must be a str"):
        check(None)


@pytest.mark.parametrize("name", ["ORDERS", "a-b_c", "x" * 255, "größe", "$G", "a:b|c?"])
def test_valid_name_is_taken_by_the_server(raw: RawClient, name: str) -> None:
    assert create_stream(raw, StreamConfig(name=check_stream_name(name), subjects=["a"], storage="memory")).name == name


@pytest.mark.parametrize("name", ["", "a.b", "a b", "é", "a" * 256, "$x", "a/b"])
def test_a_bucket_name_has_few_characters(name: str) -> None:
    with pytest.raises(InvalidSubject):
        check_bucket_name(name)


@pytest.mark.parametrize("name", ["", "a.b", "a b", "x" * 17])
def test_a_priority_group_is_short(name: str) -> None:
    with pytest.raises(InvalidSubject):
        check_priority_group(name)
    with pytest.raises(InvalidSubject):
        ConsumerConfig(priority_groups=[name]).check()


@given(st.text(max_size=12))
def test_any_text_is_a_name_or_is_refused_as_one(name: str) -> None:
    try:
        taken = check_stream_name(name)
    except InvalidSubject:
        taken = name
    assert taken == name


# ---------------------------------------------------------------- what check() tells


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (StreamConfig(), "stream name"),
        (StreamConfig(name="a.b"), "stream name"),
        (StreamConfig(name="S", subjects=["a..b"]), "subjects"),
        (StreamConfig(name="S", subjects=["a b"]), "subjects"),
        (StreamConfig(name="S", mirror=StreamSource(name="a.b")), "stream name"),
        (StreamConfig(name="S", sources=[StreamSource(name="A", filter_subject="a.")]), "filter_subject"),
        (
            StreamConfig(name="S", sources=[StreamSource(name="A", external=ExternalStream(api="$JS.*.API"))]),
            "external.api",
        ),
        (StreamConfig(name="S", description="x" * 4097), "description"),
        (StreamConfig(name="S", metadata={"a": "x" * 128 * 1024}), "metadata"),
        (ConsumerConfig(name="a.b"), "consumer name"),
        (ConsumerConfig(durable_name="a b"), "consumer name"),
        (ConsumerConfig(name="a", durable_name="b"), "name"),
        (ConsumerConfig(filter_subject="a", filter_subjects=["b"]), "filter_subject"),
        (ConsumerConfig(filter_subjects=["a", ""]), "filter subject"),
        (ConsumerConfig(deliver_subject="a.*"), "deliver_subject"),
        (ConsumerConfig(sample_freq="often"), "sample_freq"),
    ],
)
def test_check_tells_what_a_server_answers_badly(config: StreamConfig | ConsumerConfig, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.check()
    assert caught.value.name == what


def test_subjects_given_as_one_string_are_refused() -> None:
    with pytest.raises(TypeError, match="a list or tuple of strings"):
        StreamConfig(name="S", subjects="orders.>")


def test_duration_in_nanoseconds_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="durations are seconds"):
        StreamConfig(name="S", max_age=3600 * 10**9)


# ---------------------------------------------------------------- streams on a real server

EVERY_STREAM_FIELD = [
    StreamConfig(
        name="S",
        description="all of it",
        subjects=["s.>", "t.*"],
        retention="limits",
        max_consumers=7,
        max_msgs=1000,
        max_bytes=10_000,
        max_age=3600.000000001,
        max_msgs_per_subject=5,
        max_msg_size=900,
        discard=DiscardPolicy.NEW,
        discard_new_per_subject=True,
        storage="file",
        num_replicas=1,
        no_ack=True,
        duplicate_window=timedelta(seconds=90),
        compression="s2",
        first_seq=2**63 + 5,
        subject_transform=SubjectTransform(src="s.*", dest="u.{{wildcard(1)}}"),
        republish=Republish(src="s.>", dest="copy.>", headers_only=True),
        allow_direct=True,
        deny_delete=True,
        allow_rollup_hdrs=True,
        consumer_limits=StreamConsumerLimits(inactive_threshold=30, max_ack_pending=50),
        allow_msg_ttl=True,
        subject_delete_marker_ttl=1.5,
        allow_atomic=True,
        allow_batched=True,
        metadata={"owner": "tests"},
    ),
    StreamConfig(name="S", storage="memory", retention="workqueue", deny_purge=True),
    StreamConfig(name="S", storage="memory", retention="interest", allow_msg_schedules=True),
    StreamConfig(name="S", subjects=["c.>"], allow_msg_counter=True, allow_direct=True),
    StreamConfig(name="S", persist_mode="async"),
    StreamConfig(
        name="S",
        mirror=StreamSource(
            name="ORIGIN",
            opt_start_time=Timestamp.parse("2024-05-01T10:00:00.123456789+02:00"),
            subject_transforms=[SubjectTransform(src="o.*", dest="p.{{wildcard(1)}}")],
        ),
        mirror_direct=True,
    ),
    StreamConfig(
        name="S",
        sources=[
            StreamSource(name="A", opt_start_seq=10, filter_subject="a.>"),
            StreamSource(name="B", external=ExternalStream(api="$JS.hub.API", deliver="deliver.here")),
            StreamSource(name="C", consumer=StreamSourceConsumer(name="dur", deliver_subject="to.here")),
        ],
    ),
]


@pytest.mark.parametrize("config", EVERY_STREAM_FIELD, ids=range(len(EVERY_STREAM_FIELD)))
def test_every_stream_field_comes_back_from_the_server(raw: RawClient, config: StreamConfig) -> None:
    info = create_stream(raw, config)
    # A mirror of a stream that is not there takes no direct gets over; the server decides.
    assert given_fields(config, info.config.replace(mirror_direct=config.mirror_direct)) == {}
    assert info.config.metadata.items() >= config.metadata.items()


@pytest.mark.parametrize("config", EVERY_STREAM_FIELD, ids=range(len(EVERY_STREAM_FIELD)))
def test_stream_updated_with_its_own_info(raw: RawClient, config: StreamConfig) -> None:
    created = create_stream(raw, config).config
    assert update_stream(raw, created).config == created
    assert update_stream(raw, created.replace(description="new")).config == created.replace(description="new")


def test_stream_defaults_are_those_of_the_server(raw: RawClient) -> None:
    answered = create_stream(raw, StreamConfig(name="S")).config
    decided: dict[str, Any] = {"subjects": ["S"], "duplicate_window": 120, "metadata": answered.metadata}
    assert answered == StreamConfig(name="S").replace(**decided)


@pytest.mark.parametrize(
    ("field", "kind"),
    [
        ("retention", RetentionPolicy),
        ("storage", StorageType),
        ("discard", DiscardPolicy),
        ("compression", Compression),
        ("persist_mode", PersistMode),
    ],
)
def test_every_choice_of_a_stream_is_one_of_the_server(raw: RawClient, field: str, kind: type[StrEnum]) -> None:
    for number, value in enumerate(kind):
        chosen: dict[str, Any] = {field: value}
        as_text: dict[str, Any] = {field: str(value)}
        config = StreamConfig(name=f"S{number}").replace(**chosen)
        info = create_stream(raw, config)
        assert getattr(info.config, field) is value
        assert create_stream(raw, config.replace(**as_text)).config == info.config


def test_a_stream_can_be_sealed_and_stays_so(raw: RawClient) -> None:
    info = create_stream(raw, StreamConfig(name="S"))
    sealed = update_stream(raw, info.config.replace(sealed=True)).config
    assert sealed.sealed
    assert sealed.deny_delete
    assert sealed.deny_purge


def test_start_time_keeps_nanoseconds_and_offset(raw: RawClient) -> None:
    reported = "2024-05-01T10:00:00.123456789+02:00"
    mirror = StreamSource(name="ORIGIN", opt_start_time=Timestamp.parse(reported))
    stream = create_stream(raw, StreamConfig(name="S", mirror=mirror)).config
    assert update_stream(raw, stream).config == stream
    for text in ("2024-05-01T10:00:00.123456+02:00", "2024-05-01T08:00:00.123456789Z"):
        changed = stream.replace(mirror=mirror.replace(opt_start_time=Timestamp.parse(text)))
        assert raw.api("STREAM.UPDATE.S", dumps(changed))["error"]["err_code"] == 10055


def test_placement_comes_back(raw: RawClient) -> None:
    reply = raw.api("STREAM.CREATE.S", dumps(StreamConfig(name="S", placement=Placement(cluster="c", tags=["t"]))))
    # A server without a cluster cannot place; that it says so shows that it could read the request.
    assert "error" not in reply or reply["error"]["err_code"] != 10025


# ---------------------------------------------------------------- consumers on a real server

EVERY_CONSUMER_FIELD = [
    ConsumerConfig(
        durable_name="C",
        name="C",
        description="pull",
        deliver_policy="by_start_time",
        opt_start_time=Timestamp.parse("2024-05-01T10:00:00.123456789+02:00"),
        ack_policy="explicit",
        ack_wait=5,
        max_deliver=4,
        backoff=[5, timedelta(seconds=6), 7.5],
        filter_subjects=["s.a", "s.b"],
        replay_policy="original",
        sample_freq="30%",
        max_waiting=9,
        max_ack_pending=11,
        headers_only=True,
        max_batch=12,
        max_expires=13,
        max_bytes=14_000,
        inactive_threshold=15,
        num_replicas=1,
        mem_storage=True,
        metadata={"owner": "tests"},
        pause_until=datetime(2999, 1, 1, tzinfo=UTC),
    ),
    ConsumerConfig(
        name="C",
        deliver_subject="to.here",
        deliver_group="group",
        flow_control=True,
        idle_heartbeat=1.5,
        rate_limit_bps=2**20,
        ack_policy="none",
        deliver_policy="by_start_sequence",
        opt_start_seq=2**63 + 1,
        filter_subject="s.a",
    ),
    ConsumerConfig(name="C", ack_policy="all", deliver_policy="last_per_subject", filter_subject="s.>"),
    ConsumerConfig(
        name="C", priority_policy="pinned_client", priority_groups=["jobs"], priority_timeout=30, max_ack_pending=-1
    ),
    ConsumerConfig(
        name="C",
        ack_policy="flow_control",
        deliver_subject="to.here",
        flow_control=True,
        idle_heartbeat=1,
        max_ack_pending=5,
    ),
]


@pytest.mark.parametrize("config", EVERY_CONSUMER_FIELD, ids=range(len(EVERY_CONSUMER_FIELD)))
def test_consumer_fields_come_back(raw: RawClient, config: ConsumerConfig) -> None:
    create_stream(raw, StreamConfig(name="S", subjects=["s.>"]))
    created = create_consumer(raw, "S", config).config
    assert given_fields(config, created) == {}
    assert created.metadata.items() >= config.metadata.items()
    assert create_consumer(raw, "S", created, "update").config == created


def test_consumer_defaults_are_those_of_the_server(raw: RawClient) -> None:
    create_stream(raw, StreamConfig(name="S"))
    answered = create_consumer(raw, "S", ConsumerConfig(durable_name="C")).config
    decided: dict[str, Any] = {
        "name": "C",
        "ack_wait": 30,
        "max_waiting": 512,
        "max_ack_pending": 1000,
        "metadata": answered.metadata,
    }
    assert answered == ConsumerConfig(durable_name="C").replace(**decided)


def test_consumer_waits_for_acks_by_default(raw: RawClient) -> None:
    create_stream(raw, StreamConfig(name="S"))
    assert encode(ConsumerConfig()) == {"ack_policy": "explicit"}
    assert create_consumer(raw, "S", ConsumerConfig(name="C")).config.ack_policy is AckPolicy.EXPLICIT


@pytest.mark.parametrize(
    ("field", "kind", "needs"),
    [
        ("deliver_policy", DeliverPolicy, {"by_start_sequence": {"opt_start_seq": 1}}),
        ("ack_policy", AckPolicy, {"flow_control": {"deliver_subject": "x", "max_ack_pending": 1}}),
        ("replay_policy", ReplayPolicy, {}),
        ("priority_policy", PriorityPolicy, {}),
    ],
)
def test_consumer_choices_are_those_of_the_server(
    raw: RawClient, field: str, kind: type[StrEnum], needs: dict[str, dict[str, object]]
) -> None:
    create_stream(raw, StreamConfig(name="S", subjects=["s.>"]))
    for number, value in enumerate(kind):
        more: dict[str, Any] = {field: value, **needs.get(str(value), {})}
        if value is DeliverPolicy.BY_START_TIME:
            more["opt_start_time"] = datetime(2024, 1, 1, tzinfo=UTC)
        elif value is DeliverPolicy.LAST_PER_SUBJECT:
            more["filter_subject"] = "s.a"
        elif kind is PriorityPolicy and value is not PriorityPolicy.NONE:
            more["priority_groups"] = ["g"]
        info = create_consumer(raw, "S", ConsumerConfig(name=f"C{number}").replace(**more))
        assert getattr(info.config, field) is value


# ---------------------------------------------------------------- buckets and object stores


def test_bucket_config_is_a_stream_and_back(raw: RawClient) -> None:
    asked = KeyValueConfig(
        bucket="cfg",
        description="d",
        history=5,
        ttl=3600,
        max_value_size=100,
        max_bytes=10_000,
        storage="memory",
        republish=Republish(src=">", dest="copy.>"),
        limit_marker_ttl=2,
        allow_atomic=True,
    )
    stream = create_stream(raw, asked.to_stream()).config
    assert stream.name == "KV_cfg"
    assert stream.subjects == ("$KV.cfg.>",)
    assert stream.duplicate_window == 120
    assert (stream.discard, stream.allow_rollup_hdrs, stream.deny_delete, stream.allow_direct) == (
        DiscardPolicy.NEW,
        True,
        True,
        True,
    )
    assert KeyValueConfig.from_stream(stream).replace(metadata={}) == asked
    assert update_stream(raw, KeyValueConfig.from_stream(stream).to_stream()).config == stream


def test_a_short_ttl_bounds_the_duplicate_window(raw: RawClient) -> None:
    assert create_stream(raw, KeyValueConfig(bucket="b", ttl=10).to_stream()).config.duplicate_window == 10


def test_a_bucket_mirrors_a_bucket(raw: RawClient) -> None:
    create_stream(raw, KeyValueConfig(bucket="origin").to_stream())
    for number, name in enumerate(("origin", "KV_origin")):
        stream = KeyValueConfig(bucket=f"m{number}", mirror=StreamSource(name=name)).to_stream()
        assert stream.mirror is not None
        assert (stream.mirror.name, stream.subjects, stream.mirror_direct) == ("KV_origin", (), True)
        assert create_stream(raw, stream).config.mirror_direct


def test_bucket_source_keys_become_its_own(raw: RawClient) -> None:
    create_stream(raw, KeyValueConfig(bucket="eu").to_stream())
    own = SubjectTransform(src="events.>", dest="$KV.all.>")
    config = KeyValueConfig(
        bucket="all", sources=[StreamSource(name="eu"), StreamSource(name="EVENTS", subject_transforms=[own])]
    )
    stream = create_stream(raw, config.to_stream()).config
    assert [source.name for source in stream.sources] == ["KV_eu", "EVENTS"]
    assert stream.sources[0].subject_transforms == (SubjectTransform(src="$KV.eu.>", dest="$KV.all.>"),)
    assert stream.sources[1].subject_transforms == (own,)
    assert KeyValueConfig.from_stream(stream).to_stream().sources == stream.sources


@pytest.mark.parametrize(
    "config",
    [
        KeyValueConfig(bucket="a.b"),
        KeyValueConfig(bucket="b", limit_marker_ttl=0.5),
        KeyValueConfig(bucket="b", mirror=StreamSource(name="m"), sources=[StreamSource(name="s")]),
        ObjectStoreConfig(bucket="a b"),
    ],
)
def test_bucket_config_is_checked_before_sending(config: KeyValueConfig | ObjectStoreConfig) -> None:
    with pytest.raises(ConfigError):
        config.to_stream()


def test_history_has_bounds() -> None:
    for history in (0, 65):
        with pytest.raises(ConfigError):
            KeyValueConfig(bucket="b", history=history)


def test_object_store_config_is_a_stream_and_back(raw: RawClient) -> None:
    asked = ObjectStoreConfig(bucket="files", description="d", ttl=60, max_bytes=10_000, compression=True)
    stream = create_stream(raw, asked.to_stream()).config
    assert (stream.name, stream.subjects) == ("OBJ_files", ("$O.files.C.>", "$O.files.M.>"))
    assert ObjectStoreConfig.from_stream(stream).replace(metadata={}) == asked


def test_only_a_buckets_stream_is_read_as_one() -> None:
    with pytest.raises(ConfigError, match="begin with KV_"):
        KeyValueConfig.from_stream(StreamConfig(name="OBJ_x"))
    with pytest.raises(ConfigError, match="begin with OBJ_"):
        ObjectStoreConfig.from_stream(StreamConfig(name="KV_x"))
