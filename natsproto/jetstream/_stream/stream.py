"""The stream handle: the state, messages and configuration of a stream.

Owns the name, the last info, and whether direct get works. ``_direct`` gets messages, ``_backup`` saves a stream.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from datetime import datetime
from os import PathLike
from time import monotonic
from typing import Any, Unpack

from natsproto import errors
from natsproto._help.async_hints import items
from natsproto._help.introspection import import_late_types
from natsproto.jetstream._api.requests import Api, walk_pages
from natsproto.jetstream._consumer.handle import check_stream_sequence
from natsproto.jetstream._stream.backup import Progress
from natsproto.jetstream._stream.batch_get import BatchGet, PageCursor, StoredMessages
from natsproto.jetstream._stream.consumers import ConsumerManager
from natsproto.jetstream._stream.direct_get import RawMessage, StreamLeader, check_start_time, direct_get, leader_get
from natsproto.jetstream._stream.multi_last import MultiLastGet
from natsproto.jetstream._values.arguments import StreamArgs
from natsproto.jetstream._values.codec import INT64, Duration, decode, encode, server_time
from natsproto.jetstream._values.config import StreamConfig
from natsproto.jetstream._values.config_compare import stream_differences
from natsproto.jetstream._values.error_codes import ErrCode
from natsproto.jetstream._values.features import (
    MEMORY_BACKUP,
    START_TIME,
    STREAM_FEATURES,
    check_features_kept,
    needed_by_stream,
    translate_unknown_field,
)
from natsproto.jetstream._values.info import (
    Purged,
    StreamInfo,
    StreamNamesPage,
    SubjectsPage,
)
from natsproto.jetstream._values.policies import StorageType
from natsproto.jetstream._values.record import named_changes
from natsproto.protocol.subject import subscribe_subject


class Stream(ConsumerManager):
    """A stream of this account or domain. Created by the JetStream context.

    Every call takes ``timeout`` in seconds (default: that of the JetStream context). It raises StreamNotFound and the
    errors of every call of the JetStream API: ApiError or the subclass for its code, JetStreamNotEnabled,
    RequestTimeout, PermissionDenied, ConnectionLost, ConnectionClosed. Invalid names and subjects raise InvalidSubject
    before anything is sent. A cancelled call may still take effect.

    With ``allow_direct``, any server that has the stream returns messages; otherwise, and with ``direct=False``, its
    leader does. Only the leader is certain to have a message that was just acknowledged.
    """

    def __init__(self, api: Api, name: str, info: StreamInfo | None = None) -> None:
        super().__init__(api, name, info)
        if info is not None:
            api.streams.add(info)
        self.reads_directly: bool = info is None or info.config.allow_direct
        """True if messages are read from any server that has the stream (direct get), as far as is known."""
        self._leader = StreamLeader(api, name)

    def __repr__(self) -> str:
        return f"Stream(name={self.name!r})"

    # ---------------------------------------------------------------- properties

    @property
    def cached_info(self) -> StreamInfo:
        """The last info. LocalProtocolError for a handle that was bound without a request."""
        if self._info is None:
            raise errors.LocalProtocolError(
                f"{self._description} was bound without asking the server: call info() first"
            )
        return self._info

    async def info(
        self, *, deleted_details: bool = False, subjects_filter: str = "", timeout: Duration | None = None
    ) -> StreamInfo:
        """Get the configuration and state of the stream.

        ``deleted_details`` adds the sequences of deleted messages (``state.deleted``), ``subjects_filter`` the number
        of messages of each subject that matches (``state.subjects``), in as many requests as that takes.

        Args:
            deleted_details: List the sequences of deleted messages in ``state.deleted``.
            subjects_filter: Count the messages of each of these subjects, in ``state.subjects``; "": of none.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        body: dict[str, object] = {"deleted_details": True} if deleted_details else {}
        if subjects_filter:
            subscribe_subject(subjects_filter, "subjects_filter")
            body["subjects_filter"] = subjects_filter
        subjects: dict[str, int] = {}
        async with aclosing(self._info_pages(body, timeout)) as pages:
            async for (info, _), _ in pages:
                self._update_info(info)
                subjects |= info.state.subjects
        return info.replace(state=info.state.replace(subjects=subjects)) if subjects_filter else info

    @items
    async def subjects(
        self, subjects_filter: str = ">", *, timeout: Duration | None = None
    ) -> AsyncGenerator[tuple[str, int]]:
        """Yield every subject that matches, with the number of its messages; each request gets 100,000 subjects.

        Args:
            subjects_filter: The subjects to list; wildcards allowed.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        subscribe_subject(subjects_filter, "subjects_filter")
        async with aclosing(self._info_pages({"subjects_filter": subjects_filter}, timeout)) as pages:
            async for (info, _), new in pages:
                for subject, count in info.state.subjects.items():
                    if subject in new:
                        yield subject, count

    def _info_pages(
        self, body: dict[str, object], timeout: Duration | None
    ) -> AsyncGenerator[tuple[tuple[StreamInfo, SubjectsPage], set[str]]]:
        """Yield the info with each page of its subjects, and the subjects that are new in it."""

        async def fetch(offset: int) -> tuple[StreamInfo, SubjectsPage]:
            wanted = {**body, "offset": offset} if offset else body
            payload = await self._api.call(
                f"STREAM.INFO.{self.name}", wanted or b"", operation=f"info of {self._description}", timeout=timeout
            )
            return decode(StreamInfo, payload), decode(SubjectsPage, payload)

        return walk_pages(fetch, lambda page: page[0].state.subjects, lambda page: page[1].total)

    def _update_info(self, info: StreamInfo) -> StreamInfo:
        if info.state.subjects or info.state.deleted:
            info = info.replace(state=info.state.replace(subjects={}, deleted=()))
        self._info, self.reads_directly = info, info.config.allow_direct
        self._api.streams.add(info)
        return info

    # ---------------------------------------------------------------- changing

    async def update(
        self,
        config: StreamConfig | None = None,
        /,
        *,
        pedantic: bool = False,
        timeout: Duration | None = None,
        **changes: Unpack[StreamArgs],
    ) -> StreamInfo:
        """Change the given fields, and no others; a whole StreamConfig replaces all. See ``JetStream.update_stream``.

        ConfigError when ``config`` is for another stream; InvalidStreamConfig for fields that cannot be changed;
        UnsupportedByServer when an older server ignored a field. ``pedantic`` (server 2.11) makes the server reject
        values that it would otherwise adjust.

        Args:
            config: A StreamConfig, which replaces all; None: only the given fields change.
            pedantic: Let the server refuse values that it would otherwise adjust.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
            **changes: The fields of StreamConfig to change, by keyword.
        """
        if config is None:
            return await self._change(*named_changes(StreamConfig, self.name, changes, "name"), pedantic, timeout)
        if not isinstance(config, StreamConfig):
            raise TypeError(f"config must be a StreamConfig, not {type(config).__name__}: fields are named arguments")
        config = config.replace(**changes)
        if config.name != self.name:
            raise errors.ConfigError("name", config.name, f"this is {self._description}: a stream cannot be renamed")
        return self._update_info(await write_stream(self._api, "UPDATE", config, pedantic, timeout))

    async def _change(
        self, partial: StreamConfig, changes: Mapping[str, object], pedantic: bool, timeout: Duration | None
    ) -> StreamInfo:
        partial.check()  # before anything is sent
        needed = needed_by_stream(partial, pedantic=pedantic)
        await self._api.require_feature(needed, f"update {self._description}", timeout)
        config = with_changes((await self.info(timeout=timeout)).config, changes)
        return self._update_info(await write_stream(self._api, "UPDATE", config, pedantic, timeout))

    async def seal(self, *, timeout: Duration | None = None) -> StreamInfo:
        """Make the stream read-only, permanently: nothing is stored, deleted, purged or expired from now on.

        Args:
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        return await self.update(sealed=True, timeout=timeout)

    async def delete(self, *, timeout: Duration | None = None) -> None:
        """Delete the stream with its messages and consumers.

        Args:
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        await self._api.call_expecting_success(
            f"STREAM.DELETE.{self.name}", operation=f"delete {self._description}", timeout=timeout
        )
        self._api.streams.remove(self.name)

    async def purge(
        self,
        *,
        subject: str = "",
        keep: int = 0,
        seq: int = 0,
        timeout: Duration | None = None,
    ) -> int:
        """Remove all messages, or those on subjects that match ``subject``; return the number of removed messages.

        ``seq``: remove only messages before it. ``keep``: the number of newest messages to keep. ConfigError when
        both are given; StreamProtected when the stream does not allow it.

        Args:
            subject: Only messages of this subject, wildcards allowed; "": all.
            keep: How many of the newest messages stay; 0: none.
            seq: Only messages before this sequence; 0: all. Cannot be combined with ``keep``.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        body: dict[str, object] = {}
        if subject:
            subscribe_subject(subject)
            body["filter"] = subject
        body |= _nonzero("keep", "keep", keep) | _nonzero("seq", "seq", seq)
        if "keep" in body and "seq" in body:
            raise errors.ConfigError("keep", keep, "cannot be given together with a sequence")
        done = await self._api.call_for(
            Purged, f"STREAM.PURGE.{self.name}", body or b"", operation=f"purge {self._description}", timeout=timeout
        )
        return done.purged

    async def delete_message(self, seq: int, *, erase: bool = False, timeout: Duration | None = None) -> None:
        """Delete one message; ``erase`` overwrites it with random data first, which is slower.

        MessageNotFound; StreamProtected when the stream does not allow it.

        Args:
            seq: Where the message is in the stream: ``PubAck.seq``, ``message.seq``.
            erase: Overwrite the message on disk with random data, which is slower.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        body = {"seq": check_stream_sequence("seq", seq), "no_erase": not erase}
        operation = f"delete message {seq} of {self._description}"
        try:
            await self._api.call_expecting_success(
                f"STREAM.MSG.DELETE.{self.name}", body, operation=operation, timeout=timeout
            )
        except errors.StreamProtected as exc:  # its code carries every error of the store
            if exc.description in _NO_SUCH_MESSAGE:
                missing = f"sequence {seq} not found"
                raise errors.MessageNotFound(404, ErrCode.SEQUENCE_NOT_FOUND, missing, operation) from exc
            if exc.err_code != ErrCode.STREAM_MSG_DELETE_FAILED or "not permitted" in exc.description:
                raise
            raise errors.ApiError(exc.code, exc.err_code, exc.description, operation) from exc

    async def backup(
        self,
        path: str | PathLike[str],
        *,
        consumers: bool = True,
        check: bool = False,
        chunk_size: int = 128 * 1024,
        window_size: int = 8 * 2**20,
        progress: Callable[[Progress], object] | None = None,
        timeout: Duration | None = None,
    ) -> Progress:
        """Save the stream, and with ``consumers`` its consumers, to a folder.

        ``JetStream.restore_stream`` and the ``nats`` tool can restore it: it has ``backup.json`` and ``stream.tar.s2``.
        The folder appears when it is complete, and replaces an older backup. With ``check`` the server verifies every
        message first. The server sends chunks of ``chunk_size`` bytes (1 KiB to 1 MiB), and at most ``window_size``
        bytes (up to 32 MiB) that are not written yet. ``progress`` is called after every write. ``timeout`` applies to
        each reply, not to the whole backup.

        ApiError with the status (408, 500) when the server gives up; UnsupportedByServer for a stream in memory on a
        server before 2.15; RequestTimeout; ConnectionLost; OSError of the files. No folder is left after a failure or
        when cancelled.

        Args:
            path: The folder, which appears when the backup is complete; an older backup in it is replaced.
            consumers: Back up the consumers, too.
            check: Let the server verify every message first.
            chunk_size: Bytes of one message of the transfer, 1 KiB to 1 MiB.
            window_size: Bytes that may be on their way and not yet written, at most 32 MiB.
            progress: Called with a Progress after every part, on the event loop; None: not called.
            timeout: Seconds to wait for each reply, not for the whole backup; None: that of the JetStream context.
        """
        from natsproto.jetstream._stream import backup  # rarely needed

        operation = f"backup of {self._description}"
        if not await self._api.supports_api_level(MEMORY_BACKUP.level, operation, timeout):
            info = self._info if self._info is not None else await self.info(timeout=timeout)
            if info.config.storage == StorageType.MEMORY:
                await self._api.require_feature(MEMORY_BACKUP, operation, timeout)
        return await backup.save(
            self._api,
            self.name,
            path,
            consumers=consumers,
            check=check,
            chunk_size=chunk_size,
            window_size=window_size,
            progress=progress,
            timeout=timeout,
        )

    # ---------------------------------------------------------------- one message

    async def get_message(
        self, seq: int, *, headers: bool = True, direct: bool = True, timeout: Duration | None = None
    ) -> RawMessage:
        """Return the message with this sequence. MessageNotFound when there is none, or it was removed.

        ``headers=False`` omits the publisher's headers (``no_hdr``, ADR-31). The leader returns such a message, here
        and in the two methods below, since a direct get would also omit sequence, subject and time.

        Args:
            seq: Where the message is in the stream: ``PubAck.seq``, ``message.seq``.
            headers: False leaves out the headers of the publisher; then the leader answers.
            direct: Read from any replica if the stream has ``allow_direct``; False asks the leader, which always has
                the newest message.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        body = {"seq": check_stream_sequence("seq", seq)}
        return await self._get(body, "", headers, direct, f"message {seq} of {self._description}", timeout)

    async def get_last_message(
        self, subject: str, *, headers: bool = True, direct: bool = True, timeout: Duration | None = None
    ) -> RawMessage:
        """Return the newest message on the subject, which may have wildcards. MessageNotFound when there is none.

        Args:
            subject: The subject, without wildcards.
            headers: False leaves out the headers of the publisher; then the leader answers.
            direct: Read from any replica if the stream has ``allow_direct``; False asks the leader, which always has
                the newest message.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        subscribe_subject(subject)
        wild = _has_wildcard(subject)
        operation = f"last message of {subject!r} in {self._description}"
        return await self._get({"last_by_subj": subject}, "" if wild else subject, headers, direct, operation, timeout)

    async def get_next_message(
        self,
        subject: str = ">",
        *,
        start_seq: int | None = None,
        start_time: datetime | None = None,
        headers: bool = True,
        direct: bool = True,
        timeout: Duration | None = None,
    ) -> RawMessage:
        """Return the first message on subjects that match, from this sequence or (server 2.11) this time on.

        MessageNotFound when there is none. ConfigError when both starts are given, and for a naive time;
        UnsupportedByServer when the server does not know start times.

        Args:
            subject: The subject; wildcards allowed.
            start_seq: The first message with this sequence or a higher one; None: from the beginning.
            start_time: The first message stored at or after this time; None: from the beginning.
            headers: False leaves out the headers of the publisher; then the leader answers.
            direct: Read from any replica if the stream has ``allow_direct``; False asks the leader, which always has
                the newest message.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        subscribe_subject(subject)
        body = {**_start_fields(start_seq, start_time), "next_by_subj": subject}
        operation = f"next message of {subject!r} in {self._description}"
        if start_time is not None:
            await self._api.require_feature(START_TIME, operation, timeout)
        message = await self._get(body, "", headers, direct, operation, timeout)
        if start_time is not None:
            check_start_time(message, start_time, operation)
        return message

    async def _get(
        self,
        body: Mapping[str, object],
        key: str,
        headers: bool,
        direct: bool,
        operation: str,
        timeout: Duration | None,
    ) -> RawMessage:
        if not headers:
            body = {**body, "no_hdr": True}
        elif direct and self.reads_directly:
            began = monotonic()
            try:
                return await direct_get(self._api, self.name, body, key=key, operation=operation, timeout=timeout)
            except errors.NoResponders:
                timeout = self._api.left(timeout, began)  # not allowed, or no stream: the leader's reply shows which
            except errors.MessageNotFound as missing:
                return await self._confirm_missing(missing, body, self._api.left(timeout, began))
            message = await leader_get(self._api, self.name, body, operation=operation, timeout=timeout)
            self.reads_directly = False  # until the next info says otherwise
            return message
        return await leader_get(self._api, self.name, body, operation=operation, timeout=timeout)

    async def _confirm_missing(
        self, missing: errors.MessageNotFound, body: Mapping[str, object], timeout: Duration | None
    ) -> RawMessage:
        """Get a message that one server does not have from the leader: a replica or a mirror may lag, or be refilled.

        Raises ``missing``, too, where the leader may not be asked.
        """
        found = await self._leader.find(body, operation=missing.operation, timeout=timeout)
        if found is None:
            raise missing
        return found

    # ---------------------------------------------------------------- many messages

    def get_batch(
        self,
        *,
        subject: str = "",
        start_seq: int | None = None,
        start_time: datetime | None = None,
        batch: int | None = None,
        max_bytes: int | None = None,
        direct: bool = True,
        timeout: Duration | None = None,
    ) -> StoredMessages:
        """Return messages in order (ADR-31), for ``async for`` or ``batches()``; ``subject`` may have wildcards.

        They start with the first message, or at ``start_seq`` or ``start_time``. The limits are ``batch`` messages
        and ``max_bytes`` bytes of subjects, headers and payloads (one message may exceed it); without limits they end
        at the end of the stream. Deleted messages are skipped. The next page is requested while one is read.

        Without direct get, or before server 2.11, messages are requested one by one, which is slow. ``timeout`` is the
        longest wait for a message. ConfigError for invalid arguments at once; RequestTimeout, StreamNotFound,
        PermissionDenied and ConnectionClosed while reading. A lost connection loses no message.

        Args:
            subject: Only messages of this subject, wildcards allowed; "": all.
            start_seq: The first message with this sequence or a higher one; None: from the beginning.
            start_time: The first message stored at or after this time; None: from the beginning.
            batch: The most messages; None: no limit, to the end of the stream.
            max_bytes: The most bytes of subjects, headers and payloads; None: no limit. One message may exceed it.
            direct: Read from any replica if the stream has ``allow_direct``; False asks the leader, which always has
                the newest message.
            timeout: Seconds to wait for a message; None: that of the JetStream context.
        """
        body: dict[str, object] = {}
        if subject:
            subscribe_subject(subject)
            body["next_by_subj"] = subject
        first = _start_fields(start_seq, start_time)
        cursor = PageCursor(body, first, limit=_positive("batch", batch), max_bytes=_positive("max_bytes", max_bytes))
        operation = f"messages of {self._description}"
        run = BatchGet(
            self._api,
            self.name,
            cursor,
            leader=self._leader,
            can_get_single=True,
            direct=direct and self.reads_directly,
            operation=operation,
            timeout=timeout,
            since=start_time,
        )
        return StoredMessages(run.batches(), operation)

    def get_last_messages(
        self,
        subjects: Iterable[str],
        *,
        up_to_seq: int | None = None,
        up_to_time: datetime | None = None,
        batch: int | None = None,
        timeout: Duration | None = None,
    ) -> StoredMessages:
        """Return the newest message on every subject that matches, as a snapshot (ADR-31).

        ``up_to_seq`` and ``up_to_time`` (inclusive) choose a time in the past, as far as the stream still has its
        messages. Without them the snapshot is of now; in a stream that keeps only the newest message of a subject, a
        message published during the read may be returned in place of the older one. At most ``batch`` messages are
        returned. Up to 1,024 subjects are in the order of the stream; more are requested a thousand at a time, each
        thousand in its order.

        ``timeout`` is the longest wait for a message. ConfigError for invalid arguments at once. While reading:
        UnsupportedByServer when the stream does not have ``allow_direct`` or the server is older than 2.11;
        RequestTimeout, StreamNotFound, PermissionDenied, ConnectionClosed.

        Args:
            subjects: The subjects; wildcards allowed.
            up_to_seq: As of this sequence, inclusive; None: now.
            up_to_time: As of this time, inclusive; None: now.
            batch: The most messages to return; None: one for every subject that matches.
            timeout: Seconds to wait for a message; None: that of the JetStream context.
        """
        if isinstance(subjects, str):
            raise TypeError(f"subjects must be a list of subjects, not one str: [{subjects!r}]")
        wanted = tuple(subjects)
        if not wanted:
            raise errors.ConfigError("subjects", wanted, "must name at least one subject")
        for subject in wanted:
            subscribe_subject(subject)
        up_to: dict[str, object] = {}
        if up_to_seq is not None:
            up_to["up_to_seq"] = check_stream_sequence("up_to_seq", up_to_seq)
        if up_to_time is not None:
            if up_to:
                raise errors.ConfigError("up_to_time", up_to_time, "cannot be given together with up_to_seq")
            # A nanosecond is added because the server (2.15) excludes a message stored at this time.
            up_to["up_to_time"] = server_time("up_to_time", up_to_time, add_ns=1).rfc3339()
        limit = _positive("batch", batch)
        run = MultiLastGet(
            self._api,
            self,
            wanted,
            up_to,
            leader=self._leader,
            direct=self.reads_directly,
            limit=limit,
            timeout=timeout,
        )
        return StoredMessages(run.batches(), f"last messages of {self._description}")


_NO_SUCH_MESSAGE = ("no message found", "stream store EOF", "deleted message")
"""Descriptions of the stores for a sequence that was purged, that is after the last one, and that was deleted."""


def with_changes(config: StreamConfig, changes: Mapping[str, Any]) -> StreamConfig:
    """Return a configuration with other values of some fields. The ``duplicate_window``, which the server has chosen if
    nobody else, follows a ``max_age`` that is shorter: a server rejects it otherwise.
    """
    config = config.replace(**changes)
    if "max_age" in changes and "duplicate_window" not in changes and 0 < config.max_age < config.duplicate_window:
        return config.replace(duplicate_window=config.max_age)
    return config


async def write_stream(
    api: Api, verb: str, config: StreamConfig, pedantic: bool, timeout: Duration | None, *, what: str = ""
) -> StreamInfo:
    """CREATE or UPDATE a stream, and check that the server has ignored no field. Errors are about ``what``, by default
    the stream.
    """
    config.check()
    body = encode(config)
    if pedantic:
        body["pedantic"] = True
    operation = f"{verb.lower()} {what or f'stream {config.name!r}'}"
    needed = needed_by_stream(config, pedantic=pedantic)
    await api.require_feature(needed, operation, timeout)
    try:
        with translate_unknown_field(operation):
            endpoint = f"STREAM.{verb}.{config.name}"
            info = await api.call_for(
                StreamInfo, endpoint, body, operation=operation, timeout=timeout, level=needed.level
            )
    except errors.StreamExists as exc:
        raise await _explain(api, exc, config, timeout) from None
    except errors.SubjectsOverlap as exc:
        raise await _name_the_other(api, exc, config, timeout) from None
    check_features_kept(config, info.config, STREAM_FEATURES, operation)
    return info


async def _explain(
    api: Api, error: errors.StreamExists, config: StreamConfig, timeout: Duration | None
) -> errors.StreamExists:
    """Add what differs between the existing stream and the wanted one, if it can be looked up."""
    try:
        info = await api.call_for(
            StreamInfo, f"STREAM.INFO.{config.name}", operation=f"info of stream {config.name!r}", timeout=timeout
        )
    except errors.NatsError:
        return error
    differences = [one.text for one in stream_differences(info.config, config)]
    return errors.StreamExists(error.code, error.err_code, error.description, error.operation, differences)


async def _name_the_other(
    api: Api, error: errors.SubjectsOverlap, config: StreamConfig, timeout: Duration | None
) -> errors.SubjectsOverlap:
    """Add the name of a stream that has one of the subjects, if it can be looked up; ask for at most ten subjects."""
    try:
        for subject in config.subjects[:10]:
            page = await api.call_for(
                StreamNamesPage, "STREAM.NAMES", {"subject": subject}, operation="names of streams", timeout=timeout
            )
            for name in page.streams:
                if name != config.name:
                    facts = (error.code, error.err_code, error.description, error.operation)
                    return errors.SubjectsOverlap(*facts, stream=name, subject=subject)
    except errors.NatsError:
        pass  # perhaps without permission: the server's error stands
    return error


async def create_or_update_stream(
    api: Api, config: StreamConfig, pedantic: bool, timeout: Duration | None, *, what: str = ""
) -> StreamInfo:
    """UPDATE a stream, or CREATE it when there is none."""
    try:
        return await write_stream(api, "UPDATE", config, pedantic, timeout, what=what)
    except errors.StreamNotFound:
        try:
            return await write_stream(api, "CREATE", config, pedantic, timeout, what=what)
        except errors.StreamExists:  # another client was faster
            return await write_stream(api, "UPDATE", config, pedantic, timeout, what=what)


def _start_fields(sequence: int | None, time: datetime | None) -> dict[str, object]:
    if time is None:
        return {"seq": 1 if sequence is None else check_stream_sequence("start_seq", sequence)}
    if sequence is not None:
        raise errors.ConfigError("start_time", time, "cannot be given together with start_seq")
    return {"start_time": server_time("start_time", time).rfc3339()}


def _positive(what: str, number: int | None) -> int | None:
    if number is not None and (type(number) is not int or not 1 <= number <= INT64):
        raise errors.ConfigError(what, number, "must be a positive number, and less than 2**63")
    return number


def _nonzero(field: str, what: str, number: int | None) -> dict[str, object]:
    """Return the field of a sequence or count; nothing for 0, the default, and None."""
    if number is None or (type(number) is int and number == 0):
        return {}
    return {field: check_stream_sequence(what, number)}


def _has_wildcard(subject: str) -> bool:
    return not {"*", ">"}.isdisjoint(subject.split("."))


import_late_types(__name__)
