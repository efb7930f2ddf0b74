"""The parts of configurations: placement, subject transforms, sources and limits, each a record of its own.

Owns what ``_arguments`` needs to name the types of its fields. The rules that combine them are in ``_config``.
"""

from __future__ import annotations

from natsproto.jetstream._values.codec import (
    UINT64,
    Many,
    Moment,
    Record,
    Seconds,
    Strings,
    flag,
    integer,
    many,
    moment,
    optional,
    seconds,
    strings,
    text,
)


class Placement(Record):
    """The servers for the replicas. ``preferred`` names the next leader, in step-down requests only."""

    cluster: str = text(default="")
    """The cluster whose servers may hold replicas; "" for any."""
    tags: Strings = strings(default=())
    """Tags that a server must all have, from ``server_tags`` in its configuration."""
    preferred: str = text(default="")
    """The server to become the leader. For step-down requests only; a stream ignores it."""


class SubjectTransform(Record):
    """Subjects that match ``src`` become ``dest`` (mapping rules of ADR-30)."""

    src: str = text()
    """The subjects to change, wildcards allowed; ">" for all."""
    dest: str = text()
    """The new subject, with functions such as ``{{wildcard(1)}}`` and ``{{partition(4,1)}}``."""


class Republish(Record):
    """Republishes stored messages whose subjects match ``src`` ("" for all) on ``dest``."""

    src: str = text(default="")
    """The subjects to publish again, wildcards allowed; "" for all of the stream."""
    dest: str = text()
    """The subject that subscribers of core NATS see, with the functions of a subject transform. It must not be one that
    the stream stores.
    """
    headers_only: bool = flag(default=False)
    """Publish the headers without the payload. ``Nats-Msg-Size`` has its size."""


class ExternalStream(Record):
    """A stream of another account or domain: the prefixes of its API and of its deliver subjects."""

    api: str = text()
    """The prefix of the other JetStream's API: ``$JS.<domain>.API``, or the import of another account."""
    deliver: str = text(default="")
    """The prefix on which the other account exports the messages; "" within one account."""


class StreamSourceConsumer(Record):
    """The durable consumer that is used for sourcing (ADR-60, server 2.14)."""

    name: str = text(default="")
    """The durable consumer on the source, created beforehand with ``ack_policy="flow_control"``."""
    deliver_subject: str = text(default="")
    """The subject to which that consumer sends the messages."""


class StreamSource(Record):
    """A stream whose messages are copied into this one: the origin of a mirror, or one of the sources."""

    name: str = text()
    """The stream to copy from."""
    opt_start_seq: int = integer(default=0, high=UINT64)
    """Copy from this sequence of the source on; 0: from its first message."""
    opt_start_time: Moment = moment(default=None)
    """Copy messages stored at or after this time; None: all."""
    filter_subject: str = text(default="")
    """Copy messages of these subjects only; "": all. Cannot be combined with ``subject_transforms``."""
    subject_transforms: Many[SubjectTransform] = many(SubjectTransform, default=())
    """Rules that choose messages by subject and rename them; the first that matches is used (server 2.10)."""
    external: ExternalStream | None = optional(ExternalStream, default=None)
    """Where the source is, if it is in another domain or account; ``in_domain`` fills it in."""
    consumer: StreamSourceConsumer | None = optional(StreamSourceConsumer, default=None)
    """A durable consumer to copy through, so that a source with limited rights can be used (server 2.14). None: the
    server makes one.
    """

    @classmethod
    def in_domain(cls, name: str, domain: str, **fields: object) -> StreamSource:
        """Create a source in another JetStream domain of the same account.

        Args:
            name: The stream to copy from, as it is called there.
            domain: The JetStream domain that holds the stream, such as that of a leaf node.
            **fields: Other fields of StreamSource, by keyword.
        """
        return cls(name=name).replace(external=ExternalStream(api=f"$JS.{domain}.API"), **fields)


class StreamConsumerLimits(Record):
    """Limits and defaults for the consumers of a stream."""

    inactive_threshold: Seconds = seconds(default=0.0)
    """The most that a consumer may set, in seconds, and its value if it sets none; 0: no limit."""
    max_ack_pending: int = integer(default=0, low=-1)
    """The most that a consumer may set, and its value if it sets none; 0 or -1: no limit."""
