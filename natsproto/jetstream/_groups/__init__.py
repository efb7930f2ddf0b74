"""Partitioned consumer groups: ordered handling in parallel, one message of a key at a time.

On the wire these are the groups of orbit.go's pcgroups: members written in either language share a group.
"""
