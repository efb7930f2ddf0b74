"""A bucket does what a dict with revisions does, whatever the order of the calls."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

import natsproto
from natsproto.errors import KeyDeleted, KeyExists, KeyNotFound, WrongRevision
from natsproto.jetstream.kv._bucket import KeyValue
from natsproto.testing import Server, run_server
from tests.kit.contents import all_keys
from tests.kit.examples import examples

T = TypeVar("T")

HISTORY = 3
KEYS = st.sampled_from(["a", "b", "b.c", "c/d"])
VALUES = st.binary(max_size=8)


class BucketLoop:
    """A server and a client in a loop of their own."""

    def __init__(self, server: Server) -> None:
        self.runner = asyncio.Runner()
        self.client = self.runner.run(self._connect(server))
        self.buckets = 0

    async def _connect(self, server: Server) -> natsproto.Client:
        return await natsproto.connect(server.url)

    def run(self, work: Coroutine[object, object, T]) -> T:
        return self.runner.run(work)

    def close(self) -> None:
        self.runner.run(self.client.close())
        self.runner.close()


class BucketMachine(RuleBasedStateMachine):
    """The model: for each key its entries as (revision, operation, value), the oldest first."""

    world: BucketLoop

    def __init__(self) -> None:
        super().__init__()
        self.world.buckets += 1
        js = self.world.client.jetstream()
        self.kv: KeyValue = self.world.run(
            js.create_key_value(bucket=f"b{self.world.buckets}", history=HISTORY, storage="memory", allow_atomic=True)
        )
        self.entries: dict[str, list[tuple[int, str, bytes]]] = {}
        self.last = 0

    def add(self, key: str, operation: str, value: bytes, revision: int) -> None:
        assert revision == self.last + 1
        self.last = revision
        kept = [] if operation == "PURGE" else self.entries.get(key, [])
        self.entries[key] = [*kept, (revision, operation, value)][-HISTORY:]

    def revision(self, key: str) -> int:
        return self.entries[key][-1][0] if self.entries.get(key) else 0

    def holds(self, key: str) -> bool:
        return bool(self.entries.get(key)) and self.entries[key][-1][1] == "PUT"

    @rule(key=KEYS, value=VALUES)
    def put(self, key: str, value: bytes) -> None:
        self.add(key, "PUT", value, self.world.run(self.kv.put(key, value)))

    @rule(key=KEYS, value=VALUES)
    def create(self, key: str, value: bytes) -> None:
        if self.holds(key):
            with pytest.raises(KeyExists) as lost:
                self.world.run(self.kv.create(key, value))
            assert lost.value.actual == self.revision(key)
        else:
            self.add(key, "PUT", value, self.world.run(self.kv.create(key, value)))

    @rule(key=KEYS, value=VALUES, behind=st.integers(0, 2))
    def update(self, key: str, value: bytes, behind: int) -> None:
        now = self.revision(key)
        expected = max(now - behind, 0)
        if expected == now:
            self.add(key, "PUT", value, self.world.run(self.kv.update(key, value, expected)))
            return
        with pytest.raises(WrongRevision) as lost:
            self.world.run(self.kv.update(key, value, expected))
        assert (lost.value.expected, lost.value.actual) == (expected, now)

    @rule(key=KEYS, compared=st.booleans())
    def delete(self, key: str, compared: bool) -> None:
        revision = self.revision(key) if compared else None
        self.add(key, "DEL", b"", self.world.run(self.kv.delete(key, revision=revision)))

    @rule(key=KEYS, compared=st.booleans())
    def purge(self, key: str, compared: bool) -> None:
        revision = self.revision(key) if compared else None
        self.add(key, "PURGE", b"", self.world.run(self.kv.purge(key, revision=revision)))

    @rule(writes=st.dictionaries(KEYS, VALUES, min_size=1))
    def put_together(self, writes: dict[str, bytes]) -> None:
        async def write() -> dict[str, int]:
            async with self.kv.atomic() as batch:
                for key, value in writes.items():
                    await batch.put(key, value)
            return batch.revisions

        revisions = self.world.run(write())
        for key, value in writes.items():
            self.add(key, "PUT", value, revisions[key])

    @rule()
    def purge_deletes(self) -> None:
        gone = {key: len(kept) for key, kept in self.entries.items() if kept and kept[-1][1] != "PUT"}
        assert self.world.run(self.kv.purge_deletes(older_than=0)) == sum(gone.values())
        for key in gone:
            self.entries[key] = []

    @rule(key=KEYS)
    def look_at_a_key(self, key: str) -> None:
        if self.holds(key):
            entry = self.world.run(self.kv.get(key))
            assert (entry.revision, entry.operation, entry.value) == self.entries[key][-1]
        else:
            with pytest.raises(KeyDeleted if self.entries.get(key) else KeyNotFound):
                self.world.run(self.kv.get(key))
        history = self.world.run(self.kv.history(key))
        assert [(e.revision, e.operation, e.value) for e in history] == self.entries.get(key, [])

    @rule()
    def look_at_all(self) -> None:
        held = {key: kept[-1] for key, kept in self.entries.items() if self.holds(key)}
        in_order = sorted(held, key=lambda key: held[key])
        assert self.world.run(all_keys(self.kv)) == in_order
        many = self.world.run(self.kv.get_many([">"]))
        assert {key: (e.revision, e.operation, e.value) for key, e in many.items()} == held
        everything = sorted(entry for kept in self.entries.values() for entry in kept)
        assert self.world.run(_all(self.kv)) == everything


async def _all(kv: KeyValue) -> list[tuple[int, str, bytes]]:
    async with kv.watch(include_history=True) as watcher:
        return [(entry.revision, entry.operation, entry.value) async for entry in watcher.initial()]


def test_a_bucket_is_a_dict_with_revisions() -> None:
    with run_server(jetstream=True) as server:
        world = BucketLoop(server)
        BucketMachine.world = world
        try:
            run_state_machine_as_test(
                BucketMachine,
                settings=examples(15, steps=30),
            )
        finally:
            world.close()
