"""What make hunt finds is written as tests that fail in the same way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SUBJECTS = """
import random
from hypothesis import given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

@given(st.integers(), st.text())
def test_literal(number, text):
    assert number < 1000

@given(st.builds(object))
def test_object(thing):
    assert False

class Counter(RuleBasedStateMachine):
    count = 0

    @rule(step=st.integers(1, 3))
    def add(self, step):
        self.count += step
        assert self.count < 4

TestCounter = Counter.TestCase

async def test_seeded(seed, tmp_path):
    assert not tmp_path

def test_that_is_not_random():
    assert False
"""


@pytest.mark.slow
def test_hunt_writes_failing_tests(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
    (tmp_path / "test_subjects.py").write_text(SUBJECTS)

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", *arguments]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    output = run("-p", "tests.tools.hunt", "test_subjects.py")
    assert "4 failed, 1 deselected" in output, output
    found = {path.name.rpartition("_")[0]: path.read_text() for path in (tmp_path / "hunt-found").iterdir()}
    assert set(found) == {f"test_found_{name}" for name in ("literal", "object", "runTest", "seeded")}
    assert "inner_test(number=1000, text='')" in found["test_found_literal"]
    assert "reproduce_failure(" in found["test_found_object"]
    assert "state.add(step=" in found["test_found_runTest"]
    assert "await found(tmp_path=tmp_path, seed=" in found["test_found_seeded"]
    assert "4 failed" in run("hunt-found")
