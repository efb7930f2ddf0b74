"""The examples with Spark run as they are and print what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.conftest import need_java, need_spark

EXAMPLES = sorted((Path(__file__).parents[2] / "docs/examples").glob("spark_*.py"))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_prints_what_it_says(example: Path) -> None:
    need_java()
    if "sources" in (text := example.read_text()):  # the lag in the progress of a query
        need_spark(4, 2)
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    lines = iter(done.stdout.splitlines())
    for wanted in re.findall(r"^ *# shows: (.+)$", text, re.MULTILINE):
        assert any(wanted in line for line in lines), f"missing, or in another order: {wanted}"
