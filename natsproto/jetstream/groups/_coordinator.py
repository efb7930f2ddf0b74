"""Shares out the partitions of a group among the members that live. Every member does it: nobody is elected.

Owns what this member knows of the others and of the configuration. The first one that writes the configuration, with
the revision that it has read, decides. The others read it again and have nothing to do. The writer deletes the
consumers of members that are gone: their acknowledgements and pulls end there, and what they had in hand is delivered
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Final

from natsproto.errors import (
    BucketNotFound,
    ConfigError,
    InvalidReply,
    KeyNotFound,
    NatsError,
    WrongRevision,
)
from natsproto.errors._base import is_transient
from natsproto.jetstream._codec import decode, dumps, encode, loads, parse
from natsproto.jetstream._stream import Stream
from natsproto.jetstream.groups._partitions import ElasticGroupConfig, GroupConfig, make_mappings
from natsproto.jetstream.groups._presence import Presence
from natsproto.jetstream.groups._shares import is_balanced, is_managed, share_out
from natsproto.jetstream.kv._bucket import KeyValue
from natsproto.jetstream.kv._entry import KeyValueEntry

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
RETRY_INTERVAL_S: Final = 0.5
"""Seconds after a failed attempt, and between two searches for forgotten consumers."""


class Coordinator:
    """Shares out the partitions of the group ``key``, as the member ``name``."""

    def __init__(self, presence: Presence, configs: KeyValue, work_queue: Stream, key: str, name: str) -> None:
        self._presence, self._configs, self._work_queue = presence, configs, work_queue
        self._key, self._name = key, name
        self._living: set[str] = set()
        self._config: GroupConfig | None = None
        self._revision = 0
        self._changed = asyncio.Event()
        self._clock = asyncio.get_running_loop().time
        self._swept_at = -RETRY_INTERVAL_S

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
            watcher._track_task(member)
            await watcher.ready()
            async for entries in watcher.batches():
                for entry in entries:
                    name = entry.key.rpartition(".")[2]
                    (self._living.discard if entry.is_deleted else self._living.add)(name)
                self._changed.set()

    async def act(self) -> None:
        """Share out the partitions when they are not as they should be. It never ends; raises errors that trying again
        would not mend.
        """
        while True:
            try:
                async with asyncio.timeout(AUDIT_INTERVAL_S):
                    await self._changed.wait()
            except TimeoutError:
                await self._audit()
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
        if self._clock() < self._swept_at + RETRY_INTERVAL_S:
            return
        self._swept_at = self._clock()
        mapped = () if self._config is None else self._config.names
        with suppress(NatsError):
            for consumer in [name async for name in self._work_queue.consumer_names()]:
                if is_managed(consumer) and consumer not in mapped and not await self._is_living(consumer):
                    await self._delete_consumer(consumer)

    async def leave(self) -> None:
        """Hand over to an administrator's members when no other member is left that would do it. Never raises."""
        if self._living <= {self._name}:
            try:
                await self._write_shares(await self._configs.get(self._key, direct=False), (), [])
            except NatsError:
                return  # the next member that joins does it

    # ---------------------------------------------------------------- internals

    async def _audit(self) -> None:
        with suppress(NatsError):
            found = await self._presence.bucket.get_many([f"{self._key}.*"])
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
        except (WrongRevision, KeyNotFound, BucketNotFound, ConfigError, InvalidReply):
            return  # another member was faster; or the group is gone or spoilt, which ends this member
        except NatsError as exc:
            if not is_transient(exc):
                raise
            await asyncio.sleep(RETRY_INTERVAL_S)

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
        try:
            await self._presence.bucket.get(f"{self._key}.{name}", direct=False)
        except KeyNotFound:
            return False
        return True

    async def _delete_consumer(self, name: str) -> None:
        with suppress(NatsError):  # it is gone; or on_blocked() of its successor deletes it
            await self._work_queue.delete_consumer(name)
