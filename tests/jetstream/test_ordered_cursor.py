"""The position of an ordered reader, its consumers' configurations, and which messages it accepts, without a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from natsproto.errors import ConfigError, LocalProtocolError
from natsproto.jetstream._consumer.ordered.ordered_cursor import OrderedCursor
from natsproto.jetstream._values.config import ConsumerConfig
from natsproto.jetstream._values.info import ConsumerInfo, SequenceInfo
from natsproto.jetstream._values.policies import DeliverPolicy
from natsproto.jetstream._values.timestamp import Timestamp

THEN = Timestamp.parse("2026-01-01T00:00:00Z")


@dataclass
class At:
    """A message at a position."""

    _position: tuple[str, int, int]


class Foreign:
    """A message that another sender published to the inbox."""

    @property
    def _position(self) -> tuple[str, int, int]:
        raise LocalProtocolError("not from a consumer")


def cursor(**config: Any) -> OrderedCursor:
    """The cursor of a reader with its first consumer."""
    made = OrderedCursor("pre", ConsumerConfig(**config))
    made.next_consumer()
    return made


def created(stream_seq: int) -> ConsumerInfo:
    index = SequenceInfo(consumer_seq=0, stream_seq=stream_seq)
    return ConsumerInfo(
        stream_name="S", name="pre_1", created=THEN, config=ConsumerConfig(), delivered=index, ack_floor=index
    )


# ---------------------------------------------------------------- configurations


@pytest.mark.parametrize("option", ["idle_heartbeat", "flow_control"])
def test_options_of_push_are_refused_without_it(option: str) -> None:
    config = ConsumerConfig(**{option: 1 if option == "idle_heartbeat" else True})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="push=True") as caught:
        OrderedCursor("pre", config)
    assert caught.value.name == option
    assert OrderedCursor("pre", config, push=True).next_consumer(deliver_subject="to.me").flow_control


def test_option_that_the_reader_chooses_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        OrderedCursor("pre", ConsumerConfig(ack_wait=3))
    assert caught.value.name == "ack_wait"


def test_values_of_the_reader_itself_are_accepted() -> None:
    config = cursor(max_deliver=1, num_replicas=1, ack_policy="none").next_consumer()
    assert (config.max_deliver, config.num_replicas, config.ack_policy) == (1, 1, "none")


def test_given_times_are_kept() -> None:
    given = ConsumerConfig(inactive_threshold=60, idle_heartbeat=7)
    config = OrderedCursor("pre", given, push=True).next_consumer(deliver_subject="to.me")
    assert (config.inactive_threshold, config.idle_heartbeat, config.ack_policy) == (60, 7, "none")
    assert (config.name, config.mem_storage, config.max_deliver) == ("pre_1", True, 1)


def test_last_of_each_subject_keeps_its_filter() -> None:
    config = cursor(deliver_policy="last_per_subject", filter_subjects=["a"]).next_consumer()
    assert (config.filter_subject, config.filter_subjects) == ("a", ())


def test_start_time_counts_until_the_first_message() -> None:
    reader = cursor(deliver_policy="by_start_time", opt_start_time=THEN)
    assert reader.next_consumer().opt_start_time == THEN
    reader.on_message("pre_2", 1, 10)
    config = reader.next_consumer()
    assert (config.deliver_policy, config.opt_start_seq, config.opt_start_time) == ("by_start_sequence", 11, None)


def test_new_begins_where_its_first_consumer_stood() -> None:
    reader = cursor(deliver_policy="new")
    for stream_seq in (3, 9):
        reader.on_created(created(stream_seq))
        config = reader.next_consumer()
        assert (config.deliver_policy, config.opt_start_seq) == (DeliverPolicy.BY_START_SEQUENCE, 4)
    everything = cursor(deliver_policy="all")
    everything.on_created(created(3))
    assert everything.next_consumer().deliver_policy is DeliverPolicy.ALL


# ---------------------------------------------------------------- messages


def test_stale_messages_are_not_in_order() -> None:
    """They count from one, as the messages of the new consumer do."""
    reader = cursor()
    reader.next_consumer()
    assert reader.on_messages([At(("pre_1", 1, 5)), At(("pre_1", 2, 6))]) == 0
    assert not reader.on_message("pre_1", 1, 5)
    assert (reader.consumer_seq, reader.stream_seq) == (0, 0)


def test_foreign_message_ends_the_run() -> None:
    reader = cursor()
    assert reader.on_messages([At(("pre_1", 1, 5)), Foreign(), At(("pre_1", 2, 6))]) == 1
    assert reader.on_messages([At(("pre_1", 2, 6)), Foreign()]) == 1
    assert reader.on_messages([Foreign()]) == 0
    assert (reader.consumer_seq, reader.stream_seq) == (2, 6)


def test_numbers_of_the_consumer_decide_the_order() -> None:
    reader = cursor()
    assert reader.on_messages([At(("pre_1", 1, 5)), At(("pre_1", 2, 1))]) == 2
    assert (reader.consumer_seq, reader.stream_seq) == (2, 1)


@pytest.mark.parametrize("sign", ["messages", "heartbeat", "heartbeat of a gap"])
def test_consumer_that_sent_anything_is_heard(sign: str) -> None:
    reader = cursor()
    heard = [reader.is_heard]
    if sign == "messages":
        reader.on_messages([At(("pre_1", 1, 5))])
    else:
        reader.on_heartbeat(0 if sign == "heartbeat" else 1)
    heard.append(reader.is_heard)
    reader.next_consumer()
    heard.append(reader.is_heard)
    assert heard == [False, True, False]
