"""Members of a group as processes that are started, stopped, killed, frozen and cut off, by a seed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import natsproto
from natsproto._core.events import Event
from natsproto.jetstream import groups
from natsproto.jetstream.groups import GroupLeaseLost
from natsproto.testing import run_cluster
from natsproto.testing._server import Server
from tests.kit.group_history import GroupHistory
from tests.kit.group_model import group_model, run_model


@pytest.mark.slow
async def test_partitions_move_when_members_die(nats_server: Server, tmp_path: Path, seed: int) -> None:
    """``kill -9`` and SIGSTOP of two of four: nothing is lost, and each key stays in order."""
    async with natsproto.connect(nats_server.url) as nc:
        js = nc.jetstream(timeout=30)
        async with group_model(js, (nats_server,), tmp_path, seed, 12, ttl=2, handler_s=0.05) as model:
            dies, freezes, *_ = [await model.start() for _ in range(4)]
            await model.settle()
            await model.publish(100)
            model.freeze(freezes, 4.0)
            await model.publish(20)
            await model.kill(dies)
            await model.publish(100)
            await model.settle()
            await model.finish()
            assert model.history.faults() == []


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_members_come_and_go_at_random(tmp_path: Path, seed: int) -> None:
    assert await run_model(0.5, seed, most=5, partitions=24, ttl=2.0, folder=tmp_path) == []


@pytest.mark.hunt
@pytest.mark.timeout(900)
@pytest.mark.parametrize("members", [8, 20])
async def test_many_members_come_and_go(tmp_path: Path, seed: int, members: int) -> None:
    assert await run_model(4.0, seed, most=members, partitions=64, ttl=2.0, folder=tmp_path) == []


@pytest.mark.hunt
@pytest.mark.timeout(900)
async def test_members_survive_cut_links_of_servers(tmp_path: Path, seed: int) -> None:
    assert await run_model(4.0, seed, most=5, partitions=24, ttl=3.0, folder=tmp_path, has_cluster=True) == []


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_member_joins_again_after_loss_of_quorum() -> None:
    """The buckets have no leader for longer than the lease: the member waits, and does not end by that."""
    lost = asyncio.Event()

    def on_event(event: Event) -> None:
        if isinstance(event, GroupLeaseLost):
            lost.set()

    async with (
        run_cluster(3, start_timeout=120) as cluster,
        natsproto.connect(cluster.servers[0].url, reconnect_wait=0.05) as nc,
    ):
        nc.add_listener(on_event)
        stream = await nc.jetstream(timeout=30).create_stream("O", subjects=["o.*"], storage="memory", num_replicas=3)
        async with groups.join(stream, "g", lambda message: None, ttl=1) as member, asyncio.timeout(300):
            await member.wait_joined()
            for server in cluster.servers[1:]:
                server.kill()
            await lost.wait()
            await asyncio.gather(*[server.restart() for server in cluster.servers[1:]])
            await cluster.ready()
            await member.wait_joined()
            assert len(member.partitions) == 12


# ---------------------------------------------------------------- what the checker finds


def made_history(*lines: tuple[float, str, str, str, int], **fields: object) -> GroupHistory:
    history = GroupHistory(**fields)  # type: ignore[arg-type]
    history.lines = [
        {"at": at, "who": who, "kind": kind, "key": key, "number": number, "done": kind == "end"}
        for at, who, kind, key, number in lines
    ]
    return history


A = ((1.0, "a", "begin", "k", 1), (2.0, "a", "end", "k", 1))


@pytest.mark.parametrize(
    ("history", "fault"),
    [
        (made_history(*A), ""),
        (made_history(*A, (2.1, "b", "begin", "k", 2), (2.2, "b", "end", "k", 2)), ""),
        (made_history(A[0], (1.5, "b", "begin", "k", 2), A[1], (3.0, "b", "end", "k", 2)), "while a handled 1"),
        (made_history(A[0], (1.5, "b", "begin", "l", 2), A[1], (3.0, "b", "end", "l", 2)), ""),
        (made_history(A[0], (1.5, "b", "begin", "k", 2), A[1], frozen=[("a", 1.2, 1.8)]), ""),
        (made_history(A[0], (1.5, "b", "begin", "k", 2), frozen=[("a", 0.2, 0.8)]), "while a handled 1"),
        (made_history(A[0], (1.5, "b", "begin", "k", 1), killed={"a": 1.2}), ""),
        (made_history(A[0], (1.5, "b", "begin", "k", 1), killed={"a": 1.7}), "while a handled 1"),
        (made_history((0.1, "a", "begin", "k", 2), (0.2, "a", "end", "k", 2), *A), "2 began before 1"),
        (made_history(*A, published={("k", 1): 0.0, ("k", 2): 0.0}), "1 never handled"),
    ],
)
def test_checker_finds_what_is_wrong(history: GroupHistory, fault: str) -> None:
    faults = history.faults()
    assert len(faults) == bool(fault)
    assert fault in "".join(faults)
