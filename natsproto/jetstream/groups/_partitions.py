"""Group configurations, the partitions of members, and the names of keys, streams and consumers.

It does no I/O. The results equal those of orbit.go's pcgroups, since each member computes the partitions of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Final

from natsproto import errors
from natsproto.jetstream._values.asset_names import check_consumer_name
from natsproto.jetstream._values.codec import Many, Record, Strings, integer, integers, many, strings, text
from natsproto.jetstream._values.config_parts import StreamSource, SubjectTransform
from natsproto.protocol.subject import subscribe_subject

PRIORITY_GROUP: Final = "PCG"
"""The priority group of every member's consumer: it makes the server serve one of several instances (ADR-42)."""
MAX_PARTITIONS: Final = 10_000
"""Partitions of a group: each member makes lists of all."""
MEMBER_ACK_WAIT_S: Final = 5.0
MIN_PULL_S: Final = 1.0
"""Seconds; the shortest duration of a pull and a pin."""


class MemberMapping(Record):
    """A member and its explicitly mapped partitions."""

    member: str = text()
    partitions: tuple[int, ...] = integers(default=())
    """Their numbers, from 0 to ``max_members`` - 1."""


class PartitioningFilter(Record):
    """The subjects of a group, and the numbers (from 1) of the filter's ``*`` that form the key.

    Without numbers the whole subject is the key.
    """

    filter: str = text()
    """A pattern such as ``orders.*.*``."""
    partitioning_wildcards: tuple[int, ...] = integers(default=())
    """``(1, 2)``: both tokens together are the key."""

    def _check(self) -> None:
        """Raise ConfigError when the partition of a subject would be undefined."""
        subscribe_subject(self.filter, "filter")
        tokens = self.filter.split(".")
        wildcards = tokens.count("*")
        if not wildcards and tokens[-1] != ">":
            raise errors.ConfigError("filter", self.filter, "needs a * or a > at its end")
        chosen = self.partitioning_wildcards
        if len(set(chosen)) != len(chosen) or not all(1 <= number <= wildcards for number in chosen):
            raise errors.ConfigError(
                "partitioning_wildcards", chosen, f"must be different numbers from 1 to {wildcards}"
            )

    def _transform(self, partitions: int) -> SubjectTransform:
        """Return the subject transform that adds the partition as the first token."""
        tokens = self.filter.split(".")
        number = 0
        for index, token in enumerate(tokens):
            if token == "*":
                number += 1
                tokens[index] = f"{{{{Wildcard({number})}}}}"
        arguments = ",".join(map(str, (partitions, *self.partitioning_wildcards)))
        return SubjectTransform(src=self.filter, dest=f"{{{{Partition({arguments})}}}}.{'.'.join(tokens)}")


class GroupConfig(Record):
    """The fields of both kinds: ``max_members`` partitions, distributed evenly to ``members`` or by
    ``member_mappings``.
    """

    max_members: int = integer()
    """The number of partitions; further members get no messages."""
    members: Strings = strings(default=())
    """Those that share the partitions evenly; empty with ``member_mappings``."""
    member_mappings: Many[MemberMapping] = many(MemberMapping, default=())
    """Which partitions each member has, instead of an even share; empty with ``members``."""

    bucket: ClassVar[str]
    """The key/value bucket that holds configurations of this kind."""

    def _check(self) -> None:
        """Raise ConfigError unless each partition has exactly one valid member."""
        if self.max_members < 1:
            raise errors.ConfigError("max_members", self.max_members, "a group has at least 1 partition")
        if self.max_members > MAX_PARTITIONS:
            raise errors.ConfigError(
                "max_members", self.max_members, f"a group has at most {MAX_PARTITIONS} partitions"
            )
        mappings = self.member_mappings
        if self.members and mappings:
            raise errors.ConfigError("member_mappings", mappings, "cannot be given together with members")
        if mappings:
            given = sorted(partition for mapping in mappings for partition in mapping.partitions)
            if given != list(range(self.max_members)):
                rule = f"must give each partition from 0 to {self.max_members - 1} to one member"
                raise errors.ConfigError("member_mappings", mappings, rule)
            if len({mapping.member for mapping in mappings}) != len(mappings) or len(mappings) > self.max_members:
                raise errors.ConfigError(
                    "member_mappings", mappings, "must name each member once, no more than partitions"
                )

    @property
    def names(self) -> tuple[str, ...]:
        """All members, from ``members`` or ``member_mappings``."""
        return tuple(mapping.member for mapping in self.member_mappings) or self.members

    def partitions(self, member: str) -> tuple[int, ...]:
        """Return the partitions of a member; empty for an unknown one.

        Members are sorted by name and get a block of partitions each; the remaining partitions go to the first members,
        one each. Members beyond the number of partitions get none.

        Args:
            member: One of the names in ``members`` or ``member_mappings``.
        """
        if self.member_mappings:
            return next((mapping.partitions for mapping in self.member_mappings if mapping.member == member), ())
        names = sorted(set(self.members))[: self.max_members]
        if member not in names:
            return ()
        block = self.max_members // len(names)
        index, even = names.index(member), block * len(names)
        own = range(index * block, (index + 1) * block)
        return (*own, *(number for number in range(even, self.max_members) if number - even == index))

    def subjects(self, member: str) -> tuple[str, ...]:
        """The subjects of a member's consumer.

        Args:
            member: One of the names in ``members`` or ``member_mappings``.
        """
        patterns = (">",) if self.member_mappings else self._patterns
        return tuple(f"{number}.{pattern}" for pattern in patterns for number in self.partitions(member))

    @property
    def _patterns(self) -> tuple[str, ...]:
        """The subjects of the group, without the partition."""
        raise NotImplementedError

    def _equals_except_members(self, other: GroupConfig) -> bool:
        """True if the other configuration differs only in its members."""
        return self == other.replace(members=self.members, member_mappings=self.member_mappings, extra=self.extra)


class StaticGroupConfig(GroupConfig):
    """A group on a stream whose subjects begin with the partition. It cannot be changed."""

    filters: Strings = strings(default=())
    """The subjects of the group, with the token of the partition left out."""

    bucket = "static-consumer-groups"

    def _check(self) -> None:
        """Check the fields of every group, and the subjects of the filters."""
        super()._check()
        for pattern in self.filters:
            subscribe_subject(pattern, "filters")

    @property
    def _patterns(self) -> tuple[str, ...]:
        """The filters, or everything."""
        return self.filters or (">",)


class ElasticGroupConfig(GroupConfig):
    """A group on any stream, with changing members. Limits apply to the work queue stream (0: none)."""

    partitioning_filters: Many[PartitioningFilter] = many(PartitioningFilter, default=())
    """The subjects of the group, and what of them is the key."""
    max_buffered_msgs: int = integer(default=0, key="max_buffered_msg")
    """Messages that may wait in the work queue; then the stream waits."""
    max_buffered_bytes: int = integer(default=0)
    """The same limit in bytes."""

    bucket = "elastic-consumer-groups"

    def _check(self) -> None:
        """Check the fields of every group, and that the filters determine the partition of a subject."""
        super()._check()
        for one in self.partitioning_filters:
            one._check()

    @property
    def _patterns(self) -> tuple[str, ...]:
        """The filters, or everything."""
        return tuple(one.filter for one in self.partitioning_filters) or (">",)

    @property
    def _has_keys(self) -> bool:
        """True if each filter says which of its tokens are the key."""
        return bool(self.partitioning_filters) and all(one.partitioning_wildcards for one in self.partitioning_filters)

    def _source(self, stream: str) -> StreamSource:
        """The source of the work queue stream."""
        filters = self.partitioning_filters or (PartitioningFilter(filter=">"),)
        return StreamSource(name=stream, subject_transforms=[one._transform(self.max_members) for one in filters])


def config_key(stream: str, group: str) -> str:
    """The bucket key of a configuration."""
    return f"{stream}.{check_consumer_name(group)}"


def make_mappings(given: Mapping[str, Iterable[int]]) -> tuple[MemberMapping, ...]:
    """Convert explicit mappings into the form of the configuration."""
    return tuple(
        MemberMapping(member=check_consumer_name(name), partitions=tuple(numbers)) for name, numbers in given.items()
    )
