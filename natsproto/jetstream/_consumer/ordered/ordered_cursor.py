"""PURE. The position of an ordered reader, and the check of the order of messages (ADR-17).

Owns the last good sequence and the configuration of the next consumer. It distinguishes the next message from a stale
one and from a gap; OrderedSource creates the consumers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from natsproto import errors
from natsproto.jetstream._consumer.pull.pull_limits import retry_wait
from natsproto.jetstream._values.config import ConsumerConfig
from natsproto.jetstream._values.info import ConsumerInfo
from natsproto.jetstream._values.policies import AckPolicy, DeliverPolicy
from natsproto.jetstream._values.record import changed

PUSH_HEARTBEAT_S = 1.0
"""Seconds between heartbeats of a push consumer by default. Only missing heartbeats reveal its loss: it is lost after
three.
"""


class ConsumerEnd(NamedTuple):
    """How reading from one consumer has ended; ``lost``: another consumer may continue."""

    error: errors.NatsError | None
    lost: bool = False


class Positioned(Protocol):
    """A message that a consumer delivered, as far as the check needs it."""

    @property
    def _position(self) -> tuple[str, int, int]:
        """Consumer, consumer sequence and stream sequence; LocalProtocolError for a message from another sender."""
        ...


class OrderedCursor:
    """The position of an ordered reader, and the configurations of its consumers (ADR-17).

    ``config`` sets the start and the filters; ConfigError for settings that an ordered consumer cannot have. The
    consumers are named by ``prefix`` and a serial number, so that messages of a dropped consumer are recognised.
    """

    def __init__(self, prefix: str, config: ConsumerConfig, *, push: bool = False) -> None:
        for what, value, wanted in (
            ("durable_name", config.durable_name, ""),
            ("name", config.name, ""),
            ("deliver_subject", config.deliver_subject, ""),
            ("deliver_group", config.deliver_group, ""),
            ("max_deliver", config.max_deliver in (-1, 1), True),
            ("num_replicas", config.num_replicas in (0, 1), True),
            ("ack_policy", config.ack_policy in (AckPolicy.NONE, AckPolicy.EXPLICIT), True),  # the latter by default
            ("backoff", config.backoff, ()),
            ("ack_wait", config.ack_wait, 0.0),  # nothing is acknowledged
        ):
            if value != wanted:
                raise errors.ConfigError(what, getattr(config, what), "an ordered consumer chooses this itself")
        if not push:
            for what in ("idle_heartbeat", "flow_control"):
                if value := getattr(config, what):
                    raise errors.ConfigError(
                        what, value, "is for push=True; one that pulls has messages(heartbeat=...)"
                    )
        self._base, self._prefix = config, prefix
        self.serial = 0
        self.name = ""
        self.stream_seq = 0  # of the last message delivered
        self.consumer_seq = 0
        self._begin = 0  # where the stream stood when "new" began, plus one
        self.is_heard = False
        """True once the consumer in use has sent anything."""
        self._failures = 0  # in a row

    def next_consumer(self, *, deliver_subject: str = "") -> ConsumerConfig:
        """The configuration of the next consumer, which starts after the last message. Earlier consumers are stale from
        now on.

        With ``deliver_subject`` a push consumer with flow control and heartbeats.
        """
        self.serial += 1
        self.name = f"{self._prefix}_{self.serial}"
        self.consumer_seq, self.is_heard = 0, False
        base = self._base
        filters = base.filters
        if base.deliver_policy == DeliverPolicy.LAST_PER_SUBJECT and not filters:
            filters = (">",)  # the server insists on a filter there
        changes: dict[str, object] = {
            "name": self.name,
            "ack_policy": AckPolicy.NONE,
            "max_deliver": 1,
            "num_replicas": 1,
            "mem_storage": True,
            "inactive_threshold": base.inactive_threshold or 300.0,
            "filter_subject": filters[0] if len(filters) == 1 else "",
            "filter_subjects": filters if len(filters) > 1 else (),
        }
        begin = self.stream_seq + 1 if self.stream_seq else self._begin
        if begin:
            changes |= {
                "deliver_policy": DeliverPolicy.BY_START_SEQUENCE,
                "opt_start_seq": begin,
                "opt_start_time": None,
            }
        if deliver_subject:
            changes |= {
                "deliver_subject": deliver_subject,
                "flow_control": True,
                "idle_heartbeat": base.idle_heartbeat or PUSH_HEARTBEAT_S,
                "ack_wait": 22 * 3600.0,
            }
        return changed(base, changes)

    def on_created(self, info: ConsumerInfo) -> None:
        """Record the created consumer. The start of "new" is kept in case the consumer is lost before its first
        message.
        """
        if self._base.deliver_policy == DeliverPolicy.NEW and not self._begin:
            self._begin = info.delivered.stream_seq + 1

    def on_failed(self) -> float:
        """Record that no consumer could be created, or that one was lost before it sent anything; return the seconds
        to wait: 0.1 at first, then 4 % of the time since the first failure, at most 10.
        """
        wait = retry_wait(self._failures)
        self._failures += 1
        return wait

    def on_messages(self, messages: Sequence[Positioned]) -> int:
        """Return the number of messages, from the first, that are in order, and move the cursor after them."""
        self.is_heard = True
        try:
            consumer, consumer_seq, stream_seq = messages[-1]._position
            # A consumer numbers its messages consecutively and a connection keeps their order. So when the last
            # of n messages is n further than the one before them, none of them is missing, doubled or out of order.
            count = len(messages)
            if (
                consumer == self.name
                and consumer_seq == self.consumer_seq + count
                and stream_seq >= self.stream_seq + count
            ):
                self.consumer_seq, self.stream_seq, self._failures = consumer_seq, stream_seq, 0
                return count
        except errors.LocalProtocolError:
            pass  # another sender used our inbox
        for count, message in enumerate(messages):
            try:
                if not self.on_message(*message._position):
                    return count
            except errors.LocalProtocolError:
                return count
        return len(messages)

    def on_message(self, consumer: str, consumer_seq: int, stream_seq: int) -> bool:
        """True if a message follows the last one: it is not from a dropped consumer and there is no gap. The cursor
        moves then.
        """
        if consumer != self.name or consumer_seq != self.consumer_seq + 1:
            return False
        self.consumer_seq, self.stream_seq, self._failures = consumer_seq, stream_seq, 0
        return True

    def on_heartbeat(self, last_consumer_seq: int) -> bool:
        """Check the last delivered sequence of a heartbeat (``Nats-Last-Consumer``). True if all messages arrived."""
        self.is_heard = True
        if last_consumer_seq > self.consumer_seq:
            return False
        self._failures = 0
        return True
