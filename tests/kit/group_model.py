"""Members of a group as processes that come, go, die, freeze and are cut off, by a seed.

    python -m tests.kit.group_model --minutes 10 --seed 7 --members 8 --partitions 64

Owns the processes and their proxies. ``group_history`` judges what they wrote.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import natsproto
from natsproto.errors import NatsError
from natsproto.jetstream._context import JetStream
from natsproto.jetstream.groups import ElasticGroup
from natsproto.jetstream.groups._shares import is_balanced
from natsproto.testing import Cluster, FaultProxy, Server, run_cluster, run_server
from tests.kit.group_history import GroupHistory
from tests.kit.workloads import insist

PATIENCE_S = 120.0
KEYS = 40


@dataclass
class MemberProcess:
    """A process of ``group_member`` behind its proxy."""

    who: str
    proxy: FaultProxy
    process: asyncio.subprocess.Process
    fault: asyncio.Task[None] | None = None

    @property
    def is_living(self) -> bool:
        return self.process.returncode is None


@dataclass
class GroupModel:
    """The group ``g`` of the stream ``O``, its member processes and their history."""

    js: JetStream
    group: ElasticGroup
    servers: tuple[Server, ...]
    folder: Path
    rng: random.Random
    options: dict[str, object]
    history: GroupHistory = field(default_factory=GroupHistory)
    members: list[MemberProcess] = field(default_factory=list)
    count: int = 0
    numbers: dict[str, int] = field(default_factory=dict)
    proxies: AsyncExitStack = field(default_factory=AsyncExitStack)
    cluster: Cluster | None = None
    isolation: asyncio.Task[None] | None = None

    @property
    def log(self) -> Path:
        return self.folder / "members.log"

    @property
    def living(self) -> list[MemberProcess]:
        return [member for member in self.members if member.is_living and member.fault is None]

    @property
    def ttl(self) -> float:
        return float(str(self.options["ttl"]))

    async def start(self, **options: object) -> MemberProcess:
        """Start a member. It joins by itself."""
        self.count += 1
        who = f"p{self.count}"
        server = self.servers[self.count % len(self.servers)]
        proxy = await self.proxies.enter_async_context(FaultProxy(server.host, server.port))
        command = [sys.executable, "-m", "tests.kit.group_member", proxy.url, str(self.log), who]
        with (self.folder / f"{who}.err").open("w") as errors:
            process = await asyncio.create_subprocess_exec(
                *command, json.dumps({**self.options, **options}), stdout=errors, stderr=errors
            )
        self.members.append(MemberProcess(who, proxy, process))
        return self.members[-1]

    async def stop(self, member: MemberProcess) -> None:
        """Let it leave in order."""
        member.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            await member.process.wait()
        assert member.process.returncode == 0, (self.folder / f"{member.who}.err").read_text()

    async def kill(self, member: MemberProcess) -> None:
        """``kill -9``."""
        member.process.kill()
        self.history.killed[member.who] = monotonic()
        await member.process.wait()

    def freeze(self, member: MemberProcess, seconds: float) -> None:
        """Stop it with SIGSTOP for some time."""

        async def frozen() -> None:
            member.process.send_signal(signal.SIGSTOP)
            since = monotonic()
            try:
                await asyncio.sleep(seconds)
            finally:
                member.process.send_signal(signal.SIGCONT)
                self.history.frozen.append((member.who, since, monotonic()))
                member.fault = None

        member.fault = asyncio.create_task(frozen())

    def cut(self, member: MemberProcess, seconds: float, *, silently: bool) -> None:
        """Keep it from the servers for some time: its connection is closed, or nothing passes any more."""

        async def kept_away() -> None:
            try:
                if silently:
                    member.proxy.stall()
                else:
                    member.proxy.refuse()
                    member.proxy.cut()
                await asyncio.sleep(seconds)
            finally:
                member.proxy.heal()
                await member.proxy.allow()
                member.fault = None

        member.fault = asyncio.create_task(kept_away())

    async def publish(self, count: int) -> None:
        """Publish so many messages; few keys have most of them."""
        for _ in range(count):
            key = str(min(int(self.rng.paretovariate(0.6)), KEYS) - 1)
            number = self.numbers[key] = self.numbers.get(key, 0) + 1
            await self._publish(f"o.{key}", number)
            self.history.published[key, number] = monotonic()

    def check_processes(self) -> None:
        """No process has ended by an error."""
        for one in self.members:
            if one.process.returncode not in (None, 0, -signal.SIGKILL):
                raise AssertionError(f"{one.who} ended: {(self.folder / f'{one.who}.err').read_text()}")

    def isolate(self, seconds: float, *, silently: bool) -> None:
        """Cut one of the servers off from the others for some time."""
        assert self.cluster is not None
        cluster, server = self.cluster, self.rng.choice(self.servers)

        async def isolated() -> None:
            cluster.isolate(server, silently=silently)
            try:
                await asyncio.sleep(seconds)
            finally:
                await cluster.heal()
            await cluster.ready()

        self.isolation = asyncio.create_task(isolated())

    async def _publish(self, subject: str, number: int) -> None:
        while True:
            try:
                await self.js.publish(subject, b"%d" % number, msg_id=f"{subject}-{number}", timeout=10)
                return
            except NatsError:
                await asyncio.sleep(0.2)

    async def settle(self) -> float:
        """Wait until the living members have equal shares; return the seconds that it took."""
        began = monotonic()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                self.check_processes()
                self.history.read(self.log)
                names = {line["who"]: line["name"] for line in self.history.lines if line["kind"] == "entered"}
                left = {line["who"] for line in self.history.lines if line["kind"] == "left"}
                living = [names.get(one.who) for one in self.members if one.is_living and one.who not in left]
                if None not in living:
                    config = await insist(self.group.info)
                    wanted = {name for name in living if name is not None}
                    if is_balanced(config, wanted) and wanted >= {n for n in config.names if n.startswith("join-")}:
                        return monotonic() - began
                await asyncio.sleep(0.05)

    async def finish(self) -> None:
        """End all faults, and wait until everything is handled."""
        if self.isolation is not None:
            await self.isolation
        await asyncio.gather(*[member.fault for member in self.members if member.fault is not None])
        if not any(member.is_living for member in self.members):
            await self.start()
        await self.settle()
        try:
            async with asyncio.timeout(PATIENCE_S):
                while self.history.missing():
                    self.history.read(self.log)
                    await asyncio.sleep(0.1)
        except TimeoutError:
            pass  # faults() says what is missing

    async def act(self, most: int) -> str:
        """Do something to somebody; return what."""
        self.history.read(self.log)
        entered = {line["who"] for line in self.history.lines if line["kind"] == "entered"}
        rng, living = self.rng, [member for member in self.living if member.who in entered]
        count = sum(member.is_living for member in self.members)
        weights = {"start": 4 if count < most else 0, "stop": 1, "kill": 1, "freeze": 1, "cut": 1}
        if self.cluster is not None and (self.isolation is None or self.isolation.done()):
            weights["isolate"] = 1
        if len(living) < 2:  # one is always there
            weights = {"start": 1} if count < most else {"wait": 1}
        [what] = rng.choices(list(weights), list(weights.values()))
        if what == "start":
            return f"start {(await self.start()).who}"
        if what == "wait":
            return what
        if what == "isolate":
            seconds = rng.uniform(1.0, 15.0)
            self.isolate(seconds, silently=rng.random() < 0.5)
            return f"isolate {seconds:.1f}"
        member, seconds = rng.choice(living), rng.uniform(0.2, 3 * self.ttl)
        if what == "stop":
            await self.stop(member)
        elif what == "kill":
            await self.kill(member)
        elif what == "freeze":
            self.freeze(member, seconds)
        else:
            self.cut(member, seconds, silently=rng.random() < 0.5)
        return f"{what} {member.who} {seconds:.1f}"

    def figures(self) -> Iterator[str]:
        """What there was."""
        history = self.history
        late = [line["seconds"] for line in history.lines if line["kind"] == "late"]
        yield f"{len(history.published)} published, {len(history.handlings())} handlings, {self.count} processes"
        yield f"{len(history.killed)} killed, {len(history.frozen)} frozen, {history.count('lost')} leases lost"
        yield f"moved after {[round(seconds, 2) for seconds in sorted(history.moves())]} s"
        yield f"stood still by themselves: {len(late)} times, at most {max(late, default=0.0):.2f} s"

    async def close(self) -> None:
        """Kill what still lives."""
        if self.isolation is not None:
            self.isolation.cancel()
            await asyncio.gather(self.isolation, return_exceptions=True)
        for member in self.members:
            if member.fault is not None:
                member.fault.cancel()
                await asyncio.gather(member.fault, return_exceptions=True)
            if member.is_living:
                member.process.kill()
                await member.process.wait()
        await self.proxies.aclose()


@asynccontextmanager
async def group_model(
    js: JetStream, servers: tuple[Server, ...], folder: Path, seed: int, partitions: int, **options: object
) -> AsyncIterator[GroupModel]:
    """A model on these servers; ``options`` are those of ``groups.join``."""
    await js.create_stream("O", subjects=["o.*"], storage="memory", num_replicas=len(servers))
    group = await ElasticGroup.create(js, "O", "g", max_members=partitions, filters={"o.*": [1]})
    made = {"ttl": 1.0, "partitions": partitions, **options}
    model = GroupModel(js, group, servers, folder, random.Random(seed), made)
    try:
        yield model
    finally:
        await model.close()


async def run_model(
    minutes: float, seed: int, most: int, partitions: int, ttl: float, folder: Path, *, has_cluster: bool = False
) -> list[str]:
    """Run the model for so long, and print the figures; return what is wrong."""
    async with AsyncExitStack() as stack:
        cluster = (
            await stack.enter_async_context(run_cluster(3, link_faults=True, start_timeout=PATIENCE_S))
            if has_cluster
            else None
        )
        server = await stack.enter_async_context(run_server(jetstream=True)) if cluster is None else None
        servers = (server,) if server is not None else cluster.servers  # type: ignore[union-attr]  # it is one of both
        nc = await stack.enter_async_context(natsproto.connect([one.url for one in servers]))
        js = nc.jetstream(timeout=30)
        async with group_model(js, servers, folder, seed, partitions, ttl=ttl) as model:
            model.cluster = cluster
            ends_at = monotonic() + 60 * minutes
            for _ in range(most):
                await model.start()
            settled = [await model.settle()]
            while monotonic() < ends_at:
                for _ in range(model.rng.randrange(1, 12)):
                    publishing = asyncio.create_task(model.publish(100))
                    print(f"{monotonic():.2f} {await model.act(most)}", flush=True)
                    await asyncio.sleep(model.rng.uniform(0.1, 1.5))
                    await publishing
                await asyncio.gather(*[one.fault for one in model.members if one.fault is not None])
                if model.isolation is not None:
                    await model.isolation
                settled.append(await model.settle())
            await model.finish()
            print(*model.figures(), f"settled after {[round(seconds, 2) for seconds in settled]} s", sep="\n")
            return model.history.faults()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--partitions", type=int, default=64)
    parser.add_argument("--ttl", type=float, default=1.0)
    parser.add_argument("--cluster", action="store_true", help="three servers, which are cut off as well")
    args = parser.parse_args()
    print(f"--seed {args.seed}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        running = run_model(
            *(args.minutes, args.seed, args.members, args.partitions, args.ttl, folder), has_cluster=args.cluster
        )
        faults = asyncio.run(running)
        if faults:
            shutil.copy(folder / "members.log", "members.log")
    print("\n".join(faults[:20]), f"{len(faults)} faults", sep="\n")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
