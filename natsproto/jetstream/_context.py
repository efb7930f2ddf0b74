"""The JetStream context: the entry to streams, consumers and acknowledged publishing.

Owns only its Api; every method documents a call of another module.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Iterable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from natsproto import errors
from natsproto._durations import positive_seconds, seconds
from natsproto._help.async_hints import items
from natsproto._help.introspection import import_late_types
from natsproto.codecs import Codec, TypeForm
from natsproto.jetstream._api.admin import Admin
from natsproto.jetstream._bucket_manager import BucketManager
from natsproto.jetstream._consumer.message import JsMessage
from natsproto.jetstream._cursor import Cursor, cursor_subject
from natsproto.jetstream._publish.atomic_batch import ATOMIC_BATCH, MAX_ATOMIC_MESSAGES, AtomicBatch
from natsproto.jetstream._publish.fast.fast_batch import DEFAULT_OUTSTANDING_ACKS, MAX_FLOW, FastPublisher
from natsproto.jetstream._publish.fast.fast_batch_state import FastOptions
from natsproto.jetstream._publish.headers import MessageArgs, required_feature
from natsproto.jetstream._publish.outcome import Evidence
from natsproto.jetstream._publish.publish import Lookup, Recognition, Sent, publish
from natsproto.jetstream._publish.publish_window import PublisherOptions
from natsproto.jetstream._publish.publisher import Publisher
from natsproto.jetstream._publish.retry_policy import RETRY_ATTEMPTS, RETRY_WAIT_S
from natsproto.jetstream._publish.schedule import SCHEDULE_NEXT_HEADER, SCHEDULER_HEADER
from natsproto.jetstream._stream.counter import INCREMENT_HEADER, CounterValue, increment, parse_value
from natsproto.jetstream._stream.own_write import WriteLookup, batch_lookup
from natsproto.jetstream._stream.stream import Stream
from natsproto.jetstream._typed import TypedJetStream
from natsproto.jetstream._values.codec import INT64, Duration
from natsproto.jetstream._values.info import AccountInfo, PubAck
from natsproto.protocol.frames import Message, Payload
from natsproto.protocol.headers import Headers, HeadersLike
from natsproto.protocol.subject import publish_subject

if TYPE_CHECKING:
    from natsproto.jetstream.advisories import Advisories

T = TypeVar("T")


class JetStream(BucketManager):
    """JetStream of one account or domain. Created by ``nc.jetstream()``, without a request."""

    def __repr__(self) -> str:
        return f"JetStream(prefix={self._api.prefix!r})"

    @overload
    def typed(self, kind: type[T], /, *, codec: Codec | None = None) -> TypedJetStream[T]: ...

    @overload
    def typed(self, kind: TypeForm[T], /, *, codec: Codec | None = None) -> TypedJetStream[T]: ...

    def typed(self, kind: Any, /, *, codec: Codec | None = None) -> TypedJetStream[Any]:
        """Return a view of streams whose messages hold a ``kind``, for publishing, reading and handling values.

        ``codec`` (default: ``natsproto.codecs.JSON``) converts values to payloads and back. Sends nothing. ConfigError
        when ``codec`` is not a codec, or cannot read the type.

        Args:
            kind: The type of the values: a dataclass, a TypedDict, a model, or any type that the codec knows.
            codec: Converts values to payloads and back; None: JSON, ``natsproto.codecs.JSON``.
        """
        from natsproto.codecs import JSON

        return TypedJetStream(self._connection, self.publish, kind, JSON if codec is None else codec)

    async def account_info(self, *, timeout: Duration | None = None) -> AccountInfo:
        """Get the usage and the limits of the account. Raises the errors of every API call; see Stream.

        Args:
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        return await self._api.call_for(AccountInfo, "INFO", operation="account info", timeout=timeout)

    # ---------------------------------------------------------------- publishing

    async def publish(
        self,
        subject: str,
        payload: Payload = b"",
        *,
        headers: HeadersLike | None = None,
        timeout: Duration | None = None,
        retry_attempts: int | None = None,
        retry_wait: Duration = RETRY_WAIT_S,
        **args: Unpack[MessageArgs],
    ) -> PubAck:
        """Publish a message and wait until a stream has stored it.

        ``timeout`` in seconds for everything (default: the context's). ``headers`` are sent as they are. The stream
        stores a ``msg_id`` once within its ``duplicate_window``. It rejects the message unless ``expected_stream`` is
        its name, ``expected_last_seq`` its last sequence, ``expected_last_msg_id`` the id of its last message, and
        ``expected_last_subject_seq`` the last sequence of the subject (0: there is none), or of
        ``expected_last_subject_seq_subject``, in which wildcards are allowed. ``ttl``: seconds (at least 1) after which
        the message expires, or "never". ``rollup``: the server removes all earlier messages of its subject ("sub") or
        of the stream ("all"). ``schedule``: when the stream publishes it to ``schedule_target``.

        When no stream has the subject, publishing is retried ``retry_attempts`` times (-1: until the timeout; default:
        twice, with a ``msg_id`` until the timeout), ``retry_wait`` seconds apart (ADR-22); then NoStream. While the
        server is busy (429, err_code 10167, and 10163), it is retried until the timeout. With a ``msg_id`` the message
        is also sent again after a reconnect and after every second without a reply, since a stream stores an id only
        once. Without an id, a lost connection raises PublishUncertain, and no reply raises PublishTimeout (a
        PublishUncertain): the stream may have the message; but RequestTimeout when there was no connection to send it
        over, and it is never sent. PublishUncertain also when a server refuses it that may not
        lead the stream any more, and neither a second reply nor a search decides. A stream with ``no_ack`` never
        replies: use ``nc.publish``.

        WrongExpectation (WrongLastSequence) and every other ApiError when the stream rejects the message; ConfigError
        for arguments that are invalid or contradict the headers; UnsupportedByServer for arguments that the server
        would ignore; PermissionDenied; StreamWentBack, once, when the stream stored the message and has lost others;
        and the errors of ``nc.publish``. A cancelled call may still store the message.

        Args:
            subject: The subject to publish to, which a stream must listen on.
            payload: The content as bytes, bytearray or memoryview, up to the server's ``max_payload`` together with the
                headers.
            headers: A mapping of names to values (a str or a list of str), pairs, or Headers; None: no headers.
            timeout: Seconds to wait for the acknowledgement, over all attempts; None: that of the JetStream context.
            retry_attempts: How often a message is sent again while no stream has its subject, as during an election;
                -1: until the timeout. None: 2, or with a message id until the timeout.
            retry_wait: Seconds between two of these attempts.
            **args: Conditions and options of the message, by keyword: those of MessageArgs.
        """
        instrumentation = self._connection._instrumentation
        if instrumentation is None:
            return await self._publish(subject, payload, headers, timeout, retry_attempts, retry_wait, args)
        with instrumentation.sending("publish", subject, payload, headers) as sending:
            ack = await self._publish(subject, payload, sending.headers, timeout, retry_attempts, retry_wait, args)
            sending.end(ack)
        return ack

    def _publish(
        self,
        subject: str,
        payload: Payload,
        headers: HeadersLike | None,
        timeout: Duration | None,
        retry_attempts: int | None,
        retry_wait: Duration,
        args: MessageArgs,
    ) -> Awaitable[PubAck]:
        check_server = None
        if (new := required_feature(args)) is not None:
            check_server = partial(self._api.require_feature, new, f"publish to {subject!r}", timeout)
        return publish(
            self._api,
            subject,
            payload,
            headers,
            args,
            timeout=self._timeout(timeout),
            retry_attempts=None if retry_attempts is None else _attempts(retry_attempts),
            retry_wait=seconds("retry_wait", retry_wait),
            check_server=check_server,
            recognition=Recognition(self._lookup_of(subject, payload)) if args or headers is not None else None,
        )

    def _lookup_of(self, subject: str, payload: Payload) -> Lookup:
        """Return the lookup of a message, which nearly none needs."""
        return partial(self._look_up, subject, payload)

    def _look_up(self, subject: str, payload: Payload, sent: Sent) -> Awaitable[Evidence]:
        """Nothing identifies the message, but one with another payload is another message."""
        find_stream = partial(self._find_stream, subject)
        return WriteLookup(find_stream, subject, lambda message: None if message.data == payload else False)(sent)

    def _batch_lookup_of(self, subject: str, batch_id: str) -> Lookup:
        return batch_lookup(partial(self._find_stream, subject), subject, batch_id)

    async def _find_stream(self, subject: str) -> Stream:
        return self._stream(await self.stream_name_by_subject(subject), None)

    def publisher(
        self,
        *,
        max_pending: int = 1000,
        max_pending_bytes: int = 64 * 2**20,
        timeout: Duration | None = None,
        retry_attempts: int | None = None,
        retry_wait: Duration = RETRY_WAIT_S,
        auto_msg_id: bool = False,
    ) -> Publisher:
        """Return a publisher that does not wait for each acknowledgement; use it with ``async with``.

        ``publish`` waits while ``max_pending`` messages, or ``max_pending_bytes`` bytes of payload (one message may
        exceed it), are unacknowledged. ``timeout`` in seconds (default: the context's) applies to each message.
        Rejected messages and missing replies are handled as in ``publish``; once a stream has acknowledged a message,
        the publisher waits for a leader until the timeout. After a lost connection messages with an id are sent again
        in order; the others fail with PublishUncertain unless they were not sent yet. ``auto_msg_id`` gives an id to
        every message without one, so that all survive reconnects.

        ConfigError for limits that are not positive.

        Args:
            max_pending: Messages that may wait for their acknowledgement; then ``publish`` waits.
            max_pending_bytes: Bytes that may wait for their acknowledgement; then ``publish`` waits.
            timeout: Seconds to wait for each acknowledgement; None: that of the JetStream context.
            retry_attempts: How often a message is sent again while no stream has its subject, as during an election;
                -1: until the timeout. None: 2, or with a message id until the timeout.
            retry_wait: Seconds between two of these attempts.
            auto_msg_id: Give each message without a ``msg_id`` an id, so that it can be sent again after an outage
                without being stored twice.
        """
        _check_positive(max_pending=max_pending, max_pending_bytes=max_pending_bytes)
        limits = PublisherOptions(
            max_pending=max_pending,
            max_pending_bytes=max_pending_bytes,
            timeout=self._timeout(timeout),
            retry_attempts=None if retry_attempts is None else _attempts(retry_attempts),
            retry_wait=seconds("retry_wait", retry_wait),
            api=self._api,
            lookup_of=self._lookup_of,
        )
        return Publisher(self._connection, limits, auto_msg_id=auto_msg_id)

    def atomic_batch(
        self,
        *,
        timeout: Duration | None = None,
        max_messages: int = MAX_ATOMIC_MESSAGES,
        retry_attempts: int = RETRY_ATTEMPTS,
        retry_wait: Duration = RETRY_WAIT_S,
    ) -> AtomicBatch:
        """Return a batch whose messages are stored all together or not at all (ADR-50).

        Use it with ``async with``; the end of the block commits. All subjects belong to one stream, which needs
        ``allow_atomic`` and nats-server 2.12. ``max_messages`` is the server's default limit. ``timeout`` in seconds
        (default: the context's) applies to each reply. The client keeps the batch until it is committed, and sends it
        again when the connection or the stream's leader was lost before that.

        Args:
            timeout: Seconds to wait for each reply; None: that of the JetStream context.
            max_messages: The most messages of the batch; 1,000 is the default limit of the server.
            retry_attempts: How often a message is sent again while no stream has its subject.
            retry_wait: Seconds between two of these attempts.
        """
        _check_positive(max_messages=max_messages)
        return AtomicBatch(
            self._api,
            timeout=self._timeout(timeout),
            max_messages=max_messages,
            retry_attempts=_attempts(retry_attempts),
            retry_wait=seconds("retry_wait", retry_wait),
            lookup_of=self._batch_lookup_of,
        )

    async def cursor(
        self, stream: str, name: str, *, subject: str | None = None, timeout: Duration | None = None
    ) -> Cursor:
        """Return a cursor of a stream: how far a source was taken into it. Its value is read from the leader.

        ``async with cursor.advance(to=...) as batch`` stores messages and the new value together, once, whatever is
        lost or sent again. The stream needs ``allow_atomic``, nats-server 2.12 and the subject of the cursor, and must
        keep the cursor's message: ConfigError names what is missing. Readers of ``>`` get the cursor's messages too;
        they have the header ``Natsproto-Cursor``. StreamNotFound, UnsupportedByServer; the errors of ``Cursor.load``.

        Args:
            stream: The name of the stream that gets the messages.
            name: The name of the cursor, one for each source: as a consumer's, without dots.
            subject: Where the cursor is kept, one of the stream's subjects; None: ``$CURSOR.<stream>.<name>``.
            timeout: Seconds to wait for each reply and at each commit; None: that of the JetStream context.
        """
        wait = self._timeout(timeout)
        handle = await self.stream(stream, bind=True)
        own = cursor_subject(stream, name) if subject is None else subject
        publish_subject(own)
        ATOMIC_BATCH.check(self._connection.server_info)
        cursor = Cursor(
            handle, name, own, timeout=wait, new_batch=self.atomic_batch, new_id=self._connection._runtime.new_id
        )
        return await cursor._open()

    def fast_publisher(
        self,
        *,
        gap: Literal["fail", "ok"] = "fail",
        flow: int = MAX_FLOW,
        outstanding: int = DEFAULT_OUTSTANDING_ACKS,
        max_pending_bytes: int = 64 * 2**20,
        timeout: Duration | None = None,
        retry_attempts: int = RETRY_ATTEMPTS,
        retry_wait: Duration = RETRY_WAIT_S,
        auto_msg_id: bool = False,
    ) -> FastPublisher:
        """Return a publisher for fast ingest (ADR-50): the stream acknowledges hundreds of messages at a time.

        All subjects belong to one stream, which needs ``allow_batched`` and nats-server 2.14.

        ``gap="fail"``: the stored messages are in order and complete. Messages lost with the connection or with the
        stream's leader are sent again, after the last one that the stream has. A rejected message ends the publisher.
        If the last stored message is unknown because a server was restarted, the publisher continues when all messages
        have an id, and otherwise ends with PublishUncertain. ``auto_msg_id`` gives an id to every message without one.

        ``gap="ok"``: messages in flight when the connection or the batch is lost are not sent again. They count as
        ``lost``, and so do messages that the stream reports as missing. Rejected messages are reported at the end, and
        the publisher continues.

        ``flow`` is the largest number of messages for one acknowledgement (the stream chooses the number, at most 500)
        and ``outstanding`` the number of acknowledgements to wait for at a time. Their product and
        ``max_pending_bytes`` limit the messages kept by the client. ``timeout`` in seconds (default: the context's) is
        the longest wait for a reply. A batch that is idle for two seconds is committed.

        ConfigError for bad arguments; UnsupportedByServer on entering when the server is too old.

        Args:
            gap: What lost messages do: with "fail" (default) they are sent again, and the messages are stored in order
                and complete; with "ok" they are counted in ``lost``.
            flow: The most messages for one acknowledgement; the stream chooses the number, at most 500.
            outstanding: Acknowledgements that may be missing before ``publish`` waits.
            max_pending_bytes: Bytes that may wait for their acknowledgement; then ``publish`` waits.
            timeout: Seconds to wait for a reply; None: that of the JetStream context.
            retry_attempts: How often a message is sent again while no stream has its subject.
            retry_wait: Seconds between two of these attempts.
            auto_msg_id: Give each message without a ``msg_id`` an id, so that it can be sent again after an outage
                without being stored twice.
        """
        if gap not in ("fail", "ok"):
            raise errors.ConfigError("gap", gap, 'must be "fail" or "ok"')
        _check_positive(flow=flow, outstanding=outstanding, max_pending_bytes=max_pending_bytes)
        if flow > 65_535:
            raise errors.ConfigError("flow", flow, "must be 65,535 at most")
        options = FastOptions(
            gap_ok=gap == "ok",
            flow=flow,
            outstanding=outstanding,
            max_pending_bytes=max_pending_bytes,
            timeout=self._timeout(timeout),
            retry_attempts=_attempts(retry_attempts),
            retry_wait=seconds("retry_wait", retry_wait),
        )
        return FastPublisher(self._connection, options, auto_msg_id=auto_msg_id)

    # ---------------------------------------------------------------- counters and schedules

    async def counter_add(
        self, subject: str, n: int = 1, *, msg_id: str | None = None, timeout: Duration | None = None
    ) -> int:
        """Add ``n`` (of any size, and any sign) to a counter and return its new value (ADR-49).

        The stream needs ``allow_msg_counter`` and nats-server 2.12. With a ``msg_id`` the number is added only once,
        and the result is the value right after that. Raises the errors of ``publish``; after PublishUncertain the
        number may have been added.

        Args:
            subject: Which counter: each subject of the stream is one.
            n: How much to add; negative to subtract, 0 to read.
            msg_id: An id of the message: within the stream's ``duplicate_window`` a second one with it is acknowledged
                and not stored. None: no id.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        await self._api.require_api_level(2, "2.12", f"counter {subject!r}", timeout)
        ack = await self.publish(subject, headers={INCREMENT_HEADER: increment(n)}, msg_id=msg_id, timeout=timeout)
        if ack.val:
            return parse_value(ack.val)
        stored = await self._stream(ack.stream, None).get_message(ack.seq, timeout=timeout)  # it was added before
        return CounterValue.read(stored).value

    async def counter_get(
        self, subject: str, *, stream: str | None = None, timeout: Duration | None = None
    ) -> CounterValue:
        """Return a counter's value, last increment and sources; MessageNotFound when nothing was added yet.

        Without ``stream`` the stream is found by its subjects; a stream that only has sources must be named. NoStream,
        StreamNotFound; InvalidReply when the message is not a counter's.

        Args:
            subject: Which counter: each subject of the stream is one.
            stream: The stream of the counter; None: the one that listens on the subject, which is looked up.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        name = await self.stream_name_by_subject(subject, timeout=timeout) if stream is None else stream
        return CounterValue.read(await self._stream(name, None).get_last_message(subject, timeout=timeout))

    @items
    async def counters(
        self, stream: str, subjects: Iterable[str] = (">",), *, timeout: Duration | None = None
    ) -> AsyncGenerator[CounterValue]:
        """Yield every counter of a stream whose subject matches, as a snapshot. See Stream.get_last_messages.

        Args:
            stream: A stream with ``allow_msg_counter``, by its name.
            subjects: The counters to read; wildcards allowed.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        async with aclosing(self._stream(stream, None).get_last_messages(subjects, timeout=timeout).batches()) as found:
            async for batch in found:
                for message in batch:
                    yield CounterValue.read(message)

    async def cancel_schedule(
        self, subject: str, *, stream: str | None = None, timeout: Duration | None = None
    ) -> bool:
        """Remove the schedule stored under this subject; False when there was none, or it has ended.

        Without ``stream`` the stream is found by its subjects. NoStream, StreamNotFound; InvalidSubject for a subject
        with wildcards.

        Args:
            subject: The subject to which the message with ``schedule=`` was published.
            stream: Its stream; None: the one that listens on the subject, which is looked up.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        publish_subject(subject)  # as the filter of a purge, one with wildcards would remove all that it matches
        name = await self.stream_name_by_subject(subject, timeout=timeout) if stream is None else stream
        return await self._stream(name, None).purge(subject=subject, timeout=timeout) > 0

    async def replace_schedule(
        self,
        replaced: str,
        subject: str,
        payload: Payload = b"",
        *,
        headers: HeadersLike | None = None,
        timeout: Duration | None = None,
        **args: Unpack[MessageArgs],
    ) -> PubAck:
        """Publish a message and end the schedule stored under the subject ``replaced``, atomically (server 2.14).

        ``subject`` is the schedule's target, to publish early, or any other subject of the stream except the schedule's
        own. With ``expected_last_subject_seq`` and ``expected_last_subject_seq_subject=replaced``, only a schedule that
        has not fired yet is ended. Raises the errors of ``publish``, including ScheduleRefused.

        Args:
            replaced: The subject of the schedule to end.
            subject: The subject of the new message with a schedule.
            payload: The content as bytes, bytearray or memoryview, up to the server's ``max_payload`` together with the
                headers.
            headers: A mapping of names to values (a str or a list of str), pairs, or Headers; None: no headers.
            timeout: Seconds to wait for the acknowledgement; None: that of the JetStream context.
            **args: Conditions and options of the message, by keyword: those of MessageArgs.
        """
        own = Headers(headers or ())
        for name in (SCHEDULER_HEADER, SCHEDULE_NEXT_HEADER):
            if name in own:
                raise errors.ConfigError("headers", name, "is set by this method")
        publish_subject(replaced, "replaced")
        if replaced == subject:
            raise errors.ConfigError(
                "subject", subject, "must not be that of the schedule: publish a schedule to change it"
            )
        await self._api.require_api_level(4, "2.14", f"replace schedule {replaced!r}", timeout)
        pairs = [*own.pairs(), (SCHEDULER_HEADER, replaced), (SCHEDULE_NEXT_HEADER, "purge")]
        return await self.publish(subject, payload, headers=pairs, timeout=timeout, **args)

    def _timeout(self, timeout: Duration | None) -> float:
        if timeout is None:
            return self._api.timeout
        return positive_seconds("timeout", timeout)

    # ---------------------------------------------------------------- messages

    def message(self, message: Message) -> JsMessage:
        """Return a core message from a stream, for example of a push consumer, as a JsMessage to acknowledge.

        LocalProtocolError when its reply subject is not an ack subject.

        Args:
            message: A message of core NATS that a consumer has delivered.
        """
        return JsMessage._of(message, self._api.prefix)

    # ---------------------------------------------------------------- the cluster

    @property
    def admin(self) -> Admin:
        """The administrative calls: leaders, peers, servers, accounts."""
        return Admin(self._api)

    def advisories(self, subject: str = "$JS.EVENT.>") -> Advisories:
        """Subscribe to the advisories and metrics of JetStream as typed events.

        ``subject`` selects some of them ("$JS.EVENT.ADVISORY.CONSUMER.>"); other domains use the same subjects. Use it
        with ``async with`` or ``await``. InvalidSubject; ConnectionClosed.

        Args:
            subject: The advisories to receive, with wildcards; the default is all of the account.
        """
        from natsproto.jetstream.advisories import Advisories

        return Advisories(self._connection, subject)


def _attempts(number: int) -> int:
    if type(number) is not int or not -1 <= number <= INT64:
        raise errors.ConfigError("retry_attempts", number, "must be a number of attempts, or -1 for no limit")
    return number


def _check_positive(**numbers: int) -> None:
    for name, value in numbers.items():
        if type(value) is not int or not 1 <= value <= INT64:
            raise errors.ConfigError(name, value, "must be a positive number, and less than 2**63")


import_late_types(__name__)
