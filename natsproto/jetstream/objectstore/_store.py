"""The object store (ADR-20).

Owns the handle for programs, and the rules for objects and links. ``_upload`` stores content, ``_reader`` reads it,
``_index`` changes infos.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import TypedDict, overload

from natsproto import errors
from natsproto._durations import seconds
from natsproto._handlers import HandlerResult
from natsproto._help.async_hints import items
from natsproto.errors._base import is_transient
from natsproto.jetstream._api.requests import Api
from natsproto.jetstream._consumer.watch_callback import WatchCallback
from natsproto.jetstream._stream.backup import Progress
from natsproto.jetstream._values.asset_names import check_bucket_name
from natsproto.jetstream._values.codec import NEVER, Duration, dumps
from natsproto.jetstream._values.error_codes import bucket_errors
from natsproto.jetstream._values.info import StreamInfo
from natsproto.jetstream._values.policies import DeliverPolicy
from natsproto.jetstream._values.record import changed
from natsproto.jetstream.objectstore._index import IndexEntry, ObjectIndex
from natsproto.jetstream.objectstore._meta import (
    DEFAULT_CHUNK_BYTES,
    ObjectInfo,
    ObjectLink,
    ObjectOptions,
    all_meta_subjects,
    check_object_name,
    nuid_for,
)
from natsproto.jetstream.objectstore._reader import ObjectReader, to_bytes, to_file
from natsproto.jetstream.objectstore._status import ObjectStoreStatus
from natsproto.jetstream.objectstore._upload import ObjectContent, Upload
from natsproto.jetstream.objectstore._watch import ObjectWatcher
from natsproto.protocol.headers import HeadersLike

MESSAGE_OVERHEAD_BYTES = 512
"""Bytes of a message to leave for its headers, or for the size and digest in an info."""
ORPHAN_AGE_S = 24 * 3600.0
"""Age in seconds after which ``purge_orphans`` treats chunks as orphaned."""


class ObjectStore:
    """Objects of any size with any names, in a stream (ADR-20). Created by the JetStream context.

    A name has 1 to 2,048 bytes of UTF-8: ConfigError. Methods take ``timeout`` in seconds for each reply (default: that
    of the JetStream context). They raise BucketNotFound when the store, or the store of a link's target, does not
    exist, and the errors of every call of the JetStream API: ApiError or the subclass for its code (StreamProtected
    when the store is sealed, LimitReached when it is full), RequestTimeout, PermissionDenied, ConnectionLost,
    ConnectionClosed.

    Concurrent changes of one object are serialised; the last one wins. A read returns one version of the object, or an
    error.
    """

    def __init__(self, api: Api, bucket: str, info: StreamInfo | None = None) -> None:
        self.bucket: str = check_bucket_name(bucket)
        """The name without ``OBJ_``, which its stream has."""
        self._api, self._lines = api, api.connection._outbox.lines
        self._index = ObjectIndex(api, bucket, info)
        self._batched = info is not None and info.config.allow_batched

    def __repr__(self) -> str:
        return f"ObjectStore(bucket={self.bucket!r})"

    # ---------------------------------------------------------------- the store

    async def status(self, *, timeout: Duration | None = None) -> ObjectStoreStatus:
        """Get the configuration and state of the store.

        Args:
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        with bucket_errors(self.bucket):
            info = await self._index.stream.info(timeout=timeout)
        self._batched = info.config.allow_batched
        return ObjectStoreStatus._of(info)

    async def seal(self, *, timeout: Duration | None = None) -> ObjectStoreStatus:
        """Make the store read-only, permanently: nothing is put, changed, deleted or expired from now on.

        Args:
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        with bucket_errors(self.bucket):
            return ObjectStoreStatus._of(await self._index.stream.seal(timeout=timeout))

    async def purge_orphans(self, *, older_than: Duration = ORPHAN_AGE_S, timeout: Duration | None = None) -> int:
        """Purge orphaned chunks, left by programs that were killed during ``put``; return their number.

        ``older_than`` in seconds (default: a day) is the minimal age of the newest chunk. It must be longer than any
        ``put`` in progress, by any client, waits for its source; otherwise the new object is damaged (DigestMismatch).
        Objects that are put, renamed or deleted meanwhile are safe.

        ConfigError for a store that is a mirror or has sources; InvalidReply for an unreadable info, with nothing
        removed. A cancelled call may have removed some of them.

        Args:
            older_than: Seconds that the newest chunk without an object must be old: longer than any put in progress
                waits for its source.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        removed, age = 0, seconds("older_than", older_than)
        with bucket_errors(self.bucket):
            orphans = await self._index.find_orphans(age, timeout)
            for subject in orphans.subjects:
                removed += await self._index.stream.purge(subject=subject, timeout=timeout)
            for seq in orphans.sequences:
                with suppress(errors.MessageNotFound):
                    await self._index.stream.delete_message(seq, timeout=timeout)
                    removed += 1
        return removed

    # ---------------------------------------------------------------- putting

    async def put(
        self,
        name: str,
        source: ObjectContent,
        *,
        description: str = "",
        headers: HeadersLike | None = None,
        metadata: Mapping[str, str] | None = None,
        chunk_size: int | None = None,
        progress: Callable[[Progress], object] | None = None,
        timeout: Duration | None = None,
    ) -> ObjectInfo:
        """Store an object, or replace the one with this name.

        ``source``: bytes, a path (``pathlib.Path``), a binary file (read from its position, not closed), an object with
        ``async def read``, or an iterable or async iterable of bytes of any sizes. Files are read in a thread; a
        blocking iterable blocks the event loop. About 12 MiB of the content are in memory at most. ``chunk_size`` is in
        bytes (default: 128 KiB, or less if the server accepts less). ``progress`` is called after every chunk; its
        ``total`` is 0 when the size is unknown. ``headers`` and ``metadata`` are stored unchanged.

        The old object is replaced when the new one is complete; then its chunks are removed. After any failure, and
        when cancelled, the new chunks are removed, if necessary after the next reconnect. After a reconnect the
        unacknowledged chunks are sent again. Only the last step, which gives the name its new content, cannot be
        cancelled; if it raises PublishUncertain, the name has either the old or the new object.

        TypeError for a source of another type; ConfigError and PayloadTooLarge before anything is sent; the errors of
        the source; PublishUncertain (PublishTimeout) when the server does not reply for ``timeout`` seconds. After a
        failure or a cancellation it waits up to three seconds more for the removal of the chunks, which then goes on in
        the background.

        Args:
            name: What the object is found by: any text that is not empty, such as a path.
            source: The content: bytes, a path, a binary file, an object with ``async def read``, or an iterable or
                async iterable of bytes.
            description: A text for people.
            headers: Headers of the object: a mapping, pairs, or Headers; None: none.
            metadata: Labels for programs, kept with the object: a mapping of str to str; None: none.
            chunk_size: Bytes of one message of the content; None: 128 KiB, or less if the server accepts less.
            progress: Called with a Progress after every part, on the event loop; None: not called.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        size = self._chunk_size(chunk_size)
        wanted = self._new_info(name, description, headers, metadata, max_chunk_size=size)
        wait = self._api.seconds(timeout)
        self._api.connection._outbox.check_open(f"put of object {name!r}")
        upload = Upload(self._index, wanted, source, batched=self._batched, progress=progress, timeout=wait)
        early = asyncio.create_task(self._index.find(wanted.name, timeout=wait), name="natsproto object look-up")
        try:
            made = await upload.run()
        except BaseException:
            if not early.cancel() and not early.cancelled():
                early.exception()  # mark it as retrieved
            raise
        self._batched = upload.batched
        return await self._index.run_shielded(self._index.put(made, early, timeout=wait))

    async def put_file(
        self,
        path: str | os.PathLike[str],
        name: str | None = None,
        *,
        description: str = "",
        headers: HeadersLike | None = None,
        metadata: Mapping[str, str] | None = None,
        chunk_size: int | None = None,
        progress: Callable[[Progress], object] | None = None,
        timeout: Duration | None = None,
    ) -> ObjectInfo:
        """``put`` for a file; ``name`` is its name without the folder by default. OSError of the file.

        Args:
            path: The file whose content is stored; it is read in a thread.
            name: What the object is found by; None: the last part of ``path``.
            description: A text for people.
            headers: Headers of the object: a mapping, pairs, or Headers; None: none.
            metadata: Labels for programs, kept with the object: a mapping of str to str; None: none.
            chunk_size: Bytes of one message of the content; None: 128 KiB, or less if the server accepts less.
            progress: Called with a Progress after every part, on the event loop; None: not called.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        return await self.put(
            Path(path).name if name is None else name,
            Path(path),
            description=description,
            headers=headers,
            metadata=metadata,
            chunk_size=chunk_size,
            progress=progress,
            timeout=timeout,
        )

    # ---------------------------------------------------------------- getting

    def get(
        self,
        name: str | ObjectInfo,
        *,
        offset: int = 0,
        length: int | None = None,
        follow_links: bool = False,
        timeout: Duration | None = None,
    ) -> ObjectReader:
        """Return a reader of the content of an object, in chunks. Use it with ``async with``, then iterate it.

        ``offset`` and ``length`` in bytes choose a range; only the digest of the whole object is checked; an object
        without one is an ObjectStoreNotice event. Links to objects of this store are followed, and those into other
        stores only with ``follow_links``: whoever can write to this store decides where they lead. For an ObjectInfo,
        another version of the object raises ObjectChanged.

        ConfigError for an offset beyond the end. On entering: ObjectNotFound; ObjectLinkError for a link to a store,
        for circular links and for links that are not followed; InvalidReply for an entry that cannot be read. On
        entering or reading: DigestMismatch for missing or damaged chunks, ObjectChanged when the object was replaced or
        deleted meanwhile.

        Args:
            name: Which object; with an ObjectInfo, this version of it or ObjectChanged.
            offset: The byte to begin with.
            length: The most bytes to read; None: to the end. Only the digest of a whole object is checked.
            follow_links: Follow links into other stores, too. False (default) follows those within this store alone,
                because whoever can write to it decides where they lead.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        return ObjectReader(self._index, name, offset=offset, length=length, follow_links=follow_links, timeout=timeout)

    async def get_bytes(
        self,
        name: str | ObjectInfo,
        *,
        follow_links: bool = False,
        progress: Callable[[Progress], object] | None = None,
        timeout: Duration | None = None,
    ) -> bytes:
        """Return the whole content of an object. Raises the errors of ``get``; gets the new version of a replaced
        object.

        Args:
            name: Which object; with an ObjectInfo, this version of it or ObjectChanged.
            follow_links: Follow links into other stores, too. False (default) follows those within this store alone,
                because whoever can write to it decides where they lead.
            progress: Called with a Progress after every part, on the event loop; None: not called.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        return await to_bytes(self._index, name, follow_links=follow_links, timeout=timeout, progress=progress)

    async def get_file(
        self,
        name: str | ObjectInfo,
        path: str | os.PathLike[str],
        *,
        resume: bool = False,
        follow_links: bool = False,
        progress: Callable[[Progress], object] | None = None,
        timeout: Duration | None = None,
    ) -> ObjectInfo:
        """Write the whole content of an object to a file, which appears (or is replaced) when it is complete.

        With ``resume`` the received part is kept after a failure, as ``<path>.<nuid>.partial``, and the next call with
        ``resume`` continues it, unless the object was replaced. Without ``resume`` no file is left after a failure or
        when cancelled. ``progress`` is called after every chunk.

        Raises the errors of ``get``; gets the new version of an object that is replaced meanwhile. OSError of the file,
        also if a symbolic or hard link has the name of the received part.

        Args:
            name: Which object; with an ObjectInfo, this version of it or ObjectChanged.
            path: The file to write; it appears when it is complete.
            resume: Go on with the part that an interrupted call with ``resume`` has left.
            follow_links: Follow links into other stores, too. False (default) follows those within this store alone,
                because whoever can write to it decides where they lead.
            progress: Called with a Progress after every part, on the event loop; None: not called.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        return await to_file(
            self._index, name, path, resume=resume, follow_links=follow_links, timeout=timeout, progress=progress
        )

    # ---------------------------------------------------------------- listing and watching

    async def info(self, name: str, *, deleted: bool = False, timeout: Duration | None = None) -> ObjectInfo:
        """Get the info of an object, or of a link itself. ObjectNotFound, also for a deleted object, unless
        ``deleted``.

        Args:
            name: What the object is found by: any text that is not empty, such as a path.
            deleted: Show deleted objects, too.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        return await self._index.get_info(check_object_name(name), deleted=deleted, timeout=timeout)

    @items
    async def list(self, *, deleted: bool = False, timeout: Duration | None = None) -> AsyncGenerator[ObjectInfo]:
        """Yield the info of every object and link, the oldest first; deleted ones only with ``deleted``.

        An entry that cannot be read is skipped, with an ObjectStoreNotice event.

        Args:
            deleted: Show deleted objects, too.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        with bucket_errors(self.bucket):
            async with aclosing(self._index.infos(skip=True, timeout=timeout)) as infos:
                async for info in infos:
                    if deleted or not info.deleted:
                        yield info

    @overload
    def watch(self, *, ignore_deletes: bool = False, updates_only: bool = False) -> ObjectWatcher: ...

    @overload
    def watch(
        self,
        *,
        cb: Callable[[ObjectInfo], HandlerResult],
        ignore_deletes: bool = False,
        updates_only: bool = False,
    ) -> WatchCallback[ObjectInfo]: ...

    def watch(
        self,
        *,
        cb: Callable[[ObjectInfo], HandlerResult] | None = None,
        ignore_deletes: bool = False,
        updates_only: bool = False,
    ) -> ObjectWatcher | WatchCallback[ObjectInfo]:
        """Watch the store. Use it with ``async with``, then iterate it.

        It yields the info of every object and link, and then of every change. The info of a deleted object has
        ``deleted``; ``ignore_deletes`` omits it. ``updates_only`` omits the initial infos. With ``cb`` it is called
        with each info: see WatchCallback.

        Args:
            cb: Called with each ObjectInfo, ``def`` or ``async def``, instead of reading the watcher; None: read it.
            ignore_deletes: Leave out deletions.
            updates_only: Leave out what is there when the watch begins.
        """
        policy = DeliverPolicy.NEW if updates_only else DeliverPolicy.LAST_PER_SUBJECT
        subject = all_meta_subjects(self.bucket)
        ordered = self._index.stream.ordered_consumer(filter_subject=subject, deliver_policy=policy)
        watcher = ObjectWatcher(self._index, ordered, ignore_deletes=ignore_deletes, updates_only=updates_only)
        return watcher if cb is None else WatchCallback(watcher, cb, self._api.connection)

    # ---------------------------------------------------------------- changing

    async def delete(self, name: str, *, timeout: Duration | None = None) -> None:
        """Delete an object or a link, but not the link's target. Deleting it again does nothing.

        ObjectNotFound when there never was one. A cancelled call may have deleted it.

        Args:
            name: What the object is found by: any text that is not empty, such as a path.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        check_object_name(name)
        self._api.connection._outbox.check_open(f"delete of object {name!r}")
        await self._index.run_shielded(self._delete(name, self._api.seconds(timeout)))

    async def _delete(self, name: str, timeout: float) -> None:
        def update(existing: IndexEntry | None) -> ObjectInfo | None:
            if existing is None:
                raise errors.ObjectNotFound(self.bucket, name)
            return None if existing.info.deleted else _deleted_info(existing.info)

        try:
            before, now = await self._index.change(name, update, timeout=timeout)
        except errors.PublishUncertain:
            self._index.complete_later(partial(self._settle_delete, name))
            raise
        assert before is not None
        # Without chunks, an earlier call may have ended before its purge.
        await self._index.purge_content(before if before.info.chunks else now, now)

    async def _settle_delete(self, name: str) -> None:
        """Purge the chunks if the deletion is found."""
        now = await self._index.find(name, timeout=self._api.timeout)
        if now is not None and now.info.deleted:
            await self._index.purge_content(now, now)

    async def update_meta(
        self,
        name: str,
        *,
        rename: str | None = None,
        description: str | None = None,
        headers: HeadersLike | None = None,
        metadata: Mapping[str, str] | None = None,
        timeout: Duration | None = None,
    ) -> ObjectInfo:
        """Change the info of an object or a link, but not its content; None keeps a field.

        ``rename`` is its new name; links to the old name are broken then. ObjectNotFound; ObjectExists when the new
        name is in use; ObjectChanged when the object was replaced or deleted during the rename, which is undone then. A
        cancelled call may have changed it.

        Args:
            name: What the object is found by: any text that is not empty, such as a path.
            rename: The new name; None: as it was.
            description: The new text; None: as it was.
            headers: The new headers; None: as they were.
            metadata: The new labels; None: as they were.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        changes: _Changes = {}
        if description is not None:
            changes["description"] = description
        if headers is not None:
            changes["headers"] = headers
        if metadata is not None:
            changes["metadata"] = metadata
        check_object_name(name)
        if rename is not None:
            check_object_name(rename)
        wait = self._api.seconds(timeout)
        self._api.connection._outbox.check_open(f"update of object {name!r}")
        if rename is not None and rename != name:
            return await self._index.run_shielded(self._rename(name, rename, changes, wait))

        def update(existing: IndexEntry | None) -> ObjectInfo:
            return self._changed_info(name, existing, changes)

        _, now = await self._index.change(name, update, timeout=wait)
        return now.info

    async def _rename(self, name: str, rename: str, changes: _Changes, timeout: float) -> ObjectInfo:
        """Publish the info under the new name, then delete the old. Each step fails after a concurrent change.

        The old info is marked first, and the new one is marked: if the client ends between the steps, both names have
        the content, deleting one of them leaves it to the other, and another rename completes this one. After an outage
        the rest is done in the background.
        """
        index = self._index
        found = await index.find(name, timeout=timeout)
        made = self._changed_info(name, found, changes).replace(name=rename)
        assert found is not None

        def keep(existing: IndexEntry | None) -> ObjectInfo:
            if existing is None or existing.sequence != found.sequence:
                raise errors.ObjectChanged(self.bucket, name)
            return found.info.replace(mtime=NEVER)

        def take(existing: IndexEntry | None) -> ObjectInfo:
            if existing is None or existing.info.deleted:
                return made
            if not _is_same(existing.info, made):
                raise errors.ObjectExists(self.bucket, rename)
            # A client has ended within this rename. What was changed under the new name since then stays.
            return self._changed_info(rename, existing, changes)

        take(await index.find(rename, timeout=timeout))
        old = found
        if found.info.chunks:
            _, old = await index.change(name, keep, timeout=timeout, is_renamed=True)
        step = _RenameStep(index, old, made, timeout)
        try:
            _, now = await index.change(rename, take, timeout=timeout, is_renamed=old.is_renamed)
        except errors.PublishUncertain:
            index.complete_later(step.run)
            raise
        try:
            await step.leave(now)
        except errors.NatsError as exc:
            if is_transient(exc):  # both names have the content now
                index.complete_later(step.run)
                reason = f"the new name {rename!r} is stored, and the old one is removed in the background: {exc}"
                raise errors.PublishUncertain(name, reason) from exc
            raise
        return now.info

    def _changed_info(self, name: str, existing: IndexEntry | None, changes: _Changes) -> ObjectInfo:
        if existing is None or existing.info.deleted:
            raise errors.ObjectNotFound(self.bucket, name)
        return self._check_size(existing.info.replace(mtime=NEVER, **changes))

    # ---------------------------------------------------------------- links

    async def add_link(
        self,
        name: str,
        target: str | ObjectInfo,
        *,
        description: str = "",
        headers: HeadersLike | None = None,
        metadata: Mapping[str, str] | None = None,
        timeout: Duration | None = None,
    ) -> ObjectInfo:
        """Create a link to an object of this store (by its name), or of any store of the account (by its ObjectInfo).

        It may replace another link. ObjectNotFound when the target does not exist; ObjectLinkError when the target is a
        link; ObjectExists when ``name`` is an object. A cancelled call may have created it.

        Args:
            name: What the link is found by: any text that is not empty and no object's name.
            target: The object to link to: its name in this store, or an ObjectInfo of any store.
            description: A text for people.
            headers: Headers of the object: a mapping, pairs, or Headers; None: none.
            metadata: Labels for programs, kept with the object: a mapping of str to str; None: none.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        bucket, goal = (self.bucket, target) if isinstance(target, str) else (target.bucket, target.name)
        if (bucket, check_object_name(goal)) == (self.bucket, name):
            raise errors.ObjectLinkError(self.bucket, name, "cannot be a link to itself")
        index = self._index.index_of(check_bucket_name(bucket))
        if (await index.get_info(goal, timeout=timeout)).link is not None:
            raise errors.ObjectLinkError(self.bucket, name, f"cannot be a link to {goal!r}, which is a link itself")
        link = ObjectLink(bucket=bucket, name=goal)
        return await self._link(self._new_info(name, description, headers, metadata, link=link), timeout)

    async def add_bucket_link(
        self,
        name: str,
        store: str | ObjectStore,
        *,
        description: str = "",
        headers: HeadersLike | None = None,
        metadata: Mapping[str, str] | None = None,
        timeout: Duration | None = None,
    ) -> ObjectInfo:
        """Create a link to a whole store, which need not exist; otherwise as ``add_link``.

        Args:
            name: What the link is found by: any text that is not empty and no object's name.
            store: Where the link leads: another ObjectStore, or the name of its bucket.
            description: A text for people.
            headers: Headers of the object: a mapping, pairs, or Headers; None: none.
            metadata: Labels for programs, kept with the object: a mapping of str to str; None: none.
            timeout: Seconds to wait for the server's reply; None: that of the JetStream context.
        """
        link = ObjectLink(bucket=check_bucket_name(store.bucket if isinstance(store, ObjectStore) else store))
        return await self._link(self._new_info(name, description, headers, metadata, link=link), timeout)

    async def _link(self, made: ObjectInfo, timeout: Duration | None) -> ObjectInfo:
        def update(existing: IndexEntry | None) -> ObjectInfo:
            if existing is not None and not existing.info.deleted and existing.info.link is None:
                raise errors.ObjectExists(self.bucket, made.name)
            return made

        _, now = await self._index.change(made.name, update, timeout=self._api.seconds(timeout))
        return now.info

    # ---------------------------------------------------------------- internals

    def _chunk_size(self, wanted: int | None) -> int:
        most = self._lines.max_payload - MESSAGE_OVERHEAD_BYTES
        if wanted is None:
            return DEFAULT_CHUNK_BYTES if most < 0 else max(1, min(DEFAULT_CHUNK_BYTES, most))
        if type(wanted) is not int or wanted < 1:
            raise errors.ConfigError("chunk_size", wanted, "must be a positive number of bytes")
        if 0 < most < wanted:
            raise errors.ConfigError(
                "chunk_size", wanted, f"must be {most} at most: the server accepts no larger messages"
            )
        return wanted

    def _new_info(
        self,
        name: str,
        description: str,
        headers: HeadersLike | None,
        metadata: Mapping[str, str] | None,
        *,
        link: ObjectLink | None = None,
        max_chunk_size: int = 0,
    ) -> ObjectInfo:
        """Return the info of a new object or link, without content."""
        unique = self._api.connection._runtime.new_id()
        info = ObjectInfo(
            name=check_object_name(name),
            description=description,
            metadata={} if metadata is None else metadata,
            bucket=self.bucket,
            nuid=nuid_for(name, unique),
            options=ObjectOptions(link=link, max_chunk_size=max_chunk_size),
        )
        return self._check_size(info if headers is None else info.replace(headers=headers))

    def _check_size(self, info: ObjectInfo) -> ObjectInfo:
        """Raise PayloadTooLarge when the info does not fit into a message."""
        self._lines.check_size(len(dumps(info)) + MESSAGE_OVERHEAD_BYTES)
        return info


class _Changes(TypedDict, total=False):
    description: str
    headers: HeadersLike
    metadata: Mapping[str, str]


class _RenameStep:
    """The last step of a rename, which can be repeated: the old name is removed, once the new one is stored."""

    def __init__(self, index: ObjectIndex, old: IndexEntry, made: ObjectInfo, timeout: float) -> None:
        self._index, self._old, self._made, self._timeout = index, old, made, timeout
        self._may_be_done = False

    async def run(self) -> None:
        """Remove the old name if the new one is stored."""
        now = await self._index.find(self._made.name, timeout=self._timeout)
        if now is not None and not now.info.deleted and _is_same(now.info, self._made):
            await self.leave(now)

    async def leave(self, now: IndexEntry) -> None:
        """Remove the old name, or the new one if the old one was changed: ObjectChanged."""
        index, name = self._index, self._old.info.name
        try:
            _, deletion = await index.change(name, self._delete_old, timeout=self._timeout)
        except errors.ObjectChanged:
            give_back = partial(self._give_back, now.sequence)
            _, given = await index.change(self._made.name, give_back, timeout=self._timeout)
            await index.purge_content(now, given)
            raise
        except errors.PublishUncertain:
            self._may_be_done = True
            raise
        await index.purge_info(name, deletion.sequence, timeout=self._timeout)

    def _delete_old(self, existing: IndexEntry | None) -> ObjectInfo | None:
        old = self._old
        if self._may_be_done and existing is not None and existing.info.deleted and existing.info.nuid == old.info.nuid:
            return None  # an earlier attempt has done it
        if existing is None or existing.sequence != old.sequence:
            raise errors.ObjectChanged(self._index.bucket, old.info.name)
        return _deleted_info(old.info)

    def _give_back(self, sequence: int, existing: IndexEntry | None) -> ObjectInfo:
        if existing is None or existing.sequence != sequence:
            raise errors.ObjectChanged(self._index.bucket, self._made.name)
        return _deleted_info(self._made)


def _is_same(one: ObjectInfo, other: ObjectInfo) -> bool:
    """True for two names of one object. Links of some clients have no id, and say nothing."""
    return bool(one.nuid) and one.nuid == other.nuid


def _deleted_info(info: ObjectInfo) -> ObjectInfo:
    """The info of a deleted object."""
    return changed(info, {"deleted": True, "size": 0, "chunks": 0, "digest": "", "mtime": NEVER})
