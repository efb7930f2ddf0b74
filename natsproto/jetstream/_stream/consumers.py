"""The consumers of a stream: creating, changing, opening and listing them."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime
from typing import Unpack

from natsproto import errors
from natsproto._durations import seconds
from natsproto._help.async_hints import items
from natsproto._options.rules import note_milliseconds
from natsproto.jetstream._api.listing import Listing, Page
from natsproto.jetstream._api.requests import Api
from natsproto.jetstream._consumer.handle import PullConsumer, check_stream_sequence, create_endpoint
from natsproto.jetstream._consumer.ordered.ordered import OrderedConsumer
from natsproto.jetstream._consumer.ordered.ordered_cursor import PUSH_HEARTBEAT_S
from natsproto.jetstream._consumer.push.push import PushConsumer
from natsproto.jetstream._values.arguments import ConsumerArgs
from natsproto.jetstream._values.asset_names import check_stream_name
from natsproto.jetstream._values.codec import NEVER, Duration, server_time
from natsproto.jetstream._values.config import ConsumerConfig
from natsproto.jetstream._values.config_compare import consumer_differences
from natsproto.jetstream._values.features import (
    CONSUMER_FEATURES,
    check_features_kept,
    needed_by_consumer,
    translate_unknown_field,
)
from natsproto.jetstream._values.info import (
    ConsumerInfo,
    ConsumerNamesPage,
    ConsumerPage,
    ConsumerPause,
    ConsumerReset,
    StreamInfo,
)
from natsproto.jetstream._values.policies import DeliverPolicy
from natsproto.jetstream._values.record import amended, named_changes
from natsproto.protocol.subject import overlap, queue_group

log = logging.getLogger("natsproto")

_FILTERS = {"filter_subject", "filter_subjects"}


class ConsumerManager:
    """Manages the consumers of one stream. A part of Stream."""

    def __init__(self, api: Api, name: str, info: StreamInfo | None = None) -> None:
        self._api = api
        self.name: str = check_stream_name(name)
        """The name of the stream."""
        self._info = info

    async def create_consumer(
        self,
        config: str | ConsumerConfig | None = None,
        /,
        *,
        pedantic: bool = False,
        timeout: Duration | None = None,
        **fields: Unpack[ConsumerArgs],
    ) -> PullConsumer:
        """Create a consumer: ``create_consumer("billing", filter_subject="orders.eu")`` makes a durable one.

        The first argument is the durable name, or a ConsumerConfig, whose fields the others override. With neither, the
        server names the consumer and deletes it after 5 s without a reader; with only ``name=``, which would look
        durable, ``inactive_threshold`` (seconds until then) is required: ConfigError.

        Creating an existing consumer again does nothing; ConsumerExists when its configuration differs. ConfigError and
        InvalidConsumerConfig; UnsupportedByServer when an older server does not know a field (before 2.12 it creates
        the consumer without the field). ``pedantic`` makes the server reject values that it would otherwise adjust.

        Args:
            config: The durable name, or a ConsumerConfig; None: the server makes a name.
            pedantic: Let the server refuse values that it would otherwise adjust.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
            **fields: The fields of ConsumerConfig, by keyword; they override those of ``config``.
        """
        return await self._write_consumer("create", config, fields, pedantic, timeout)

    async def update_consumer(
        self,
        target: str | ConsumerConfig | None = None,
        /,
        *,
        pedantic: bool = False,
        timeout: Duration | None = None,
        **changes: Unpack[ConsumerArgs],
    ) -> PullConsumer | PushConsumer:
        """Change the given fields of the consumer with this name, and no others; a whole ConsumerConfig replaces all.

        The consumer is read, and written with the changes; see ``JetStream.update_stream``. ``filter_subject`` and
        ``filter_subjects`` replace each other. Returns a PushConsumer if the consumer has a ``deliver_subject``.
        ConsumerNotFound; InvalidConsumerConfig for fields that cannot be changed; otherwise as ``create_consumer``.

        Args:
            target: The name of the consumer, of which the given fields change, or a ConsumerConfig, which replaces all.
            pedantic: Let the server refuse values that it would otherwise adjust.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
            **changes: The fields of ConsumerConfig to change, by keyword.
        """
        if target is None or isinstance(target, str):
            partial, fields = named_changes(ConsumerConfig, target, changes, "durable_name", "name")
            partial.check()  # before anything is sent
            if "pause_until" in fields:
                raise errors.ConfigError("pause_until", partial.pause_until, "is changed by pause() and resume() alone")
            needed = needed_by_consumer(partial, pedantic=pedantic)
            operation = f"update consumer {partial.durable_name!r} of {self._description}"
            await self._api.require_feature(needed, operation, timeout)
            config = (await self.consumer_info(partial.durable_name, timeout=timeout)).config
            if not _FILTERS.isdisjoint(fields):
                config = config.replace(filter_subject="", filter_subjects=())
            target = config.replace(**fields)
        else:
            target = amended(ConsumerConfig, target, changes, "durable_name")
        info = await self._put_consumer("update", target, pedantic, timeout)
        if info.config.deliver_subject:
            return PushConsumer(self._api, self.name, info.name, info)
        return self._consumer(info.name, info)

    async def create_or_update_consumer(
        self,
        config: str | ConsumerConfig | None = None,
        /,
        *,
        pedantic: bool = False,
        timeout: Duration | None = None,
        **fields: Unpack[ConsumerArgs],
    ) -> PullConsumer:
        """Make the consumer exactly this: fields that are not given get their defaults, also those of an existing one.

        Raises the errors of ``create_consumer`` and ``update_consumer``.

        Args:
            config: The durable name, or a ConsumerConfig; None: the server makes a name.
            pedantic: Let the server refuse values that it would otherwise adjust.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
            **fields: The fields of ConsumerConfig, by keyword; they override those of ``config``.
        """
        return await self._write_consumer("", config, fields, pedantic, timeout)

    async def consumer(self, name: str, *, bind: bool = False, timeout: Duration | None = None) -> PullConsumer:
        """Return the consumer with this name. With ``bind`` no request is sent, so it may not exist.

        ConsumerNotFound; ConfigError when it is a push consumer.

        Args:
            name: Which consumer: its durable name, or the one that the server has made.
            bind: Send no request, so that the consumer may not exist, and ``cached_info`` is not there.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        if bind:
            return self._consumer(name, None)
        info = await self.consumer_info(name, timeout=timeout)
        if info.config.deliver_subject:
            raise errors.ConfigError("name", name, "is a push consumer: open it with push_consumer(name)")
        return self._consumer(name, info)

    def ordered_consumer(
        self,
        config: ConsumerConfig | None = None,
        /,
        *,
        start_seq: int | None = None,
        start_time: datetime | None = None,
        push: bool = False,
        name_prefix: str = "",
        **fields: Unpack[ConsumerArgs],
    ) -> OrderedConsumer:
        """Return an ordered consumer, which delivers each message once and in order (ADR-17), also after outages.

        It sends nothing until it is read. ``start_seq``, ``start_time`` or ``deliver_policy`` (default: all) is
        its start. Other fields are ``filter_subjects``, ``headers_only``, ``replay_policy`` …; ConfigError for fields
        that an ordered consumer sets itself. With ``push`` it is a push consumer with flow control: the first message
        comes a round trip earlier, and there is no ``fetch`` and ``next``. ``idle_heartbeat`` is the interval of its
        heartbeats (default 1 s); after three missed ones the consumer is replaced. ``name_prefix`` is the prefix of the
        consumers' names, ``<prefix>_1`` and so on; a number in use by another reader is skipped.

        Args:
            config: A ConsumerConfig; None: that of ``fields``.
            start_seq: The first message with this sequence or a higher one; None: from the beginning.
            start_time: The first message stored at or after this time; None: from the beginning.
            push: Let the server push the messages, which saves a round trip before the first one; then there is no
                ``fetch`` and no ``next``.
            name_prefix: The beginning of the consumers' names, for permissions and monitoring; "": the server makes
                names.
            **fields: The fields of ConsumerConfig, by keyword, except those that an ordered consumer sets itself.
        """
        if push and not fields.get("flow_control", True):
            raise errors.ConfigError("flow_control", False, "is required for an ordered push consumer")
        config = amended(ConsumerConfig, config, fields, "durable_name")
        if start_seq is not None:
            start_seq = check_stream_sequence("start_seq", start_seq)
            config = config.replace(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=start_seq)
        if start_time is not None:
            if start_seq is not None:
                raise errors.ConfigError("start_time", start_time, "cannot be given together with start_seq")
            since = server_time("start_time", start_time)
            config = config.replace(deliver_policy=DeliverPolicy.BY_START_TIME, opt_start_time=since)
        self._warn_about_filters(config)
        stream_created = NEVER if self._info is None else self._info.created
        return OrderedConsumer(
            self._api, self.name, config, push=push, stream_created=stream_created, name_prefix=name_prefix
        )

    async def create_push_consumer(
        self,
        config: ConsumerConfig | str | None = None,
        /,
        *,
        timeout: Duration | None = None,
        **fields: Unpack[ConsumerArgs],
    ) -> PushConsumer:
        """Create a push consumer (ADR-9) from its durable name, a ConsumerConfig, its fields, or these together.

        Its ``deliver_subject`` is a new inbox by default, with an ``idle_heartbeat`` of 1 s, so that the end of the
        consumer is noticed; 0 means none. Otherwise as ``create_consumer``.

        Args:
            config: The durable name, or a ConsumerConfig; None: the server makes a name.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
            **fields: The fields of ConsumerConfig, by keyword; they override those of ``config``.
        """
        config = amended(ConsumerConfig, config, fields, "durable_name")
        if not config.deliver_subject:
            config = config.replace(deliver_subject=self._api.new_inbox())
            if "idle_heartbeat" not in fields and not config.idle_heartbeat:
                config = config.replace(idle_heartbeat=PUSH_HEARTBEAT_S)
        info = await self._put_consumer("create", config, False, timeout)
        return PushConsumer(self._api, self.name, info.name, info)

    async def push_consumer(
        self,
        name: str,
        *,
        deliver_subject: str = "",
        deliver_group: str = "",
        idle_heartbeat: Duration | None = None,
        timeout: Duration | None = None,
    ) -> PushConsumer:
        """Return the push consumer with this name.

        With ``deliver_subject`` (and ``deliver_group`` and ``idle_heartbeat`` if it has them) no request is sent, so it
        may not exist. ConsumerNotFound; ConfigError when it is a pull consumer.

        Args:
            name: Which consumer: its durable name, or the one that the server has made.
            deliver_subject: The subject that it sends to, if you know it: then no request is sent. "": it is looked up.
            deliver_group: Its queue group, with ``deliver_subject``; "": none.
            idle_heartbeat: Its seconds between heartbeats, with ``deliver_subject``; None: none.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        if deliver_group:
            queue_group(deliver_group)
        if idle_heartbeat is not None:
            idle_heartbeat = seconds("idle_heartbeat", idle_heartbeat)
        info = None if deliver_subject else await self.consumer_info(name, timeout=timeout)
        return PushConsumer(
            self._api,
            self.name,
            name,
            info,
            deliver_subject=deliver_subject,
            deliver_group=deliver_group,
            idle_heartbeat=idle_heartbeat,
        )

    async def delete_consumer(self, name: str, *, timeout: Duration | None = None) -> None:
        """Delete a consumer. ConsumerNotFound.

        Args:
            name: Which consumer: its durable name, or the one that the server has made.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        await self._consumer(name, None).delete(timeout=timeout)

    async def consumer_info(self, name: str, *, timeout: Duration | None = None) -> ConsumerInfo:
        """Get the configuration and state of a consumer. ConsumerNotFound, which names consumers that exist.

        Args:
            name: Which consumer: its durable name, or the one that the server has made.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        try:
            return await self._consumer(name, None).info(timeout=timeout)
        except errors.ConsumerNotFound as exc:
            raise await self._name_existing(exc, timeout) from None

    async def _name_existing(self, error: errors.ConsumerNotFound, timeout: Duration | None) -> errors.ConsumerNotFound:
        """Add names of consumers of the stream, with one request, if they can be looked up."""
        try:
            page = await self._api.call_for(
                ConsumerNamesPage,
                f"CONSUMER.NAMES.{self.name}",
                {"offset": 0},
                operation=f"names of the consumers of {self._description}",
                timeout=timeout,
            )
        except errors.NatsError:
            return error  # perhaps without permission
        return errors.ConsumerNotFound(error.code, error.err_code, error.description, error.operation, page.consumers)

    def consumers(self, *, timeout: Duration | None = None) -> Listing[ConsumerInfo]:
        """Return the info of every consumer: read it with ``async for``.

        Args:
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        return Listing(self._consumer_pages(timeout))

    async def _consumer_pages(self, timeout: Duration | None) -> AsyncGenerator[Page[ConsumerInfo]]:
        pages = self._api.pages(
            ConsumerPage,
            f"CONSUMER.LIST.{self.name}",
            {},
            operation=f"consumers of {self._description}",
            names=lambda page: [*(one.name for one in page.consumers), *page.missing, *page.offline],
            total=lambda page: page.total,
            timeout=timeout,
        )
        async with aclosing(pages):
            async for page, new in pages:
                yield (
                    [one for one in page.consumers if one.name in new],
                    [name for name in page.missing if name in new],
                    {name: reason for name, reason in page.offline.items() if name in new},
                )

    @items
    async def consumer_names(self, *, timeout: Duration | None = None) -> AsyncGenerator[str]:
        """Yield the name of every consumer.

        Args:
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        pages = self._api.pages(
            ConsumerNamesPage,
            f"CONSUMER.NAMES.{self.name}",
            {},
            operation=f"names of the consumers of {self._description}",
            names=lambda page: page.consumers,
            total=lambda page: page.total,
            timeout=timeout,
        )
        async with aclosing(pages):
            async for page, new in pages:
                for name in page.consumers:
                    if name in new:
                        yield name

    async def pause_consumer(self, name: str, until: datetime, *, timeout: Duration | None = None) -> ConsumerPause:
        """Pause a consumer until then. See PullConsumer.pause.

        Args:
            name: Which consumer: its durable name, or the one that the server has made.
            until: Deliver nothing before this time.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        return await self._consumer(name, None).pause(until, timeout=timeout)

    async def resume_consumer(self, name: str, *, timeout: Duration | None = None) -> ConsumerPause:
        """End the pause of a consumer. See PullConsumer.resume.

        Args:
            name: Which consumer: its durable name, or the one that the server has made.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        return await self._consumer(name, None).resume(timeout=timeout)

    async def unpin_consumer(self, name: str, priority_group: str, *, timeout: Duration | None = None) -> None:
        """Unpin a priority group from its client. See PullConsumer.unpin.

        Args:
            name: Which consumer: its durable name, or the one that the server has made.
            priority_group: The priority group whose client is unpinned.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        await self._consumer(name, None).unpin(priority_group, timeout=timeout)

    async def reset_consumer(
        self, name: str, seq: int | None = None, *, timeout: Duration | None = None
    ) -> ConsumerReset:
        """Make a consumer deliver again from a sequence. See PullConsumer.reset.

        Args:
            name: Which consumer: its durable name, or the one that the server has made.
            seq: The sequence to deliver from; None: the first message after the acknowledged ones.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        return await self._consumer(name, None).reset(seq, timeout=timeout)

    async def _write_consumer(
        self,
        action: str,
        config: str | ConsumerConfig | None,
        fields: ConsumerArgs,
        pedantic: bool,
        timeout: Duration | None,
    ) -> PullConsumer:
        config = amended(ConsumerConfig, config, fields, "durable_name")
        if config.deliver_subject:
            raise errors.ConfigError("deliver_subject", config.deliver_subject, "is for create_push_consumer")
        info = await self._put_consumer(action, config, pedantic, timeout)
        return self._consumer(info.name, info)

    async def _put_consumer(
        self, action: str, config: ConsumerConfig, pedantic: bool, timeout: Duration | None
    ) -> ConsumerInfo:
        config.check()
        note_milliseconds("ack_wait", config.ack_wait)
        name = config.durable_name or config.name
        if action == "update":
            if not name:
                raise errors.ConfigError("name", name, "is needed to update a consumer")
        elif config.name and not config.durable_name and not config.inactive_threshold:
            why = "the server deletes a consumer with only a name after 5 s without a reader: pass the name first, or"
            raise errors.ConfigError(
                "name", name, f"{why} as durable_name=, to keep it; else pass inactive_threshold= (s)"
            )
        self._warn_about_filters(config)
        body: dict[str, object] = {"stream_name": self.name, "config": config}
        if action:
            body["action"] = action
        if pedantic:
            body["pedantic"] = True
        operation = f"{action or 'create or update'} consumer {name!r} of {self._description}"
        needed = needed_by_consumer(config, pedantic=pedantic)
        await self._api.require_feature(needed, operation, timeout)
        try:
            with translate_unknown_field(operation):
                info = await self._api.call_for(
                    ConsumerInfo,
                    create_endpoint(self.name, config),
                    body,
                    operation=operation,
                    timeout=timeout,
                    level=needed.level,
                    # Repeating it without a name would create another consumer; repeating an update may undo a change.
                    retry=bool(name) and action == "create",
                )
        except errors.ConsumerExists as exc:
            raise await self._explain(exc, name, config, timeout) from None
        check_features_kept(config, info.config, CONSUMER_FEATURES, operation)
        return info

    def _warn_about_filters(self, config: ConsumerConfig) -> None:
        """Log a filter that no subject of the stream matches, as far as the last info shows: it sends nothing."""
        stream = None if self._info is None else self._info.config
        if stream is None or stream.mirror or stream.sources or stream.subject_transform or not stream.subjects:
            return  # it may store other subjects
        for pattern in filter(None, (config.filter_subject, *config.filter_subjects)):
            if pattern not in stream.subjects and not any(overlap(pattern, subject) for subject in stream.subjects):
                log.warning(
                    "the filter %r of a consumer of %s matches none of its subjects: %s",
                    pattern,
                    self._description,
                    ", ".join(stream.subjects),
                )

    async def _explain(
        self, error: errors.ConsumerExists, name: str, config: ConsumerConfig, timeout: Duration | None
    ) -> errors.ConsumerExists:
        """Add what differs between the existing consumer and what was asked for, if it can be looked up."""
        try:
            found = (await self.consumer_info(name, timeout=timeout)).config
        except errors.NatsError:
            return error
        facts = (error.code, error.err_code, error.description, error.operation)
        if found.deliver_subject and not config.deliver_subject:
            return errors.ConsumerExists(*facts, deliver_subject=found.deliver_subject)
        return errors.ConsumerExists(*facts, differences=[one.text for one in consumer_differences(found, config)])

    def _consumer(self, name: str, info: ConsumerInfo | None) -> PullConsumer:
        """Create the handle of a consumer; the only place that does."""
        return PullConsumer(self._api, self.name, name, info)

    @property
    def _description(self) -> str:
        return f"stream {self.name!r}"
