"""The example of the helpers runs as it stands and prints what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.conftest import need_java

EXAMPLE = Path(__file__).parents[2] / "docs/examples/spark_partitions.py"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_example_prints_what_it_says() -> None:
    need_java()
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    lines = iter(done.stdout.splitlines())
    for wanted in re.findall(r"^ *# shows: (.+)$", EXAMPLE.read_text(), re.MULTILINE):
        assert any(wanted in line for line in lines), f"missing, or in another order: {wanted}"
