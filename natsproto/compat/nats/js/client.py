"""``nats.js.client``: publishing to streams, and push and pull subscriptions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from natsproto.compat._options import clean_headers
from natsproto.compat._peers import ClientPeer
from natsproto.compat._translate import translate_error, translate_errors
from natsproto.compat.nats import errors
from natsproto.compat.nats.aio.msg import Msg
from natsproto.compat.nats.aio.subscription import Subscription as Subscription
from natsproto.compat.nats.js import api, subscriptions
from natsproto.compat.nats.js.buckets import Buckets
from natsproto.compat.nats.js.errors import (
    APIError,
    BadRequestError,
    Error,
    NotFoundError,
    TooManyStalledMsgsError,
)
from natsproto.compat.nats.js.errors import (
    BadBucketError as BadBucketError,
)
from natsproto.compat.nats.js.errors import (
    BucketNotFoundError as BucketNotFoundError,
)
from natsproto.compat.nats.js.errors import (
    FetchTimeoutError as FetchTimeoutError,
)
from natsproto.compat.nats.js.errors import (
    InvalidBucketNameError as InvalidBucketNameError,
)
from natsproto.compat.nats.js.kv import KeyValue as KeyValue
from natsproto.compat.nats.js.manager import JetStreamManager as JetStreamManager
from natsproto.compat.nats.js.object_store import (
    OBJ_ALL_CHUNKS_PRE_TEMPLATE as OBJ_ALL_CHUNKS_PRE_TEMPLATE,
)
from natsproto.compat.nats.js.object_store import (
    OBJ_ALL_META_PRE_TEMPLATE as OBJ_ALL_META_PRE_TEMPLATE,
)
from natsproto.compat.nats.js.object_store import (
    OBJ_STREAM_TEMPLATE as OBJ_STREAM_TEMPLATE,
)
from natsproto.compat.nats.js.object_store import (
    VALID_BUCKET_RE as VALID_BUCKET_RE,
)
from natsproto.compat.nats.js.object_store import (
    ObjectStore as ObjectStore,
)
from natsproto.jetstream import AckFuture, ConsumerConfig, Messages, Publisher

log: Final = logging.getLogger("natsproto")

DEFAULT_JS_SUB_PENDING_MSGS_LIMIT = 512 * 1024
DEFAULT_JS_SUB_PENDING_BYTES_LIMIT = 256 * 1024 * 1024
NO_RESPONDERS_STATUS = "503"
KV_STREAM_TEMPLATE = "KV_{bucket}"
KV_PRE_TEMPLATE = "$KV.{bucket}."
KV_MAX_HISTORY = 64
CONSUMER_CREATE = 10013
CONSUMER_EXISTS = 10148
PUBLISH_RETRIES = 2
"""When no stream answers, with a message id, too: nats-py raises at once."""

IN_ORDER = (
    *("deliver_policy", "opt_start_seq", "opt_start_time", "filter_subject", "filter_subjects", "headers_only"),
    *("replay_policy", "idle_heartbeat", "inactive_threshold", "metadata"),
)
"""The options that an ordered consumer accepts."""

Callback = Callable[[Msg], Awaitable[None]]


class _PublishFuture(asyncio.Future[api.PubAck]):
    """The future of an acknowledgement. An error that nobody reads is a line in the log, not asyncio's traceback."""

    def __init__(self, subject: str) -> None:
        super().__init__()
        self._subject = subject

    def __del__(self) -> None:
        if self._log_traceback:
            log.error("publish_async to %r failed, and nobody read its future: %s", self._subject, self.exception())


class JetStreamContext(Buckets):
    """The JetStream context. Created by ``Client.jetstream``."""

    PushSubscription = subscriptions.PushSubscription
    PullSubscription = subscriptions.PullSubscription

    def __init__(
        self,
        conn: ClientPeer,
        prefix: str = api.DEFAULT_PREFIX,
        domain: str | None = None,
        timeout: float = 5,
        publish_async_max_pending: int = 4000,
    ) -> None:
        super().__init__(conn, prefix if domain is None else f"$JS.{domain}.API", timeout)
        self._max_pending = publish_async_max_pending
        self._publisher: Publisher | None = None
        self._published: set[asyncio.Future[api.PubAck]] = set()
        self._room = asyncio.Semaphore(publish_async_max_pending)

    # ---------------------------------------------------------------- publishing

    @translate_errors
    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float | None = None,
        stream: str | None = None,
        headers: dict[str, Any] | None = None,
        msg_ttl: float | None = None,
    ) -> api.PubAck:
        ack = await self._js.publish(
            subject,
            payload,
            timeout=timeout,
            headers=_without_named(headers, stream, msg_ttl),
            expected_stream=stream,
            ttl=msg_ttl,
            retry_attempts=PUBLISH_RETRIES,
        )
        return _pub_ack(ack)

    @translate_errors
    async def publish_async(
        self,
        subject: str,
        payload: bytes = b"",
        wait_stall: float | None = None,
        stream: str | None = None,
        headers: dict[str, Any] | None = None,
        msg_ttl: float | None = None,
    ) -> asyncio.Future[api.PubAck]:
        """Publish a message and return the future of its acknowledgement.

        TooManyStalledMsgsError when ``publish_async_max_pending`` are waiting for theirs for ``wait_stall`` seconds.
        """
        if self._publisher is None:
            publisher = self._js.publisher(max_pending=self._max_pending + 1, retry_attempts=PUBLISH_RETRIES)
            self._publisher = await publisher.__aenter__()
        try:
            async with asyncio.timeout(wait_stall):
                await self._room.acquire()
        except TimeoutError as exc:
            raise TooManyStalledMsgsError from exc
        try:
            ack = await self._publisher.publish(
                subject,
                payload,
                headers=_without_named(headers, stream, msg_ttl),
                expected_stream=stream,
                ttl=msg_ttl,
            )
        except BaseException:
            self._room.release()
            raise
        future = _PublishFuture(subject)
        self._published.add(future)

        def settle(ack: AckFuture) -> None:
            self._room.release()
            self._published.discard(future)
            if future.done():
                return
            failure = ack.exception()
            if failure is None:
                future.set_result(_pub_ack(ack.result()))
                return
            error = translate_error(failure)
            future.set_exception(error)
            if isinstance(error, APIError):
                self._nc._refused(error)

        ack.add_done_callback(settle)
        return future

    def publish_async_pending(self) -> int:
        return len(self._published)

    async def publish_async_completed(self) -> None:
        while self._published:
            await asyncio.wait(self._published)

    # ---------------------------------------------------------------- being pushed to

    async def subscribe(
        self,
        subject: str,
        queue: str | None = None,
        cb: Callback | None = None,
        durable: str | None = None,
        stream: str | None = None,
        config: api.ConsumerConfig | None = None,
        manual_ack: bool = False,
        ordered_consumer: bool = False,
        idle_heartbeat: float | None = None,
        flow_control: bool = False,
        pending_msgs_limit: int = DEFAULT_JS_SUB_PENDING_MSGS_LIMIT,
        pending_bytes_limit: int = DEFAULT_JS_SUB_PENDING_BYTES_LIMIT,
        deliver_policy: api.DeliverPolicy | None = None,
        headers_only: bool | None = None,
        inactive_threshold: float | None = None,
    ) -> subscriptions.PushSubscription:
        if stream is None:
            stream = await self.find_stream_name_by_subject(subject)
        if queue and durable and durable != queue:
            raise Error(f"cannot create queue subscription '{queue}' to consumer '{durable}'")
        durable = queue or durable
        group = (config and config.deliver_group) or queue
        found = None
        if durable:
            try:
                found = await self.consumer_info(stream, durable)
            except NotFoundError:
                pass
        if found is not None:
            if reason := _why_unbindable(found, group):
                raise Error(reason)
            return await self.subscribe_bind(stream, found.config, found.name, cb=cb, manual_ack=manual_ack)
        config = config or api.ConsumerConfig()
        config.durable_name = config.durable_name or durable
        config.deliver_group = group
        config.headers_only = config.headers_only or headers_only
        config.deliver_policy = deliver_policy or config.deliver_policy
        config.inactive_threshold = inactive_threshold or config.inactive_threshold
        config.deliver_subject = config.deliver_subject or self._nc.new_inbox()
        config.flow_control = flow_control
        config.idle_heartbeat = idle_heartbeat or config.idle_heartbeat
        if not config.filter_subjects:
            config.filter_subject = subject
        if ordered_consumer:
            return await self._subscribe_in_order(stream, config, cb)
        try:
            found = await self._add_consumer(stream, config, "create" if config.durable_name else "")
        except BadRequestError as exc:
            if not config.durable_name or exc.err_code != CONSUMER_EXISTS:
                raise
            found = await self.consumer_info(stream, config.durable_name)
            if reason := _why_unbindable(found, group):
                raise BadRequestError(400, reason, CONSUMER_CREATE) from exc
            if config.durable_name != durable:  # nats-py updates it, with another deliver subject
                config.deliver_subject = found.config.deliver_subject
                found = await self._add_consumer(stream, config, "update")
        return await self.subscribe_bind(stream, found.config, found.name, cb=cb, manual_ack=manual_ack)

    async def subscribe_bind(
        self,
        stream: str,
        config: api.ConsumerConfig,
        consumer: str,
        cb: Callback | None = None,
        manual_ack: bool = False,
        ordered_consumer: bool = False,
        pending_msgs_limit: int = DEFAULT_JS_SUB_PENDING_MSGS_LIMIT,
        pending_bytes_limit: int = DEFAULT_JS_SUB_PENDING_BYTES_LIMIT,
    ) -> subscriptions.PushSubscription:
        """Subscribe to an existing push consumer. An ordered consumer is created with the same configuration."""
        if config.deliver_subject is None:
            raise TypeError("config.deliver_subject is required")
        if ordered_consumer:
            return await self._subscribe_in_order(stream, config, cb)
        handle = await self._js.stream(stream, bind=True)
        pushed = await handle.push_consumer(
            consumer,
            deliver_subject=config.deliver_subject,
            deliver_group=config.deliver_group or "",
            idle_heartbeat=config.idle_heartbeat or 0,
        )
        acks = not manual_ack and config.ack_policy not in (api.AckPolicy.NONE, api.AckPolicy.FLOW_CONTROL)
        return await self._pushed(config, pushed.messages(), stream, lambda: consumer, cb, acks)

    async def _subscribe_in_order(
        self, stream: str, config: api.ConsumerConfig, cb: Callback | None
    ) -> subscriptions.PushSubscription:
        handle = await self._js.stream(stream, bind=True)
        ordered = handle.ordered_consumer(
            ConsumerConfig(**{name: getattr(config, name) for name in IN_ORDER if getattr(config, name)}), push=True
        )
        sub = await self._pushed(config, ordered.messages(), stream, lambda: ordered.name, cb, acks=False)
        await ordered.wait_created()
        return sub

    @translate_errors
    async def _pushed(
        self,
        config: api.ConsumerConfig,
        messages: Messages,
        stream: str,
        consumer: Callable[[], str],
        cb: Callback | None,
        acks: bool,
    ) -> subscriptions.PushSubscription:
        await messages.__aenter__()
        return subscriptions.PushSubscription(self, config, messages, stream, consumer, cb, acks=acks)

    # ---------------------------------------------------------------- pulling

    async def pull_subscribe(
        self,
        subject: str,
        durable: str | None = None,
        stream: str | None = None,
        config: api.ConsumerConfig | None = None,
        pending_msgs_limit: int = DEFAULT_JS_SUB_PENDING_MSGS_LIMIT,
        pending_bytes_limit: int = DEFAULT_JS_SUB_PENDING_BYTES_LIMIT,
        inbox_prefix: bytes | None = None,
    ) -> subscriptions.PullSubscription:
        if stream is None:
            stream = await self.find_stream_name_by_subject(subject)
        name = durable
        exists = False
        if durable:
            try:
                await self.consumer_info(stream, durable)
                exists = True
            except NotFoundError:
                pass
        if not exists:
            config = config or api.ConsumerConfig()
            if not config.filter_subjects:
                config.filter_subject = subject
            name = config.name = durable or self._nc._nuid.next().decode()
            config.durable_name = durable or config.durable_name
            await self.add_consumer(stream, config=config)
        return await self.pull_subscribe_bind(name, stream, inbox_prefix)

    @translate_errors
    async def pull_subscribe_bind(
        self,
        consumer: str | None = None,
        stream: str | None = None,
        inbox_prefix: bytes | None = None,
        pending_msgs_limit: int = DEFAULT_JS_SUB_PENDING_MSGS_LIMIT,
        pending_bytes_limit: int = DEFAULT_JS_SUB_PENDING_BYTES_LIMIT,
        name: str | None = None,
        durable: str | None = None,
    ) -> subscriptions.PullSubscription:
        if not stream:
            raise ValueError("nats: stream name is required")
        if self._nc.is_closed:
            raise errors.ConnectionClosedError
        js = self._js if inbox_prefix is None else self._context(inbox_prefix.decode().rstrip("."))
        handle = await js.stream(stream, bind=True)
        return subscriptions.PullSubscription(self, await handle.consumer(durable or name or consumer or "", bind=True))

    @classmethod
    def is_status_msg(cls, msg: Msg | None) -> str | None:
        return None if msg is None or msg.headers is None else msg.headers.get("Status")


def _why_unbindable(found: api.ConsumerInfo, group: str | None) -> str:
    """Return why a reader of this queue group cannot read a consumer: another one reads it, or another group. "" if it
    can.
    """
    wanted = found.config.deliver_group
    if not wanted:
        if group:
            return "cannot create a queue subscription for a consumer without a deliver group"
        return "consumer is already bound to a subscription" if found.push_bound else ""
    if not group:
        return f"cannot create a subscription for a consumer with a deliver group {wanted}"
    if group != wanted:
        return f"cannot create a queue subscription {group} for a consumer with a deliver group {wanted}"
    return ""


def _pub_ack(ack: Any) -> api.PubAck:
    return api.PubAck(
        stream=ack.stream,
        seq=ack.seq,
        domain=ack.domain or None,
        duplicate=ack.duplicate or None,
        batch_id=ack.batch or None,
        batch_size=ack.count or None,
        val=ack.val or None,
    )


def _without_named(headers: dict[str, Any] | None, stream: str | None, msg_ttl: float | None) -> dict[str, Any] | None:
    """Return the headers without those that a named argument replaces."""
    if not headers:
        return headers
    named = {api.Header.EXPECTED_STREAM: stream, api.Header.MSG_TTL: msg_ttl}
    return {name: value for name, value in clean_headers(headers).items() if named.get(name) is None}  # type: ignore[call-overload]
