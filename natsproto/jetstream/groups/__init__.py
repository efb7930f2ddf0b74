"""Partitioned consumer groups: ordered handling in parallel, one message of a key at a time.

On the wire these are the groups of orbit.go's pcgroups: members written in either language share a group.
"""

from natsproto._help import introspection as _introspection
from natsproto.jetstream.groups._coordinator import GroupNotShared
from natsproto.jetstream.groups._follower import GroupSharesChanged
from natsproto.jetstream.groups._group import ElasticGroup, StaticGroup, join
from natsproto.jetstream.groups._joined import GroupLeaseLost, JoinArgs, JoinedMember
from natsproto.jetstream.groups._member import Member
from natsproto.jetstream.groups._partitions import (
    ElasticGroupConfig,
    GroupConfig,
    MemberMapping,
    PartitioningFilter,
    StaticGroupConfig,
)
from natsproto.jetstream.groups._presence import GroupLeaseLate
from natsproto.jetstream.groups._stall_watch import GroupStalled

__all__ = [
    "ElasticGroup",
    "ElasticGroupConfig",
    "GroupConfig",
    "GroupLeaseLate",
    "GroupLeaseLost",
    "GroupNotShared",
    "GroupSharesChanged",
    "GroupStalled",
    "JoinArgs",
    "JoinedMember",
    "Member",
    "MemberMapping",
    "PartitioningFilter",
    "StaticGroup",
    "StaticGroupConfig",
    "join",
]

for _kind in (ElasticGroup, StaticGroup):
    _introspection.name_fields(_kind, dict.fromkeys(("GroupArgs", "JoinArgs"), "natsproto.jetstream.groups._joined"))
