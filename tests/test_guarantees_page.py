"""Every statement of the page on guarantees names a test, and every test it names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/guarantees.md").read_text()
WORKERS = (ROOT / "docs/workers.md").read_text()


def test_tests_named_by_guarantees_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE + WORKERS))
    written = {
        name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    assert len(named) > 50
    assert named - written == set()


def test_each_guarantee_names_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| event |")]
    assert len(rows) > 40
    assert [row for row in rows if "`test_" not in row.rpartition(" | ")[2]] == []
