"""No test waits by sleeping: events, the virtual clock (tests.kit.clock.advance) or monitoring instead."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
SLEEP = re.compile(r"(?:asyncio|time)\.sleep\(([\d.]+)\)(?!.* own )")
LONGEST = 0.1


def test_no_long_sleeps_in_tests() -> None:
    """Where a second of the server or of a job is the subject, the line says whose: ``# ... own ...``."""
    found = [
        f"{path.relative_to(TESTS)}: {match[0]}"
        for path in TESTS.rglob("*.py")
        for match in SLEEP.finditer(path.read_text())
        if float(match[1]) >= LONGEST
    ]
    # What runs for minutes; the tests of the clock itself.
    allowed = ("tools/soak", "processor/test_matrix.py", "kit/workloads.py", "kit/group_model.py", "kit/test_kit.py")
    assert [index for index in found if not index.startswith(allowed)] == []
