"""The page on natsproto.compat says what the code says."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from natsproto.compat._differences import MISSING, page

pytestmark = pytest.mark.differs("it is about natsproto alone")

PAGE = (Path(__file__).parents[2] / "docs/compat.md").read_text()


def test_page_lists_every_difference() -> None:
    """``python -m natsproto.compat._differences`` prints what belongs there."""
    assert page() in PAGE


@pytest.mark.parametrize("name", MISSING)
def test_name_that_is_missing_is_one_of_nats_py(name: str) -> None:
    path = name.split(".")
    length = next(length for length in range(len(path), 0, -1) if is_module(".".join(path[:length])))
    found: object = importlib.import_module(".".join(path[:length]))
    for part in path[length:]:
        found = getattr(found, part)


def is_module(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return False
    return True
