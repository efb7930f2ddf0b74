"""Spark's daemon of Python workers, for sessions that are measured: its workers write their coverage after each task.

Spark ends them with a signal or ``os._exit``, of which coverage hears nothing.
"""

from __future__ import annotations

from typing import Any

import coverage
from pyspark import daemon


def measured_daemon() -> None:
    """Run the daemon of PySpark with workers that save."""
    work = daemon.worker

    def worker(*args: Any) -> int:
        try:
            return work(*args)
        finally:
            if (measured := coverage.Coverage.current()) is not None:
                measured.save()

    vars(daemon)["worker"] = worker
    daemon.manager()


if __name__ == "__main__":
    measured_daemon()
