"""Shares out the partitions of a group among the members that live. Every member does it: nobody is elected.

Owns what this member knows of the others and of the configuration. The first one that writes the configuration, with
the revision that it has read, decides. The others read it again and have nothing to do. The writer deletes the
consumers of members that are gone: their acknowledgements and pulls end there, and what they had in hand is delivered
again.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import ClassVar, Final

from natsproto import errors
from natsproto._core.events import Event
from natsproto.errors._base import is_transient
from natsproto.jetstream._publish.headers import TTL_HEADER
from natsproto.jetstream._stream.stream import Stream
from natsproto.jetstream._values.codec import decode, dumps, encode, loads, parse
from natsproto.jetstream.groups._partitions import ElasticGroupConfig, GroupConfig, make_mappings
from natsproto.jetstream.groups._presence import Presence
from natsproto.jetstream.groups._shares import is_balanced, is_managed, is_member, share_out
from natsproto.jetstream.kv._bucket import KeyValue
from natsproto.jetstream.kv._entry import KeyValueEntry

MAX_TTL_S: Final = 3600.0
"""Seconds; the longest TTL of a member."""
LEASE_MARGIN_S: Final = 5.0
"""Seconds that a key may be renewed late: the server ends a lease at its TTL, this only those that it does not end."""
_TTL: Final = re.compile(r"([0-9]{1,6})s?")
COLLECT_S: Final = 0.3
"""Seconds without another change after which the partitions are shared out."""
MAX_COLLECT_S: Final = 1.0
"""Seconds for which changes are collected at most."""
RANK_S: Final = 0.25
"""Seconds that each further member waits longer, in the order of their names."""
AUDIT_INTERVAL_S: Final = 30.0
"""Seconds without a change after which the keys of the members are read: a marker of one that has expired may be gone
before a watch that was interrupted sees it.
"""
SHARE_RETRY_INTERVAL_S: Final = 0.5
"""Seconds after a failed attempt, and between two searches for forgotten consumers."""


class GroupNotShared(Event):
    """A member could not share out the partitions of its group, because of ``error``."""

    stream: str
    group: str
    member: str
    error: errors.NatsError

    level: ClassVar[int] = logging.WARNING
    line: ClassVar[str] = (
        "member %(member)r cannot share out the partitions of group %(group)r of stream %(stream)r: %(error)s"
    )
    pause: ClassVar[float] = 1.0


def lease_of(entry: KeyValueEntry) -> float | None:
    """Return the seconds for which a member's key is valid; None for a key that is none: its name could not be that of
    a member, it was deleted, or it does not expire.
    """
    found = _TTL.fullmatch(entry.headers.last(TTL_HEADER))
    if entry.is_deleted or found is None or not is_member(entry.key.rpartition(".")[2]):
        return None
    ttl = int(found[1])
    return ttl + LEASE_MARGIN_S if ttl <= MAX_TTL_S else None


class Coordinator:
    """Shares out the partitions of the group ``key``, as the member ``name``."""

    def __init__(self, presence: Presence, configs: KeyValue, work_queue: Stream, key: str, name: str) -> None:
        self._presence, self._configs, self._work_queue = presence, configs, work_queue
        self._key, self._name = key, name
        self._living: set[str] = set()
        self._leases: dict[str, tuple[int, float]] = {}
        """The last revision of each member's key, and the time when its TTL has passed since that came."""
        self._config: GroupConfig | None = None
        self._revision = 0
        self._changed = asyncio.Event()
        self._clock = asyncio.get_running_loop().time
        self._swept_at = -SHARE_RETRY_INTERVAL_S

    @property
    def is_valid(self) -> bool:
        """The lease of this member."""
        return self._presence.is_valid

    def on_config(self, config: GroupConfig, revision: int) -> None:
        """This is the configuration, unless a newer one is known."""
        if revision > self._revision:
            self._config, self._revision = config, revision
            self._changed.set()

    async def watch(self, member: asyncio.Task[None]) -> None:
        """Follow the keys of the members until the client is closed. A client that drains waits for the ``member``."""
        self._living.clear()
        async with self._presence.bucket.watch(f"{self._key}.*", meta_only=True) as watcher:
            watcher._track_supervisor(member)
            await watcher.ready()
            async for entries in watcher.batches():
                for entry in entries:
                    self._on_key(entry)
                self._changed.set()

    async def act(self) -> None:
        """Share out the partitions when they are not as they should be. It never ends; raises errors that trying again
        would not mend.
        """
        audit_at = self._clock() + AUDIT_INTERVAL_S
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, audit_at - self._clock())):
                    await self._changed.wait()
            if self._clock() >= audit_at:  # whatever has changed meanwhile: each renewal is a change
                audit_at = self._clock() + AUDIT_INTERVAL_S
                await self._audit()
            self._end_leases()
            first = self._clock()
            while self._config is not None and not is_balanced(self._config, self._living):
                self._changed.clear()
                collect = min(COLLECT_S, first + MAX_COLLECT_S - self._clock())
                delay = max(0.0, collect) + RANK_S * sum(name < self._name for name in self._living)
                try:
                    async with asyncio.timeout(delay):
                        await self._changed.wait()
                except TimeoutError:
                    await self._share_out()
                    first = self._clock()
            self._changed.clear()

    async def on_blocked(self) -> None:
        """Delete consumers that are left by a member that is gone: its remover may be gone, too."""
        if self._clock() < self._swept_at + SHARE_RETRY_INTERVAL_S:
            return
        self._swept_at = self._clock()
        mapped = () if self._config is None else self._config.names
        with suppress(errors.NatsError):
            for consumer in [name async for name in self._work_queue.consumer_names()]:
                if is_managed(consumer) and consumer not in mapped and not await self._is_living(consumer):
                    await self._delete_consumer(consumer)

    async def leave(self) -> None:
        """Hand over to an administrator's members when no other member is left that would do it. Never raises."""
        if self._living <= {self._name}:
            try:
                await self._write_shares(await self._configs.get(self._key, direct=False), (), [])
            except errors.NatsError:
                return  # the next member that joins does it

    # ---------------------------------------------------------------- internals

    def _on_key(self, entry: KeyValueEntry) -> None:
        """A key in the bucket, which all members of all groups, and others, may write."""
        name = entry.key.rpartition(".")[2]
        lease = lease_of(entry)
        if lease is None:
            self._living.discard(name)
            self._leases.pop(name, None)
            return
        self._living.add(name)
        if entry.revision != self._leases.get(name, (0, 0.0))[0]:
            self._leases[name] = entry.revision, self._clock() + lease

    def _end_leases(self) -> None:
        """Forget members whose keys were not renewed, although the server still has them."""
        now = self._clock()
        for name in [name for name, (_, end) in self._leases.items() if end < now and name != self._name]:
            self._living.discard(name)

    async def _audit(self) -> None:
        with suppress(errors.NatsError):
            found = await self._presence.bucket.get_many([f"{self._key}.*"])
            for entry in found.values():
                self._on_key(entry)
            for name in [name for name in self._living if f"{self._key}.{name}" not in found]:
                if not await self._is_living(name):
                    self._living.discard(name)

    async def _share_out(self) -> None:
        try:
            entry = await self._configs.get(self._key, direct=False)
            config = loads(ElasticGroupConfig, entry.data)
            config._check()
            self.on_config(config, entry.revision)
            gone = []
            for name in config.names:
                if is_managed(name) and name not in self._living:
                    if await self._is_living(name):  # the watch is late
                        self._living.add(name)
                    else:
                        gone.append(name)
            if self._presence.is_valid:
                await self._write_shares(entry, self._living, gone)
        except (errors.WrongRevision, errors.KeyNotFound, errors.BucketNotFound):
            return  # another member was faster; or the group is gone, which ends this member
        except (errors.ConfigError, errors.InvalidReply) as exc:
            self._report(exc)  # the configuration is spoilt, which ends this member
        except errors.NatsError as exc:
            if not is_transient(exc):
                raise
            await asyncio.sleep(SHARE_RETRY_INTERVAL_S)

    async def _write_shares(self, entry: KeyValueEntry, living: Collection[str], gone: Iterable[str]) -> None:
        """Write the shares of the living members, unless that is done, and delete the consumers of those that are gone.
        WrongRevision when another member was faster.
        """
        config = loads(ElasticGroupConfig, entry.data)
        if is_balanced(config, living):
            return
        mappings = [encode(mapping) for mapping in make_mappings(share_out(config, living))]
        written = {name: value for name, value in parse(entry.data).items() if name != "members"}
        written["member_mappings"] = mappings
        revision = await self._configs.update(self._key, dumps(written), entry.revision)
        self.on_config(decode(ElasticGroupConfig, written), revision)
        for name in gone:
            await self._delete_consumer(name)

    async def _is_living(self, name: str) -> bool:
        """Ask the leader. Raises the errors of ``get``."""
        if not is_member(name):
            return False
        try:
            entry = await self._presence.bucket.get(f"{self._key}.{name}", direct=False)
        except errors.KeyNotFound:
            return False
        self._on_key(entry)
        self._end_leases()
        return name in self._living

    def _report(self, error: errors.NatsError) -> None:
        stream, _, group = self._key.partition(".")
        notice = GroupNotShared(stream=stream, group=group, member=self._name, error=error)
        self._presence.bucket.stream._api.connection._event_bus.emit(notice)

    async def _delete_consumer(self, name: str) -> None:
        with suppress(errors.NatsError):  # it is gone; or on_blocked() of its successor deletes it
            await self._work_queue.delete_consumer(name)
