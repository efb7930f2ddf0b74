"""Three processes of which one leads; it is killed, and another one takes over.

Run it with ``python docs/examples/leader.py``.
"""

import asyncio
import sys

import natsproto.jetstream
from natsproto.errors import LockLost
from natsproto.testing import run_server

NAMES = ("ana", "ben", "cleo")


async def node(url: str, name: str) -> None:
    """One process: wait until it is the leader, and work as long as it is."""
    async with natsproto.connect(url, name=name) as nc:
        locks = await nc.jetstream().key_value("locks")
        while True:
            try:
                async with locks.lock("leader", ttl=1, value=name.encode()) as lock:
                    print(lock.token, flush=True)
                    for term in range(1_000_000):
                        await lock.put("report", b"%s: %d" % (name.encode(), term))  # refused to all but the leader
                        await asyncio.sleep(0.1)
            except LockLost:
                continue  # the block was cancelled: another process may lead


async def start(url: str, name: str) -> asyncio.subprocess.Process:
    """The node as a process of its own."""
    return await asyncio.create_subprocess_exec(sys.executable, __file__, url, name, stdout=asyncio.subprocess.PIPE)


async def token_of(process: asyncio.subprocess.Process) -> int:
    """Read the line that a node prints when it becomes the leader."""
    assert process.stdout is not None
    return int(await process.stdout.readline())


async def main() -> None:
    """Start three, kill the leader twice, and see the next one report."""
    async with run_server(jetstream=True) as server, natsproto.connect(server.url) as nc:
        locks = await nc.jetstream().create_key_value("locks", limit_marker_ttl=60)
        nodes = {name: await start(server.url, name) for name in NAMES}
        tokens: list[int] = []
        async with locks.watch("report") as reports:
            for left in (3, 2, 1):
                async for entry in reports:
                    name = entry.value.partition(b":")[0].decode()
                    if name in nodes:  # and nothing more from the previous leader
                        break
                leader = nodes.pop(name)
                tokens.append(await token_of(leader))
                print(f"one of {left} leads", "and is killed" if left > 1 else "until the end")
                leader.kill()
                await leader.wait()
        print("tokens only rise" if tokens == sorted(set(tokens)) else f"tokens: {tokens}")


if __name__ == "__main__":
    asyncio.run(node(*sys.argv[1:]) if len(sys.argv) == 3 else main())

# prints: one of 3 leads and is killed
# prints: one of 2 leads and is killed
# prints: one of 1 leads until the end
# prints: tokens only rise
