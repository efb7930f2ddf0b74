"""The ways through the package get no longer: calls and changes of module of the common operations."""

from __future__ import annotations

import sys

from benchmarks.path_lengths import CEILING, OPERATIONS, measure, table


async def test_path_lengths() -> None:
    """The shortest of three runs counts: replies come in one read or in two, as the machine likes."""
    profiler = sys.getprofile()
    try:
        runs = [await measure() for _ in range(3)]
    finally:
        sys.setprofile(profiler)
    lengths = {name: min(run[name] for run in runs) for name in runs[0]}
    print(table(lengths))
    assert set(lengths) == set(CEILING) == set(OPERATIONS)
    longer = {
        name: (length, CEILING[name])
        for name, length in lengths.items()
        if length.calls > CEILING[name].calls or length.changes > CEILING[name].changes
    }
    assert not longer, "a path through the package has become longer; see benchmarks/path_lengths.py"
