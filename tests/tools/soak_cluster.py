"""A few minutes of everything JetStream has, on three servers whose links are cut, and which are killed and frozen.

Not a test of the suite: ``make soak-cluster`` (``ARGS="--minutes=10 --seed=2 --only=modify --faults=steps"``). Ends
with 1 when anything was acknowledged and is not there, was refused and is there, is there twice, came out of order, or
was never told, or an object is damaged. The history is kept in a file, which ``--judge=FILE`` judges again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import logging
import math
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path

import natsproto
from natsproto import Message
from natsproto._client import Client
from natsproto.errors import NatsError, ObjectNotFound
from natsproto.jetstream import JetStream
from natsproto.jetstream.kv._bucket import KeyValue
from natsproto.jetstream.objectstore import ObjectStore
from natsproto.testing import Cluster, End, FaultProxy, Server, ServerFailed, run_cluster
from tests.kit.doubts import noted_doubts
from tests.kit.history import SETTLE_S, History, Outcome, in_flight_at_faults, judge, outcome_of
from tests.kit.workloads import PATIENCE_S, STREAMS, Workloads, contradictions, insist

OBJECTS = 4
"""Tasks that change objects, each with three names."""
MAX_OBJECT = 5_000_000
"""Bytes; sizes are drawn between one and this, small ones as often as large ones."""
PAUSE_S = 0.5
"""Seconds by which a pause of 0.1 s is late when the machine is so busy that servers hold elections by themselves."""
FAULTS = {
    "partitions": ["isolate"],
    "steps": ["step down"],
    "outages": ["kill", "kill", "freeze", "stop", "step down"],
    "none": [],
    "all": ["isolate", "isolate", "slow", "kill", "freeze", "stop", "step down"],
}


class Book:
    """What was done beside the history, what was refused in words, and what is wrong."""

    def __init__(self, chance: random.Random) -> None:
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.over = asyncio.Event()
        self.chance = chance

    @contextlib.contextmanager
    def trying(self, what: str) -> Iterator[None]:
        """Counts what is done in the block, or with which error it was refused."""
        try:
            yield
        except NatsError as exc:
            self.refused[f"{what}: {type(exc).__name__}"] += 1
        else:
            self.done[what] += 1


class Mirror:
    """A bucket that is written, and watched: the mirror has to be what the bucket is."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.seen: dict[str, bytes] = {}

    async def write(self, bucket: KeyValue, writer: int) -> None:
        """Puts and deletes."""
        while not self.book.over.is_set():
            with self.book.trying("put"):
                await bucket.put(f"key.{self.book.chance.randrange(50)}", b"%d" % writer, timeout=2)
            with self.book.trying("delete"):
                await bucket.delete(f"key.{self.book.chance.randrange(50)}", timeout=2)
            await asyncio.sleep(0.01)

    async def watch(self, bucket: KeyValue) -> None:
        """A mirror of the bucket, made of what changes."""
        revision = 0
        async with bucket.watch() as watcher:
            async for entry in watcher:
                if entry.revision <= revision:
                    self.book.wrong.append(f"watch: revision {entry.revision} behind {revision}")
                revision = entry.revision
                if entry.is_deleted:
                    self.seen.pop(entry.key, None)
                else:
                    self.seen[entry.key] = entry.value


class Objects:
    """Objects that are put, renamed and deleted, some calls cancelled, and read meanwhile. One task changes a name."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.written: set[str] = set()
        """Digests of all contents."""
        self.may_be: dict[str, set[str | None]] = defaultdict(lambda: {None})
        """Digests of what may stand under a name; None: nothing."""
        self.uncertain = 0
        """Calls that may have left chunks."""

    async def change(self, store: ObjectStore, names: list[str]) -> None:
        """Change objects, and compare what is there after each call with what the call said."""
        chance = self.book.chance
        while not self.book.over.is_set():
            name, other = chance.sample(names, 2)
            kind = chance.choice(["put", "rename", "rename", "delete"])
            if kind == "rename" and chance.random() < 0.9:  # mostly what exists, to a name that is free
                free = [one for one in names if None in self.may_be[one]]
                other = chance.choice(free or names)
                name = chance.choice([one for one in names if one != other and self.may_be[one] != {None}] or [name])
            if name == other:
                kind = "put"
            timeout = chance.choice([2.0, 20.0])
            after: dict[str, set[str | None]] = {name: {None}}
            if kind == "put":
                data = chance.randbytes(int(math.exp(chance.uniform(0, math.log(MAX_OBJECT)))))
                after = {name: {hashlib.sha256(data).hexdigest()}}
                self.written |= {digest for digest in after[name] if digest}
                call: Coroutine[object, None, object] = store.put(name, data, timeout=timeout)
            elif kind == "rename":
                after[other] = self.may_be[name] - {None}
                call = store.update_meta(name, rename=other, timeout=timeout)
            else:
                call = store.delete(name, timeout=timeout)
            outcome = await self._outcome(kind, call)
            for changed, digests in after.items():
                if outcome is Outcome.OK:
                    self.may_be[changed] = digests
                elif outcome is Outcome.UNKNOWN:
                    self.may_be[changed] = self.may_be[changed] | digests
            self.uncertain += outcome is Outcome.UNKNOWN
            for changed in after:
                await self.check(store, changed, f"{kind}, {outcome.value}")
            await asyncio.sleep(0.05)

    async def _outcome(self, kind: str, call: Coroutine[object, None, object]) -> Outcome:
        chance, work = self.book.chance, asyncio.ensure_future(call)
        if chance.random() < 0.3:
            await asyncio.wait((work,), timeout=3 * chance.random() ** 3)
            work.cancel()
        try:
            await work
        except asyncio.CancelledError:
            self.book.refused[f"object {kind}: cancelled"] += 1
            return Outcome.UNKNOWN
        except NatsError as exc:
            self.book.refused[f"object {kind}: {type(exc).__name__}"] += 1
            return outcome_of(exc)
        self.book.done[f"object {kind}"] += 1
        return Outcome.OK

    async def get(self, store: ObjectStore, name: str) -> None:
        """What is read is whole, and was written."""
        while not self.book.over.is_set():
            with self.book.trying("object get"), contextlib.suppress(ObjectNotFound):
                data = await store.get_bytes(name, timeout=3)
                if hashlib.sha256(data).hexdigest() not in self.written:
                    self.book.wrong.append(f"object {name}: {len(data)} bytes that nobody wrote")
            await asyncio.sleep(0.1)

    async def check(self, store: ObjectStore, name: str, after: str) -> None:
        """What is under the name may be there: soon, as replicas lag and a rename may go on."""
        found: object = None
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            try:
                found = hashlib.sha256(await store.get_bytes(name, timeout=5)).hexdigest()
            except ObjectNotFound:
                found = None
            except NatsError as exc:
                found = exc
            if found in self.may_be[name]:
                return
            await asyncio.sleep(0.1)
        self.book.wrong.append(f"object {name} after {after}: {found!r}, not one of {self.may_be[name]}")

    async def check_orphans(self, store: ObjectStore) -> None:
        """Only calls whose outcome is not known have left chunks."""
        orphans = await store._index.find_orphans(0.0, None)
        self.book.done["orphans"] += len(orphans.subjects)
        if len(orphans.subjects) > self.uncertain:
            self.book.wrong.append(f"{len(orphans.subjects)} orphans after {self.uncertain} uncertain calls")


async def _request_of(nc: Client, book: Book, writer: int) -> None:
    number = 0
    while not book.over.is_set():
        payload, number = b"%d %d" % (writer, number), number + 1
        with book.trying("request"):
            if (await nc.request("echo", payload, timeout=2)).data != payload:
                book.wrong.append("a reply of somebody else")
        await asyncio.sleep(0.005)


class Trouble:
    """Faults, one at a time and most of them of a leader, so that two servers are left."""

    def __init__(
        self, cluster: Cluster, proxies: list[FaultProxy], js: JetStream, book: Book, history: History, kinds: list[str]
    ) -> None:
        self.cluster, self.proxies, self.js = cluster, proxies, js
        self.book, self.history, self.kinds = book, history, kinds

    async def run(self, streams: list[str]) -> None:
        """Make trouble until the book is over."""
        chance = self.book.chance
        while self.kinds and not self.book.over.is_set():
            await self._pause()
            kind, stream = chance.choice(self.kinds), chance.choice(streams)
            server = await self._leader(stream)
            self.book.done[f"fault: {kind}"] += 1
            with self.history.call("fault", kind, f"{server.name}, leader of {stream}"):
                await self._fault(kind, server, stream)
                if kind != "step down":
                    with contextlib.suppress(ServerFailed):
                        await self.cluster.ready()

    async def _pause(self) -> None:
        """Mostly short pauses, so that faults meet what others have left, and long ones, in which all is well."""
        chance = self.book.chance
        seconds = 0.5 + 2 * chance.random() if chance.random() < 0.7 else SETTLE_S + 15 * chance.random()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.book.over.wait()

    async def _fault(self, kind: str, server: Server, stream: str) -> None:
        chance = self.book.chance
        if kind == "step down":
            await self.js.admin.step_down_stream_leader(stream, timeout=5)
        elif kind == "isolate":
            await self._isolate(server)
        elif kind == "slow":
            other = chance.choice([other for other in self.cluster.servers if other is not server])
            self.cluster.link(server, other).delay(0.05, 0.05)
            await asyncio.sleep(3 * chance.random())
            await self.cluster.heal()
        elif kind == "freeze":
            server.freeze()
            await asyncio.sleep(8 * chance.random())
            server.thaw()
        elif kind == "kill":
            server.kill()
            await asyncio.sleep(3 * chance.random())
            await server.restart()
        else:
            await server.restart()

    async def _isolate(self, server: Server) -> None:
        """Cut a leader off, most times for so long that others elect a new one and it still believes in itself (10 s).

        When only the link to one of the others is healed at first, it learns of its successor late, and both answer
        what comes through that one. Clients that connect again meanwhile bring what they know to the deposed one.
        """
        chance, cluster = self.book.chance, self.cluster
        if chance.random() < 0.2:
            server = chance.choice(cluster.servers)
        if cut := chance.random() < 0.5:  # while replies of the leader are on their way
            for proxy in self.proxies:
                proxy.delay(0.02, 0.02)
            await asyncio.sleep(0.2)
        cluster.isolate(server, silently=chance.random() < 0.2)
        if cut:
            self._cut_clients()
        await asyncio.sleep(1 + 3 * chance.random() if chance.random() < 0.2 else 5 + 4 * chance.random())
        if chance.random() < 0.4:  # what was refused meanwhile is sent again to a server that knows no leader
            await cluster.heal()
            await asyncio.sleep(0.3 + 0.5 * chance.random())
            cluster.isolate(server)
            await asyncio.sleep(1.5)
        if chance.random() < 0.7:
            link = cluster.link(server, chance.choice([other for other in cluster.servers if other is not server]))
            link.heal()
            await link.allow()
            await asyncio.sleep(0.5 + chance.random())
        if chance.random() < 0.4:
            self._cut_clients()
        await cluster.heal()

    def _cut_clients(self) -> None:
        for proxy in self.proxies:
            proxy.cut(End.RST)
            proxy.heal()

    async def _leader(self, stream: str) -> Server:
        """The leader of the stream; any server when there is none."""
        with contextlib.suppress(NatsError):
            info = await (await self.js.stream(stream, bind=True)).info(timeout=2)
            if info.cluster is not None:
                for server in self.cluster.servers:
                    if server.name == info.cluster.leader:
                        return server
        return self.book.chance.choice(self.cluster.servers)


async def _witness(nc: Client, book: Book, history: History) -> None:
    """Records what else keeps servers from answering: elections, and that nothing ran on this machine for a while."""

    def on_election(message: Message) -> None:
        advisory = json.loads(message.data)
        history.begin("election", advisory["stream"], detail=advisory["leader"]).end(history.clock())

    async with nc.subscribe("$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED.*", cb=on_election):
        while not book.over.is_set():
            began = history.clock()
            await asyncio.sleep(0.1)
            if history.clock() - began > PAUSE_S:
                pause = history.begin("pause")
                pause.began = began
                pause.end(history.clock())


async def _eventually(what: str, check: Callable[[], bool], book: Book) -> None:
    """Notes it as wrong when it is not so within PATIENCE_S."""
    end = time.monotonic() + PATIENCE_S
    while not check():
        if time.monotonic() > end:
            book.wrong.append(f"{what}: not within {PATIENCE_S:g} s after the last fault")
            return
        await asyncio.sleep(0.1)


async def soak(minutes: float, seed: int, only: list[str], faults: str) -> tuple[Book, History]:
    """Runs the mix for so many minutes and returns what happened. "others" are the works without a history."""
    chance = random.Random(seed)
    book, history = Book(chance), History(time.monotonic)
    loads = Workloads(history, chance, [name for name in only if name in STREAMS])
    async with run_cluster(3, link_faults=True) as cluster, contextlib.AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(FaultProxy(server.host, server.port)) for server in cluster.servers]
        clients = [
            await stack.enter_async_context(
                natsproto.connect(proxy.url, reconnect_wait=0.05, ping_interval=1, connect_timeout=2)
            )
            for proxy in proxies
        ]
        contexts = [nc.jetstream(timeout=10) for nc in clients]
        await loads.create(contexts[0])
        works = await loads.works(contexts)
        streams = [STREAMS[name] for name in loads.names]
        others = Others(book, clients) if "others" in only else None
        if others is not None:
            works += await others.works()
            streams += ["KV_k", "OBJ_o"]
        trouble = Trouble(cluster, proxies, clients[2].jetstream(), book, history, FAULTS[faults])
        works += [_witness(nc, book, history) for nc in clients]
        tasks = [asyncio.create_task(work) for work in [trouble.run(streams), *works]]
        await asyncio.wait(tasks, timeout=minutes * 60, return_when=asyncio.FIRST_EXCEPTION)
        book.over.set()
        loads.over.set()
        for end in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(end, BaseException):
                book.wrong.append(f"a worker ended with {end!r}")
        await cluster.heal()
        await cluster.ready()
        await loads.finish(contexts[0])
        if others is not None:
            await others.finish()
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    if left:
        book.wrong.append(f"tasks left: {left}")
    return book, history


class Others:
    """Requests, objects, a watch and a cache: what is checked without a history."""

    def __init__(self, book: Book, clients: list[Client]) -> None:
        self.book, self.clients = book, clients
        self.mirror, self.objects = Mirror(book), Objects(book)
        self._watching: asyncio.Task[None] | None = None

    async def works(self) -> list[Coroutine[object, None, None]]:
        """Create what is needed, and return what is to run."""

        def echo(message: Message) -> Awaitable[None]:
            return message.respond(message.data)

        for nc in self.clients[1:]:
            nc.subscribe("echo", queue="q", cb=echo)
        js = self.clients[0].jetstream(timeout=10)
        self._bucket = await js.create_key_value(bucket="k", num_replicas=3, history=5)
        self._store = await js.create_object_store(bucket="o", num_replicas=3)
        read = await self.clients[1].jetstream(timeout=10).key_value("k")
        self._watching = asyncio.create_task(self.mirror.watch(read))
        self._cache = read.cache()
        await self._cache.__aenter__()
        works = [_request_of(self.clients[0], self.book, number) for number in range(3)]
        works += [self.mirror.write(self._bucket, number) for number in range(3)]
        for number in range(OBJECTS):
            names = [f"object {number}", f"other {number}", f"third {number}"]
            works += [self.objects.change(self._store, names), self.objects.get(self._store, names[0])]
        return works

    async def finish(self) -> None:
        """Compare the mirror, the cache and the objects with what is stored."""

        async def held() -> dict[str, bytes]:
            keys = [key async for key in self._bucket.keys()]  # noqa: SIM118  # no mapping
            return {key: (await self._bucket.get(key)).value for key in keys}

        there, cache = await insist(held), self._cache
        await _eventually("watch", lambda: self.mirror.seen == there, self.book)
        await _eventually("cache", lambda: {key: cache[key] for key in cache} == there, self.book)
        for name in list(self.objects.may_be):
            await self.objects.check(self._store, name, "all")
        await insist(lambda: self.objects.check_orphans(self._store))
        await cache.__aexit__(None, None, None)
        assert self._watching is not None
        self._watching.cancel()
        await asyncio.wait((self._watching,))
        if not self._watching.cancelled():
            self.book.wrong.append(f"the watch ended with {self._watching.exception()!r}")


def summary(history: History) -> list[str]:
    """The figures of a history."""
    lines = []
    for kind in ("cas", "add", "batch", "publish", "enqueue"):
        calls = history.of(kind)
        for key in sorted({call.key for call in calls} if kind == "publish" else {""}):
            some = [call for call in calls if not key or call.key == key]
            outcomes = Counter(call.outcome for call in some)
            unknown = [call for call in some if call.outcome is Outcome.UNKNOWN]
            if some:
                lines.append(
                    f"{kind} {key or ''}: told {outcomes[Outcome.OK]}, refused {outcomes[Outcome.FAILED]}, uncertain "
                    f"{len(unknown)}; in flight at a fault: {in_flight_at_faults(history, some)} of all, "
                    f"{in_flight_at_faults(history, unknown)} of the uncertain"
                )
            errors = Counter(call.error_name for call in some if call.error)
            if errors:
                lines.append(f"    {dict(errors.most_common())}")
    told = sum(call.outcome is Outcome.OK for call in history.of("add"))
    unknown_adds = sum(call.outcome is Outcome.UNKNOWN for call in history.of("add"))
    stored = sum(call.value for call in history.of("final") if call.key.startswith("count "))
    lines.append(f"counters: told {told} <= stored {stored} <= told + uncertain {told + unknown_adds}")
    met, successes = contradictions(history)
    lines.append(f"refusals that contradict: {met} calls, {successes} told as a success")
    return lines


def main() -> int:
    """Runs it and reports; 1 when something is wrong."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--minutes", type=float, default=4.0, help="how long (default 4)")
    arguments.add_argument("--seed", type=int, default=1, help="what the chances are drawn from (default 1)")
    arguments.add_argument("--only", default=",".join([*STREAMS, "others"]), help="which works (default: all)")
    arguments.add_argument("--faults", choices=FAULTS, default="all", help="which faults (default: all)")
    arguments.add_argument("--keep", type=Path, default=Path("soak-history.jsonl"), help="where the history goes")
    arguments.add_argument("--judge", type=Path, help="judge the history of an earlier run, and run nothing")
    given = arguments.parse_args()
    for name in ("natsproto", "asyncio"):  # outages are what this is about
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if given.judge is not None:
        history, wrong = History.load(given.judge), []
    else:
        with noted_doubts() as met:
            book, history = asyncio.run(soak(given.minutes, given.seed, given.only.split(","), given.faults))
        print(f"met: {dict(met.most_common())}")
        print(f"done: {dict(book.done.most_common())}")
        print(f"refused in words: {dict(book.refused.most_common())}")
        wrong = book.wrong
        history.save(given.keep)  # before it is judged, which may end in an error of the judge
    wrong = [*wrong, *judge(history)]
    print("\n".join(summary(history)))
    for fault in wrong:
        print(f"WRONG: {fault}")
    if wrong:
        print(f"judge it again: --judge={given.judge or given.keep}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
