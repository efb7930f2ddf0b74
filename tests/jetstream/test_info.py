"""Answers of a real server: every field has its place here, nothing is left over, and refusals become typed errors."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproto import errors
from natsproto.errors import ApiError, InvalidReply, WrongLastSequence
from natsproto.jetstream._values.codec import Record, decode, dumps
from natsproto.jetstream._values.config import ConsumerConfig, StreamConfig
from natsproto.jetstream._values.config_parts import ExternalStream, StreamSource
from natsproto.jetstream._values.error_codes import ERROR_CLASSES, ErrCode, api_error, name_of
from natsproto.jetstream._values.info import (
    AccountInfo,
    ClusterInfo,
    ConsumerInfo,
    ConsumerNamesPage,
    ConsumerPage,
    ConsumerPause,
    ConsumerReset,
    DesiredCluster,
    Done,
    LostStreamData,
    MetaRescue,
    PubAck,
    Purged,
    RestoreReply,
    SnapshotReply,
    StoredMessage,
    StreamInfo,
    StreamNamesPage,
    StreamPage,
    SubjectsPage,
    pub_ack,
)
from natsproto.jetstream._values.policies import AckPolicy

if TYPE_CHECKING:
    from tests.jetstream.conftest import RawClient

R = TypeVar("R", bound=Record)


def create_raw(raw: RawClient, **fields: Any) -> StreamInfo:
    config = StreamConfig(name="S", subjects=["s.>"], storage="memory").replace(**fields)
    return whole(StreamInfo, raw.ask(f"STREAM.CREATE.{config.name}", dumps(config)))


def consume(raw: RawClient, **fields: Any) -> ConsumerInfo:
    config = ConsumerConfig(name="C").replace(**fields)
    request = dumps({"stream_name": "S", "config": config, "action": "create"})
    return whole(ConsumerInfo, raw.ask("CONSUMER.CREATE.S.C", request))


def whole(kind: type[R], reply: object) -> R:
    """The record in a reply, which must have a place for everything that the server said."""
    record = decode(kind, reply)
    assert left_over(record) == []
    return record


def left_over(value: object, path: str = "") -> list[str]:
    if isinstance(value, Record):
        found = [f"{path}.{key}" for key in value.extra]
        return found + [
            more for name in type(value)._fields for more in left_over(getattr(value, name), f"{path}.{name}")
        ]
    if isinstance(value, tuple):
        return [more for one in value for more in left_over(one, path)]
    return []


# ---------------------------------------------------------------- streams


def test_stream_info_knows_every_field(raw: RawClient) -> None:
    info = create_raw(raw)
    assert info.did_create
    assert info.name == "S"
    assert info.created.tzinfo is not None
    assert info.state.first_ts is None
    for number in range(3):
        raw.publish(f"s.{number}", b"x")
    raw.ask("STREAM.MSG.DELETE.S", b'{"seq":2}')
    info = whole(StreamInfo, raw.ask("STREAM.INFO.S", b'{"deleted_details":true,"subjects_filter":">"}'))
    assert (info.state.messages, info.state.first_seq, info.state.last_seq) == (2, 1, 3)
    assert info.state.subjects == {"s.0": 1, "s.2": 1}
    assert info.state.deleted == (2,)
    assert info.state.num_deleted == 1
    assert info.state.first_ts is not None
    assert info.state.last_ts is not None
    assert info.created < info.state.first_ts < info.state.last_ts < info.ts


def test_moments_of_the_server_keep_their_nanoseconds(raw: RawClient) -> None:
    create_raw(raw)
    raw.publish("s.a")
    reported = raw.ask("STREAM.INFO.S")
    info = decode(StreamInfo, reported)
    assert info.state.first_ts is not None
    assert info.state.first_ts.rfc3339() == reported["state"]["first_ts"]
    assert info.ts.rfc3339() == reported["ts"]


def test_a_sequence_above_the_signed_half_is_reported(raw: RawClient) -> None:
    assert create_raw(raw, first_seq=2**63 + 9).state.first_seq == 2**63 + 9


def test_the_pages_of_subjects_are_reported(raw: RawClient) -> None:
    create_raw(raw)
    raw.publish("s.a")
    page = decode(SubjectsPage, raw.ask("STREAM.INFO.S", b'{"subjects_filter":">","offset":0}'))
    assert (page.total, page.offset, page.limit) == (1, 0, 100_000)


def test_mirrors_and_sources_tell_how_they_do(raw: RawClient) -> None:
    create_raw(raw, name="ORIGIN", subjects=["o.>"])
    create_raw(raw, name="M", subjects=[], mirror=StreamSource(name="ORIGIN"))
    source = StreamSource(name="GONE", external=ExternalStream(api="$JS.hub.API", deliver="d"))
    create_raw(raw, sources=[StreamSource(name="ORIGIN", filter_subject="o.a"), source])
    mirror = whole(StreamInfo, raw.ask("STREAM.INFO.M")).mirror
    assert mirror is not None
    assert mirror.name == "ORIGIN"
    sources = whole(StreamInfo, raw.ask("STREAM.INFO.S")).sources
    assert {source.name for source in sources} == {"ORIGIN", "GONE"}
    gone = next(source for source in sources if source.name == "GONE")
    assert gone.active is None
    assert gone.external == source.external


def test_streams_are_reported_in_pages(raw: RawClient) -> None:
    assert whole(StreamNamesPage, raw.ask("STREAM.NAMES")).streams == ()  # a null list
    assert whole(StreamPage, raw.ask("STREAM.LIST")).streams == ()
    create_raw(raw)
    names = whole(StreamNamesPage, raw.ask("STREAM.NAMES", b'{"subject":"s.>"}'))
    assert (names.streams, names.total, names.offset, names.limit) == (("S",), 1, 0, 1024)
    page = whole(StreamPage, raw.ask("STREAM.LIST"))
    assert ([info.name for info in page.streams], page.missing, page.limit) == (["S"], (), 256)


def test_purge_and_delete_say_what_they_did(raw: RawClient) -> None:
    create_raw(raw)
    raw.publish("s.a")
    raw.publish("s.b")
    assert whole(Done, raw.ask("STREAM.MSG.DELETE.S", b'{"seq":1,"no_erase":true}')).success
    purged = whole(Purged, raw.ask("STREAM.PURGE.S"))
    assert (purged.success, purged.purged) == (True, 1)
    assert whole(Done, raw.ask("STREAM.DELETE.S")).success


def test_stored_message_has_headers_and_time(raw: RawClient) -> None:
    create_raw(raw)
    header = b"NATS/1.0\r\nA: b\r\n\r\n"
    raw.publish("s.a", b"\x00\xff", header)
    raw.publish("s.b")
    message = whole(StoredMessage, raw.ask("STREAM.MSG.GET.S", b'{"seq":1}')["message"])
    assert (message.subject, message.seq, message.hdrs, message.data) == ("s.a", 1, header, b"\x00\xff")
    empty = whole(StoredMessage, raw.ask("STREAM.MSG.GET.S", b'{"last_by_subj":"s.b"}')["message"])
    assert (empty.hdrs, empty.data) == (b"", b"")
    assert empty.time > message.time


def test_snapshot_config_is_taken_by_a_restore(raw: RawClient) -> None:
    create_raw(raw, storage="file")
    raw.publish("s.a")
    started = whole(SnapshotReply, raw.ask("STREAM.SNAPSHOT.S", b'{"deliver_subject":"chunks.here"}'))
    assert (started.config.name, started.state.messages) == ("S", 1)
    raw.ask("STREAM.DELETE.S")
    request = dumps({"config": started.config, "state": started.state})
    assert whole(RestoreReply, raw.ask("STREAM.RESTORE.S", request)).deliver_subject.startswith("$JS.SNAPSHOT")


# ---------------------------------------------------------------- consumers


def test_consumer_info_knows_every_field(raw: RawClient) -> None:
    create_raw(raw)
    raw.publish("s.a")
    info = consume(raw, durable_name="C")
    assert (info.stream_name, info.name, info.num_pending, info.config.ack_policy) == ("S", "C", 1, AckPolicy.EXPLICIT)
    assert info.delivered.last_active is None
    raw.request("$JS.API.CONSUMER.MSG.NEXT.S.C")
    info = whole(ConsumerInfo, raw.ask("CONSUMER.INFO.S.C"))
    assert (info.num_ack_pending, info.delivered.consumer_seq, info.delivered.stream_seq) == (1, 1, 1)
    assert info.delivered.last_active is not None
    assert info.delivered.last_active > info.created


def test_consumers_are_reported_in_pages(raw: RawClient) -> None:
    create_raw(raw)
    assert whole(ConsumerNamesPage, raw.ask("CONSUMER.NAMES.S")).consumers == ()
    consume(raw)
    assert whole(ConsumerNamesPage, raw.ask("CONSUMER.NAMES.S")).consumers == ("C",)
    page = whole(ConsumerPage, raw.ask("CONSUMER.LIST.S"))
    assert ([info.name for info in page.consumers], page.total) == (["C"], 1)


def test_a_pause_says_until_when(raw: RawClient) -> None:
    create_raw(raw)
    consume(raw)
    pause = whole(ConsumerPause, raw.ask("CONSUMER.PAUSE.S.C", b'{"pause_until":"2999-01-01T00:00:00Z"}'))
    assert pause.paused
    assert pause.pause_until is not None
    assert pause.pause_until.year == 2999
    info = whole(ConsumerInfo, raw.ask("CONSUMER.INFO.S.C"))
    assert info.paused
    assert info.pause_remaining > 3600
    resumed = whole(ConsumerPause, raw.ask("CONSUMER.PAUSE.S.C"))
    assert (resumed.paused, resumed.pause_until) == (False, None)


def test_a_reset_says_where_it_begins(raw: RawClient) -> None:
    create_raw(raw)
    raw.publish("s.a")
    consume(raw)
    reset = whole(ConsumerReset, raw.ask("CONSUMER.RESET.S.C", b'{"seq":1}'))
    assert (reset.name, reset.reset_seq) == ("C", 1)


def test_a_priority_group_says_who_is_pinned(raw: RawClient) -> None:
    create_raw(raw)
    raw.publish("s.a")
    consume(raw, priority_policy="pinned_client", priority_groups=["g"])
    raw.request("$JS.API.CONSUMER.MSG.NEXT.S.C", b'{"batch":1,"group":"g","expires":1000000000}')
    (group,) = whole(ConsumerInfo, raw.ask("CONSUMER.INFO.S.C")).priority_groups
    assert group.group == "g"
    assert group.pinned_client_id
    assert group.pinned_ts is not None
    assert "error" not in raw.api("CONSUMER.UNPIN.S.C", b'{"group":"g"}')


# ---------------------------------------------------------------- the account, clusters


def test_the_account_tells_what_it_uses(raw: RawClient) -> None:
    create_raw(raw)
    raw.publish("s.a", b"x" * 100)
    info = whole(AccountInfo, raw.ask("INFO"))
    assert info.streams == 1
    assert info.memory > 100
    assert info.api.level >= 1
    assert info.limits.max_streams == -1


def test_tiers_are_reported_by_name() -> None:
    tier = {"memory": 1, "storage": 2, "streams": 3, "consumers": 4, "limits": {"max_streams": 5}}
    info = whole(AccountInfo, {"tiers": {"R1": tier}, "api": {"level": 5, "total": 1, "errors": 0}})
    assert info.tiers["R1"].limits.max_streams == 5


def test_a_moving_stream_is_shown_with_all_its_peers() -> None:
    peer = {"name": "n2", "current": True, "active": 1500000, "lag": 3, "peer": "xyz", "pending": True}
    cluster = whole(
        ClusterInfo,
        {
            "name": "c",
            "raft_group": "S-R3F",
            "leader": "n1",
            "leader_since": "2026-01-01T00:00:00.1Z",
            "system_account": True,
            "traffic_account": "A",
            "replicas": [peer],
            "desired": {
                "name": "c",
                "replicas": [peer],
                "origin": {"replicas": 1, "placement": {"tags": ["a"]}, "retention": "interest"},
                "status": {"description": "waiting", "type": "catchup", "err": "x"},
            },
        },
    )
    assert cluster.replicas[0].active == 0.0015
    assert isinstance(cluster.desired, DesiredCluster)
    assert cluster.desired.status is not None
    assert cluster.desired.status.type == "catchup"


def test_lost_messages_and_a_rescue_are_reported() -> None:
    assert whole(LostStreamData, {"msgs": [1, 2], "bytes": 9}).msgs == (1, 2)
    rescue = {"type": "t", "server": "a", "server_id": "A", "prev_quorum": 2, "new_quorum": 1}
    assert whole(MetaRescue, rescue).new_quorum == 1


# ---------------------------------------------------------------- acknowledgements


def test_pub_ack_of_a_duplicate(raw: RawClient) -> None:
    create_raw(raw)
    header = b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n"
    assert pub_ack(raw.publish("s.a", b"", header)) == PubAck(stream="S", seq=1)
    assert pub_ack(raw.publish("s.a", b"", header)) == PubAck(stream="S", seq=1, duplicate=True)


def test_pub_ack_of_counters_and_batches(raw: RawClient) -> None:
    create_raw(raw, name="N", subjects=["n.>"], allow_msg_counter=True)
    count = b"NATS/1.0\r\nNats-Incr: +99999999999999999999999\r\n\r\n"
    assert pub_ack(raw.publish("n.a", b"", count)).val == "99999999999999999999999"
    create_raw(raw, allow_atomic=True)
    batch = b"NATS/1.0\r\nNats-Batch-Id: b\r\nNats-Batch-Sequence: 1\r\nNats-Batch-Commit: 1\r\n\r\n"
    assert pub_ack(raw.publish("s.a", b"", batch)) == PubAck(stream="S", seq=1, batch="b", count=1)


@given(
    st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=10),
    st.integers(0, 2**64 - 1),
    st.sampled_from(["", "hub"]),
    st.booleans(),
    st.sampled_from([(",", ":"), (", ", ": ")]),
)
def test_pub_ack_fast_path_equals_the_codec(
    stream: str, seq: int, domain: str, duplicate: bool, separators: tuple[str, str]
) -> None:
    said: dict[str, object] = {"stream": stream, "seq": seq}
    if domain:
        said = {"stream": stream, "domain": domain, "seq": seq}
    if duplicate:
        said["duplicate"] = True
    data = json.dumps(said, separators=separators, ensure_ascii=False).encode()
    assert pub_ack(data) == decode(PubAck, said)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"+OK",
        b"{}",
        b"[]",
        b'{"stream":"S"}',
        b'{"stream":1,"seq":1}',
        b"\xff",
        b'{"stream":"S","seq":-5}',
        b'{"stream":"S","seq":1,"batch":"b","count":-1}',
    ],
)
def test_what_is_no_acknowledgement_is_reported_so(data: bytes) -> None:
    with pytest.raises(InvalidReply):
        pub_ack(data)


def test_pub_ack_with_an_error_and_a_stream(raw: RawClient) -> None:
    create_raw(raw)
    raw.publish("s.a")
    header = b"NATS/1.0\r\nNats-Expected-Last-Sequence: 9\r\n\r\n"
    with pytest.raises(WrongLastSequence) as caught:
        pub_ack(raw.publish("s.a", b"", header), "publish to 's.a'")
    assert caught.value.last == 1
    assert str(caught.value) == "publish to 's.a': wrong last sequence: 1 (code 400, err_code 10071)"


# ---------------------------------------------------------------- refusals


def refusals(raw: RawClient) -> Iterable[tuple[int, type[ApiError], dict[str, object]]]:
    """What a real server refuses: the code, the class here, the reply."""
    create_raw(raw)
    raw.publish("s.a")
    consume(raw)
    other = dumps(StreamConfig(name="S", subjects=["other"]))
    changed = {"stream_name": "S", "config": ConsumerConfig(name="C", ack_wait=3), "action": "create"}
    push = {"stream_name": "S", "config": ConsumerConfig(name="P", idle_heartbeat=1), "action": "create"}
    unknown = {"stream_name": "S", "config": ConsumerConfig(name="D"), "action": "update"}
    yield 10059, errors.StreamNotFound, raw.api("STREAM.INFO.NONE")
    yield 10014, errors.ConsumerNotFound, raw.api("CONSUMER.INFO.S.NONE")
    yield 10149, errors.ConsumerNotFound, raw.api("CONSUMER.CREATE.S.D", dumps(unknown))
    yield 10058, errors.StreamExists, raw.api("STREAM.CREATE.S", other)
    yield 10065, errors.SubjectsOverlap, raw.api("STREAM.CREATE.T", dumps(StreamConfig(name="T", subjects=["s.x"])))
    yield 10148, errors.ConsumerExists, raw.api("CONSUMER.CREATE.S.C", dumps(changed))
    yield 10037, errors.MessageNotFound, raw.api("STREAM.MSG.GET.S", b'{"seq":99}')
    yield 10043, errors.MessageNotFound, raw.api("STREAM.MSG.DELETE.S", b'{"seq":99}')
    yield 10025, errors.BadRequest, raw.api("STREAM.CREATE.T", b'{"name":"T","from_the_future":1}')
    yield 10056, errors.BadRequest, raw.api("STREAM.CREATE.U", dumps(StreamConfig(name="T")))
    yield 10052, errors.InvalidStreamConfig, raw.api("STREAM.CREATE.T", dumps({"name": "T", "max_age": 5}))
    yield 10088, errors.InvalidConsumerConfig, raw.api("CONSUMER.CREATE.S.P", dumps(push))
    yield 10054, errors.MessageTooLarge, refused_publish(raw, "B", max_msg_size=1)
    yield 10077, errors.LimitReached, refused_publish(raw, "L", max_msgs=1, discard="new")
    yield 10057, errors.StreamProtected, denied_delete(raw)
    yield 10166, errors.TtlRefused, json.loads(raw.publish("s.a", b"", b"NATS/1.0\r\nNats-TTL: 5\r\n\r\n"))
    yield (
        10060,
        errors.WrongExpectation,
        json.loads(raw.publish("s.a", b"", b"NATS/1.0\r\nNats-Expected-Stream: X\r\n\r\n")),
    )
    yield (
        10174,
        errors.BatchRefused,
        json.loads(raw.publish("s.a", b"", b"NATS/1.0\r\nNats-Batch-Id: b\r\nNats-Batch-Sequence: 1\r\n\r\n")),
    )
    yield 10168, errors.CounterRefused, json.loads(raw.publish("s.a", b"", b"NATS/1.0\r\nNats-Incr: 1\r\n\r\n"))
    yield (
        10188,
        errors.ScheduleRefused,
        json.loads(raw.publish("s.a", b"", b"NATS/1.0\r\nNats-Schedule: @at 2999-01-01T00:00:00Z\r\n\r\n")),
    )


def refused_publish(raw: RawClient, name: str, **limits: object) -> dict[str, object]:
    create_raw(raw, name=name, subjects=[f"{name}.>"], **limits)
    raw.publish(f"{name}.a")
    reply: dict[str, object] = json.loads(raw.publish(f"{name}.a", b"more than one byte"))
    return reply


def denied_delete(raw: RawClient) -> dict[str, object]:
    create_raw(raw, name="D", subjects=["d"], deny_delete=True)
    raw.publish("d")
    return raw.api("STREAM.MSG.DELETE.D", b'{"seq":1}')


def test_api_error_class_of_real_refusals(raw: RawClient) -> None:
    for err_code, kind, reply in refusals(raw):
        refusal = api_error(reply, "ask")
        assert (refusal.err_code, type(refusal)) == (err_code, kind), reply
        reported = reply["error"]
        assert isinstance(reported, dict)
        assert (refusal.code, refusal.description, refusal.operation) == (
            reported["code"],
            reported["description"],
            "ask",
        )
        assert str(refusal).startswith(f"ask: {refusal.description} (code {refusal.code}")


def test_every_code_of_the_server_has_one_name() -> None:
    codes = [code for name, code in vars(ErrCode).items() if name.isupper()]
    assert sorted(codes) == list(range(10002, 10228))
    assert name_of(ErrCode.STREAM_NOT_FOUND) == "STREAM_NOT_FOUND"
    assert name_of(99999) == ""
    assert ERROR_CLASSES.keys() <= set(codes)


def test_api_error_classes_all_have_a_code() -> None:
    raised = set(ERROR_CLASSES.values())
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ApiError)}
    assert kinds - raised == {ApiError, errors.ConsumerDeleted}


def test_api_error_of_an_unknown_code() -> None:
    refusal = api_error({"error": {"code": 400, "err_code": 19999, "description": "too green"}})
    assert type(refusal) is ApiError
    assert str(refusal) == "too green (code 400, err_code 19999)"


@pytest.mark.parametrize("payload", [{}, {"error": None}, {"error": "no"}, {"error": {}}, {"error": {"code": "x"}}])
def test_an_odd_error_is_an_error_all_the_same(payload: dict[str, object]) -> None:
    assert isinstance(api_error(payload), ApiError)


def test_wrong_sequence_of_a_replica_has_no_number() -> None:
    refusal = api_error({"code": 400, "err_code": 10164, "description": "wrong last sequence"})
    assert isinstance(refusal, WrongLastSequence)
    assert refusal.last is None


@pytest.mark.parametrize(
    "error",
    [
        api_error({"code": 400, "err_code": 10071, "description": "wrong last sequence: 7"}, "publish"),
        errors.KeyDeleted("cfg", "eu.tax", 3),
        errors.KeyExists("cfg", "eu.tax", 3),
        errors.ObjectNotFound("files", "model"),
        errors.ConsumerGone("was deleted", "C", "S"),
        errors.RequestTimeout("flush", 1.0),
        errors.ConfigError("max_age", 0, "wrong"),
    ],
)
def test_an_error_survives_the_way_to_another_process(error: errors.NatsError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_missing_key_is_a_readable_key_error() -> None:
    assert isinstance(errors.KeyDeleted("b", "k", 3), KeyError)
    assert str(errors.KeyNotFound("b", "k")) == "key 'k' in bucket 'b': not found"
    assert str(errors.KeyDeleted("b", "k", 3, "PURGE")) == "key 'k' at revision 3 in bucket 'b': purged"
    assert str(errors.ObjectNotFound("b", "o")) == "object 'o' in store 'b': not found"


def test_stored_message_data_is_base64_on_the_wire() -> None:
    said = {"subject": "a", "seq": 1, "data": base64.b64encode(b"\xff").decode(), "time": "2026-01-01T00:00:00Z"}
    assert decode(StoredMessage, said).data == b"\xff"
