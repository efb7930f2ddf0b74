"""How partitions are shared out among members that come and go, on paper."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsproto.errors import InvalidSubject
from natsproto.jetstream._consumer.message import JsMessage
from natsproto.jetstream.groups._partitions import ElasticGroupConfig, PartitioningFilter, make_mappings
from natsproto.jetstream.groups._shares import is_balanced, is_managed, key_of, member_name, owners_in, share_out

NAMES = st.sets(st.sampled_from([f"join-{number}" for number in range(9)]))


def after(config: ElasticGroupConfig, living: set[str]) -> ElasticGroupConfig:
    shares = share_out(config, living)
    return config.replace(members=(), member_mappings=make_mappings(shares)) if shares else config


@given(st.integers(1, 12), st.sets(st.sampled_from(["anna", "bert"])), st.lists(NAMES, min_size=1, max_size=6))
def test_shares_are_equal_and_sticky(partitions: int, foreign: set[str], changes: list[set[str]]) -> None:
    config = ElasticGroupConfig(max_members=partitions, members=sorted(foreign)[:partitions])
    for living in changes:
        before, config = config, after(config, living)
        config._check()
        assert is_balanced(config, living)
        owners = owners_in(config)
        if not living and not foreign:
            assert config == before
            continue
        assert {name for name in owners if not is_managed(name)} == set(sorted(foreign)[:partitions])
        assert {name for name in owners if is_managed(name)} <= living
        assert len(owners) == min(partitions, len(living) + len(set(sorted(foreign)[:partitions])))
        sizes = [len(own) for own in owners.values()]
        assert max(sizes) - min(sizes) <= 1
        for name, own in owners_in(before).items():
            if name in owners:  # it keeps what it had, up to its share
                assert len(set(own) & set(owners[name])) == min(len(own), len(owners[name]))


def test_only_freed_partitions_move() -> None:
    config = after(ElasticGroupConfig(max_members=12), {"join-a", "join-b", "join-c"})
    assert owners_in(config) == {"join-a": (0, 1, 2, 3), "join-b": (4, 5, 6, 7), "join-c": (8, 9, 10, 11)}
    assert share_out(config, {"join-a", "join-c"}) == {"join-a": (0, 1, 2, 3, 4, 5), "join-c": (6, 7, 8, 9, 10, 11)}


def test_members_beyond_the_partitions_stand_by() -> None:
    config = after(ElasticGroupConfig(max_members=2), {"join-a", "join-b", "join-c"})
    assert owners_in(config) == {"join-a": (0,), "join-b": (1,)}
    assert owners_in(after(config, {"join-c", "join-b"})) == {"join-c": (0,), "join-b": (1,)}


@pytest.mark.parametrize("name", ["a.b", "a b", "a*", ">", "", "ä", "a/b", "-" * 300])
def test_unusable_member_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidSubject):
        member_name(name)


@pytest.mark.parametrize(
    ("filters", "subject", "key"),
    [
        ({}, "a.1.x", "a.1.x"),
        ({"a.*": ()}, "a.1", "a.1"),
        ({"a.*.*": (2,)}, "a.1.x", ("x",)),
        ({"a.*.*": (2, 1)}, "a.1.x", ("x", "1")),
        ({"a.*": (1,), "b.*.*": (2,)}, "b.1.7", ("7",)),
        ({"a.*": (1,), "b.>": ()}, "b.1.7", "b.1.7"),
    ],
)
def test_key_is_that_of_the_partition(filters: dict[str, tuple[int, ...]], subject: str, key: object) -> None:
    made = [PartitioningFilter(filter=one, partitioning_wildcards=chosen) for one, chosen in filters.items()]
    assert key_of(made)(cast(JsMessage, SimpleNamespace(subject=subject))) == key
