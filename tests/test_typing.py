"""mypy --strict agrees with what the programs in tests/typing claim, the errors they expect included."""

from __future__ import annotations

from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_users_programs_have_the_types_they_claim() -> None:
    programs = sorted(map(str, (ROOT / "tests/typing").glob("*.py")))
    assert programs
    report, complaint, status = api.run(["--config-file", str(ROOT / "pyproject.toml"), *programs])
    assert (status, complaint) == (0, ""), report
