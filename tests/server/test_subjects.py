"""Subject helpers foretell what a real server does."""

from __future__ import annotations

import random
import re

import pytest

import natsproto
from natsproto.errors import ConfigError, InvalidSubject
from natsproto.subjects import SubjectMapping, matches, partition, tokens
from natsproto.testing import run_server

MAPPINGS = {
    "p.*.*": "out.{{partition(7,1,2)}}.{{partition(3,2)}}.$1.{{wildcard(2)}}",
    "s.*": "out.{{split(1,-)}}",
    "sfl.*": "out.{{splitFromLeft(1,3)}}",
    "sfr.*": "out.{{SplitFromRight(1, 3)}}",
    "cfl.*": "out.{{sliceFromLeft(1,2)}}",
    "cfr.*": "out.{{ sliceFromRight(1,2) }}",
    "l.*": "out.{{left(1,2)}}",
    "r.*": "out.{{right(1,2)}}",
    "rest.*.>": "out.{{wildcard(1)}}.>",
    "plain": "out.plain",
}


async def test_subject_mapping_is_the_servers(seed: int) -> None:
    rng = random.Random(seed)

    def token() -> str:
        return "".join(rng.choices("ab-é7", k=rng.randint(1, 8)))

    lines = "\n".join(f'"{source}": "{destination}"' for source, destination in MAPPINGS.items())
    async with (
        run_server(config=f"mappings {{\n{lines}\n}}") as server,
        natsproto.connect(server.url) as nc,
        nc.subscribe("out.>") as out,
    ):
        for source, destination in MAPPINGS.items():
            mapping = SubjectMapping(source, destination)
            for _ in range(20):
                subject = ".".join(
                    token() if part == "*" else f"{token()}.{token()}" if part == ">" else part
                    for part in tokens(source)
                )
                foretold = mapping.apply(subject)
                if source == "s.*" and re.match(r"s\.(-+$|--)", subject):
                    continue  # servers make no subject of that, and lose the message
                await nc.publish(subject, b"x")
                assert (await out.next(timeout=60)).subject == foretold, (source, subject)


async def test_partition_is_the_servers(seed: int) -> None:
    rng = random.Random(seed)
    async with (
        run_server(config='mappings { "p.*": "out.{{partition(11,1)}}" }') as server,
        natsproto.connect(server.url) as nc,
        nc.subscribe("out.*") as out,
    ):
        for _ in range(50):
            key = str(rng.randrange(10**9))
            await nc.publish(f"p.{key}", b"")
            assert (await out.next(timeout=60)).subject == f"out.{partition(11, key)}"


def test_mapping_leaves_other_subjects_alone() -> None:
    assert SubjectMapping("a.*", "b.$1").apply("c.1") is None
    assert matches("a.*", "a.1")
    with pytest.raises(InvalidSubject):
        SubjectMapping("a.*", "b.$1").apply("a b")


@pytest.mark.parametrize(
    ("source", "destination"),
    [
        ("a.*", "b.{{wildcard(2)}}"), ("a.*", "b.{{wildcard()}}"), ("a.*", "b.{{partition(3)}}"), ("a.*", "b.$0"),
        ("a.*", "b.{{split(1)}}"), ("a.*", "b.{{nothing(1)}}"), ("a", "b.$1"), ("a.>", "b"), ("a", "b.>"),
        ("a.*", "b.{{random(3)}}"), ("a.*", "b.{{left(1,x)}}"), ("a.*", "b..c"), ("a..b", "c"), ("a.*", "b.*"),
        ("a.*", "b.{{partition(0,1)}}"), ("a.*", "b.{{split(1,.)}}"), ("a.*", "b.{{left"),
    ],
)  # fmt: skip
def test_mapping_that_cannot_be_is_refused(source: str, destination: str) -> None:
    with pytest.raises(ConfigError):
        SubjectMapping(source, destination)


def test_partitions_are_a_positive_number() -> None:
    with pytest.raises(ConfigError):
        partition(0, "a")
