"""The fuzz targets hold on their seeds, and on those with bytes changed at random: a fuzzer needs targets that work."""

from __future__ import annotations

import random

import pytest

from tests.fuzz.targets import TARGETS, seeds


@pytest.mark.parametrize("name", TARGETS)
def test_fuzz_targets_hold_on_mutated_seeds(name: str, seed: int) -> None:
    chance = random.Random(seed)
    for data in seeds(name):
        TARGETS[name](data)
        changed = bytearray(data or b"x")
        for _ in range(3):
            changed[chance.randrange(len(changed))] = chance.choice(b"\r\n 0159MSGPINF{}\"'\x00\xff")
        TARGETS[name](bytes(changed))
