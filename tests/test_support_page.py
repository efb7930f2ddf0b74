"""The page on support: features of servers are those that tests use; what it calls experimental says so itself, at the
top of its page or section.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.kit.features import feature_table

DOCS = Path(__file__).parent.parent / "docs"
ROW = re.compile(r"^\| [^|]+ \| `[^|]+ \| \[([^\]]+)\]\(([^)#]+)(#[^)]+)?\) \|$", re.MULTILINE)
NOTE = re.compile(r"^\*Experimental: .*\]\((?:\.\./)*support\.md#what-is-stable\)\)\.\*$", re.MULTILINE)


def test_page_has_the_table_of_features() -> None:
    """``python -m tests.kit.features`` prints it."""
    assert feature_table() in (DOCS / "support.md").read_text()


def stable_rows() -> list[tuple[str, str, str]]:
    return ROW.findall((DOCS / "support.md").read_text().partition("## What is stable")[2])


def test_experimental_pages_say_so_at_their_top() -> None:
    assert len(stable_rows()) > 8
    for heading, page, anchor in stable_rows():
        line = f"{'##' if anchor else '#'} {heading}\n\n"
        _, found, text = f"\n{(DOCS / page).read_text()}".partition(f"\n{line}")
        assert found, f"{page} has no heading {heading!r}"
        assert NOTE.match(text), f"{page}, {heading}: does not say that it is experimental"


def test_support_page_lists_everything_experimental() -> None:
    notes = {
        path.relative_to(DOCS).as_posix(): len(NOTE.findall(path.read_text())) for path in sorted(DOCS.rglob("*.md"))
    }
    listed = [page for _, page, _ in stable_rows()]
    assert {page: count for page, count in notes.items() if count} == {page: listed.count(page) for page in listed}
