"""The consumers of a stream: creating, changing, opening and listing them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

from natsproto._async_hints import items
from natsproto.errors import ConfigError
from natsproto.jetstream._api import Api
from natsproto.jetstream._codec import NEVER, Duration, amended
from natsproto.jetstream._config import AckPolicy, ConsumerConfig, DeliverPolicy, stream_name
from natsproto.jetstream._consumer.handle import PullConsumer, check_stream_sequence, create_endpoint
from natsproto.jetstream._consumer.ordered import OrderedConsumer
from natsproto.jetstream._consumer.ordered_cursor import PUSH_HEARTBEAT_S
from natsproto.jetstream._consumer.push import PushConsumer
from natsproto.jetstream._features import (
    CONSUMER_FEATURES,
    check_features_kept,
    newest_feature,
    translate_unknown_field,
)
from natsproto.jetstream._info import (
    ConsumerInfo,
    ConsumerNamesPage,
    ConsumerPage,
    ConsumerPause,
    ConsumerReset,
    StreamInfo,
)
from natsproto.jetstream._listing import Listing, Page

if TYPE_CHECKING:
    from typing import Unpack

    from natsproto.jetstream._arguments import ConsumerArgs


class ConsumerManager:
    """Manages the consumers of one stream. A part of Stream."""

    # What it makes; a stream that is instrumented makes its own.
    _ordered: ClassVar[type[OrderedConsumer]] = OrderedConsumer
    _pushed: ClassVar[type[PushConsumer]] = PushConsumer

    def __init__(self, api: Api, name: str, info: StreamInfo | None = None) -> None:
        self._api = api
        self.name: str = stream_name(name)
        """The name of the stream."""
        self._info = info

    async def create_consumer(
        self,
        config: ConsumerConfig | None = None,
        /,
        *,
        pedantic: bool = False,
        timeout: Duration | None = None,
        **fields: Unpack[ConsumerArgs],
    ) -> PullConsumer:
        """Creates a consumer from a ConsumerConfig, from its fields, or from both (the fields win).

        The same consumer may be created twice; ConsumerExists when one of that name is configured otherwise.
        ConfigError and InvalidConsumerConfig; UnsupportedByServer when an older server does not know what was asked for
        (before 2.12 the consumer exists then, without it). ``pedantic`` makes the server refuse what it would otherwise
        adapt.
        """
        return await self._write_consumer("create", config, fields, pedantic, timeout)

    async def update_consumer(
        self,
        config: ConsumerConfig | None = None,
        /,
        *,
        pedantic: bool = False,
        timeout: Duration | None = None,
        **fields: Unpack[ConsumerArgs],
    ) -> PullConsumer:
        """Changes the consumer of that name to this whole configuration. ConsumerNotFound when there is none."""
        return await self._write_consumer("update", config, fields, pedantic, timeout)

    async def create_or_update_consumer(
        self,
        config: ConsumerConfig | None = None,
        /,
        *,
        pedantic: bool = False,
        timeout: Duration | None = None,
        **fields: Unpack[ConsumerArgs],
    ) -> PullConsumer:
        """Creates the consumer, or changes the one of that name to this whole configuration."""
        return await self._write_consumer("", config, fields, pedantic, timeout)

    async def consumer(self, name: str, *, bind: bool = False, timeout: Duration | None = None) -> PullConsumer:
        """The consumer of that name. With ``bind`` nothing is asked, so that it may not exist."""
        consumer = self._consumer(name, None)
        if not bind:
            await consumer.info(timeout=timeout)
        return consumer

    def ordered_consumer(
        self,
        config: ConsumerConfig | None = None,
        /,
        *,
        start_sequence: int | None = None,
        start_time: datetime | None = None,
        push: bool = False,
        name_prefix: str = "",
        **fields: Unpack[ConsumerArgs],
    ) -> OrderedConsumer:
        """Reads the stream in order, each message once, whatever happens (ADR-17). Sends nothing until it is read.

        ``start_sequence`` or ``start_time`` is where to begin; else ``deliver_policy`` says it (default: all). Other
        fields are ``filter_subjects``, ``headers_only``, ``replay_policy`` …; ConfigError for those that an ordered
        consumer chooses itself. With ``push`` the server sends without being asked, under flow control: the first
        message comes a round trip earlier, and ``fetch`` and ``next`` do not exist. ``idle_heartbeat`` is how often it
        shows that it lives then (default 1 s); when three are missed the consumer is replaced. ``name_prefix`` begins
        the names of the consumers, ``<prefix>_1`` and so on; a number that another reader has is passed over.
        """
        if push and not fields.get("flow_control", True):
            raise ConfigError("flow_control", False, "an ordered consumer that is pushed to needs it")
        config = amended(ConsumerConfig, config, fields)
        if start_sequence is not None:
            start_sequence = check_stream_sequence("start_sequence", start_sequence)
            config = config.replace(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=start_sequence)
        if start_time is not None:
            if start_sequence is not None:
                raise ConfigError("start_time", start_time, "cannot be given together with start_sequence")
            config = config.replace(deliver_policy=DeliverPolicy.BY_START_TIME, opt_start_time=start_time)
        stream_created = NEVER if self._info is None else self._info.created
        return self._ordered(
            self._api, self.name, config, push=push, stream_created=stream_created, name_prefix=name_prefix
        )

    async def push_consumer(
        self,
        config: ConsumerConfig | str | None = None,
        /,
        *,
        timeout: Duration | None = None,
        **fields: Unpack[ConsumerArgs],
    ) -> PushConsumer:
        """A consumer whose messages the server sends without being asked (ADR-9).

        Given a name it is the existing one; with ``deliver_subject`` as well (and ``deliver_group`` and
        ``idle_heartbeat`` if it has them) nothing is asked. Else it is created, from a ConsumerConfig, its fields, or
        both; ``deliver_subject`` is a new inbox by default, and ``idle_heartbeat`` 1 s then, so that the end of the
        consumer is noticed; 0 is for none. ConfigError when the existing one is no push consumer;
        ConsumerNotFound; and what ``create_consumer`` raises.
        """
        if isinstance(config, str):
            unknown = sorted(fields.keys() - {"deliver_subject", "deliver_group", "idle_heartbeat"})
            if unknown:
                raise ConfigError(unknown[0], config, "is not asked of an existing consumer: update it instead")
            info = None if "deliver_subject" in fields else await self.consumer_info(config, timeout=timeout)
            return self._pushed(
                self._api,
                self.name,
                config,
                info,
                deliver_subject=fields.get("deliver_subject", ""),
                deliver_group=fields.get("deliver_group", ""),
                idle_heartbeat=fields.get("idle_heartbeat"),
            )
        config = amended(ConsumerConfig, config, fields)
        if not config.deliver_subject:
            config = config.replace(deliver_subject=self._api.new_inbox())
            if "idle_heartbeat" not in fields and not config.idle_heartbeat:
                config = config.replace(idle_heartbeat=PUSH_HEARTBEAT_S)
        info = await self._put_consumer("create", config, False, timeout)
        return self._pushed(self._api, self.name, info.name, info)

    async def delete_consumer(self, name: str, *, timeout: Duration | None = None) -> None:
        """Deletes a consumer. ConsumerNotFound."""
        await self._consumer(name, None).delete(timeout=timeout)

    async def consumer_info(self, name: str, *, timeout: Duration | None = None) -> ConsumerInfo:
        """How a consumer is configured and how far it is. ConsumerNotFound."""
        return await self._consumer(name, None).info(timeout=timeout)

    def consumers(self, *, timeout: Duration | None = None) -> Listing[ConsumerInfo]:
        """The info of every consumer: read it with ``async for``."""
        return Listing(self._consumer_pages(timeout))

    async def _consumer_pages(self, timeout: Duration | None) -> AsyncGenerator[Page[ConsumerInfo]]:
        pages = self._api.pages(
            ConsumerPage,
            f"CONSUMER.LIST.{self.name}",
            {},
            asked=f"consumers of {self._what}",
            size=lambda page: len(page.consumers) + len(page.missing) + len(page.offline),
            total=lambda page: page.total,
            timeout=timeout,
        )
        async with aclosing(pages):
            async for page in pages:
                yield page.consumers, page.missing, page.offline

    @items
    async def consumer_names(self, *, timeout: Duration | None = None) -> AsyncGenerator[str]:
        """Yields the name of every consumer."""
        pages = self._api.pages(
            ConsumerNamesPage,
            f"CONSUMER.NAMES.{self.name}",
            {},
            asked=f"names of the consumers of {self._what}",
            size=lambda page: len(page.consumers),
            total=lambda page: page.total,
            timeout=timeout,
        )
        async with aclosing(pages):
            async for page in pages:
                for name in page.consumers:
                    yield name

    async def pause_consumer(self, name: str, until: datetime, *, timeout: Duration | None = None) -> ConsumerPause:
        """Lets a consumer deliver nothing until then. See Consumer.pause."""
        return await self._consumer(name, None).pause(until, timeout=timeout)

    async def resume_consumer(self, name: str, *, timeout: Duration | None = None) -> ConsumerPause:
        """Ends the pause of a consumer. See Consumer.resume."""
        return await self._consumer(name, None).resume(timeout=timeout)

    async def unpin_consumer(self, name: str, group: str, *, timeout: Duration | None = None) -> None:
        """Takes the pin of a priority group from the client that has it. See Consumer.unpin."""
        await self._consumer(name, None).unpin(group, timeout=timeout)

    async def reset_consumer(
        self, name: str, sequence: int | None = None, *, timeout: Duration | None = None
    ) -> ConsumerReset:
        """Lets a consumer deliver again from a sequence on. See Consumer.reset."""
        return await self._consumer(name, None).reset(sequence, timeout=timeout)

    async def _write_consumer(
        self,
        action: str,
        config: ConsumerConfig | None,
        fields: ConsumerArgs,
        pedantic: bool,
        timeout: Duration | None,
    ) -> PullConsumer:
        config = amended(ConsumerConfig, config, fields)
        info = await self._put_consumer(action, config, pedantic, timeout)
        return self._consumer(info.name, info)

    async def _put_consumer(
        self, action: str, config: ConsumerConfig, pedantic: bool, timeout: Duration | None
    ) -> ConsumerInfo:
        config.check()
        name = config.durable_name or config.name
        if action == "update" and not name:
            raise ConfigError("name", name, "is needed to update a consumer")
        body: dict[str, object] = {"stream_name": self.name, "config": config}
        if action:
            body["action"] = action
        if pedantic:
            body["pedantic"] = True
        asked = f"{action or 'create or update'} consumer {name!r} of {self._what}"
        what, version, level = newest_feature(config, CONSUMER_FEATURES)
        if config.ack_policy == AckPolicy.FLOW_CONTROL:
            what, version, level = "ack_policy", "2.14", 4
        await self._api.require_api_level(level, version, f"{asked} with {what}", timeout)
        with translate_unknown_field(asked):
            info = await self._api.get(
                ConsumerInfo,
                create_endpoint(self.name, config),
                body,
                asked=asked,
                timeout=timeout,
                level=level,
                once=not name or action != "create",  # else each time would make another one, or undo a change
            )
        check_features_kept(config, info.config, CONSUMER_FEATURES, asked)
        return info

    def _consumer(self, name: str, info: ConsumerInfo | None) -> PullConsumer:
        """The one place where consumers of this stream are made."""
        return PullConsumer(self._api, self.name, name, info)

    @property
    def _what(self) -> str:
        return f"stream {self.name!r}"
