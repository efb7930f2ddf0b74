"""What the documentation shows runs as it stands and does what it says.

An example below docs/examples that holds ``# prints: TEXT`` lines is run, and every TEXT must appear in its output, in
this order. One that cannot be run alone says ``# not run: WHY``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "docs/examples").glob("*.py"))
RUNNABLE = [path for path in EXAMPLES if "# prints: " in path.read_text()]

pytestmark = pytest.mark.slow


def run(program: Path) -> list[str]:
    """The lines it prints; fails with its stderr unless it ends well and silently."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", str(program)], capture_output=True, text=True, timeout=45
    )
    # In development mode asyncio tells of steps over 0.1 s, which on a busy machine says nothing of the example.
    complaints = [line for line in done.stderr.splitlines() if not re.fullmatch(r"Executing <.* took .* seconds", line)]
    assert (done.returncode, complaints) == (0, [])
    return done.stdout.splitlines()


@pytest.mark.parametrize("example", RUNNABLE, ids=lambda path: path.name)
def test_example_prints_what_it_says(example: Path) -> None:
    lines = iter(run(example))
    for wanted in re.findall(r"^# prints: (.+)$", example.read_text(), re.MULTILINE):
        assert any(wanted in line for line in lines), f"missing, or in another order: {wanted}"


def test_every_example_is_run_or_says_why_not() -> None:
    assert [path.name for path in EXAMPLES if path not in RUNNABLE and "# not run: " not in path.read_text()] == []


@pytest.mark.smoke
def test_quickstart_fits_on_a_screen() -> None:
    assert len(run(ROOT / "docs/examples/quickstart.py")) < 40


def test_readme_example_prints_what_its_comments_say(tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    program = tmp_path / "readme.py"
    program.write_text(code)
    assert run(program) == re.findall(r"print\(.+\)  # (.+)$", code, re.MULTILINE)
